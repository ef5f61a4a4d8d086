"""What a run looks like as text: the issue's table, what it was measured on, and the answer."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from runner import report, result
from runner.detector.record import Swallow, Swallowed
from runner.matrix import parse
from runner.outcome import Outcome
from runner.report import PlainProgress
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
    name = "ffi13"
    variant = "ffi13"
    """,
    "m",
)
STARTED = RunStarted(
    run="r",
    subject="te",
    commit=Commit("a" * 40, "main", "Fix the norm"),
    device=Device("cuda", "NVIDIA H200", (9, 0), "580.159", "0.11.2", "2.20.2", ("0",)),
    matrix=MATRIX,
    parallel=4,
    sandbox="process",
    toolchain="t",
    harness="1",
    started="2026-11-30T00:00:00+00:00",
    trial_mode="fork",
    trials_planned=3,
)
DEMO = replace(STARTED, subject="demo", device=Device("emulated", "emulated device", ids=("0",)))


def trial(index: int, cell: str, outcome: Outcome, signature: str = "") -> TrialFinished:
    return TrialFinished("r", index, cell, outcome, signature, "the reason", seconds=1.25)


HOSTILE = "a\x1b]0;title\x07\x1b[2Jb"
"""What rewrites a terminal, as a commit's title and what its trials say of themselves may."""


def test_nothing_that_a_commit_says_steers_the_terminal() -> None:
    out = io.StringIO()
    started = replace(STARTED, commit=Commit("a" * 40, "main", HOSTILE))
    progress, fold = PlainProgress(out), Fold()
    for event in (started, trial(0, "stock, background", Outcome.CRASH, HOSTILE)):
        fold.add(event)
        progress.show(event, fold)
    fold.add(trial(1, "stock, background", Outcome.INFRA_ERROR, HOSTILE))
    for said in (out.getvalue(), report.table(fold)):
        assert "\x1b" not in said
        assert "a\N{REPLACEMENT CHARACTER}]0;title" in said
        assert said.count("\n") > 1


TRIALS = (
    trial(0, "stock, background", Outcome.CAPTURE_ERROR, "cudaErrorX"),
    trial(1, "stock, background", Outcome.HANG, "hang: main"),
    trial(2, "stock, background", Outcome.CAPTURE_ERROR, "cudaErrorX"),
    trial(3, "stock, alone", Outcome.PASS),
    trial(4, "ffi13", Outcome.UNSUPPORTED, "handler not reached"),
)


def folded(
    *trials: TrialFinished, started: RunStarted = STARTED, ended: RunEnded | None = None
) -> Fold:
    end = ended or RunEnded("r", "complete", seconds=7.0)
    return result.fold([started, *trials, end])


def test_a_row_counts_trials_failures_and_outcomes() -> None:
    failing, passing, unsupported = report.rows(folded(*TRIALS))
    assert failing == (
        "stock, background", "3", "3", "2 capture_error, 1 hang", "100 %", "29.2 to 100 %", "races",
    )  # fmt: skip
    assert passing[:5] == ("stock, alone", "1", "0", "1 pass", "0 %")
    assert unsupported[1:6] == ("0", "-", "1 unsupported", "-", "-")
    assert unsupported[6] == "unsupported: the reason"


def test_the_table_says_what_was_measured_on_what() -> None:
    table = report.table(folded(*TRIALS))
    assert "te main aaaaaaaaaaaa Fix the norm" in table
    assert (
        "NVIDIA H200 (compute capability 9.0), driver 580.159, JAX 0.11.2, TE 2.20.2; "
        "matrix m, 4 at a time" in table
    )
    assert "EMULATED" not in table


def test_an_emulated_result_says_so_first() -> None:
    assert report.table(folded(*TRIALS, started=DEMO)).startswith("EMULATED")


def test_several_devices_are_counted() -> None:
    device = replace(STARTED.device, ids=("0", "1"))
    assert "2 x NVIDIA H200" in report.table(folded(started=replace(STARTED, device=device)))


def test_the_columns_line_up() -> None:
    lines = report.table(folded(*TRIALS)).splitlines()
    dashes = next(n for n, line in enumerate(lines) if line.startswith("---"))
    heading, row = lines[dashes - 1], lines[dashes + 1]
    assert heading.index("outcomes") == row.index("2 capture_error")
    assert heading.index("verdict") == row.index("races")


@pytest.mark.parametrize(
    ("trials", "answer"),
    [
        (TRIALS, "the race is there"),
        (TRIALS[3:], "the race could not be measured"),
        ((TRIALS[3], trial(9, "stock, background", Outcome.PASS)), "no cell that ships fails"),
    ],
)
def test_the_last_line_is_the_answer(trials: tuple[TrialFinished, ...], answer: str) -> None:
    assert report.table(folded(*trials)).splitlines()[-1] == answer


def test_what_was_interrupted_answers_for_so_far_only() -> None:
    ended = RunEnded("r", "interrupted", "stopped by SIGINT")
    *_, why, answer = report.table(folded(*TRIALS, ended=ended)).splitlines()
    assert (why, answer) == ("interrupted: stopped by SIGINT", "so far the race is there")


def test_a_stream_that_stops_early_is_no_whole_run() -> None:
    fold = result.fold([STARTED, *TRIALS])
    assert "interrupted: the stream of events stops early" in report.table(fold)


