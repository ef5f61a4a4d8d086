"""Deliveries as GitHub makes them: bodies of its form, signed with a secret, sent to the router."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import itertools
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI
from pydantic import SecretStr
from sqlmodel import col, select

from service.database import Database
from service.github.webhook import router
from service.settings import ServiceSettings
from service.tables import Delivery, Run, RunState

SECRET = "It's a Secret to Everybody"
REPOSITORY = "NVIDIA/TransformerEngine"
START = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
_ids = itertools.count(1)

CONFIG = """
[subjects.te]
github = "NVIDIA/TransformerEngine"
repository = "{repository}"
branches = ["main", "release_v*"]
tags = ["v*"]
queues = ["sm90", "sm100"]
push_matrix = "quick"
pull_matrix = "after-fix"
"""


def sha(letter: str) -> str:
    """A commit's hash that is easily told from others."""
    return (letter * 40)[:40]


def settings_in(folder: Path, repository: str = "", more: str = "") -> ServiceSettings:
    """Settings that track TransformerEngine on two kinds of device."""
    config = folder / "racewatch.toml"
    config.write_text(CONFIG.format(repository=repository) + more)
    return ServiceSettings(config=config, home=folder, webhook_secret=SecretStr(SECRET))


def app_of(database: Database, settings: ServiceSettings) -> FastAPI:
    """An application that has the webhook and nothing else."""
    app = FastAPI()
    app.include_router(router)
    app.state.database, app.state.settings = database, settings
    return app


def signed(body: bytes, secret: str = SECRET) -> str:
    """What GitHub puts into X-Hub-Signature-256."""
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def headers_of(event: str, body: bytes, delivery: str = "") -> dict[str, str]:
    """The headers of a delivery, all of them right."""
    return {
        "Content-Type": "application/json",
        "User-Agent": "GitHub-Hookshot/044aadd",
        "X-GitHub-Delivery": delivery or f"72d3162e-cc78-11e3-81ab-{next(_ids):012x}",
        "X-GitHub-Event": event,
        "X-GitHub-Hook-ID": "292430182",
        "X-Hub-Signature-256": signed(body),
    }


@dataclass
class Hook:
    """The webhook of a repository: sends deliveries to an application, and looks into its rows."""

    database: Database
    settings: ServiceSettings

    def post(
        self, body: bytes | AsyncIterator[bytes], headers: Mapping[str, str]
    ) -> httpx.Response:
        """Send exactly this."""
        return asyncio.run(self._post([(body, headers)]))[0]

    def post_at_once(self, requests: Sequence[tuple[bytes, Mapping[str, str]]]) -> list[int]:
        """Send several at the same time; the statuses of the answers."""
        return [answer.status_code for answer in asyncio.run(self._post(requests))]

    async def _post(
        self, requests: Sequence[tuple[bytes | AsyncIterator[bytes], Mapping[str, str]]]
    ) -> list[httpx.Response]:
        transport = httpx.ASGITransport(app_of(self.database, self.settings))
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            sent = (
                client.post("/webhooks/github", content=body, headers=dict(headers))
                for body, headers in requests
            )
            return list(await asyncio.gather(*sent))

    def deliver(self, event: str, payload: Mapping[str, Any], delivery: str = "") -> httpx.Response:
        """Send a delivery as GitHub does."""
        body = json.dumps(payload).encode()
        return self.post(body, headers_of(event, body, delivery))

    def effect(self, event: str, payload: Mapping[str, Any]) -> str:
        """What a delivery that is taken says it caused."""
        answer = self.deliver(event, payload)
        assert answer.status_code == 202, answer.text
        text: str = answer.json()["effect"]
        return text

    def deliveries(self) -> list[Delivery]:
        """What is stored of deliveries, oldest first."""
        with self.database.session() as session:
            return list(session.exec(select(Delivery).order_by(col(Delivery.received_at))))

    def runs(self, state: RunState | None = None) -> list[Run]:
        """All runs, oldest first; with `state`, those in it."""
        statement = select(Run).order_by(col(Run.created_at), col(Run.queue))
        if state is not None:
            statement = statement.where(Run.state == state)
        with self.database.session() as session:
            return list(session.exec(statement))

    def states(self) -> dict[tuple[str, str], str]:
        """State of the newest run of each (commit's first letter, queue)."""
        return {(run.head_sha[0], run.queue): str(run.state) for run in self.runs()}

    def jobs(self, task: str) -> list[dict[str, Any]]:
        """Arguments of the jobs of a task that wait, in the order they were deferred."""
        with self.database.engine.connect() as connection:
            found = connection.exec_driver_sql(
                "SELECT args FROM procrastinate_jobs "
                "WHERE task_name = %(task)s AND status = 'todo' ORDER BY id",
                {"task": task},
            )
            return [dict(row.args) for row in found]


