"""Stopping keeps its stated error although it looks after every trial; exactly, not about.

The chance that a rule ever says something is summed over all binomial paths, so no simulation's
noise is between the claim and the test; one simulation checks the sum itself.
"""

import random
from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.rates import clean_trials, interval
from runner.statistics.sequential import Action, Stopping, confidence_sequence

counts = st.integers(0, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
errors = st.sampled_from([0.01, 0.05, 0.2])


def chance_ever(says: Callable[[int, int], bool], rate: float, trials: int) -> float:
    """Chance that `says(k, n)` holds at some n up to `trials`, with a look after each trial."""
    silent = {0: 1.0}
    for n in range(1, trials + 1):
        after: dict[int, float] = {}
        for k, chance in silent.items():
            after[k] = after.get(k, 0.0) + chance * (1 - rate)
            after[k + 1] = after.get(k + 1, 0.0) + chance * rate
        # What is below 1e-12 together cannot make up a visible part of the answer.
        silent = {k: c for k, c in after.items() if c > 1e-15 and not says(k, n)}
    return 1 - sum(silent.values())


@cache
def most_failures_below(bound: float, n: int, fixed: bool) -> int:
    """Largest k whose interval still ends below the bound, -1 where none does; grows with n."""
    k = most_failures_below(bound, n - 1, fixed) if n > 1 else -1
    limits = interval if fixed else confidence_sequence
    while k < n and limits(k + 1, n)[1] < bound:
        k += 1
    return k


@given(counts, errors)
def test_the_sequence_holds_the_rate_seen(count: tuple[int, int], error: float) -> None:
    k, n = count
    low, high = confidence_sequence(k, n, error)
    assert 0 <= low <= (k / n if n else 0.5) <= high <= 1


@given(counts, errors)
def test_exchanging_failures_and_passes_mirrors_it(count: tuple[int, int], error: float) -> None:
    k, n = count
    low, high = confidence_sequence(k, n, error)
    assert confidence_sequence(n - k, n, error) == pytest.approx((1 - high, 1 - low), abs=1e-12)


@given(counts)
def test_one_failure_more_moves_both_ends_up(count: tuple[int, int]) -> None:
    k, n = count
    (low, high), (more_low, more_high) = (
        confidence_sequence(k, n + 1),
        confidence_sequence(k + 1, n + 1),
    )
    assert low <= more_low
    assert high <= more_high


@given(counts)
def test_a_smaller_error_makes_it_wider(count: tuple[int, int]) -> None:
    low, high = confidence_sequence(*count, error=0.05)
    wider_low, wider_high = confidence_sequence(*count, error=0.01)
    assert wider_low <= low
    assert high <= wider_high


@given(counts)
def test_looking_at_any_time_has_a_price(count: tuple[int, int]) -> None:
    low, high = confidence_sequence(*count)
    fixed_low, fixed_high = interval(*count)
    assert low <= fixed_low + 1e-12
    assert fixed_high <= high + 1e-12


def test_without_trials_nothing_is_known() -> None:
    assert confidence_sequence(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize("error", [0.0, 1.0, -0.1])
def test_an_error_is_a_chance(error: float) -> None:
    with pytest.raises(ValueError, match="error must be between 0 and 1"):
        confidence_sequence(1, 2, error)


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.5, 0.95, 1.0])
def test_all_looks_together_leave_out_the_rate_at_most_as_often_as_stated(rate: float) -> None:
    def leaves_out(k: int, n: int) -> bool:
        low, high = confidence_sequence(k, n)
        return not low <= rate <= high

    assert chance_ever(leaves_out, rate, 200) <= 0.05


@pytest.mark.parametrize("bound", [0.05, 0.2])
def test_a_rate_at_the_bound_ends_below_it_at_most_as_often_as_stated(bound: float) -> None:
    chance = chance_ever(lambda k, n: k <= most_failures_below(bound, n, False), bound, 400)
    assert 0.005 < chance <= 0.025


def test_looking_again_and_again_at_a_fixed_interval_breaks_its_error() -> None:
    """Clopper-Pearson's upper end is wrong in at most 2.5 % of all cases, at one look."""
    chance = chance_ever(lambda k, n: k <= most_failures_below(0.05, n, True), 0.05, 300)
    assert chance > 2 * 0.025


