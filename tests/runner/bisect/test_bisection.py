"""Bisections from start to verdict, on made-up ranges whose truth is known."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.bisect.bisection import HICCUPS, RETRIES, Bisection, Pace, Probe, Stage
from runner.bisect.events import Observation, Reverted, Seen, from_data, to_data
from runner.bisect.policy import Costs
from runner.bisect.settings import Settings
from runner.bisect.verdict import VerdictKind
from runner.bisect.verification import CheckKind, CheckState
from runner.errors import BisectionError
from tests.runner.bisect.simulated import (
    BUILD_S,
    TRIAL_S,
    Truth,
    carry_out,
    commit,
    higher,
    line,
)

COSTS = Settings(costs=Costs(BUILD_S, TRIAL_S))


@pytest.mark.parametrize("culprit", [1, 7, 39])
@pytest.mark.parametrize(("before", "after"), [(0.0, 1.0), (0.0, 0.3), (0.05, 0.3), (0.2, 0.8)])
def test_the_culprit_is_found_and_checked(culprit: int, before: float, after: float) -> None:
    searched = line(40)
    found = carry_out(searched, Truth.of(searched, culprit, before, after), COSTS)
    assert found.verdict.kind is VerdictKind.CULPRIT
    assert found.verdict.commits == (commit(culprit),)
    assert found.verdict.probability >= 0.99
    assert [check.kind for check in found.state.checks][-2:] == [
        CheckKind.NEIGHBOURS,
        CheckKind.REVERT,
    ]
    assert found.state.spent.builds <= 9


def test_both_rates_lie_in_their_intervals_about_as_often_as_said() -> None:
    searched = line(6)
    held = 0
    for seed in range(30):
        truth = replace(Truth.of(searched, 3, 0.05, 0.3), seed=seed)
        verdict = carry_out(searched, truth, COSTS).verdict
        held += verdict.before.low <= 0.05 <= verdict.before.high
        held += verdict.after.low <= 0.3 <= verdict.after.high
    assert held >= 52  # 57 of 60 is what 95 % means


def test_what_fixed_it_is_found_by_going_back_in_time() -> None:
    searched = line(20, forward=False)
    verdict = carry_out(searched, Truth.of(searched, 8, 0.0, 0.3), COSTS).verdict
    assert verdict.commits == (commit(7),)
    assert verdict.fixed
    assert "lowered the failure rate from" in verdict.text


def test_idle_builders_are_used_up_to_what_may_be_spared() -> None:
    searched = line(150)
    truth = Truth.of(searched, 60, 0.0, 0.3)
    alone = carry_out(searched, truth, COSTS)
    spared = carry_out(searched, replace(truth), COSTS, builders=8)
    every = carry_out(searched, replace(truth), replace(COSTS, spare=None), builders=8)

    def rounds(found) -> int:  # type: ignore[no-untyped-def]
        return sum(any(not p.built for p in each.probes) for each in found.decisions)

    assert rounds(every) < rounds(spared) < rounds(alone)
    assert alone.state.spent.builds < spared.state.spent.builds < every.state.spent.builds
    assert {each.verdict.commits for each in (alone, spared, every)} == {(commit(60),)}


# Ends


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.5, 1.0])
def test_ends_that_do_not_separate_are_said_to(rate: float) -> None:
    searched = line(20)
    found = carry_out(searched, Truth.of(searched, None, rate, rate), COSTS)
    assert found.verdict.kind is VerdictKind.NO_CHANGE
    assert "the ends do not separate" in found.verdict.text
    assert f"{found.verdict.before.tally.text} failed" in found.verdict.text
    assert found.state.spent.builds <= 5


def test_ends_that_do_not_separate_come_with_both_counts_and_rates() -> None:
    searched = line(20)
    said = carry_out(searched, Truth.of(searched, None, 0.5, 0.5), COSTS).verdict
    good, bad = said.before.tally, said.after.tally
    assert f"after {good.n} and {bad.n} trials" in said.text
    for tally in (good, bad):
        assert f"{tally.text} failed ({100 * tally.k / tally.n:.1f} %)" in said.text


def test_a_check_says_what_is_fresh_only_once_it_is() -> None:
    searched = line(20)
    found = carry_out(searched, Truth.of(searched, 8, 0.0, 0.2), COSTS)
    said = [each.text for each in found.decisions if each.text.startswith("check 1")]
    assert said[0] == "check 1, neighbours open: fresh trials of both sides"
    assert not any("not measured" in text for text in said)


def test_exchanged_ends_are_said_to_be() -> None:
    searched = line(20)
    verdict = carry_out(searched, Truth.of(searched, 8, 0.9, 0.0), COSTS).verdict
    assert verdict.kind is VerdictKind.NO_CHANGE
    assert "exchange the ends" in verdict.text


def test_an_end_that_does_not_build_is_named() -> None:
    searched = line(20)
    truth = replace(Truth.of(searched, 8, 0.0, 0.3), broken={"0": "no such header"})
    verdict = carry_out(searched, truth, COSTS).verdict
    assert verdict.kind is VerdictKind.NOT_MEASURED
    assert "the good end" in verdict.text
    assert "no such header" in verdict.text


def test_where_the_ends_diverge_their_merge_base_is_tested_first() -> None:
    searched = replace(line(20), base=12)
    first = carry_out(searched, Truth.of(searched, 8, 0.0, 0.3), COSTS).decisions[0]
    assert {probe.key for probe in first.probes} == {"0", "12", "19"}


def test_trials_that_are_there_cost_nothing() -> None:
    searched = line(150)
    free = [
        Observation("0", k=0, n=100), Observation("149", k=30, n=100),
        Observation("70", k=0, n=100), Observation("80", k=30, n=100),
    ]  # fmt: skip
    state = Bisection.start(searched, higher, COSTS, free)
    assert state.spent.trials == 0
    assert state.posterior.mass(71, 81) > 0.98
    (probe,) = state.next().probes
    assert 71 <= int(probe.key) <= 79


def test_free_trials_alone_do_not_pass_a_check() -> None:
    searched = line(3)
    free = [
        Observation("0", k=0, n=200), Observation("1", k=0, n=200), Observation("2", k=90, n=200),
    ]  # fmt: skip
    state = Bisection.start(searched, higher, COSTS, free)
    assert state.stage is Stage.CHECK
    assert {probe.key for probe in state.next().probes} == {"1", "2"}


# What cannot be measured


def test_a_stretch_that_does_not_build_is_named_when_the_culprit_may_be_in_it() -> None:
    searched = line(40)
    truth = replace(
        Truth.of(searched, 20, 0.0, 0.3), broken={str(i): "error" for i in range(17, 24)}
    )
    found = carry_out(searched, truth, COSTS)
    assert found.verdict.kind is VerdictKind.AMONG
    assert found.verdict.commits == tuple(commit(i) for i in range(17, 25))
    assert "nothing can be measured" in found.verdict.text
    assert found.state.spent.builds < 16


def test_a_stretch_elsewhere_does_not_matter() -> None:
    searched = line(40)
    truth = replace(
        Truth.of(searched, 20, 0.0, 0.3), broken={str(i): "error" for i in range(5, 12)}
    )
    assert carry_out(searched, truth, COSTS).verdict.commits == (commit(20),)


def test_nothing_between_the_ends_builds() -> None:
    searched = line(9)
    truth = replace(Truth.of(searched, 4, 0.0, 0.3), broken={str(i): "e" for i in range(1, 8)})
    verdict = carry_out(searched, truth, COSTS).verdict
    assert verdict.kind is VerdictKind.AMONG
    assert len(verdict.commits) == 8
    assert verdict.text.startswith("one of 8 commits, ")
    assert "between which nothing can be measured, raised the failure rate from" in verdict.text


def test_infrastructure_errors_are_tried_again_and_count_for_nothing() -> None:
    searched = line(20)
    truth = replace(Truth.of(searched, 8, 0.0, 0.3), hiccups={"0": 2, "9": 1})
    found = carry_out(searched, truth, COSTS)
    assert found.verdict.commits == (commit(8),)
    assert not found.state.broken


def test_a_class_that_the_host_never_manages_is_passed_over() -> None:
    searched = line(20)
    truth = replace(Truth.of(searched, 8, 0.0, 0.3), hiccups={"9": 99, "10": 99})
    found = carry_out(searched, truth, COSTS)
    assert found.verdict.commits == (commit(8),)
    assert found.state.hiccups.get("9", 0) in (0, HICCUPS)


# Checks


def test_a_check_that_fails_goes_back_twice_and_then_it_is_not_sure() -> None:
    searched = line(20)
    state = Bisection.start(searched, lambda one, other: 1.0, replace(COSTS, check_trials=64))
    chance = random.Random(1)
    while (decision := state.next()).verdict is None:
        for probe in decision.probes:
            rate = 0.6 if int(probe.key) >= 8 else 0.0
            k = sum(chance.random() < rate for _ in range(probe.trials))
            state = state.observe(
                Observation(probe.key, k=k, n=probe.trials, check=probe.check, trial_s=1.0)
            )
    assert [check.state for check in state.checks] == [CheckState.FAILED] * (RETRIES + 1)
    assert decision.verdict.kind is VerdictKind.NOT_SURE
    assert f"{RETRIES + 1} checks failed" in decision.verdict.text
    assert commit(8) in decision.verdict.commits


def test_a_wrong_suspect_loses_its_check_and_the_search_goes_on() -> None:
    searched = line(4)
    lucky = [
        Observation("0", k=0, n=60), Observation("1", k=0, n=12), Observation("2", k=30, n=60),
        Observation("3", k=30, n=60),
    ]  # fmt: skip
    state = Bisection.start(searched, higher, COSTS, lucky)
    assert state.stage is Stage.CHECK
    number = state.next().probes[0].check
    for key in ("1", "2"):  # the parent fails as often as the child
        state = state.observe(Observation(key, k=32, n=64, check=number, trial_s=8.0))
    assert state.checks[0].state is CheckState.FAILED
    assert state.checks[-1].low.key == "0"


def test_a_revert_that_takes_the_change_away_is_told() -> None:
    searched = line(20)
    reverted = Reverted(commit("r"), "r")
    truth = replace(Truth.of(searched, 8, 0.0, 0.3), reverted=(reverted, 0.0))
    found = carry_out(searched, truth, COSTS)
    assert found.verdict.kind is VerdictKind.CULPRIT
    assert "reverted on the head" in found.verdict.text
    last = found.state.checks[-1]
    assert (last.low.key, last.high.key) == ("r", "19")
    assert last.state is CheckState.PASSED


def test_a_revert_that_changes_nothing_ends_in_doubt() -> None:
    searched = line(20)
    reverted = Reverted(commit("r"), "r")
    truth = replace(Truth.of(searched, 8, 0.0, 0.5), reverted=(reverted, 0.5))
    found = carry_out(searched, truth, replace(COSTS, check_trials=64))
    assert found.verdict.kind is VerdictKind.NOT_SURE
    assert "made no difference" in found.verdict.text
    assert found.state.failures == RETRIES + 1


def test_a_revert_that_plainly_changes_nothing_is_seen_early() -> None:
    searched = line(20, forward=False)
    truth = replace(Truth.of(searched, 8, 0.0, 1.0), reverted=(Reverted(commit("r"), "r"), 0.0))
    found = carry_out(searched, truth, COSTS)
    assert found.verdict.kind is VerdictKind.NOT_SURE
    assert found.verdict.commits == (commit(7),)
    assert found.state.spent.trials < 400


def test_a_revert_that_is_not_clean_is_said_and_the_culprit_stands() -> None:
    searched = line(20)
    reverted = Reverted(reason="7 does not revert cleanly: conflicts in a.cpp")
    truth = replace(Truth.of(searched, 8, 0.0, 0.3), reverted=(reverted, 0.0))
    verdict = carry_out(searched, truth, COSTS).verdict
    assert verdict.kind is VerdictKind.CULPRIT
    assert "not reverted on the head: 7 does not revert cleanly" in verdict.text


def test_a_revert_that_gives_the_parent_again_is_not_tried_twice() -> None:
    searched = line(20)
    truth = replace(Truth.of(searched, 19, 0.0, 0.3), reverted=(Reverted(commit(18), "18"), 0.0))
    found = carry_out(searched, truth, COSTS)
    assert found.verdict.commits == (commit(19),)
    assert found.state.checks[-1].state is CheckState.SKIPPED


# Merges


def test_a_merge_is_gone_into() -> None:
    searched, inside = line(20, merges={8: "tip"}), line(6, prefix="b")
    inside = replace(inside, classes=(*inside.classes[:-1], replace(inside.classes[-1], key="8")))
    truth = replace(Truth.of(searched, 8, 0.0, 0.3), inside=inside)
    truth.bad |= {"b3", "b4"}
    found = carry_out(searched, truth, COSTS)
    assert found.verdict.commits == (commit("b3"),)
    assert len(found.state.levels) == 2


def test_a_merge_whose_branch_shows_nothing_is_the_culprit_itself() -> None:
    searched, inside = line(20, merges={8: "tip"}), line(6, prefix="b")
    truth = replace(Truth.of(searched, 8, 0.0, 0.3), inside=inside)  # all of it is good
    found = carry_out(searched, truth, COSTS)
    assert found.verdict.kind is VerdictKind.CULPRIT
    assert found.verdict.commits == (commit(8),)


def test_a_merge_of_one_build_is_the_culprit_itself() -> None:
    searched = line(20, merges={8: "tip"})
    assert carry_out(searched, Truth.of(searched, 8, 0.0, 0.3), COSTS).verdict.commits == (
        commit(8),
    )


def test_the_search_inside_a_merge_may_have_to_give_up() -> None:
    searched, inside = line(20, merges={8: "tip"}), line(6, prefix="b")
    truth = replace(Truth.of(searched, 8, 0.0, 0.3), inside=inside, broken={"b0": "error"})
    verdict = carry_out(searched, truth, COSTS).verdict
    assert verdict.kind is VerdictKind.CULPRIT
    assert verdict.commits == (commit(8),)


# Ends of it all


def test_a_spent_budget_gives_an_honest_range() -> None:
    searched = line(150)
    settings = replace(COSTS, budget_s=3 * BUILD_S)
    verdict = carry_out(searched, Truth.of(searched, 60, 0.0, 0.3), settings).verdict
    assert verdict.kind is VerdictKind.NOT_SURE
    assert "budget" in verdict.text
    assert commit(60) in verdict.commits
    assert 2 <= len(verdict.commits) < 149


def test_what_was_checked_stands_when_the_budget_is_spent() -> None:
    searched = line(3)
    state = Bisection.start(searched, higher, replace(COSTS, budget_s=1e6))
    truth = Truth.of(searched, 1, 0.0, 1.0)
    while state.stage is not Stage.REVERT:
        for probe in state.next().probes:
            state = state.observe(truth.event(probe))
    verdict = state.next(elapsed_s=2e6).verdict
    assert verdict is not None
    assert verdict.kind is VerdictKind.CULPRIT
    assert "the budget of 1000000 s is spent" in verdict.text


def test_a_cancelled_bisection_tells_what_it_knows() -> None:
    verdict = Bisection.start(line(20), higher, COSTS).stopped("cancelled by Ada").verdict
    assert verdict is not None
    assert verdict.text.startswith("not sure, cancelled by Ada: one of 19 commits")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"confidence": 0.4}, "confidence must be between 0.5 and 1, got 0.4"),
        ({"budget_s": 0.0}, "budget_s must be above 0, got 0"),
        ({"spare": -1.0}, "spare must be 0 or more, got -1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, float], sentence: str) -> None:
    with pytest.raises(BisectionError, match=sentence):
        Settings(**changes)  # type: ignore[arg-type]


# Replaying


@given(st.integers(0, 10_000), st.integers(1, 29), st.sampled_from([1, 3, 8]))
@settings(max_examples=12, deadline=None)
def test_stored_events_give_the_same_state_and_the_same_next_step(
    seed: int, culprit: int, builders: int
) -> None:
    searched = line(30)
    truth = replace(Truth.of(searched, culprit, 0.0, 0.4), seed=seed)
    truth.broken = {"11": "error", "12": "error"}
    found = carry_out(searched, truth, COSTS, builders)
    stored = [from_data(to_data(event)) for event in found.events]
    state = Bisection.start(searched, higher, COSTS, stored)
    assert state == found.state
    assert state.next(builders) == found.decisions[-1]


@given(st.integers(0, 10_000), st.integers(1, 59))
@settings(max_examples=25, deadline=None)
def test_whoever_is_named_is_the_culprit(seed: int, culprit: int) -> None:
    chance = random.Random(seed)
    searched = line(60)
    before, after = chance.choice([(0.0, 1.0), (0.0, 0.2), (0.05, 0.4), (0.3, 0.8)])
    truth = replace(Truth.of(searched, culprit, before, after), seed=seed)
    verdict = carry_out(searched, truth, COSTS, chance.choice([1, 4])).verdict
    assert verdict.kind is VerdictKind.CULPRIT
    assert verdict.commits == (commit(culprit),)


def test_probes_under_way_are_not_asked_for_again() -> None:
    searched = line(150)
    ends = [Observation("0", k=0, n=64), Observation("149", k=30, n=64)]
    state = Bisection.start(searched, higher, replace(COSTS, spare=None), ends)
    asked = state.next(builders=4).probes
    assert len(asked) == 4
    more = state.next(builders=6, running=asked).probes
    assert 1 <= len(more) <= 2
    assert not {probe.key for probe in more} & {probe.key for probe in asked}


def test_a_late_observation_counts_for_the_search() -> None:
    searched = line(20)
    state = Bisection.start(searched, higher, COSTS)
    late = Observation("10", k=3, n=16, check=7, trial_s=2.0)
    assert state.observe(late).tallies["10"].n == 16


def test_a_build_that_is_gone_does_not_undo_its_trials() -> None:
    state = Bisection.start(line(20), higher, COSTS, [Observation("10", k=3, n=16)])
    state = state.observe(Observation("10", Seen.UNBUILDABLE, reason="no space"))
    assert state.tallies["10"].n == 16
    assert "10" not in state.broken


def test_builds_that_are_cached_cost_nothing_in_a_plan() -> None:
    ends = [Observation("0", k=0, n=64), Observation("19", k=30, n=64)]
    state = Bisection.start(line(20), higher, COSTS, ends)
    probe: Probe = state.next(cached={str(i) for i in range(20)}).probes[0]
    assert probe.built
    assert probe.seconds < BUILD_S


def paced(*batches: tuple[int, float]) -> Pace:
    pace = Pace()
    for trials, seconds in batches:
        pace = pace.plus(Observation("a", n=trials, trial_s=seconds))
    return pace


def test_the_start_of_a_batch_is_told_apart_from_its_trials() -> None:
    sizes = (8, 16, 32, 64, 8, 16, 128)
    assert paced(*((n, 12 + n / 4) for n in sizes)).start_s == pytest.approx(12, rel=0.1)
    assert paced(*((n, n / 4) for n in sizes)).start_s == pytest.approx(0, abs=1e-9)


def test_batches_of_one_size_tell_nothing_of_their_start() -> None:
    assert paced(*[(16, 20.0)] * 9).start_s == 0


def test_where_starting_takes_long_batches_are_longer() -> None:
    ends = [Observation("0", k=0, n=64), Observation("19", k=6, n=64)]
    slow, quick = (
        Bisection.start(line(20), higher, COSTS, [*ends, *batches])
        for batches in (
            [Observation("9", k=0, n=n, trial_s=20 + n / 8) for n in (8, 16, 32, 8)],
            [Observation("9", k=0, n=n, trial_s=n / 8) for n in (8, 16, 32, 8)],
        )
    )
    assert slow.costs.start_s > 10
    assert quick.costs.start_s == pytest.approx(0, abs=1e-9)

    def longest(state: Bisection) -> int:
        cached = {str(place) for place in range(20)}
        return max(probe.trials for probe in state.next(cached=cached).probes)

    assert longest(slow) > longest(quick)


@given(st.lists(st.tuples(st.integers(1, 128), st.floats(0.01, 500)), min_size=1, max_size=30))
def test_a_start_is_never_less_than_nothing_nor_the_whole_batch(
    batches: list[tuple[int, float]],
) -> None:
    pace = paced(*batches)
    assert 0 <= pace.start_s < pace.seconds / pace.batches
