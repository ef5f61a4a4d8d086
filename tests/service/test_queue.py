"""Jobs are deferred in the transaction that writes what they wake, and never undo it."""

from __future__ import annotations

from sqlalchemy import text
from sqlmodel import select

from service.database import Database
from service.queue import wake
from service.tables import Head


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
