"""The `docker` sandbox: trials in a locked container, one for each parent."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError, DockerException, ImageNotFound
from docker.models.containers import Container
from docker.types import DeviceRequest, LogConfig, Mount, Ulimit

from runner.errors import InfrastructureError
from runner.result import Device
from runner.sandbox.docker_owner import (
    LABEL_KIND,
    LABEL_OWNER,
    LABEL_RUN,
    Owner,
    remove_leftovers,
)
from runner.sandbox.docker_parent import DockerParent
from runner.trial.program import ParentConfig

DEFAULT_IMAGE = "racewatch-trial"
PACKAGE = Path(__file__).resolve().parents[1]
"""The `runner` package, which the container gets from this host: image and harness never differ."""
UNPRIVILEGED = 64120
"""User and group of the trials of a runner that is root; no system account has that number."""
EVENTS_FD = 3
LAUNCH = f'exec {EVENTS_FD}>&1 >&2; exec "$@"'
"""Standard output is kept for events; what the parent prints goes to standard error."""
GIB = 2**30
PYTHON = "python3"


@dataclass(frozen=True)
class Limits:
    """What one container may use: bytes of memory, cores, processes and threads, bytes of /tmp
    (which is memory), bytes of one file."""

    memory: int
    cpus: int
    pids: int
    tmp: int = 2 * GIB
    file: int = 2 * GIB

    @classmethod
    def of_engine(cls, info: Mapping[str, Any], parallel: int) -> Limits:
        """Most of the engine's host, which must itself stay alive; an XLA process has several
        pools of as many threads as there are cores."""
        cpus = int(info["NCPU"])
        pids = (parallel + 1) * max(512, 8 * cpus)
        return cls(memory=int(info["MemTotal"]) * 3 // 4, cpus=cpus, pids=pids)


def find_image(client: docker.DockerClient, image: str) -> str:
    """The id of an image, which stays the same when its tag moves. Raises InfrastructureError."""
    try:
        return str(client.images.get(image).id)
    except ImageNotFound as error:
        raise InfrastructureError(
            f"the Docker engine has no image {image}: build or pull one with Python 3.11 or newer "
            "(and JAX and the CUDA libraries for te), and name it with --image or "
            "RACEWATCH_TRIAL_IMAGE"
        ) from error


def connect() -> docker.DockerClient:
    """A client of this host's engine. Raises InfrastructureError where none answers."""
    where = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    if not where.startswith("unix://"):
        raise InfrastructureError(
            f"DOCKER_HOST={where}: the sandbox shares folders with the engine, so it must be this "
            "host's, at unix://..."
        )
    try:
        client = docker.from_env()
        client.ping()
    except (DockerException, OSError) as error:
        raise InfrastructureError(
            f"no Docker engine answers at {where}: start it, or use --sandbox process for a commit "
            f"that you trust ({error})"
        ) from error
    return client


def require(image: str) -> None:
    """Raise InfrastructureError unless an engine answers and has the image."""
    with closing(connect()) as client:
        find_image(client, image)


