"""Change-points of a failure rate along a branch: where it rose or fell, and how sure.

Between changes the rate is taken as constant and trials as independent. Windows of many lengths
are laid over the branch; in each, the split with the largest binomial likelihood ratio is tested
by Fisher's exact test, two-sided, at the asked error divided by the number of splits in all windows
(Bonferroni). So where the rate never changes, whatever it is and however many trials each commit
has, any change at all is reported with a chance of at most `error`; in practice far less, as the
windows overlap and counts are whole. Short windows find a race that was fixed soon after, long ones
a small rise. Of the windows that show a change the narrowest counts, so that it holds no second
change; then every change is moved to its likeliest place between its neighbours, and tested there
again.

Sources: seeded windows, Kovács, Bühlmann, Li and Munk, Biometrika 110 (2023), 249-256; narrowest
window over the threshold, Baranowski, Chen and Fryzlewicz, JRSS B 81 (2019), 649-672; posterior of
the place, Smith, Biometrika 62 (1975), 407-416.

The error is that of one look; on a branch that grows, each new commit looks again. Trials of
different environments (device, toolchain) have rates of their own: do not mix them in one sequence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from runner.statistics.comparison import fisher
from runner.statistics.counts import Counts
from runner.statistics.mixture import log_jeffreys

ERROR = 0.05
"""Chance to report any change on a branch without one."""
CONFIDENCE = 0.95
"""Posterior probability that a change lies between its `low` and `high`."""


@dataclass(frozen=True)
class ChangePoint:
    """One change of the rate.

    index: position of the likeliest first commit with the new rate; it has trials.
    low, high: positions that hold that first commit, both included, with the asked confidence
        (given that there is one change between the neighbouring ones). Positions without trials
        are among them where the change may have come there.
    p: chance, at most, that a branch without a change shows one like it anywhere.
    before, after: counts from the change before it to this one, and from this one to the next.
    """

    index: int
    low: int
    high: int
    p: float
    before: Counts
    after: Counts

    @property
    def rises(self) -> bool:
        """True where the rate is higher from here on: a race came in."""
        return self.after.k * self.before.n > self.before.k * self.after.n


def change_points(
    commits: Sequence[Counts], error: float = ERROR, confidence: float = CONFIDENCE
) -> list[ChangePoint]:
    """The changes along `commits`, first to last; Counts() for a commit without trials.

    error: chance to report any change where there is none. confidence: of the places. 2,000 commits
    take about 0.1 s.
    """
    for name, value in (("error", error), ("confidence", confidence)):
        if not 0 < value < 1:
            raise ValueError(f"{name} must be between 0 and 1, got {value}")
    branch = _Branch.of(commits, error)
    splits = branch.settled(branch.detected())
    bounds = [0, *splits, branch.size]
    return [
        branch.change(start, split, end, confidence)
        for start, split, end in zip(bounds, bounds[1:], bounds[2:], strict=False)
    ]


@dataclass(frozen=True)
class _Branch:
    """The measured commits of a branch, by their number among themselves.

    places: position of each on the branch. failed, trials: sums before each, one longer. tests:
    splits that are tried at most. error: chance of any change where there is none.
    """

    places: list[int]
    failed: list[int]
    trials: list[int]
    tests: int
    error: float

    @classmethod
    def of(cls, commits: Sequence[Counts], error: float) -> _Branch:
        places = [place for place, counts in enumerate(commits) if counts.n]
        return cls(
            places,
            list(accumulate((commits[place].k for place in places), initial=0)),
            list(accumulate((commits[place].n for place in places), initial=0)),
            sum(end - start - 1 for start, end in _windows(len(places))),
            error,
        )

    @property
    def size(self) -> int:
        return len(self.places)

    def counts(self, start: int, end: int) -> Counts:
        return Counts(self.failed[end] - self.failed[start], self.trials[end] - self.trials[start])

    def detected(self) -> list[int]:
        """Splits of the narrowest windows that show a change, none of which holds another's."""
        found = []
        for start, end in _windows(self.size):
            ratio, split = self._likeliest(start, end)
            if ratio >= self._worth_testing and self._p(start, split, end) <= self.error:
                found.append((end - start, self._p(start, split, end), start, split, end))
        chosen: list[int] = []
        for _, _, start, split, end in sorted(found):
            if not any(start < other < end for other in chosen):
                chosen.append(split)
        return sorted(chosen)

    def settled(self, splits: list[int]) -> list[int]:
        """The same changes at their likeliest places between their neighbours.

        Those that show no change there are dropped, the least sure first.
        """
        while True:
            splits = self._moved(splits)
            bounds = [0, *splits, self.size]
            tested = [
                (self._p(start, split, end), split)
                for start, split, end in zip(bounds, bounds[1:], bounds[2:], strict=False)
            ]
            if not tested or max(tested)[0] <= self.error:
                return splits
            splits.remove(max(tested)[1])

    def _moved(self, splits: list[int]) -> list[int]:
        splits = list(splits)
        for _ in range(10):
            before = list(splits)
            for i in range(len(splits)):
                start = splits[i - 1] if i else 0
                end = splits[i + 1] if i + 1 < len(splits) else self.size
                splits[i] = self._likeliest(start, end)[1]
            if splits == before:
                break
        return splits

    def change(self, start: int, split: int, end: int, confidence: float) -> ChangePoint:
        """The change between its neighbours `start` and `end`, with the places that hold it."""
        weights = self._posterior(start, end)
        low = high = split
        held = weights[split - start - 1]
        while held < confidence and (low > start + 1 or high < end - 1):
            left = weights[low - start - 2] if low > start + 1 else -1.0
            right = weights[high - start] if high < end - 1 else -1.0
            low, high = (low - 1, high) if left > right else (low, high + 1)
            held += max(left, right)
        return ChangePoint(
            index=self.places[split],
            # Behind the last measured commit before it: what lies between may have brought it.
            low=self.places[low - 1] + 1,
            high=self.places[high],
            p=self._p(start, split, end),
            before=self.counts(start, split),
            after=self.counts(split, end),
        )

    def _posterior(self, start: int, end: int) -> list[float]:
        """Probability of each split from start + 1 to end - 1, given that there is one.

        Every commit is as likely to have brought the change beforehand, also those not measured;
        the rates before and after are unknown (Jeffreys' prior).
        """
        logs = [
            math.log(self.places[split] - self.places[split - 1])
            + log_jeffreys(self.counts(start, split))
            + log_jeffreys(self.counts(split, end))
            for split in range(start + 1, end)
        ]
        top = max(logs)
        weights = [math.exp(value - top) for value in logs]
        total = math.fsum(weights)
        return [weight / total for weight in weights]

    @property
    def _worth_testing(self) -> float:
        """Log likelihood ratio under which Fisher's test cannot show a change.

        A one-sided p value of ratio R is near exp(-R) / sqrt(4 pi R), hence the allowance; it
        can only leave changes out, never add one.
        """
        return math.log(self.tests / self.error) - 5.0

    def _p(self, start: int, split: int, end: int) -> float:
        before, after = self.counts(start, split), self.counts(split, end)
        return min(1.0, 2 * self.tests * min(fisher(after, before), fisher(before, after)))

    def _likeliest(self, start: int, end: int) -> tuple[float, int]:
        """Largest log likelihood ratio of a change against none from start to end, and its split.

        The loop is what the time goes into, so it is written out.
        """
        failed, trials, log = self.failed, self.trials, math.log
        failed_before, trials_before = failed[start], trials[start]
        k, n = failed[end] - failed_before, trials[end] - trials_before
        if k in (0, n):
            return 0.0, start + 1
        none = k * log(k / n) + (n - k) * log((n - k) / n)
        best, place = -math.inf, start + 1
        for split in range(start + 1, end):
            k0, n0 = failed[split] - failed_before, trials[split] - trials_before
            k1, n1 = k - k0, n - n0
            value = 0.0
            if 0 < k0 < n0:
                value += k0 * log(k0 / n0) + (n0 - k0) * log((n0 - k0) / n0)
            if 0 < k1 < n1:
                value += k1 * log(k1 / n1) + (n1 - k1) * log((n1 - k1) / n1)
            if value > best:
                best, place = value, split
        return best - none, place


def _windows(size: int) -> Iterator[tuple[int, int]]:
    """Windows over `size` commits: all of them, then halves, ... down to two, overlapping by half.

    Each layer's windows start half a window apart, so that every change has windows of about every
    length around it; about 2 * size * log2(size) splits in all. Every two neighbours have one.
    """
    seen = set()
    pieces = 1
    while (length := size / pieces) >= 2:
        for i in range(2 * pieces - 1):
            start = math.floor(i * length / 2)
            window = (start, min(size, math.ceil(start + length)))
            if window not in seen:
                seen.add(window)
                yield window
        pieces *= 2
    for start in range(size - 1):
        if (start, start + 2) not in seen:
            yield start, start + 2
