"""Builds in the `docker` sandbox: the commands of one build in one locked container."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import docker
from docker.errors import DockerException, NotFound
from docker.models.containers import Container
from docker.types import Mount
from filelock import FileLock

from runner.errors import BuildError, InfrastructureError
from runner.sandbox.docker_engine import (
    Limits,
    connect,
    find_image,
    locked,
    read_only,
    talk,
)
from runner.sandbox.docker_owner import (
    LABEL_ATTEMPT,
    LABEL_KIND,
    LABEL_RUN,
    abandon,
    remove_leftovers,
)
from runner.sandbox.docker_parent import attach, describe_end, frames
from runner.sandbox.docker_paths import PACKAGE, EnginePaths, require_readable
from runner.sandbox.process_build import lack_in
from runner.sandbox.workshop import CompilerCache, Workspace

DEFAULT_IMAGE = "racewatch-builder"
_NEEDS = (
    "a C++ compiler (and Python with its headers for te), and name it with --build-image or "
    "RACEWATCH_BUILD_IMAGE"
)
WAIT = "exec cat >/dev/null"
"""The container's own process: it ends with its standard input, and so when this runner does."""
OOM_S = 0.5
"""How much later than a process's end the engine may tell that it had no memory."""
END_S = 10.0
"""How long the engine may take to say how a command ended."""


def default_image(subject: str) -> str:
    """The image of a subject's builds where none is named; the demo's has no CUDA in it."""
    return f"{DEFAULT_IMAGE}-cpu" if subject == "demo" else DEFAULT_IMAGE


def require(image: str) -> None:
    """Raise InfrastructureError unless an engine answers and has the image of builds."""
    with talk() as client:
        find_image(client, image, _NEEDS)


class DockerBuilds:
    """See `runner.sandbox.workshop.BuildSandbox`.

    home: a folder of this host that the engine reaches, with the compiler caches. trusted: whether
    a build may write to the compiler cache; a fork's may not.
    """

    name = "docker"
    on_host = False

    def __init__(
        self,
        home: Path,
        *,
        image: str,
        limits: Limits,
        trusted: bool = False,
        run: str = "",
        attempt: str = "",
        paths: EnginePaths | None = None,
    ) -> None:
        self._home = home.absolute()
        self._image = image
        self._limits = limits
        self._trusted = trusted
        self._labels = {LABEL_KIND: "build", LABEL_RUN: run, LABEL_ATTEMPT: attempt}
        self._paths = paths or EnginePaths()
        self._package = self._paths.package(self._home)
        self.facts: Mapping[str, str] = {"image": image}

    @classmethod
    def start(
        cls,
        home: Path,
        *,
        jobs: int,
        image: str = DEFAULT_IMAGE,
        trusted: bool = False,
        run: str = "",
        attempt: str = "",
    ) -> DockerBuilds:
        """For this host's engine, after removing what runners that are gone have left on it.

        Raises InfrastructureError where no engine answers or it lacks the image.
        """
        with talk() as client:
            remove_leftovers(client)
            image_id = find_image(client, image, _NEEDS)
            limits = Limits.of_build(client.info(), jobs)
            paths = EnginePaths.of(client)
        return cls(
            home,
            image=image_id,
            limits=limits,
            trusted=trusted,
            run=run,
            attempt=attempt,
            paths=paths,
        )

    def open(self, workspace: Workspace) -> DockerWorkshop:
        """See BuildSandbox."""
        mounts, environment = self._binds(workspace), dict(workspace.environment)
        if workspace.cache is not None:
            environment |= workspace.cache.environment()
            # In a folder that a read-only cache does not have to have.
            environment |= {"CCACHE_TEMPDIR": "/tmp/ccache", "CCACHE_NOSTATS": "1"}
        client = connect()
        try:
            container = client.containers.create(
                self._image,
                ["-c", WAIT],
                entrypoint=["/bin/sh"],
                **locked(
                    self._limits,
                    self._paths,
                    labels=self._labels,
                    mounts=mounts,
                    environment={"LC_ALL": "C", **environment},
                    folder=str(workspace.folder),
                    memory_folders={
                        str(workspace.out): self._limits.in_memory(self._limits.kept, "exec")
                    },
                ),
            )
            path = ":".join([*map(str, workspace.path), _path_in(client, self._image)])
            return DockerWorkshop(client, container, path, self._limits)
        except (DockerException, OSError) as error:
            client.close()
            raise InfrastructureError(f"the Docker engine cannot start a build: {error}") from error

    def _binds(self, workspace: Workspace) -> list[Mount]:
        """What of this host the commands see, at the same paths."""
        found: dict[Path, Path] = {}
        for path in workspace.reads:
            inside = path.relative_to(PACKAGE) if path.is_relative_to(PACKAGE) else None
            found[path] = path if inside is None else self._package / inside
            require_readable(found[path])
        mounts = [
            read_only(self._paths.source(source), str(path)) for path, source in found.items()
        ]
        if workspace.cache is not None:
            folder = workspace.cache.folder
            source = self._paths.source(folder)
            read = workspace.cache.read_only
            mounts.append(Mount(type="bind", source=source, target=str(folder), read_only=read))
        return mounts

    def ask(self, line: Sequence[str]) -> str | None:
        """See BuildSandbox; an image answers once, since it never changes."""
        known = self._home / "images" / f"{self._image.removeprefix('sha256:')}.json"
        known.parent.mkdir(parents=True, exist_ok=True)
        question = json.dumps(list(line))
        with FileLock(f"{known}.lock"):
            answers: dict[str, str | None] = {}
            with contextlib.suppress(FileNotFoundError):
                answers = json.loads(known.read_text(encoding="utf-8"))
            if question not in answers:
                answers[question] = self._ask(line)
                fresh = known.with_suffix(".new")
                fresh.write_text(json.dumps(answers, indent=1), encoding="utf-8")
                os.replace(fresh, known)
        return answers[question]

    def _ask(self, line: Sequence[str]) -> str | None:
        workshop = self.open(Workspace(Path("/"), Path("/answers")))
        try:
            command = workshop.start(line)
            said = b"".join(iter(command.read, b""))
            status = command.wait()
            if status < 0:  # no answer of the image's, and so none to be kept
                ended = signal.Signals(-status).name
                raise InfrastructureError(f"{line[0]} did not answer: {ended} ended it")
            return said.decode(errors="replace") if status == 0 else None
        finally:
            workshop.end()

    def which(self, program: str) -> Path | None:
        """See BuildSandbox."""
        found = self.ask(["/bin/sh", "-c", 'command -v -- "$0"', program])
        return Path(found.strip()) if found and found.startswith("/") else None

    def cache_of(self, folder: Path) -> CompilerCache | None:
        """See BuildSandbox; what containers write is kept apart from what this host's user does."""
        if self.which("ccache") is None:
            return None
        cache = folder.absolute() / "containers" / "ccache"
        cache.mkdir(parents=True, exist_ok=True)
        # Anyone may write to it, whom this host lets come so far.
        cache.parent.chmod(0o700)
        cache.chmod(0o777)
        return CompilerCache(cache, read_only=not self._trusted)


