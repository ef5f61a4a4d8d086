"""What a bisection does next, by information per second: trials of what is built, or builds.

Everything here is a function of a posterior and of costs; nothing is left to chance, so the same
observations always lead to the same steps.

A build is long and trials are short, hence the two questions. Is there a built class of which more
trials tell more per second than the best build would? Then those come first, for the next build is
chosen on them. Otherwise, which classes are built? Those that cut the probability left into equal
parts (quantiles), as many at a time as there are idle builders and as the target of builds allows:
two builds at once tell log2(3) = 1.6 bits where one after the other they would tell 2, so a build
beside another saves time and costs 0.4 builds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from operator import mul

from runner.bisect.posterior import RATES, Posterior
from runner.bisect.prior import Prior

BATCHES = (8, 16, 32, 64, 128)
"""Trials of one step."""
STRETCH = 4.0
"""Classes that a break of the build is long, until a longer one is seen."""
BROKEN = 0.03
"""Chance that a class does not build of which nothing is known."""
HOPELESS = 0.05
"""Chance to build below which a class is not tried: in the middle of a break."""
ONE_BREAK = 0.02
"""Chance that a class builds between two that fail with one error."""
TWO_BREAKS = 0.1
"""The least chance that one builds between two that fail with different errors."""
WORTH = 0.05
"""Bits that a build beside another one must be expected to tell."""
LOOKED_AT = 12
"""Classes that are built whose trials are weighed against each other."""
_SURE = 1e-6
_SMALL = 1e-9


@dataclass(frozen=True)
class Costs:
    """Seconds, as measured so far: of a build, of starting a batch, and of each trial in it."""

    build_s: float
    trial_s: float
    start_s: float = 0.0

    def batch_s(self, trials: int) -> float:
        """Of a batch of trials."""
        return self.start_s + trials * self.trial_s


@dataclass(frozen=True)
class Choice:
    """A batch of trials of the class at `place`: what it is expected to tell, and how fast."""

    place: int
    trials: int
    bits: float
    bits_per_s: float


@lru_cache(maxsize=64)
def _binomial(n: int) -> tuple[tuple[float, ...], ...]:
    """Probability of 0 to n failures in n trials, at each of RATES."""
    rows = []
    for k in range(n + 1):
        ways = math.comb(n, k)
        rows.append(tuple([ways * rate**k * (1 - rate) ** (n - k) for rate in RATES]))
    return tuple(rows)


def information(groups: Sequence[Sequence[float]], trials: int) -> float:
    """Bits that trials are expected to tell of which group their rate belongs to.

    groups: weights of RATES by group, which sum to 1 together.
    """
    support = [i for i in range(len(RATES)) if any(group[i] > _SMALL for group in groups)]
    if not support:
        return 0.0
    part = slice(support[0], support[-1] + 1)
    cut = [group[part] for group in groups if sum(group) > _SMALL]
    masses = [sum(group) for group in cut]
    bits = 0.0
    for row in _binomial(trials):
        at = row[part]
        likely = [sum(map(mul, group, at)) for group in cut]
        total = sum(likely)
        for each, mass in zip(likely, masses, strict=True):
            if each > _SMALL * total and each > 0:
                bits += each * math.log2(each / (mass * total))
    return max(0.0, bits)


def best_batch(
    posterior: Posterior, place: int, costs: Costs, *, ahead_s: float = 0.0, limit_s: float
) -> Choice:
    """The batch of a class that tells most per second; `ahead_s` is spent before it (a build).

    limit_s: the longest batch, unless the smallest one is longer.
    """
    groups = posterior.rates_at(place)
    best: Choice | None = None
    for trials in BATCHES:
        if best is not None and costs.batch_s(trials) > limit_s:
            break
        bits = information(groups, trials)
        rate = bits / max(_SMALL, ahead_s + costs.batch_s(trials))
        if best is not None and rate <= best.bits_per_s:
            break
        best = Choice(place, trials, bits, rate)
    assert best is not None
    return best


def best_tested(
    posterior: Posterior, places: Collection[int], costs: Costs, *, limit_s: float
) -> Choice | None:
    """The batch that tells most per second of all classes that are built; None where none tells."""
    after = posterior.cumulated
    doubt = {place: min(posterior.none + after[place], 1 - after[place]) for place in places}
    # Those nearest to even odds: a range may be built throughout, and a look at each takes time.
    doubtful = sorted((p for p in places if doubt[p] > _SURE), key=lambda p: (-doubt[p], p))
    choices = [
        best_batch(posterior, place, costs, limit_s=limit_s) for place in doubtful[:LOOKED_AT]
    ]
    return max(choices, key=lambda choice: choice.bits_per_s, default=None)


def cut_bits(posterior: Posterior, places: Collection[int]) -> float:
    """Bits that it would tell to know of all these classes on which side of the change they are."""
    total = 1 - posterior.none
    if total <= _SMALL:
        return 0.0
    bounds = [0.0, *(posterior.cumulated[place] for place in sorted(places)), total]
    parts = [(high - low) / total for low, high in pairwise(bounds)]
    return -sum(part * math.log2(part) for part in parts if part > _SMALL)


def best_builds(
    posterior: Posterior,
    candidates: Collection[int],
    under_way: Collection[int],
    builds: Callable[[int], float],
    count: int,
) -> list[int]:
    """The classes to build next, at most `count`, beside those under way; the best one first.

    builds: the chance that a class builds.
    """
    chosen: list[int] = []
    places = sorted(candidates)
    while len(chosen) < count:
        others = [*under_way, *chosen]
        rest = [place for place in places if place not in chosen]
        found = _best_cut(posterior, rest, others, builds, WORTH if others else _SMALL)
        if found is None:
            break
        chosen.append(found)
    # Each in turn to where it is best given the others: from halves and quarters to thirds.
    for _ in range(3 if len(chosen) > 1 else 0):
        for i in range(len(chosen)):
            others = [*under_way, *chosen[:i], *chosen[i + 1 :]]
            rest = [place for place in places if place not in others]
            found = _best_cut(posterior, rest, others, builds, _SMALL)
            if found is not None:
                chosen[i] = found
    return chosen


def _best_cut(
    posterior: Posterior,
    candidates: Sequence[int],
    others: Sequence[int],
    builds: Callable[[int], float],
    least: float,
) -> int | None:
    """The class that tells most besides `others`, by its chance to build; None where none tells
    the least number of bits that it should."""
    below = posterior.cumulated
    total = 1 - posterior.none
    bounds = sorted([(-1, 0.0), *((other, below[other]) for other in others)])
    best, found = least, None
    index = 0
    for place in candidates:
        while index + 1 < len(bounds) and bounds[index + 1][0] < place:
            index += 1
        low = bounds[index][1]
        high = bounds[index + 1][1] if index + 1 < len(bounds) else total
        part, rest = below[place] - low, high - below[place]
        if part <= 0 or rest <= 0:
            continue
        whole = part + rest
        told = -part * math.log2(part / whole) - rest * math.log2(rest / whole)
        value = told * builds(place)
        if value > best * (1 + 1e-9):
            best, found = value, place
    return found


def bits(prior: Prior) -> float:
    """Bits that it takes to find the step, given that there is one: about as many builds, one after
    the other."""
    total = math.fsum(prior.steps)
    return -sum(p / total * math.log2(p / total) for p in prior.steps if p > 0)


def builds_at_once(
    posterior: Posterior,
    candidates: Collection[int],
    under_way: Collection[int],
    builds: Callable[[int], float],
    *,
    idle: int,
    used: int,
    target: float | None,
) -> list[int]:
    """The classes to build now, so that the whole search is expected to stay within the target.

    idle: builders without work. used: builds so far, those under way included. target: builds that
    the search may take, None for as many as there are builders for. At least one is built where
    none is under way.
    """
    if idle <= 0:
        return []
    if target is None:
        return best_builds(posterior, candidates, under_way, builds, idle)
    left = posterior.entropy
    chosen: list[int] = []
    for count in range(1, idle + 1):
        wider = best_builds(posterior, candidates, under_way, builds, count)
        if len(wider) < count:
            break
        after = max(0.0, left - cut_bits(posterior, [*under_way, *wider]))
        needed = used + count + after
        # Of builds that will probably fail, as many as one may be hoped for.
        hoped = sum(builds(place) for place in (*under_way, *wider))
        if needed > target and (under_way or count > 1) and hoped > 1:
            break
        chosen = wider
    return chosen


def chance_to_build(place: int, built: Collection[int], broken: Mapping[int, str]) -> float:
    """The chance that a class builds, given those that did and those that did not, with the error.

    What breaks the build usually stays until somebody repairs it: next to a class that does not
    build the next ones do not either, the less so the further away; a class that builds ends it.
    Between two that fail with one error nothing builds, as a rule. How far a break reaches beyond
    what was seen of it is taken from the longest one that was seen.
    """
    reach = _reach(built, broken)
    chance = 1 - BROKEN
    errors = []
    for side in (-1, 1):
        ahead = [abs(each - place) for each in broken if (each - place) * side > 0]
        if not ahead:
            continue
        distance = min(ahead)
        if any(0 < (each - place) * side < distance for each in built):
            continue
        errors.append(broken[place + side * distance])
        # Behind the class, as seen from the broken one, the stretch ends at one that builds.
        ends = [abs(each - place) for each in built if (each - place) * side < 0]
        reached = math.exp(-distance / reach)
        beyond = math.exp(-(distance + min(ends)) / reach) if ends else 0.0
        chance *= 1 - (reached - beyond) / (1 - beyond)
    if len(errors) < 2:
        return chance
    return ONE_BREAK if errors[0] == errors[1] else max(chance, TWO_BREAKS)


def _reach(built: Collection[int], broken: Mapping[int, str]) -> float:
    """Classes that a break is long, by the longest one that was seen.

    Failed builds with one error, and nothing between that builds or fails otherwise, are one break.
    """
    reach = STRETCH
    start, error = 0, ""
    for place in sorted({*built, *broken}):
        if place in built or broken[place] != error:
            start, error = place, broken.get(place, "")
        reach = max(reach, float(place - start + 1))
    return reach


__all__ = [
    "BATCHES",
    "Choice",
    "Costs",
    "best_batch",
    "best_builds",
    "best_tested",
    "bits",
    "builds_at_once",
    "chance_to_build",
    "cut_bits",
    "information",
]
