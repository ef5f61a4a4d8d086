"""Paths as the Docker engine has them, which are others where this process is in a container."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import docker
from docker.errors import NotFound

from runner.errors import InfrastructureError

PACKAGE = Path(__file__).resolve().parents[1]
"""The `runner` package, which containers get from this process: image and harness never differ."""
# The engine binds these files of its own into each of its containers.
_OWN_FILE = re.compile(r"/containers/([0-9a-f]{64})/(?:hostname|hosts|resolv\.conf) /etc/")


def own_container(mounts: Path = Path("/proc/self/mountinfo")) -> str | None:
    """The id of the container that this process runs in, None where it runs in none."""
    found = _OWN_FILE.search(mounts.read_text(encoding="utf-8", errors="replace"))
    return found[1] if found else None


class EnginePaths:
    """Where the engine has what this process names by its own paths.

    mounts: the engine's folder by this process's; None where both have the same files. container:
    the id of the engine's container that this process runs in, empty where it runs in none.
    """

    def __init__(self, mounts: Mapping[Path, Path] | None = None, container: str = "") -> None:
        self._mounts = mounts
        self.container = container

    @classmethod
    def of(cls, client: docker.DockerClient) -> EnginePaths:
        """As this process's own container, if it is one of that engine's, shares them."""
        own = own_container()
        if own is None:
            return cls()
        try:
            attributes = client.containers.get(own).attrs
        except NotFound:  # an engine inside of the container, which sees what this process sees
            return cls()
        return cls(mounts_in(attributes), own)

    def reaches(self, path: Path) -> bool:
        """Whether the engine has it at all."""
        return self._find(path) is not None

    def source(self, path: Path) -> str:
        """Where the engine finds it. Raises InfrastructureError where it does not have it."""
        found = self._find(path)
        if found is None:
            raise InfrastructureError(
                f"{path} lies in this runner's own container, where the Docker engine cannot share "
                "it with others: keep it on a volume (RACEWATCH_HOME)"
            )
        return str(found)

    def _find(self, path: Path) -> Path | None:
        path = path.resolve()
        if self._mounts is None:
            return path
        inside = [folder for folder in (path, *path.parents) if folder in self._mounts]
        return self._mounts[inside[0]] / path.relative_to(inside[0]) if inside else None

    def package(self, home: Path) -> Path:
        """A copy of this package that the engine reaches: its own place, or one below `home`."""
        if self.reaches(PACKAGE):
            return PACKAGE
        copy = home / "harness" / _digest(PACKAGE) / PACKAGE.name
        if not copy.is_dir():
            copy.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".copy-", dir=copy.parent) as scratch:
                fresh = Path(scratch) / PACKAGE.name
                shutil.copytree(PACKAGE, fresh, ignore=shutil.ignore_patterns("__pycache__"))
                try:
                    os.rename(fresh, copy)
                except OSError:
                    if not copy.is_dir():  # else another process made the same one meanwhile
                        raise
        return copy


def mounts_in(attributes: Mapping[str, Any]) -> dict[Path, Path]:
    """The engine's folder by the folder in a container, for all that it shares with the engine."""
    return {
        Path(mount["Destination"]): Path(mount["Source"])
        for mount in attributes["Mounts"]
        if mount["Type"] in ("bind", "volume") and mount.get("Source")
    }


def require_readable(path: Path) -> None:
    """Raise InfrastructureError where a user of no account may not read what containers need."""
    bits = stat.S_IROTH | (stat.S_IXOTH if path.is_dir() else 0)
    if path.stat().st_mode & bits != bits:
        raise InfrastructureError(
            f"{path} cannot be read by the user that containers run as: make it so with "
            f"chmod -R o+rX, and run Racewatch with umask 022"
        )


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(folder)}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
