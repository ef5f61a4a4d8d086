"""Verdicts: sentences that never claim more than they know."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.bisect.posterior import Tally, posterior
from runner.bisect.prior import prior
from runner.bisect.verdict import likeliest, sure


@pytest.mark.parametrize(
    ("probability", "text"),
    [
        (0.0, "0 %"),
        (0.5, "50 %"),
        (0.999, "99.90 %"),
        (0.99996, "over 99.99 %"),
        (1.0, "over 99.99 %"),
    ],
)
def test_a_probability_in_words(probability: float, text: str) -> None:
    assert sure(probability) == text


@given(st.floats(0, 1))
def test_it_is_never_rounded_up(probability: float) -> None:
    said = float(sure(probability).removeprefix("over ").removesuffix(" %"))
    assert said <= probability * 100 + 1e-9


@given(st.integers(0, 40), st.floats(0.5, 0.999))
def test_the_likeliest_stretch_holds_what_it_should(k: int, confidence: float) -> None:
    found = posterior(prior([1.0] * 12), {0: Tally(0, 40), 5: Tally(k // 2, 40), 11: Tally(k, 40)})
    first, end = likeliest(found, confidence)
    assert 1 <= first < end <= 12
    assert found.mass(first, end) >= confidence * (1 - found.none) - 1e-9
