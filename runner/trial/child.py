"""One trial: a process that first-executes a program while a background thread works."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import hashlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from typing import Any

from runner.detector import record
from runner.trial.harness import load_harness
from runner.trial.program import Harness, ParentConfig, Program, TrialSpec

GRACE_S = 1.5
"""How long the background thread may take to end after the main thread has failed."""
BEAT_S = 0.25
JOIN_S = 3600.0
"""Not a deadline: the supervisor ends a trial that makes no progress."""
LINE_LIMIT = 4000
"""Longest event in bytes: a write up to PIPE_BUF (4096 on Linux) is atomic, so that the trials of
one parent can share its pipe. Source: pipe(7)."""
PR_SET_PDEATHSIG = 1  # prctl(2)


class Events:
    """Writes one trial's events to the pipe that it shares with its siblings."""

    def __init__(self, descriptor: int, trial: int) -> None:
        # What the trial itself starts must not keep the pipe open once the trial is gone.
        os.set_inheritable(descriptor, False)
        self._descriptor = descriptor
        self._trial = trial

    def send(self, event: str, **facts: Any) -> None:
        """Write one event; long texts are cut in the middle so that the line stays atomic."""
        data = {"event": event, "trial": self._trial, **facts}
        line = json.dumps(data) + "\n"
        limit = 1600
        while len(line.encode()) > LINE_LIMIT and limit > 50:
            data = {key: _cut(value, limit) for key, value in data.items()}
            line = json.dumps(data) + "\n"
            limit //= 2
        os.write(self._descriptor, line.encode())


def _cut(value: Any, limit: int) -> Any:
    if isinstance(value, str) and len(value) > limit:
        return f"{value[: limit // 2]}\n[...]\n{value[-limit // 2 :]}"
    return value


def enter(spec: TrialSpec, parent: int) -> None:
    """Turn this process, just forked or started by `parent`, into the trial's: own group, own log.

    Raises OSError where the log cannot be written.
    """
    # A trial must not outlive its parent, however the parent dies.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before that call
        os._exit(1)
    os.setpgid(0, 0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    log = os.open(spec.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(spec.environment)
    if spec.trace:
        os.environ["RACEWATCH_TRACE"] = spec.trace
    if spec.swallow:
        os.environ[record.VARIABLE] = spec.swallow
    faulthandler.enable(all_threads=True)


def run(spec: TrialSpec, config: ParentConfig, harness: Harness, events: Events) -> int:
    """Run the trial in this process and report it; returns the exit status."""
    trial = _Trial(spec, events)
    try:
        trial.run(harness.open_program(config))
    except BaseException as error:
        trial.fail(error)
        return 1
    finally:
        trial.ended.set()
    return 0


def fail(spec: TrialSpec, events: Events, error: BaseException) -> None:
    """Report a trial that ends before it has a program."""
    _Trial(spec, events).fail(error)


def leave(status: int) -> None:
    """End the process without destructors: what a broken context does there is no finding."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


@dataclass
class _Trial:
    spec: TrialSpec
    events: Events
    program: Program | None = None
    digests: list[str] = field(default_factory=list)
    times: dict[str, float] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    recipe: str = ""
    ended: threading.Event = field(default_factory=threading.Event)

    def run(self, program: Program) -> None:
        self.program = program
        self.stage("device")
        facts = program.open_device()
        self.events.send(
            "device",
            platform=facts.platform,
            name=facts.name,
            compute_capability=list(facts.compute_capability),
            driver=facts.driver,
        )
        self.stage("compile")
        self.recipe = program.compile(self.spec.program, self.spec.recipe)
        if self.spec.background:
            program.start_background(self.spec.background_period_ms)
            threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        for n in range(self.spec.executions):
            self.stage("execute again" if n else "execute")
            self.digests.append(hashlib.sha256(program.execute()).hexdigest())
        stale = 0
        if self.spec.background:
            self.stage("background")
            program.stop_background(JOIN_S)
            if error := program.background_error():
                raise BackgroundError(error)
            self.stage("compare")
            stale = program.compare_resident()
        self.stage("done")
        self.report(finished=True, stale_rows=stale)

    def stage(self, name: str) -> None:
        self.times[name] = round(time.monotonic() - self.started, 4)
        self.events.send("stage", stage=name)

    def _beat(self) -> None:
        assert self.program is not None
        seen = -1
        while not self.ended.wait(BEAT_S):
            updates = self.program.background_updates()
            if updates != seen:
                seen = updates
                self.events.send("beat", updates=updates)

    def fail(self, error: BaseException) -> None:
        """Report what the main thread met, and what state it leaves the background thread in."""
        text = "".join(traceback.format_exception(error))
        sys.stderr.write(text)
        alive: list[str] = []
        stale: int | None = None
        if self.program is not None and self.spec.background:
            try:
                if not self.program.stop_background(GRACE_S):
                    alive.append("background")
                else:
                    stale = self._stale_within(GRACE_S)
            except Exception:
                traceback.print_exc()
        self.report(
            finished=False,
            error=f"{type(error).__name__}: {error}",
            stale_rows=stale,
            threads_alive=alive,
        )

    def _stale_within(self, seconds: float) -> int | None:
        """The comparison on a context that has failed, which may itself never return."""
        found: list[int] = []

        def compare() -> None:
            assert self.program is not None
            with contextlib.suppress(Exception):  # a failed context may refuse; the error is known
                found.append(self.program.compare_resident())

        thread = threading.Thread(target=compare, name="compare", daemon=True)
        thread.start()
        thread.join(seconds)
        return found[0] if found else None

    def report(self, *, finished: bool, error: str = "", **facts: Any) -> None:
        program = self.program
        self.events.send(
            "result",
            finished=finished,
            error=error,
            recipe=self.recipe,
            digests=self.digests,
            updates=program.background_updates() if program and self.spec.background else 0,
            background_error=(program.background_error() if program else "") or "",
            times=self.times,
            **facts,
        )


class BackgroundError(Exception):
    """The background thread ended with an exception; the text is its own."""


def main() -> None:
    """A trial in a fresh interpreter: `... -m runner.trial.child CONFIG SPEC EVENTS_FD PARENT`."""
    config = ParentConfig.of(json.loads(sys.argv[1]))
    spec = TrialSpec(**json.loads(sys.argv[2]))
    events = Events(int(sys.argv[3]), spec.index)
    try:
        enter(spec, int(sys.argv[4]))
        events.send("stage", stage="import")
        harness = load_harness(config)
        events.send("versions", versions=dict(harness.prepare(config)))
    except BaseException as error:
        fail(spec, events, error)
        leave(1)
    leave(run(spec, config, harness, events))


if __name__ == "__main__":
    main()
