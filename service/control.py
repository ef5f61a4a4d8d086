"""What the service does besides answering: the sweep, the outbox, polls, and comments' commands."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from uuid import UUID

from procrastinate import JobContext

from runner.errors import RacewatchError
from service import bisection, finished
from service.consume import consume
from service.database import Database
from service.github import approval, outbox, poll
from service.github.client import shared
from service.queue import CONTROL, app
from service.settings import ServiceSettings
from service.sweep import sweep
from service.tasks import AGAIN

_LOG = logging.getLogger("racewatch.control")


class Control:
    """The service's own work, on its database."""

    def __init__(self, settings: ServiceSettings, database: Database) -> None:
        self.settings = settings
        self.database = database
        self._polled: dict[str, float] = {}

    def deliver(self) -> None:
        """Send what waits in the outbox and is due, with what runs that changed add to it."""
        finished.tell_changes(self.database, self.settings)
        outbox.deliver(self.database, outbox.senders(self.settings))

    def bisection(self, identity: UUID) -> None:
        """Move a bisection on."""
        with self.database.session() as session:
            bisection.advance(session, identity)

    def command(self, delivery: str) -> None:
        """Carry out a comment's command, if its author may."""
        token = self.settings.github_token.get_secret_value()
        github = shared(self.settings.github_api, token) if token else None
        with self.database.session() as session:
            approval.carry_out(session, self.settings, github, delivery)

    def poll(self) -> None:
        """Look at the refs of every subject whose turn it is."""
        for name, tracked in self.settings.subjects.items():
            since = time.monotonic() - self._polled.get(name, float("-inf"))
            if tracked.poll_minutes and since >= tracked.poll_minutes * 60:
                self._polled[name] = time.monotonic()
                poll.poll(self.database, self.settings, name)

    async def run(self, stop: asyncio.Event) -> None:
        """Do all of it until `stop` is set."""
        await asyncio.gather(
            consume(
                self.database.url,
                [[CONTROL]],
                {"control": self},
                stop,
                concurrency=2,
            ),
            self._regularly(stop, self.settings.sweep_s, self._sweep),
            self._regularly(stop, 30.0, self.poll),
        )

    def _sweep(self) -> None:
        sweep(self.database, self.settings)
        with self.database.session() as session:
            approval.wake_undecided(session)
        self.deliver()

    async def _regularly(
        self, stop: asyncio.Event, every_s: float, work: Callable[[], None]
    ) -> None:
        while not stop.is_set():
            try:
                await asyncio.to_thread(work)
            except RacewatchError as error:
                _LOG.warning("%s", error)
            except Exception:
                # The next look may find the database there again; this loop must not end.
                _LOG.exception("%s failed", work.__name__.strip("_"))
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), every_s)


def _control(context: JobContext) -> Control:
    control: Control = context.additional_context["control"]
    return control


@app.task(name="deliver", pass_context=True, retry=AGAIN)
async def deliver(context: JobContext) -> None:
    """Send what waits in the outbox and is due."""
    await asyncio.to_thread(_control(context).deliver)


@app.task(name="bisection", pass_context=True, retry=AGAIN)
async def look_at_bisection(context: JobContext, bisection: str) -> None:
    """Take in what ended of a bisection, and order what follows."""
    await asyncio.to_thread(_control(context).bisection, UUID(bisection))


@app.task(name="check_command", pass_context=True, retry=AGAIN)
async def check_command(context: JobContext, delivery: str) -> None:
    """Carry out a comment's command, if its author may."""
    await asyncio.to_thread(_control(context).command, delivery)


__all__ = ["Control", "check_command", "deliver"]
