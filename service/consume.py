"""Takes jobs from queues until told to stop, through any outage of the database."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import procrastinate
from procrastinate.worker import Worker
from psycopg_pool import AsyncConnectionPool

from service.postgres import libpq
from service.queue import app as tasks

_LOG = logging.getLogger("racewatch.queue")
RESTART_S = 1.0
"""Before a consumer that ended by itself is started again; doubled up to RESTART_MAX_S."""
RESTART_MAX_S = 15.0
CONNECT_S = 10.0
"""How long to wait for a connection before that counts as an outage."""
HEARTBEAT_S = 10.0
"""Between two heartbeats of the queue's own workers."""
GONE_S = 90.0
"""Silence after which such a worker counts as gone. What it holds is watched by other heartbeats,
see `service.sweep`: this only tidies up the queue."""
NEVER_S = 1e9


async def consume(
    url: str,
    lanes: Sequence[Sequence[str]],
    context: Mapping[str, Any],
    stop: asyncio.Event,
    *,
    concurrency: int = 1,
) -> None:
    """Carry out jobs, each lane (some queues) `concurrency` at a time, until `stop` is set.

    A queue that is added to a lane later is taken from too. Jobs that run then are waited for. A
    lane that ends by itself is begun again for as long as nobody asked it to stop.
    """
    # Opened by ourselves: Procrastinate's own is of no use any more once its first wait for a
    # connection was in vain. Given up soon, since the pauses between its attempts grow.
    pool = AsyncConnectionPool(
        libpq(url),
        min_size=1,
        max_size=2 + 2 * len(lanes),
        open=False,
        check=AsyncConnectionPool.check_connection,
        timeout=CONNECT_S,
        reconnect_timeout=CONNECT_S,
    )
    await pool.open()
    try:
        with tasks.replace_connector(procrastinate.PsycopgConnector()) as app:
            await app.open_async(pool)
            await asyncio.gather(
                *(_lane(app, queues, context, stop, concurrency) for queues in lanes)
            )
    finally:
        await pool.close()


async def _first(task: asyncio.Task[Any], stop: asyncio.Event) -> None:
    """Wait until the task is done or it is time to stop."""
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
    await _cancelled(stopping)


async def _cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def _beat(app: procrastinate.App, worker: Worker) -> None:
    """Say that the queue's worker lives: its own heartbeats stop while it finishes its last jobs
    (Procrastinate's issue 1585), and for ever once one of them fails."""
    while True:
        await asyncio.sleep(HEARTBEAT_S)
        try:
            if worker.worker_id is not None:
                await app.job_manager.update_heartbeat(worker.worker_id)
        except Exception as error:
            _LOG.warning("no heartbeat: the queue cannot be reached: %s", error)


async def _lane(
    app: procrastinate.App,
    queues: Sequence[str],
    context: Mapping[str, Any],
    stop: asyncio.Event,
    concurrency: int,
) -> None:
    pause = RESTART_S
    while not stop.is_set():
        worker = Worker(
            app,
            queues=queues,
            concurrency=concurrency,
            additional_context=dict(context),
            install_signal_handlers=False,
            update_heartbeat_interval=NEVER_S,
            stalled_worker_timeout=GONE_S,
            fetch_job_polling_interval=2.0,
            delete_jobs="successful",
        )
        running = asyncio.create_task(worker.run())  # type: ignore[no-untyped-call]
        beating = asyncio.create_task(_beat(app, worker))
        await _first(running, stop)
        if stop.is_set():
            worker.stop()  # type: ignore[no-untyped-call]
        try:
            await running
            pause = RESTART_S
        except Exception as error:
            _LOG.warning("taking jobs from %s ended: %s", ", ".join(queues), error)
        await _cancelled(beating)
        if not stop.is_set():
            await _wait(stop, pause)
            pause = min(RESTART_MAX_S, pause * 2)


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)
