"""A job's process is believed only in what it says whole, told to end when it shall, and leaves
nothing behind. What it runs here are small programs that misbehave, and the runner's own jobs."""

from __future__ import annotations

import os
import re
import signal
import stat
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from runner.errors import BuildError, InfrastructureError, RefError
from service import jobprocess
from service.jobprocess import JobStopped, answers
from tests.conftest import Eventually

REQUEST = {"do": "test"}
BEGIN = """
import json, os, signal, subprocess, sys, time
request = json.loads(sys.stdin.readline())
def say(**answer): print(json.dumps(answer), flush=True)
"""


def program(code: str) -> list[str]:
    """A job that reads its request, then does this."""
    return [sys.executable, "-c", BEGIN + code]


def said(code: str, request: dict[str, Any] = REQUEST) -> list[dict[str, Any]]:
    """All that a job answers."""
    return list(answers(request, lambda: True, 5.0, program(code)))


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little patience with what does not end."""
    monkeypatch.setattr(jobprocess, "END_S", 0.5)


def lives(pid: int) -> bool:
    """Whether a process runs."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# What it says


def test_answers_come_in_order_and_a_request_of_any_size_arrives() -> None:
    found = said("say(size=len(request['big']))\nsay(n=2)", {"do": "x", "big": "ä" * 300_000})
    assert found == [{"size": 300_000}, {"n": 2}]


def test_an_answer_comes_when_it_is_said_not_when_the_job_ends() -> None:
    job = answers(REQUEST, lambda: True, 5.0, program("say(n=1)\nsys.stdin.read()\nsay(n=2)"))
    assert next(job) == {"n": 1}
    job.close()


@pytest.mark.parametrize(
    ("kind", "raised"),
    [
        ("RefError", RefError),
        ("BuildError", BuildError),
        ("SystemExit", InfrastructureError),
        ("annotations", InfrastructureError),
        ("Nothing", InfrastructureError),
    ],
)
def test_an_error_of_the_jobs_is_raised_as_it_is(kind: str, raised: type[Exception]) -> None:
    with pytest.raises(raised, match=r"^ref 'x' names nothing$"):
        said(f"say(error={kind!r}, message=\"ref 'x' names nothing\")\nsys.exit(2)")


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "ended with signal SIGKILL"),
        ("say(n=1)\nos.kill(os.getpid(), signal.SIGSEGV)", "ended with signal SIGSEGV"),
        ("sys.exit(7)", "ended with status 7"),
        ("pass", "ended with status 0"),
        (
            "sys.stdout.write('{\"n\": 1'); sys.stdout.flush()",
            "said what is no answer: b'{\"n\": 1'",
        ),
        ("print('hello')", r"said what is no answer: b'hello\n'"),
        ("print('[1]')", "said what is no answer"),
        ("sys.stdout.buffer.write(b'\\xff\\xfe\\n')", "said what is no answer"),
    ],
)
def test_a_job_that_ends_without_an_answer_is_the_hosts_fault(code: str, sentence: str) -> None:
    with pytest.raises(
        InfrastructureError, match=re.escape(f"the process of a test job {sentence}")
    ):
        said(code)


def test_a_job_that_never_reads_its_request_is_the_hosts_fault() -> None:
    request = {"do": "test", "big": "x" * 1_000_000}
    with pytest.raises(InfrastructureError, match="ended with status 3"):
        list(answers(request, lambda: True, 5.0, [sys.executable, "-c", "raise SystemExit(3)"]))


def test_an_answer_without_end_is_not_kept(monkeypatch: pytest.MonkeyPatch, soon: None) -> None:
    monkeypatch.setattr(jobprocess, "LINE_BYTES", 1000)
    with pytest.raises(InfrastructureError, match="said what is no answer"):
        said("while True: sys.stdout.write('x' * 10_000)")


# When it shall end


def test_a_job_is_asked_for_and_told_to_end_by_its_input() -> None:
    asked = threading.Event()

    def goes_on() -> bool:
        asked.set()
        return False

    job = answers(REQUEST, goes_on, 0.05, program("say(n=1)\nsys.stdin.read()\nsay(n=2)"))
    assert next(job) == {"n": 1}
    assert next(job) == {"n": 2}
    assert asked.is_set()
    with pytest.raises(JobStopped):
        next(job)


def test_what_a_job_says_after_it_was_told_to_end_is_passed_on() -> None:
    job = answers(REQUEST, lambda: False, 0.05, program("sys.stdin.read()\nsay(n=1)"))
    assert next(job) == {"n": 1}
    with pytest.raises(JobStopped):
        next(job)


