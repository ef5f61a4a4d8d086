"""What a bisection ends with: a culprit or an honest range, how sure, and both rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from runner.bisect.posterior import NO_TRIALS, Posterior, Tally, credible, mean
from runner.bisect.range import Range
from runner.bisect.settings import Observe
from runner.bisect.verification import Check, CheckKind, CheckState, Higher
from runner.rates import percent
from runner.report import plain
from runner.result import Commit


class VerdictKind(StrEnum):
    """How it ended."""

    CULPRIT = "culprit"
    """One commit, and fresh trials showed it."""
    AMONG = "one of several"
    """Fresh trials showed the change, but between the commits named nothing can be measured."""
    NOT_SURE = "not sure"
    """Stopped, checks failed, or nothing left to learn from: the likeliest commits."""
    NO_CHANGE = "no change"
    """The ends do not separate."""
    NOT_MEASURED = "not measured"
    """An end cannot be measured."""


@dataclass(frozen=True)
class SideRate:
    """The rate on one side of the change: all trials of the classes on that side.

    rate: expected, low, high: hold it with 95 % probability. All three are the posterior's, which
    does not depend on what decided how many trials there are. Where none of the trials counted, or
    all did, low and high are what they would be if the rate were not exactly 0 or 1.
    """

    tally: Tally
    rate: float
    low: float
    high: float

    @property
    def text(self) -> str:
        """For example `30.1 % (62 of 206; 24.4 to 36.7 %)`, `0 % (0 of 168; at most 1.2 %)`."""
        seen = self.tally.k / self.tally.n if self.tally.n else self.rate
        if self.tally.n and self.tally.k == 0:
            return f"{percent(seen)} ({self.tally.text}; at most {percent(self.high)})"
        if self.tally.n and self.tally.k == self.tally.n:
            return f"{percent(seen)} ({self.tally.text}; at least {percent(self.low)})"
        span = f"{percent(self.low).removesuffix(' %')} to {percent(self.high)}"
        return f"{percent(seen)} ({self.tally.text}; {span})"


@dataclass(frozen=True)
class Verdict:
    """How it ended, in one sentence (`text`) and in parts.

    commits: the suspects in the path's order, one of a culprit. fixed: on the way from good to bad
    the path leaves them behind, so they fixed what failed; else it meets them, and they broke it.
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