def test_a_worse_rate_ends_below_the_bound_less_often_still() -> None:
    at, above = (
        chance_ever(lambda k, n: k <= most_failures_below(0.05, n, False), rate, 200)
        for rate in (0.05, 0.06)
    )
    assert above < at


def test_the_rule_itself_keeps_its_error_in_a_simulation() -> None:
    """Fixed seed; the exact chance is 1.8 %, from which 2,000 cells stray by under 1 %."""
    stopping = Stopping(clean_below=0.2, max_trials=60)
    decide = cache(lambda k, n: stopping.decide(k, n).action)
    rng = random.Random(3863)
    ended: list[Action] = []
    for _ in range(2000):
        k = n = 0
        while decide(k, n) is Action.CONTINUE:
            k, n = k + (rng.random() < 0.2), n + 1
        ended.append(decide(k, n))
    below = ended.count(Action.STOP_CLEAN) + ended.count(Action.STOP_RARE)
    exact = chance_ever(lambda k, n: k <= most_failures_below(0.2, n, False), 0.2, 60)
    assert below / 2000 == pytest.approx(exact, abs=0.01)
    assert below / 2000 <= 0.025
    assert ended.count(Action.STOP_RACES) / 2000 <= 0.025


def test_passes_alone_stop_as_clean_little_later_than_with_a_fixed_number() -> None:
    stopping = Stopping(clean_below=0.05, max_trials=1000)
    first = next(n for n in range(1000) if stopping.decide(0, n).stop)
    assert stopping.decide(0, first).action is Action.STOP_CLEAN
    assert clean_trials(0.05) <= first <= 1.1 * clean_trials(0.05)


def test_a_race_that_always_fails_stops_after_six_trials() -> None:
    stopping = Stopping(clean_below=0.05, max_trials=1000)
    assert [stopping.decide(n, n).stop for n in range(1, 7)] == [False] * 5 + [True]
    assert stopping.decide(6, 6).action is Action.STOP_RACES


def test_where_the_width_does_not_matter_two_failures_are_enough() -> None:
    assert Stopping(clean_below=0.05, width=1, max_trials=9).decide(2, 2).stop


def test_a_failure_is_never_called_clean_however_rare() -> None:
    decision = Stopping(clean_below=0.05, max_trials=10_000).decide(1, 1000)
    assert decision.action is Action.STOP_RARE
    assert decision.reason.startswith("races below 5 %: 1 of 1000 failed")


def test_what_the_trials_do_not_decide_ends_at_the_limit() -> None:
    decision = Stopping(clean_below=0.05, max_trials=40).decide(2, 40)
    assert decision.action is Action.STOP_LIMIT
    assert decision.reason.startswith("undecided after 40 trials, the most it gets: 2 of 40 failed")


def test_a_higher_bound_for_racing_is_kept() -> None:
    strict = Stopping(clean_below=0.05, races_above=0.6, width=1, max_trials=100)
    assert not strict.decide(6, 6).stop
    assert strict.decide(10, 10).action is Action.STOP_RACES


@settings(deadline=None)
@given(counts, st.sampled_from([0.05, 0.2]))
def test_the_forecast_holds_if_the_rate_stays(count: tuple[int, int], bound: float) -> None:
    k, n = count
    stopping = Stopping(clean_below=bound, max_trials=500)
    decision = stopping.decide(k, n)
    if decision.stop:
        assert decision.trials_needed == 0
        return
    more = decision.trials_needed
    assert 1 <= more <= 500 - n
    later = n + more
    grown = (2 * k * later + n) // (2 * n) if n else 0
    assert stopping.decide(grown, later).stop


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"clean_below": 0.0, "max_trials": 9}, "clean_below must be between 0 and 1, got 0.0"),
        ({"clean_below": 0.1, "error": 1.0, "max_trials": 9}, "error must be between 0 and 1"),
        ({"clean_below": 0.1, "races_above": 2, "max_trials": 9}, "races_above must be between"),
        ({"clean_below": 0.1, "width": 0, "max_trials": 9}, "width must be above 0 and at most 1"),
        ({"clean_below": 0.1, "max_trials": 0}, "max_trials must be at least 1, got 0"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Stopping(**arguments)  # type: ignore[arg-type]
