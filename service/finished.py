"""What is told to the outside when a run changed or a worker was lost, in that same transaction.

Everything here may be called again: what was told already, or waits to be, is not told twice.
"""

from __future__ import annotations

from sqlmodel import Session, col, select

from service import notify
from service.github import comment, outbox, status
from service.settings import ServiceSettings
from service.tables import ENDED_STATES, Message, Run, RunState, Worker


def on_run_changed(session: Session, settings: ServiceSettings, run: Run) -> None:
    """Call it where a run is submitted, approved, begins, goes on or ends: wherever its state is
    set. What is due goes into the outbox."""
    session.flush()
    cause = f"{run.id}:{run.state}"
    _tell_github(session, settings, run, cause)
    if run.state in ENDED_STATES:
        for compared in _compared_with(session, run):
            _tell_github(session, settings, compared, cause)
    for event in notify.branch_events(session, settings, run):
        _notify(session, settings, event)


def on_worker_lost(session: Session, settings: ServiceSettings, worker: Worker) -> None:
    """Call it where a worker is found to be lost."""
    _notify(session, settings, notify.worker_lost(settings, worker))


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
    """cause: the change that this is about, so that telling it again is known."""
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