@dataclass(frozen=True)
class Evidence:
    """What a verdict rests on. tallies: by place. checks: all that there were."""

    range: Range
    posterior: Posterior
    tallies: Mapping[int, Tally]
    checks: Sequence[Check]
    observe: Observe = Observe.FAILURE

    def found(self, first: int, end: int) -> Verdict:
        """The change is one of the steps into the classes `first` to `end` - 1, as checked."""
        kind = VerdictKind.CULPRIT if end - first == 1 else VerdictKind.AMONG
        before, after = self._rates(first, end)
        entered = self.range.classes[first]
        commits = self._commits(first, end)
        probability = self.posterior.mass(first, end)
        lead = "" if kind is VerdictKind.CULPRIT else ", between which nothing can be measured,"
        changed = (
            f"lowered the {self.observe.rate} from {after.text} to {before.text}"
            if not entered.forward
            else f"raised the {self.observe.rate} from {before.text} to {after.text}"
        )
        text = f"{_listed(commits)}{lead} {changed}, {sure(probability)} sure"
        text += self._checked(fixed=not entered.forward)
        return Verdict(kind, text, probability, commits, not entered.forward, before, after)

    def unsure(self, reason: str, confidence: float) -> Verdict:
        """The shortest stretch that holds the change with that confidence, if there is one."""
        first, end = likeliest(self.posterior, confidence)
        before, after = self._rates(first, end)
        commits = self._commits(first, end)
        probability = self.posterior.mass(first, end)
        text = (
            f"not sure, {reason}: {_listed(commits)} ({sure(probability)} likely) "
            f"between a {self.observe.rate} of {before.text} and {after.text}"
        )
        if self.posterior.none > 1 - confidence:
            text += f"; {sure(self.posterior.none)} likely that nothing changed"
        fixed = not self.range.classes[first].forward
        return Verdict(
            VerdictKind.NOT_SURE, text, probability, commits, fixed, before, after, reason
        )

    def no_change(self, higher: Higher, error: float) -> Verdict:
        """Both ends have one rate, or the good one the higher."""
        good = self.tallies.get(0, NO_TRIALS)
        bad = self.tallies.get(len(self.range.classes) - 1, NO_TRIALS)
        weights = self.posterior.either
        did = self.observe.did
        seen = (
            f"of the good end {named(self.range.good)} {did(good)}{_share(good)}, "
            f"of the bad end {named(self.range.bad)} {did(bad)}{_share(bad)}"
        )
        text = (
            f"the ends do not separate after {good.n} and {bad.n} trials: {seen}; "
            f"{sure(self.posterior.none)} sure that nothing changed"
        )
        if good.n and bad.n and higher(good, bad) <= error:
            text = f"the good end has the higher {self.observe.rate}, exchange the ends: {seen}"
        return Verdict(
            VerdictKind.NO_CHANGE,
            text,
            self.posterior.none,
            before=_side_rate(good, weights),
            after=_side_rate(bad, weights),
        )

    def not_measured(self, place: int, reason: str) -> Verdict:
        """An end has no rate."""
        end = "good" if place == 0 else "bad"
        commit = self.range.good if place == 0 else self.range.bad
        text = f"the {end} end {named(commit)} cannot be measured, name another one: {reason}"
        return Verdict(VerdictKind.NOT_MEASURED, text, 0.0, (commit,), reason=reason)

    def _rates(self, first: int, end: int) -> tuple[SideRate, SideRate]:
        before, after = NO_TRIALS, NO_TRIALS
        for place, tally in self.tallies.items():
            if place < first:
                before = before.plus(tally)
            elif place >= end - 1:
                after = after.plus(tally)
        low, high = self.posterior.rates(first, end)
        return _side_rate(before, low), _side_rate(after, high)

    def _commits(self, first: int, end: int) -> tuple[Commit, ...]:
        return tuple(each.blamed for each in self.range.classes[first:end] if each.blamed)

    def _checked(self, *, fixed: bool) -> str:
        """What the checks that count showed, as the end of a sentence."""
        said = ""
        failing, other = ("without", "with it") if fixed else ("with", "without")
        for check in self.checks[-2:]:
            did = self.observe.did(check.high.tally)
            counts = f"{did} {failing} the change, {check.low.tally.text} {other}"
            if check.kind is CheckKind.NEIGHBOURS and check.state is CheckState.PASSED:
                said = f"; fresh trials of its neighbours: {counts}"
            elif check.kind is CheckKind.REVERT and check.state is CheckState.PASSED:
                said += f"; reverted on the head: {counts}"
            elif check.kind is CheckKind.REVERT and check.state is CheckState.SKIPPED:
                said += f"; not reverted on the head: {check.reason}"
        return said


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
    title = plain(commit.title)
    return f"{commit.sha[:12]} ({title})" if title else commit.sha[:12]


def sure(probability: float) -> str:
    """A probability that is never rounded up to more than it is."""
    if probability > 0.9999:
        return "over 99.99 %"
    digits = 2 if probability > 0.99 else 0
    scale = 10 ** (2 + digits)
    return f"{int(probability * scale) / 10**digits:.{digits}f} %"


def _listed(commits: Sequence[Commit]) -> str:
    if len(commits) == 1:
        return named(commits[0])
    return f"one of {len(commits)} commits, {named(commits[0])} to {named(commits[-1])}"


def _share(tally: Tally) -> str:
    return f" ({percent(tally.k / tally.n)})" if tally.n else ""


def _side_rate(tally: Tally, weights: Sequence[float]) -> SideRate:
    # The points at exactly 0 and 1 would make "0 to 0 %" of a side on which nothing ever failed.
    between = list(weights)
    if tally.n and tally.k == 0:
        between[0] = 0.0
    elif tally.n and tally.k == tally.n:
        between[-1] = 0.0
    total = sum(between)
    low, high = credible([each / total for each in between] if total > 0 else weights)
    if tally.k == 0:
        low = 0.0
    if tally.n and tally.k == tally.n:
        high = 1.0
    return SideRate(tally, mean(weights), low, high)


__all__ = [
    "Evidence",
    "SideRate",
    "Verdict",
    "VerdictKind",
    "likeliest",
    "named",
    "sure",
]
