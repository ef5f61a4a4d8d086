"""Failure rates: the exact interval of k failures in n trials, and the verdict that it supports."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

CONFIDENCE = 0.95
"""Two-sided confidence of every interval that Racewatch shows."""


class Verdict(StrEnum):
    """What a cell's counts support on their own (against a base, the service says `regressed`)."""

    RACES = "races"
    CLEAN = "clean"
    UNDERSAMPLED = "undersampled"
    NOT_MEASURED = "not measured"
    UNPROVEN = "unproven"


@dataclass(frozen=True)
class Judgement:
    """A verdict with its sentence.

    trials_needed: further trials without a failure that `clean` still takes, 0 where none do.
    """

    verdict: Verdict
    text: str
    trials_needed: int = 0


def interval(k: int, n: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Clopper-Pearson interval of the rate behind k failures in n trials.

    It is exact: whatever the true rate is, it covers it with at least `confidence`. That matters
    here because rates sit at 0 and 1, where the normal approximation (and to a lesser degree
    Wilson's score) claims too much. n = 0 gives (0, 1). Source: Clopper and Pearson, Biometrika 26
    (1934), 404-413.
    """
    if not 0 <= k <= n:
        raise ValueError(f"k must be between 0 and n, got k={k}, n={n}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}")
    if n == 0:
        return 0.0, 1.0
    tail = (1 - confidence) / 2
    lower = 0.0 if k == 0 else _solve(lambda p: at_least(k, n, p), tail)
    upper = 1.0 if k == n else 1.0 - _solve(lambda q: at_least(n - k, n, q), tail)
    return lower, upper


def at_least(k: int, n: int, p: float) -> float:
    """Probability of k or more failures in n trials at rate p; increasing in p."""
    if k <= 0:
        return 1.0
    if k > n or p <= 0:
        return 0.0
    if p >= 1:
        return 1.0
    # Sum the shorter tail, so that neither the count of terms nor cancellation grows with n.
    if k > n * p:
        return min(1.0, _tail(range(k, n + 1), n, p))
    return max(0.0, 1.0 - _tail(range(k - 1, -1, -1), n, p))


def _tail(terms: range, n: int, p: float) -> float:
    """Sum of the binomial terms, which shrink from the first on: each from the one before it."""
    first = terms[0]
    term = total = math.exp(
        math.lgamma(n + 1)
        - math.lgamma(first + 1)
        - math.lgamma(n - first + 1)
        + first * math.log(p)
        + (n - first) * math.log1p(-p)
    )
    odds = p / (1 - p)
    for i in terms[:-1]:
        term *= (n - i) / (i + 1) * odds if terms.step > 0 else i / (n - i + 1) / odds
        total += term
        if term < total * 1e-17:
            break
    return total


def _solve(increasing: Callable[[float], float], target: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if increasing(middle) < target:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def clean_trials(bound: float, confidence: float = CONFIDENCE) -> int:
    """Trials without one failure after which the interval ends below `bound`."""
    if not 0 < bound < 1:
        raise ValueError(f"bound must be between 0 and 1, got {bound}")
    n = max(1, math.floor(math.log((1 - confidence) / 2) / math.log1p(-bound)))
    while interval(0, n, confidence)[1] >= bound:
        n += 1
    return n


def judge(k: int, n: int, clean_below: float) -> Judgement:
    """The verdict of one cell: k failures in n trials, to be clean below the rate `clean_below`."""
    if n == 0:
        return Judgement(Verdict.NOT_MEASURED, "not measured")
    if k > 0:
        return Judgement(Verdict.RACES, "races")
    upper = interval(0, n)[1]
    if upper < clean_below:
        return Judgement(Verdict.CLEAN, f"clean below {percent(clean_below)}")
    needed = clean_trials(clean_below) - n
    return Judgement(
        Verdict.UNDERSAMPLED,
        f"undersampled: {needed} more for clean below {percent(clean_below)}",
        needed,
    )


def percent(rate: float) -> str:
    """A rate as text with at most one decimal, for example `5 %` or `30.8 %`."""
    return f"{rate * 100:.1f}".removesuffix(".0") + " %"
