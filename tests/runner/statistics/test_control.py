"""Control cells: a device is believed only while it tells known-bad from known-good."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.statistics.control import FORECAST, Proof, judge_control
from runner.statistics.counts import Counts

counts = st.integers(0, 60).flatmap(lambda n: st.builds(Counts, st.integers(0, n), st.just(n)))


@pytest.mark.parametrize(
    ("bad", "good", "proof", "text"),
    [
        (
            (6, 6),
            (0, 6),
            Proof.PROVEN,
            "proven: known-bad failed 6 of 6 (52.2 to 100 %), known-good failed 0 of 6",
        ),
        (
            (0, 6),
            (0, 6),
            Proof.UNPROVEN,
            "unproven on this device: known-bad failed 0 of 6 (0 to 47.8 %), under 50 %",
        ),
        (
            (6, 6),
            (1, 6),
            Proof.UNPROVEN,
            "unproven on this device: known-good failed 1 of 6",
        ),
        (
            (0, 6),
            (1, 6),
            Proof.UNPROVEN,
            "unproven on this device: known-good failed 1 of 6, known-bad failed 0 of 6, under "
            "50 %",
        ),
        (
            (2, 2),
            (0, 2),
            Proof.UNKNOWN,
            "not yet proven: known-bad failed 2 of 2, known-good failed 0 of 2; about 4 more of "
            "each to tell",
        ),
    ],
)
def test_what_controls_say(
    bad: tuple[int, int], good: tuple[int, int], proof: Proof, text: str
) -> None:
    verdict = judge_control(Counts(*bad), Counts(*good))
    assert verdict.proof is proof
    assert verdict.text == text


def test_a_device_without_control_trials_is_unknown_and_says_what_it_takes() -> None:
    verdict = judge_control(Counts(), Counts())
    assert verdict.proof is Proof.UNKNOWN
    assert verdict.trials_needed == 6


def test_a_known_bad_rate_at_its_bound_takes_more_trials_than_are_worth_naming() -> None:
    verdict = judge_control(Counts(50, 100), Counts(0, 100))
    assert verdict.proof is Proof.UNKNOWN
    assert verdict.trials_needed == FORECAST
    assert "more than 1000 more" in verdict.text


def test_what_is_wrong_with_a_device_is_told_apart() -> None:
    hides = judge_control(Counts(0, 10), Counts(0, 10))
    assert (hides.hides, hides.fails_alone) == (True, False)
    fails = judge_control(Counts(10, 10), Counts(1, 10))
    assert (fails.hides, fails.fails_alone) == (False, True)


def test_a_collapse_that_stays_above_the_bound_needs_a_bound_that_fits() -> None:
    collapsed = Counts(14, 20)
    assert judge_control(collapsed, Counts(0, 20)).proof is not Proof.UNPROVEN
    assert judge_control(collapsed, Counts(0, 20), known_bad_above=0.97).proof is Proof.UNPROVEN


def test_a_tighter_bound_for_known_good_takes_more_of_its_trials() -> None:
    assert judge_control(Counts(20, 20), Counts(0, 20)).proof is Proof.PROVEN
    tight = judge_control(Counts(20, 20), Counts(0, 20), known_good_below=0.05)
    assert tight.proof is Proof.UNKNOWN


def test_looks_at_a_good_device_after_every_trial_seldom_doubt_it() -> None:
    """Exact, over all paths of a known-bad cell that fails at its bound, 60 trials long."""
    doubted, undoubted = 0.0, {0: 1.0}
    for n in range(1, 61):
        after: dict[int, float] = {}
        for k, chance in undoubted.items():
            after[k] = after.get(k, 0.0) + chance / 2
            after[k + 1] = after.get(k + 1, 0.0) + chance / 2
        hiding = {k for k in after if judge_control(Counts(k, n), Counts(0, n)).hides}
        doubted += sum(after[k] for k in hiding)
        undoubted = {k: chance for k, chance in after.items() if k not in hiding}
    assert 0.005 < doubted <= 0.025


@settings(deadline=None)
@given(counts, counts)
def test_a_verdict_says_what_its_numbers_say(bad: Counts, good: Counts) -> None:
    verdict = judge_control(bad, good)
    assert verdict.fails_alone == (good.k > 0)
    assert (verdict.proof is Proof.UNPROVEN) == (verdict.hides or verdict.fails_alone)
    assert (verdict.trials_needed > 0) == (verdict.proof is Proof.UNKNOWN)


@pytest.mark.parametrize("bounds", [{"known_bad_above": 0.0}, {"known_good_below": 1.0}])
def test_bounds_are_rates(bounds: dict[str, float]) -> None:
    (name,) = bounds
    with pytest.raises(ValueError, match=f"{name} must be between 0 and 1"):
        judge_control(Counts(), Counts(), **bounds)
