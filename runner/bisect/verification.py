"""Checks of a suspect by fresh trials, of which the search knew nothing when it chose the suspect.

Two builds take turns, so that a drifting device meets both alike: the nearest classes before and
after the suspected step that build; then the head and the head without the culprit. A check passes
once the rates are shown to differ the way they should, by a test that may be looked at after every
batch. It fails when that has not happened after a number of trials of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from runner.bisect.posterior import NO_TRIALS, Tally, likelihood
from runner.result import Commit

Higher = Callable[[Tally, Tally], float]
"""A p value of "the first one's rate is not higher than the second one's" that holds at every look,
however many trials each gets and whatever decides on it."""


class CheckKind(StrEnum):
    """What is compared."""

    NEIGHBOURS = "neighbours"
    REVERT = "revert"


class CheckState(StrEnum):
    """How a check stands."""

    OPEN = "open"
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    """It could not be made or was no longer needed, which says nothing of the suspect."""


@dataclass(frozen=True)
class Side:
    """One of the two builds of a check, and its fresh trials."""

    key: str
    commit: Commit
    tally: Tally = NO_TRIALS


@dataclass(frozen=True)
class Check:
    """A check. low: where the rate should be lower. p: of "high's rate is not higher"."""

    number: int
    kind: CheckKind
    low: Side
    high: Side
    state: CheckState = CheckState.OPEN
    p: float = 1.0
    reason: str = ""

    @property
    def keys(self) -> tuple[str, str]:
        """Of its two builds."""
        return self.low.key, self.high.key

    @property
    def fewest(self) -> int:
        """Fresh trials that both sides have."""
        return min(self.low.tally.n, self.high.tally.n)

    def told(self, did: Callable[[Tally], str]) -> str:
        """The check in a few words; `did` says of trials how many did what is counted."""
        seen = f"with the change {did(self.high.tally)}, without it {did(self.low.tally)}"
        if not (self.high.tally.n or self.low.tally.n):
            seen = "fresh trials of both sides"
        return f"{self.kind} {self.state}: {self.reason or seen}"

    def with_trials(self, key: str, tally: Tally, higher: Higher) -> Check:
        """With more fresh trials of one of its builds."""
        low, high = self.low, self.high
        if key == low.key:
            low = replace(low, tally=low.tally.plus(tally))
        if key == high.key:
            high = replace(high, tally=high.tally.plus(tally))
        p = higher(high.tally, low.tally) if low.tally.n and high.tally.n else 1.0
        return replace(self, low=low, high=high, p=p)

    def ended(self, state: CheckState, reason: str = "") -> Check:
        """The same check, closed."""
        return replace(self, state=state, reason=reason)


def contradicted(
    check: Check, before: Sequence[float], after: Sequence[float], error: float
) -> bool:
    """Whether fresh trials are 1/`error` times as likely if both sides have one rate, be it that
    before the change or that after it, than if the rates are as they should be.

    before, after: weights of RATES. So a check that shows nothing need not run to its last trial.
    """
    low, high = likelihood(*check.low.tally), likelihood(*check.high.tally)

    def weighed(weights: Sequence[float], *sides: Sequence[float]) -> float:
        return math.fsum(map(math.prod, zip(weights, *sides, strict=True)))

    as_it_should = weighed(before, low) * weighed(after, high)
    same = max(weighed(before, low, high), weighed(after, low, high))
    return same * error > as_it_should
