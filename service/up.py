"""Database, service and one worker in one tree of processes: what `racewatch up` runs."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from service import postgres_child
from service.database import Database
from service.opening import opened
from service.settings import ServiceSettings

_LOG = logging.getLogger("racewatch.up")
STEADY_S = 30.0
"""A child that lived that long and then ends is started again at once, others after a pause."""
PAUSES_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
END_S = 120.0
"""How long children may take to end what they have in hand."""


@dataclass
class Child:
    """A process that is started again whenever it ends by itself."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    failures: int = 0
    due: float = field(default_factory=time.monotonic)

    def look(self) -> None:
        """Start it where it is due; note where it has ended."""
        if self.process is not None:
            status = self.process.poll()
            if status is None:
                return
            steady = time.monotonic() - self.started >= STEADY_S
            self.failures = 1 if steady else self.failures + 1
            pause = PAUSES_S[min(self.failures, len(PAUSES_S)) - 1]
            _LOG.warning("%s ended (%s), starting it again in %g s", self.name, status, pause)
            self.process, self.due = None, time.monotonic() + pause
        if time.monotonic() >= self.due:
            self.started = time.monotonic()
            self.process = subprocess.Popen(
                # It ends with this process, whatever happens to that; a Ctrl-C in the terminal
                # reaches this process alone, which then ends its children in order.
                postgres_child.command(self.command, os.geteuid(), os.getegid(), signal.SIGTERM),
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def ask_to_end(self) -> None:
        """Send SIGTERM."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def wait(self, seconds: float) -> None:
        """Wait for its end, and kill it if it takes longer."""
        if self.process is None:
            return
        try:
            self.process.wait(max(0.1, seconds))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Stack:
    """The running database, service and worker; leaving the `with` block ends them in order."""

    def __init__(self, settings: ServiceSettings, worker_options: Sequence[str]) -> None:
        self._settings = settings
        self._worker_options = worker_options
        self._exit = ExitStack()
        self._children: list[Child] = []
        self.database: Database

    def __enter__(self) -> Self:
        self.database = self._exit.enter_context(opened(self._settings))
        environment = {**os.environ, "DATABASE_URL": self.database.url}
        environment["RACEWATCH_HOME"] = os.fspath(self._settings.home)
        python = [sys.executable, "-m", "service.cli"]
        address = ["--host", self._settings.host, "--port", str(self._settings.port)]
        self._children = [
            Child("service", [*python, "serve", *address], environment),
            Child("worker", [*python, "worker", *self._worker_options], environment),
        ]
        self.look()
        return self

    def look(self) -> None:
        """Start again what ended."""
        for child in self._children:
            child.look()

    @property
    def service_ended(self) -> bool:
        """True where the service could not even start."""
        return self._children[0].failures >= 3

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._exit:  # the database goes last
            deadline = time.monotonic() + END_S
            for child in self._children:
                child.ask_to_end()
            for child in self._children:
                child.wait(deadline - time.monotonic())
