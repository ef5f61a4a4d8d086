"""A run of the demo: every outcome on demand, and what becomes of a trial that is lost."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.detector import record
from runner.detector.record import NO_RECORD, Detector
from runner.matrix import load
from runner.outcome import Outcome
from runner.result import Device, Event, Fold, RunStarted, SwallowRate, TrialFinished
from runner.run import (
    Base,
    BuildId,
    Plan,
    PreparedBuild,
    Run,
    builds_of,
    default_parallel,
    needs_base,
)
from runner.sandbox.process import ProcessSandbox
from runner.subject import Request
from runner.trial.supervise import Deadlines
from runner.variants.names import BuildKind

RunDemo = Callable[..., Fold]
Eventually = Callable[[Callable[[], object], str], None]
BACKGROUND = {"name": "stock, background", "variant": "stock", "trials": 3}
ALONE = {"name": "stock, alone", "variant": "stock", "background": False, "trials": 3}
OWNED = {"name": "owned-stream", "variant": "owned-stream", "trials": 3}
QUICK = Deadlines(progress=1.0)


def counts(fold: Fold, cell: str = "stock, background") -> dict[Outcome, int]:
    return next(dict(row.counts) for row in fold.cells() if row.cell.name == cell)


@pytest.mark.parametrize(
    ("work", "outcome"),
    [
        ("synchronize", Outcome.CAPTURE_ERROR),
        ("record", Outcome.CRASH),
        ("wait", Outcome.HANG),
        ("copy", Outcome.DATA_LOSS),
        ("feed", Outcome.WRONG_OUTPUT),
    ],
)
def test_each_way_to_fail_happens_on_demand(run_demo: RunDemo, work: str, outcome: Outcome) -> None:
    deadlines = QUICK if outcome is Outcome.HANG else Deadlines()
    fold = run_demo(BACKGROUND, environment={"EMULATION_BACKGROUND": work}, deadlines=deadlines)
    assert counts(fold) == {outcome: 3}
    assert fold.exit_code == 1


@pytest.mark.parametrize("work", ["mix", "synchronize", "record", "wait", "copy", "feed"])
def test_without_the_captures_on_a_shared_stream_none_of_them_happens(
    run_demo: RunDemo, work: str
) -> None:
    unregistered = {"name": "unregistered", "variant": "unregistered", "trials": 2}
    held = {"name": "held", "variant": "owned-stream", "hold_ms": 20, "trials": 2}
    fold = run_demo(unregistered, held, environment={"EMULATION_BACKGROUND": work})
    assert counts(fold, "unregistered") == {Outcome.PASS: 2}
    assert counts(fold, "held") == {Outcome.PASS: 2}


def test_the_race_needs_the_other_thread(run_demo: RunDemo) -> None:
    assert counts(run_demo(ALONE), "stock, alone") == {Outcome.PASS: 3}


def test_the_thirteen_bring_the_race_to_the_second_program(run_demo: RunDemo) -> None:
    softmax = {"program": "softmax-quantize-router", "trials": 3}
    fold = run_demo(
        {"name": "stock", "variant": "stock", **softmax},
        {"name": "ffi13", "variant": "ffi13", "hold_ms": 20, **softmax},
        {"name": "fix", "variant": "ffi13+owned-stream", **softmax},
    )
    assert [(row.cell.name, row.k, row.n) for row in fold.cells()] == [
        ("stock", 0, 3), ("ffi13", 3, 3), ("fix", 0, 3),
    ]  # fmt: skip


def test_a_failure_keeps_its_evidence(run_demo: RunDemo) -> None:
    fold = run_demo(BACKGROUND, environment={"EMULATION_BACKGROUND": "copy"})
    trial = fold.of_cell(fold.started.matrix.cells[0])[0]
    assert trial.evidence["stale_rows"] > 0
    assert trial.evidence["platform"] == "emulated"
    assert trial.background_updates > 0
    assert trial.recipe == "fp8-current-scaling"
    assert set(trial.times) >= {"device", "compile", "execute", "background", "compare"}


def test_an_instrumented_trial_tells_which_handlers_it_entered(run_demo: RunDemo) -> None:
    fold = run_demo(OWNED)
    (trial, *_) = fold.of_cell(fold.started.matrix.cells[0])
    assert {name.removesuffix("FFI").removesuffix("Initialize") for name in trial.handlers} == {
        "NormForward", "NormBackward", "ActLu", "DActLuDBiasQuantize",
    }  # fmt: skip


def test_a_cell_whose_handlers_are_never_entered_is_unsupported(run_demo: RunDemo) -> None:
    # At this commit the second program's handlers have no initialize stage to hold open.
    held = {"name": "held", "variant": "stock", "program": "softmax-quantize-router",
            "hold_ms": 20, "trials": 2}  # fmt: skip
    fold = run_demo(held)
    assert counts(fold, "held") == {Outcome.UNSUPPORTED: 2}
    assert {t.signature for t in fold.trials.values() if t.cell == "held"} == {
        "handler not reached"
    }


def test_a_device_that_cannot_run_the_recipe_is_unsupported(run_demo: RunDemo) -> None:
    fold = run_demo({**BACKGROUND, "recipe": "nvfp4"})
    assert counts(fold) == {Outcome.UNSUPPORTED: 3}
    assert fold.exit_code == 3


# What captures swallow


WATCHED = Detector()
"""The emulation's own."""


