"""One trial, from inside: what it reports of a program, whatever that program does."""

from __future__ import annotations

import hashlib
import json
import os
import select
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.trial import child
from runner.trial.program import DeviceFacts, ParentConfig, TrialSpec

CONFIG = ParentConfig("fake", "", "registered", "0")


class Pipe:
    """The pipe that a supervisor reads."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()

    def events(self) -> list[dict[str, Any]]:
        """What was written so far, a line each."""
        data = b""
        while select.select([self.read_end], [], [], 0)[0]:
            data += os.read(self.read_end, 1 << 16)
        return [json.loads(line) for line in data.splitlines()]

    def close(self) -> None:
        os.close(self.read_end)
        os.close(self.write_end)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    opened = Pipe()
    yield opened
    opened.close()


class FakeProgram:
    """A program whose every step is told what to do."""

    def __init__(
        self,
        outputs: tuple[bytes, ...] = (b"bits", b"bits"),
        error: Exception | None = None,
        stale: int = 0,
        background_error: str = "",
        background_ends: bool = True,
    ) -> None:
        self.outputs = list(outputs)
        self.error = error
        self.stale = stale
        self.ends = background_ends
        self.said = background_error
        self.updates = 0

    def open_device(self) -> DeviceFacts:
        return DeviceFacts("emulated", "a device", (9, 0), "1.2")

    def compile(self, program: str, recipe: str) -> str:
        return "bf16"

    def start_background(self, period_ms: float) -> None:
        self.updates = 7

    def execute(self) -> bytes:
        if self.error:
            raise self.error
        return self.outputs.pop(0)

    def stop_background(self, timeout_s: float) -> bool:
        return self.ends

    def background_updates(self) -> int:
        return self.updates

    def background_error(self) -> str:
        return self.said

    def compare_resident(self) -> int:
        return self.stale


class Harness:
    def __init__(self, program: FakeProgram) -> None:
        self.program = program

    def open_program(self, config: ParentConfig) -> FakeProgram:
        return self.program


def trial(
    pipe: Pipe, program: FakeProgram, background: bool = True
) -> tuple[int, list[dict[str, Any]]]:
    spec = TrialSpec(3, "norm-act-gemm", "auto", background, 0.0)
    status = child.run(spec, CONFIG, Harness(program), child.Events(pipe.write_end, 3))
    for thread in threading.enumerate():
        if thread.name == "heartbeat":
            thread.join()
    return status, pipe.events()


def result_of(events: list[dict[str, Any]]) -> dict[str, Any]:
    return next(event for event in events if event["event"] == "result")


def test_a_trial_reports_each_stage_before_it_enters_it(pipe: Pipe) -> None:
    status, events = trial(pipe, FakeProgram())
    stages = [event["stage"] for event in events if event["event"] == "stage"]
    assert status == 0
    assert stages == [
        "device", "compile", "execute", "execute again", "background", "compare", "done",
    ]  # fmt: skip
    assert {event["trial"] for event in events} == {3}


def test_a_trial_alone_has_no_background_to_wait_for(pipe: Pipe) -> None:
    _, events = trial(pipe, FakeProgram(stale=5), background=False)
    stages = [event["stage"] for event in events if event["event"] == "stage"]
    assert "background" not in stages
    assert result_of(events)["stale_rows"] == 0


def test_the_digest_of_each_execution_is_reported(pipe: Pipe) -> None:
    _, events = trial(pipe, FakeProgram(outputs=(b"one", b"two")))
    digests = [hashlib.sha256(bits).hexdigest() for bits in (b"one", b"two")]
    assert result_of(events)["digests"] == digests


def test_an_exception_is_reported_with_the_state_of_the_background_thread(pipe: Pipe) -> None:
    program = FakeProgram(error=RuntimeError("capture broke"), stale=4)
    status, events = trial(pipe, program)
    result = result_of(events)
    assert status == 1
    assert (result["finished"], result["error"]) == (False, "RuntimeError: capture broke")
    assert (result["stale_rows"], result["threads_alive"]) == (4, [])


def test_a_background_thread_that_does_not_end_is_reported_alive(pipe: Pipe) -> None:
    program = FakeProgram(error=RuntimeError("capture broke"), background_ends=False)
    result = result_of(trial(pipe, program)[1])
    assert (result["threads_alive"], result["stale_rows"]) == (["background"], None)


def test_a_comparison_that_never_returns_does_not_hold_up_the_report(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "GRACE_S", 0.05)
    program = FakeProgram(error=RuntimeError("capture broke"))
    never = threading.Event()
    monkeypatch.setattr(program, "compare_resident", never.wait)
    result = result_of(trial(pipe, program)[1])
    never.set()
    assert result["stale_rows"] is None


def test_an_error_of_the_background_thread_fails_the_trial(pipe: Pipe) -> None:
    status, events = trial(pipe, FakeProgram(background_error="cudaErrorX"))
    result = result_of(events)
    assert status == 1
    assert result["error"] == "BackgroundError: cudaErrorX"
    assert result["background_error"] == "cudaErrorX"


def test_a_background_thread_that_makes_updates_gives_a_sign_of_life(pipe: Pipe) -> None:
    beats: list[int] = []

    class Busy(FakeProgram):
        def background_updates(self) -> int:
            self.updates += 1
            return self.updates

        def stop_background(self, timeout_s: float) -> bool:
            while len(beats) < 2:
                assert select.select([pipe.read_end], [], [], 60)[0], "no sign of life"
                beats.extend(e["updates"] for e in pipe.events() if e["event"] == "beat")
            return True

    status, _ = trial(pipe, Busy())
    assert status == 0
    assert beats == sorted(set(beats))


@given(st.text(max_size=30_000), st.text(max_size=30_000))
def test_an_event_is_one_line_that_a_pipe_takes_whole(error: str, other: str) -> None:
    pipe = Pipe()
    try:
        child.Events(pipe.write_end, 1).send("result", error=error, background_error=other)
        line = os.read(pipe.read_end, 1 << 20)
    finally:
        pipe.close()
    assert len(line) <= select.PIPE_BUF
    assert line.count(b"\n") == 1
    event = json.loads(line)
    assert event["error"].startswith(error[:10])
    assert event["error"].endswith(error[-10:])


def test_events_of_many_processes_on_one_pipe_are_cut_never_torn(pipe: Pipe) -> None:
    processes, each = 8, 60
    started = []
    for index in range(processes):
        started.append(os.fork())
        if started[-1] == 0:
            events = child.Events(pipe.write_end, index)
            for number in range(each):
                events.send("result", number=number, error=str(index) * 20_000)
            os._exit(0)
    lines: list[dict[str, Any]] = []
    pending = b""
    while len(lines) < processes * each:
        assert select.select([pipe.read_end], [], [], 30)[0]
        *whole, pending = (pending + os.read(pipe.read_end, 1 << 16)).split(b"\n")
        lines += map(json.loads, whole)
    for process in started:  # and no child of somebody else's
        assert os.waitpid(process, 0)[1] == 0
    for index in range(processes):
        own = [event for event in lines if event["trial"] == index]
        assert [event["number"] for event in own] == list(range(each))
        assert all(set(event["error"]) == {*str(index), *"\n[...]"} for event in own)
