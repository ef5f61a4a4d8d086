"""A build's commands: bounded in time and output, their log, and whose fault a failure is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.build_command import BuildCommands, CompilerCache, Workspace, first_error_line
from runner.errors import BuildError, InfrastructureError
from runner.sandbox.process_build import ProcessBuilds
from tests.conftest import Eventually

Commands = Callable[..., BuildCommands]


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    """`commands(time_s=1)`: commands that run in the test's folder."""

    def of(workspace: Workspace | None = None, **limits: Any) -> BuildCommands:
        place = workspace or Workspace(tmp_path, tmp_path)
        return BuildCommands(ProcessBuilds(), place, tmp_path / "log", **limits)

    return of


def test_what_a_command_prints_is_in_the_log_below_it(commands: Commands, tmp_path: Path) -> None:
    with commands() as build:
        build.run(["sh", "-c", "echo out; echo err >&2"], "one")
        build.follow(["echo", "two words"], "two")
    assert (tmp_path / "log").read_text() == (
        "+ sh -c 'echo out; echo err >&2'\nout\nerr\n+ echo 'two words'\ntwo words\n"
    )


def test_what_is_no_utf8_is_kept_as_far_as_it_is(commands: Commands, tmp_path: Path) -> None:
    with commands() as build:
        build.run(["printf", r"a\377\303\244"], "printing")
    assert (tmp_path / "log").read_text(encoding="utf-8").endswith("a\N{REPLACEMENT CHARACTER}ä")


@pytest.mark.parametrize("time_s", [0.0, 0.3])
def test_a_build_that_takes_too_long_is_ended(commands: Commands, time_s: float) -> None:
    late = commands(time_s=time_s)
    says = rf"was not done after {time_s:g} s, which is its limit"
    with late, pytest.raises(InfrastructureError, match=says):
        late.run(["sleep", "1000"], "sleeping")


@pytest.mark.parametrize("limit", ["time", "output"])
def test_a_build_is_ended_with_all_its_processes(
    commands: Commands,
    tmp_path: Path,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
) -> None:
    child = tmp_path / "child"

    class Late(threading.Timer):
        """Ends the build once its child runs, as if it had taken that long."""

        def run(self) -> None:
            eventually(lambda: child.exists() and child.read_text().endswith("\n"), "a child runs")
            self.function()

    if limit == "time":
        monkeypatch.setattr(threading, "Timer", Late)
    build = commands(output_bytes=100)
    prints = "head -c 1000 /dev/zero; " if limit == "output" else ""
    with build, pytest.raises(InfrastructureError, match="which is its limit"):
        build.run(["sh", "-c", f"sleep 1000 & echo $! > {child}; {prints}wait"], "sleeping")
    assert not _lives(child.read_text().strip())


def _lives(pid: str) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_a_build_that_prints_too_much_is_ended(commands: Commands, tmp_path: Path) -> None:
    build = commands(output_bytes=1_000_000)
    with build, pytest.raises(InfrastructureError, match=r"printed more than 1 MB"):
        build.follow(["yes"], "printing")
    assert (tmp_path / "log").stat().st_size < 3_000_000


def test_what_all_commands_print_counts(commands: Commands) -> None:
    build = commands(output_bytes=1000)
    with build:
        build.run(["printf", "%0600d", "0"], "one")
        with pytest.raises(InfrastructureError, match=r"printed more than 0 MB"):
            build.run(["printf", "%0600d", "0"], "two")


def test_a_command_that_is_not_there_is_the_hosts_fault(commands: Commands) -> None:
    with commands() as build, pytest.raises(InfrastructureError, match="no-such did not start"):
        build.run(["no-such"], "compiling")


def test_a_file_that_was_not_made_is_the_sources_fault(commands: Commands, tmp_path: Path) -> None:
    with commands() as build, pytest.raises(BuildError, match=r"did not make library\.so"):
        build.fetch(tmp_path / "library.so")


def test_commands_see_what_the_workspace_says(commands: Commands, tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "tool"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\necho "$NAMED $CCACHE_DIR $CCACHE_READONLY $LC_ALL $(pwd)"\n')
    tool.chmod(0o755)
    cache = CompilerCache(tmp_path / "cache", read_only=True)
    place = Workspace(
        tmp_path, tmp_path, environment={"NAMED": "yes"}, path=(tool.parent,), cache=cache
    )
    with commands(place) as build:
        build.run(["sh", "-c", "tool"], "asking")
    said = (tmp_path / "log").read_text().splitlines()[1]
    assert said == f"yes {tmp_path}/cache 1 C {tmp_path}"


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ("ok\n./a.cpp:1:2: error: no such thing\n", "a.cpp:1:2: error: no such thing"),
        ("collect2: error: ld returned 1 exit status\n", ""),
        ("x.o: undefined reference to `f'\ncollect2: error: ld returned 1 exit status\n",
         "x.o: undefined reference to `f'"),
        ("CMake Error at CMakeLists.txt:3 (find_package): no\n",
         "CMake Error at CMakeLists.txt:3 (find_package): no"),
        ("an error of mine\n", ""),
    ],
)  # fmt: skip
def test_the_first_error_is_the_line_that_says_what_went_wrong(output: str, line: str) -> None:
    assert first_error_line(output) == line
