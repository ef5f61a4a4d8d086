"""The parent of trials: imports the subject once, then forks a child per trial.

It runs inside the sandbox as `python -m runner.trial.parent CONFIG EVENTS_FD` (CONFIG is JSON),
reads commands from standard input and writes events to EVENTS_FD, a line of JSON each. It has one
thread and opens no device, so that a fork is safe; where that does not hold, trials get a fresh
interpreter. End of standard input ends it, and every trial with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import selectors
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from runner.trial import child
from runner.trial.harness import load_harness
from runner.trial.program import Harness, ParentConfig, TrialSpec


def fork_hazard(process: Path = Path("/proc/self")) -> str:
    """Why a fork of this process would not be safe, empty if nothing speaks against it."""
    threads = len(os.listdir(process / "task"))
    if threads != 1:
        return f"the parent has {threads} threads"
    for descriptor in os.listdir(process / "fd"):
        try:
            target = os.readlink(process / "fd" / descriptor)
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
        if target.startswith("/dev/nvidia") and not target.startswith("/dev/nvidiactl"):
            return f"the parent holds {target} open"
    return ""


class Parent:
    """Starts, ends and reaps trials; one instance a process."""

    def __init__(self, config: ParentConfig, events_fd: int) -> None:
        self._config = config
        self._events_fd = events_fd
        self._running: dict[int, int] = {}
        self._harness: Harness | None = None
        self._fresh_reason = "asked for" if config.fresh else ""

    def serve(self) -> None:
        """Prepare, say so, then obey commands until standard input ends."""
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the supervisor's
        versions = self._prepare()
        if versions is None:
            return
        self._send(event="ready", versions=dict(versions), fresh_reason=self._fresh_reason)
        with selectors.DefaultSelector() as selector:
            selector.register(0, selectors.EVENT_READ)
            selector.register(wake_read, selectors.EVENT_READ)
            pending = b""
            while True:
                ready = {key.fd for key, _ in selector.select()}
                if wake_read in ready:
                    os.read(wake_read, 4096)
                self._reap()
                if 0 not in ready:
                    continue
                data = os.read(0, 65536)
                if not data:
                    break
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    self._obey(json.loads(line))
        self._end_all()

    def _end_all(self) -> None:
        """End every trial and wait until it is gone: who closes this parent relies on that."""
        for pid in self._running:
            _kill_group(pid)
        for pid in self._running:
            os.waitpid(pid, 0)
        self._running.clear()

    def _prepare(self) -> Mapping[str, str] | None:
        versions = {"python": platform.python_version()}
        try:
            self._harness = load_harness(self._config)
            if not self._config.fresh:
                versions.update(self._harness.prepare(self._config))
                self._fresh_reason = fork_hazard()
        except BaseException as error:
            traceback.print_exc()
            text = "".join(traceback.format_exception_only(error)).strip()
            self._send(event="unready", error=child._cut(text, 2000))
            return None
        return versions

    def _obey(self, command: Mapping[str, Any]) -> None:
        if command["op"] == "start":
            spec = TrialSpec(**command["spec"])
            self._fresh_reason = self._fresh_reason or fork_hazard()
            pid = self._start_fresh(spec) if self._fresh_reason else self._fork(spec)
            self._running[pid] = spec.index
            self._send(event="started", trial=spec.index, pid=pid, fresh=self._fresh_reason)
        elif command["op"] == "kill":
            for pid, index in self._running.items():
                if index == command["trial"]:
                    _kill_group(pid)

    def _fork(self, spec: TrialSpec) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        status = 1
        events = child.Events(self._events_fd, spec.index)
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            child.enter(spec, parent)
            assert self._harness is not None
            status = child.run(spec, self._config, self._harness, events)
        except BaseException as error:
            child.fail(spec, events, error)
        finally:
            child.leave(status)
        raise AssertionError("unreachable")

    def _start_fresh(self, spec: TrialSpec) -> int:
        command = [sys.executable, "-m", "runner.trial.child"]
        command += [json.dumps(asdict(self._config)), json.dumps(asdict(spec))]
        command += [str(self._events_fd), str(os.getpid())]
        with contextlib.ExitStack() as stack:
            try:
                log = stack.enter_context(Path(spec.log).open("ab"))
            except OSError:  # the trial meets the same error when it opens its log, and reports it
                log = None
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[self._events_fd],
            )
        process.returncode = 0  # reaped by _reap, not by Popen
        return process.pid

    def _reap(self) -> None:
        while self._running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            index = self._running.pop(pid, None)
            if index is None:
                continue
            code = os.waitstatus_to_exitcode(status)
            self._send(
                event="exit",
                trial=index,
                exit_status=code if code >= 0 else None,
                signal=-code if code < 0 else None,
            )

    def _send(self, **event: Any) -> None:
        os.write(self._events_fd, json.dumps(event).encode() + b"\n")


def _kill_group(pid: int) -> None:
    # A child that has just been forked is not yet a group of its own.
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


def main() -> None:
    """Serve until standard input ends."""
    config = ParentConfig.of(json.loads(sys.argv[1]))
    events_fd = int(sys.argv[2])
    os.set_inheritable(events_fd, False)
    Parent(config, events_fd).serve()
    child.leave(0)


if __name__ == "__main__":
    main()
