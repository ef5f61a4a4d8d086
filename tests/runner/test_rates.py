"""Rates: the interval is exact, and a verdict never claims more than the trials support."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.rates import Verdict, at_least, clean_trials, interval, judge, percent

counts = st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@pytest.mark.parametrize(
    ("k", "n", "low", "high"),
    # R: binom.test(k, n)$conf.int
    [
        (0, 10, 0.0, 0.3084971),
        (10, 10, 0.6915029, 1.0),
        (3, 20, 0.03207094, 0.3789268),
        (1, 2, 0.01257912, 0.9874209),
        (50, 1000, 0.03733503, 0.06539049),
    ],
)
def test_the_interval_is_clopper_pearsons(k: int, n: int, low: float, high: float) -> None:
    assert interval(k, n) == pytest.approx((low, high), abs=1e-6)


def test_no_trials_say_nothing() -> None:
    assert interval(0, 0) == (0.0, 1.0)


@given(counts)
def test_the_interval_holds_the_observed_rate(count: tuple[int, int]) -> None:
    k, n = count
    low, high = interval(k, n)
    assert 0 <= low <= k / n <= high <= 1


@given(st.integers(1, 60), st.floats(0.001, 0.999))
def test_the_interval_covers_any_true_rate_as_often_as_it_claims(n: int, rate: float) -> None:
    covered = 0.0
    for k in range(n + 1):
        low, high = interval(k, n)
        if low <= rate <= high:
            covered += math.comb(n, k) * rate**k * (1 - rate) ** (n - k)
    assert covered >= 0.95 - 1e-9


@given(st.integers(0, 200), st.integers(1, 200), st.floats(0.0, 1.0))
def test_tail_probabilities_are_those_of_the_binomial(k: int, n: int, p: float) -> None:
    exact = math.fsum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))
    assert at_least(k, n, p) == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize(("k", "n"), [(-1, 3), (4, 3)])
def test_impossible_counts_are_refused(k: int, n: int) -> None:
    with pytest.raises(ValueError, match="k must be between 0 and n"):
        interval(k, n)


def test_a_million_trials_take_no_time_to_judge() -> None:
    low, high = interval(300, 1_000_000)
    assert low < 0.0003 < high


@pytest.mark.parametrize("bound", [0.5, 0.2, 0.05, 0.01])
def test_clean_trials_is_the_first_number_that_suffices(bound: float) -> None:
    n = clean_trials(bound)
    assert interval(0, n)[1] < bound <= interval(0, n - 1)[1]


def test_twenty_passes_are_not_clean() -> None:
    judged = judge(0, 20, clean_below=0.05)
    assert judged.verdict is Verdict.UNDERSAMPLED
    assert judged.trials_needed == clean_trials(0.05) - 20
    assert judged.text == f"undersampled: {judged.trials_needed} more for clean below 5 %"


def test_enough_passes_are_clean_below_the_bound() -> None:
    assert judge(0, clean_trials(0.05), 0.05).text == "clean below 5 %"


def test_one_failure_races() -> None:
    assert judge(1, 1000, 0.05).verdict is Verdict.RACES


def test_nothing_run_is_not_measured() -> None:
    assert judge(0, 0, 0.05).verdict is Verdict.NOT_MEASURED


@pytest.mark.parametrize(("rate", "text"), [(0, "0 %"), (0.05, "5 %"), (0.3084, "30.8 %")])
def test_rates_read_with_at_most_one_decimal(rate: float, text: str) -> None:
    assert percent(rate) == text
