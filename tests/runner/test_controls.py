"""Control cells: which device is proven, what that is worth, and who is taken out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from runner import controls, report
from runner.controls import Control, DeviceControl
from runner.demo_subject import DemoSubject
from runner.matrix import CONTROL_TRIALS, from_data, load
from runner.outcome import FAILURES, Outcome
from runner.rates import Verdict
from runner.result import Fold, TrialFinished, dump
from runner.result import load as load_event
from runner.run import Base, BuildId, Plan, Run
from runner.sandbox.base import ParentHandle
from runner.sandbox.process import ProcessSandbox
from runner.statistics.control import Proof
from runner.statistics.counts import Counts
from runner.subject import Request
from runner.trial.program import ParentConfig
from runner.variants.names import BuildKind

STOCK = BuildId(BuildKind.STOCK)
ALONE = {"name": "stock, alone", "variant": "stock", "background": False, "trials": 24}
BACKGROUND = {"name": "stock, background", "variant": "stock", "trials": 24}
HIDES = {"EMULATION_RATE": "0.0001"}
"""Of a device that hardly ever lets the race happen."""


class Devices(ProcessSandbox):
    """The emulation, one device of which behaves as if it had an environment of its own."""

    def __init__(self, plan: Plan, of: str, environment: dict[str, str]) -> None:
        shared = {"EMULATION_DEVICES": "2"}
        super().__init__(plan.folder, environment=shared)
        self._of = of
        self._odd = ProcessSandbox(plan.folder / "odd", environment=shared | environment)
        (plan.folder / "odd").mkdir()

    def start(self, config: ParentConfig) -> ParentHandle:
        """See Sandbox."""
        return self._odd.start(config) if config.device == self._of else super().start(config)


Controlled = Callable[..., Fold]


@pytest.fixture
def controlled(demo: DemoSubject, plan: Callable[..., Plan]) -> Controlled:
    """Run cells of the demo's fix with control cells of a commit, by default of the pinned one."""

    def carry_out(
        *cells: dict[str, object],
        odd: str = "",
        environment: dict[str, str] | None = None,
        control: str = "",
        trials: int = CONTROL_TRIALS,
        devices: tuple[str, ...] = ("0", "1"),
        ref: str = "fix",
    ) -> Fold:
        planned = plan(*cells, devices=devices, ref=ref, parallel=1)
        pinned = demo.resolve(Request(ref=control)) if control else demo.control()
        planned = replace(
            planned,
            matrix=replace(planned.matrix, controls=trials, clean_below=0.2),
            control=Base(pinned, demo.build(pinned, STOCK)),
        )
        run = Run(planned, Devices(planned, odd, environment or {}))
        fold = Fold()
        for event in run:
            fold.add(load_event(dump(event)))
        return fold

    return carry_out


def verdicts(fold: Fold) -> dict[str, Verdict]:
    return {cell.cell.name: cell.judgement.verdict for cell in fold.cells()}


def test_every_device_is_proven_by_trials_of_the_pinned_commit(controlled: Controlled) -> None:
    fold = controlled(ALONE, BACKGROUND)
    assert fold.started.control.ref == "race"
    assert {name: one.verdict.proof for name, one in fold.controls.items()} == {
        "0": Proof.PROVEN,
        "1": Proof.PROVEN,
    }
    for one in fold.controls.values():
        assert one.known_bad == Counts(CONTROL_TRIALS, CONTROL_TRIALS)
        assert one.known_good == Counts(0, CONTROL_TRIALS)
    assert verdicts(fold) == {"stock, alone": Verdict.CLEAN, "stock, background": Verdict.CLEAN}
    assert fold.exit_code == 0
    assert len(fold.trials) == fold.started.trials_planned == 24 + 24 + 4 * CONTROL_TRIALS
    assert {t.control for t in fold.trials.values()} == {"", "known-bad", "known-good"}
    assert sum(cell.n for cell in fold.cells()) == 48, "control trials count in no cell"
    said = report.table(fold)
    assert "device 1, control cells: proven: known-bad failed 6 of 6" in said


def test_what_is_clean_on_a_device_that_hides_races_is_unproven(controlled: Controlled) -> None:
    fold = controlled(BACKGROUND, odd="0", environment=HIDES, devices=("0",))
    (cell,) = fold.cells()
    assert (cell.k, cell.n) == (0, 24)
    assert cell.judgement.verdict is Verdict.UNPROVEN
    assert cell.judgement.text.startswith("unproven on this device: known-bad failed 0 of 6")
    assert fold.exit_code == 3
    assert fold.ended.status == "complete"
    row = fold.as_json()["cells"][0]
    assert row["verdict"] == "unproven"
    assert fold.as_json()["controls"][0]["proof"] == "unproven"


