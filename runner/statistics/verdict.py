"""The verdict of a cell, and of a commit's status on GitHub: what pages, API and statuses show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from runner import rates
from runner.rates import percent
from runner.statistics.comparison import clean_after, compare, interval
from runner.statistics.control import ControlVerdict
from runner.statistics.counts import Counts, span
from runner.statistics.kinds import Kind

STATUS_LENGTH = 140
"""Characters that GitHub takes as the description of a commit status."""
_FROM_PASSES = frozenset({Kind.CLEAN, Kind.FIXED, Kind.NO_WORSE})
"""Kinds that claim that failures are absent or few."""
_FROM_FAILURES = frozenset({Kind.REGRESSED, Kind.RACES})
"""Kinds that claim that failures are the commit's own."""


@dataclass(frozen=True)
class CellVerdict:
    """What a cell's counts support, with its sentence.

    label: the verdict in the words of a table, for example `clean below 5 %`. short: what a commit
        status has room for. interval: of the cell's rate, 95 %.
    trials_needed, base_trials_needed: about how many further trials of the commit and of its base
        would settle it, 0 where none.
    no_worse: shown not to be much worse than a base that already races, also while `undersampled`
        as to `clean`. p: of "not worse than the base", None without a base.
    adaptive: how many trials there are depended on results; the interval and p value allow for it.
    """

    kind: Kind
    label: str
    text: str
    short: str
    interval: tuple[float, float]
    trials_needed: int = 0
    base_trials_needed: int = 0
    no_worse: bool = False
    p: float | None = None
    adaptive: bool = False


def judge_cell(
    head: Counts,
    base: Counts | None,
    clean_below: float,
    control: ControlVerdict | None = None,
    adaptive: bool = False,
    base_control: ControlVerdict | None = None,
) -> CellVerdict:
    """The verdict of one cell at one commit.

    base: the cell's counts at the commit to compare with (empty Counts where it has none yet), None
        where there is nothing to compare with; the verdict is then that of `runner.rates.judge`.
    clean_below: the matrix's bound.
    control: of the device that head's trials ran on, None where it has no control cells. Where its
        known-bad cell hardly fails, what rests on passes (`clean`, `fixed`, `no worse`) becomes
        `unproven`; where its known-good cell fails, so does what rests on failures (`races`,
        `regressed`, `no worse`). A device that is not yet proven changes nothing.
    adaptive: how many trials there are depended on results; the text then says so.
    base_control: of the device that base's trials ran on. Where that failed its control cells,
        `regressed` and `no worse` become `unproven`, and `fixed` becomes what head is by itself.
    """
    doubted = base_control is not None and (base_control.hides or base_control.fails_alone)
    compared = None if base is None else _against(head, base, clean_below, adaptive)
    if compared is None or (doubted and compared.kind is Kind.FIXED):
        verdict = _alone(head, clean_below, adaptive)
    else:
        verdict = compared
    if adaptive and head.n:
        verdict = replace(verdict, text=f"{verdict.text} (adaptive trials)", adaptive=True)
    if control is not None:
        verdict = _controlled(verdict, control)
    if base_control is None or not doubted:
        return verdict
    if verdict.kind in (Kind.REGRESSED, Kind.NO_WORSE):
        return _unproven(verdict, "base unproven", f"its base is {base_control.text}")
    return replace(verdict, no_worse=False)


def _alone(head: Counts, clean_below: float, adaptive: bool) -> CellVerdict:
    limits = interval(head, adaptive)
    kind = Kind(rates.judge(head.k, head.n, clean_below).verdict.value)
    if kind is Kind.CLEAN and limits[1] >= clean_below:
        kind = Kind.UNDERSAMPLED
    if kind is Kind.NOT_MEASURED:
        return CellVerdict(kind, str(kind), str(kind), str(kind), limits)
    bound = f"clean below {percent(clean_below)}"
    label = bound if kind is Kind.CLEAN else str(kind)
    needed, needs = 0, ""
    if kind is Kind.UNDERSAMPLED:
        needed = clean_after(clean_below, adaptive) - head.n
        needs = f"; {needed} more for {bound}"
    return CellVerdict(
        kind=kind,
        label=label,
        text=f"{label}: {head.text} failed ({span(limits)}){needs}",
        short=f"{label}: {head.text}{needs}",
        interval=limits,
        trials_needed=needed,
    )


def _against(head: Counts, base: Counts, clean_below: float, adaptive: bool) -> CellVerdict:
    compared = compare(head, base, clean_below, adaptive)
    return CellVerdict(
        kind=compared.verdict,
        label=compared.label,
        text=compared.text,
        short=compared.short,
        interval=compared.interval,
        trials_needed=compared.trials_needed,
        base_trials_needed=compared.base_trials_needed,
        no_worse=compared.no_worse,
        p=compared.p,
    )


def _controlled(verdict: CellVerdict, control: ControlVerdict) -> CellVerdict:
    doubted: frozenset[Kind] = frozenset()
    if control.hides:
        doubted |= _FROM_PASSES
    if control.fails_alone:
        doubted |= _FROM_FAILURES | {Kind.NO_WORSE}
    if verdict.kind not in doubted:
        # What is still open stays open, but its passes are no ground to call it no worse.
        return replace(verdict, no_worse=False) if control.hides else verdict
    return _unproven(verdict, "unproven on this device", control.text)


