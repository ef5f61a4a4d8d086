"""Runs a build's commands, keeps what they print, and tells the source's fault from the host's."""

from __future__ import annotations

import codecs
import re
import shlex
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from types import TracebackType
from typing import Self

from runner.errors import BuildError, InfrastructureError
from runner.sandbox.workshop import BuildSandbox, CompilerCache, Workshop, Workspace

TIME_S = 6 * 3600.0
"""How long a build may take: TE's core from source takes hours where there are few cores."""
OUTPUT_BYTES = 64 * 2**20
"""How much a build may print: hundreds of times what TE's core does."""
_ERROR_LINE = re.compile(
    r"(fatal error|\berror|internal compiler error):(?! ld returned) |^CMake Error\b|"
    r"undefined reference to|cannot find -l|multiple definition of|^ptxas fatal|^nvcc fatal"
)


def first_error_line(output: str) -> str:
    """The line of a compiler's or linker's output that says what went wrong first."""
    lines = (line for line in output.splitlines() if _ERROR_LINE.search(line))
    return next(lines, "").strip().removeprefix("./")


class BuildCommands:
    """Commands of one build in a workshop; leaving the `with` block ends what still runs.

    What a command prints goes to the log in one piece when it ends, so that parallel commands do
    not mix.
    """

    def __init__(
        self,
        sandbox: BuildSandbox,
        workspace: Workspace,
        log: Path,
        *,
        time_s: float = TIME_S,
        output_bytes: int = OUTPUT_BYTES,
    ) -> None:
        self._sandbox = sandbox
        self._workspace = workspace
        self._log = log
        self._time_s = time_s
        self._output_bytes = self._output_left = output_bytes
        self._lock = threading.Lock()
        self._stopped = False
        self._over = ""
        self._opened: Workshop | None = None

    def __enter__(self) -> Self:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._log.write_text("", encoding="utf-8")
        self._opened = self._sandbox.open(self._workspace)
        self._clock = threading.Timer(self._time_s, self._out_of_time)
        self._clock.daemon = True
        self._clock.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._clock.cancel()
        self._stop()
        self._clock.join()  # it may be waiting for what it ended to be gone

    @property
    def _workshop(self) -> Workshop:
        assert self._opened is not None, "commands run inside the `with` block"
        return self._opened

    def run(self, command: Sequence[str | Path], what: str) -> None:
        """Run one command; `what` names it in the error of a command that fails."""
        line = [str(part) for part in command]
        text, status = self._carry_out(line, lambda _: None)
        self._append(f"+ {shlex.join(line)}\n{text}")
        self._judge(what, status, text)

    def follow(self, command: Sequence[str | Path], what: str) -> None:
        """Run one long command alone; its output reaches the log as it comes."""
        line = [str(part) for part in command]
        self._append(f"+ {shlex.join(line)}\n")
        text, status = self._carry_out(line, self._append)
        self._judge(what, status, text)

    def run_all(self, commands: Mapping[str, Sequence[str | Path]], jobs: int) -> None:
        """Run commands, `jobs` at a time; the first failure ends the others."""
        pool = ThreadPoolExecutor(max_workers=max(1, jobs))
        try:
            futures = [pool.submit(self.run, line, what) for what, line in commands.items()]
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        except BaseException:  # one failed, or a signal came, at whatever point
            self._stop()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def fetch(self, path: Path) -> Path:
        """A file that the commands left, now certainly on this host.

        It is what a commit's own code made: nothing outside a sandbox may run or import it.
        """
        try:
            self._workshop.fetch(path)
        except (BuildError, InfrastructureError):
            self._raise_if_over()
            raise
        return path

    def _carry_out(self, line: list[str], on_text: Callable[[str], None]) -> tuple[str, int]:
        try:
            command = self._workshop.start(line)
        except InfrastructureError:
            self._raise_if_over()
            raise
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        kept: list[str] = []
        while True:
            data = command.read()
            text = decode(data, final=not data)
            kept.append(text)
            on_text(text)
            if not data:
                break
            self._count(len(data))
        try:
            status = command.wait()
        except InfrastructureError:
            if not self._stopped:
                raise
            status = -signal.SIGKILL
        return "".join(kept), status

    def _count(self, size: int) -> None:
        with self._lock:
            self._output_left -= size
            over = self._output_left < 0
        if over:
            self._end(f"the build printed more than {self._output_bytes / 1e6:.0f} MB")

    def _out_of_time(self) -> None:
        self._end(f"the build was not done after {self._time_s:g} s")

    def _end(self, why: str) -> None:
        with self._lock:
            self._over = self._over or why
        self._stop()

    def _append(self, text: str) -> None:
        with self._lock, self._log.open("a", encoding="utf-8") as log:
            log.write(text)

    def _judge(self, what: str, status: int, output: str) -> None:
        self._raise_if_over()
        if status != 0 and not self._stopped:
            raise self._failure(what, status, output)

    def _raise_if_over(self) -> None:
        if self._over:
            raise InfrastructureError(f"{self._over}, which is its limit")

    def _failure(self, what: str, status: int, output: str) -> Exception:
        lack = self._workshop.lack(status, output)
        if lack is not None:
            return InfrastructureError(f"{what}: {lack}")
        if status < 0:
            return InfrastructureError(
                f"{what}: ended by {signal.Signals(-status).name}, most likely for lack of memory"
            )
        error = first_error_line(output)
        text = f"{what}: {error or f'exit status {status}'}"
        return BuildError(text, log=output, first_error=error)

    def _stop(self) -> None:
        self._stopped = True
        if self._opened is not None:
            self._opened.end()


__all__ = [
    "OUTPUT_BYTES",
    "TIME_S",
    "BuildCommands",
    "CompilerCache",
    "Workspace",
    "first_error_line",
]
