"""The sweep: finds what was left behind by workers that went silent, and moves on what is open.

Everything that a lost job would have done is done here too, so that no job has to survive.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TypeVar
from uuid import UUID

from sqlalchemy import func, text
from sqlmodel import Session, col, select
from sqlmodel.sql.expression import SelectOfScalar

from service import builds, claims
from service.advance import advance
from service.database import Database
from service.events import publish
from service.finished import on_worker_lost
from service.settings import ServiceSettings
from service.tables import (
    OPEN_STATES,
    BuildState,
    Claim,
    ClaimState,
    Commit,
    CommitBuild,
    Run,
    Worker,
    WorkerState,
)

_LOG = logging.getLogger("racewatch.sweep")
_Id = TypeVar("_Id")


def sweep(database: Database, settings: ServiceSettings) -> None:
    """Look at everything that is open, each thing in a transaction of its own."""
    with database.session() as session:
        silent = _silent_since(session, settings)
        if silent is None:
            return  # nobody could have said anything yet
        lost_workers(session, settings, silent)
    for claim in _ids(database, _stale_claims(silent)):
        with database.session() as session:
            claims.release(session, claim, ClaimState.LOST, "its worker was lost")
    for build in _ids(database, _stale_builds(silent)):
        with database.session() as session:
            _take_back(session, build)
    with database.session() as session:
        end_orphaned_jobs(session, settings.worker_lost_s + settings.batch_s + settings.drain_s)
    open_runs = select(Run.id).where(col(Run.state).in_(OPEN_STATES))
    for run in _ids(database, open_runs.order_by(col(Run.priority).desc(), col(Run.created_at))):
        with database.session() as session:
            advance(session, settings, run)


def _silent_since(session: Session, settings: ServiceSettings) -> datetime | None:
    """Who has said nothing since then is lost; None right after the database itself began.

    While it was down nobody could tell it anything.
    """
    began, current = session.exec(
        select(func.pg_postmaster_start_time(), func.clock_timestamp())
    ).one()
    limit = timedelta(seconds=settings.worker_lost_s)
    return None if current - began < limit else current - limit


def _ids(database: Database, statement: SelectOfScalar[_Id]) -> Sequence[_Id]:
    with database.session() as session:
        return session.exec(statement).all()


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


def _take_back(session: Session, build: int | None) -> None:
    wanted = session.exec(
        select(CommitBuild).where(CommitBuild.id == build).with_for_update()
    ).one()
    if wanted.state == BuildState.BUILDING:
        subject = session.get_one(Commit, wanted.commit_id).subject
        builds.put_back(session, subject, wanted, "its worker was lost")


def end_orphaned_jobs(session: Session, lost_s: float) -> int:
    """End queue jobs whose worker is gone; how many they were. Their rows wake others.

    lost_s: silence after which a worker of the queue counts as gone. It must allow for a batch and
    a drain, in which the queue's own heartbeat pauses (Procrastinate's issue 1585).
    Retrying them through the queue would ignore how often that was done already.
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
