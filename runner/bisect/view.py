"""A bisection in the terminal: a live table of the likeliest commits."""

from __future__ import annotations

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from runner.bisect.bisection import Bisection
from runner.bisect.local import Step, told
from runner.bisect.report import PlainView
from runner.bisect.verdict import named, sure

SUSPECTS = 10
BAR = 24


class LiveView(PlainView):
    """Redraws a table of the likeliest commits at each step; what happened stays above it."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def show(self, step: Step) -> None:
        """Draw the state after this step."""
        if step.event is not None:
            self._live.console.print(
                f"{told(step.event, step.state)}", highlight=False, markup=False
            )
        self._live.update(Group(Text(step.decision.text), _table(step.state)))


def _table(state: Bisection) -> Table:
    table = Table(
        "commit", "", "probability", state.settings.observe.done, box=None, pad_edge=False
    )
    posterior = state.posterior
    classes = state.range.classes
    rows = sorted(range(1, len(classes)), key=lambda i: -posterior.steps[i])[:SUSPECTS]
    for place in sorted(rows):
        each = classes[place]
        chance = posterior.steps[place]
        tally = state.tallies.get(each.key)
        table.add_row(
            Text(named(each.blamed or each.commit)[:70]),
            Text("█" * round(BAR * chance), style="bold red"),
            Text(sure(chance)),
            Text(tally.text if tally and tally.n else state.broken.get(each.key, "")[:40]),
        )
    table.add_row(
        Text("no change"), Text("█" * round(BAR * posterior.none)), Text(sure(posterior.none)), ""
    )
    return table
