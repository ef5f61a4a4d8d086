"""The sweep: finds what was left behind by workers that went silent, and moves on what is open.

Everything that a lost job would have done is done here too, so that no job has to survive.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar
from uuid import UUID

from sqlalchemy import func, text
from sqlalchemy.exc import OperationalError
from sqlmodel import Session, col, select
from sqlmodel.sql.expression import SelectOfScalar

from service import bisection, builds, claims
from service.advance import advance, say_who_is_missing
from service.consume import GONE_S
from service.database import Database
from service.events import publish
from service.finished import on_worker_lost
from service.settings import ServiceSettings
from service.tables import (
    OPEN_STATES,
    Bisection,
    BuildState,
    Claim,
    ClaimState,
    CommitBuild,
    Run,
    Worker,
    WorkerState,
)

_LOG = logging.getLogger("racewatch.sweep")
LOST = "its worker was lost"
_Id = TypeVar("_Id")
_NOT_WAITING = """NOT EXISTS (
    SELECT FROM procrastinate_jobs job
    WHERE job.status = 'todo' AND job.scheduled_at IS NULL
    AND job.queueing_lock = 'prepare:' || runs.id AND runs.state = 'queued'
)"""


def sweep(database: Database, settings: ServiceSettings) -> None:
    """Look at everything that is open, each thing in a transaction of its own."""
    with database.session() as session:
        silent = _silent_since(session, settings)
        if silent is None:
            return  # nobody could have said anything yet
        lost_workers(session, settings, silent)
    _each(database, _stale_claims(silent), partial(_take_over, silent))
    _each(database, _stale_builds(silent), partial(_take_back, silent))
    with database.session() as session:
        end_orphaned_jobs(session, GONE_S)
        say_who_is_missing(session)
    # A run whose preparation waits in the queue needs nothing; there may be thousands.
    open_runs = select(Run.id).where(col(Run.state).in_(OPEN_STATES), text(_NOT_WAITING))
    urgent_first = open_runs.order_by(col(Run.priority).desc(), col(Run.created_at))
    _each(database, urgent_first, advance)
    open_ones = select(Bisection.id).where(col(Bisection.state).in_(bisection.OPEN))
    _each(database, open_ones.order_by(col(Bisection.created_at)), bisection.advance)


def _each(
    database: Database,
    statement: SelectOfScalar[_Id],
    work: Callable[[Session, _Id], object],
) -> None:
    """Each found thing in a transaction; one that fails keeps none of the others back."""
    with database.session() as session:
        found = session.exec(statement).all()
    for one in found:
        try:
            with database.session() as session:
                work(session, one)
        except OperationalError:
            raise  # the database is away, or about to be: the next sweep finds it again
        except Exception:
            _LOG.exception("the sweep cannot move on %s", one)


def _silent_since(session: Session, settings: ServiceSettings) -> datetime | None:
    """Who has said nothing since then is lost; None right after the database itself began.

    While it was down nobody could tell it anything.
    """
    began, current = session.exec(
        select(func.pg_postmaster_start_time(), func.clock_timestamp())
    ).one()
    limit = timedelta(seconds=settings.worker_lost_s)
    return None if current - began < limit else current - limit


def lost_workers(session: Session, settings: ServiceSettings, silent: datetime) -> None:
    """Call workers lost that have said nothing for long, and tell who wants to know."""
    found = session.exec(
        select(Worker)
        .where(
            col(Worker.state).in_((WorkerState.LIVE, WorkerState.DRAINING)),
            col(Worker.heartbeat_at) < silent,
        )
        .with_for_update(skip_locked=True)
    )
    for worker in found:
        _LOG.warning("worker %s on %s is lost", worker.name, worker.host)
        worker.state, worker.doing = WorkerState.LOST, ""
        session.add(worker)
        publish(session, "worker", worker=worker.id)
        on_worker_lost(session, settings, worker)


def _stale_claims(silent: datetime) -> SelectOfScalar[UUID]:
    return select(Claim.id).where(Claim.state == ClaimState.LIVE, col(Claim.heartbeat_at) < silent)


def _stale_builds(silent: datetime) -> SelectOfScalar[int | None]:
    return select(col(CommitBuild.id)).where(
        CommitBuild.state == BuildState.BUILDING, col(CommitBuild.heartbeat_at) < silent
    )


def _take_over(silent: datetime, session: Session, claim: UUID) -> None:
    row = session.get_one(Claim, claim, with_for_update=True)
    if row.heartbeat_at < silent:  # else its worker has spoken since it was found
        claims.release(session, claim, ClaimState.LOST, LOST)


def _take_back(silent: datetime, session: Session, build: int | None) -> None:
    row = session.get_one(CommitBuild, build, with_for_update=True)
    if row.state == BuildState.BUILDING and row.heartbeat_at and row.heartbeat_at < silent:
        builds.put_back(session, row, LOST)


def end_orphaned_jobs(session: Session, lost_s: float) -> int:
    """End queue jobs whose worker is gone; how many they were. Their rows wake others.

    lost_s: see `consume.GONE_S`. Retrying them through the queue would ignore how often that was
    done already.
    """
    ended = session.connection().execute(
        text(
            "UPDATE procrastinate_jobs SET status = 'failed' WHERE status = 'doing' AND ("
            "worker_id IS NULL OR worker_id IN (SELECT id FROM procrastinate_workers "
            "WHERE last_heartbeat < now() - make_interval(secs => :lost)))"
        ),
        {"lost": lost_s},
    )
    return ended.rowcount
