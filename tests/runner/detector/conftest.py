"""The detector's C++ compiled for tests, and threads that call it."""

from __future__ import annotations

import ctypes
import itertools
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runner.detector import record
from runner.detector.library import SOURCES
from runner.detector.record import Swallow

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def probe(tmp_path_factory: pytest.TempPathFactory, compiler: str) -> ctypes.CDLL:
    """runner/detector's headers as C functions."""
    path = tmp_path_factory.mktemp("probe") / "probe.so"
    command = [*compiler.split(), "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC"]
    command += ["-pthread", f"-I{SOURCES}", "-shared", str(HERE / "windows_probe.cpp")]
    subprocess.run([*command, "-o", str(path)], check=True)
    library = ctypes.CDLL(str(path))
    pointer, number = ctypes.c_void_p, ctypes.c_int
    for name, result, arguments in (
        ("record", pointer, []),
        ("refuse", None, [pointer, ctypes.c_char_p]),
        ("windows", pointer, [pointer]),
        ("opening", None, [pointer, pointer]),
        ("opened", None, [pointer, pointer, number]),
        ("closed", None, [pointer, pointer]),
        ("node", None, [pointer, ctypes.c_char_p]),
        ("refused", None, [pointer, ctypes.c_char_p]),
    ):
        function = getattr(library, f"probe_{name}")
        function.restype, function.argtypes = result, arguments
    return library


class Threads:
    """Threads by name; each does what it is given in order, while the others stand still."""

    def __init__(self) -> None:
        self._pools: dict[str, ThreadPoolExecutor] = {}

    def on(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call it on that thread, and wait."""
        if name not in self._pools:
            self._pools[name] = ThreadPoolExecutor(1)
            self._pools[name].submit(record.name_thread, name).result()
        return self._pools[name].submit(function, *arguments).result()

    def close(self) -> None:
        for pool in self._pools.values():
            pool.shutdown()


@dataclass
class Watched:
    """A record with windows, and what is done in them by threads that have names."""

    probe: ctypes.CDLL
    threads: Threads
    path: Path
    windows: int = 0

    def begin(self, thread: str, stream: int, *, succeeded: bool = True) -> None:
        self.opening(thread, stream)
        self.threads.on(thread, self.probe.probe_opened, self.windows, stream, succeeded)

    def opening(self, thread: str, stream: int) -> None:
        self.threads.on(thread, self.probe.probe_opening, self.windows, stream)

    def end(self, thread: str, stream: int) -> None:
        self.threads.on(thread, self.probe.probe_closed, self.windows, stream)

    def node(self, thread: str, api: str = "cuLaunchKernel") -> None:
        self.threads.on(thread, self.probe.probe_node, self.windows, api.encode())

    def refused(self, thread: str, api: str = "cuStreamSynchronize") -> None:
        self.threads.on(thread, self.probe.probe_refused, self.windows, api.encode())

    @property
    def seen(self) -> Swallow:
        return record.parse(self.path.read_bytes())


@pytest.fixture(scope="session")
def watched(
    probe: ctypes.CDLL, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Watched]]:
    """Each call begins a new record, with no window open."""
    folder = tmp_path_factory.mktemp("records")
    numbers = itertools.count()
    with pytest.MonkeyPatch.context() as patch, closing(Threads()) as threads:

        def begin() -> Watched:
            path = folder / str(next(numbers))
            patch.setenv(record.VARIABLE, str(path))
            return Watched(probe, threads, path, probe.probe_windows(probe.probe_record()))

        yield begin
