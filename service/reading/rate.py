"""A cell's counts with all that follows from them: rate, exact interval, verdict, and its mark.

Beside the failures' rate stands a second one, over the trials that the detector watched: how many
had another thread's work in a capture window. Both are judged alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from sqlmodel import col

from runner.outcome import FAILURES, Outcome
from runner.statistics.control import ControlVerdict
from runner.statistics.counts import Counts
from runner.statistics.kinds import Kind
from runner.statistics.verdict import CellVerdict, judge_cell
from service.tables import Measurement, column_of

OUTCOMES = tuple(Outcome)
COUNT_COLUMNS = tuple(getattr(Measurement, column_of(outcome)) for outcome in OUTCOMES)
"""The counting columns of a measurement, in the order of OUTCOMES."""
NO_COUNTS = (0,) * len(OUTCOMES)
WATCH_COLUMNS = (
    col(Measurement.watched),
    col(Measurement.swallowed),
    col(Measurement.swallowed_passes),
)
"""What the detector saw, in the order of `Watch`."""
SWALLOWS = "swallows"
"""The label of a cell whose captures took in another thread's work."""


class Mark(StrEnum):
    """What a cell says at a glance: a verdict, or why there is none."""

    REGRESSED = "regressed"
    RACES = "races"
    SWALLOWS = "swallows"
    NO_WORSE = "no-worse"
    FIXED = "fixed"
    CLEAN = "clean"
    UNDERSAMPLED = "undersampled"
    UNPROVEN = "unproven"
    BUILD_ERROR = "build-error"
    UNSUPPORTED = "unsupported"
    INFRA_ERROR = "infra-error"
    AWAITING = "awaiting"
    QUEUED = "queued"
    BUILDING = "building"
    RUNNING = "running"
    NOT_RUN = "not-run"

    @property
    def words(self) -> str:
        """As people read it."""
        words = self.value.replace("-", " ")
        return "awaiting approval" if self is Mark.AWAITING else words


MARK_OF_KIND = {
    Kind.REGRESSED: Mark.REGRESSED,
    Kind.FIXED: Mark.FIXED,
    Kind.RACES: Mark.RACES,
    Kind.NO_WORSE: Mark.NO_WORSE,
    Kind.CLEAN: Mark.CLEAN,
    Kind.UNDERSAMPLED: Mark.UNDERSAMPLED,
    Kind.NOT_MEASURED: Mark.NOT_RUN,
    Kind.UNPROVEN: Mark.UNPROVEN,
}
_OF_OUTCOME = {
    Outcome.UNSUPPORTED: Mark.UNSUPPORTED,
    Outcome.INFRA_ERROR: Mark.INFRA_ERROR,
    Outcome.BUILD_ERROR: Mark.BUILD_ERROR,
}
"""Where nothing counted, what did happen."""


class Watch(NamedTuple):
    """Trials that count and were watched; of these, those with foreign work in a window; of these,
    those that passed all the same."""

    watched: int = 0
    swallowed: int = 0
    passes: int = 0


NOT_WATCHED = Watch()


@dataclass(frozen=True, slots=True)
class Swallow:
    """Trials with another thread's work in a capture window: k of the n that were watched.

    passes: those of the k that passed all the same. All else as a Rate has it.
    """

    k: int
    n: int
    passes: int
    low: float
    high: float
    mark: Mark
    label: str
    needed: int = 0

    @property
    def rate(self) -> float:
        """k/n; there is none without a watched trial."""
        return self.k / self.n


@dataclass(frozen=True, slots=True)
class Rate:
    """k failures in n trials and what they support.

    counts: trials by outcome, those that occurred, in the enum's order. low, high: of the 95 %
    interval. label: the verdict in a table's words. text: as a sentence. needed: about how many
    further trials would settle it. swallow: the second rate, None where no trial was watched.
    """

    k: int
    n: int
    counts: tuple[tuple[str, int], ...]
    low: float
    high: float
    mark: Mark
    label: str
    text: str
    needed: int = 0
    swallow: Swallow | None = None

    @property
    def rate(self) -> float | None:
        """k/n, None without a trial that counts."""
        return self.k / self.n if self.n else None

    @property
    def trials(self) -> int:
        """All trials, also those that no rate is taken over."""
        return sum(count for _, count in self.counts)

    @property
    def unsupported(self) -> int:
        """Trials that the device or the commit cannot run, which settles them."""
        return dict(self.counts).get(str(Outcome.UNSUPPORTED), 0)

    @property
    def strength(self) -> int:
        """1 to 4 for a rate up to 10 %, up to 50 %, below 100 % and of 100 %; 0 without failure."""
        if not self.k:
            return 0
        rate = self.k / self.n
        return 1 if rate <= 0.1 else 2 if rate <= 0.5 else 3 if rate < 1 else 4


