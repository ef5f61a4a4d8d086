"""What a bisection ends with: a culprit or an honest range, how sure, and both rates."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from runner.bisect.posterior import Posterior, Tally, credible, mean
from runner.bisect.range import BuildClass
from runner.bisect.verification import Check, CheckKind, CheckState
from runner.rates import percent
from runner.result import Commit


class VerdictKind(StrEnum):
    """How it ended."""

    CULPRIT = "culprit"
    """One commit, and fresh trials showed it."""
    AMONG = "one of several"
    """Fresh trials showed the change, but between the commits named nothing can be measured."""
    NOT_SURE = "not sure"
    """Budget spent, checks failed, or nothing left to learn from: the likeliest commits."""
    NO_CHANGE = "no change"
    """The ends do not separate."""
    NOT_MEASURED = "not measured"
    """An end cannot be measured."""


@dataclass(frozen=True)
class SideRate:
    """The rate on one side of the change: k failures in n trials of all its commits.

    rate: expected, low, high: holds it with 95 % probability. All three are the posterior's, which
    does not depend on what decided how many trials there were.
    """

    tally: Tally
    rate: float
    low: float
    high: float

    @property
    def text(self) -> str:
        """For example `30.1 % (62 of 206, 24.4 to 36.7 %)`."""
        seen = self.tally.k / self.tally.n if self.tally.n else self.rate
        span = f"{percent(self.low).removesuffix(' %')} to {percent(self.high)}"
        return f"{percent(seen)} ({self.tally.text}, {span})"


@dataclass(frozen=True)
class Verdict:
    """How it ended, in one sentence (`text`) and in parts.

    commits: the suspects in the path's order, one of a culprit. fixed: the change is what the path
    leaves behind (what fixed it), not what it meets (what broke it).
    probability: of what is said: of the suspects together, or of no change.
    before, after: the rates on the good and on the bad end's side.
    """

    kind: VerdictKind
    text: str
    probability: float
    commits: tuple[Commit, ...] = ()
    fixed: bool = False
    before: SideRate | None = None
    after: SideRate | None = None
    reason: str = ""


def side_rate(tally: Tally, weights: list[float]) -> SideRate:
    """The rate of a side from its trials and the posterior's weights of it."""
    low, high = credible(weights)
    return SideRate(tally, mean(weights), low, high)


def likeliest(posterior: Posterior, confidence: float) -> tuple[int, int]:
    """The shortest stretch of steps that holds the change with `confidence`, as `first`, `end`.

    Given that there is one; all steps where none is enough.
    """
    goal = confidence * (1 - posterior.none)
    below = [0.0, *posterior.cumulated]
    size = len(posterior.steps)
    best = (1, size)
    end = 1
    for first in range(1, size):
        end = max(end, first + 1)
        while end < size and below[end] - below[first] < goal:
            end += 1
        if below[end] - below[first] >= goal and end - first < best[1] - best[0]:
            best = (first, end)
    return best


def named(commit: Commit) -> str:
    """A commit in a sentence."""
    return f"{commit.sha[:12]} ({commit.title})" if commit.title else commit.sha[:12]


def sure(probability: float) -> str:
    """A probability that is never rounded up to certainty."""
    if probability > 0.9999:
        return "over 99.99 %"
    return (
        f"{max(0.0, probability * 100 - 0.05):.1f} %"
        if probability > 0.99
        else percent(probability)
    )


def suspects(classes: tuple[BuildClass, ...], first: int, end: int) -> tuple[Commit, ...]:
    """The commits that lead into these classes."""
    return tuple(each.blamed for each in classes[first:end] if each.blamed)


def checked(checks: tuple[Check, ...]) -> str:
    """What the checks of a culprit showed, as the end of a sentence."""
    said = []
    for check in checks:
        if check.kind is CheckKind.NEIGHBOURS and check.state is CheckState.PASSED:
            said.append(
                f"fresh trials: {check.high.tally.text} failed with it, "
                f"{check.low.tally.text} without"
            )
        elif check.kind is CheckKind.REVERT and check.state is CheckState.PASSED:
            said.append(
                f"reverting it on the head: {check.high.tally.text} failed with the change, "
                f"{check.low.tally.text} without"
            )
        elif check.kind is CheckKind.REVERT:
            said.append(f"reverting it on the head was not tried: {check.reason}")
    return "; ".join(said)
