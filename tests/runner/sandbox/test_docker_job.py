"""A worker's jobs in containers: builds and trials, each in the image that the job names."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
import pytest

from runner.demo_subject import DemoSubject
from runner.matrix import as_data, parse
from runner.run import PreparedBuild
from runner.sandbox.docker_owner import LABEL_RUN
from runner.subject import Request

Job = Callable[..., list[dict[str, Any]]]
MATRIX = """
name = "one"
[[cells]]
name = "alone"
variant = "stock"
background = false
trials = 2
"""


@pytest.fixture
def job(home: Path, compiler: str, demo: DemoSubject, image: str, build_image: str) -> Job:
    """`job("build", build="stock")`: the answers of a job on the commit that brings the race."""
    commit = vars(demo.resolve(Request("race")))

    def of(what: str, **request: object) -> list[dict[str, Any]]:
        asked = {
            "do": what, "subject": "demo", "commit": commit,
            "sandbox": "docker", "image": image, "build_image": build_image, **request,
        }  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-m", "runner.job"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "RACEWATCH_HOME": str(home), "CXX": compiler},
        )
        with process:  # a job ends with its standard input
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(asked) + "\n")
            process.stdin.flush()
            return [json.loads(line) for line in process.stdout]

    return of


def test_a_build_is_known_by_the_compiler_of_its_image(
    job: Job, build: Callable[..., PreparedBuild]
) -> None:
    (answer,) = job("build", build="stock")
    assert answer["build"]["key"] == build("race").key


def test_trials_run_in_the_image_that_is_named_and_say_which_it_was(
    job: Job, engine: docker.DockerClient, image: str, tmp_path: Path
) -> None:
    answers = job(
        "trials",
        matrix=as_data(parse(MATRIX, "one")),
        folder=str(tmp_path),
        run="the-claim",
        of_run="the-run",
    )
    started, *trials, ended = answers
    assert (started["sandbox"], ended["status"]) == ("docker", "complete")
    assert started["environment"]["RACEWATCH_TRIAL_IMAGE"] == engine.images.get(image).id
    assert [trial["outcome"] for trial in trials] == ["pass"] * 2
    assert engine.containers.list(all=True, filters={"label": f"{LABEL_RUN}=the-run"}) == []


@pytest.mark.parametrize(
    ("what", "request_", "sentence"),
    [
        ("build", {"build_image": "no-such"}, "no image no-such: .*--build-image"),
        ("trials", {"image": "no-such"}, "no image no-such: .*--image"),
        ("build", {"sandbox": "chroot"}, "unknown 'chroot'; known: process, docker"),
    ],
)
def test_what_a_job_cannot_have_is_one_sentence(
    job: Job, tmp_path: Path, what: str, request_: dict[str, Any], sentence: str
) -> None:
    matrix = as_data(parse(MATRIX, "one"))
    asked = {"build": "stock", "matrix": matrix, "folder": str(tmp_path), "run": "r"}
    (answer,) = job(what, **asked, **request_)
    assert re.search(sentence, answer["message"])
