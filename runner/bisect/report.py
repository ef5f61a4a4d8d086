"""A bisection as plain lines: what happened, what follows, and how sure it is."""

from __future__ import annotations

from typing import TextIO

from runner.bisect.bisection import Bisection, Stage
from runner.bisect.local import Step, told
from runner.bisect.verdict import sure


class PlainView:
    """Prints what happened, what follows, and how sure it is."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def show(self, step: Step) -> None:
        """Print one step."""
        if step.event is None:
            if step.decision.verdict is None:
                print(step.decision.text, file=self._out, flush=True)
            return
        print(
            f"  {told(step.event, step.state)}{_likeliest(step.state)}", file=self._out, flush=True
        )


def _likeliest(state: Bisection) -> str:
    if state.stage is not Stage.SEARCH:
        return ""
    posterior = state.posterior
    place = max(range(1, len(posterior.steps)), key=lambda i: posterior.steps[i])
    blamed = state.range.classes[place].blamed or state.range.classes[place].commit
    if posterior.none >= posterior.steps[place]:
        return f"; no change: {sure(posterior.none)}"
    return f"; likeliest {blamed.sha[:12]}: {sure(posterior.steps[place])}"
