"""This host's Docker engine: how it is reached, its images, and what is denied to any container."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import docker
from docker.errors import DockerException, ImageNotFound
from docker.types import LogConfig, Mount, Ulimit

from runner.errors import InfrastructureError
from runner.sandbox.docker_owner import LABEL_CONTAINER, LABEL_OWNER, Owner
from runner.sandbox.docker_paths import EnginePaths

UNPRIVILEGED = 64120
"""User and group in every container; no system account has that number, nor does any runner."""
GIB = 2**30


@dataclass(frozen=True)
class Limits:
    """What one container may use.

    memory: in bytes. pids: processes and threads. tmp: bytes of /tmp, which is memory. file: bytes
    of one file. kept: bytes of all that it writes elsewhere. files: how many a folder in memory
    holds; each takes about 1 KiB of the kernel's.
    """

    memory: int
    cpus: int
    pids: int
    tmp: int = 2 * GIB
    file: int = 64 * 2**20
    kept: int = GIB
    files: int = 200_000

    @classmethod
    def of_trials(cls, info: Mapping[str, Any], parallel: int) -> Limits:
        """Most of the engine's host, which must itself stay alive; an XLA process has several
        pools of as many threads as there are cores."""
        cpus = int(info["NCPU"])
        pids = (parallel + 1) * max(512, 8 * cpus)
        return cls(memory=int(info["MemTotal"]) * 3 // 4, cpus=cpus, pids=pids)

    @classmethod
    def of_build(cls, info: Mapping[str, Any], jobs: int) -> Limits:
        """As many cores as compilers; what a build makes is kept in memory until it is fetched."""
        memory = int(info["MemTotal"]) * 3 // 4
        kept = min(16 * GIB, memory // 3)
        cpus = max(1, min(jobs, int(info["NCPU"])))
        # A compiler is a driver, two or three processes under it, and ninja or cmake above.
        pids = 128 + 16 * jobs
        # One file may be larger than all: a full disk is told better than a signal.
        return cls(memory=memory, cpus=cpus, pids=pids, tmp=GIB, file=2 * kept, kept=kept)

    def in_memory(self, size: int, *options: str) -> str:
        """Mount options of a folder in memory that holds at most `size` bytes."""
        limits = f"size={size},nr_inodes={self.files}"
        owner = f"uid={UNPRIVILEGED},gid={UNPRIVILEGED},mode=1777"
        return ",".join(["rw", "nosuid", "nodev", *options, limits, owner])


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
            f"no Docker engine answers at {where} ({_why_silent(error)}): start it, or use "
            "--sandbox process for a commit that you trust"
        ) from error
    return client


def _why_silent(error: Exception) -> str:
    """Without the client's own words, which speak of a network that has no part in it."""
    text = str(error)
    if "Permission denied" in text:
        return "this user may not speak to it: its group may"
    if "Connection refused" in text or "No such file" in text:
        return "nobody listens there"
    return text


@contextmanager
def talk() -> Iterator[docker.DockerClient]:
    """A client for a while. Raises InfrastructureError, also for what the engine fails at in it."""
    with closing(connect()) as client:
        try:
            yield client
        except (DockerException, OSError) as error:
            raise InfrastructureError(f"the Docker engine failed: {error}") from error


def find_image(client: docker.DockerClient, image: str, needs: str) -> str:
    """The id of an image, which stays the same when its tag moves.

    needs: what it must have, and the option that names it. Raises InfrastructureError.
    """
    try:
        return str(client.images.get(image).id)
    except ImageNotFound as error:
        raise InfrastructureError(
            f"the Docker engine has no image {image}: build or pull one with {needs}"
        ) from error


def locked(
    limits: Limits,
    paths: EnginePaths,
    *,
    labels: Mapping[str, str],
    mounts: Sequence[Mount],
    environment: Mapping[str, str],
    folder: str,
    memory_folders: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Arguments of `containers.create` for code that nobody trusts.

    memory_folders: more folders like /tmp, with the options of their mounts.
    """
    return {
        "stdin_open": True,
        "environment": {"HOME": "/tmp", **environment},
        "working_dir": folder,
        "user": f"{UNPRIVILEGED}:{UNPRIVILEGED}",
        "mounts": list(mounts),
        "read_only": True,
        "tmpfs": {"/tmp": limits.in_memory(limits.tmp, "noexec"), **(memory_folders or {})},
        "shm_size": limits.tmp // 4,
        "network_mode": "none",
        "ipc_mode": "private",
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "mem_limit": limits.memory,
        "memswap_limit": limits.memory,
        "pids_limit": limits.pids,
        "nano_cpus": limits.cpus * 10**9,
        "ulimits": [
            Ulimit(name="fsize", soft=limits.file, hard=limits.file),
            Ulimit(name="core", soft=0, hard=0),
        ],
        "init": True,
        "healthcheck": {"test": ["NONE"]},
        "log_config": LogConfig(type=LogConfig.types.NONE),
        "labels": {
            **labels,
            LABEL_OWNER: str(Owner.current()),
            LABEL_CONTAINER: paths.container,
        },
    }


def read_only(source: str, target: str) -> Mount:
    """What of this host a container sees and cannot change."""
    return Mount(type="bind", source=source, target=target, read_only=True)