def swallowed(fold: Fold, cell: str) -> SwallowRate | None:
    return next(row.swallow for row in fold.cells() if row.cell.name == cell)


def test_a_capture_on_a_shared_stream_swallows_and_on_an_owned_one_it_does_not(
    run_demo: RunDemo,
) -> None:
    unregistered = {"name": "unregistered", "variant": "unregistered", "trials": 3}
    fold = run_demo(
        BACKGROUND, ALONE, OWNED, unregistered,
        detector=WATCHED, environment={"EMULATION_BACKGROUND": "copy"},
    )  # fmt: skip
    assert swallowed(fold, "stock, background") == SwallowRate(3, 3, 0)
    for cell in ("stock, alone", "owned-stream", "unregistered"):
        assert swallowed(fold, cell) == SwallowRate(0, 3, 0)
    windows = {t.cell: t.swallow.windows for t in fold.trials.values()}
    assert windows == {
        "stock, background": 4, "stock, alone": 4, "owned-stream": 4, "unregistered": 0,
    }  # fmt: skip
    assert {(one.api, one.thread, one.trials) for one in fold.swallowed} == {
        ("cudaMemcpyAsync", "background", 3), ("cudaLaunchKernel", "background", 3),
    }  # fmt: skip
    assert fold.ended.notes == ()


@pytest.mark.parametrize(("work", "outcome"), [("record", Outcome.CRASH), ("wait", Outcome.HANG)])
def test_trials_that_crash_or_hang_tell_what_was_swallowed(
    run_demo: RunDemo, work: str, outcome: Outcome
) -> None:
    environment = {"EMULATION_BACKGROUND": work}
    fold = run_demo(BACKGROUND, detector=WATCHED, environment=environment, deadlines=QUICK)
    assert counts(fold) == {outcome: 3}
    assert swallowed(fold, "stock, background") == SwallowRate(3, 3, 0)


def test_what_is_repaired_passes_and_is_told_apart(run_demo: RunDemo) -> None:
    environment = {"EMULATION_BACKGROUND": "refresh"}
    fold = run_demo(BACKGROUND, OWNED, detector=WATCHED, environment=environment)
    assert counts(fold) == {Outcome.PASS: 3}
    assert swallowed(fold, "stock, background") == SwallowRate(3, 3, 3)
    assert swallowed(fold, "owned-stream") == SwallowRate(0, 3, 0)
    assert fold.exit_code == 0


