"""Control cells: trials of a pinned reference build on each device, beside the cells of a run.

The known-bad cell has to fail there and the known-good one must not; else what the device says of
other commits proves nothing. How many failures prove what is `runner.statistics.control`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeVar

from runner.matrix import Cell, Program
from runner.outcome import FAILURES, Outcome
from runner.statistics.control import ControlVerdict, Proof, judge_control
from runner.statistics.counts import Counts
from runner.variants.names import Variant

PREFIX = "control: "
"""How the names of control trials begin. No cell of a matrix has such a name."""


class Control(StrEnum):
    """What a control trial is known to do."""

    KNOWN_BAD = "known-bad"
    KNOWN_GOOD = "known-good"


def cell(control: Control) -> Cell:
    """The cell of control trials: stock with and without the background thread, never held."""
    return Cell(
        name=f"{PREFIX}{control}",
        variant=Variant.parse("stock"),
        program=Program.NORM_ACT_GEMM,
        background=control is Control.KNOWN_BAD,
        trials=1,
    )


def control_of(name: str) -> Control | None:
    """What a trial of a cell of that name is known to do; None where it is no control trial."""
    return _BY_NAME.get(name)


_BY_NAME = {f"{PREFIX}{control}": control for control in Control}


def none_for(reason: str) -> str:
    """What a run says of itself that has no control cells although its matrix asks for some."""
    return f"no control cells, so no device is proven: {reason}"


@dataclass(frozen=True)
class DeviceControl:
    """What the control cells of one device showed. Other outcomes than these prove nothing."""

    device: str
    known_bad: Counts = field(default_factory=Counts)
    known_good: Counts = field(default_factory=Counts)

    def with_trials(self, control: str, outcome: Outcome, count: int = 1) -> DeviceControl:
        """The same with further trials."""
        if outcome not in FAILURES and outcome is not Outcome.PASS:
            return self
        more = Counts(count if outcome in FAILURES else 0, count)
        if control == Control.KNOWN_BAD:
            return replace(self, known_bad=self.known_bad + more)
        return replace(self, known_good=self.known_good + more)

    @property
    def verdict(self) -> ControlVerdict:
        """Whether the device is proven."""
        return judge_control(self.known_bad, self.known_good)

    def as_json(self) -> dict[str, Any]:
        """As a row of the result has it."""
        verdict = self.verdict
        return {**asdict(self), "proof": str(verdict.proof), "text": verdict.text}


def tally(trials: Iterable[tuple[str, str, Outcome, int]]) -> dict[str, DeviceControl]:
    """The controls of each device, from (device, control, outcome, count) of control trials."""
    found: dict[str, DeviceControl] = {}
    for device, control, outcome, count in trials:
        known = found.get(device, DeviceControl(device))
        found[device] = known.with_trials(control, outcome, count)
    return dict(sorted(found.items()))


def worst(verdicts: Iterable[ControlVerdict]) -> ControlVerdict | None:
    """What trials on several devices can prove: no more than the least proven of them can.

    None without a device that has control cells.
    """
    ranks = (Proof.UNPROVEN, Proof.UNKNOWN, Proof.PROVEN)
    ordered = sorted(verdicts, key=lambda one: ranks.index(one.proof))
    if not ordered:
        return None
    hides = any(one.hides for one in ordered)
    fails = any(one.fails_alone for one in ordered)
    alike = sorted({one.text for one in ordered if one.proof is ordered[0].proof})
    text = "; ".join(alike) if ordered[0].proof is Proof.UNPROVEN else alike[0]
    return replace(ordered[0], text=text, hides=hides, fails_alone=fails)


_Item = TypeVar("_Item")


def spread(items: Sequence[_Item], among: Sequence[_Item]) -> list[_Item]:
    """Both in one list, `items` evenly among the others, each in its own order."""
    merged: list[_Item] = []
    placed = 0
    for n, other in enumerate(among):
        due = -(-(n + 1) * len(items) // (len(among) + 1))
        merged += [*items[placed:due], other]
        placed = due
    return [*merged, *items[placed:]]


__all__ = [
    "PREFIX",
    "Control",
    "DeviceControl",
    "cell",
    "control_of",
    "none_for",
    "spread",
    "tally",
    "worst",
]
