"""The parent of trials: a process that forks one child per trial, told what to do line by line."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.sandbox.process import ProcessParent, ProcessSandbox
from runner.trial import parent as parent_module
from runner.trial.program import ParentConfig, TrialSpec

Config = Callable[..., ParentConfig]
Spec = Callable[..., TrialSpec]
WAIT_S = 30.0
HANG = {"EMULATION_BACKGROUND": "wait"}


class Talk:
    """A conversation with one parent."""

    def __init__(self, handle: ProcessParent) -> None:
        self.handle = handle
        self.seen: list[dict[str, Any]] = []
        self.pending = b""

    def start(self, spec: TrialSpec) -> None:
        assert self.handle.send({"op": "start", "spec": vars(spec)})

    def until(self, kind: str, trial: int | None = None) -> dict[str, Any]:
        """The first event of that kind (and trial), waited for."""
        while True:
            for event in self.seen:
                if event["event"] == kind and (trial is None or event["trial"] == trial):
                    return event
            ready = select.select([self.handle.fileno()], [], [], WAIT_S)[0]
            assert ready, f"no {kind} in {WAIT_S} s: {self.seen}, {self.handle.last_words()}"
            data = self.handle.read()
            assert data, f"gone before {kind}: {self.seen}, {self.handle.last_words()}"
            *lines, self.pending = (self.pending + data).split(b"\n")
            self.seen += map(json.loads, lines)

    def until_stage(self, stage: str, trial: int = 0) -> None:
        while not any(e.get("stage") == stage and e["trial"] == trial for e in self.seen):
            assert select.select([self.handle.fileno()], [], [], WAIT_S)[0]
            *lines, self.pending = (self.pending + self.handle.read()).split(b"\n")
            self.seen += map(json.loads, lines)


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Callable[..., Talk]]:
    opened: list[Talk] = []

    def start(config: ParentConfig, python: str = sys.executable, **environment: str) -> Talk:
        opened.append(Talk(ProcessSandbox(tmp_path, python, environment).start(config)))
        return opened[-1]

    yield start
    for one in opened:
        one.handle.close()


def alive(pid: int) -> bool:
    """Whether a process is there and not just waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def await_death(pid: int) -> None:
    """Returns once the process is gone; fails if it stays."""
    try:
        waiting = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([waiting], [], [], WAIT_S)[0], f"{pid} is still alive"
    finally:
        os.close(waiting)


def test_a_parent_says_that_it_is_ready_and_safe_to_fork(
    talk: Callable[..., Talk], config: Config
) -> None:
    ready = talk(config()).until("ready")
    assert ready["fresh_reason"] == ""
    assert ready["versions"] == {"python": sys.version.split()[0], "te": "demo"}


def test_a_parent_that_cannot_import_its_subject_says_why(
    talk: Callable[..., Talk], config: Config
) -> None:
    broken = ParentConfig("demo", "/nowhere", "registered", "0")
    assert "/nowhere" in talk(broken).until("unready")["error"]


def test_a_trial_is_a_process_of_its_own_that_runs_to_its_end(
    talk: Callable[..., Talk], config: Config, spec: Spec
) -> None:
    one = talk(config())
    one.until("ready")
    one.start(spec(0))
    assert one.until("exit", 0)["exit_status"] == 0
    assert one.until("started", 0)["fresh"] == ""
    assert one.until("result", 0)["finished"]


def test_a_crash_of_one_trial_leaves_its_sibling_alone(
    talk: Callable[..., Talk], config: Config, spec: Spec
) -> None:
    one = talk(config())
    one.until("ready")
    one.start(spec(0, background=True, **HANG))
    one.until_stage("execute", 0)
    one.start(spec(1, background=True, EMULATION_BACKGROUND="record"))
    assert one.until("exit", 1)["signal"] == signal.SIGSEGV
    assert alive(one.until("started", 0)["pid"])
    one.start(spec(2))
    assert one.until("exit", 2)["exit_status"] == 0


def test_what_a_trial_sets_in_its_environment_ends_with_it(
    talk: Callable[..., Talk], config: Config, spec: Spec
) -> None:
    one = talk(config())
    one.until("ready")
    one.start(spec(0, background=True, EMULATION_BACKGROUND="no such work"))
    assert "no such work" in one.until("result", 0)["error"]
    one.start(spec(1, background=True, EMULATION_BACKGROUND="copy"))
    assert "no such work" not in one.until("result", 1)["error"]


def test_a_trial_writes_to_its_own_log(
    talk: Callable[..., Talk], config: Config, spec: Spec
) -> None:
    one = talk(config())
    one.until("ready")
    one.start(spec(0, background=True, EMULATION_BACKGROUND="record"))
    one.until("exit", 0)
    log = Path(spec(0).log).read_text()
    assert "Segmentation fault" in log
    assert "Segmentation fault" not in one.handle.last_words()