def test_a_job_that_does_not_end_when_told_is_killed(soon: None) -> None:
    begun = threading.Event()
    code = "say(pid=os.getpid())\ntime.sleep(600)"
    job = answers(REQUEST, lambda: not begun.is_set(), 0.05, program(code))
    pid = next(job)["pid"]
    begun.set()
    with pytest.raises(JobStopped, match="killed, for it did not end when it was told to"):
        next(job)
    assert not lives(pid)


def test_who_stops_listening_ends_the_job() -> None:
    job = answers(REQUEST, lambda: True, 5.0, program("say(pid=os.getpid())\nsys.stdin.read()"))
    pid = next(job)["pid"]
    job.close()
    assert not lives(pid)


def test_what_a_killed_job_had_started_is_killed_too(soon: None, eventually: Eventually) -> None:
    """Also in a session of its own, as compilers are started."""
    code = (
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "say(pid=child.pid)\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    job = answers(REQUEST, lambda: True, 5.0, program(code))
    pid = next(job)["pid"]
    assert lives(pid)
    with pytest.raises(InfrastructureError, match="SIGKILL"):
        next(job)
    eventually(lambda: not lives(pid), "its child ends")


def test_another_jobs_processes_are_left_alone() -> None:
    other = answers(REQUEST, lambda: True, 5.0, program("say(pid=os.getpid())\nsys.stdin.read()"))
    pid = next(other)["pid"]
    with pytest.raises(InfrastructureError, match="SIGKILL"):
        said("os.kill(os.getpid(), signal.SIGKILL)")
    assert lives(pid)
    other.close()


def test_nobody_waits_for_ever_for_what_cannot_be_killed(
    soon: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL is not sent here: what a dead disk does to it cannot be had in a test."""
    monkeypatch.setattr(jobprocess, "KILL_S", 0.2)
    monkeypatch.setattr("subprocess.Popen.kill", lambda process: None)
    monkeypatch.setattr(jobprocess, "_kill_marked", lambda mark: None)
    job = answers(REQUEST, lambda: True, 5.0, program("say(pid=os.getpid())\ntime.sleep(600)"))
    pid = next(job)["pid"]
    began = time.monotonic()
    with pytest.raises(InfrastructureError, match=f"process {pid} cannot be killed"):
        job.close()
    assert time.monotonic() - began < 10
    os.kill(pid, signal.SIGKILL)


# What it is given

SECRETS = {
    "DATABASE_URL": "postgresql://racewatch:hunter2@db/racewatch",
    "RACEWATCH_DATABASE_URL": "postgresql://racewatch:hunter2@db/racewatch",
    "PGPASSWORD": "hunter2",
    "PGPASSFILE": "/root/.pgpass",
    "RACEWATCH_WEBHOOK_SECRET": "hunter2",
    "RACEWATCH_GITHUB_TOKEN": "hunter2",
    "GITHUB_TOKEN": "hunter2",
    "RACEWATCH_SMTP_URL": "smtp://u:hunter2@mail",
    "RACEWATCH_NOTIFY_URL": "https://hook/hunter2",
    "RACEWATCH_NOTIFY_SECRET": "hunter2",
    "AWS_SECRET_ACCESS_KEY": "hunter2",
    "SOME_API_KEY": "hunter2",
    "npm_config_token": "hunter2",
}


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker may hold in its environment."""
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)


def test_a_job_gets_no_secret(secrets: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "g++")
    monkeypatch.setenv("RACEWATCH_HOME", "/somewhere")
    (given,) = said("say(**os.environ)")
    assert set(given) & set(SECRETS) == set()
    assert "hunter2" not in str(given)
    assert (given["CXX"], given["RACEWATCH_HOME"]) == ("g++", "/somewhere")


def test_a_compiler_of_a_real_build_gets_no_secret(
    secrets: None, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = tmp_path / "environment"
    compiler = tmp_path / "compiler"
    compiler.write_text(f'#!/bin/sh\nenv > {seen}\n[ "$1" = --version ] && echo spy 1.0\nexit 1\n')
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("RACEWATCH_HOME", str(home))
    ask = {"subject": "demo"}
    (found,) = answers({"do": "resolve", **ask, "ref": "race"}, lambda: True, 5.0)
    request = {"do": "build", **ask, "commit": found["commit"], "build": "stock"}
    with pytest.raises(InfrastructureError, match="does not tell its version"):
        list(answers(request, lambda: True, 5.0))
    assert "PATH=" in seen.read_text()
    assert "hunter2" not in seen.read_text()
