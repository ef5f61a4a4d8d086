"""The `docker` sandbox: trials in a locked container, one for each parent."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError, DockerException
from docker.models.containers import Container
from docker.types import Mount

from runner.device import uuids
from runner.errors import InfrastructureError
from runner.result import Device
from runner.sandbox.docker_engine import (
    GIB,
    UNPRIVILEGED,
    Limits,
    connect,
    find_image,
    locked,
    read_only,
    talk,
)
from runner.sandbox.docker_gpu import gpu_request
from runner.sandbox.docker_owner import LABEL_ATTEMPT, LABEL_KIND, LABEL_RUN, remove_leftovers
from runner.sandbox.docker_parent import DockerParent
from runner.sandbox.docker_paths import PACKAGE, EnginePaths, require_readable
from runner.trial.program import ParentConfig

DEFAULT_IMAGE = "racewatch-trial"
_NEEDS = (
    "Python 3.11 or newer (and JAX and the CUDA libraries for te), and name it with --image or "
    "RACEWATCH_TRIAL_IMAGE"
)
EVENTS_FD = 3
LAUNCH = f'exec {EVENTS_FD}>&1 >&2; exec "$@"'
"""Standard output is kept for events; what the parent prints goes to standard error."""
PYTHON = "python3"
_CACHE = "JAX_COMPILATION_CACHE_DIR"


def default_image(subject: str) -> str:
    """The image of a subject's trials where none is named; the demo's has no CUDA in it."""
    return f"{DEFAULT_IMAGE}-cpu" if subject == "demo" else DEFAULT_IMAGE


class DockerSandbox:
    """Starts a container for each parent; of the host, its trials may write into their own logs
    and traces in the run's `folder`, and nowhere else.

    uuids: of the device's GPUs by index. package: where the engine has the `runner` package.
    """

    name = "docker"

    def __init__(
        self,
        folder: Path,
        *,
        run: str,
        device: Device,
        image: str,
        limits: Limits,
        attempt: str = "",
        environment: Mapping[str, str] | None = None,
        info: Mapping[str, Any] | None = None,
        uuids: Mapping[str, str] | None = None,
        paths: EnginePaths | None = None,
        package: Path = PACKAGE,
    ) -> None:
        self._folder = folder
        self._run = run
        self._attempt = attempt
        self._device = device
        self._limits = limits
        self._environment = dict(environment or {})
        self._info = info or {}
        self._uuids = uuids or {}
        self._paths = paths or EnginePaths()
        self._package = package
        self._numbers = itertools.count(1)  # lanes start parents from several threads
        self.image = image

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        run: str,
        device: Device,
        parallel: int,
        image: str = DEFAULT_IMAGE,
        attempt: str = "",
        environment: Mapping[str, str] | None = None,
        home: Path | None = None,
    ) -> DockerSandbox:
        """For a run, after removing what runners that are gone have left on the engine.

        home: a folder that the engine reaches, for what it shall share of this process's own.
        Raises InfrastructureError where no engine answers or it lacks the image.
        """
        with talk() as client:
            remove_leftovers(client)
            found = find_image(client, image, _NEEDS)
            info = client.info()
            paths = EnginePaths.of(client)
        return cls(
            folder,
            run=run,
            attempt=attempt,
            device=device,
            image=found,
            limits=Limits.of_trials(info, parallel),
            environment=environment,
            info=info,
            uuids={} if device.emulated else uuids(),
            paths=paths,
            package=paths.package(home or folder),
        )

    def start(self, config: ParentConfig) -> DockerParent:
        """See `runner.sandbox.base.Sandbox`."""
        name = f"parent-{next(self._numbers):03d}"
        log, files = self._folder / f"{name}.log", self._folder / name
        client = connect()
        try:
            files.mkdir()
            files.chmod(0o755)  # open to the containers' user, who may make no file in it
            container = self.create(client, config, files)
            try:
                # Attached before it starts, so that no event is missed.
                parent = DockerParent(client, container, log, files, kept=self._limits.kept)
            except BaseException:
                container.remove(force=True, v=True)
                raise
            try:
                container.start()
            except BaseException:
                parent.close()
                raise
        except (DockerException, OSError) as error:
            client.close()
            raise InfrastructureError(self._why_not_started(error, config)) from error
        return parent

    def create(self, client: docker.DockerClient, config: ParentConfig, files: Path) -> Container:
        """The container of a parent, not yet started; `files` is its part of the run's folder."""
        inside = config
        requests = []
        if not self._device.emulated:
            gpu = self._uuids.get(config.device, config.device)
            requests.append(gpu_request(self._info, gpu))
            inside = replace(config, device="0")  # the only GPU that it sees
        return client.containers.create(
            self.image,
            [PYTHON, "-m", "runner.trial.parent", json.dumps(asdict(inside)), str(EVENTS_FD)],
            entrypoint=["/bin/sh", "-c", LAUNCH, "sh"],
            device_requests=requests,
            **locked(
                self._limits,
                self._paths,
                labels={
                    LABEL_KIND: "trial",
                    LABEL_RUN: self._run,
                    LABEL_ATTEMPT: self._attempt,
                },
                mounts=self._mounts(config, files),
                environment=self._inside_environment(),
                folder=str(self._folder),
            ),
        )

    def _inside_environment(self) -> dict[str, str]:
        environment = {
            # A numerical library's thread pool would make the parent unsafe to fork.
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            **self._environment,
            "PYTHONPATH": str(PACKAGE.parent),
        }
        if _CACHE in environment:
            # In the container's own memory: what one build's trials compile, no other's run.
            environment[_CACHE] = "/tmp/jax-cache"
        return environment

    def _mounts(self, config: ParentConfig, files: Path) -> list[Mount]:
        """What of the host is seen inside, at the same paths: all of it read-only but `files`,
        which stands for the run's folder."""
        shared = set()
        detector = (config.detector,) if config.detector else ()
        for name in (config.build_dir, *config.python_path, *config.fallback_path, *detector):
            shared |= {path for path in _with_targets(Path(name)) if path.exists()}
        outer = [path for path in shared if not {PACKAGE, *shared} & set(path.parents)]
        for path in outer:
            require_readable(path)
        sources = {path: path for path in outer} | {PACKAGE: self._package}
        mounts = [
            read_only(self._paths.source(source), str(target))
            for target, source in sorted(sources.items())
        ]
        writable = self._paths.source(files)
        return [*mounts, Mount(type="bind", source=writable, target=str(self._folder))]

    def _why_not_started(self, error: Exception, config: ParentConfig) -> str:
        said = error.explanation if isinstance(error, APIError) else None
        text = str(said or error).strip()
        if "could not select device driver" in text or "nvidia" in text.lower():
            return (
                f"the Docker engine cannot give a container GPU {config.device}: install the "
                "NVIDIA container toolkit for it, or use --sandbox process for a commit that you "
                f"trust ({text})"
            )
        return f"the Docker engine cannot start a container for {config.build_dir}: {text}"


def require(image: str) -> None:
    """Raise InfrastructureError unless an engine answers and has the image of trials."""
    image_id(image)


def image_id(image: str) -> str:
    """The id of an image of trials. Raises InfrastructureError where it is not there."""
    with talk() as client:
        return find_image(client, image, _NEEDS)


def _with_targets(folder: Path) -> Iterator[Path]:
    """A folder, and what the links in it name: a build may be a folder of links into a cache."""
    folder = folder.absolute()
    yield folder
    if not folder.is_dir():
        return
    for entry in folder.iterdir():
        if entry.is_symlink():
            yield (folder / entry.readlink()).absolute()


__all__ = [
    "DEFAULT_IMAGE",
    "GIB",
    "UNPRIVILEGED",
    "DockerSandbox",
    "Limits",
    "connect",
    "default_image",
    "find_image",
    "image_id",
    "require",
]
