"""A parent of trials in a container, spoken to through the engine's attached streams."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
from docker.errors import DockerException, NotFound
from docker.models.containers import Container
from docker.utils.socket import STDOUT

from runner.errors import InfrastructureError
from runner.sandbox.docker_owner import abandon

SEND_S = 10.0
"""How long a parent may leave its commands unread before it is ended."""
END_S = 10.0
"""How long the engine may take to say how a container ended."""
LOG_BYTES = 10_000_000
"""How much of what a parent prints is kept."""
LOOK_S = 0.5
"""How often the size of what its trials write is looked at."""
WORDS_BYTES = 4000


class DockerParent:
    """See `runner.sandbox.base.ParentHandle`.

    The container's standard input takes commands and its standard output is nothing but events;
    what the parent prints comes on standard error, and goes to `log` on this side.

    Its trials write to the files that their commands name in the log's folder. They are made here,
    in `files`, which is what the container has in that folder's place: no trial may make a file
    there, or sees another parent's. A parent whose trials wrote more than `kept` bytes is ended.
    """

    def __init__(
        self,
        client: docker.DockerClient,
        container: Container,
        log: Path,
        files: Path,
        *,
        kept: int,
    ) -> None:
        self._client = client
        self._container = container
        self._stream = attach(container)
        self._folder = log.parent
        self._files = files
        # No link is followed, whoever may have put one there.
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        self._words = b""
        self._events, self._events_in = os.pipe()
        self._ended = threading.Event()
        self._closed = False
        self._written: list[Path] = []
        self._kept = kept
        self._over = ""
        self._pump = threading.Thread(target=self._carry, name="container streams", daemon=True)
        self._pump.start()
        self._watch = threading.Thread(target=self._watch_size, name="container size", daemon=True)
        self._watch.start()

    def _watch_size(self) -> None:
        """End the container once its trials have written too much."""
        while not self._ended.wait(LOOK_S):
            size = sum(path.lstat().st_blocks * 512 for path in list(self._written))
            if size > self._kept:
                self._over = f"its trials wrote more than {self._kept / 1e6:.0f} MB"
                self._remove()
                return

    def _carry(self) -> None:
        """Carry what the container writes until its end."""
        left = LOG_BYTES
        try:
            for stream, data in frames(self._stream.fileno()):
                if stream == STDOUT:
                    _write_all(self._events_in, data)
                    continue
                self._words = (self._words + data)[-WORDS_BYTES:]
                _write_all(self._log, data[:left])
                left -= min(left, len(data))
        except BrokenPipeError:
            pass  # closed from this side
        finally:
            self._ended.set()
            os.close(self._events_in)

    def fileno(self) -> int:
        """See ParentHandle."""
        return self._events

    def read(self) -> bytes:
        """See ParentHandle."""
        return os.read(self._events, 1 << 16)

    def send(self, command: dict[str, Any]) -> bool:
        """See ParentHandle; a parent that reads no commands is ended."""
        if self._ended.is_set():  # the engine goes on taking what it can give to nobody
            return False
        self._make_files(command)
        try:
            self._stream.sendall(json.dumps(command).encode() + b"\n")
        except TimeoutError:
            self._remove()
            return False
        except OSError:
            return False
        return True

    def _make_files(self, command: dict[str, Any]) -> None:
        """Make what a trial is to write into, for the containers' user to write."""
        for name in _files_in(command, str(self._folder)):
            inside, here = self._files / name, self._folder / name
            try:
                descriptor = os.open(inside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)
                os.fchmod(descriptor, 0o666)
                os.close(descriptor)
                os.link(inside, here)
            except FileExistsError:
                continue
            except OSError as error:
                raise InfrastructureError(f"{here}: {error.strerror}") from error
            self._written.append(here)

    def close(self) -> None:
        """See ParentHandle; the container is removed with everything in it."""
        if self._closed:
            return
        self._closed = True
        self._shut()  # first: the engine removes no container while somebody may yet read of it
        self._remove()
        os.close(self._events)
        self._pump.join()
        self._watch.join()
        self._stream.close()
        for path in self._written:
            path.chmod(0o644)
        os.close(self._log)
        self._client.close()

    def last_words(self) -> str:
        """See ParentHandle; how the container ended comes first."""
        return f"{self._over or self._how_ended()}\n{self._words.decode(errors='replace')}"

    def _how_ended(self) -> str:
        try:
            if self._ended.is_set():
                self._container.wait(timeout=END_S)
            self._container.reload()
        except NotFound:
            return "its container is gone: something else removed it"
        except (DockerException, OSError) as error:
            return f"the Docker engine does not say how its container ended: {error}"
        return describe_end(self._container.attrs)

    def _shut(self) -> None:
        with contextlib.suppress(OSError):  # the engine closed it first
            self._stream.shutdown(socket.SHUT_RDWR)

    def _remove(self) -> None:
        try:
            self._container.remove(force=True, v=True)
        except NotFound:
            pass  # which is what is wanted
        except (DockerException, OSError) as error:
            abandon(self._container)
            _write_all(self._log, f"\nits container was not removed: {error}\n".encode())


def describe_end(attributes: dict[str, Any]) -> str:
    """How a container ended, from what the engine reports of it."""
    state = attributes["State"]
    limit = attributes["HostConfig"]["Memory"] / 2**30
    if state["OOMKilled"]:
        return f"its container ran out of memory: the limit is {limit:.1f} GiB (OOMKilled)"
    if state["Running"]:
        return "its container still runs"
    said = f": {state['Error']}" if state.get("Error") else ""
    return f"its container ended with exit status {state['ExitCode']}{said}"


def _files_in(command: Any, folder: str) -> Iterator[str]:
    """The names of what a command names in a folder."""
    if isinstance(command, dict):
        for value in command.values():
            yield from _files_in(value, folder)
    elif isinstance(command, str) and os.path.dirname(command) == folder:
        yield os.path.basename(command)


def attach(container: Container) -> socket.socket:
    """A socket of its own to a container's three standard streams."""
    attached = container.attach_socket(params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
    assert isinstance(attached, socket.SocketIO)  # the engine is reached through a Unix socket
    with attached:
        stream = socket.socket(fileno=os.dup(attached.fileno()))
    stream.settimeout(SEND_S)  # of sending: reading waits in poll(2) first
    return stream


def frames(descriptor: int) -> Iterator[tuple[int, bytes]]:
    """What comes on a container's output and error, in order, each piece with its stream's number.

    Read in large pieces: a program that prints a character at a time has a frame for each.
    """
    pending = b""
    ready = select.poll()  # a socket with a timeout is one that does not block
    ready.register(descriptor, select.POLLIN)
    while True:
        ready.poll()
        try:
            data = os.read(descriptor, 1 << 16)
        except OSError:
            return  # the engine is gone
        if not data:
            return
        pending += data
        at = 0
        while len(pending) - at >= _FRAME.size:
            stream, size = _FRAME.unpack_from(pending, at)
            end = at + _FRAME.size + size
            if end > len(pending):
                break
            yield stream, pending[at + _FRAME.size : end]
            at = end
        pending = pending[at:]


_FRAME = struct.Struct(">BxxxI")
"""Stream and size of what follows. Source: Docker Engine API, attach to a container."""


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
