"""A job of `runner.job` in a process of its own, as the worker sees it."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import select
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

from runner import errors
from runner.errors import InfrastructureError, RacewatchError

END_S = 30.0
"""How long a job may take to end its trials once it is told to, before it is killed."""
KILL_S = 30.0
"""How long a killed job may take to be gone: one that waits for a dead disk or device never is."""
JOB = (sys.executable, "-m", "runner.job")
LINE_BYTES = 64 << 20
"""Longest answer that is read; a job that gives a longer one is broken."""
_SECRET = re.compile(
    r"SECRET|TOKEN|PASSW|PASSPHRASE|PRIVATE_KEY|API_?KEY|ACCESS_?KEY|(DATABASE|SMTP|NOTIFY)_URL|^PG",
    re.IGNORECASE,
)
_MARK = "RACEWATCH_JOB"
"""In the environment of a job and of all that it starts, by which the rest of it is found."""


class JobStopped(Exception):
    """The job was told to end before it was done."""


def environment() -> dict[str, str]:
    """This process's environment without what a commit's code must not see.

    A store's credentials are no exception: fsspec and clouds' clients read them from files.
    """
    return {name: text for name, text in os.environ.items() if not _SECRET.search(name)}


def answers(
    request: dict[str, Any],
    goes_on: Callable[[], bool],
    every_s: float,
    command: Sequence[str] = JOB,
) -> Generator[dict[str, Any], None, None]:
    """Carry out a job; its answers as they come.

    goes_on is asked every `every_s` seconds, and whenever it says no the job is told to end; the
    answers that it still gives are passed on, then JobStopped is raised. Raises the job's own error
    (a RacewatchError), and InfrastructureError where its process dies without a word, says what is
    no answer, or cannot even be killed.
    """
    mark = str(uuid.uuid4())
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment() | {_MARK: mark},
        start_new_session=True,
    )
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(process, lines), daemon=True).start()
    try:
        yield from _conversation(process, request, lines, goes_on, every_s)
    finally:
        _end(process, mark)


def _read(process: subprocess.Popen[bytes], lines: queue.SimpleQueue[bytes]) -> None:
    assert process.stdout is not None
    with process.stdout as output:
        whole = True
        while whole and (line := output.readline(LINE_BYTES)):
            whole = line.endswith(b"\n")
            lines.put(line)
    lines.put(b"")


def _conversation(
    process: subprocess.Popen[bytes],
    request: dict[str, Any],
    lines: queue.SimpleQueue[bytes],
    goes_on: Callable[[], bool],
    every_s: float,
) -> Generator[dict[str, Any], None, None]:
    assert process.stdin is not None
    what = f"the process of a {request['do']} job"
    with contextlib.suppress(BrokenPipeError):  # then its exit status tells more
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
    asked, told = time.monotonic(), False
    answered = False
    while True:
        if not told and time.monotonic() - asked >= every_s:
            asked = time.monotonic()
            if not goes_on():
                told = True
                _tell_to_end(process)
        if told and time.monotonic() - asked > END_S:
            raise JobStopped("killed, for it did not end when it was told to")
        ended = process.poll() is not None
        try:
            line = lines.get(timeout=min(every_s, 0.5))
        except queue.Empty:
            if not ended or _unread(process):
                continue
            line = b""  # something that it started still holds its output open
        if not line:
            break
        answer = _answer(line)
        if answer is None:
            break
        if "error" in answer:
            raise _error(answer)
        answered = True
        yield answer
    if line:
        raise InfrastructureError(f"{what} said what is no answer: {line[:80]!r}")
    status = _wait(process, END_S)
    if told:
        raise JobStopped("stopped before it was done")
    if status or not answered:
        raise InfrastructureError(f"{what} ended {_how(status)}")


def _unread(process: subprocess.Popen[bytes]) -> bool:
    """Whether some of its output, or the end of it, waits for the thread that reads it."""
    assert process.stdout is not None
    poll = select.poll()
    try:
        poll.register(process.stdout, select.POLLIN)
    except ValueError:  # closed, so the end was read and is about to be in the queue
        return True
    return bool(poll.poll(0))


def _answer(line: bytes) -> dict[str, Any] | None:
    """What a line says; None for one that is torn, too long, or not a job's at all."""
    try:
        said = json.loads(line)
    except ValueError:
        return None
    return said if isinstance(said, dict) else None


def _error(answer: dict[str, Any]) -> RacewatchError:
    kind = getattr(errors, str(answer["error"]), None)
    if not (isinstance(kind, type) and issubclass(kind, RacewatchError)):
        kind = InfrastructureError
    return kind(str(answer.get("message")))


def _how(status: int | None) -> str:
    if status is None:
        return "not at all"
    return f"with signal {signal.Signals(-status).name}" if status < 0 else f"with status {status}"


def _tell_to_end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it is gone already
        process.stdin.close()


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def _end(process: subprocess.Popen[bytes], mark: str) -> None:
    """A job ends when its standard input does; one that does not is killed.

    What a job had started that failed is killed too: a compiler would go on beside the next
    attempt. Raises InfrastructureError for a job that not even that ends: nobody waits for it.
    """
    _tell_to_end(process)
    if _wait(process, END_S) is None:
        process.kill()
    status = _wait(process, KILL_S)
    if status != 0:
        _kill_marked(mark)
    if status is None:
        raise InfrastructureError(
            f"process {process.pid} cannot be killed: a disk or device of this host does not answer"
        )


def _kill_marked(mark: str) -> None:
    """Kill what a job left behind, found as the kernel tells of it: nothing, where it does not."""
    wanted = f"{_MARK}={mark}".encode()
    for variables in Path("/proc").glob("[0-9]*/environ"):
        # It is another user's, or it ended meanwhile.
        with contextlib.suppress(OSError):
            if wanted in variables.read_bytes().split(b"\0"):
                os.kill(int(variables.parent.name), signal.SIGKILL)