class DockerWorkshop:
    """See `runner.sandbox.workshop.Workshop`."""

    def __init__(
        self,
        client: docker.DockerClient,
        container: Container,
        path: str,
        limits: Limits,
    ) -> None:
        self._client = client
        self._container = container
        self._path = path
        self._limits = limits
        self._began = time.time()
        self._lock = threading.Lock()
        self._ending = threading.Lock()
        self._ended = False
        self._commands: list[DockerCommand] = []
        try:
            # Held open as long as this process lives.
            self._stream = attach(container)
            container.start()
        except BaseException:
            container.remove(force=True, v=True)
            raise

    def start(self, line: Sequence[str]) -> DockerCommand:
        """See Workshop."""
        if self._ended:
            raise InfrastructureError("the build was stopped before it was done")
        client = connect()
        try:
            command = DockerCommand(client, str(self._container.id), line, {"PATH": self._path})
            with self._lock:
                self._commands.append(command)
            return command
        except (DockerException, OSError) as error:
            client.close()
            gone = self._why_gone()
            raise InfrastructureError(gone or f"{line[0]} did not start: {error}") from error

    def fetch(self, path: Path) -> None:
        """See Workshop; nothing but the file's bytes comes out, whatever it is inside."""
        path.unlink(missing_ok=True)  # an interrupted build's
        command = self.start(["/bin/cat", "--", str(path)])
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o755)
        with open(descriptor, "wb") as file:
            while data := command.read():
                if file.tell() + len(data) > self._limits.kept:
                    self.end()
                    raise BuildError(
                        f"the build's {path.name} has no end: it is larger than what a build may "
                        f"write, {self._limits.kept / 2**30:.1f} GiB"
                    )
                file.write(data)
            size = file.tell()
        if command.wait() != 0 or size == 0:
            path.unlink()
            raise BuildError(f"the build did not make {path.name}")

    def lack(self, status: int, output: str) -> str | None:
        """See Workshop."""
        gone = self._why_gone()
        if gone:
            return gone
        limits = self._limits
        killed = status < 0 or "Killed" in output
        if killed:
            if self._ran_out_of_memory():
                return (
                    f"its container ran out of memory: the limit is {limits.memory / 2**30:.1f} GiB"
                )
            gone = self._why_gone()  # the engine tells of a container's end after its commands'
            if gone:
                return gone
        if "No space left on device" in output:
            return f"the build filled the {limits.kept / 2**30:.1f} GiB of memory that it may write"
        if "Resource temporarily unavailable" in output or "Cannot fork" in output:
            return f"the build started more than {limits.pids} processes and threads"
        return lack_in(output)

    def _why_gone(self) -> str | None:
        """Why the container is not there any more, None where it is."""
        try:
            self._container.reload()
        except NotFound:
            return "its container is gone: something else removed it"
        except (DockerException, OSError) as error:
            return f"the Docker engine does not answer: {error}"
        return None if self._container.attrs["State"]["Running"] else self._how_ended()

    def _how_ended(self) -> str:
        return describe_end(self._container.attrs)

    def _ran_out_of_memory(self) -> bool:
        """Whether the engine says so; the state of a container that still runs does not tell."""
        events: Any = self._client.api.events  # takes fractions of a second, which no stub says
        try:
            seen = events(
                since=f"{self._began:.6f}",
                until=f"{time.time() + OOM_S:.6f}",
                filters={"container": self._container.id, "event": "oom"},
                decode=True,
            )
            return any(True for _ in seen)
        except (DockerException, OSError):
            return False

    def end(self) -> None:
        """See Workshop; the container is removed, with all that was not fetched."""
        with self._ending:  # who comes second waits until it is gone
            if self._ended:
                return
            self._ended = True
            with self._lock:
                commands = list(self._commands)
            # The engine removes no container while somebody may yet take what it printed.
            for command in commands:
                command.shut()
            try:
                self._container.remove(force=True, v=True)
            except NotFound:
                pass  # which is what is wanted
            except (DockerException, OSError):
                abandon(self._container)
            self._stream.close()
            self._client.close()


