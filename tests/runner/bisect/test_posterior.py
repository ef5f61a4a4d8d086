"""The posterior: what it must be by direct summation, and what must hold of any trials."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.bisect.posterior import (
    ALWAYS_AFTER,
    GAP,
    NEVER_BEFORE,
    POINTS,
    RATES,
    Posterior,
    Tally,
    credible,
    mean,
    posterior,
)
from runner.bisect.prior import prior

tallies = st.integers(0, 40).flatmap(lambda n: st.integers(0, n).map(lambda k: Tally(k, n)))
observed = st.dictionaries(st.integers(0, 9), tallies, max_size=5)


def summed(weights: list[float], seen: Mapping[int, Tally]) -> list[float]:
    """The posterior by summing over every pair of rates: no change first, then each step."""
    slab = (1 - NEVER_BEFORE) / POINTS
    low = [NEVER_BEFORE, *[slab] * POINTS, 0.0]
    high = [0.0, *[(1 - ALWAYS_AFTER) / POINTS] * POINTS, ALWAYS_AFTER]
    pairs = [
        (i, j, low[i] * high[j]) for i in range(len(RATES)) for j in range(i + GAP, len(RATES))
    ]
    total = sum(weight for _, _, weight in pairs)

    def likely(tally: Tally, rate: float) -> float:
        return math.pow(rate, tally.k) * math.pow(1 - rate, tally.n - tally.k)

    chances = prior(weights)
    found = []
    for step in range(1, len(weights)):
        before = [t for place, t in seen.items() if place < step]
        after = [t for place, t in seen.items() if place >= step]
        found.append(
            chances.steps[step]
            * sum(
                weight
                * math.prod(likely(t, RATES[i]) for t in before)
                * math.prod(likely(t, RATES[j]) for t in after)
                for i, j, weight in pairs
            )
            / total
        )
    either = [0.3, *[0.6 / POINTS] * POINTS, 0.1]
    none = chances.none * sum(
        weight * math.prod(likely(t, rate) for t in seen.values())
        for weight, rate in zip(either, RATES, strict=True)
    )
    evidence = none + sum(found)
    return [none / evidence, *(each / evidence for each in found)]


def test_it_is_what_summing_over_all_rates_gives() -> None:
    seen = {0: Tally(1, 12), 2: Tally(0, 5), 3: Tally(4, 9), 5: Tally(3, 10)}
    weights = [1.0, 1.0, 3.0, 0.5, 2.0, 1.0]
    found = posterior(prior(weights), seen)
    assert [found.none, *found.steps[1:]] == pytest.approx(summed(weights, seen), rel=1e-9)


def test_without_trials_it_is_the_prior() -> None:
    weights = prior([1.0, 2.0, 0.0, 5.0])
    found = posterior(weights, {})
    assert found.none == pytest.approx(weights.none)
    assert found.steps == pytest.approx(weights.steps)


@given(observed)
@settings(max_examples=60, deadline=None)
def test_it_sums_to_one_and_rates_at_each_class_do_too(seen: dict[int, Tally]) -> None:
    found = posterior(prior([1.0] * 10), seen)
    assert found.none + math.fsum(found.steps) == pytest.approx(1)
    for place in range(10):
        assert sum(map(sum, found.rates_at(place))) == pytest.approx(1)


@given(observed, st.integers(0, 9), tallies, tallies)
@settings(max_examples=60, deadline=None)
def test_trials_of_a_class_add_up_whenever_they_came(
    seen: dict[int, Tally], place: int, one: Tally, other: Tally
) -> None:
    together = posterior(prior([1.0] * 10), {**seen, place: one.plus(other)})
    apart = posterior(prior([1.0] * 10), {**seen, place: other.plus(one)})
    assert together == apart


@given(observed)
@settings(max_examples=60, deadline=None)
def test_untested_steps_between_the_same_neighbours_keep_their_prior_odds(
    seen: dict[int, Tally],
) -> None:
    weights = prior([1.0, 1.0, 4.0, 1.0, 2.0, 1.0, 1.0, 3.0, 1.0, 1.0])
    found = posterior(weights, seen)
    for stretch in found.stretches:
        for one in range(stretch.first, stretch.end):
            odds = weights.steps[one] / weights.steps[stretch.first]
            assert found.steps[one] == pytest.approx(odds * found.steps[stretch.first])


def far(found: Posterior) -> int:
    return max(range(len(found.steps)), key=lambda place: found.steps[place])


@pytest.mark.parametrize(
    ("before", "after"), [((0, 60), (18, 60)), ((3, 60), (18, 60)), ((30, 60), (60, 60))]
)
def test_the_step_between_two_rates_stands_out(
    before: tuple[int, int], after: tuple[int, int]
) -> None:
    seen = {0: Tally(*before), 4: Tally(*before), 5: Tally(*after), 9: Tally(*after)}
    found = posterior(prior([1.0] * 10), seen)
    assert far(found) == 5
    assert found.steps[5] > 0.99


def test_a_class_that_nobody_can_measure_stays_eligible() -> None:
    found = posterior(prior([1.0] * 10), {0: Tally(0, 80), 3: Tally(0, 80), 6: Tally(30, 80)})
    assert found.steps[4] == pytest.approx(found.steps[5]) == pytest.approx(found.steps[6])


def test_equal_rates_mean_no_change_and_it_gets_surer_with_trials() -> None:
    few = posterior(prior([1.0] * 10), {0: Tally(2, 40), 9: Tally(2, 40)})
    many = posterior(prior([1.0] * 10), {0: Tally(20, 400), 9: Tally(20, 400)})
    assert few.none < many.none
    assert many.none > 0.99


def test_a_good_end_that_fails_more_is_no_change() -> None:
    found = posterior(prior([1.0] * 10), {0: Tally(40, 80), 9: Tally(0, 80)})
    assert found.none > 0.99


def test_thousands_of_trials_do_not_overflow() -> None:
    found = posterior(
        prior([1.0] * 10), {0: Tally(500, 10_000), 4: Tally(520, 10_000), 9: Tally(3000, 10_000)}
    )
    assert found.none + math.fsum(found.steps) == pytest.approx(1)
    assert found.mass(5, 10) > 0.99


def test_the_rates_are_those_that_were_seen() -> None:
    found = posterior(prior([1.0] * 10), {0: Tally(5, 100), 9: Tally(30, 100)})
    before, after = found.rates(1, 10)
    assert mean(before) == pytest.approx(0.05, abs=0.02)
    assert mean(after) == pytest.approx(0.30, abs=0.03)
    low, high = credible(after)
    assert low < 0.25 < 0.35 < high < 0.45
