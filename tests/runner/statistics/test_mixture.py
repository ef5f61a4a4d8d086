"""Mixtures are probabilities of all orders that trials can come in, and so can be bet on."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.statistics.counts import Counts
from runner.statistics.mixture import log_jeffreys, log_likelihood, log_mixture

spikes = st.floats(0.01, 0.99)


@given(st.integers(0, 300), spikes)
def test_a_mixture_spends_exactly_one_on_all_orders(n: int, spike: float) -> None:
    total = math.fsum(
        math.exp(math.log(math.comb(n, k)) + log_mixture(Counts(k, n), spike)) for k in range(n + 1)
    )
    assert total == pytest.approx(1, abs=1e-9)


@given(st.integers(0, 200), st.integers(0, 200), spikes)
def test_the_next_trial_splits_what_there_is(k: int, passed: int, spike: float) -> None:
    n = k + passed
    either = math.exp(log_mixture(Counts(k + 1, n + 1), spike)) + math.exp(
        log_mixture(Counts(k, n + 1), spike)
    )
    assert either == pytest.approx(math.exp(log_mixture(Counts(k, n), spike)), rel=1e-9)


@given(st.integers(0, 200), st.integers(0, 200))
def test_jeffreys_prior_treats_failures_and_passes_alike(k: int, passed: int) -> None:
    counts = Counts(k, k + passed)
    assert log_jeffreys(counts) == pytest.approx(log_jeffreys(counts.mirrored))


def test_a_rate_gives_its_own_counts_only() -> None:
    assert log_likelihood(Counts(0, 5), 0.0) == 0.0
    assert log_likelihood(Counts(5, 5), 1.0) == 0.0
    assert log_likelihood(Counts(1, 5), 0.0) == -math.inf
    assert log_likelihood(Counts(4, 5), 1.0) == -math.inf
    assert log_likelihood(Counts(2, 5), 0.4) == pytest.approx(math.log(0.4**2 * 0.6**3))
