"""What a cell of the grid says: its mark, its figures, and a line on how sure they are."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from runner.statistics.control import ControlVerdict
from runner.statistics.counts import span
from service.reading.rate import NOT_WATCHED, Mark, Watch, rate_of

STEPS = 20
"""Steps into which a cell's picture of an interval divides rates from 0 to 1."""


class Told(NamedTuple):
    """A tuple, because a page has thousands, most of them alike.

    text: `10/10`, or a word where nothing was measured. note: interval, outcomes, what is needed.
    strength: see `Rate`. low, high: of the interval, in STEPS; both 0 where there is none.
    trials: all that ran, also those that no rate is taken over. counts: in the order of OUTCOMES,
    empty where nothing was measured. watch: what the detector saw. swallows: it never failed, and
    passed with foreign work in a capture window.
    """

    mark: Mark
    text: str = ""
    note: str = ""
    strength: int = 0
    low: int = 0
    high: int = 0
    trials: int = 0
    counts: tuple[int, ...] = ()
    watch: Watch = NOT_WATCHED
    swallows: bool = False


@lru_cache(maxsize=65_536)
def of_counts(
    counts: tuple[int, ...],
    clean_below: float,
    watch: Watch = NOT_WATCHED,
    control: ControlVerdict | None = None,
) -> Told:
    """What counts in the order of OUTCOMES say.

    Short: a race's verdict shows in its figures, and what is undersampled says what it needs.
    """
    rate = rate_of(counts, clean_below, watch=watch, control=control)
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in rate.counts)
    if not rate.n:
        return Told(
            rate.mark, rate.mark.words, outcomes, trials=rate.trials, counts=counts, watch=watch
        )
    told = rate.mark in (Mark.RACES, Mark.UNDERSAMPLED)
    doubted = rate.mark is Mark.UNPROVEN
    verdict = "" if told else f"{rate.label if doubted else rate.mark.words}, "
    swallows = not rate.k and watch.passes > 0
    work = f"; foreign work in {watch.passes} of {watch.watched}" if swallows else ""
    more = f"; {rate.needed} more to be clean" if rate.needed and not rate.k else ""
    return Told(
        mark=rate.mark,
        text=f"{rate.k}/{rate.n}",
        note=f"{verdict}{span((rate.low, rate.high))}: {outcomes}{work}{more}",
        strength=0 if doubted else rate.strength,
        low=int(rate.low * STEPS),
        high=-int(-rate.high * STEPS // 1),  # rounded up, so that the picture never claims more
        trials=rate.trials,
        counts=counts,
        watch=watch,
        swallows=swallows,
    )
