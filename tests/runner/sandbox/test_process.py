"""The process sandbox: parents with a pipe to speak on, a log, and an end that is an end."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from runner.errors import InfrastructureError
from runner.sandbox import process
from runner.sandbox.process import ProcessParent, ProcessSandbox
from runner.trial.program import ParentConfig

CONFIG = ParentConfig("demo", "/nowhere", "registered", "0")


def python(folder: Path, code: str) -> str:
    """A Python that does something else than what it is asked for."""
    script = folder / "python"
    script.write_text(f"#!{sys.executable}\nimport os, sys\nEVENTS = int(sys.argv[-1])\n{code}\n")
    script.chmod(0o755)
    return str(script)


def descriptors() -> set[tuple[str, str]]:
    """What this process has open: numbers, and what each stands for."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # of the listing itself
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found


def everything(parent: ProcessParent) -> str:
    """All that it says until it is gone."""
    said = b""
    while data := parent.read():
        said += data
    return said.decode()


def test_a_parent_speaks_on_a_pipe_of_its_own(tmp_path: Path) -> None:
    said = python(tmp_path, "print('log'); os.write(EVENTS, b'event')")
    parent = ProcessSandbox(tmp_path, said).start(CONFIG)
    assert everything(parent) == "event"
    assert parent.last_words() == "log\n"
    parent.close()


def test_a_parent_hears_commands_line_by_line(tmp_path: Path) -> None:
    echo = python(tmp_path, "os.write(EVENTS, sys.stdin.readline().encode())")
    parent = ProcessSandbox(tmp_path, echo).start(CONFIG)
    assert parent.send({"op": "kill", "trial": 1})
    assert everything(parent) == '{"op": "kill", "trial": 1}\n'
    parent.close()


def test_its_environment_is_the_hosts_with_what_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_HOST", "yes")
    names = ["OF_THE_HOST", "ASKED_FOR", "OMP_NUM_THREADS"]
    tell = python(tmp_path, f"os.write(EVENTS, ' '.join(map(os.getenv, {names})).encode())")
    parent = ProcessSandbox(tmp_path, tell, {"ASKED_FOR": "too"}).start(CONFIG)
    assert everything(parent) == "yes too 1"
    parent.close()


def test_a_terminals_interrupt_does_not_reach_it(tmp_path: Path) -> None:
    tell = python(tmp_path, "os.write(EVENTS, str(os.getsid(0) == os.getpid()).encode())")
    parent = ProcessSandbox(tmp_path, tell).start(CONFIG)
    assert everything(parent) == "True"
    parent.close()


def test_what_is_sent_to_one_that_is_gone_is_told(tmp_path: Path) -> None:
    parent = ProcessSandbox(tmp_path, python(tmp_path, "")).start(CONFIG)
    assert everything(parent) == ""
    parent._process.wait()
    assert not parent.send({"op": "kill", "trial": 1})
    parent.close()


def test_closing_waits_until_it_is_gone(tmp_path: Path) -> None:
    parent = ProcessSandbox(tmp_path, python(tmp_path, "sys.stdin.read()")).start(CONFIG)
    parent.close()
    assert parent._process.returncode == 0


def test_one_that_does_not_go_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "CLOSE_S", 0.2)
    deaf = python(tmp_path, "import threading; threading.Event().wait()")
    parent = ProcessSandbox(tmp_path, deaf).start(CONFIG)
    parent.close()
    assert parent._process.returncode == -signal.SIGKILL


def test_closing_leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = descriptors()  # what others had open may be closed meanwhile
    ProcessSandbox(tmp_path, python(tmp_path, "")).start(CONFIG).close()
    assert descriptors() <= before


def test_a_python_that_is_not_there_is_the_hosts_fault(tmp_path: Path) -> None:
    before = descriptors()
    with pytest.raises(InfrastructureError, match="cannot start /nowhere/python: "):
        ProcessSandbox(tmp_path, "/nowhere/python").start(CONFIG)
    assert descriptors() <= before


def test_parents_that_start_at_once_have_a_log_each(tmp_path: Path) -> None:
    sandbox = ProcessSandbox(tmp_path, python(tmp_path, "print(os.getpid())"))
    parents: list[ProcessParent] = []
    threads = [
        threading.Thread(target=lambda: parents.append(sandbox.start(CONFIG))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for parent in parents:
        assert everything(parent) == ""
        assert parent.last_words() == f"{parent._process.pid}\n"
        parent.close()
    assert len(list(tmp_path.glob("parent-*.log"))) == 8
