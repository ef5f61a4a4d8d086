"""The prior: weights favour, none excludes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.bisect.prior import FLOOR, NO_CHANGE, prior

weights = st.lists(st.floats(0, 1e6), min_size=2, max_size=40)


@given(weights)
def test_it_sums_to_one_and_no_step_is_below_the_floor(given_weights: list[float]) -> None:
    found = prior(given_weights)
    assert found.none + math.fsum(found.steps) == pytest.approx(1)
    assert found.steps[0] == 0
    even = (1 - NO_CHANGE) / (len(given_weights) - 1)
    assert min(found.steps[1:]) >= FLOOR * even * (1 - 1e-9)


def test_a_heavier_step_is_likelier() -> None:
    found = prior([1.0, 4.0, 1.0, 0.5])
    assert found.steps[1] > found.steps[2] > found.steps[3] > 0


def test_weights_below_zero_count_as_none() -> None:
    assert prior([1.0, -5.0, 1.0]).steps == prior([1.0, 0.0, 1.0]).steps


def test_one_class_is_no_range() -> None:
    with pytest.raises(ValueError, match="at least two classes, got 1"):
        prior([1.0])
