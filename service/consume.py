"""Takes jobs from queues until told to stop, through any outage of the database."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import procrastinate
from procrastinate.worker import Worker

from service.postgres import libpq
from service.queue import app as tasks
from service.settings import ServiceSettings

_LOG = logging.getLogger("racewatch.queue")
RESTART_S = 1.0
"""Before a consumer that ended by itself is started again; doubled up to RESTART_MAX_S."""
RESTART_MAX_S = 15.0
HEARTBEAT_S = 10.0
"""Of the queue's own workers."""


def silence_s(settings: ServiceSettings) -> float:
    """Silence after which a worker of the queue counts as gone.

    It allows for a batch and a drain, in which the queue's own heartbeat pauses (Procrastinate's
    issue 1585). What workers hold is watched by other heartbeats: see `service.sweep`.
    """
    return settings.worker_lost_s + settings.batch_s + settings.drain_s


async def consume(
    url: str,
    lanes: Sequence[Sequence[str]],
    context: Mapping[str, Any],
    stop: asyncio.Event,
    *,
    concurrency: int = 1,
    gone_s: float = 180.0,
) -> None:
    """Carry out jobs, each lane (some queues) `concurrency` at a time, until `stop` is set.

    gone_s: see `silence_s`. A queue that is added to a lane later is taken from too.

    Jobs that run then are waited for. Procrastinate ends a worker at the first heartbeat that
    fails, so each is started again for as long as nobody asked it to stop.
    """
    connector = procrastinate.PsycopgConnector(
        conninfo=libpq(url), min_size=1, max_size=2 + 2 * len(lanes), timeout=30.0
    )
    with tasks.replace_connector(connector) as app:
        await _opened(app, stop)
        try:
            await asyncio.gather(
                *(_lane(app, queues, context, stop, concurrency, gone_s) for queues in lanes)
            )
        finally:
            await app.close_async()


async def _opened(app: procrastinate.App, stop: asyncio.Event) -> None:
    pause = RESTART_S
    while not stop.is_set():
        try:
            await app.open_async()
        except Exception as error:
            _LOG.warning("the queue cannot be reached, trying again: %s", error)
            await _wait(stop, pause)
            pause = min(RESTART_MAX_S, pause * 2)
        else:
            return


async def _lane(
    app: procrastinate.App,
    queues: Sequence[str],
    context: Mapping[str, Any],
    stop: asyncio.Event,
    concurrency: int,
    gone_s: float,
) -> None:
    pause = RESTART_S
    while not stop.is_set():
        worker = Worker(
            app,
            queues=queues,
            concurrency=concurrency,
            additional_context=dict(context),
            install_signal_handlers=False,
            update_heartbeat_interval=HEARTBEAT_S,
            stalled_worker_timeout=gone_s,
            fetch_job_polling_interval=2.0,
            delete_jobs="successful",
        )
        running = asyncio.create_task(worker.run())  # type: ignore[no-untyped-call]
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            worker.stop()  # type: ignore[no-untyped-call]
        stopping.cancel()
        with suppress(asyncio.CancelledError):
            await stopping
        try:
            await running
            pause = RESTART_S
        except Exception as error:
            _LOG.warning("taking jobs from %s ended: %s", ", ".join(queues), error)
        if not stop.is_set():
            await _wait(stop, pause)
            pause = min(RESTART_MAX_S, pause * 2)


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)
