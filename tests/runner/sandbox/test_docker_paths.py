"""A runner in a container names folders as the engine has them, and shares what that lacks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from docker.models.containers import Container

from runner.demo_build import EMULATION
from runner.errors import InfrastructureError
from runner.result import Device
from runner.sandbox.docker import DockerSandbox
from runner.sandbox.docker_build import DockerBuilds
from runner.sandbox.docker_engine import Limits
from runner.sandbox.docker_paths import PACKAGE, EnginePaths, mounts_in, own_container
from runner.sandbox.workshop import Workspace
from runner.trial.program import ParentConfig

LIMITS = Limits(memory=2**28, cpus=1, pids=64, tmp=2**22, kept=2**22)


@pytest.fixture
def container(engine: docker.DockerClient, image: str, tmp_path: Path) -> Iterator[Container]:
    """A container with a folder of this host and a volume of the engine in it."""
    volume = engine.volumes.create()
    made = engine.containers.create(
        image,
        ["sleep", "1000"],
        volumes={
            str(tmp_path): {"bind": "/shared", "mode": "rw"},
            volume.name: {"bind": "/data/racewatch", "mode": "rw"},
        },
        network_mode="none",
    )
    made.start()
    yield made
    made.remove(force=True)
    volume.remove()


def test_a_process_finds_out_which_container_it_is_in(container: Container, tmp_path: Path) -> None:
    seen = container.exec_run(["cat", "/proc/self/mountinfo"]).output
    (tmp_path / "mountinfo").write_bytes(seen)
    assert own_container(tmp_path / "mountinfo") == container.id


def test_a_process_that_is_in_none_of_an_engines_containers_names_its_own_paths(
    engine: docker.DockerClient, tmp_path: Path
) -> None:
    paths = EnginePaths.of(engine)
    assert paths.source(tmp_path) == str(tmp_path.resolve())
    assert paths.package(tmp_path) == PACKAGE
    assert paths.container == ""


def test_what_lies_on_a_volume_or_in_a_bound_folder_is_found_where_the_engine_has_it(
    container: Container, tmp_path: Path
) -> None:
    script = "mkdir /shared/a; echo bound > /shared/a/file; echo kept > /data/racewatch/file"
    assert container.exec_run(["sh", "-c", script]).exit_code == 0
    paths = EnginePaths(mounts_in(container.attrs))
    assert Path(paths.source(Path("/shared/a/file"))).read_text() == "bound\n"
    assert Path(paths.source(Path("/data/racewatch/file"))).read_text() == "kept\n"


def test_what_lies_in_the_runners_own_container_cannot_be_shared(container: Container) -> None:
    paths = EnginePaths(mounts_in(container.attrs))
    with pytest.raises(InfrastructureError, match=r"^/data/other lies in this runner's own"):
        paths.source(Path("/data/other"))


def test_the_package_of_a_runner_in_a_container_is_copied_once_to_where_the_engine_reaches(
    tmp_path: Path,
) -> None:
    paths = EnginePaths({tmp_path: tmp_path})
    copy = paths.package(tmp_path)
    assert copy.is_relative_to(tmp_path)
    assert (copy / "trial" / "parent.py").read_bytes() == (
        PACKAGE / "trial" / "parent.py"
    ).read_bytes()
    (copy / "mark").touch()
    assert paths.package(tmp_path) == copy
    assert (copy / "mark").exists()


def test_builds_of_a_runner_in_a_container_find_the_package_at_its_own_path(
    engine: docker.DockerClient, image: str, tmp_path: Path
) -> None:
    builds = DockerBuilds(
        tmp_path, image=image, limits=LIMITS, paths=EnginePaths({tmp_path: tmp_path})
    )
    tree = tmp_path / "tree"
    tree.mkdir()
    workshop = builds.open(Workspace(tree, tmp_path / "out", reads=(tree, EMULATION)))
    try:
        command = workshop.start(["ls", str(EMULATION)])
        said = b"".join(iter(command.read, b"")).decode().split()
        assert command.wait() == 0
    finally:
        workshop.end()
    assert {"include", "src"} <= set(said)
    with pytest.raises(InfrastructureError, match=r"lies in this runner's own container"):
        builds.open(Workspace(tree, tmp_path / "out", reads=(Path("/usr"),)))


def test_trials_of_a_runner_in_a_container_get_its_package(
    engine: docker.DockerClient, image: str, tmp_path: Path
) -> None:
    folder, build = tmp_path / "run", tmp_path / "build"
    folder.mkdir()
    build.mkdir()
    paths = EnginePaths({tmp_path: tmp_path})
    sandbox = DockerSandbox(
        folder, run="r", device=Device("emulated", "e", ids=("0",)), image=image, limits=LIMITS,
        paths=paths, package=paths.package(tmp_path),
    )  # fmt: skip
    container = sandbox.create(engine, ParentConfig("demo", str(build), "registered", "0"), folder)
    try:
        container.reload()
        sources = {m["Destination"]: m["Source"] for m in container.attrs["Mounts"]}
        assert sources[str(PACKAGE)] == str(paths.package(tmp_path))
        assert sources[str(folder)] == str(folder)
    finally:
        container.remove(force=True)
