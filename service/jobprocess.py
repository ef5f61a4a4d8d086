"""A job of `runner.job` in a process of its own, as the worker sees it."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from runner import errors
from runner.errors import InfrastructureError, RacewatchError

END_S = 30.0
"""How long a job may take to end its trials once it is told to, before it is killed."""
_SECRET = re.compile(r"SECRET|TOKEN|PASSWORD|DATABASE_URL|SMTP_URL|NOTIFY_URL", re.IGNORECASE)


class JobStopped(Exception):
    """The job was told to end before it was done."""


def environment() -> dict[str, str]:
    """This process's environment without what a commit's code must not see."""
    return {name: text for name, text in os.environ.items() if not _SECRET.search(name)}


def answers(
    request: dict[str, Any], goes_on: Callable[[], bool], every_s: float
) -> Iterator[dict[str, Any]]:
    """Carry out a job; its answers as they come.

    goes_on is asked every `every_s` seconds, and whenever it says no the job is told to end; the
    answers that it still gives are passed on, then JobStopped is raised. Raises the job's own error
    (a RacewatchError), and InfrastructureError where its process dies without a word.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "runner.job"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        env=environment(),
        start_new_session=True,
    )
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    reader = threading.Thread(target=_read, args=(process, lines), daemon=True)
    reader.start()
    try:
        yield from _conversation(process, request, lines, goes_on, every_s)
    finally:
        _end(process)
        reader.join()


def _read(process: subprocess.Popen[str], lines: queue.SimpleQueue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


def _conversation(
    process: subprocess.Popen[str],
    request: dict[str, Any],
    lines: queue.SimpleQueue[str | None],
    goes_on: Callable[[], bool],
    every_s: float,
) -> Iterator[dict[str, Any]]:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # then its exit status tells more
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
    asked, told = time.monotonic(), False
    answered = False
    while True:
        if not told and time.monotonic() - asked >= every_s:
            asked = time.monotonic()
            if not goes_on():
                told = True
                process.stdin.close()
        if told and time.monotonic() - asked > END_S:
            _kill(process)
        try:
            line = lines.get(timeout=min(every_s, 0.5))
        except queue.Empty:
            continue
        if line is None:
            break
        answer = json.loads(line)
        if "error" in answer:
            raise _error(answer)
        answered = True
        yield answer
    status = process.wait()
    if told:
        raise JobStopped("stopped before it was done")
    if status or not answered:
        raise InfrastructureError(f"the process of a {request['do']} job ended with {_how(status)}")


def _error(answer: dict[str, Any]) -> RacewatchError:
    kind = getattr(errors, answer["error"], InfrastructureError)
    wrong = not (isinstance(kind, type) and issubclass(kind, RacewatchError))
    error: RacewatchError = (InfrastructureError if wrong else kind)(answer["message"])
    return error


def _how(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def _end(process: subprocess.Popen[str]) -> None:
    """A job ends when its standard input does; one that does not is killed."""
    assert process.stdin is not None
    if not process.stdin.closed:
        with contextlib.suppress(BrokenPipeError):  # it is gone already
            process.stdin.close()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        _kill(process)
        process.wait()


def _kill(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