def _unproven(verdict: CellVerdict, label: str, why: str) -> CellVerdict:
    return replace(
        verdict,
        kind=Kind.UNPROVEN,
        label=label,
        text=f"{why}; otherwise {verdict.text}",
        short=f"{label}: {verdict.short}",
        no_worse=False,
    )


class State(StrEnum):
    """The states of a commit status on GitHub."""

    FAILURE = "failure"
    SUCCESS = "success"
    PENDING = "pending"
    ERROR = "error"


@dataclass(frozen=True)
class StatusCell:
    """A cell as a commit's status sees it.

    ships: its variant is what the commit ships; other cells do not count.
    errors: trials and builds that could not run (`infra_error`, `build_error`). unsupported: trials
        that the device or the commit cannot run.
    """

    name: str
    ships: bool
    verdict: CellVerdict
    errors: int = 0
    unsupported: int = 0


@dataclass(frozen=True)
class StatusDecision:
    """A commit status: its state, and a text of at most STATUS_LENGTH characters."""

    state: State
    text: str


def status_of(cells: Iterable[StatusCell]) -> StatusDecision:
    """The status of a commit from its cells that ship, the first of these that is so.

    - `failure`: a cell is worse than at the base, newly failing, or races with no base to compare.
    - `pending`: a cell has no trial yet, or too few.
    - `error`: a cell could not run, or is unproven on its device; nothing ships or is supported.
    - `success`: every cell is clean below the bound or no worse than a base that already races.

    Cells that are unsupported count no more than they would in the runner's exit status: not at
    all, where another one was measured. Each cell has its own error, and those of c cells add up:
    a commit that brings nothing gets `failure` with a chance of at most c %.
    """
    shipped = [cell for cell in cells if cell.ships]
    supported = [cell for cell in shipped if _standing(cell) is not None]
    if not supported:
        what = f"{shipped[0].name}: unsupported" if shipped else "no cell of the matrix ships"
        return StatusDecision(State.ERROR, _cut(what, STATUS_LENGTH))
    for state in (State.FAILURE, State.PENDING, State.ERROR, State.SUCCESS):
        decisive = [cell for cell in supported if _standing(cell) is state]
        if decisive:
            break
    first = min(decisive, key=_urgency)
    return StatusDecision(state, _fitted(first, [c for c in supported if c is not first]))


def _standing(cell: StatusCell) -> State | None:
    """The status that the cell alone would give, None where it is unsupported."""
    match cell.verdict.kind:
        case Kind.REGRESSED | Kind.RACES:
            return State.FAILURE
        case Kind.CLEAN | Kind.FIXED | Kind.NO_WORSE:
            return State.SUCCESS
        case Kind.UNPROVEN:
            return State.ERROR
        case Kind.UNDERSAMPLED:
            return State.SUCCESS if cell.verdict.no_worse else State.PENDING
        case Kind.NOT_MEASURED:
            if cell.errors:
                return State.ERROR
            return None if cell.unsupported else State.PENDING


_URGENCY = (
    Kind.REGRESSED,
    Kind.RACES,
    Kind.NOT_MEASURED,
    Kind.UNPROVEN,
    Kind.NO_WORSE,
    Kind.UNDERSAMPLED,
    Kind.FIXED,
    Kind.CLEAN,
)


def _urgency(cell: StatusCell) -> tuple[int, float, int]:
    """Sorts first what a reader has to hear of: kind, then how sure, then how far from settled."""
    verdict = cell.verdict
    p = 1.0 if verdict.p is None else verdict.p
    return _URGENCY.index(verdict.kind), p, -verdict.trials_needed


def _fitted(first: StatusCell, others: Sequence[StatusCell]) -> str:
    """The first cell in full and the others by kind, as far as there is room."""
    said = first.verdict.short
    if _told(first.verdict) is not first.verdict.kind:
        said = f"no worse, {said}"
    if first.errors and first.verdict.kind is Kind.NOT_MEASURED:
        said = f"could not run ({first.errors} error{'s' if first.errors > 1 else ''})"
    kinds = [_told(cell.verdict) for cell in others]
    counted = [f"{kinds.count(kind)} {kind}" for kind in _URGENCY if kind in kinds]
    full = "; " + ", ".join(counted) if others else ""
    fewer = f" (+{len(others)} more)" if others else ""
    for tail in (full, fewer):
        text = f"{first.name}: {said}{tail}"
        if len(text) <= STATUS_LENGTH:
            return text
    name = _cut(first.name, max(12, STATUS_LENGTH - len(f": {said}{fewer}")))
    return _cut(f"{name}: {said}{fewer}", STATUS_LENGTH)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _told(verdict: CellVerdict) -> Kind:
    """The kind as a status counts it: no worse is enough for it, though `clean` is still open."""
    undecided = verdict.kind is Kind.UNDERSAMPLED and verdict.no_worse
    return Kind.NO_WORSE if undecided else verdict.kind
