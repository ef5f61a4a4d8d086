"""Head against base: blame and acquittal each at a stated error, and never from too few trials."""

import math
import random
from collections.abc import Callable
from functools import cache
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.statistics.comparison import (
    ERROR,
    FORECAST,
    Comparison,
    anytime,
    clean_after,
    compare,
    difference,
    fisher,
    interval,
)
from runner.statistics.counts import Counts
from runner.statistics.kinds import Kind

counts = st.integers(0, 150).flatmap(lambda n: st.builds(Counts, st.integers(0, n), st.just(n)))
both_tests = pytest.mark.parametrize("test", [fisher, anytime])


def compared(head: tuple[int, int], base: tuple[int, int], adaptive: bool = False) -> Comparison:
    return compare(Counts(*head), Counts(*base), 0.05, adaptive)


def binomial(k: int, n: int, p: float) -> float:
    return math.comb(n, k) * p**k * (1 - p) ** (n - k)


def chance(
    says: Callable[[Counts, Counts], bool], head: int, base: int, p1: float, p0: float
) -> float:
    """Chance that `says` holds for `head` trials at rate p1 and `base` trials at rate p0."""
    return math.fsum(
        binomial(k1, head, p1) * binomial(k0, base, p0)
        for k1, k0 in product(range(head + 1), range(base + 1))
        if says(Counts(k1, head), Counts(k0, base))
    )


@given(counts, counts)
def test_fishers_p_is_the_hypergeometric_tail(head: Counts, base: Counts) -> None:
    failed, trials = head.k + base.k, head.n + base.n
    ways = sum(
        math.comb(head.n, x) * math.comb(base.n, failed - x)
        for x in range(head.k, min(failed, head.n) + 1)
    )
    assert fisher(head, base) == pytest.approx(ways / math.comb(trials, failed), rel=1e-9)


@pytest.mark.parametrize(
    ("k", "n", "base"), [(5, 5, 5), (1, 100, 100), (2, 10, 100), (7, 100, 100)]
)
def test_against_a_base_without_failures_p_is_the_chance_that_all_fall_on_head(
    k: int, n: int, base: int
) -> None:
    p = math.comb(n, k) / math.comb(n + base, k)
    assert fisher(Counts(k, n), Counts(0, base)) == pytest.approx(p, rel=1e-9)


@pytest.mark.parametrize(("fewest", "n", "base"), [(5, 5, 5), (7, 100, 100), (2, 10, 100)])
def test_blame_takes_as_many_failures_as_the_module_says(fewest: int, n: int, base: int) -> None:
    first = next(k for k in range(n + 1) if fisher(Counts(k, n), Counts(0, base)) < ERROR)
    assert first == fewest


@given(counts, counts)
def test_fishers_two_sides_overlap_in_what_was_seen(head: Counts, base: Counts) -> None:
    assert fisher(head, base) + fisher(base, head) >= 1 - 1e-9


@both_tests
@given(head=counts, base=counts)
def test_exchanging_failures_and_passes_exchanges_head_and_base(
    test: Callable[[Counts, Counts], float], head: Counts, base: Counts
) -> None:
    assert test(head, base) == pytest.approx(test(base.mirrored, head.mirrored), rel=1e-8)


@both_tests
@given(head=counts, base=counts)
def test_a_failure_more_at_head_never_clears_it(
    test: Callable[[Counts, Counts], float], head: Counts, base: Counts
) -> None:
    if head.k < head.n:
        assert test(Counts(head.k + 1, head.n), base) <= test(head, base) * (1 + 1e-9)


@both_tests
def test_nothing_to_compare_with_blames_nobody(test: Callable[[Counts, Counts], float]) -> None:
    assert test(Counts(10, 10), Counts()) == pytest.approx(1)
    assert test(Counts(), Counts(10, 10)) == pytest.approx(1)


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize(("head", "base"), [(5, 5), (10, 6), (6, 30), (20, 20)])
def test_equal_rates_are_blamed_at_most_as_often_as_stated(
    head: int, base: int, rate: float
) -> None:
    blamed = chance(lambda h, b: fisher(h, b) < ERROR, head, base, rate, rate)
    assert blamed <= ERROR


def test_equal_rates_that_one_failure_would_blame_are_blamed_often() -> None:
    """Why a single failure against a clean base is not a regression: a race of 1 % in both."""
    none, one = binomial(0, 100, 0.01), binomial(1, 100, 0.01)
    assert none * one > 0.13
    assert none * (1 - none) > 0.23


