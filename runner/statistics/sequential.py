"""When a cell's trials can stop, with an error that holds however often one looks.

Looking at a fixed-size interval after every trial and stopping once it pleases is wrong more often
than it says. A confidence sequence holds at all times at once, so it can be looked at after every
trial, every batch, or whenever a worker happens to finish.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from functools import lru_cache

from runner.rates import percent
from runner.statistics import forecast
from runner.statistics.counts import Counts, span
from runner.statistics.mixture import log_likelihood, log_mixture

ERROR = 0.05
"""Chance that a confidence sequence ever leaves out the true rate: half of it on each side."""
SPIKE = 0.75
"""Weight of rate 0 in the mixture behind the upper bound. 78 passes are then clean below 5 % (a
number of trials fixed beforehand takes 72), and cells with a failure pay 1.4 nats for it."""


def confidence_sequence(k: int, n: int, error: float = ERROR) -> tuple[float, float]:
    """Interval of the rate behind k failures in n trials that holds at every n at once.

    Whatever the true rate is, the chance that it is ever above the upper end, over all n, is at
    most error/2, and so for the lower end. It holds k/n, is mirrored by exchanging failures and
    passes, and is wider than `runner.rates.interval`: that is the price of looking at any time.
    Each end is where a mixture's likelihood ratio reaches 2/error (`runner.statistics.mixture`).
    """
    if not 0 < error < 1:
        raise ValueError(f"error must be between 0 and 1, got {error}")
    counts = Counts(k, n)
    return 1.0 - _upper(counts.mirrored, error / 2), _upper(counts, error / 2)


@lru_cache(maxsize=65_536)
def _upper(counts: Counts, error: float) -> float:
    """The rate above k/n from which on the mixture is 1/error times as likely; 1 where none is."""
    if counts.k == counts.n:
        return 1.0
    target = log_mixture(counts, SPIKE) + math.log(error)
    if counts.k == 0:
        return -math.expm1(target / counts.n)
    low, high = counts.k / counts.n, 1.0
    while low < (middle := (low + high) / 2) < high:
        if log_likelihood(counts, middle) > target:
            low = middle
        else:
            high = middle
    return high


class Action(StrEnum):
    """What to do with a cell after a look at its counts."""

    CONTINUE = "continue"
    STOP_RACES = "races"
    STOP_RARE = "races rarely"
    STOP_CLEAN = "clean"
    STOP_LIMIT = "limit"


@dataclass(frozen=True)
class Decision:
    """An action with its sentence.

    trials_needed: further trials until it stops if the rate stays as seen (never beyond the
    limit), 0 where it stops now.
    """

    action: Action
    reason: str
    trials_needed: int = 0

    @property
    def stop(self) -> bool:
        """True where no further trial is asked for."""
        return self.action is not Action.CONTINUE


@dataclass(frozen=True)
class Stopping:
    """The rule by which a cell's trials stop; ask `decide` after each trial or batch.

    clean_below: rate that a clean cell has to be shown below.
    error: of the confidence sequence. Over all looks, a rate at or above `clean_below` ends as
        clean or as racing rarely with a chance of at most error/2, and a rate at or below
        `races_above` ends as racing with a chance of at most error/2.
    max_trials: it stops there in any case.
    races_above: rate that a racing cell has to be shown above, `clean_below` where not given.
    width: a racing cell goes on until its interval is at most this wide, so that its rate says
        something to compare with; 1 stops at once.
    """

    clean_below: float
    error: float = ERROR
    races_above: float | None = None
    width: float = 0.5
    _: KW_ONLY
    max_trials: int

    def __post_init__(self) -> None:
        for name in ("clean_below", "error", "races_above"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1:
                raise ValueError(f"{name} must be between 0 and 1, got {value}")
        if not 0 < self.width <= 1:
            raise ValueError(f"width must be above 0 and at most 1, got {self.width}")
        if self.max_trials < 1:
            raise ValueError(f"max_trials must be at least 1, got {self.max_trials}")

    def decide(self, k: int, n: int) -> Decision:
        """What to do after k failures in n trials."""
        counts = Counts(k, n)
        action = self._action(counts)
        rate = span(confidence_sequence(k, n, self.error))
        seen = f"{counts.text} failed ({rate}, valid at every look)"
        match action:
            case Action.STOP_CLEAN:
                return Decision(action, f"clean below {percent(self.clean_below)}: {seen}")
            case Action.STOP_RARE:
                return Decision(action, f"races below {percent(self.clean_below)}: {seen}")
            case Action.STOP_RACES:
                return Decision(action, f"races above {percent(self._races_above)}: {seen}")
            case Action.STOP_LIMIT:
                return Decision(action, f"undecided after {n} trials, the most it gets: {seen}")
        left = self.max_trials - n
        needed = forecast.smallest(
            lambda more: self._action(counts.grown_to(n + more)) is not Action.CONTINUE, left
        )
        more = left if needed is None else max(1, needed)
        return Decision(action, f"about {more} more trials: {seen}" if n else "no trial yet", more)

    @property
    def _races_above(self) -> float:
        return self.clean_below if self.races_above is None else self.races_above

    def _action(self, counts: Counts) -> Action:
        low, high = confidence_sequence(counts.k, counts.n, self.error)
        if high < self.clean_below:
            # One failure proves a race, however rare: `clean` would contradict the verdict.
            return Action.STOP_RARE if counts.k else Action.STOP_CLEAN
        if low > self._races_above and high - low <= self.width:
            return Action.STOP_RACES
        return Action.STOP_LIMIT if counts.n >= self.max_trials else Action.CONTINUE
