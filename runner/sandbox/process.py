"""The `process` sandbox: trials as plain processes of this user, for trusted commits only."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from runner.errors import InfrastructureError
from runner.trial.program import ParentConfig

ROOT = Path(__file__).resolve().parents[2]
"""The folder that holds the `runner` package."""
CLOSE_S = 10.0


class ProcessSandbox:
    """Starts parents with `python`, their own output going to files in `folder`."""

    name = "process"

    def __init__(
        self,
        folder: Path,
        python: str = sys.executable,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = folder
        self._python = python
        self._environment = dict(environment or {})
        self._numbers = itertools.count(1)  # lanes start parents from several threads

    def start(self, config: ParentConfig) -> ProcessParent:
        """See `runner.sandbox.base.Sandbox`."""
        log = self._folder / f"parent-{next(self._numbers):03d}.log"
        environment = {
            **os.environ,
            # A numerical library's thread pool would make the parent unsafe to fork.
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            **self._environment,
            "PYTHONPATH": str(ROOT),
        }
        read_end, write_end = os.pipe()
        command = [self._python, "-m", "runner.trial.parent"]
        command += [json.dumps(asdict(config)), str(write_end)]
        try:
            with log.open("wb") as output:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    pass_fds=[write_end],
                    cwd=self._folder,
                    env=environment,
                    start_new_session=True,
                )
        except OSError as error:
            os.close(read_end)
            raise InfrastructureError(f"cannot start {self._python}: {error}") from error
        finally:
            os.close(write_end)
        return ProcessParent(process, read_end, log)


class ProcessParent:
    """See `runner.sandbox.base.ParentHandle`."""

    def __init__(self, process: subprocess.Popen[bytes], events: int, log: Path) -> None:
        self._process = process
        self._events = events
        self._log = log

    def fileno(self) -> int:
        """See ParentHandle."""
        return self._events

    def read(self) -> bytes:
        """See ParentHandle."""
        return os.read(self._events, 1 << 16)

    def send(self, command: dict[str, Any]) -> bool:
        """See ParentHandle."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            return False
        return True

    def close(self) -> None:
        """See ParentHandle; trials die with their parent, by its hand or by the kernel's."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # gone already, which is what is wanted
            self._process.stdin.close()
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._events)

    def last_words(self) -> str:
        """See ParentHandle."""
        return self._log.read_text(errors="replace")[-4000:]
