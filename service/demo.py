"""`racewatch demo`: the demo subject through the whole service, on a machine with no GPU."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

import httpx
from sqlmodel import Session, col, func, select

from runner import demo_repo
from runner import matrix as matrices
from runner.demo_subject import DemoSubject
from runner.errors import InfrastructureError
from runner.result import Commit
from runner.settings import Settings
from runner.subject import Options, Request
from service.settings import ServiceSettings
from service.submit import RunRequest, submit
from service.tables import ENDED_STATES, Origin, Run, RunState
from service.up import Stack

WORKER = ("--subject", "demo")
LOOK_S = 0.5


@dataclass(frozen=True)
class Ordered:
    """The demo's runs: all of them, and those of the tagged commits by tag."""

    runs: tuple[UUID, ...]
    tagged: dict[str, UUID]


def order(session: Session, only: Sequence[str] = ()) -> Ordered:
    """Runs of every commit of the demo's history with `quick`, and of the tagged with the issue's
    matrix; `only` some of the tagged where it names them. Runs that were ordered before are not
    ordered again."""
    subject = DemoSubject(Options(Settings.load().folders))
    head = subject.resolve(Request("main"))
    tags = {tag: subject.resolve(Request(tag)) for tag in only or demo_repo.TAGS}
    tagged = {
        tag: _run(session, commit, "issue-3863", Origin.MANUAL) for tag, commit in tags.items()
    }
    commits = [] if only else subject.history(head)
    history = [_run(session, commit, "quick", Origin.BACKFILL) for commit in commits]
    return Ordered((*tagged.values(), *history), tagged)


def _run(session: Session, commit: Commit, matrix: str, origin: Origin) -> UUID:
    known = session.exec(
        select(Run.id).where(
            Run.subject == "demo",
            Run.head_sha == commit.sha,
            Run.matrix_name == matrix,
            col(Run.state).not_in((RunState.FAILED, RunState.CANCELLED)),
        )
    ).first()
    if known is not None:
        return known
    request = RunRequest(
        subject="demo",
        matrix=matrices.load(matrix),
        queue="emulated",
        commit=commit,
        origin=origin,
        requested_by="racewatch demo",
    )
    return submit(session, request).id


def progress(stack: Stack, settings: ServiceSettings, runs: tuple[UUID, ...]) -> Iterator[int]:
    """How many of the runs have ended, until all have. Raises InfrastructureError where the
    service does not stay up."""
    while True:
        stack.look()
        if stack.service_ended:
            raise InfrastructureError(
                f"the service does not stay up on {settings.host}:{settings.port}: see above; is "
                "the port taken? choose another with --port"
            )
        with stack.database.session() as session:
            ended = session.exec(
                select(func.count())
                .select_from(Run)
                .where(col(Run.id).in_(runs), col(Run.state).in_(ENDED_STATES))
            ).one()
        yield ended
        if ended == len(runs):
            return
        time.sleep(LOOK_S)


def check(settings: ServiceSettings, ordered: Ordered) -> list[str]:
    """What the service's own pages and API do not show as they should; nothing where all is well.

    The commit that brings the race must race, the one that fixes it must not, and the broken one
    must be a build error.
    """
    wrong = []
    with httpx.Client(base_url=settings.link, timeout=30.0) as client:
        grid = client.get("/", params={"subject": "demo"})
        if grid.status_code != 200 or "emulated" not in grid.text.lower():
            wrong.append(f"{settings.link}/ answers {grid.status_code} and shows no emulated rows")
        cells = {
            tag: {cell["name"]: cell for cell in _json(client, run)["cells"]}
            for tag, run in ordered.tagged.items()
        }
    name = "stock, background"
    races = {"race": True, "fix": False, "before": False}
    for tag in races.keys() & cells.keys():
        cell = cells[tag][name]
        if not cell["n"] or bool(cell["k"]) is not races[tag]:
            wrong.append(f"{tag}: {name}: {cell['k']}/{cell['n']} failed")
    if "broken" in cells and cells["broken"][name]["outcome"] != "build_error":
        wrong.append(f"broken: {name}: {cells['broken'][name]['outcome']}, not a build error")
    return wrong


def _json(client: httpx.Client, run: UUID) -> dict[str, list[dict[str, object]]]:
    answer = client.get(f"/api/v1/runs/{run}")
    answer.raise_for_status()
    data: dict[str, list[dict[str, object]]] = answer.json()
    return data
