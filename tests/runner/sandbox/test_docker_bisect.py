"""`racewatch bisect --sandbox docker`: each probe's trials in containers, to the same verdict."""

from __future__ import annotations

import json
from pathlib import Path

import docker
import pytest

from runner.demo_subject import DemoSubject
from runner.subject import Request
from tests.conftest import Racewatch


def test_a_bisection_in_docker_names_the_commit_that_broke_it(
    racewatch: Racewatch,
    demo: DemoSubject,
    engine: docker.DockerClient,
    image: str,
    build_image: str,
    tmp_path: Path,
) -> None:
    result = tmp_path / "result.json"
    process = racewatch(
        *("bisect", "--subject", "demo", "--good", "before", "--bad", "race"),
        *("--cell", "stock, background", "--record", str(tmp_path / "record.jsonl")),
        *("--json", str(result), "--sandbox", "docker", "--image", image),
        *("--build-image", build_image),
        RACEWATCH_HOME=str(tmp_path / "home"),  # where nothing is built yet
    )
    _, err = process.communicate(timeout=300)

    assert process.returncode == 0, err
    (commit,) = json.loads(result.read_text())["verdict"]["commits"]
    assert commit["sha"] == demo.resolve(Request("race")).sha
    (started, *_), *others = [
        [json.loads(line) for line in file.read_text().splitlines()]
        for file in (tmp_path / "home" / "runs").rglob("events.jsonl")
    ]
    assert others
    assert started["sandbox"] == "docker"
    assert started["environment"]["RACEWATCH_TRIAL_IMAGE"] == engine.images.get(image).id


@pytest.mark.parametrize(
    ("sandbox", "named", "sentence"),
    [
        ("chroot", "", "--sandbox: unknown 'chroot'; known: process, docker"),
        ("docker", "no-such", "no image no-such: build or pull one"),
    ],
)
def test_a_sandbox_that_cannot_be_had_is_one_sentence(
    racewatch: Racewatch, build_image: str, sandbox: str, named: str, sentence: str
) -> None:
    process = racewatch(
        *("bisect", "--subject", "demo", "--good", "before", "--bad", "race"),
        *("--cell", "stock, background", "--sandbox", sandbox, "--image", named),
        *("--build-image", build_image),
    )
    _, err = process.communicate(timeout=60)
    assert process.returncode in (2, 3)
    assert sentence in err
