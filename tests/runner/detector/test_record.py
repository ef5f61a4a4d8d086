"""A trial's record: it outlives every end, and whatever its bytes are, it can be read."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.detector import record
from runner.detector.record import ForeignCall, Swallow, Swallowed

SEEN = Swallow(
    windows=4,
    own=6,
    foreign=3,
    calls=(Swallowed("cuLaunchKernel", "loader", 2), Swallowed("cuMemcpyHtoDAsync_v2", "x", 1)),
    first=(ForeignCall("cuLaunchKernel", "loader", 1, 0.25),),
)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(record.VARIABLE, str(tmp_path / "record"))
    return tmp_path / "record"


@pytest.mark.parametrize("end", [signal.SIGSEGV, signal.SIGKILL])
def test_a_process_that_is_killed_has_told_what_was_seen(
    probe: ctypes.CDLL, path: Path, end: signal.Signals
) -> None:
    child = os.fork()
    if child == 0:
        windows = probe.probe_windows(probe.probe_record())
        probe.probe_opening(windows, 1)
        probe.probe_opened(windows, 1, 1)
        probe.probe_node(windows, b"cuLaunchKernel")
        loader = threading.Thread(target=probe.probe_node, args=(windows, b"cuMemsetD8Async"))
        loader.start()
        loader.join()
        signal.signal(end, signal.SIG_DFL) if end is signal.SIGSEGV else None
        os.kill(os.getpid(), end)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == end
    seen = record.parse(path.read_bytes())
    assert (seen.windows, seen.own, seen.foreign) == (1, 1, 1)
    assert [one.api for one in seen.calls] == ["cuMemsetD8Async"]


def test_the_thread_that_a_process_began_with_is_main(probe: ctypes.CDLL, path: Path) -> None:
    child = os.fork()
    if child == 0:
        windows = probe.probe_windows(probe.probe_record())
        capturing = threading.Thread(target=probe.probe_opening, args=(windows, 1))
        capturing.start()
        capturing.join()
        probe.probe_node(windows, b"cuLaunchKernel")
        os._exit(0)
    os.waitpid(child, 0)
    assert [one.thread for one in record.parse(path.read_bytes()).calls] == ["main"]


def test_no_variable_no_record(probe: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(record.VARIABLE, raising=False)
    assert probe.probe_record() is None
    monkeypatch.setenv(record.VARIABLE, "")
    assert probe.probe_record() is None


def test_only_one_process_writes_a_trials_record(probe: ctypes.CDLL, path: Path) -> None:
    assert probe.probe_record() is not None
    before = path.read_bytes()
    assert probe.probe_record() is None
    assert path.read_bytes() == before


def test_a_file_that_was_made_for_the_record_is_taken(probe: ctypes.CDLL, path: Path) -> None:
    path.touch()
    assert probe.probe_record() is not None
    assert path.stat().st_size == record.SIZE


def test_no_link_is_followed(
    probe: ctypes.CDLL, path: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path.symlink_to(tmp_path / "elsewhere")
    assert probe.probe_record() is None
    assert "Too many levels of symbolic links" in capfd.readouterr().err
    with pytest.raises(OSError, match="Too many levels"):
        record.refuse(str(path), "reason")
    assert not (tmp_path / "elsewhere").exists()


def test_a_record_that_cannot_be_written_is_said_and_costs_nothing(
    probe: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(record.VARIABLE, "/no/such/folder/record")
    assert probe.probe_record() is None
    assert (
        capfd.readouterr().err == "racewatch: /no/such/folder/record: No such file or directory\n"
    )


def test_a_record_that_was_begun_and_came_to_nothing_says_so(
    probe: ctypes.CDLL, path: Path
) -> None:
    probe.probe_record()
    assert record.parse(path.read_bytes()) == Swallow(reason=record.UNFINISHED)


def test_both_sides_can_say_why_nothing_is_watched(
    probe: ctypes.CDLL, path: Path, tmp_path: Path
) -> None:
    probe.probe_refuse(probe.probe_record(), b"no CUPTI here")
    record.refuse(str(tmp_path / "other"), "a profiler is here\N{EM DASH}already")
    assert record.parse(path.read_bytes()) == Swallow(reason="no CUPTI here")
    said = record.parse((tmp_path / "other").read_bytes())
    assert said == Swallow(reason="a profiler is here?already")
    assert not said.watched


def test_no_record_is_a_reason() -> None:
    assert record.parse(b"").reason == record.NO_RECORD


@given(st.binary(max_size=200).map(lambda data: data * 40))
def test_any_bytes_are_a_reason(data: bytes) -> None:
    assert record.parse(data).reason in {record.NO_RECORD, record.BROKEN}


@given(st.binary(min_size=record.SIZE - 8, max_size=record.SIZE + 8), st.integers(0, 3))
def test_whatever_a_trial_writes_comes_out_bounded(data: bytes, state: int) -> None:
    seen = record.parse(b"RWSWALW1" + state.to_bytes(4, "little") + data[12:])
    assert len(seen.calls) <= 64
    assert len(seen.first) <= 20
    numbers = [seen.windows, seen.own, seen.foreign, *(one.count for one in seen.calls)]
    assert all(0 <= number <= 2**53 for number in numbers)
    texts = [seen.reason, *(text for one in seen.calls for text in (one.api, one.thread))]
    assert all(text.isprintable() or not text for text in texts)
    assert record.from_data(json.loads(json.dumps(asdict(seen)))) == seen


def test_it_is_the_same_from_json() -> None:
    assert record.from_data(json.loads(json.dumps(asdict(SEEN)))) == SEEN


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.pop("own"),
        lambda data: data.update(own=-1),
        lambda data: data.update(own=True),
        lambda data: data.update(foreign=2**60),
        lambda data: data.update(reason=None),
        lambda data: data.update(reason="x" * 5000),
        lambda data: data.update(calls=[{"api": 3, "thread": "x", "count": 1}]),
        lambda data: data.update(calls=data["calls"] * 40),
        lambda data: data.update(first=[{"api": "a", "thread": "b", "window": 1, "ms": "0"}]),
        lambda data: data.update(first=[{"api": "a", "thread": "b", "window": 1, "ms": -1.0}]),
        lambda data: data.update(first=3),
    ],
)
def test_other_data_is_refused(change: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads(json.dumps(asdict(SEEN)))
    change(data)
    with pytest.raises((ValueError, TypeError, KeyError)):
        record.from_data(data)
