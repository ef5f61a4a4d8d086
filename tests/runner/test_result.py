"""The fold of events: every count, verdict, parity and exit status follows from trials alone."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner import result
from runner.detector.record import ForeignCall, Swallow, Swallowed
from runner.matrix import Matrix, parse
from runner.outcome import FAILURES, Outcome
from runner.rates import Verdict
from runner.result import (
    Commit,
    Device,
    Fold,
    RunEnded,
    RunStarted,
    SwallowedWork,
    SwallowRate,
    TrialFinished,
)

MATRIX = parse(
    """
    [[cells]]
    name = "stock, background"
    variant = "stock"
    [[cells]]
    name = "stock, alone"
    variant = "stock"
    background = false
    [[cells]]
    name = "owned-stream"
    variant = "owned-stream"
    [[cells]]
    name = "ffi13"
    variant = "ffi13"
    """,
    "m",
)
STARTED = RunStarted(
    run="r",
    subject="te",
    commit=Commit("a" * 40, "main"),
    device=Device("cuda", "NVIDIA H200", (9, 0), "580.159", "0.11.2", "2.20.2", ("0",)),
    matrix=MATRIX,
    parallel=4,
    sandbox="process",
    toolchain="t",
    harness="1",
    started="2026-11-30T00:00:00+00:00",
    trial_mode="fork",
)
ENDED = RunEnded("r", "complete", seconds=1.5)


def trial(index: int, cell: str, outcome: Outcome, digest: str = "d") -> TrialFinished:
    passed = outcome is Outcome.PASS
    return TrialFinished(
        "r", index, cell, outcome, "" if passed else f"sig {outcome}", "reason",
        recipe="fp8-current-scaling", digests=(digest, digest) if passed else (),
    )  # fmt: skip


def watched(
    index: int, outcome: Outcome, *calls: Swallowed, reason: str = "", cell: str = "ffi13"
) -> TrialFinished:
    """A trial that the detector watched, or could not."""
    foreign = sum(call.count for call in calls)
    first = tuple(ForeignCall(call.api, call.thread, 1, 0.5) for call in calls)
    windows = 0 if reason else 4
    swallow = Swallow(windows, 6 if windows else 0, foreign, calls, first, reason)
    return replace(trial(index, cell, outcome), swallow=swallow)


def folded(*trials: TrialFinished, matrix: Matrix = MATRIX) -> Fold:
    return result.fold([replace(STARTED, matrix=matrix), *trials, ENDED])


@given(st.lists(st.sampled_from(list(Outcome)), max_size=40))
def test_a_rate_is_over_failures_and_passes_only(outcomes: list[Outcome]) -> None:
    cell = next(folded(*(trial(i, "stock, background", o) for i, o in enumerate(outcomes))).cells())
    assert cell.k == sum(o in FAILURES for o in outcomes)
    assert cell.n == cell.k + outcomes.count(Outcome.PASS)
    assert sum(cell.counts.values()) == len(outcomes)


def test_a_trial_taken_in_twice_counts_once() -> None:
    once = trial(0, "stock, background", Outcome.CRASH)
    assert next(folded(once, once).cells()).n == 1


def test_infrastructure_is_neither_failure_nor_pass() -> None:
    cell = next(folded(trial(0, "stock, background", Outcome.INFRA_ERROR)).cells())
    assert (cell.k, cell.n, cell.rate) == (0, 0, None)
    assert cell.judgement.verdict is Verdict.NOT_MEASURED
    assert cell.judgement.text == "infra_error: reason"


@pytest.mark.parametrize("failure", sorted(FAILURES))
def test_any_failure_of_what_ships_exits_1(failure: Outcome) -> None:
    fold = folded(trial(0, "stock, background", failure), trial(1, "owned-stream", Outcome.PASS))
    assert fold.exit_code == 1


def _rest(skip: str) -> list[TrialFinished]:
    names = [c.name for c in MATRIX.cells if c.name != skip]
    return [trial(10 + i, name, Outcome.PASS) for i, name in enumerate(names)]


def test_a_failure_of_what_nobody_ships_exits_0() -> None:
    assert folded(trial(0, "ffi13", Outcome.HANG), *_rest("ffi13")).exit_code == 0


def test_a_variant_that_does_not_apply_does_not_spoil_a_clean_run() -> None:
    fold = folded(trial(0, "owned-stream", Outcome.UNSUPPORTED), *_rest("owned-stream"))
    assert fold.exit_code == 0


@pytest.mark.parametrize("outcome", [Outcome.INFRA_ERROR, Outcome.BUILD_ERROR])
def test_a_cell_that_could_not_run_exits_3(outcome: Outcome) -> None:
    fold = folded(trial(0, "stock, background", outcome), *_rest("stock, background"))
    assert fold.exit_code == 3


def test_nothing_run_exits_3() -> None:
    assert folded().exit_code == 3


def test_equal_bits_of_stock_and_owned_stream_are_parity() -> None:
    fold = folded(trial(0, "stock, alone", Outcome.PASS), trial(1, "owned-stream", Outcome.PASS))
    assert fold.parity.status == "identical"


def test_one_differing_execution_breaks_parity() -> None:
    odd = replace(trial(1, "owned-stream", Outcome.PASS), digests=("d", "e"))
    assert folded(trial(0, "stock, alone", Outcome.PASS), odd).parity.status == "different"


def test_a_wrong_output_of_owned_stream_breaks_parity() -> None:
    wrong = replace(trial(1, "owned-stream", Outcome.WRONG_OUTPUT), digests=("e", "e"))
    assert folded(trial(0, "stock, alone", Outcome.PASS), wrong).parity.status == "different"


def test_parity_needs_both_sides() -> None:
    assert folded(trial(0, "stock, alone", Outcome.PASS)).parity.status == "not measured"


def test_a_stream_that_stops_early_is_an_interrupted_result() -> None:
    fold = result.fold([STARTED, trial(0, "stock, background", Outcome.CRASH)])
    data = fold.as_json()
    assert data["status"] == "interrupted"
    assert data["cells"][0]["k"] == 1


def test_the_result_has_the_documented_shape() -> None:
    data = json.loads(json.dumps(folded(trial(0, "stock, background", Outcome.CRASH)).as_json()))
    assert {"subject", "commit", "device", "matrix", "cells", "parity", "trials"} <= set(data)
    assert data["device"]["kind"] == "cuda"
    assert data["device"]["compute_capability"] == "9.0"
    row = data["cells"][0]
    expected = {"name", "variant", "program", "background", "hold_ms", "recipe"}
    expected |= {"counts", "n", "k", "rate", "interval", "verdict"}
    assert expected <= set(row)
    assert set(row["counts"]) == set(Outcome)
    assert (row["n"], row["k"], row["rate"], row["verdict"]) == (1, 1, 1.0, "races")


def test_a_row_of_the_result_says_what_was_ordered_and_what_ran() -> None:
    ran = replace(trial(0, "stock, background", Outcome.PASS), recipe="fp8-current-scaling")
    row = folded(ran).as_json()["cells"][0]
    assert (row["ordered_recipe"], row["recipe"]) == ("auto", "fp8-current-scaling")


@pytest.mark.parametrize(
    "event",
    [
        STARTED,
        replace(STARTED, matrix=replace(MATRIX, detect=True)),
        trial(0, "stock, background", Outcome.CRASH),
        watched(0, Outcome.CRASH, Swallowed("cuLaunchKernel", "loader", 3)),
        watched(0, Outcome.PASS, reason="no CUPTI here"),
        ENDED,
    ],
    ids=lambda e: type(e).__name__,
)
def test_an_event_survives_its_line_of_json(event: result.Event) -> None:
    line = result.dump(event)
    assert "\n" not in line
    assert result.load(line) == event


def test_a_device_without_its_numbers_is_no_event() -> None:
    data = json.loads(result.dump(STARTED))
    data["device"]["compute_capability"] = None
    with pytest.raises(result.ResultError, match="not an event of a run"):
        result.load(json.dumps(data))


def test_a_newer_schema_is_refused_by_number() -> None:
    line = json.dumps({**json.loads(result.dump(ENDED)), "schema": result.SCHEMA + 1})
    with pytest.raises(result.ResultError, match=f"schema {result.SCHEMA + 1}"):
        result.load(line)


@pytest.mark.parametrize("line", ["", "{", "[]", '{"event": "nap", "schema": 1}', '{"schema": 1}'])
def test_a_line_that_is_no_event_is_refused(line: str) -> None:
    with pytest.raises(result.ResultError, match="not an event"):
        result.load(line)


# What captures swallow

COPY, LAUNCH = Swallowed("cuMemcpyHtoDAsync_v2", "loader", 3), Swallowed("cuLaunchKernel", "x", 2)


def of_ffi13(*trials: TrialFinished) -> SwallowRate | None:
    return next(row.swallow for row in folded(*trials).cells() if row.cell.name == "ffi13")


def test_trials_with_foreign_work_have_a_rate_of_their_own() -> None:
    trials = (
        watched(0, Outcome.CAPTURE_ERROR, COPY),
        watched(1, Outcome.CRASH),
        watched(2, Outcome.PASS, COPY, LAUNCH),
        watched(3, Outcome.PASS),
    )
    rate = of_ffi13(*trials)
    assert rate == SwallowRate(k=2, n=4, passes=1)
    assert rate.rate == 0.5
    low, high = rate.interval
    assert 0.06 < low < 0.07
    assert 0.93 < high < 0.94
    failures = next(row for row in folded(*trials).cells() if row.cell.name == "ffi13")
    assert (failures.k, failures.n, failures.counts[Outcome.PASS]) == (2, 4, 2)


def test_only_what_counts_and_was_watched_enters_that_rate() -> None:
    rate = of_ffi13(
        trial(0, "ffi13", Outcome.PASS),
        watched(1, Outcome.PASS, reason="no CUPTI here"),
        watched(2, Outcome.INFRA_ERROR, COPY),
        watched(3, Outcome.UNSUPPORTED, COPY),
        watched(4, Outcome.PASS),
    )
    assert rate == SwallowRate(k=0, n=1, passes=0)


def test_where_nothing_was_watched_there_is_no_such_rate() -> None:
    assert of_ffi13() is None
    assert of_ffi13(trial(0, "ffi13", Outcome.PASS)) is None
    assert of_ffi13(watched(0, Outcome.PASS, reason="no CUPTI here")) is None


def test_whose_work_was_swallowed_is_added_up_over_the_run() -> None:
    fold = folded(
        watched(0, Outcome.PASS, COPY, LAUNCH),
        watched(1, Outcome.CRASH, COPY, cell="stock, background"),
        watched(2, Outcome.INFRA_ERROR, LAUNCH),
    )
    assert fold.swallowed == [
        SwallowedWork("cuMemcpyHtoDAsync_v2", "loader", count=6, trials=2),
        SwallowedWork("cuLaunchKernel", "x", count=2, trials=1),
    ]
    data = json.loads(json.dumps(fold.as_json()))
    assert data["swallowed"][0] == {
        "api": "cuMemcpyHtoDAsync_v2", "thread": "loader", "count": 6, "trials": 2,
    }  # fmt: skip
    row = data["cells"][3]["swallow"]
    assert (row["k"], row["n"], row["passes"], row["rate"]) == (1, 1, 1, 1.0)
    assert data["cells"][1]["swallow"] is None
    assert data["detect"] is False
    assert data["trials"][0]["swallow"]["foreign"] == 5


def test_a_pass_with_foreign_work_is_a_pass() -> None:
    fold = folded(watched(0, Outcome.PASS, COPY, cell="stock, background"), *_rest("ffi13")[1:])
    assert fold.exit_code == 0


def test_an_older_stream_has_no_such_fact_and_loads() -> None:
    line = result.dump(trial(0, "ffi13", Outcome.PASS))
    assert "swallow" not in json.loads(line)
    assert result.load(line).swallow is None


@pytest.mark.parametrize("swallow", [3, {}, {"windows": "4"}, []])
def test_a_broken_fact_is_no_event(swallow: object) -> None:
    data = {**json.loads(result.dump(trial(0, "ffi13", Outcome.PASS))), "swallow": swallow}
    with pytest.raises(result.ResultError, match="not an event of a run"):
        result.load(json.dumps(data))


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[2] / "docs/results").glob("*.json"))
)
def test_results_of_any_age_still_load(path: Path) -> None:
    data = json.loads(path.read_text())
    watched = data.get("detect", False)
    for row in data["trials"]:
        loaded = result.from_data({"event": "trial", "schema": data["schema"], **row})
        assert isinstance(loaded, TrialFinished)
        assert watched == (loaded.swallow is not None)
        assert watched or not loaded.swallowed