def test_what_nothing_repeats_is_lost_where_a_capture_swallows_it(run_demo: RunDemo) -> None:
    environment = {"EMULATION_BACKGROUND": "refresh", "EMULATION_ONCE": "1"}
    fold = run_demo(BACKGROUND, OWNED, environment=environment)
    assert counts(fold) == {Outcome.DATA_LOSS: 3}
    assert counts(fold, "owned-stream") == {Outcome.PASS: 3}


def test_the_detector_changes_neither_outcomes_nor_bits(run_demo: RunDemo) -> None:
    environment = {"EMULATION_BACKGROUND": "copy"}
    watched, unwatched = (
        run_demo(BACKGROUND, ALONE, OWNED, detector=detector, environment=environment)
        for detector in (WATCHED, None)
    )
    assert [row.counts for row in watched.cells()] == [row.counts for row in unwatched.cells()]
    assert watched.parity == unwatched.parity
    assert [row.swallow for row in unwatched.cells()] == [None] * 3
    assert {trial.swallow for trial in unwatched.trials.values()} == {None}


def test_a_detector_that_there_is_not_stops_nothing_and_is_said(run_demo: RunDemo) -> None:
    fold = run_demo(ALONE, detector=Detector(reason="no CUPTI for this toolchain"))
    assert counts(fold, "stock, alone") == {Outcome.PASS: 3}
    assert swallowed(fold, "stock, alone") is None
    assert fold.ended.notes == (
        "3 of 3 trials not watched by the detector: no CUPTI for this toolchain",
    )


def test_a_trial_that_leaves_no_record_is_said(run_demo: RunDemo, tmp_path: Path) -> None:
    # A folder stands where it should be, so that whatever watches cannot write it.
    (tmp_path / "run" / "trial-00001.swallow").mkdir(parents=True)
    fold = run_demo(ALONE, detector=WATCHED)
    assert counts(fold, "stock, alone") == {Outcome.PASS: 3}
    assert swallowed(fold, "stock, alone") == SwallowRate(0, 2, 0)
    assert fold.ended.notes == (f"1 of 3 trials not watched by the detector: {NO_RECORD}",)


def test_a_record_is_nothing_but_a_file_of_the_trials_own(
    run_demo: RunDemo, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"RWSWALW1" + b"\1" + bytes(record.SIZE))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "trial-00001.swallow").symlink_to(secret)
    fold = run_demo(ALONE, detector=WATCHED)
    assert fold.trials[1].swallow.reason == NO_RECORD


# Interpreters


def test_fresh_interpreters_tell_the_same_and_the_result_says_why(run_demo: RunDemo) -> None:
    cells = (BACKGROUND, ALONE)
    work = {"EMULATION_BACKGROUND": "copy"}
    forked = run_demo(*cells, environment=work)
    fresh = run_demo(*cells, environment=work, fresh=True)
    assert [row.counts for row in fresh.cells()] == [row.counts for row in forked.cells()]
    assert forked.started.trial_mode == "fork"
    assert fresh.started.trial_mode == "fresh interpreter: asked for"
    assert fresh.started.device.te == forked.started.device.te == "demo"


# Parity and references


def test_stock_and_owned_stream_give_the_same_bits(run_demo: RunDemo) -> None:
    parity = run_demo(ALONE, OWNED).parity
    assert parity.status == "identical"
    assert len(set(map(tuple, parity.digests.values()))) == 1


def test_a_matrix_without_the_reference_gets_one_that_is_no_cell(run_demo: RunDemo) -> None:
    fold = run_demo(OWNED)
    added = [trial.cell for trial in fold.trials.values() if trial.cell != "owned-stream"]
    assert added == ["reference: norm-act-gemm"]
    assert [row.cell.name for row in fold.cells()] == ["owned-stream"]
    assert len(fold.trials) == fold.started.trials_planned == 4


