"""A run as text: the issue's table at its end, and a plain line as each trial finishes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from runner.outcome import FAILURES, Outcome
from runner.rates import percent
from runner.result import CellResult, Event, Fold, RunStarted, TrialFinished

HEADINGS = ("cell", "trials", "failed", "outcomes", "rate", "95 % interval", "verdict")
FOREIGN_WORK = "trials with foreign work"
"""Heading of one more column, where the detector watched."""
SWALLOWED_ROWS = 8
"""Of how many APIs and threads it is said what they lost; the result has all of them."""
EMULATED = "EMULATED: no GPU took part; these rates say nothing about a real device"


def plain(text: str) -> str:
    """Text that a terminal shows and does not obey: a commit's own words may be in it."""
    return "".join(
        sign if sign.isprintable() or sign == "\n" else "\N{REPLACEMENT CHARACTER}" for sign in text
    )


def headings(fold: Fold) -> tuple[str, ...]:
    """What the table's columns hold."""
    watched = any(cell.swallow for cell in fold.cells())
    return (*HEADINGS, FOREIGN_WORK) if watched else HEADINGS


def rows(fold: Fold) -> list[tuple[str, ...]]:
    """The table's rows as text, one a cell, in the order of `headings`."""
    columns = len(headings(fold))
    return [(*_row(cell), _foreign_work(cell))[:columns] for cell in fold.cells()]


def _foreign_work(cell: CellResult) -> str:
    if cell.swallow is None:
        return "-"
    return f"{cell.swallow.k}/{cell.swallow.n}, {_range(cell.swallow.interval)}"


def _range(interval: tuple[float, float]) -> str:
    low, high = interval
    return f"{percent(low).removesuffix(' %')} to {percent(high)}"


def _row(cell: CellResult) -> tuple[str, ...]:
    return (
        cell.cell.name,
        str(cell.n),
        str(cell.k) if cell.n else "-",
        outcomes(cell),
        percent(cell.rate) if cell.rate is not None else "-",
        _range(cell.interval) if cell.n else "-",
        cell.judgement.text,
    )


def outcomes(cell: CellResult) -> str:
    """Counts by outcome in the order of the enum, for example `8 capture_error, 2 crash`.

    Passes in which a capture swallowed another thread's work are counted apart.
    """
    counts = {str(outcome): cell.counts[outcome] for outcome in Outcome}
    swallowed = cell.swallow.passes if cell.swallow else 0
    said = []
    for name, count in counts.items():
        if name == Outcome.PASS:
            said += [(count - swallowed, name), (swallowed, f"{name} (swallow)")]
        else:
            said.append((count, name))
    return ", ".join(f"{count} {name}" for count, name in said if count) or "-"


def table(fold: Fold) -> str:
    """The whole closing table, with what it was measured on and the parity of the outputs."""
    if fold.started is None:
        return "nothing was run"
    body = rows(fold)
    lines = [*heading(fold.started), "", *_columns([headings(fold), *body]), ""]
    lines += closing(fold)
    return plain("\n".join(lines))


def heading(started: RunStarted) -> list[str]:
    """What was run and on what."""
    commit, device = started.commit, started.device
    title = f" {commit.title}" if commit.title else ""
    versions = [f"driver {device.driver}"] if device.driver else []
    versions += [f"JAX {device.jax}"] if device.jax else []
    versions += [f"TE {device.te}"] if device.te else []
    major, minor = device.compute_capability
    capability = f" (compute capability {major}.{minor})" if major else ""
    lines = [EMULATED] if device.emulated else []
    lines.append(f"{started.subject} {commit.ref} {commit.sha[:12]}{title}")
    count = f"{len(device.ids)} x " if len(device.ids) > 1 else ""
    lines.append(
        ", ".join([f"{count}{device.name}{capability}", *versions])
        + f"; matrix {started.matrix.name}, {started.parallel} at a time"
    )
    if not started.trial_mode.startswith("fork"):
        lines.append(f"trials: {started.trial_mode}")
    return lines


