"""Counts: only what trials can give, added up, and grown at the rate seen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.rates import interval
from runner.statistics.counts import Counts, span
from runner.statistics.forecast import smallest

counts = st.integers(0, 400).flatmap(lambda n: st.builds(Counts, st.integers(0, n), st.just(n)))


@pytest.mark.parametrize(("k", "n"), [(-1, 3), (4, 3), (0, -1)])
def test_impossible_counts_are_refused(k: int, n: int) -> None:
    with pytest.raises(ValueError, match=f"k must be between 0 and n, got k={k}, n={n}"):
        Counts(k, n)


def test_counts_add_up() -> None:
    assert Counts(1, 10) + Counts(2, 5) == Counts(3, 15)


def test_nothing_measured_has_no_rate_and_says_so() -> None:
    assert Counts().rate is None
    assert Counts().text == "not measured"
    assert Counts().interval == (0.0, 1.0)


@given(counts)
def test_the_interval_is_the_runners(counted: Counts) -> None:
    assert counted.interval == interval(counted.k, counted.n)


@given(counts, st.integers(0, 2000))
def test_growing_keeps_the_rate_to_the_nearest_trial(counted: Counts, n: int) -> None:
    grown = counted.grown_to(n)
    assert grown.n == n
    assert abs(grown.k - (counted.rate or 0.0) * n) <= 0.5 + 1e-9


@given(counts)
def test_growing_to_the_same_number_changes_nothing(counted: Counts) -> None:
    assert counted.grown_to(counted.n) == counted


def test_an_interval_reads_with_one_unit() -> None:
    assert span(Counts(3, 20).interval) == "3.2 to 37.9 %"


@given(st.integers(0, 5000), st.integers(0, 5000))
def test_a_forecast_is_the_first_number_that_is_enough(first: int, limit: int) -> None:
    assert smallest(lambda n: n >= first, limit) == (first if first <= limit else None)


def test_a_forecast_below_nothing_is_none() -> None:
    assert smallest(lambda n: True, -1) is None
