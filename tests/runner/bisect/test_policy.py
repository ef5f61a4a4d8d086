"""The policy: which trials and builds are worth their time."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.bisect.policy import (
    HOPELESS,
    RATES,
    Costs,
    best_batch,
    best_builds,
    best_tested,
    bits,
    builds_at_once,
    chance_to_build,
    cut_bits,
    information,
)
from runner.bisect.posterior import Posterior, Tally, posterior
from runner.bisect.prior import prior

COSTS = Costs(600.0, 0.125)


def ends_apart(size: int = 150) -> Posterior:
    return posterior(prior([1.0] * size), {0: Tally(0, 64), size - 1: Tally(20, 64)})


def surely(place: int) -> float:
    return 1.0


def at(rate: float, mass: float) -> list[float]:
    nearest = min(range(len(RATES)), key=lambda i: abs(RATES[i] - rate))
    return [mass if i == nearest else 0.0 for i in range(len(RATES))]


def test_trials_that_tell_the_sides_apart_for_sure_are_worth_one_bit() -> None:
    assert information([at(0.0, 0.5), at(1.0, 0.5)], 8) == pytest.approx(1.0)


def test_trials_of_one_rate_tell_nothing() -> None:
    assert information([at(0.3, 0.5), at(0.3, 0.5)], 64) == pytest.approx(0.0, abs=1e-12)


@given(st.floats(0.05, 0.95), st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=40, deadline=None)
def test_more_trials_never_tell_less(share: float, one: float, other: float) -> None:
    groups = [at(one, share), at(other, 1 - share)]
    told = [information(groups, trials) for trials in (8, 16, 32)]
    # But for rounding: once all is told, more trials change the last digits only.
    assert all(more >= less - 1e-12 for less, more in pairwise(told))
    assert told[-1] <= 1 + 1e-9


def test_one_build_halves_and_two_make_thirds() -> None:
    found = ends_apart()
    assert best_builds(found, range(1, 149), [], surely, 1) == [74]
    assert sorted(best_builds(found, range(1, 149), [], surely, 2)) == [50, 99]


def test_eight_builds_leave_no_large_part() -> None:
    chosen = sorted(best_builds(ends_apart(), range(1, 149), [], surely, 8))
    assert len(chosen) == 8
    parts = [b - a for a, b in zip([0, *chosen], [*chosen, 149], strict=True)]
    assert max(parts) <= 21


def test_a_build_goes_where_none_is_under_way() -> None:
    (chosen,) = best_builds(ends_apart(), range(1, 149), [74], surely, 1)
    assert chosen == pytest.approx(37, abs=1) or chosen == pytest.approx(111, abs=1)


def test_a_build_beside_another_must_be_worth_something() -> None:
    found = ends_apart(3)  # one commit between the ends: nothing is left beside it
    assert best_builds(found, [1], [], surely, 8) == [1]
    assert best_builds(found, [1], [1], surely, 8) == []


@given(st.integers(1, 8), st.integers(4, 60), st.floats(0, 2))
@settings(max_examples=40, deadline=None)
def test_no_more_builds_than_builders_and_at_least_one(
    builders: int, size: int, spare: float
) -> None:
    weights = prior([1.0] * size)
    chosen = builds_at_once(
        ends_apart(size), range(1, size - 1), [], surely,
        idle=builders, used=0, target=bits(weights) + spare,
    )  # fmt: skip
    assert 1 <= len(chosen) <= builders
    assert len(set(chosen)) == len(chosen)


def test_what_is_spared_bounds_the_builds_at_a_time() -> None:
    found, every = ends_apart(), range(1, 149)
    target = bits(prior([1.0] * 150))

    def count(target: float | None) -> int:
        return len(builds_at_once(found, every, [], surely, idle=8, used=0, target=target))

    assert (count(target), count(target + 1), count(None)) == (1, 2, 8)


def test_builds_that_will_hardly_come_out_are_made_several_at_a_time() -> None:
    chosen = builds_at_once(
        ends_apart(), range(1, 149), [], lambda place: 0.25, idle=8, used=20, target=8.0
    )
    assert len(chosen) == 4


def test_knowing_every_class_is_worth_what_the_prior_lacks() -> None:
    weights = prior([1.0] * 33)
    assert cut_bits(posterior(weights, {}), range(1, 32)) == pytest.approx(5.0)
    assert bits(weights) == pytest.approx(5.0)


def test_a_long_build_is_followed_by_more_trials_than_none() -> None:
    found = ends_apart()
    alone = best_batch(found, 74, COSTS, limit_s=60)
    built = best_batch(found, 74, COSTS, ahead_s=600, limit_s=60)
    assert alone.trials < built.trials
    assert alone.bits_per_s > built.bits_per_s


def test_no_batch_is_longer_than_its_limit_unless_the_smallest_is() -> None:
    slow = Costs(600.0, 2.0)
    assert best_batch(ends_apart(), 74, slow, ahead_s=600, limit_s=60).trials <= 30
    assert best_batch(ends_apart(), 74, slow, ahead_s=600, limit_s=1).trials == 8


def test_the_doubtful_class_gets_the_trials() -> None:
    found = posterior(
        prior([1.0] * 10), {0: Tally(0, 64), 3: Tally(0, 64), 5: Tally(1, 8), 9: Tally(20, 64)}
    )
    choice = best_tested(found, [0, 3, 5, 9], COSTS, limit_s=60)
    assert choice is not None
    assert choice.place == 5


# What builds


def test_away_from_breaks_nearly_everything_builds() -> None:
    assert chance_to_build(50, [0, 100], {}) > 0.9


def test_next_to_a_break_little_builds_and_further_away_more() -> None:
    near, far = (chance_to_build(place, [0, 100], {50: "x"}) for place in (51, 70))
    assert near < 0.3 < 0.9 < far


def test_a_class_that_builds_ends_a_break() -> None:
    assert chance_to_build(52, [51], {50: "x"}) > 0.9


def test_between_two_builds_with_one_error_nothing_is_tried() -> None:
    assert chance_to_build(60, [0, 100], {50: "x", 70: "x"}) < HOPELESS


def test_between_two_builds_with_different_errors_it_is() -> None:
    assert chance_to_build(51, [0, 100], {50: "x", 52: "y"}) >= HOPELESS


@given(
    st.integers(0, 30), st.sets(st.integers(0, 30)),
    st.dictionaries(st.integers(0, 30), st.sampled_from(["x", "y"])),
)  # fmt: skip
def test_a_chance_is_one(place: int, built: set[int], broken: dict[int, str]) -> None:
    built -= {place, *broken}
    broken.pop(place, None)
    assert 0 <= chance_to_build(place, built, broken) <= 1
