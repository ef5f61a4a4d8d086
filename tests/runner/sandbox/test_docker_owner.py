"""A container is a leftover when, and only when, the runner that made it is certainly gone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import docker
import pytest
from docker.errors import NotFound
from docker.models.containers import Container
from hypothesis import given
from hypothesis import strategies as st

from runner.sandbox.docker_owner import (
    LABEL_CONTAINER,
    LABEL_OWNER,
    Owner,
    _started,
    abandon,
    is_leftover,
    remove_leftovers,
)

WORDS = st.text("abc0123456789:[]-", min_size=1)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield started
    started.kill()
    started.wait()
    assert started.stdin is not None
    started.stdin.close()


@given(boot=WORDS, namespace=WORDS, pid=st.integers(1), started=st.integers(0))
def test_an_owner_is_read_back_from_its_label(
    boot: str, namespace: str, pid: int, started: int
) -> None:
    owner = Owner(boot, namespace, pid, started)
    assert Owner.parse(str(owner)) == owner


def test_the_containers_of_this_process_are_no_leftovers() -> None:
    here = Owner.current()
    assert not is_leftover(here, running=True, here=here)
    assert not is_leftover(here, running=False, here=here)


def test_a_process_that_was_killed_leaves_leftovers_even_before_it_is_reaped(
    process: subprocess.Popen[bytes],
) -> None:
    here = Owner.current()
    owner = replace(here, pid=process.pid, started=_started(process.pid))
    assert not is_leftover(owner, running=True, here=here)
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie from now on
    assert is_leftover(owner, running=True, here=here)


def test_another_process_with_the_same_id_is_not_the_owner() -> None:
    here = Owner.current()
    assert is_leftover(replace(here, started=here.started - 1), running=True, here=here)


def test_nothing_outlives_a_reboot() -> None:
    here = Owner.current()
    assert is_leftover(replace(here, boot="another"), running=True, here=here)


def test_an_owner_in_another_container_lives_as_long_as_its_container_runs() -> None:
    here = Owner.current()
    there = replace(here, namespace="pid:[1]", pid=here.pid, started=1)
    assert not is_leftover(there, running=True, here=here)
    assert is_leftover(there, running=False, here=here)


def test_an_owner_in_another_container_is_gone_with_it() -> None:
    here = Owner.current()
    there = replace(here, namespace="pid:[1]", pid=here.pid, started=1)
    assert is_leftover(there, running=True, here=here, lives=False)
    assert not is_leftover(there, running=True, here=here, lives=True)


@pytest.fixture
def pair(engine: docker.DockerClient, image: str) -> Iterator[tuple[Container, Container]]:
    """A container with a runner in it, and one that this runner has made."""
    wait = ["sleep", "1000"]
    runner = engine.containers.create(image, wait, network_mode="none")
    runner.start()
    there = replace(Owner.current(), namespace="pid:[1]", started=1)
    labels = {LABEL_OWNER: str(there), LABEL_CONTAINER: str(runner.id)}
    made = engine.containers.create(image, wait, labels=labels, network_mode="none")
    made.start()
    yield runner, made
    for container in (runner, made):
        with contextlib.suppress(NotFound):
            container.remove(force=True)


def there(engine: docker.DockerClient, container: Container) -> bool:
    return container.id in {one.id for one in engine.containers.list(all=True)}


def test_what_a_runner_in_a_container_has_made_lives_as_long_as_that(
    engine: docker.DockerClient, pair: tuple[Container, Container]
) -> None:
    runner, made = pair
    remove_leftovers(engine)
    assert there(engine, made)
    runner.remove(force=True)
    remove_leftovers(engine)
    assert not there(engine, made)


def test_a_runner_whose_container_was_started_anew_has_left_what_it_made(
    engine: docker.DockerClient, pair: tuple[Container, Container]
) -> None:
    runner, made = pair
    runner.restart(timeout=0)
    remove_leftovers(engine)
    assert not there(engine, made)


def test_what_the_engine_did_not_remove_when_asked_is_removed_later(
    engine: docker.DockerClient, image: str
) -> None:
    labels = {LABEL_OWNER: str(Owner.current())}
    made = engine.containers.create(image, ["true"], labels=labels)
    remove_leftovers(engine)
    assert there(engine, made)
    abandon(made)
    remove_leftovers(engine)
    assert not there(engine, made)
