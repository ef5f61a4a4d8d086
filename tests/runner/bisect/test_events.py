"""Events of a bisection: written and read again, and refused where they are something else."""

from __future__ import annotations

import json

import pytest

from runner.bisect.events import Entered, Event, Observation, Reverted, Seen, from_data, to_data
from runner.errors import BisectionError
from tests.runner.bisect.simulated import commit, line


@pytest.mark.parametrize(
    "event",
    [
        Observation("a", k=3, n=16, check=2, build_s=600.0, trial_s=8.5),
        Observation("b", Seen.UNBUILDABLE, build_s=12.0, reason="ffi.h:12: no such type"),
        Observation("c", Seen.INFRASTRUCTURE, reason="no device"),
        Entered(None),
        Entered(line(4)),
        Reverted(commit(3), "key"),
        Reverted(reason="conflicts in a.cpp"),
    ],
)
def test_an_event_survives_json(event: Event) -> None:
    assert from_data(json.loads(json.dumps(to_data(event)))) == event


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"event": "lunch"},
        {"event": "observation", "key": "a", "seen": "maybe"},
        {"event": "observation", "key": "a", "seen": "trials", "k": 5, "n": 2},
        {"event": "observation", "seen": "trials", "colour": "red"},
    ],
)
def test_anything_else_is_refused_in_one_sentence(data: dict[str, object]) -> None:
    with pytest.raises(BisectionError, match="event of a bisection"):
        from_data(data)
