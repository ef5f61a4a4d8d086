"""Workers whose builds and trials run in containers: whatever is killed, no container stays, no
trial counts twice, and no commit is blamed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import docker
import psutil
import pytest
from docker.models.containers import Container
from sqlmodel import select

from runner.outcome import Outcome
from runner.sandbox import docker_versions
from runner.sandbox.docker_owner import LABEL_KIND, LABEL_OWNER, LABEL_RUN
from service.claims import FIRST_BATCH
from service.tables import BuildState, CommitBuild, RunState
from tests.conftest import Eventually, Needs
from tests.runner.sandbox.conftest import build_image, engine, image
from tests.runner.sandbox.engines import Engine, engine_with
from tests.service.processes.conftest import Processes, matrix_of

__all__ = ["build_image", "engine", "image"]
TRIALS = 40
CELL = {"name": "long", "variant": "stock", "background": False, "trials": TRIALS}


@pytest.fixture
def in_docker(build_image: str) -> list[str]:
    """Options of a worker; one image has all that the demo's builds and trials need."""
    return ["--sandbox", "docker", "--image", build_image, "--build-image", build_image]


def containers(engine: docker.DockerClient, label: str) -> list[Container]:
    """Those that have a label, running or not."""
    found = engine.containers.list(all=True, filters={"label": label}, ignore_removed=True)
    return list(found)


@pytest.mark.parametrize("whole", [False, True], ids=["alone", "with-all-it-started"])
def test_a_killed_workers_containers_are_gone_and_its_trials_are_taken_over(
    processes: Processes,
    engine: docker.DockerClient,
    in_docker: list[str],
    eventually: Eventually,
    whole: bool,
) -> None:
    processes.service()  # which notices that a worker is lost
    first = processes.worker("first", *in_docker, RACEWATCH_BATCH_S="60")
    too_old = docker_versions.warnings(docker_versions.versions(engine, gpu=False))
    assert all(sentence in processes.logs() for sentence in too_old)
    run = processes.submit(matrix_of({**CELL, "hold_ms": 100}))
    eventually(lambda: len(processes.trials(run)) >= 5, "some trials are stored")
    left = containers(engine, f"{LABEL_RUN}={run}")
    assert {one.labels[LABEL_KIND] for one in left} == {"trial"}

    kill(first, whole)
    before = {trial.id: trial.outcome for trial in processes.trials(run)}
    assert len(before) < TRIALS
    second = processes.worker("second", *in_docker)
    if whole:  # else the job's own process removes them, at its own time
        assert not {one.id for one in left} & {one.id for one in containers(engine, LABEL_OWNER)}
    ended = processes.ends(run)

    assert ended.state == RunState.COMPLETE, processes.logs()
    processes.counted_once(run)
    trials = processes.trials(run)
    assert before.items() <= {trial.id: trial.outcome for trial in trials}.items()
    assert len(trials) == TRIALS
    assert max(Counter((trial.claim_id, trial.index) for trial in trials).values()) == 1
    second.terminate()
    assert second.wait(60) == 0
    assert containers(engine, f"{LABEL_RUN}={run}") == []


def kill(worker: subprocess.Popen[bytes], whole: bool) -> None:
    """Kill a worker; with `whole`, also the processes of its jobs, which could tidy up after it."""
    below = psutil.Process(worker.pid).children(recursive=True) if whole else []
    os.kill(worker.pid, signal.SIGKILL)
    for process in below:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


@pytest.fixture
def own_engine(
    needs: Needs,
    engine: docker.DockerClient,
    build_image: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Engine]:
    """An engine that this test can kill, with the image of builds."""
    with engine_with(engine, build_image, tmp_path_factory.mktemp("engine"), needs) as own:
        yield own


def test_an_engine_that_goes_away_costs_time_and_blames_no_commit(
    processes: Processes,
    own_engine: Engine,
    in_docker: list[str],
    tmp_path: Path,
    eventually: Eventually,
) -> None:
    home = tmp_path / "home"  # where nothing is built yet
    processes.worker(
        "only", *in_docker, "--parallel=2", DOCKER_HOST=own_engine.host,
        RACEWATCH_HOME=str(home), RACEWATCH_BATCH_S="600",
    )  # fmt: skip
    trials = 60
    run = processes.submit(matrix_of({**CELL, "hold_ms": 100, "trials": trials}))

    eventually(lambda: running(own_engine, "build"), "a build begins")
    own_engine.kill()
    eventually(lambda: gave_up(processes), "the build is given back")
    own_engine.start()

    # The second claim has all that the first one left, so it is held for long.
    first = 2 * FIRST_BATCH
    eventually(lambda: len(processes.trials(run)) > first, "some trials are stored")
    own_engine.kill()
    eventually(lambda: "Docker engine" in processes.run(run).reason, "the run waits for it")
    own_engine.start()
    ended = processes.ends(run)

    assert ended.state == RunState.COMPLETE, processes.logs()
    processes.counted_once(run)
    outcomes = Counter(trial.outcome for trial in processes.trials(run))
    assert set(outcomes) == {Outcome.PASS, Outcome.INFRA_ERROR}
    assert outcomes[Outcome.PASS] == trials
    with closing(own_engine.client()) as client:
        assert containers(client, LABEL_OWNER) == []


def running(engine: Engine, kind: str) -> bool:
    """Whether a container of that kind runs on an engine."""
    with closing(engine.client()) as client:
        return bool(client.containers.list(filters={"label": f"{LABEL_KIND}={kind}"}))


def gave_up(processes: Processes) -> bool:
    """Whether an attempt at the build has ended because of the engine."""
    with processes.database.session() as session:
        made = session.exec(select(CommitBuild)).all()
    return any(one.state == BuildState.WAITING and "Docker engine" in one.reason for one in made)
