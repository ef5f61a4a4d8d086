"""The engine goes away in the middle of a run or a build: that is never a failure of the commit.

It is an engine of the test's own, so that it can be killed.
"""

from __future__ import annotations

import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import docker
import pytest

from runner.build_command import BuildCommands, Workspace
from runner.errors import InfrastructureError
from runner.outcome import Outcome
from runner.result import Event, Fold, TrialFinished
from runner.run import Plan, Run
from runner.sandbox.docker import DockerSandbox
from runner.sandbox.docker_build import DockerBuilds
from runner.sandbox.docker_owner import LABEL_OWNER
from tests.runner.sandbox.engines import Engine, engine_with

Needs = Callable[[object, str], None]
Eventually = Callable[[Callable[[], object], str], None]


@pytest.fixture(scope="module")
def gone(
    needs: Needs,
    engine: docker.DockerClient,
    image: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Engine]:
    """An engine of its own, with the image of trials."""
    with engine_with(engine, image, tmp_path_factory.mktemp("engine"), needs) as own:
        yield own


@pytest.fixture
def reached(gone: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """The engine that this process talks to."""
    monkeypatch.setenv("DOCKER_HOST", gone.host)
    return gone


def test_a_run_whose_engine_goes_away_says_so_and_blames_no_commit(
    reached: Engine, image: str, plan: Callable[..., Plan]
) -> None:
    cell = {"name": "alone", "variant": "stock", "background": False}

    def fold_of(trials: int, on_event: Callable[[Event], None]) -> Fold:
        planned = replace(plan({**cell, "trials": trials}, parallel=2), run=str(uuid.uuid4()))
        sandbox = DockerSandbox.open(
            planned.folder, run=planned.run, device=planned.device, parallel=2, image=image
        )
        fold = Fold()
        for event in Run(planned, sandbox):
            fold.add(event)
            on_event(event)
        return fold

    def kill_after_three(event: Event) -> None:
        if isinstance(event, TrialFinished) and event.index == 3:
            reached.kill()

    fold = fold_of(40, kill_after_three)
    lost = [trial for trial in fold.trials.values() if trial.outcome is not Outcome.PASS]
    assert {trial.outcome for trial in lost} == {Outcome.INFRA_ERROR}
    assert {trial.signature for trial in lost} == {"lost"}
    assert any("no Docker engine answers" in trial.reason for trial in lost)
    assert len(fold.trials) > 40  # what the engine cost was tried again
    (cell_fold,) = fold.cells()
    assert cell_fold.k == 0

    reached.start()
    shutil.rmtree(plan({**cell, "trials": 1}).folder)
    again = fold_of(3, lambda event: None)
    assert {trial.outcome for trial in again.trials.values()} == {Outcome.PASS}
    with closing(reached.client()) as client:
        assert client.containers.list(all=True, filters={"label": LABEL_OWNER}) == []


def test_a_build_whose_engine_goes_away_is_infrastructures_loss(
    reached: Engine, image: str, tmp_path: Path, eventually: Eventually
) -> None:
    builds = DockerBuilds.start(tmp_path, jobs=1, image=image)
    tree, log = tmp_path / "tree", tmp_path / "log"
    tree.mkdir()

    def kill_once_begun() -> None:
        eventually(lambda: log.is_file() and "\nbegun" in log.read_text(), "the build's begin")
        reached.kill()

    killer = threading.Thread(target=kill_once_begun)
    commands = BuildCommands(builds, Workspace(tree, tmp_path / "out", reads=(tree,)), log)
    with commands:
        killer.start()
        with pytest.raises(InfrastructureError, match=r"the Docker engine"):
            commands.follow(["sh", "-c", "echo begun; sleep 100"], "sleeping")
    killer.join()
