"""What a parent and its trials say is checked, since a trial can write anything."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.trial import events
from runner.trial.events import BrokenEvent, Lines, parse

DEVICE = {
    "event": "device",
    "trial": 0,
    "platform": "cuda",
    "name": "a GPU",
    "compute_capability": [9, 0],
    "driver": "580",
}
RESULT = {
    "event": "result",
    "trial": 0,
    "finished": True,
    "error": "",
    "recipe": "bf16",
    "digests": ["00ff"],
    "updates": 3,
    "background_error": "",
    "times": {"device": 0.5, "compile": 1},
    "stale_rows": None,
    "threads_alive": [],
}


@pytest.mark.parametrize(
    "event",
    [
        {"event": "ready", "versions": {"te": "demo"}, "fresh_reason": ""},
        {"event": "unready", "error": "ImportError"},
        {"event": "started", "trial": 0, "pid": 7, "fresh": ""},
        {"event": "versions", "trial": 0, "versions": {"te": "demo"}},
        {"event": "stage", "trial": 0, "stage": "device"},
        DEVICE,
        {"event": "beat", "trial": 0, "updates": 64},
        RESULT,
        {**RESULT, "recipe": ""},
        {**RESULT, "stale_rows": 3, "threads_alive": ["background"]},
        {"event": "exit", "trial": 0, "exit_status": None, "signal": 11},
    ],
)
def test_every_event_is_read_as_it_was_written(event: dict[str, object]) -> None:
    assert parse(json.dumps(event).encode()) == event


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"no JSON",
        b"\xff",
        b"[]",
        b'"exit"',
        b'{"event": "nothing known"}',
        b'{"event": ["exit"]}',
        b"[" * 50_000,
        b'{"event": "beat", "trial": 0, "updates": NaN}',
        b'{"event": "beat", "trial": 0}',
        b'{"event": "beat", "trial": [0], "updates": 1}',
        b'{"event": "beat", "trial": true, "updates": 1}',
        b'{"event": "stage", "trial": 0, "stage": 5}',
        b'{"event": "exit", "trial": 0, "exit_status": "0", "signal": null}',
        b'{"event": "ready", "versions": {"te": 2}, "fresh_reason": ""}',
        json.dumps({**DEVICE, "compute_capability": [9]}).encode(),
        json.dumps({**RESULT, "digests": [1]}).encode(),
        json.dumps({**RESULT, "recipe": "fp3"}).encode(),
        json.dumps({**RESULT, "times": {"device": "long"}}).encode(),
        json.dumps({**RESULT, "threads_alive": 5}).encode(),
    ],
)
def test_anything_else_is_broken(line: bytes) -> None:
    with pytest.raises(BrokenEvent):
        parse(line)


@given(st.binary(max_size=300))
def test_no_bytes_raise_anything_else(line: bytes) -> None:
    with pytest.raises(BrokenEvent):
        parse(line)


@given(st.lists(st.binary(max_size=20).map(lambda b: b.replace(b"\n", b"")), max_size=8), st.data())
def test_lines_come_whole_however_the_pipe_cuts_them(
    lines: list[bytes], data: st.DataObject
) -> None:
    written = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=4)))
    pieces = [written[a:b] for a, b in zip([0, *cuts], [*cuts, len(written)], strict=True)]
    reader = Lines()
    assert [line for piece in pieces for line in reader.of(piece)] == lines


def test_a_line_that_does_not_end_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "LINE_BYTES", 100)
    reader = Lines()
    assert list(reader.of(b"x" * 100)) == []
    with pytest.raises(BrokenEvent, match="more than 100 bytes"):
        list(reader.of(b"x"))
