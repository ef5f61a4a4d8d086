"""A run is ordered once, begins when it may, and ends when somebody says so, whoever is at it."""

from __future__ import annotations

from uuid import uuid4

from sqlmodel import Session

from service.database import Database
from service.submit import approve, cancel, locked
from service.tables import Run, RunState
from tests.service import flow


def test_a_run_that_awaits_approval_wakes_nobody_before_it_has_it(db: Database) -> None:
    run = flow.order(db, awaiting_approval=True)
    assert flow.jobs(db) == []
    with db.session() as session:
        assert approve(session, session.get_one(Run, run), "somebody")
    stored = flow.row(db, run)
    assert (stored.state, stored.reason) == (RunState.QUEUED, "approved by somebody")
    assert [job.task for job in flow.jobs(db)] == ["prepare"]
    with db.session() as session:
        assert not approve(session, session.get_one(Run, run), "somebody else")


def test_a_run_that_was_cancelled_meanwhile_is_not_approved(db: Database) -> None:
    run = flow.order(db, awaiting_approval=True)
    with db.session() as session:
        seen = session.get_one(Run, run)
        with db.session() as another:
            assert cancel(another, run, "closed")
        assert not approve(session, seen, "somebody")
    assert (flow.row(db, run).state, flow.row(db, run).reason) == (RunState.CANCELLED, "closed")
    assert flow.jobs(db) == []


def test_what_is_set_before_an_approval_is_kept(db: Database) -> None:
    run = flow.order(db, awaiting_approval=True, trusted=False)
    with db.session() as session:
        row = session.get_one(Run, run)
        row.trusted = True
        assert approve(session, row, "somebody")
    assert flow.row(db, run).trusted


def test_a_run_is_cancelled_once_and_only_one_that_is_there(db: Database) -> None:
    run = flow.order(db)
    with db.session() as session:
        assert cancel(session, run, "not needed")
        assert not cancel(session, run, "again")
        assert not cancel(session, uuid4(), "nothing")
    ended = flow.row(db, run)
    assert (ended.state, ended.reason) == (RunState.CANCELLED, "not needed")
    assert ended.finished_at is not None


def test_a_locked_run_is_read_anew(db: Database) -> None:
    run = flow.order(db)
    with db.session() as session:
        before = session.get_one(Run, run)
        with Session(db.engine) as another, another.begin():
            other = locked(another, run)
            assert other is not None
            other.reason = "changed"
        assert before.reason == ""
        assert locked(session, run) is before
        assert before.reason == "changed"