def closing(fold: Fold) -> list[str]:
    """Parity, how the run ended, and what the exit status says."""
    parity = fold.parity
    lines = [f"outputs of {parity.between}: {parity.status} ({parity.reason})"]
    lines += _swallowed(fold)
    lines += [
        f"device {device}, control cells: {one.verdict.text}"
        for device, one in fold.controls.items()
    ]
    lost = [t for t in fold.trials.values() if t.outcome is Outcome.INFRA_ERROR]
    if lost:
        signatures = sorted({trial.signature for trial in lost})
        lines.append(f"{len(lost)} infra_error, not counted: {'; '.join(signatures)}")
    if fold.ended is not None:
        lines += fold.ended.notes
    so_far = ""
    if fold.ended is None:
        lines.append("interrupted: the stream of events stops early")
        so_far = "so far "
    elif fold.ended.status != "complete":
        lines.append(f"{fold.ended.status}: {fold.ended.reason}")
        so_far = "so far "
    else:
        lines.append(f"{len(fold.trials)} trials in {fold.ended.seconds:.1f} s")
    lines.append(so_far + _ANSWERS[fold.exit_code])
    return lines


def _swallowed(fold: Fold) -> list[str]:
    """Whose work capture windows took in, where the detector watched."""
    rates = [cell.swallow for cell in fold.cells() if cell.swallow]
    if not rates:
        return []
    k, n, passes = (sum(getattr(rate, name) for rate in rates) for name in ("k", "n", "passes"))
    lines = [f"foreign work in capture windows: {k} of {n} watched trials, {passes} of them passed"]
    work = fold.swallowed
    lines += [
        f"  swallowed: {one.count} {one.api} of {one.thread or 'others'} in {one.trials} trials"
        for one in work[:SWALLOWED_ROWS]
    ]
    if work[SWALLOWED_ROWS:]:
        rest = sum(one.count for one in work[SWALLOWED_ROWS:])
        lines.append(f"  swallowed: {rest} more, of {len(work) - SWALLOWED_ROWS} APIs and threads")
    return lines


_ANSWERS = {
    0: "no cell that ships fails",
    1: "the race is there",
    3: "the race could not be measured",
}
"""What an exit status says."""


def _columns(body: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in body) for i in range(len(body[0]))]
    right = {1, 2, 4, 5}
    lines = []
    for n, row in enumerate(body):
        cells = [
            text.rjust(width) if i in right else text.ljust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
        if n == 0:
            lines.append("  ".join("-" * width for width in widths))
    return lines


def markdown(fold: Fold) -> str:
    """The table for a GitHub comment."""
    names = headings(fold)
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    lines += [
        "| " + " | ".join(text.replace("|", "\\|") for text in row) + " |" for row in rows(fold)
    ]
    started = [] if fold.started is None else heading(fold.started)
    return "\n".join([*started, "", *lines, "", *closing(fold)])


class PlainProgress:
    """Writes one line an event, for a log file or a pipe."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._done = 0
        self._planned = 0

    def show(self, event: Event, fold: Fold) -> None:
        """Write the line of one event; `fold` holds it already."""
        if isinstance(event, RunStarted):
            self._planned = event.trials_planned
            print(plain("\n".join(heading(event))), file=self._out, flush=True)
        elif isinstance(event, TrialFinished):
            self._done += 1
            said = [event.signature] if event.outcome is not Outcome.PASS else []
            if event.swallow is not None and event.swallowed:
                said.append(f"swallow: {event.swallow.reached}")
            detail = f" ({', '.join(said)})" if said else ""
            mark = "!" if event.outcome in FAILURES else " "
            print(
                f"{mark} [{self._done}/{max(self._planned, self._done)}] {event.cell}: "
                f"{event.outcome}{plain(detail)} {event.seconds:.1f} s",
                file=self._out,
                flush=True,
            )