def test_a_fixed_commit_is_compared_with_its_base(
    run_demo: RunDemo, demo: Any, build: Callable[..., Any], plan: Callable[..., Plan]
) -> None:
    fixed = demo.resolve(Request("fix"))
    base = demo.base_of(fixed)
    assert needs_base(
        {BuildId.of(c): build("fix", "instrumented") for c in plan(OWNED).matrix.cells}
    )
    fold = run_demo(BACKGROUND, OWNED, ref="fix", base=Base(base, build(base.sha)))
    assert fold.exit_code == 0
    assert counts(fold, "owned-stream") == {Outcome.UNSUPPORTED: 1}
    assert fold.parity.status == "identical"
    assert base.sha[:12] in fold.parity.between
    assert fold.as_json()["base"]["sha"] == base.sha
    assert len(fold.trials) == fold.started.trials_planned == 3 + 1 + 2


def test_a_base_that_gives_other_bits_is_no_failure_but_no_parity(
    run_demo: RunDemo, demo: Any, build: Callable[..., Any]
) -> None:
    base = Base(demo.resolve(Request("race")), build("race"))
    fold = run_demo(ALONE, ref="fix", base=base)
    (of_base,) = (t for t in fold.trials.values() if t.cell.startswith("base: "))
    fold.trials[of_base.index] = replace(of_base, digests=("0" * 64,) * 2)
    assert fold.parity.status == "different"
    assert fold.exit_code == 0


def test_a_base_without_a_build_leaves_parity_unmeasured(
    run_demo: RunDemo, demo: Any, build: Callable[..., Any]
) -> None:
    base = Base(demo.resolve(Request("broken")), build("broken"))
    parity = run_demo(ALONE, ref="fix", base=base).parity
    assert parity.status == "not measured"
    assert "no trial" in parity.reason


# Builds that are none


def test_a_commit_that_does_not_build_has_no_trials(run_demo: RunDemo) -> None:
    fold = run_demo(BACKGROUND, ALONE, ref="broken")
    assert counts(fold) == {Outcome.BUILD_ERROR: 1}
    assert len(fold.trials) == 2
    trial = next(iter(fold.trials.values()))
    assert "error: 'count_saturated' was not declared" in trial.signature
    assert "count_saturated" in trial.evidence["output"]
    assert fold.exit_code == 3


def test_before_the_capture_only_stock_can_run(run_demo: RunDemo) -> None:
    held = {"name": "held", "variant": "stock", "hold_ms": 20}
    fold = run_demo(BACKGROUND, held, OWNED, ref="before")
    assert counts(fold) == {Outcome.PASS: 3}
    assert counts(fold, "held") == counts(fold, "owned-stream") == {Outcome.UNSUPPORTED: 1}
    assert "no stream capture" in next(t.reason for t in fold.trials.values() if t.cell == "held")
    assert fold.exit_code == 0


def test_a_pull_request_is_a_variant(run_demo: RunDemo) -> None:
    fold = run_demo(
        BACKGROUND,
        {"name": "fixed", "variant": "pr-7", "trials": 3},
        {"name": "unknown", "variant": "pr-9", "trials": 3},
    )
    assert counts(fold, "fixed") == {Outcome.PASS: 3}
    assert counts(fold, "unknown") == {Outcome.UNSUPPORTED: 1}
    assert next(row.k for row in fold.cells()) == 3


# Infrastructure


