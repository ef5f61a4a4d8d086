"""Service and worker in one tree of processes, started again when they end, and ended in order."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from sqlmodel import select

from service import up
from service.database import Database
from service.settings import ServiceSettings
from service.tables import Worker, WorkerState
from service.up import Child, Stack
from tests.conftest import Eventually


@pytest.fixture
def settings(db: Database, home: Path) -> ServiceSettings:
    """On a database and a port of the test's own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return ServiceSettings(database_url=db.url, home=home, port=port)


def child(code: str) -> Child:
    """A child that does this in Python."""
    return Child("child", [sys.executable, "-c", code], dict(os.environ))


@pytest.fixture
def sleeper() -> Iterator[Child]:
    one = child("import time; time.sleep(600)")
    yield one
    one.ask_to_end()
    one.wait(30)


def pid_of(one: Child) -> int:
    assert one.process is not None
    return one.process.pid


def test_a_child_is_started_once(sleeper: Child) -> None:
    sleeper.look()
    pid = pid_of(sleeper)
    sleeper.look()
    assert pid_of(sleeper) == pid


def test_a_child_that_ends_is_started_again(
    sleeper: Child, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    sleeper.look()
    pid = pid_of(sleeper)
    os.kill(pid, signal.SIGKILL)

    def again() -> bool:
        sleeper.look()
        return sleeper.process is not None and sleeper.process.pid != pid

    eventually(again, "it is started again")
    assert "child ended (-9), starting it again in 0 s" in caplog.text


def test_a_child_that_ends_at_once_is_started_again_less_and_less_often(
    eventually: Eventually, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(up, "PAUSES_S", (0.0, 0.01, 0.02))
    caplog.set_level(logging.WARNING)
    one = child("raise SystemExit(3)")

    def failed() -> bool:
        one.look()
        return one.failures >= 4

    eventually(failed, "it fails again and again")
    one.wait(30)
    pauses = [said.rpartition(" in ")[2] for said in caplog.messages]
    assert pauses == ["0 s", "0.01 s", "0.02 s", "0.02 s"]


def test_a_child_that_does_not_end_is_killed(tmp_path: Path, eventually: Eventually) -> None:
    deaf = tmp_path / "deaf"
    one = child(
        "import pathlib, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"pathlib.Path({str(deaf)!r}).touch()\ntime.sleep(600)"
    )
    one.look()
    process = one.process
    assert process is not None
    eventually(deaf.exists, "it no longer hears SIGTERM")
    one.ask_to_end()
    one.wait(0.2)
    assert process.returncode == -signal.SIGKILL


def test_children_die_with_who_started_them(tmp_path: Path, eventually: Eventually) -> None:
    code = (
        "import os, sys, time\nfrom service.up import Child\n"
        "one = Child('c', [sys.executable, '-c', 'import time; time.sleep(600)'], os.environ)\n"
        "one.look()\nprint(one.process.pid, flush=True)\ntime.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        below = psutil.Process(int(parent.stdout.readline()))
        eventually(lambda: below.cmdline()[1:2] == ["-c"], "it has begun")
        parent.kill()
    eventually(lambda: not below.is_running(), "its child ends")


def test_the_stack_serves_works_and_ends_in_order(
    db: Database,
    settings: ServiceSettings,
    compiler: str,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Eventually,
) -> None:
    monkeypatch.setenv("CXX", compiler)

    def worker() -> Worker | None:
        with db.session() as session:
            return session.exec(select(Worker)).first()

    def ready() -> bool:
        stack.look()
        try:
            answers = httpx.get(f"{settings.link}/readyz").status_code == 200
        except httpx.TransportError:
            return False
        return answers and worker() is not None

    with Stack(settings, ("--subject", "demo")) as stack:
        eventually(ready, "service and worker are there")
        assert not stack.service_ended
        below = psutil.Process().children(recursive=True)
    assert [one for one in below if one.is_running() and "service.cli" in one.cmdline()] == []
    ended = worker()
    assert ended is not None
    assert ended.state == WorkerState.STOPPED


def test_a_service_that_does_not_stay_up_is_noticed(
    settings: ServiceSettings, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that fails takes the service's place: the real one takes seconds to."""
    monkeypatch.setattr(up, "PAUSES_S", (0.0,))
    stack = Stack(settings, ())
    stack._children = [child("raise SystemExit(2)")]
    assert not stack.service_ended

    def ended() -> bool:
        stack.look()
        return stack.service_ended

    eventually(ended, "it does not stay up")
