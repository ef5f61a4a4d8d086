"""Verdicts: sentences that never claim more than they know."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.bisect.posterior import Tally, posterior
from runner.bisect.prior import prior
from runner.bisect.settings import Observe
from runner.bisect.verdict import Evidence, likeliest, sure
from tests.runner.bisect.simulated import line


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


@pytest.mark.parametrize(
    ("k", "n", "text"),
    [(0, 168, "0 % (0 of 168; at most "), (168, 168, "100 % (168 of 168; at least ")],
)
def test_a_side_on_which_nothing_ever_differed_has_one_bound(k: int, n: int, text: str) -> None:
    other = Tally(n // 2, n)
    ends = {0: Tally(k, n), 5: other} if not k else {0: other, 5: Tally(k, n)}
    evidence = Evidence(line(6), posterior(prior([1.0] * 6), ends), ends, ())
    verdict = evidence.found(1, 6)
    side = verdict.before if not k else verdict.after
    assert side is not None
    assert side.text.startswith(text)
    assert side.low < side.high
    assert side.text in verdict.text


def test_what_was_observed_is_in_the_sentence() -> None:
    ends = {0: Tally(0, 40), 5: Tally(20, 40)}
    found = posterior(prior([1.0] * 6), ends)
    said = Evidence(line(6), found, ends, (), Observe.SWALLOW).found(1, 6).text
    assert "raised the rate of trials with foreign work from 0 % (0 of 40;" in said
    assert "raised the failure rate from" in Evidence(line(6), found, ends, ()).found(1, 6).text


@pytest.mark.parametrize(
    ("observe", "tally", "text"),
    [
        (Observe.FAILURE, Tally(3, 20), "3 of 20 failed"),
        (Observe.SWALLOW, Tally(3, 20), "3 of 20 had foreign work"),
        (Observe.SWALLOW, Tally(), "not measured"),
    ],
)
def test_trials_in_words(observe: Observe, tally: Tally, text: str) -> None:
    assert observe.did(tally) == text