def test_a_trial_whose_parent_is_killed_is_replaced(
    run_demo: RunDemo, tmp_path: Path, eventually: Eventually
) -> None:
    hit: list[int] = []

    def kill_the_parent(event: Event) -> None:
        # Trial 0 is the reference, which runs before all others.
        if isinstance(event, TrialFinished) and event.index == 1:
            log = tmp_path / "run" / "trial-00002.log"
            eventually(log.exists, "the next trial is in flight")
            hit.append(parent_of(log))
            os.kill(hit[0], signal.SIGKILL)

    fold = run_demo(
        {**BACKGROUND, "trials": 2},
        environment={"EMULATION_BACKGROUND": "wait"},
        deadlines=Deadlines(progress=3.0),  # it is still in flight when its parent is looked for
        parallel=1,
        on_event=kill_the_parent,
    )
    assert counts(fold) == {Outcome.HANG: 2, Outcome.INFRA_ERROR: 1}
    (cell,) = fold.cells()
    assert (cell.k, cell.n) == (2, 2)
    assert sorted(fold.trials) == list(range(4))


def parent_of(log: Path) -> int:
    """The process that forked the one which has this log open."""
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and opens(process, log):
            stat = (process / "stat").read_text()
            return int(stat.rpartition(")")[2].split()[1])
    raise AssertionError(f"nobody has {log} open")


def opens(process: Path, log: Path) -> bool:
    try:
        return any(os.readlink(fd) == str(log) for fd in (process / "fd").iterdir())
    except OSError:  # it ended meanwhile, or is somebody else's
        return False


def test_a_run_that_meets_only_infrastructure_gives_up(plan: Callable[..., Plan]) -> None:
    planned = plan({**BACKGROUND, "trials": 50})
    run = Run(planned, ProcessSandbox(planned.folder, python="/nowhere/python"))
    list(run)
    assert 1 <= len(run.fold.trials) < 10
    assert run.fold.ended.status == "failed"
    assert run.fold.ended.reason.startswith("could not run: cannot start /nowhere/python")
    assert run.fold.exit_code == 3


def test_a_device_that_gives_only_infrastructure_errors_is_taken_out(
    run_demo: RunDemo,
) -> None:
    # The emulation has one device: whatever is tried on a second one cannot run.
    fold = run_demo(
        {**ALONE, "trials": 20}, devices=("0", "1"), environment={"EMULATION_DEVICES": "1"}
    )
    assert counts(fold, "stock, alone")[Outcome.PASS] == 20
    lost = [t for t in fold.trials.values() if t.outcome is Outcome.INFRA_ERROR]
    assert {t.device for t in lost} == {"1"}
    assert len(lost) < 8
    (note,) = fold.ended.notes
    assert note.startswith("device 1 was taken out: ")


def test_a_bad_device_that_is_faster_than_a_good_one_fails_no_run(
    plan: Callable[..., Plan],
) -> None:
    # Without its stock build a run has no reference, which one good device would have passed first.
    planned = plan({**OWNED, "trials": 12}, devices=("1", "0"), parallel=4)
    stock = BuildId(BuildKind.STOCK)
    missing = PreparedBuild("none", outcome=Outcome.BUILD_ERROR, reason="it does not build")
    planned = replace(planned, builds={**planned.builds, stock: missing})
    # The emulation has one device, on which a trial takes its time to load each kernel.
    environment = {"EMULATION_DEVICES": "1", "EMULATION_LOAD_MS": "80"}
    run = Run(planned, ProcessSandbox(planned.folder, environment=environment))
    list(run)
    assert (run.fold.ended.status, run.fold.ended.reason) == ("complete", "")
    assert counts(run.fold, "owned-stream")[Outcome.PASS] == 12
    taken_out, uncompared = run.fold.ended.notes
    assert taken_out.startswith("device 1 was taken out: ")
    assert uncompared == (
        "norm-act-gemm (fp8-current-scaling): no trial of stock alone passed, so the outputs of 12 "
        "trials that passed were compared with nothing"
    )


def test_a_run_of_which_no_device_is_any_good_gives_up(run_demo: RunDemo) -> None:
    fold = run_demo(
        {**ALONE, "trials": 50}, devices=("1", "2"), environment={"EMULATION_DEVICES": "1"}
    )
    assert fold.ended.status == "failed"
    assert 3 <= len(fold.trials) < 20