def test_a_trial_whose_log_cannot_be_written_says_so(
    talk: Callable[..., Talk], config: Config, spec: Spec, tmp_path: Path
) -> None:
    one = talk(config())
    one.until("ready")
    unwritable = TrialSpec(**{**vars(spec(0)), "log": str(tmp_path / "no folder" / "log")})
    one.start(unwritable)
    assert "no folder" in one.until("result", 0)["error"]
    assert one.until("exit", 0)["exit_status"] == 1


def test_a_trial_is_killed_with_what_it_started(
    talk: Callable[..., Talk], config: Config, spec: Spec
) -> None:
    one = talk(config())
    one.until("ready")
    one.start(spec(0, background=True, **HANG))
    one.until_stage("execute")
    assert os.getpgid(one.until("started")["pid"]) == one.until("started")["pid"]
    one.handle.send({"op": "kill", "trial": 0})
    assert one.until("exit", 0)["signal"] == signal.SIGKILL


def test_the_end_of_its_input_ends_a_parent_and_every_trial(
    talk: Callable[..., Talk], config: Config, spec: Spec
) -> None:
    one = talk(config())
    one.until("ready")
    one.start(spec(0, background=True, **HANG))
    one.until_stage("execute")
    pid = one.until("started")["pid"]
    one.handle._process.stdin.close()  # type: ignore[union-attr]
    assert one.handle._process.wait(WAIT_S) == 0
    # Not soon: when the parent is gone, they are.
    assert not alive(pid)


def test_trials_die_with_a_parent_that_is_killed(
    talk: Callable[..., Talk], config: Config, spec: Spec
) -> None:
    one = talk(config())
    one.until("ready")
    one.start(spec(0, background=True, **HANG))
    one.until_stage("execute")
    one.handle._process.kill()
    await_death(one.until("started")["pid"])


@pytest.mark.parametrize("outcome", ["passes", "fails"])
def test_a_fresh_interpreter_runs_the_same_trial(
    talk: Callable[..., Talk], config: Config, spec: Spec, outcome: str
) -> None:
    one = talk(config(fresh=True))
    assert one.until("ready")["fresh_reason"] == "asked for"
    background = outcome == "fails"
    one.start(spec(0, background=background, EMULATION_BACKGROUND="synchronize"))
    assert one.until("exit", 0)["exit_status"] == int(background)
    assert one.until("started", 0)["fresh"] == "asked for"
    assert one.until("versions", 0)["versions"] == {"te": "demo"}


def test_a_fresh_interpreter_that_cannot_import_says_why(
    talk: Callable[..., Talk], spec: Spec
) -> None:
    one = talk(ParentConfig("demo", "/nowhere", "registered", "0", fresh=True))
    one.until("ready")
    one.start(spec(0))
    assert "/nowhere" in one.until("result", 0)["error"]
    assert one.until("exit", 0)["exit_status"] == 1


def wrapper(folder: Path, before: str) -> str:
    """A Python that runs some code before the module that it is asked for."""
    script = folder / "wrapped-python"
    code = f"{before}; import runpy, sys; del sys.argv[:2]; "
    code += "runpy.run_module('runner.trial.parent', run_name='__main__')"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{code}" "$@"\n')
    script.chmod(0o755)
    return str(script)


def test_a_parent_with_a_second_thread_does_not_fork_and_says_so(
    talk: Callable[..., Talk], config: Config, spec: Spec, tmp_path: Path
) -> None:
    thread = (
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    )
    one = talk(config(), wrapper(tmp_path, thread))
    assert one.until("ready")["fresh_reason"] == "the parent has 2 threads"
    one.start(spec(0))
    assert one.until("started", 0)["fresh"] == "the parent has 2 threads"
    assert one.until("exit", 0)["exit_status"] == 0


class Process:
    """A process as /proc shows it."""

    def __init__(self, folder: Path, threads: int = 1) -> None:
        self.folder = folder
        (folder / "fd").mkdir(parents=True)
        for number in range(threads):
            (folder / "task" / str(number)).mkdir(parents=True)

    def opens(self, *targets: str) -> Path:
        for number, target in enumerate(targets):
            (self.folder / "fd" / str(number)).symlink_to(target)
        return self.folder


def test_an_open_gpu_speaks_against_a_fork(tmp_path: Path) -> None:
    process = Process(tmp_path / "p").opens("/dev/null", "pipe:[1]", "/dev/nvidia0")
    assert parent_module.fork_hazard(process) == "the parent holds /dev/nvidia0 open"


def test_the_unified_memory_device_counts_as_an_open_gpu(tmp_path: Path) -> None:
    process = Process(tmp_path / "p").opens("/dev/nvidia-uvm")
    assert parent_module.fork_hazard(process) == "the parent holds /dev/nvidia-uvm open"


def test_the_control_device_alone_does_not_speak_against_a_fork(tmp_path: Path) -> None:
    process = Process(tmp_path / "p").opens("/dev/null", "/dev/nvidiactl")
    assert parent_module.fork_hazard(process) == ""


def test_this_process_has_what_its_own_proc_says() -> None:
    code = "from runner.trial.parent import fork_hazard; print(repr(fork_hazard()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "''\n"
