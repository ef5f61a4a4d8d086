"""Which step changed the failure rate, given trials: exact, with both rates unknown.

The model is git_bayesect's (package index): one step of a line of commits changes the rate, trials
before it fail at one unknown rate and trials after it at another, both integrated out. From there
it goes other ways, for reasons that showed in `benchmarks/bisect.py`:

- "No change" is a hypothesis of its own. There the oldest commit stands for it, so a pair of ends
  that do not differ still ends in a commit.
- The bad end's side has the higher rate, by GAP at least. With independent rates (two Beta(1/2,
  1/2)) a culprit that made the good end worse than the bad one is as good as any, and "no change"
  gains on "a change too small to see" with the root of the trials only, so it is never reached.
- The rates' priors have points of their own at 0 (before the change) and 1 (after it): many races
  are absent before, and TE's fails every time. Beta(1/2, 1/2) has neither.
- A class that cannot be built stays eligible. There a skipped commit's prior becomes 0, and a
  culprit among those that do not build is then blamed on its neighbour.

The first three have no closed form, so rates are points at equal distances of asin(sqrt(rate)), in
which Beta(1/2, 1/2) is uniform and a rate seen in n trials is known to 0.5 / sqrt(n) everywhere.
Steps between the same two tested classes share their likelihood, so the work grows with the tested
classes, not with the range: 150 classes with 15 tested take about a millisecond.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from operator import mul
from typing import NamedTuple

from runner.bisect.prior import Prior

POINTS = 64
GAP = 4
"""The smallest change that is looked for, in points: 0 to 1 %, 5 to 10 %, 30 to 40 %."""
NEVER_BEFORE, ALWAYS_AFTER = 0.5, 0.2
"""Prior weight of rate 0 before the change, and of rate 1 after it."""
NEVER_EITHER, ALWAYS_EITHER = 0.3, 0.1
"""Prior weight of rate 0, and of rate 1, where nothing changed."""

_ANGLES = [(i + 0.5) / POINTS * math.pi / 2 for i in range(POINTS)]
RATES = (0.0, *(math.sin(angle) ** 2 for angle in _ANGLES), 1.0)
"""The points that stand for all rates."""
_SIZE = len(RATES)
_IMPOSSIBLE = -1e300
_LOG_FAIL = [math.log(rate) if rate > 0 else _IMPOSSIBLE for rate in RATES]
_LOG_PASS = [math.log1p(-rate) if rate < 1 else _IMPOSSIBLE for rate in RATES]


def _weights(never: float, always: float) -> list[float]:
    return [never, *[(1 - never - always) / POINTS] * POINTS, always]


_BEFORE = _weights(NEVER_BEFORE, 0.0)
_AFTER = _weights(0.0, ALWAYS_AFTER)
_EITHER = _weights(NEVER_EITHER, ALWAYS_EITHER)
_LOG_PAIRS = math.log(
    sum(_AFTER[high] * sum(_BEFORE[: max(0, high - GAP + 1)]) for high in range(_SIZE))
)


class Tally(NamedTuple):
    """k failures in n trials that count."""

    k: int = 0
    n: int = 0

    def plus(self, other: Tally) -> Tally:
        """Both together."""
        return Tally(self.k + other.k, self.n + other.n)

    @property
    def text(self) -> str:
        """`3 of 20`, or `not measured`."""
        return f"{self.k} of {self.n}" if self.n else "not measured"


NO_TRIALS = Tally()


@lru_cache(maxsize=16_384)
def _likelihood(k: int, n: int) -> tuple[tuple[float, ...], float]:
    """Of k failures in n trials at each rate, scaled so that the largest is 1; the scale's log."""
    passed = n - k
    logs = [k * f + passed * p for f, p in zip(_LOG_FAIL, _LOG_PASS, strict=True)]
    top = max(logs)
    return tuple([math.exp(each - top) for each in logs]), top


@dataclass(frozen=True)
class _Stretch:
    """Steps with one likelihood: those into classes `first` to `end` - 1.

    mass: their posterior probability. before, after: that of each rate on either side, given that
    the change is here.
    """

    first: int
    end: int
    mass: float
    before: Sequence[float]
    after: Sequence[float]


