"""The queue: Procrastinate on the service's own database.

Rows are the state; a job only wakes whoever looks at them. So a job carries an id and nothing else,
may run twice, and may be lost: the sweep (see `service.sweep`) wakes what is open.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import procrastinate
from procrastinate.exceptions import AlreadyEnqueued
from sqlmodel import Session

app = procrastinate.App(connector=procrastinate.PsycopgConnector())
"""Tasks are declared on it by `service.tasks`; a worker replaces its connector."""
_deferring = procrastinate.App(connector=procrastinate.SyncPsycopgConnector())
"""Of its own, since the connector of a worker's app takes asynchronous connections only."""
CONTROL = "control"


def build_queue(subject: str) -> str:
    """Builds and git work of a subject: not every host has every subject's compilers."""
    return f"build-{subject}"


def trial_queue(device: str) -> str:
    """Trials for one kind of device, such as `sm90` or `emulated`."""
    return f"trial-{device}"


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

    The savepoint keeps a lock that is taken from undoing the whole transaction. It is the
    connection's: the session's own is only made once something is asked through the session.
    """
    connection = session.connection()
    try:
        with connection.begin_nested():
            wake_new(session, task, queue, lock=lock, priority=priority, at=at, **arguments)
    except AlreadyEnqueued:
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
