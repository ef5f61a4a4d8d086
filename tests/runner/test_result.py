"""The fold of events: every count, verdict, parity and exit status follows from trials alone."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner import result
from runner.matrix import Matrix, parse
from runner.outcome import FAILURES, Outcome
from runner.rates import Verdict
from runner.result import Commit, Device, Fold, RunEnded, RunStarted, TrialFinished

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
    [STARTED, trial(0, "stock, background", Outcome.CRASH), ENDED],
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