def test_what_infrastructure_cost_is_told_apart() -> None:
    lost = trial(5, "stock, alone", Outcome.INFRA_ERROR, "out of memory")
    ended = RunEnded("r", "complete", notes=("device 1 was taken out: it fell off the bus",))
    table = report.table(folded(*TRIALS, lost, ended=ended))
    assert "1 infra_error, not counted: out of memory" in table
    assert "device 1 was taken out: it fell off the bus" in table


def test_fresh_interpreters_are_told_with_their_reason() -> None:
    started = replace(STARTED, trial_mode="fresh interpreter: the parent has 2 threads")
    assert "trials: fresh interpreter: the parent has 2 threads" in report.table(
        folded(started=started)
    )


def test_parity_names_what_is_compared() -> None:
    base = replace(STARTED, base=Commit("b" * 40, "b"))
    assert "outputs of stock and owned-stream: not measured" in report.table(folded())
    assert "outputs of stock and its base bbbbbbbbbbbb: not measured" in report.table(
        folded(started=base)
    )


def test_the_table_for_a_comment_is_markdown() -> None:
    lines = report.markdown(folded(*TRIALS)).splitlines()
    start = lines.index("|---|---|---|---|---|---|---|")
    assert lines[start - 1].startswith("| cell | trials | failed |")
    assert lines[start + 1].startswith("| stock, background | 3 | 3 |")


def test_nothing_run_is_nothing_to_tell() -> None:
    assert report.table(Fold()) == "nothing was run"


def test_progress_is_a_line_for_each_trial() -> None:
    out, fold = io.StringIO(), Fold()
    progress = PlainProgress(out)
    for event in (STARTED, *TRIALS[:1], TRIALS[3]):
        fold.add(event)
        progress.show(event, fold)
    *_, failed, passed = out.getvalue().splitlines()
    assert failed == "! [1/3] stock, background: capture_error (cudaErrorX) 1.2 s"
    assert passed == "  [2/3] stock, alone: pass 1.2 s"


def test_progress_never_counts_past_its_end() -> None:
    out, fold = io.StringIO(), Fold()
    progress = PlainProgress(out)
    for event in (STARTED, *TRIALS):
        progress.show(event, fold)
    assert "[5/5]" in out.getvalue()


# What captures swallow


def watched(index: int, cell: str, outcome: Outcome, foreign: int) -> TrialFinished:
    calls = (Swallowed("cuLaunchKernel", "loader", foreign),) if foreign else ()
    signature = "" if outcome is Outcome.PASS else "cudaErrorX"
    return replace(trial(index, cell, outcome, signature), swallow=Swallow(4, 6, foreign, calls))


WATCHED = (
    watched(0, "stock, background", Outcome.CAPTURE_ERROR, 31),
    watched(1, "stock, background", Outcome.PASS, 2),
    watched(2, "stock, background", Outcome.PASS, 0),
    watched(3, "stock, alone", Outcome.PASS, 0),
)


def test_passes_with_foreign_work_are_counted_apart() -> None:
    stock, alone, _ = report.rows(folded(*WATCHED))
    assert stock[3] == "1 pass, 1 pass (swallow), 1 capture_error"
    assert alone[3] == "1 pass"


def test_foreign_work_is_a_column_where_it_was_watched() -> None:
    assert report.headings(folded(*TRIALS)) == report.HEADINGS
    assert report.headings(folded(*WATCHED)) == (*report.HEADINGS, report.FOREIGN_WORK)
    cells = [row[-1] for row in report.rows(folded(*WATCHED))]
    assert cells == ["2/3, 9.4 to 99.2 %", "0/1, 0 to 97.5 %", "-"]


def test_the_table_says_who_was_swallowed() -> None:
    table = report.table(folded(*WATCHED))
    assert "foreign work in capture windows: 2 of 4 watched trials, 1 of them passed" in table
    assert "  swallowed: 33 cuLaunchKernel of loader in 2 trials" in table
    assert "foreign work" not in report.table(folded(*TRIALS))
    assert "2/3, 9.4 to 99.2 % |" in report.markdown(folded(*WATCHED))


def test_of_many_that_were_swallowed_the_rest_is_added_up() -> None:
    calls = tuple(Swallowed(f"cuCall{n}", "loader", 20 - n) for n in range(12))
    many = replace(WATCHED[0], swallow=Swallow(4, 6, 174, calls))
    lines = [line for line in report.table(folded(many)).splitlines() if "  swallowed: " in line]
    assert len(lines) == report.SWALLOWED_ROWS + 1
    assert lines[-1] == "  swallowed: 42 more, of 4 APIs and threads"


def test_progress_tells_how_much_was_swallowed() -> None:
    out, fold = io.StringIO(), Fold()
    progress = PlainProgress(out)
    for event in (STARTED, *WATCHED[:3]):
        fold.add(event)
        progress.show(event, fold)
    lines = out.getvalue().splitlines()[-3:]
    assert [line.partition(": ")[2] for line in lines] == [
        "capture_error (cudaErrorX, swallow: 31) 1.2 s",
        "pass (swallow: 2) 1.2 s",
        "pass 1.2 s",
    ]
