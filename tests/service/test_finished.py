"""What a change of a run causes, once: a status, the comment, and notifications."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import text
from sqlmodel import Session, col, select

from service import finished
from service.database import Database
from service.finished import on_run_changed, on_worker_lost, tell_changes
from service.github import outbox
from service.github.outbox import Delivered
from service.settings import ServiceSettings
from service.submit import cancel
from service.tables import Message, Origin, Run, RunState, Worker
from service.tables.columns import now
from tests.service.github.standin import StandIn
from tests.service.stories import BASE, CLEAN, HEAD, RACY, run_of

NOTHING = ServiceSettings(database_url="")
SETTINGS = ServiceSettings(
    github_token=SecretStr("t"),
    base_url="https://racewatch.example",
    notify_url="http://hook.example",
    notify_secret=SecretStr("s"),
    smtp_url="smtp://mail.example",
    notify_email="team@corp.example",
    database_url="",
)
CONTEXT = "racewatch/issue-3863/sm90"


def queued(db: Database) -> list[str]:
    """Kinds of all messages since the last look, in order."""
    with db.session() as session:
        rows = session.exec(select(Message).order_by(col(Message.id))).all()
        for row in rows:
            session.delete(row)
        return [row.kind for row in rows]


def put(db: Database, *args: Any, **columns: Any) -> Run:
    with db.session() as session:
        return run_of(session, *args, **columns)


def change(db: Database, run: Run, **columns: Any) -> None:
    with db.session() as session:
        stored = session.get_one(Run, run.id)
        for name, value in columns.items():
            setattr(stored, name, value)
        session.add(stored)


def test_a_pull_requests_run_causes_a_status_and_the_comment(db: Database) -> None:
    put(db, CLEAN)
    assert tell_changes(db, SETTINGS) == 1
    assert queued(db) == ["status", "comment"]


def test_a_branchs_run_causes_a_status(db: Database) -> None:
    put(db, CLEAN, pull=None, origin=Origin.PUSH)
    tell_changes(db, SETTINGS)
    assert queued(db) == ["status"]


@pytest.mark.parametrize("origin", [Origin.MANUAL, Origin.BACKFILL, Origin.IMPORT])
def test_any_other_run_causes_nothing(db: Database, origin: Origin) -> None:
    put(db, RACY, pull=None, origin=origin)
    assert tell_changes(db, SETTINGS) == 1
    assert queued(db) == []


def test_without_anything_set_up_nothing_is_kept(db: Database) -> None:
    put(db, RACY)
    assert tell_changes(db, NOTHING) == 1
    with db.session() as session:
        on_worker_lost(session, NOTHING, Worker(name="w", host="h", pid=1))
    assert queued(db) == []


def test_every_change_is_told_once(db: Database) -> None:
    run = put(db, state=RunState.QUEUED)
    for state in (RunState.BUILDING, RunState.RUNNING, RunState.COMPLETE):
        tell_changes(db, SETTINGS)
        assert tell_changes(db, SETTINGS) == 0
        assert queued(db) == ["status", "comment"]
        change(db, run, state=state)


def test_whoever_changes_a_run_need_not_tell(db: Database) -> None:
    run = put(db, state=RunState.RUNNING)
    tell_changes(db, SETTINGS)
    queued(db)
    with db.session() as session:
        cancel(session, run.id, "superseded")
    assert tell_changes(db, SETTINGS) == 1
    assert queued(db) == ["status", "comment"]


def test_a_change_can_be_told_of_at_once(db: Database) -> None:
    with db.session() as session:
        run = run_of(session, CLEAN)
        on_run_changed(session, run)
        on_run_changed(session, run)
        found = session.connection().execute(
            text("SELECT queue_name FROM procrastinate_jobs WHERE task_name = 'deliver'")
        )
        assert list(found.scalars()) == ["control"]


def test_the_end_of_a_base_tells_anew_of_what_is_compared_with_it(db: Database) -> None:
    base = put(db, None, BASE, pull=None, state=RunState.RUNNING)
    put(db, RACY, base=BASE)
    put(db, RACY, "d" * 40, base=BASE, state=RunState.RUNNING)
    tell_changes(db, SETTINGS)
    queued(db)
    change(db, base, state=RunState.COMPLETE)
    tell_changes(db, SETTINGS)
    assert queued(db) == ["status", "comment"]


def test_a_regression_of_a_branch_is_told_once_everywhere(db: Database) -> None:
    put(db, CLEAN, BASE, pull=None, origin=Origin.PUSH, created_at=now())
    run = put(db, RACY, pull=None, origin=Origin.PUSH, created_at=now())
    tell_changes(db, SETTINGS)
    with db.session() as session:
        event = session.exec(select(Message.payload).where(Message.kind == "webhook")).one()
    assert event["event"] == "regressed"
    change(db, run, told="")
    tell_changes(db, SETTINGS)
    assert queued(db) == ["status", "status", "webhook", "email"]


def test_a_lost_worker_is_told_once_everywhere(db: Database) -> None:
    worker = Worker(name="w", host="h", pid=1)
    for _ in range(2):
        with db.session() as session:
            on_worker_lost(session, SETTINGS, worker)
    assert queued(db) == ["webhook", "email"]


def test_a_change_of_long_ago_is_not_told_any_more(db: Database) -> None:
    long_ago = now() - 2 * finished.LOOKED_BACK
    put(db, RACY, created_at=long_ago, finished_at=long_ago)
    assert tell_changes(db, SETTINGS) == 1
    assert queued(db) == []


def test_many_tell_at_once_and_each_change_is_told_once(db: Database) -> None:
    for n in range(12):
        put(db, CLEAN, f"{n:040x}", pull=n + 1, state=RunState.QUEUED)
    told: list[int] = []
    threads = [
        threading.Thread(target=lambda: told.append(tell_changes(db, SETTINGS))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sum(told) == 12
    assert Counter(queued(db)) == {"status": 12, "comment": 12}


def test_trials_are_stored_while_a_run_is_told_of(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = put(db, CLEAN, state=RunState.RUNNING)
    stored: list[str] = []

    def meanwhile(*_: object) -> None:
        with db.session() as session:
            session.connection().execute(text("SET LOCAL lock_timeout = '2s'"))
            session.connection().execute(
                text("INSERT INTO claims (id, run_id, state, reason, created_at, heartbeat_at) "
                     "VALUES (gen_random_uuid(), :run, 'live', '', now(), now())"),
                {"run": run.id},
            )  # fmt: skip
            stored.append("stored")

    monkeypatch.setattr(finished, "_tell", meanwhile)
    tell_changes(db, SETTINGS)
    assert stored == ["stored"]


def test_a_bug_with_one_run_keeps_back_no_other(
    db: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bad = put(db, CLEAN, pull=1)
    put(db, CLEAN, "d" * 40, pull=2)
    tell = finished._tell

    def broken(session: Session, settings: ServiceSettings, run: Run) -> None:
        tell(session, settings, run)
        if run.id == bad.id:
            session.connection().execute(text("SELECT nonsense"))

    with monkeypatch.context() as patched:
        patched.setattr(finished, "_tell", broken)
        assert tell_changes(db, SETTINGS) == 1
    assert f"run {bad.id} could not be told of" in caplog.text
    assert queued(db) == ["status", "comment"]
    assert tell_changes(db, SETTINGS) == 1
    assert queued(db) == ["status", "comment"]


def at(github: StandIn) -> ServiceSettings:
    return SETTINGS.model_copy(
        update={"github_api": github.url, "github_token": SecretStr(github.token)}
    )


@pytest.fixture
def github() -> Iterator[StandIn]:
    with StandIn() as standin:
        yield standin


def test_from_a_runs_changes_to_github(db: Database, github: StandIn) -> None:
    """A pull request's whole life, told and delivered as the service does."""
    settings = at(github)
    senders = outbox.senders(settings)
    waiting = put(db, state=RunState.AWAITING_APPROVAL, base=BASE)
    tell_changes(db, settings)
    assert outbox.deliver(db, senders) == Delivered(sent=2)
    status = github.status(HEAD, CONTEXT)
    assert status is not None
    assert status.state == "pending"
    assert "/racewatch approve" in github.comments_of(12)[0].body

    change(db, waiting, state=RunState.CANCELLED)
    base = put(db, None, BASE, pull=None, state=RunState.RUNNING)
    put(db, RACY, base=BASE, created_at=now())
    tell_changes(db, settings)
    outbox.deliver(db, senders)
    status = github.status(HEAD, CONTEXT)
    assert status is not None
    assert status.state == "pending"

    put(db, CLEAN, BASE, pull=None)
    change(db, base, state=RunState.COMPLETE)
    tell_changes(db, settings)
    outbox.deliver(db, senders)
    status = github.status(HEAD, CONTEXT)
    assert status is not None
    assert (status.state, status.description[:17]) == ("failure", "stock, background")
    (comment,) = github.comments_of(12)
    assert "**newly failing**" in comment.body
    assert comment.edits >= 1
    assert github.complaints == []
    assert tell_changes(db, settings) == 0
    assert outbox.deliver(db, senders) == Delivered()