def user(login: str, kind: str = "User") -> dict[str, Any]:
    """A user, as every payload has several."""
    return {"login": login, "id": 1, "type": kind, "site_admin": False}


def repository(full_name: str = REPOSITORY) -> dict[str, Any]:
    """A repository, as every payload has one."""
    owner, _, name = full_name.partition("/")
    return {
        "id": 565486535,
        "name": name,
        "full_name": full_name,
        "private": False,
        "owner": user(owner, "Organization"),
        "default_branch": "main",
    }


def push(
    after: str,
    ref: str = "refs/heads/main",
    *,
    before: str = "0" * 39 + "1",
    full_name: str = REPOSITORY,
    commits: int = 1,
    **more: Any,
) -> dict[str, Any]:
    """A `push` of some commits, of which `after` is the last."""
    made = [
        {
            "id": f"{n:040x}",
            "message": f"Change {n}\n\nWith a body.",
            "timestamp": "2026-11-30T13:00:00+01:00",
            "author": {"name": "Ada", "email": "ada@example.org", "username": "ada"},
            "added": [],
            "modified": ["transformer_engine/jax/csrc/extensions/ffi.h"],
        }
        for n in range(1, commits + 1)
    ]
    made[-1]["id"] = after
    return {
        "ref": ref,
        "before": before,
        "after": after,
        "created": False,
        "deleted": False,
        "forced": False,
        "head_commit": made[-1],
        "commits": made,
        "pusher": {"name": "ada", "email": "ada@example.org"},
        "sender": user("ada"),
        "repository": repository(),
        **more,
    } | ({"repository": repository(full_name)} if full_name != REPOSITORY else {})


def pull(
    action: str,
    head: str,
    *,
    number: int = 12,
    fork: bool = True,
    draft: bool = False,
    state: str = "open",
    minute: int = 0,
    base_ref: str = "main",
    head_repository: dict[str, Any] | str | None = "",
) -> dict[str, Any]:
    """A `pull_request` event; `minute` after START."""
    theirs: Any = head_repository
    if head_repository == "":
        theirs = repository("mallory/TransformerEngine" if fork else REPOSITORY)
    return {
        "action": action,
        "number": number,
        "pull_request": {
            "id": 1,
            "number": number,
            "title": "Capture on a stream of our own",
            "state": state,
            "draft": draft,
            "merged": False,
            "user": user("mallory" if fork else "ada"),
            "body": "Fixes a race.",
            "updated_at": (START + timedelta(minutes=minute)).isoformat(),
            "author_association": "CONTRIBUTOR",
            "head": {"label": "x:y", "ref": "fix", "sha": head, "repo": theirs},
            "base": {"label": "x:main", "ref": base_ref, "sha": sha("0"), "repo": repository()},
        },
        "repository": repository(),
        "sender": user("mallory" if fork else "ada"),
    }


def comment(
    body: str,
    *,
    number: int = 12,
    by: str = "maria",
    kind: str = "User",
    action: str = "created",
    on_pull: bool = True,
    at: datetime | None = None,
) -> dict[str, Any]:
    """An `issue_comment` event. Its author calls themself an owner, which proves nothing."""
    issue: dict[str, Any] = {"id": 1, "number": number, "title": "x", "user": user("mallory")}
    if on_pull:
        issue["pull_request"] = {"url": "https://api.github.com/x", "merged_at": None}
    return {
        "action": action,
        "issue": issue,
        "comment": {
            "id": 99,
            "body": body,
            "user": user(by, kind),
            "author_association": "OWNER",
            "created_at": (at or datetime.now(UTC) + timedelta(hours=1)).isoformat(),
        },
        "repository": repository(),
        "sender": user(by, kind),
    }
