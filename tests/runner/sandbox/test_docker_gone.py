"""The engine goes away in the middle of a run or a build: that is never a failure of the commit.

It is an engine of the test's own, so that it can be killed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
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

Needs = Callable[[object, str], None]
Eventually = Callable[[Callable[[], object], str], None]
START_S = 60.0
PRIVATE = "racewatch-test"


class Engine:
    """A Docker engine below a folder, apart from this host's own."""

    def __init__(self, folder: Path) -> None:
        self.host = f"unix://{folder}/docker.sock"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        folder = self._folder
        with (folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    # In a network of its own: without a bridge it would remove the host's docker0.
                    *("unshare", "--net", "--"),
                    *("dockerd", "--host", self.host, "--data-root", str(folder / "data")),
                    *("--exec-root", str(folder / "exec"), "--pidfile", str(folder / "pid")),
                    *("--bridge", "none", "--iptables=false"),
                    # Also where both share the host's containerd.
                    *("--containerd-namespace", PRIVATE),
                    *("--containerd-plugins-namespace", f"{PRIVATE}-plugins"),
                ],
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_S
        while not self._answers():
            assert time.monotonic() < deadline, (folder / "log").read_text()[-2000:]
            time.sleep(0.1)

    def _answers(self) -> bool:
        with closing(self.client()) as client:
            try:
                return bool(client.ping())
            except (docker.errors.DockerException, OSError):
                return False

    def client(self) -> docker.DockerClient:
        return docker.DockerClient(base_url=self.host, version="1.41", timeout=60)

    def kill(self) -> None:
        """As when it crashes: its containers go on for the time being."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        # Its containerd dies with it; where nobody reaps that, its number looks like a living one.
        (self._folder / "exec" / "containerd" / "containerd.pid").unlink()

    def stop(self) -> None:
        """In order, with all its containers and its own containerd."""
        if self._process is not None and self._process.poll() is not None:
            self.start()
        with closing(self.client()) as client:
            for container in client.containers.list(all=True):
                container.remove(force=True)
        assert self._process is not None
        self._process.terminate()
        self._process.wait()
        # What an engine mounts over its folder stays when it is killed.
        mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for place in reversed(mounted):
            if Path(place).is_relative_to(self._folder):
                subprocess.run(["umount", place], check=True)


@pytest.fixture(scope="module")
def gone(
    needs: Needs,
    engine: docker.DockerClient,
    image: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Engine]:
    """An engine of its own, with the image of trials."""
    able = os.getuid() == 0 and shutil.which("dockerd") and shutil.which("unshare")
    needs(able, "dockerd, unshare and root to start an engine with")
    # A socket's path may have 107 bytes.
    folder = tmp_path_factory.mktemp("engine")
    own = Engine(folder)
    own.start()
    try:
        with closing(own.client()) as client:
            client.images.load(engine.images.get(image).save(named=True))
        yield own
    finally:
        own.stop()
        shutil.rmtree(folder)


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
