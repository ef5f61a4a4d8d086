"""The live table: redrawn in a terminal at each event."""

from __future__ import annotations

import io

from rich.console import Console
from rich.live import Live

from runner.live import LiveProgress
from runner.matrix import parse
from runner.outcome import Outcome
from runner.result import Commit, Device, Event, Fold, RunEnded, RunStarted, TrialFinished

STARTED = RunStarted(
    run="r",
    subject="demo",
    commit=Commit("a" * 40, "race"),
    device=Device("emulated", "emulated device", ids=("0",)),
    matrix=parse('[[cells]]\nname = "stock"\nvariant = "stock"', "m"),
    parallel=2,
    sandbox="process",
    toolchain="t",
    harness="1",
    started="2026-11-30T00:00:00+00:00",
    trials_planned=3,
)


def trial(index: int, signature: str = "cudaErrorX") -> TrialFinished:
    return TrialFinished("r", index, "stock", Outcome.CAPTURE_ERROR, signature, "reason")


def test_nothing_that_a_trial_says_steers_the_terminal() -> None:
    assert "\x1b[2J" not in drawn(STARTED, trial(0, "a\x1b[2Jb"))


def drawn(*events: Event) -> str:
    """What is on the screen after these events."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120, color_system=None)
    fold = Fold()
    with Live(console=console, auto_refresh=False) as live:
        progress = LiveProgress(live)
        for event in events:
            fold.add(event)
            progress.show(event, fold)
        live.refresh()
    return out.getvalue()


def test_the_table_stands_before_the_first_trial() -> None:
    screen = drawn(STARTED)
    assert "EMULATED" in screen
    assert "stock" in screen


def test_each_trial_is_counted_and_named() -> None:
    screen = drawn(STARTED, trial(0), trial(1))
    assert "2/3  stock: capture_error cudaErrorX" in screen
    assert "2 capture_error" in screen


def test_more_trials_than_planned_do_not_overflow() -> None:
    assert "5/5" in drawn(STARTED, *(trial(n) for n in range(5)))


def test_a_signature_is_text_and_no_markup() -> None:
    assert "[bold]x[/nonsense]" in drawn(STARTED, trial(0, "[bold]x[/nonsense]"))


def test_an_end_without_a_start_draws_nothing() -> None:
    assert "trials" not in drawn(RunEnded("r", "failed"))
