"""The queue: Procrastinate on the service's own database.

Rows are the state; a job only wakes whoever looks at them. So a job carries an id and nothing else,
may run twice, and may be lost: the sweep (see `service.sweep`) wakes what is open.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import procrastinate
from procrastinate.exceptions import AlreadyEnqueued
from sqlalchemy import DateTime, bindparam, text
from sqlmodel import Session

app = procrastinate.App(connector=procrastinate.PsycopgConnector())
"""Tasks are declared on it by `service.tasks`; a worker replaces its connector."""
_deferring = procrastinate.App(connector=procrastinate.SyncPsycopgConnector())
"""Of its own, since the connector of a worker's app takes asynchronous connections only."""
CONTROL = "control"


# It finds only what it changes: a row that it found it would lock until the transaction's end.
_MOVE_UP = text(
    """
    UPDATE procrastinate_jobs
    SET priority = greatest(priority, :priority), queue_name = :queue,
        scheduled_at = CASE WHEN :at IS NULL OR scheduled_at IS NULL THEN NULL
                            ELSE least(scheduled_at, :at) END
    WHERE queueing_lock = :lock AND status = 'todo'
        AND (priority < :priority OR queue_name <> :queue
             OR scheduled_at IS NOT NULL AND (:at IS NULL OR scheduled_at > :at))
    """
).bindparams(bindparam("at", type_=DateTime(timezone=True)))


def git_queue(subject: str) -> str:
    """What is found out in git, in seconds: it must not wait for builds, which take hours."""
    return f"git-{subject}"


def build_queue(subject: str, trusted: bool = True) -> str:
    """Builds of a subject: not every host has every subject's compilers.

    trusted: False for a fork's code, which only workers take that put it into containers.
    """
    return f"build-{subject}" if trusted else f"forks-build-{subject}"


def trial_queue(device: str, trusted: bool = True) -> str:
    """Trials for one kind of device, such as `sm90` or `emulated`."""
    return f"trial-{device}" if trusted else f"forks-trial-{device}"


def environment_queue(environment: int, trusted: bool = True) -> str:
    """Trials of runs that have begun in one environment: others of the kind cannot go on there."""
    return f"environment-{environment}" if trusted else f"forks-environment-{environment}"


def wake(
    session: Session,
    task: str,
    queue: str,
    *,
    lock: str,
    priority: int = 0,
    at: datetime | None = None,
    **arguments: Any,
) -> bool:
    """Defer a job in this session's transaction; False where one with that lock waits already.

    That one is moved up then where it would come later, with less priority, or to another queue:
    whoever wakes at once must not wait for the pause after somebody else's setback.

    The savepoint keeps a lock that is taken from undoing the whole transaction. It is the
    connection's: the session's own is only made once something is asked through the session.
    """
    connection = session.connection()
    try:
        with connection.begin_nested():
            wake_new(session, task, queue, lock=lock, priority=priority, at=at, **arguments)
    except AlreadyEnqueued:
        moved = {"lock": lock, "queue": queue, "priority": priority, "at": at}
        connection.execute(_MOVE_UP, moved)
        return False
    return True


def wake_new(
    session: Session,
    task: str,
    queue: str,
    *,
    lock: str,
    priority: int = 0,
    at: datetime | None = None,
    **arguments: Any,
) -> None:
    """Like `wake`, for what this transaction made: nobody else can have taken its lock.

    It needs no savepoint then. Raises AlreadyEnqueued, and the transaction is undone.
    """
    _deferring.configure_task(
        name=task,
        queue=queue,
        queueing_lock=lock,
        priority=priority,
        schedule_at=at,
        connection=session.connection().connection.driver_connection,
        allow_unknown=True,
    ).defer(**arguments)