@lru_cache(maxsize=65_536)
def rate_of(
    counts: tuple[int, ...],
    clean_below: float,
    base: Counts | None = None,
    adaptive: bool = False,
    watch: Watch = NOT_WATCHED,
    control: ControlVerdict | None = None,
) -> Rate:
    """The rate behind counts in the order of OUTCOMES, judged as `judge_cell` does.

    Cached: a grid shows the same few counts again and again.
    """
    named = tuple(zip(OUTCOMES, counts, strict=True))
    k = sum(count for outcome, count in named if outcome in FAILURES)
    n = k + sum(count for outcome, count in named if outcome is Outcome.PASS)
    verdict = judge_cell(Counts(k, n), base, clean_below, control, adaptive)
    mark, label, text = MARK_OF_KIND[verdict.kind], verdict.label, verdict.text
    if not n:
        apart = next((m for o, m in _OF_OUTCOME.items() if counts[OUTCOMES.index(o)]), None)
        if apart is not None:
            mark, label, text = apart, apart.words, f"not measured: {apart.words}"
    seen = tuple((str(outcome), count) for outcome, count in named if count)
    low, high = verdict.interval
    swallow = swallow_of(watch, clean_below, adaptive)
    return Rate(k, n, seen, low, high, mark, label, text, verdict.trials_needed, swallow)


def rate_of_measurement(
    measurement: Measurement | None,
    clean_below: float,
    base: Counts | None = None,
    control: ControlVerdict | None = None,
) -> Rate:
    """The rate that a measurement counts; without one, of nothing. base: to compare it with.

    control: what the devices of its trials can prove, None where that is not in doubt.
    """
    if measurement is None:
        return rate_of(NO_COUNTS, clean_below, base)
    counts = tuple(measurement.counts.values())
    watch = watch_of(measurement)
    return rate_of(counts, clean_below, base, measurement.adaptive, watch, control)


def watch_of(measurement: Measurement) -> Watch:
    """What the detector saw of its trials."""
    return Watch(measurement.watched, measurement.swallowed, measurement.swallowed_passes)


def swallow_of(watch: Watch, clean_below: float, adaptive: bool = False) -> Swallow | None:
    """The second rate; None where no trial was watched."""
    if not watch.watched:
        return None
    counts = Counts(watch.swallowed, watch.watched)
    verdict = judge_cell(counts, None, clean_below, adaptive=adaptive)
    low, high = verdict.interval
    mark, label = mark_of_swallow(verdict)
    return Swallow(counts.k, counts.n, watch.passes, low, high, mark, label, verdict.trials_needed)


def mark_of_swallow(verdict: CellVerdict) -> tuple[Mark, str]:
    """Mark and label of a verdict on the second rate: what swallows need not fail."""
    mark = MARK_OF_KIND[verdict.kind]
    if mark is Mark.RACES:
        return Mark.SWALLOWS, SWALLOWS
    return mark, verdict.label.replace("failing", "swallowing").replace("races", SWALLOWS)


def judged_as(rate: Rate, verdict: CellVerdict) -> Rate:
    """The rate with another verdict on it, such as one that knows the device's control cells."""
    if not rate.n:
        return rate
    return replace(
        rate,
        mark=MARK_OF_KIND[verdict.kind],
        label=verdict.label,
        text=verdict.text,
        needed=verdict.trials_needed,
    )


def mark_of_outcome(outcome: str) -> Mark:
    """The mark of a cell that a build cannot run."""
    return _OF_OUTCOME[Outcome(outcome)]
