"""A container is a leftover when, and only when, the runner that made it is certainly gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.sandbox.docker_owner import Owner, _started, is_leftover

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
