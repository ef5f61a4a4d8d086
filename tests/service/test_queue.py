"""Jobs are deferred in the transaction that writes what they wake, and never undo it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlmodel import Session, select

from service.database import Database
from service.queue import build_queue, environment_queue, git_queue, trial_queue, wake
from service.tables import Head
from tests.service import flow
from tests.service.flow import Job


def test_a_lock_that_is_taken_undoes_nothing_else_of_the_transaction(db: Database) -> None:
    with db.session() as session:
        assert wake(session, "task", "queue", lock="the lock")
    with db.session() as session:
        session.add(Head(subject="te", ref="before", sha="a" * 40))
        session.flush()
        assert not wake(session, "task", "queue", lock="the lock")
        session.add(Head(subject="te", ref="after", sha="a" * 40))
    with db.session() as session:
        assert set(session.exec(select(Head.ref))) == {"before", "after"}
        jobs = session.connection().execute(text("SELECT count(*) FROM procrastinate_jobs"))
        assert jobs.scalar_one() == 1


def waiting(db: Database) -> Job:
    """The one job that waits."""
    (job,) = flow.jobs(db)
    return job


def test_a_job_that_waits_takes_the_priority_of_whoever_is_more_urgent(db: Database) -> None:
    for priority, then in ((10, 10), (40, 40), (20, 40)):
        with db.session() as session:
            wake(session, "task", "queue", lock="the lock", priority=priority)
        assert waiting(db).priority == then


def test_a_job_that_waits_for_later_is_moved_to_when_it_is_needed(db: Database) -> None:
    soon = flow.moment(db) + timedelta(seconds=60)
    for at, later in ((soon, 60), (soon + timedelta(hours=1), 60), (None, 0), (soon, 0)):
        with db.session() as session:
            wake(session, "task", "queue", lock="the lock", at=at)
        assert waiting(db).later == pytest.approx(later, abs=5)


def test_a_job_that_waits_where_nobody_looks_any_more_is_moved(db: Database) -> None:
    for queue in ("trial-sm90", "environment-7", "trial-sm90"):
        with db.session() as session:
            wake(session, "trials", queue, lock="the lock")
        assert waiting(db).queue == queue


def test_a_job_that_need_not_be_moved_keeps_nobody_waiting(db: Database) -> None:
    with db.session() as session:
        wake(session, "task", "queue", lock="the lock", priority=10)
    with db.session() as first, db.session() as second:
        for session in (first, second):
            session.connection().execute(text("SET LOCAL lock_timeout = '5s'"))
            assert not wake(session, "task", "queue", lock="the lock", priority=10)


def test_a_job_that_began_hides_nobody(db: Database) -> None:
    with db.session() as session:
        wake(session, "task", "queue", lock="the lock")
    flow.fetched(db)
    with db.session() as session:
        assert wake(session, "task", "queue", lock="the lock")


def test_a_job_comes_and_goes_with_its_transaction(db: Database) -> None:
    with Session(db.engine) as session:
        assert wake(session, "task", "queue", lock="the lock")
        session.rollback()
    assert flow.jobs(db) == []


def test_queues_are_told_apart_by_what_and_for_whom() -> None:
    assert git_queue("te") == "git-te"
    assert (build_queue("te"), build_queue("te", trusted=False)) == ("build-te", "forks-build-te")
    assert (trial_queue("sm90"), trial_queue("sm90", trusted=False)) == (
        "trial-sm90",
        "forks-trial-sm90",
    )
    assert (environment_queue(7), environment_queue(7, trusted=False)) == (
        "environment-7",
        "forks-environment-7",
    )
