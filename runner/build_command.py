"""Runs a build's commands, keeps what they print, and tells the source's fault from the host's."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from runner.errors import BuildError, InfrastructureError

_ERROR_LINE = re.compile(
    r"(fatal error|\berror|internal compiler error|CMake Error[^:]*): |undefined reference to|"
    r"cannot find -l|multiple definition of|^ptxas fatal|^nvcc fatal"
)
_HOST_FAULTS = (
    ("No space left on device", "the disk is full"),
    ("Disk quota exceeded", "the disk quota is used up"),
    ("Killed signal terminated program", "the compiler was killed, most likely for lack of memory"),
    ("virtual memory exhausted", "the compiler ran out of memory"),
    ("out of memory allocating", "the compiler ran out of memory"),
    ("Cannot allocate memory", "the host ran out of memory"),
)


def first_error_line(output: str) -> str:
    """The line of a compiler's or linker's output that says what went wrong first."""
    return next((line.strip() for line in output.splitlines() if _ERROR_LINE.search(line)), "")


def host_fault(output: str) -> str | None:
    """What the host lacked, where a build's output says so."""
    return next((sentence for sign, sentence in _HOST_FAULTS if sign in output), None)


@dataclass(frozen=True)
class CompilerCache:
    """A ccache folder; a fork's build may read the shared one and never writes it."""

    folder: Path
    read_only: bool = False

    def environment(self) -> dict[str, str]:
        variables = {"CCACHE_DIR": str(self.folder.absolute()), "CCACHE_NOHASHDIR": "1"}
        return variables | ({"CCACHE_READONLY": "1"} if self.read_only else {})


class BuildCommands:
    """Commands of one build, run from one folder; leaving the `with` block ends what still runs.

    What a command prints goes to the log in one piece when it ends, so that parallel commands do
    not mix.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], log: Path) -> None:
        self._folder = folder
        self._environment = {**os.environ, **environment, "LC_ALL": "C"}
        self._log = log
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("", encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def run(self, command: Sequence[str | Path], what: str) -> None:
        """Run one command; `what` names it in the error of a command that fails."""
        line = [str(part) for part in command]
        process = self._start(line)
        output, _ = process.communicate()
        with self._lock:
            self._running.discard(process)
            stopped = self._stopped
            with self._log.open("a", encoding="utf-8") as log:
                log.write(f"+ {shlex.join(line)}\n{output}")
        if process.returncode != 0 and not stopped:
            raise _failure(what, process.returncode, output)

    def follow(self, command: Sequence[str | Path], what: str) -> None:
        """Run one long command alone; its output reaches the log line by line as it comes."""
        line = [str(part) for part in command]
        process = self._start(line)
        assert process.stdout is not None
        kept: list[str] = []
        with self._log.open("a", encoding="utf-8", buffering=1) as log:
            log.write(f"+ {shlex.join(line)}\n")
            for text in process.stdout:
                log.write(text)
                kept.append(text)
        status = process.wait()
        with self._lock:
            self._running.discard(process)
        if status != 0:
            raise _failure(what, status, "".join(kept))

    def run_all(self, commands: Mapping[str, Sequence[str | Path]], jobs: int) -> None:
        """Run commands, `jobs` at a time; the first failure ends the others."""
        pool = ThreadPoolExecutor(max_workers=max(1, jobs))
        try:
            futures = [pool.submit(self.run, line, what) for what, line in commands.items()]
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        finally:
            if any(not future.done() for future in futures):
                self._stop()
            pool.shutdown(wait=True, cancel_futures=True)

    def _start(self, line: list[str]) -> subprocess.Popen[str]:
        with self._lock:
            if self._stopped:
                raise InfrastructureError("the build was stopped before it was done")
            process = subprocess.Popen(
                line,
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            self._running.add(process)
            return process

    def _stop(self) -> None:
        with self._lock:
            self._stopped = True
            running = list(self._running)
        for process in running:
            _end_group(process)


def _end_group(process: subprocess.Popen[str]) -> None:
    """A compiler driver's children are in its process group; ending only the driver leaves them."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _failure(what: str, status: int, output: str) -> Exception:
    fault = host_fault(output)
    if fault is not None:
        return InfrastructureError(f"{what}: {fault}")
    if status < 0:
        return InfrastructureError(
            f"{what}: ended by {signal.Signals(-status).name}, most likely for lack of memory"
        )
    error = first_error_line(output)
    return BuildError(f"{what}: {error or f'exit status {status}'}", log=output, first_error=error)
