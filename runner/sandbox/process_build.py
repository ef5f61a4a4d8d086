"""Builds in the `process` sandbox: commands as plain processes of this user, of trusted commits."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from runner.errors import BuildError, InfrastructureError
from runner.sandbox.workshop import CompilerCache, Workspace

_LACKS = (
    ("No space left on device", "the disk is full"),
    ("Disk quota exceeded", "the disk quota is used up"),
    ("Killed signal", "the compiler was killed, most likely for lack of memory"),
    ("virtual memory exhausted", "the compiler ran out of memory"),
    ("out of memory allocating", "the compiler ran out of memory"),
    ("Cannot allocate memory", "the host ran out of memory"),
    ("fork: Resource temporarily unavailable", "no more processes could be started"),
)

END_S = 5.0
"""How long processes that were killed may take to be gone."""


def lack_in(output: str) -> str | None:
    """What a host or a container lacked, where a build's output says so."""
    return next((sentence for sign, sentence in _LACKS if sign in output), None)


class ProcessBuilds:
    """See `runner.sandbox.workshop.BuildSandbox`."""

    name = "process"
    on_host = True
    facts: Mapping[str, str] = {}

    def open(self, workspace: Workspace) -> ProcessWorkshop:
        """See BuildSandbox."""
        return ProcessWorkshop(workspace)

    def ask(self, line: Sequence[str]) -> str | None:
        """See BuildSandbox."""
        try:
            done = subprocess.run(
                line, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
            )
        except OSError:
            return None
        return done.stdout if done.returncode == 0 else None

    def which(self, program: str) -> Path | None:
        """See BuildSandbox."""
        found = shutil.which(program)
        return Path(found) if found else None

    def cache_of(self, folder: Path) -> CompilerCache | None:
        """See BuildSandbox."""
        return CompilerCache(folder / "ccache") if self.which("ccache") else None


class ProcessWorkshop:
    """See `runner.sandbox.workshop.Workshop`."""

    def __init__(self, workspace: Workspace) -> None:
        self._folder = workspace.folder
        cache = workspace.cache.environment() if workspace.cache else {}
        path = [*map(str, workspace.path), os.environ.get("PATH", os.defpath)]
        self._environment = {
            **os.environ,
            **cache,
            **workspace.environment,
            "PATH": os.pathsep.join(path),
            "LC_ALL": "C",
        }
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ended = False

    def start(self, line: Sequence[str]) -> ProcessCommand:
        """See Workshop."""
        with self._lock:
            if self._ended:
                raise InfrastructureError("the build was stopped before it was done")
            try:
                process = subprocess.Popen(
                    line,
                    cwd=self._folder,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    bufsize=0,
                    start_new_session=True,
                )
            except OSError as error:
                raise InfrastructureError(f"{line[0]} did not start: {error}") from error
            self._running.add(process)
        return ProcessCommand(process, self._gone)

    def _gone(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._running.discard(process)

    def fetch(self, path: Path) -> None:
        """See Workshop; it is there already."""
        if not path.is_file():
            raise BuildError(f"the build did not make {path.name}")

    def lack(self, status: int, output: str) -> str | None:
        """See Workshop."""
        return lack_in(output)

    def end(self) -> None:
        """See Workshop."""
        with self._lock:
            self._ended = True
            running = list(self._running)
        for process in running:
            _end_group(process)
        deadline = time.monotonic() + END_S
        for process in running:
            _await_group(process, deadline)


class ProcessCommand:
    """See `runner.sandbox.workshop.Command`."""

    def __init__(
        self, process: subprocess.Popen[bytes], gone: Callable[[subprocess.Popen[bytes]], None]
    ) -> None:
        self._process = process
        self._gone = gone

    def read(self) -> bytes:
        """See Command."""
        assert self._process.stdout is not None
        return os.read(self._process.stdout.fileno(), 1 << 16)

    def wait(self) -> int:
        """See Command."""
        assert self._process.stdout is not None
        status = self._process.wait()
        self._gone(self._process)
        self._process.stdout.close()
        return status


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """A compiler driver's children are in its process group; ending only the driver leaves them."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _await_group(process: subprocess.Popen[bytes], deadline: float) -> None:
    """Until all of a group that was killed are gone: before that they may yet write a file.

    Those that a dead driver leaves are no children of ours, and print to where the driver said, so
    that nothing but their group tells of them.
    """
    while time.monotonic() < deadline:
        process.poll()
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.002)
