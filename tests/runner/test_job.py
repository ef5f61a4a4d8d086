"""A worker's job in a process of its own: one request in, answers out, gone when nobody listens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from runner import demo_repo, result
from runner import matrix as matrices
from runner.outcome import Outcome
from runner.result import RunEnded, RunStarted, TrialFinished
from tests.conftest import Eventually

DEMO = {"subject": "demo"}
CELL = {"name": "c", "variant": "stock", "background": False, "trials": 2}


@pytest.fixture
def environment(home: Path, compiler: str) -> dict[str, str]:
    return {**os.environ, "RACEWATCH_HOME": str(home), "CXX": compiler}


@contextmanager
def job(environment: dict[str, str], **request: Any) -> Iterator[subprocess.Popen[str]]:
    """A job that has got its request."""
    with subprocess.Popen(
        [sys.executable, "-m", "runner.job"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps({**DEMO, **request}) + "\n")
        process.stdin.flush()
        try:
            yield process
        finally:
            process.kill()


def answers(environment: dict[str, str], status: int = 0, **request: Any) -> list[dict[str, Any]]:
    """All answers of a job, which ends by itself with that exit status."""
    with job(environment, **request) as process:
        assert process.stdout is not None
        found = [json.loads(line) for line in process.stdout]
        assert process.wait(30) == status
    return found


def resolved(environment: dict[str, str], ref: str = "race", **more: Any) -> dict[str, Any]:
    (found,) = answers(environment, do="resolve", ref=ref, **more)
    return found


def trials(environment: dict[str, str], folder: Path, *cells: Any, **more: Any) -> dict[str, Any]:
    """A request for trials."""
    matrix = matrices.from_data({"name": "m", "cells": list(cells)})
    return {
        "do": "trials",
        "commit": resolved(environment)["commit"],
        "matrix": matrices.as_data(matrix),
        "folder": str(folder),
        "run": "1b4e28ba-2fa1-11d2-883f-0016d3cca427",
        **more,
    }


def test_a_ref_is_a_commit_with_its_base_and_the_branches_it_may_be_on(
    environment: dict[str, str],
) -> None:
    found = resolved(environment, branches=["main", "gone", "release_v*"])
    assert found["commit"]["sha"]
    assert found["base"]["sha"] == resolved(environment, "race~1")["commit"]["sha"]
    assert found["toolchain"] == "host compiler"
    assert list(found["branches"]) == ["main"]
    shas = [commit["sha"] for commit in found["branches"]["main"]]
    assert shas.index(found["commit"]["sha"]) < shas.index(found["base"]["sha"])


def test_a_pull_request_is_what_it_was_when_it_was_asked_for(environment: dict[str, str]) -> None:
    head = resolved(environment, "pull/7")
    older = resolved(environment, "pull/7", sha=head["base"]["sha"])
    assert older["commit"]["sha"] == head["base"]["sha"]
    assert older["commit"]["ref"] == "pull/7"


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        ({"do": "resolve", "ref": "no-such-branch"}, "RefError"),
        ({"do": "resolve", "ref": "main", "sha": "0" * 40}, "RefError"),
        ({"do": "resolve", "subject": "nothing"}, "SubjectError"),
        ({"do": "history", "ref": "gone"}, "RefError"),
    ],
)
def test_what_is_not_there_is_an_error_with_a_sentence(
    environment: dict[str, str], request_: dict[str, Any], kind: str
) -> None:
    (error,) = answers(environment, status=2, **request_)
    assert error["error"] == kind
    assert len(error["message"]) > 10


def test_a_folder_that_cannot_be_used_is_the_hosts_fault(
    environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "home").write_text("a file")
    broken = {**environment, "RACEWATCH_HOME": str(tmp_path / "home")}
    (error,) = answers(broken, status=3, do="resolve", ref="main")
    assert error["error"] == "InfrastructureError"
    assert str(tmp_path / "home") in error["message"]


def test_a_history_is_newest_first_and_begins_after_its_older_end(
    environment: dict[str, str],
) -> None:
    (found,) = answers(environment, do="history", ref="fix", since="race")
    assert found["head"]["sha"] == found["history"][0]["sha"]
    assert found["since"]["sha"] not in {commit["sha"] for commit in found["history"]}
    (whole,) = answers(environment, do="history", ref="fix")
    assert whole["since"] is None
    assert len(whole["history"]) > len(found["history"])


def test_a_range_between_commits_that_no_branch_has_is_refused(
    environment: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "repository"
    demo_repo.create(folder)
    named = {
        ref: subprocess.run(
            ["git", "-C", folder, "rev-parse", ref], capture_output=True, text=True, check=True
        ).stdout.strip()
        for ref in ("refs/pull/7/head", "before")
    }
    proposed = named["refs/pull/7/head"]

    def searched(**more: Any) -> list[dict[str, Any]]:
        asked = {"good": named["before"], "bad": proposed, "build": "stock", **more}
        return answers(environment, 2 if "own" not in asked else 0, do="range", **asked)

    (refused,) = searched(repository=str(folder))
    assert f"bad: commit {proposed} is on no branch or tag of the repository" in str(refused)
    for spelled in (proposed.upper(), proposed[:12], f"x-1-g{proposed[:12]}"):
        (refused,) = searched(repository=str(folder), bad=spelled)
        assert f"bad: commit {spelled} is on no branch or tag" in str(refused)
    (found,) = searched(repository=str(folder), own=[proposed])
    assert found["range"]["bad"]["sha"] == proposed


def test_a_forks_commit_is_not_trusted_however_its_hash_is_written(
    environment: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "repository"
    demo_repo.create(folder)
    proposed = subprocess.run(
        ["git", "-C", folder, "rev-parse", "refs/pull/7/head"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    asked = {"do": "resolve", "repository": str(folder)}
    for spelled in (proposed.upper(), proposed[:6], f"x-1-g{proposed[:12]}", f"{proposed}^0"):
        (refused,) = answers(environment, 2, **asked, ref=spelled, trusted=True)
        assert refused["message"].startswith(f"commit {spelled} is on no branch or tag of the")
        (found,) = answers(environment, **asked, ref=spelled, trusted=False)
        assert found["commit"]["sha"] == proposed
    for ref in ("main", "race", "pull/7"):
        (found,) = answers(environment, **asked, ref=ref, trusted=True)
        assert found["commit"]["sha"]


def test_a_host_tells_its_device_and_how_many_trials_it_runs(environment: dict[str, str]) -> None:
    (found,) = answers(environment, do="describe", devices=["0", "1"], parallel=3)
    assert (found["queue"], found["parallel"]) == ("emulated", 6)
    assert found["device"]["ids"] == ["0", "1"]
    (builds_only,) = answers(environment, do="describe", trials=False)
    assert builds_only["reason"] == "it runs no trials"


def test_a_build_answers_with_its_key(environment: dict[str, str]) -> None:
    commit = resolved(environment)["commit"]
    (found,) = answers(environment, do="build", commit=commit, build="stock")
    assert found["build"]["key"]
    assert found["build"]["outcome"] is None


@pytest.mark.parametrize("ref", ["refs/heads/later", "refs/pull/9/head"])
def test_a_commit_that_another_host_found_out_is_fetched(
    environment: dict[str, str], tmp_path: Path, ref: str
) -> None:
    folder = tmp_path / "repository"
    demo_repo.create(folder)
    mirrored = {"repository": f"file://localhost{folder}"}
    (known,) = answers(environment, do="resolve", ref="race", **mirrored)
    (before,) = answers(environment, do="build", commit=known["commit"], build="stock", **mirrored)
    later = subprocess.run(
        ["git", "-C", folder, "-c", "user.name=A", "-c", "user.email=a@b", "commit-tree",
         "race^{tree}", "-p", "race", "-m", "Later"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    subprocess.run(["git", "-C", folder, "update-ref", ref, later], check=True)
    commit = {**known["commit"], "sha": later, "ref": later}
    (found,) = answers(environment, do="build", commit=commit, build="stock", **mirrored)
    assert found["build"]["key"] == before["build"]["key"]


def test_a_revert_that_another_host_made_is_made_again(
    environment: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "repository"
    demo_repo.create(folder)
    mirrored = {"repository": f"file://localhost{folder}"}
    first, second = ({**environment, "RACEWATCH_HOME": str(tmp_path / one)} for one in "12")
    (known,) = answers(first, do="resolve", ref="race", **mirrored)
    ends = {"culprit": known["commit"], "head": known["commit"]}
    (reverted,) = answers(first, do="revert", build="stock", **ends, **mirrored)
    commit = reverted["commit"]
    told = {name: commit[name] for name in ("sha", "ref", "title")}
    (found,) = answers(second, do="resolve", **told, **mirrored)
    assert found["commit"]["sha"] == commit["sha"]
    (built,) = answers(environment, do="build", commit=commit, build="stock", **mirrored)
    assert built["build"]["outcome"] is None


@pytest.mark.parametrize("mirrored", [True, False])
def test_a_commit_that_is_gone_is_an_error_with_a_sentence(
    environment: dict[str, str], tmp_path: Path, mirrored: bool
) -> None:
    folder = tmp_path / "repository"
    demo_repo.create(folder)
    url = f"file://localhost{folder}" if mirrored else str(folder)
    gone = {"sha": "e" * 40, "ref": "main", "title": "Gone"}
    (error,) = answers(environment, 2, do="build", commit=gone, build="stock", repository=url)
    assert error["error"] == "RefError"
    assert error["message"].startswith(f"commit eeeeeeeeeeee is not in {url}: was it removed")


def test_a_commit_that_does_not_build_is_an_answer(environment: dict[str, str]) -> None:
    commit = resolved(environment, "broken")["commit"]
    (found,) = answers(environment, do="build", commit=commit, build="stock")
    assert found["build"]["outcome"] == "build_error"
    assert found["build"]["log"]


def test_trials_are_answered_as_they_end(environment: dict[str, str], tmp_path: Path) -> None:
    request = trials(environment, tmp_path, CELL)
    events = [result.from_data(answer) for answer in answers(environment, **request)]
    assert isinstance(events[0], RunStarted)
    assert isinstance(events[-1], RunEnded)
    assert events[-1].status == "complete"
    ended = [event for event in events if isinstance(event, TrialFinished)]
    assert [(trial.cell, trial.outcome) for trial in ended] == [("c", Outcome.PASS)] * 2
    assert {event.run for event in events} == {request["run"]}
    assert (tmp_path / request["run"] / ended[0].log).is_file()


def test_another_hosts_build_is_not_run(environment: dict[str, str], tmp_path: Path) -> None:
    request = trials(environment, tmp_path, CELL, keys={"stock": "f" * 64})
    (error,) = answers(environment, status=3, **request)
    assert error["error"] == "InfrastructureError"
    assert "the run has ffffffffffff: hosts that share runs need the same" in error["message"]


def test_a_run_without_a_folder_for_its_logs_is_the_hosts_fault(
    environment: dict[str, str], tmp_path: Path
) -> None:
    request = trials(environment, tmp_path, CELL)
    tmp_path.joinpath(request["run"]).write_text("a file in its place")
    (error,) = answers(environment, status=3, **request)
    assert error["error"] == "InfrastructureError"
    assert "no folder for the run's logs" in error["message"]


def test_who_wants_no_more_gets_what_ended_and_that_it_was_interrupted(
    environment: dict[str, str], tmp_path: Path
) -> None:
    slow = {**CELL, "trials": 40, "hold_ms": 100, "name": "slow"}
    with job(environment, **trials(environment, tmp_path, slow)) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        first = result.from_data(json.loads(process.stdout.readline()))
        process.stdin.close()
        events = [first, *(result.from_data(json.loads(line)) for line in process.stdout)]
        assert process.wait(30) == 0
    assert isinstance(events[-1], RunEnded)
    assert (events[-1].status, events[-1].reason) == ("interrupted", "stopped by SIGTERM")
    assert len(events) < 40


def test_nothing_is_left_of_a_job_whose_worker_is_gone(
    environment: dict[str, str], tmp_path: Path, eventually: Eventually
) -> None:
    slow = {**CELL, "trials": 40, "hold_ms": 100, "name": "slow"}
    with job(environment, **trials(environment, tmp_path, slow)) as process:
        assert process.stdout is not None
        process.stdout.readline()
        below = psutil.Process(process.pid).children(recursive=True)
        assert below
        process.kill()
        eventually(lambda: not any(map(_lives, below)), "its trials end")


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_what_compilers_print_is_no_answer(environment: dict[str, str], tmp_path: Path) -> None:
    loud = tmp_path / "loud"
    loud.write_text(f'#!/bin/sh\necho loud\nexec {environment["CXX"]} "$@"\n')
    loud.chmod(0o755)
    commit = resolved(environment, "broken")["commit"]
    request = {"do": "build", "commit": commit, "build": "stock"}
    assert [set(one) for one in answers({**environment, "CXX": str(loud)}, **request)] == [
        {"build"}
    ]
