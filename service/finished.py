"""What is told to the outside once a run changed or a worker was lost.

A run's row says in which state it is and of which state the outside was told, so nothing that
changes one has to tell of it, nor to know how: a worker has no token and no addresses. The service
itself finds runs whose two states differ, and puts into the outbox what follows.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from datetime import timedelta
from uuid import UUID

from sqlalchemy import update
from sqlmodel import Session, col, select

from service import bisect_regressions, notify
from service.database import Database
from service.github import comment, outbox, status
from service.queue import CONTROL, wake
from service.settings import ServiceSettings
from service.tables import ENDED_STATES, Message, Run, RunState, Worker
from service.tables.columns import now

_LOG = logging.getLogger("racewatch.finished")
LOOKED_BACK = timedelta(days=2)
"""How old a change may be that is still told of: one that comes later misleads."""


def on_run_changed(session: Session, run: Run) -> None:
    """Wake who tells of a run's change, in the transaction that makes it.

    Without this it is told of at the next sweep.
    """
    wake(session, "deliver", CONTROL, lock=f"deliver:{run.id}:{run.state}")


def tell_changes(database: Database, settings: ServiceSettings) -> int:
    """Put into the outbox what follows from runs that changed, each run in a transaction of its
    own and once, whoever else does the same; how many runs there were."""
    count = 0
    failed: list[UUID] = []
    if not settings.github_token.get_secret_value():
        with database.session() as session:
            count = _pass_over(session)
    while True:
        with database.session() as session:
            run = _next(session, failed)
            if run is None:
                return count
            try:
                with session.begin_nested():
                    _tell(session, settings, run)
            except Exception:
                # A bug with one run keeps back no other. The next sweep tries it again.
                _LOG.exception("run %s could not be told of", run.id)
                failed.append(run.id)
                continue
            run.told = run.state
            session.add(run)
            count += 1


def _pass_over(session: Session) -> int:
    """Call told, at one stroke, what only GitHub hears of: that runs wait, or go on."""
    changed = session.connection().execute(
        update(Run)
        .where(col(Run.told) != col(Run.state), col(Run.state).not_in(ENDED_STATES))
        .values(told=col(Run.state))
    )
    return changed.rowcount


def on_worker_lost(session: Session, settings: ServiceSettings, worker: Worker) -> None:
    """Call it where a worker is found to be lost; again, and nothing more follows."""
    _notify(session, settings, notify.worker_lost(settings, worker))


def _next(session: Session, failed: Collection[UUID]) -> Run | None:
    """A run of whose state nobody told, locked; not against trials that are stored meanwhile."""
    return session.exec(
        select(Run)
        .where(col(Run.told) != col(Run.state), col(Run.id).not_in(failed))
        .order_by(col(Run.created_at))
        .limit(1)
        .with_for_update(skip_locked=True, key_share=True)
    ).first()


def _tell(session: Session, settings: ServiceSettings, run: Run) -> None:
    changed_at = run.finished_at or run.started_at or run.created_at
    if changed_at < now() - LOOKED_BACK:
        return
    cause = f"{run.id}:{run.state}"
    _tell_github(session, settings, run, cause)
    if run.state in ENDED_STATES:
        for compared in _compared_with(session, run):
            _tell_github(session, settings, compared, cause)
    for event in notify.branch_events(session, settings, run):
        _notify(session, settings, event)
    bisect_regressions.start(session, settings, run)


def _compared_with(session: Session, base: Run) -> list[Run]:
    """Complete runs whose verdicts rest on what this one measured: their status may change."""
    if base.commit_id is None:
        return []
    found = session.exec(
        select(Run)
        .where(
            Run.subject == base.subject,
            Run.base_commit_id == base.commit_id,
            Run.matrix_name == base.matrix_name,
            Run.queue == base.queue,
            Run.state == RunState.COMPLETE,
            Run.id != base.id,
        )
        .order_by(col(Run.created_at))
    )
    return list(found)


def _tell_github(session: Session, settings: ServiceSettings, run: Run, cause: str) -> None:
    if not status.is_due(settings, run):
        return
    outbox.enqueue(
        session,
        outbox.STATUS,
        status.topic_of(settings, run),
        {"run": str(run.id), "cause": cause},
        settings,
    )
    if run.pull is not None:
        outbox.enqueue(
            session,
            outbox.COMMENT,
            comment.topic_of(run.subject, run.pull),
            {"subject": run.subject, "pull": run.pull, "cause": cause},
            settings,
        )


def _notify(session: Session, settings: ServiceSettings, event: notify.Event) -> None:
    """An event is told once, also where its counts have grown since."""
    for kind in (outbox.WEBHOOK, outbox.EMAIL):
        topic = f"{kind}:{event.id}"
        known = select(Message.id).where(Message.topic == topic)
        if session.exec(known.limit(1)).first() is None:
            outbox.enqueue(session, kind, topic, event.as_json(), settings)
