"""What the document promises holds: schemathesis asks every operation all that it can think of.

RACEWATCH_API_EXAMPLES sets how many made-up requests an operation gets (beside those that cover the
edges of its parameters), and then they differ from run to run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, settings
from schemathesis.config import SchemathesisConfig
from starlette.types import Receive, Scope, Send

from service.api import cursor
from service.app import create_app
from service.database import Database
from service.settings import ServiceSettings
from tests.service.api.history import FORK_HEAD, GOOD, RACE, SUBJECT, make
from tests.service.reading.bisected import CELL, Bisections, path
from tests.service.seeds import NOON

ASKED = os.environ.get("RACEWATCH_API_EXAMPLES", "")
EXAMPLES = int(ASKED or 8)
# JSON Schema cannot say everything that a matrix, a key or a result has to be.
CONFIG = {
    "operations": [
        {
            "include-operation-id": ["startRun", "startBisection", "importResult"],
            "checks": {
                "positive_data_acceptance": {
                    "expected-statuses": ["2xx", "401", "403", "404", "409", "422"]
                }
            },
        }
    ],
}
NO_ROW, BISECTION = UUID(int=1), UUID(int=2)


class Current:
    """The application of the test that runs: each has a database of its own."""

    app: FastAPI | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self.app is not None, "a fixture sets it"
        await self.app(scope, receive, send)


def document() -> Any:
    """The document of the application; it is the same on every database."""
    nowhere = create_app(ServiceSettings(config=None), Database("postgresql://nowhere/none"))
    loaded = schemathesis.openapi.from_dict(
        nowhere.openapi(), config=SchemathesisConfig.from_dict(CONFIG)
    )
    loaded.app = Current()
    return loaded


schema = document()


@pytest.fixture(autouse=True)
def asked(db: Database, admin: dict[str, str], tmp_path: Path) -> Iterator[dict[str, str]]:
    """The application on a database that has something to show; a token for everything."""
    make(db)
    with db.session() as session:
        them = Bisections(session)
        them.order(SUBJECT, "sm90", "v2.7", "main", identity=BISECTION)
        them.ranged(BISECTION, path(SUBJECT, 5))
    own = ServiceSettings(home=tmp_path, config=None, private=False, webhook_secret="s3cret")
    schema.app.app = create_app(own, db)
    yield admin
    schema.app.app = None


def with_what_is_there(case: Any) -> None:
    """Let some good requests name what is there: made-up names and ids only ever find nothing."""
    if not case.meta.generation.mode.is_positive:
        return
    query, places, body = case.query or {}, case.path_parameters or {}, case.body
    if "cursor" in query:
        timed = case.operation.path.endswith(("/runs", "/workers", "/bisections"))
        query["cursor"] = cursor.at_moment(NOON, NO_ROW) if timed else cursor.at_number(3)
    if query.get("branch") == "main" or len(str(query)) % 2:
        there = {"subject": SUBJECT, "a": GOOD, "b": RACE, "branch": "main", "from": GOOD}
        query.update({name: value for name, value in there.items() if name in query})
    for name in ("trial_id", "build_id"):
        if isinstance(places.get(name), int) and places[name] % 2:
            places[name] = 1
    if str(places.get("bisection_id", "?"))[-1] in "02468ace":
        places["bisection_id"] = str(BISECTION)
    if isinstance(body, dict) and "subject" in body and len(str(body)) % 3:
        there = {"subject": SUBJECT, "pull": 12, "sha": FORK_HEAD, "good": GOOD, "bad": RACE}
        if "cell" in body:
            there["cell"] = CELL
            body.pop("matrix", None)
        body.update({name: value for name, value in there.items() if name in body})


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    derandomize=not ASKED,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
def test_every_operation_answers_as_the_document_says(case: Any, asked: dict[str, str]) -> None:
    with_what_is_there(case)
    case.call_and_validate(headers=asked)