def test_a_device_that_hides_races_is_taken_out_and_the_others_go_on(
    controlled: Controlled,
) -> None:
    fold = controlled({**BACKGROUND, "trials": 60}, odd="1", environment=HIDES, ref="race")
    (cell,) = fold.cells()
    assert cell.n == 60, "what it would have run is run elsewhere"
    (note,) = fold.ended.notes
    assert note.startswith("device 1 was taken out: unproven on this device: known-bad failed 0 of")
    last = max(n for n, t in enumerate(fold.trials.values()) if t.device == "1")
    proven = [
        n
        for n, t in enumerate(fold.trials.values())
        if t.device == "1" and t.control == Control.KNOWN_BAD
    ]
    assert len(proven) == CONTROL_TRIALS
    assert last <= proven[-1] + 4, "no trial goes to it once that is known"
    assert fold.controls["0"].verdict.proof is Proof.PROVEN


def test_failures_are_unproven_where_the_known_good_cell_fails(controlled: Controlled) -> None:
    # The emulation never fails alone, so one trial of a real run is told as if it had.
    real = controlled(BACKGROUND, {**ALONE, "trials": 2}, devices=("0",), ref="race")
    assert verdicts(real)["stock, background"] is Verdict.RACES
    assert real.exit_code == 1
    good = next(t for t in real.trials.values() if t.control == Control.KNOWN_GOOD)
    real.trials[good.index] = replace(good, outcome=Outcome.CRASH)
    assert verdicts(real) == {
        "stock, background": Verdict.UNPROVEN,
        "stock, alone": Verdict.UNDERSAMPLED,
    }
    assert real.exit_code == 3


def test_a_pinned_commit_that_does_not_race_proves_nothing(controlled: Controlled) -> None:
    fold = controlled(BACKGROUND, control="fix", devices=("0",))
    assert fold.controls["0"].verdict.hides
    assert verdicts(fold) == {"stock, background": Verdict.UNPROVEN}


def test_trials_without_controls_are_as_before(controlled: Controlled) -> None:
    fold = controlled(ALONE, trials=0, devices=("0",))
    assert fold.controls == {}
    assert verdicts(fold) == {"stock, alone": Verdict.CLEAN}
    assert {t.control for t in fold.trials.values()} == {""}


def test_controls_are_spread_among_the_others() -> None:
    for items in range(8):
        for among in range(8):
            merged = controls.spread([-1] * items, list(range(among)))
            assert [n for n in merged if n >= 0] == list(range(among))
            assert merged.count(-1) == items
            gaps = "".join("x" if n < 0 else "." for n in merged).split(".")
            assert max(map(len, gaps)) - min(map(len, gaps)) <= 1 or not among


@pytest.mark.parametrize("outcome", sorted(set(Outcome) - FAILURES - {Outcome.PASS}))
def test_what_could_not_run_proves_nothing(outcome: Outcome) -> None:
    assert DeviceControl("0").with_trials("known-good", outcome) == DeviceControl("0")


def test_results_are_worth_what_the_least_proven_device_is() -> None:
    proven = DeviceControl("0", Counts(6, 6), Counts(0, 6)).verdict
    hides = DeviceControl("1", Counts(0, 6), Counts(0, 6)).verdict
    alone = DeviceControl("2", Counts(6, 6), Counts(1, 6)).verdict
    assert controls.worst([]) is None
    assert controls.worst([proven]) == proven
    assert controls.worst([proven, hides]) == hides
    both = controls.worst([hides, proven, alone])
    assert both is not None
    assert (both.proof, both.hides, both.fails_alone) == (Proof.UNPROVEN, True, True)
    assert both.text == "; ".join(sorted({hides.text, alone.text}))
    assert controls.worst([alone, hides]) == controls.worst([hides, alone])


def test_matrices_say_how_many_control_trials_there_are() -> None:
    assert load("quick").controls == CONTROL_TRIALS
    assert load("quick").with_controls(False).controls == 0
    assert load("quick").with_controls(None).controls == CONTROL_TRIALS
    bare = from_data({"name": "bare", "cells": [{"variant": "stock"}]})
    assert bare.controls == 0
    assert bare.with_controls(True).controls == CONTROL_TRIALS


def test_only_the_names_of_control_trials_say_what_is_known_of_them() -> None:
    for name, control in {
        "control: known-bad": "known-bad",
        "control: known-good": "known-good",
        "control: known-odd": "",
        "stock, background": "",
    }.items():
        assert TrialFinished("run", 0, name, Outcome.PASS, "", "").control == control