class DockerCommand:
    """See `runner.sandbox.workshop.Command`."""

    def __init__(
        self,
        client: docker.DockerClient,
        container: str,
        line: Sequence[str],
        environment: Mapping[str, str],
    ) -> None:
        self._client = client
        made = client.api.exec_create(container, list(line), environment=dict(environment))
        self._id: str = made["Id"]
        stream = client.api.exec_start(self._id, socket=True)
        assert isinstance(stream, socket.SocketIO)
        self._stream = stream
        self._shutting = socket.socket(fileno=os.dup(stream.fileno()))
        self._frames = frames(stream.fileno())

    def shut(self) -> None:
        """Take nothing more of what it prints."""
        with contextlib.suppress(OSError):  # it has ended
            self._shutting.shutdown(socket.SHUT_RDWR)

    def read(self) -> bytes:
        """See Command."""
        return next((data for _, data in self._frames), b"")

    def wait(self) -> int:
        """See Command."""
        try:
            return _status(self._exit_code())
        except NotFound as error:
            raise InfrastructureError("the build's container is gone") from error
        except (DockerException, OSError) as error:
            raise InfrastructureError(f"the Docker engine went away: {error}") from error
        finally:
            self._stream.close()
            self._shutting.close()
            self._client.close()

    def _exit_code(self) -> int:
        deadline = time.monotonic() + END_S
        while True:
            told: dict[str, Any] = self._client.api.exec_inspect(self._id)
            if told["ExitCode"] is not None and not told["Running"]:
                return int(told["ExitCode"])
            if time.monotonic() > deadline:
                raise InfrastructureError("the Docker engine does not say how a command ended")
            time.sleep(0.01)


def _path_in(client: docker.DockerClient, image: str) -> str:
    """The PATH that an image sets, or the one that the engine sets where it does not."""
    entries = client.images.get(image).attrs["Config"].get("Env") or []
    paths = [entry.removeprefix("PATH=") for entry in entries if entry.startswith("PATH=")]
    return paths[0] if paths else "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def _status(code: int) -> int:
    """An exit status as the process sandbox has it: what a signal ended is its number, negative."""
    return 128 - code if code - 128 in _SIGNALS else code


_SIGNALS = frozenset(int(number) for number in signal.Signals)

__all__ = ["DEFAULT_IMAGE", "DockerBuilds", "default_image", "require"]
