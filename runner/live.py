"""The live table in a terminal while a run goes on."""

from __future__ import annotations

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from runner import report
from runner.rates import Verdict
from runner.result import Event, Fold, TrialFinished

_STYLES = {Verdict.RACES: "bold red", Verdict.CLEAN: "green", Verdict.UNDERSAMPLED: "yellow"}


class LiveProgress(report.PlainProgress):
    """Redraws the table at each event."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def show(self, event: Event, fold: Fold) -> None:
        """Draw the state after this event."""
        if fold.started is None:
            return
        table = Table(*report.headings(fold), box=None, pad_edge=False)
        for cell, row in zip(fold.cells(), report.rows(fold), strict=True):
            table.add_row(*map(_text, row), style=_STYLES.get(cell.judgement.verdict, ""))
        total = max(fold.started.trials_planned, len(fold.trials))
        bar = ProgressBar(total=total, completed=len(fold.trials), width=40)
        last = ""
        if isinstance(event, TrialFinished):
            last = f"{len(fold.trials)}/{total}  {event.cell}: {event.outcome} {event.signature}"
        lines = [_text(line) for line in report.heading(fold.started)]
        self._live.update(Group(*lines, table, bar, Text(report.plain(last), no_wrap=True)))


def _text(text: str) -> Text:
    return Text(report.plain(text))