class DockerSandbox:
    """Starts a container for each parent; `folder` is all of the host that its trials may write."""

    name = "docker"

    def __init__(
        self,
        folder: Path,
        *,
        run: str,
        device: Device,
        image: str,
        limits: Limits,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = folder
        self._run = run
        self._device = device
        self._image = image
        self._limits = limits
        self._environment = dict(environment or {})
        self._numbers = itertools.count(1)  # lanes start parents from several threads

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        run: str,
        device: Device,
        parallel: int,
        image: str = DEFAULT_IMAGE,
        environment: Mapping[str, str] | None = None,
    ) -> DockerSandbox:
        """For a run, after removing what runners that are gone have left on the engine.

        Raises InfrastructureError where no engine answers or it lacks the image.
        """
        with closing(connect()) as client:
            try:
                remove_leftovers(client)
                image_id = find_image(client, image)
                limits = Limits.of_engine(client.info(), parallel)
            except (DockerException, OSError) as error:
                raise InfrastructureError(f"the Docker engine failed: {error}") from error
        if os.getuid() == 0:
            os.chown(folder, UNPRIVILEGED, UNPRIVILEGED)
        return cls(
            folder, run=run, device=device, image=image_id, limits=limits, environment=environment
        )

    def start(self, config: ParentConfig) -> DockerParent:
        """See `runner.sandbox.base.Sandbox`."""
        log = self._folder / f"parent-{next(self._numbers):03d}.log"
        client = connect()
        try:
            container = self.create(client, config)
            try:
                # Attached before it starts, so that no event is missed.
                parent = DockerParent(client, container, log)
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

    def create(self, client: docker.DockerClient, config: ParentConfig) -> Container:
        """The container of a parent, not yet started."""
        inside = config
        requests = []
        if not self._device.emulated:
            requests.append(
                DeviceRequest(
                    device_ids=[config.device], capabilities=[["gpu", "compute", "utility"]]
                )
            )
            inside = replace(config, device="0")  # the only GPU that it sees
        limits, user = self._limits, _user()
        return client.containers.create(
            self._image,
            [PYTHON, "-m", "runner.trial.parent", json.dumps(asdict(inside)), str(EVENTS_FD)],
            entrypoint=["/bin/sh", "-c", LAUNCH, "sh"],
            stdin_open=True,
            environment=self._inside_environment(),
            working_dir=str(self._folder),
            user=f"{user}:{user if os.getuid() == 0 else os.getgid()}",
            mounts=self._mounts(config),
            read_only=True,
            tmpfs={"/tmp": f"rw,nosuid,nodev,noexec,mode=1777,size={limits.tmp}"},
            network_mode="none",
            cap_drop=["ALL"],
            security_opt=["no-new-privileges:true"],
            mem_limit=limits.memory,
            memswap_limit=limits.memory,
            pids_limit=limits.pids,
            nano_cpus=limits.cpus * 10**9,
            ulimits=[
                Ulimit(name="fsize", soft=limits.file, hard=limits.file),
                Ulimit(name="core", soft=0, hard=0),
            ],
            init=True,
            device_requests=requests,
            healthcheck={"test": ["NONE"]},
            log_config=LogConfig(type=LogConfig.types.NONE),
            labels={
                LABEL_KIND: "trial",
                LABEL_RUN: self._run,
                LABEL_OWNER: str(Owner.current()),
            },
        )

    def _inside_environment(self) -> dict[str, str]:
        return {
            "HOME": "/tmp",
            # A numerical library's thread pool would make the parent unsafe to fork.
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            **self._environment,
            "PYTHONPATH": str(PACKAGE.parent),
        }

    def _mounts(self, config: ParentConfig) -> list[Mount]:
        """What of the host is seen inside, at the same paths: all of it read-only but `folder`."""
        shared = {PACKAGE}
        for name in (config.build_dir, *config.python_path, *config.fallback_path):
            shared |= {path for path in _with_targets(Path(name)) if path.exists()}
        outer = [path for path in shared if not shared & set(path.parents)]
        mounts = [
            Mount(type="bind", source=str(path.resolve()), target=str(path), read_only=True)
            for path in sorted(outer)
        ]
        return [*mounts, Mount(type="bind", source=str(self._folder), target=str(self._folder))]

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


def _user() -> int:
    return os.getuid() or UNPRIVILEGED


def _with_targets(folder: Path) -> Iterator[Path]:
    """A folder, and what the links in it name: a build may be a folder of links into a cache."""
    folder = Path(os.path.abspath(folder))
    yield folder
    if not folder.is_dir():
        return
    for entry in folder.iterdir():
        if entry.is_symlink():
            yield Path(os.path.abspath(folder / entry.readlink()))


__all__ = ["DEFAULT_IMAGE", "DockerSandbox", "Limits", "connect", "find_image", "require"]
