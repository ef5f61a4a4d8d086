"""Prior probabilities of a bisection: which step changed the rate, before any trial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NO_CHANGE = 0.05
"""That the rate is the same at both ends. Someone saw a difference, but of few trials, maybe."""
FLOOR = 0.75
"""Share of the rest that is spread evenly, whatever the weights. No step gets less than this share
of what it would get without weights, so weights that mislead cost 0.4 bits, less than one build;
weights of 8 that are right gain 0.7."""


@dataclass(frozen=True)
class Prior:
    """none: probability of no change. steps: of each class that the path leads into it with the
    change; the first is 0. All sum to 1."""

    none: float
    steps: tuple[float, ...]


def prior(weights: Sequence[float], none: float = NO_CHANGE, floor: float = FLOOR) -> Prior:
    """The prior from a weight for each class; the first class's counts for nothing.

    A weight may favour a step, never exclude one: 0 and less count as the least that there is.
    """
    steps = len(weights) - 1
    if steps < 1:
        raise ValueError(f"a range has at least two classes, got {len(weights)}")
    favoured = [max(weight, 0.0) for weight in weights[1:]]
    total = sum(favoured)
    shares = [each / total for each in favoured] if total else [1 / steps] * steps
    even = floor / steps
    return Prior(none, (0.0, *((1 - none) * (even + (1 - floor) * share) for share in shares)))