def test_trials_are_spread_over_devices(run_demo: RunDemo) -> None:
    fold = run_demo({**ALONE, "trials": 12}, devices=("0", "1"), parallel=1)
    assert {trial.device for trial in fold.trials.values()} == {"0", "1"}
    assert counts(fold, "stock, alone") == {Outcome.PASS: 12}


def test_versions_that_a_trial_makes_up_are_cut_and_not_kept(
    plan: Callable[..., Plan], tmp_path: Path
) -> None:
    script = tmp_path / "python"
    script.write_text(
        f"#!{sys.executable}\n"
        "import json, sys\n"
        "versions = {'jax': 'x' * 30_000} | {f'made up {n}': '1' for n in range(1000)}\n"
        "ready = {'event': 'ready', 'versions': versions, 'fresh_reason': ''}\n"
        "open(int(sys.argv[-1]), 'w').write(json.dumps(ready) + '\\n')\n"
    )
    script.chmod(0o755)
    planned = plan({**ALONE, "trials": 1})
    run = Run(planned, ProcessSandbox(planned.folder, python=str(script)))
    list(run)
    assert run.fold.started.device.jax == "x" * 100
    assert set(run._versions) == {"jax"}


# The stream


def test_the_run_event_comes_first_and_the_end_last(run_demo: RunDemo) -> None:
    seen: list[Event] = []
    fold = run_demo(ALONE, on_event=seen.append)
    assert isinstance(seen[0], RunStarted)
    assert [type(event) for event in seen[1:-1]] == [TrialFinished] * 3
    assert fold.ended.status == "complete"
    assert seen[0].trials_planned == 3


def test_a_run_that_is_stopped_says_so_and_keeps_what_finished(plan: Callable[..., Plan]) -> None:
    planned = plan({**ALONE, "trials": 500})
    run = Run(planned, ProcessSandbox(planned.folder))
    events = run.events()
    for _ in range(4):
        next(events)
    events.close()
    (end,) = run.stopped("interrupted", "stopped by SIGINT")
    assert (end.status, end.reason) == ("interrupted", "stopped by SIGINT")
    assert len(run.fold.trials) == 3
    assert run.fold.as_json()["status"] == "interrupted"


def test_a_run_that_is_stopped_before_its_first_trial_has_a_result_too(
    plan: Callable[..., Plan],
) -> None:
    planned = plan(ALONE)
    run = Run(planned, ProcessSandbox(planned.folder))
    started, _ = run.stopped("interrupted", "stopped by SIGINT")
    assert isinstance(started, RunStarted)
    assert run.fold.as_json()["trials"] == []


def test_cells_take_turns(run_demo: RunDemo) -> None:
    fold = run_demo(BACKGROUND, ALONE, environment={"EMULATION_BACKGROUND": "copy"}, parallel=1)
    cells = [fold.trials[n].cell for n in sorted(fold.trials)]
    # The first trial is the reference, and one of its cell's own.
    turns = ["stock, alone", "stock, background", *["stock, background", "stock, alone"] * 2]
    assert cells == turns


# Pure parts


def test_a_matrix_needs_each_build_once() -> None:
    assert list(map(str, builds_of(load("issue-3863")))) == ["stock", "instrumented", "ffi13"]
    assert list(map(str, builds_of(load("quick")))) == ["stock", "instrumented"]


@pytest.mark.parametrize(
    ("memory_gib", "cores", "parallel"),
    [(141, 16, 16), (141, 64, 16), (24, 32, 12), (8, 2, 2), (1, 8, 1)],
)
def test_trials_at_a_time_follow_from_memory_and_cores(
    memory_gib: float, cores: int, parallel: int
) -> None:
    assert default_parallel(Device("cuda", "a GPU"), memory_gib, cores) == parallel


def test_emulated_trials_are_limited_by_cores() -> None:
    assert default_parallel(Device("emulated", "emulated device"), 0.0, 4) == 4