def ever_blamed(test: Callable[[Counts, Counts], float], rate: float, pairs: int) -> float:
    """Chance that `test` ever shows head worse at equal rates, with a look after each trial."""
    blames = cache(lambda k1, n1, k0, n0: test(Counts(k1, n1), Counts(k0, n0)) < ERROR)
    silent = {(0, 0): 1.0}
    for trial in range(2 * pairs):
        n1, n0 = trial // 2 + 1, (trial + 1) // 2
        after: dict[tuple[int, int], float] = {}
        for (k1, k0), mass in silent.items():
            failed = (k1, k0 + 1) if trial % 2 else (k1 + 1, k0)
            after[k1, k0] = after.get((k1, k0), 0.0) + mass * (1 - rate)
            after[failed] = after.get(failed, 0.0) + mass * rate
        silent = {
            (k1, k0): mass
            for (k1, k0), mass in after.items()
            if mass > 1e-12 and not blames(k1, n1, k0, n0)
        }
    return 1 - sum(silent.values())


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_all_looks_together_blame_at_most_as_often_as_stated(rate: float) -> None:
    assert ever_blamed(anytime, rate, 40) <= ERROR


def test_looking_again_and_again_at_fishers_p_breaks_its_error() -> None:
    assert ever_blamed(fisher, 0.5, 40) > 2 * ERROR


@pytest.mark.parametrize(("head", "base"), [(10, 10), (20, 60), (60, 20)])
@pytest.mark.parametrize("base_rate", [0.02, 0.1, 0.45])
def test_much_worse_is_called_no_worse_at_most_as_often_as_stated(
    head: int, base: int, base_rate: float
) -> None:
    much_worse = max(base_rate + 0.05, 2 * base_rate)

    def acquits(h: Counts, b: Counts) -> bool:
        return compare(h, b, 0.05).no_worse

    assert chance(acquits, head, base, much_worse, base_rate) <= 0.05


@given(counts, counts)
def test_the_difference_mirrors(head: Counts, base: Counts) -> None:
    low, high = difference(head, base)
    assert -1 <= low <= high <= 1
    assert difference(base, head) == pytest.approx((-high, -low))


@pytest.mark.parametrize("rates", [(0.0, 0.0), (0.05, 0.3), (0.5, 0.5), (0.95, 0.2), (1.0, 0.0)])
@pytest.mark.parametrize(("head", "base"), [(10, 10), (40, 15)])
def test_the_difference_is_covered_about_as_often_as_it_claims(
    head: int, base: int, rates: tuple[float, float]
) -> None:
    def covers(h: Counts, b: Counts) -> bool:
        low, high = difference(h, b)
        return low <= rates[0] - rates[1] <= high

    assert chance(covers, head, base, *rates) >= 0.95


@pytest.mark.parametrize(
    ("head", "base", "verdict", "text"),
    [
        (
            (5, 5),
            (0, 5),
            Kind.REGRESSED,
            "newly failing: 5 of 5 failed (47.8 to 100 %), base 0 of 5 (0 to 52.2 %), p = 0.004",
        ),
        (
            (20, 20),
            (5, 20),
            Kind.REGRESSED,
            "worse: 20 of 20 failed (83.2 to 100 %), base 5 of 20 (8.7 to 49.1 %), p < 0.0001",
        ),
        (
            (1, 100),
            (0, 100),
            Kind.UNDERSAMPLED,
            "undersampled: 1 of 100 failed (0 to 5.4 %), base 0 of 100 (0 to 3.6 %), "
            "not shown worse (p = 0.5); about 550 more of each to tell",
        ),
        (
            (1, 100),
            (0, 10),
            Kind.UNDERSAMPLED,
            "undersampled: 1 of 100 failed (0 to 5.4 %), base 0 of 10 (0 to 30.8 %), "
            "not shown worse (p = 0.91); about 550 more and 640 more of the base to tell",
        ),
        (
            (10, 10),
            (10, 10),
            Kind.NO_WORSE,
            "no worse, the base already races: 10 of 10 failed (69.2 to 100 %), "
            "base 10 of 10 (69.2 to 100 %)",
        ),
        (
            (0, 100),
            (0, 100),
            Kind.CLEAN,
            "clean below 5 %: 0 of 100 failed (0 to 3.6 %), base 0 of 100 (0 to 3.6 %)",
        ),
        (
            (0, 100),
            (10, 10),
            Kind.FIXED,
            "fixed, clean below 5 %: 0 of 100 failed (0 to 3.6 %), base 10 of 10 (69.2 to 100 %), "
            "p < 0.0001",
        ),
        (
            (0, 10),
            (10, 10),
            Kind.UNDERSAMPLED,
            "undersampled: 0 of 10 failed (0 to 30.8 %), base 10 of 10 (69.2 to 100 %), "
            "lower (p < 0.0001); 62 more for clean below 5 %",
        ),
        (
            (0, 10),
            (0, 0),
            Kind.UNDERSAMPLED,
            "undersampled: 0 of 10 failed (0 to 30.8 %), base not measured; "
            "62 more for clean below 5 %",
        ),
        ((0, 0), (10, 10), Kind.NOT_MEASURED, "not measured"),
    ],
)
def test_verdicts_and_their_sentences(
    head: tuple[int, int], base: tuple[int, int], verdict: Kind, text: str
) -> None:
    result = compared(head, base)
    assert result.verdict is verdict
    assert result.text == text


