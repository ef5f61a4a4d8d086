"""The process behind `racewatch worker`: registers, takes jobs, drains when it is told to end."""

from __future__ import annotations

import asyncio
import logging
import signal

from service import tasks
from service.consume import consume
from service.database import Database
from service.settings import ServiceSettings
from service.worker import WorkerOptions, WorkerProcess

_LOG = logging.getLogger("racewatch.worker")
assert tasks.trials, "importing the tasks is what declares them"


def work(settings: ServiceSettings, database: Database, options: WorkerOptions) -> None:
    """Work until SIGTERM or SIGINT, then finish what is in hand; a second one gives it back."""
    worker = WorkerProcess(settings, database, options)
    try:
        worker.register()
        _LOG.info("worker %s takes %s", worker.id, ", ".join(worker.queues))
        asyncio.run(_work(settings, database, worker))
    finally:
        worker.close()


async def _work(settings: ServiceSettings, database: Database, worker: WorkerProcess) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def asked() -> None:
        if stop.is_set():
            worker.stopping.set()
            return
        stop.set()
        loop.call_later(settings.drain_s, worker.stopping.set)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked)
    draining = asyncio.create_task(_drain(stop, worker))
    await consume(
        database.url,
        worker.lanes,
        {"worker": worker},
        stop,
    )
    await draining


async def _drain(stop: asyncio.Event, worker: WorkerProcess) -> None:
    await stop.wait()
    _LOG.info("worker %s finishes what it has and takes nothing new", worker.id)
    await asyncio.to_thread(worker.drain)
