"""Logs as pages show them: plain lines, at the first error, whatever a program printed."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from runner.outcome import Evidence, Outcome, classify
from service.reading.logs import (
    LINE_CHARACTERS,
    LINES,
    LogView,
    build_log,
    clean,
    trial_log,
)
from tests.service.reading.showcase import BUILD_LOG, CAPTURE_LOG, CRASH_LOG

INVALIDATED = "cudaErrorStreamCaptureInvalidated"


def first(view: LogView) -> str:
    return next(line.text for line in view.lines if line.first_error)


def test_a_trial_s_log_is_shown_at_the_error_that_gave_its_outcome() -> None:
    view = trial_log(CAPTURE_LOG, "capture_error", INVALIDATED)
    assert "previous error during capture" in first(view)
    assert view.first_error == 6
    assert view.around[0].number == 1


def test_a_warning_or_a_later_error_is_not_the_first_error() -> None:
    log = (
        "W1130 10:59:00.000000 12 f.cc:9] cudaErrorStreamCaptureInvalidated, retrying\n"
        "jax starts\n"
        "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED: operation failed\n"
        "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED: again\n"
    )
    assert trial_log(log, "capture_error", INVALIDATED).first_error == 3


def test_of_several_errors_the_one_that_classified_the_trial_counts() -> None:
    log = "out of memory is what this test is called\nSIGSEGV\n" + CRASH_LOG
    view = trial_log(log, "crash", "SIGSEGV in cuEventRecord")
    assert "SIGSEGV" in first(view)


def test_blank_lines_and_colours_do_not_move_the_place() -> None:
    log = "\n\n\x1b[1mstart\x1b[0m\n\n\n\x1b[31mCUDA_ERROR_STREAM_CAPTURE_INVALIDATED\x1b[0m\n"
    view = trial_log(log, "capture_error", INVALIDATED)
    assert view.first_error == 6
    assert first(view) == "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"


def test_an_unknown_error_is_found_by_its_looks_else_at_the_end() -> None:
    assert trial_log("one\nValueError: no\nthree", "crash", "ValueError: no").first_error == 2
    assert trial_log("one\ntwo\nthree\n\n", "hang", "hang in execute").first_error == 3


def test_a_pass_has_no_first_error() -> None:
    view = trial_log("error: something that was survived\ndone\n", "pass", "")
    assert (view.first_error, view.around, view.total) == (None, (), 2)


def test_a_build_s_log_is_shown_at_the_compiler_s_first_error() -> None:
    view = build_log(BUILD_LOG, True, "error: 'NormForwardFFl' was not declared in this scope")
    assert first(view).startswith("normalization.cpp:88:12: error:")
    assert build_log(BUILD_LOG, False, "").first_error is None


def test_the_line_is_the_one_that_the_classifier_means() -> None:
    evidence = Evidence(exit_status=1, stage="execute", output=CAPTURE_LOG)
    verdict = classify(evidence)
    view = trial_log(CAPTURE_LOG, verdict.outcome, verdict.signature)
    assert verdict.outcome is Outcome.CAPTURE_ERROR
    assert view.first_error == 6


def test_what_a_terminal_would_obey_is_gone() -> None:
    hostile = "\x1b]0;title\x07a\x1b[2Jb\x1b]8;;http://evil\x1b\\c\x08\x9b31md\x00e"
    assert clean(hostile) == ["abc\ufffd\ufffd31md\ufffde"]


def test_what_would_reorder_or_hide_text_is_made_visible() -> None:
    assert clean("if admin \u202e\u2066// check\u2069\u2066") == [
        "if admin \ufffd\ufffd// check\ufffd\ufffd"
    ]
    assert clean("a\u200bb\ufeff") == ["a\ufffdb\ufffd"]


def test_carriage_returns_are_line_ends() -> None:
    assert clean("10 %\r20 %\r\nlast") == ["10 %", "20 %", "last"]


def test_a_line_without_end_is_cut_and_says_by_how_much() -> None:
    view = trial_log("x" * (LINE_CHARACTERS + 7), "pass", "")
    assert (len(view.lines[0].text), view.lines[0].cut) == (LINE_CHARACTERS, 7)


def test_of_a_log_of_very_many_lines_both_ends_are_shown() -> None:
    view = trial_log("\n".join(str(n) for n in range(LINES + 500)), "pass", "")
    assert (len(view.lines), view.total, view.left_out) == (LINES, LINES + 500, 500)
    assert view.lines[view.left_out_after].text == str(LINES // 2 + 500)
    assert view.lines[-1].text == str(LINES + 499)


def test_an_error_in_the_part_that_is_left_out_is_still_shown() -> None:
    lines = ["fine"] * (LINES + 500)
    lines[LINES // 2 + 100] = "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"
    view = trial_log("\n".join(lines), "capture_error", INVALIDATED)
    assert view.first_error == LINES // 2 + 101
    assert [line.number for line in view.around if line.first_error] == [view.first_error]


@given(st.text(max_size=400), st.sampled_from([str(o) for o in Outcome]))
def test_any_text_becomes_plain_lines(text: str, outcome: str) -> None:
    view = trial_log(text, outcome, "anything")
    shown = "".join(line.text for line in view.lines)
    assert not [c for c in shown if unicodedata.category(c) == "Cc" and c != "\t"]
    assert view.first_error is None or 1 <= view.first_error <= view.total
    assert sum(line.first_error for line in view.lines) == (view.first_error is not None)