def test_a_fix_is_no_worse_long_before_it_is_clean() -> None:
    assert compared((0, 10), (10, 10)).no_worse


def test_one_trial_each_acquits_nobody() -> None:
    assert not compared((1, 1), (1, 1)).no_worse
    assert compared((1, 1), (1, 1)).verdict is Kind.UNDERSAMPLED


def test_a_base_without_a_failure_does_not_already_race() -> None:
    assert compared((1, 2000), (0, 2000)).verdict is Kind.UNDERSAMPLED


def test_a_base_that_was_never_run_is_asked_for() -> None:
    result = compared((10, 10), (0, 0))
    assert result.verdict is Kind.UNDERSAMPLED
    assert result.trials_needed == 0
    assert result.base_trials_needed > 0


def test_what_takes_too_long_says_more_than() -> None:
    result = compared((1, 5000), (0, 5000))
    assert result.trials_needed == result.base_trials_needed == FORECAST
    assert result.text.endswith("more than 10000 more of each to tell")


def test_adaptive_trials_need_stronger_evidence() -> None:
    assert compared((7, 100), (0, 100)).verdict is Kind.REGRESSED
    assert compared((7, 100), (0, 100), adaptive=True).verdict is Kind.UNDERSAMPLED
    assert compared((5, 5), (0, 5), adaptive=True).verdict is Kind.REGRESSED


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("bound", [0.3, 0.05, 0.01])
def test_clean_after_is_the_first_number_that_suffices(bound: float, adaptive: bool) -> None:
    first = clean_after(bound, adaptive)
    assert interval(Counts(0, first), adaptive)[1] < bound
    assert interval(Counts(0, first - 1), adaptive)[1] >= bound


@pytest.mark.parametrize("bound", [0.0, 1.0])
def test_a_bound_is_a_rate(bound: float) -> None:
    with pytest.raises(ValueError, match="clean_below must be between 0 and 1"):
        compare(Counts(1, 2), Counts(1, 2), bound)


@settings(deadline=None)
@given(counts, counts, st.booleans())
def test_a_verdict_says_what_its_numbers_say(head: Counts, base: Counts, adaptive: bool) -> None:
    result = compare(head, base, 0.05, adaptive)
    assert (result.verdict is Kind.NOT_MEASURED) == (head.n == 0)
    if head.n:
        assert (result.verdict is Kind.REGRESSED) == (result.p < ERROR)
    if result.verdict in (Kind.CLEAN, Kind.FIXED):
        assert head.k == 0
        assert result.interval[1] < 0.05
    if result.verdict is Kind.FIXED:
        assert result.p_lower < ERROR
    if result.verdict is Kind.NO_WORSE:
        assert head.k
        assert base.k
        assert result.no_worse
    assert (result.trials_needed + result.base_trials_needed > 0) == (
        result.verdict is Kind.UNDERSAMPLED
    )


@settings(deadline=None, max_examples=50)
@given(counts, counts, st.booleans())
def test_the_forecast_settles_it_if_the_rates_stay(
    head: Counts, base: Counts, adaptive: bool
) -> None:
    result = compare(head, base, 0.05, adaptive)
    if result.verdict is not Kind.UNDERSAMPLED or result.trials_needed == FORECAST:
        return
    later = compare(
        head.grown_to(head.n + result.trials_needed),
        base.grown_to(base.n + result.base_trials_needed),
        0.05,
        adaptive,
    )
    assert later.verdict is not Kind.UNDERSAMPLED


def test_the_whole_rule_seldom_blames_a_harmless_commit() -> None:
    """Simulated, fixed seed: matrices of 10 and 72 trials at rates from rare to always."""
    rng = random.Random(2800)
    blamed = trials = 0
    for rate in (0.0, 0.01, 0.1, 0.5, 1.0):
        for n in (10, 72):
            for _ in range(200):
                head, base = (Counts(sum(rng.random() < rate for _ in range(n)), n) for _ in "hb")
                blamed += compare(head, base, 0.05).verdict is Kind.REGRESSED
                trials += 1
    assert blamed / trials <= ERROR
