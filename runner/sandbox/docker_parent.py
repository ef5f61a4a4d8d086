"""A parent of trials in a container, spoken to through the engine's attached streams."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from pathlib import Path
from typing import Any

import docker
from docker.errors import DockerException, NotFound
from docker.models.containers import Container
from docker.utils.socket import STDOUT, frames_iter_no_tty

SEND_S = 10.0
"""How long a parent may leave its commands unread before it is ended."""
END_S = 10.0
"""How long the engine may take to say how a container ended."""
LOG_BYTES = 10_000_000
"""How much of what a parent prints is kept."""
WORDS_BYTES = 4000


class DockerParent:
    """See `runner.sandbox.base.ParentHandle`.

    The container's standard input takes commands and its standard output is nothing but events;
    what the parent prints comes on standard error, and goes to `log` on this side.
    """

    def __init__(self, client: docker.DockerClient, container: Container, log: Path) -> None:
        self._client = client
        self._container = container
        self._stream = _attach(container)
        # The trials may write to the log's folder: no link of theirs is followed.
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        self._words = b""
        self._events, self._events_in = os.pipe()
        self._ended = threading.Event()
        self._closed = False
        self._pump = threading.Thread(target=self._carry, name="container streams", daemon=True)
        self._pump.start()

    def _carry(self) -> None:
        """Carry what the container writes until its end."""
        left = LOG_BYTES
        try:
            for stream, data in frames_iter_no_tty(self._stream):
                assert isinstance(data, bytes)
                if stream == STDOUT:
                    _write_all(self._events_in, data)
                    continue
                self._words = (self._words + data)[-WORDS_BYTES:]
                _write_all(self._log, data[:left])
                left -= min(left, len(data))
        except (BrokenPipeError, ConnectionError):
            pass  # closed from this side, or the engine is gone: both are the stream's end
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
        try:
            self._stream.sendall(json.dumps(command).encode() + b"\n")
        except TimeoutError:
            self._remove()
            return False
        except OSError:
            return False
        return True

    def close(self) -> None:
        """See ParentHandle; the container is removed with everything in it."""
        if self._closed:
            return
        self._closed = True
        self._remove()
        os.close(self._events)
        self._shut()
        self._pump.join()
        self._stream.close()
        os.close(self._log)
        self._client.close()

    def last_words(self) -> str:
        """See ParentHandle; how the container ended comes first."""
        return f"{self._how_ended()}\n{self._words.decode(errors='replace')}"

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
            # Without an engine nothing can be removed; the next start finds it by its labels.
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


def _attach(container: Container) -> socket.socket:
    """A socket of its own to the container's three standard streams."""
    attached = container.attach_socket(params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
    assert isinstance(attached, socket.SocketIO)  # the engine is reached through a Unix socket
    with attached:
        stream = socket.socket(fileno=os.dup(attached.fileno()))
    stream.settimeout(SEND_S)  # of sending: reading waits in poll(2) first
    return stream


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
