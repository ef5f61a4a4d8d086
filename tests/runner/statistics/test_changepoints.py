"""Change-points: found where they are, with an honest place, and not invented. Fixed seeds."""

import random
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.statistics.changepoints import ChangePoint, change_points
from runner.statistics.counts import Counts

NOT_RUN = Counts()
commits = st.lists(
    st.integers(0, 12).flatmap(lambda n: st.builds(Counts, st.integers(0, n), st.just(n))),
    max_size=40,
)
steps = st.lists(st.tuples(st.integers(1, 6), st.booleans()), max_size=6).map(
    lambda parts: [Counts(20 * racing, 20) for size, racing in parts for _ in range(size)]
)


def branch(rng: random.Random, rates: Iterable[float], trials: int) -> list[Counts]:
    """Commits with those true rates, each with that many trials."""
    return [Counts(sum(rng.random() < rate for _ in range(trials)), trials) for rate in rates]


def places(found: list[ChangePoint]) -> list[int]:
    return [change.index for change in found]


def test_a_step_from_never_to_always_is_found_exactly() -> None:
    (change,) = change_points([Counts(0, 20)] * 5 + [Counts(20, 20)] * 7)
    assert (change.low, change.index, change.high) == (5, 5, 5)
    assert (change.before, change.after) == (Counts(0, 100), Counts(140, 140))
    assert change.p < 1e-9


def test_a_step_at_the_very_last_commit_is_found() -> None:
    (change,) = change_points([Counts(0, 20)] * 200 + [Counts(20, 20)])
    assert (change.index, change.low, change.high) == (200, 200, 200)
    assert change.rises


def test_a_race_and_its_fix_are_two_changes() -> None:
    race, fix = change_points([Counts(0, 10)] * 300 + [Counts(10, 10)] * 3 + [Counts(0, 10)] * 300)
    assert (race.index, fix.index) == (300, 303)
    assert race.rises
    assert not fix.rises
    assert race.after == fix.before == Counts(30, 30)


def test_a_race_that_comes_and_goes_is_found_each_time() -> None:
    history = ([Counts(0, 10)] * 10 + [Counts(10, 10)] * 10) * 20
    assert places(change_points(history)) == list(range(10, 400, 10))


def test_a_rare_race_that_becomes_less_rare_is_found_near_its_place() -> None:
    rng = random.Random(30)
    (change,) = change_points(branch(rng, [0.05] * 60 + [0.3] * 60, trials=20))
    assert change.low <= 60 <= change.high
    assert change.high - change.low <= 5
    assert change.rises


def test_commits_without_trials_are_gaps_that_may_hold_the_change() -> None:
    history = [Counts(0, 20)] * 5 + [NOT_RUN] * 3 + [Counts(20, 20)] * 5
    (change,) = change_points(history)
    assert (change.low, change.index, change.high) == (5, 8, 8)


def test_gaps_elsewhere_only_move_the_positions() -> None:
    measured = [Counts(0, 20)] * 5 + [Counts(20, 20)] * 5
    with_gaps = [NOT_RUN, NOT_RUN, *measured[:3], NOT_RUN, *measured[3:], NOT_RUN]
    (change,), (moved,) = change_points(measured), change_points(with_gaps)
    assert (moved.low, moved.index, moved.high) == (8, 8, 8)
    assert (moved.before, moved.after) == (change.before, change.after)


@pytest.mark.parametrize(
    "history",
    [
        [],
        [NOT_RUN] * 4,
        [Counts(3, 20)],
        [NOT_RUN, Counts(20, 20), NOT_RUN],
        [Counts(0, 20)] * 50,
        [Counts(20, 20)] * 50,
        [Counts(0, 20), Counts(1, 20)] * 50,
        [Counts(0, 2), Counts(2, 2)],
    ],
)
def test_where_nothing_is_shown_nothing_is_reported(history: list[Counts]) -> None:
    assert change_points(history) == []


@pytest.mark.parametrize(
    ("rate", "commits", "trials"),
    [(0.02, 100, 20), (0.3, 40, 10), (0.5, 40, 10), (0.5, 150, 3), (0.95, 60, 20)],
)
def test_without_a_change_one_is_reported_at_most_as_often_as_stated(
    rate: float, commits: int, trials: int
) -> None:
    rng = random.Random(20)
    wrong = sum(bool(change_points(branch(rng, [rate] * commits, trials))) for _ in range(200))
    assert wrong / 200 <= 0.05


def test_the_stated_error_is_what_makes_the_difference() -> None:
    rng = random.Random(21)
    branches = [branch(rng, [0.2] * 20 + [0.45] * 20, trials=8) for _ in range(100)]
    strict, lenient = (
        sum(bool(change_points(commits, error)) for commits in branches) for error in (1e-4, 0.5)
    )
    assert strict < lenient


def test_the_place_is_held_as_often_as_stated() -> None:
    """Rates and places drawn from the prior: there a posterior's 95 % are 95 % of all cases."""
    rng = random.Random(22)
    held = found = 0
    while found < 300:
        place = rng.randrange(1, 50)
        before, after = (rng.betavariate(0.5, 0.5) for _ in "ba")
        result = change_points(branch(rng, [before] * place + [after] * (50 - place), trials=8))
        if len(result) == 1:
            found += 1
            held += result[0].low <= place <= result[0].high
    assert held / found >= 0.95


@given(steps)
def test_every_step_of_an_always_failing_race_is_found(history: list[Counts]) -> None:
    turns = [i for i in range(1, len(history)) if history[i] != history[i - 1]]
    assert places(change_points(history)) == turns


@settings(deadline=None)
@given(commits, st.sampled_from([0.05, 0.9]))
def test_changes_come_in_order_and_share_out_all_trials(
    history: list[Counts], error: float
) -> None:
    found = change_points(history, error)
    assert places(found) == sorted(set(places(found)))
    for change in found:
        assert 0 < change.low <= change.index <= change.high < len(history)
        assert history[change.index].n
        assert 0 <= change.p <= error
    for change, following in pairwise(found):
        assert change.after == following.before
    if found:
        parts = [change.before for change in found] + [found[-1].after]
        assert sum(parts, start=Counts()) == sum(history, start=Counts())


@settings(deadline=None)
@given(commits)
def test_exchanging_failures_and_passes_changes_no_place(history: list[Counts]) -> None:
    found = change_points(history, 0.5)
    mirrored = change_points([counts.mirrored for counts in history], 0.5)
    assert places(found) == places(mirrored)
    assert all(a.rises != b.rises for a, b in zip(found, mirrored, strict=True))


@pytest.mark.parametrize("chances", [{"error": 0.0}, {"confidence": 1.0}])
def test_error_and_confidence_are_chances(chances: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be between 0 and 1"):
        change_points([], **chances)
