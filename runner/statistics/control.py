"""Control cells of one device: whether its passes, and its failures, mean anything.

Beside the cells of a run, a device gets trials of a pinned reference build: a known-bad cell, which
has to fail, and a known-good one, which must not. A device on which the known-bad cell hardly fails
any more (another driver, a throttled GPU, a busy host) hides races, so that a clean result on it is
worth nothing; one on which the known-good cell fails makes failures of its own.

Control trials come in as a run goes on and are looked at each time, so the intervals are
confidence sequences (`runner.statistics.sequential`): the errors below hold over all looks.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from runner.rates import percent
from runner.statistics import forecast
from runner.statistics.counts import Counts, span
from runner.statistics.sequential import ERROR, confidence_sequence

KNOWN_BAD_ABOVE = 0.5
"""Rate at which a known-bad cell has to fail; TE's stock with the background thread fails always
(53 of 53 on an H200). Six failures of six then prove a device."""
KNOWN_GOOD_BELOW = 0.5
"""Rate that a known-good cell is shown below before a device counts as proven."""
FORECAST = 1_000
"""Further control trials beyond which a forecast only says that it takes more."""


class Proof(StrEnum):
    """What the control cells say of a device."""

    PROVEN = "proven"
    UNPROVEN = "unproven"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class ControlVerdict:
    """What the control cells say of one device, with its sentence.

    hides: the known-bad cell is shown to fail too rarely, so passes prove nothing.
    fails_alone: the known-good cell failed, so failures prove nothing.
    trials_needed: about how many further trials of each control cell settle it if the rates stay
        as seen (at most FORECAST), 0 where it is settled.
    """

    proof: Proof
    text: str
    hides: bool = False
    fails_alone: bool = False
    trials_needed: int = 0


def judge_control(
    known_bad: Counts,
    known_good: Counts,
    known_bad_above: float = KNOWN_BAD_ABOVE,
    known_good_below: float = KNOWN_GOOD_BELOW,
    error: float = ERROR,
) -> ControlVerdict:
    """Whether one device tells the known-bad cell from the known-good one.

    The counts are those of one run on that device, or of a recent time: a long good past would hide
    a rate that has just collapsed.

    `unproven` where the known-bad cell is shown to fail less often than `known_bad_above` (a device
    where it does not gets this with a chance of at most error/2, over all looks), and where the
    known-good cell failed even once: it is known never to. `proven` where the known-bad cell is
    shown to fail at least that often and the known-good one, without a failure, to fail less often
    than `known_good_below`; of devices where one of the two is not so, at most error/2 get it.
    `unknown` until then.
    """
    bounds = {"known_bad_above": known_bad_above, "known_good_below": known_good_below}
    for name, value in bounds.items():
        if not 0 < value < 1:
            raise ValueError(f"{name} must be between 0 and 1, got {value}")
    rule = _Rule(known_bad_above, known_good_below, error)
    bad = f"known-bad failed {known_bad.k} of {known_bad.n}"
    good = f"known-good failed {known_good.k} of {known_good.n}"
    if known_good.k:
        hides = rule.hides(known_bad)
        text = f"{good}" + (f", {bad}, under {percent(known_bad_above)}" if hides else "")
        return ControlVerdict(
            Proof.UNPROVEN, f"unproven on this device: {text}", hides, fails_alone=True
        )
    seen = span(confidence_sequence(known_bad.k, known_bad.n, error))
    if rule.hides(known_bad):
        return ControlVerdict(
            Proof.UNPROVEN,
            f"unproven on this device: {bad} ({seen}), under {percent(known_bad_above)}",
            hides=True,
        )
    if rule.proves(known_bad, known_good):
        return ControlVerdict(Proof.PROVEN, f"proven: {bad} ({seen}), {good}")
    needed = forecast.smallest(lambda more: rule.settles(known_bad, known_good, more), FORECAST)
    more = f"about {needed} more" if needed is not None else f"more than {FORECAST} more"
    return ControlVerdict(
        Proof.UNKNOWN,
        f"not yet proven: {bad}, {good}; {more} of each to tell",
        trials_needed=FORECAST if needed is None else needed,
    )


@dataclass(frozen=True)
class _Rule:
    known_bad_above: float
    known_good_below: float
    error: float

    def hides(self, bad: Counts) -> bool:
        return confidence_sequence(bad.k, bad.n, self.error)[1] < self.known_bad_above

    def proves(self, bad: Counts, good: Counts) -> bool:
        return (
            confidence_sequence(bad.k, bad.n, self.error)[0] >= self.known_bad_above
            and not good.k
            and confidence_sequence(good.k, good.n, self.error)[1] < self.known_good_below
        )

    def settles(self, bad: Counts, good: Counts, more: int) -> bool:
        grown = bad.grown_to(bad.n + more) if bad.n else Counts(more, more)
        return self.hides(grown) or self.proves(grown, good.grown_to(good.n + more))