@dataclass(frozen=True)
class Posterior:
    """none: probability of no change. steps: of each class that the change leads into it."""

    none: float
    steps: tuple[float, ...]
    stretches: tuple[_Stretch, ...]
    either: Sequence[float]

    @cached_property
    def cumulated(self) -> list[float]:
        """Probability that the change leads into each class or one before it."""
        return list(accumulate(self.steps))

    def mass(self, first: int, end: int) -> float:
        """Probability that the change leads into one of the classes `first` to `end` - 1."""
        return math.fsum(self.steps[first:end])

    @property
    def entropy(self) -> float:
        """Bits still missing."""
        return -sum(p * math.log2(p) for p in (self.none, *self.steps) if p > 0)

    @cached_property
    def _after_until(self) -> list[list[float]]:
        """Rates after the change, weighted, summed over all stretches before each."""
        sums = [[0.0] * _SIZE]
        for each in self.stretches:
            sums.append(_plus(sums[-1], each.mass, each.after))
        return sums

    @cached_property
    def _before_from(self) -> list[list[float]]:
        """Rates before the change, weighted, summed over each stretch and all later ones."""
        sums = [[0.0] * _SIZE]
        for each in reversed(self.stretches):
            sums.append(_plus(sums[-1], each.mass, each.before))
        return sums[::-1]

    def rates_at(self, place: int) -> tuple[list[float], list[float], list[float]]:
        """Weights of RATES at a class where it lies before the change, after it, or there is none.

        The three sum to 1 together.
        """
        index = next(i for i, each in enumerate(self.stretches) if place < each.end)
        here = self.stretches[index]
        after = math.fsum(self.steps[here.first : place + 1])
        before = max(0.0, here.mass - after)
        return (
            _plus(self._before_from[index + 1], before, here.before),
            _plus(self._after_until[index], after, here.after),
            [self.none * e for e in self.either],
        )

    def rates(self, first: int, end: int) -> tuple[list[float], list[float]]:
        """Probability of RATES before and after the change, if it leads into a class of these."""
        before, after = [0.0] * _SIZE, [0.0] * _SIZE
        for each in self.stretches:
            mass = math.fsum(self.steps[max(first, each.first) : min(end, each.end)])
            if mass > 0:
                before = _plus(before, mass, each.before)
                after = _plus(after, mass, each.after)
        return _normalised(before), _normalised(after)


def posterior(prior: Prior, tallies: Mapping[int, Tally]) -> Posterior:
    """What trials say of the steps. tallies: by the place of the class; others have none."""
    size = len(prior.steps)
    tested = sorted(place for place, tally in tallies.items() if tally.n)
    total = Tally()
    for place in tested:
        total = total.plus(tallies[place])
    bounds = sorted({1, *(place + 1 for place in tested if place + 1 < size), size})
    before = tallies.get(0, Tally())
    found = []
    for first, end in pairwise(bounds):
        if first > 1:
            before = before.plus(tallies[first - 1])
        share = math.fsum(prior.steps[first:end])
        log, low, high = _pair(before, Tally(total.k - before.k, total.n - before.n))
        found.append((first, end, log + math.log(share), low, high))
    likelihood, scale = _likelihood(total.k, total.n)
    either = list(map(mul, _EITHER, likelihood))
    log_none = math.log(prior.none) + scale + math.log(sum(either)) if prior.none else -math.inf
    top = max(log_none, *(each[2] for each in found))
    none = math.exp(log_none - top)
    masses = [math.exp(each[2] - top) for each in found]
    evidence = none + math.fsum(masses)
    steps = [0.0] * size
    stretches = []
    for (first, end, _, low, high), mass in zip(found, masses, strict=True):
        share = math.fsum(prior.steps[first:end])
        for place in range(first, end):
            steps[place] = mass / evidence * prior.steps[place] / share
        stretches.append(_Stretch(first, end, mass / evidence, low, high))
    return Posterior(none / evidence, tuple(steps), tuple(stretches), _normalised(either))


@lru_cache(maxsize=16_384)
def _pair(before: Tally, after: Tally) -> tuple[float, tuple[float, ...], tuple[float, ...]]:
    """Log of the probability of both counts where the rate changes between, and both rates then."""
    low_likelihood, low_scale = _likelihood(*before)
    high_likelihood, high_scale = _likelihood(*after)
    low = list(map(mul, _BEFORE, low_likelihood))
    high = list(map(mul, _AFTER, high_likelihood))
    below = list(accumulate(low))
    above = list(accumulate(reversed(high)))[::-1]
    high_joint = list(map(mul, high[GAP:], below))
    total = math.fsum(high_joint)
    if total <= 0.0:  # the good side fails so much more often that nothing is left of it
        return _IMPOSSIBLE, tuple(_normalised(_BEFORE)), tuple(_normalised(_AFTER))
    low_joint = list(map(mul, low, above[GAP:]))
    return (
        math.log(total) - _LOG_PAIRS + low_scale + high_scale,
        (*(each / total for each in low_joint), *[0.0] * GAP),
        (*[0.0] * GAP, *(each / total for each in high_joint)),
    )


def _plus(sums: Sequence[float], mass: float, weights: Sequence[float]) -> list[float]:
    return [s + mass * weight for s, weight in zip(sums, weights, strict=True)]


def _normalised(weights: Sequence[float]) -> list[float]:
    total = math.fsum(weights)
    return [each / total for each in weights] if total > 0 else list(weights)


def likelihood(k: int, n: int) -> Sequence[float]:
    """Of k failures in n trials at each of RATES, to a scale that makes the largest 1."""
    return _likelihood(k, n)[0]


def mean(weights: Sequence[float]) -> float:
    """The expected rate under weights of RATES that sum to 1."""
    return math.fsum(map(mul, weights, RATES))


def credible(weights: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """The central interval that holds the rate with that probability, from weights of RATES."""
    tail = (1 - confidence) / 2
    below = list(accumulate(weights))
    low = next((r for r, b in zip(RATES, below, strict=True) if b > tail), 0.0)
    high = next((r for r, b in zip(RATES, below, strict=True) if b >= 1 - tail - 1e-12), 1.0)
    return low, high
