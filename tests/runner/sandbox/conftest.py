"""A real Docker engine, and images on it for trials and builds: Debian's smallest, with Python."""

from __future__ import annotations

import io
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest
from docker.errors import ImageNotFound

from runner.errors import InfrastructureError
from runner.sandbox.docker import connect

IMAGE = "racewatch-test-base"
BUILD_IMAGE = "racewatch-test-builder"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
COMPILERS = ("g++", "ccache", "cmake", "ninja-build", "python3-dev")


@pytest.fixture(scope="session")
def engine(needs: Callable[[object, str], None]) -> Iterator[docker.DockerClient]:
    try:
        client = connect()
    except InfrastructureError:
        needs(None, "Docker engine")
        raise
    yield client
    client.close()


@pytest.fixture(scope="session")
def image(
    engine: docker.DockerClient,
    needs: Callable[[object, str], None],
    tmp_path_factory: pytest.TempPathFactory,
) -> str:
    """To run trials in. Made from Debian's packages where the engine does not have it: no registry
    is asked."""
    if not _has(engine, IMAGE):
        able = os.getuid() == 0 and shutil.which("debootstrap") and shutil.which("apt-get")
        needs(able, f"image {IMAGE}, nor debootstrap and root to make it")
        _bootstrap(engine, tmp_path_factory.mktemp("base"))
    return IMAGE


@pytest.fixture(scope="session")
def build_image(engine: docker.DockerClient, image: str) -> str:
    """To build in: the same with compilers."""
    if not _has(engine, BUILD_IMAGE):
        install = f"apt-get install -qy --no-install-recommends {' '.join(COMPILERS)}"
        steps = [f"FROM {image}", f"RUN apt-get update -q && {install} && apt-get clean"]
        engine.images.build(
            fileobj=io.BytesIO("\n".join(steps).encode()),
            tag=BUILD_IMAGE,
            network_mode="host",
            rm=True,
            forcerm=True,
        )
    return BUILD_IMAGE


def _has(engine: docker.DockerClient, image: str) -> bool:
    try:
        engine.images.get(image)
    except ImageNotFound:
        return False
    return True


def _bootstrap(engine: docker.DockerClient, scratch: Path) -> None:
    suite = platform.freedesktop_os_release()["VERSION_CODENAME"]
    root, archive = scratch / "root", scratch / "root.tar"
    packages = "--include=python3,libstdc++6"
    bootstrap = ["debootstrap", "--variant=minbase", packages, suite, str(root), _mirror(suite)]
    subprocess.run(bootstrap, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["tar", "-C", str(root), "-cf", str(archive), "."], check=True)
    shutil.rmtree(root)
    engine.api.import_image_from_file(
        str(archive), repository=IMAGE, tag="latest", changes=[f"ENV PATH={PATH}"]
    )
    archive.unlink()


def _mirror(suite: str) -> str:
    """Where apt takes this release from, whatever the format of its sources."""
    command = ["apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)"]
    targets = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return next(u for c, u in (line.split() for line in targets.splitlines()) if c == suite)
