"""A log as it may be shown: cleaned of what a terminal would obey, and its first error found.

A log is what untrusted code printed. Here it becomes plain lines of bounded length; a page escapes
them. What is not shown here stays in the log as it was stored, which has an address of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from runner import outcome_rules as rules
from runner.outcome import Outcome
from runner.outcome_search import Hit, cuda_errors, first, told
from runner.outcome_text import Log, read

LINE_CHARACTERS = 2_000
"""Of a line that are shown."""
LINES = 5_000
"""Of a log that are shown, from its beginning and its end."""
AROUND = 8
"""Lines before and after the first error that are shown with it."""

_ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # colours, movements
    r"|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles, links, device control
    r"|[ -/]*[0-~]?)"
)
_LINE_ENDS = re.compile(r"\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
# What would reorder or hide text (Unicode TR 36), and controls that no terminal sees here.
_HIDDEN = re.compile(
    r"[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]"
)
_ERROR_LINE = re.compile(
    r"^\s*(?:[\w.]*(?:Error|Exception)\b|E\d{4}|F\d{4}|\[?(?:ERROR|FATAL)\]?\b|fatal error\b)"
    r"|: (?:fatal )?error\b"
)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line. number: from 1. cut: characters at its end that are not shown."""

    number: int
    text: str
    cut: int = 0
    first_error: bool = False


@dataclass(frozen=True)
class LogView:
    """A log in lines.

    around: the first error with what stands before and after it; empty if there is none. left_out:
    lines in the middle that are not shown, after the line numbered `left_out_after`.
    """

    lines: tuple[LogLine, ...]
    around: tuple[LogLine, ...] = ()
    first_error: int | None = None
    total: int = 0
    left_out: int = 0
    left_out_after: int = 0


def trial_log(text: str, outcome: str, signature: str) -> LogView:
    """The log of a trial, at the error that gave it its outcome."""
    return _view(text, _first_error(text, _trial_hits, outcome, signature))


def build_log(text: str, failed: bool, signature: str) -> LogView:
    """The log of a build, at its first error if it has failed."""
    outcome = str(Outcome.BUILD_ERROR) if failed else str(Outcome.PASS)
    return _view(text, _first_error(text, _build_hits, outcome, signature))


def clean(text: str) -> list[str]:
    """A log's lines without escape sequences, with what would hide or reorder text made visible."""
    lines = _LINE_ENDS.split(_ESCAPE.sub("", text))
    while lines and not lines[-1].strip():
        lines.pop()
    return [_HIDDEN.sub("\ufffd", line) for line in lines]


def _view(text: str, error: int | None) -> LogView:
    lines = clean(text)
    shown = [
        LogLine(
            number=n,
            text=line[:LINE_CHARACTERS],
            cut=max(0, len(line) - LINE_CHARACTERS),
            first_error=n == error,
        )
        for n, line in enumerate(lines, start=1)
    ]
    around = () if error is None else tuple(shown[max(0, error - 1 - AROUND) : error + AROUND])
    total = len(shown)
    left_out = max(0, total - LINES)
    half = LINES // 2
    if left_out:
        shown = [*shown[:half], *shown[-half:]]
    return LogView(tuple(shown), around, error, total, left_out, half if left_out else 0)


def _first_error(text: str, hits: object, outcome: str, signature: str) -> int | None:
    """Number of the line with the first error, None where nothing failed or nothing is there."""
    lines = clean(text)
    if outcome == Outcome.PASS or not lines:
        return None
    log = read("\n".join(lines))
    assert callable(hits)
    found: list[Hit] = list(hits(log))
    hit = (
        first(h for h in found if h.meaning == outcome and h.signature == signature)
        or first(h for h in found if h.meaning == outcome)
        or first(found)
    )
    if hit is not None:
        return _number(lines, log.line(hit.start))
    told_by = (n for n, line in enumerate(lines, start=1) if _ERROR_LINE.search(line))
    return next(told_by, len(lines))


def _number(lines: list[str], index: int) -> int:
    """Number of the line that became line `index` of the normalised log, which has no blank ones
    and splits those that hold an escaped line end."""
    seen = 0
    for number, line in enumerate(lines, start=1):
        if line.strip():
            seen += len(read(line).starts)
            if seen > index:
                return number
    return len(lines)


_CUDA = (
    (Outcome.CAPTURE_ERROR, rules.CAPTURE),
    (Outcome.INFRA_ERROR, (*rules.CUDA_INFRA, *rules.CUDA_HARDWARE)),
    (Outcome.UNSUPPORTED, rules.CUDA_UNSUPPORTED),
    (Outcome.CRASH, rules.CUDA_CRASH),
)
_OF_TRIALS = (
    (Outcome.INFRA_ERROR, (*rules.MEMORY, *rules.HARDWARE, *rules.DISK, *rules.HOST)),
    (Outcome.CRASH, (*rules.XID_OF_A_PROGRAM, *rules.FATAL, *rules.CUDA_SYMPTOM)),
    (Outcome.WRONG_OUTPUT, rules.WRONG_OUTPUT),
    (Outcome.DATA_LOSS, rules.DATA_LOSS),
    (Outcome.HANG, rules.GAVE_UP),
    (Outcome.UNSUPPORTED, rules.UNSUPPORTED),
    (Outcome.INFRA_ERROR, (*rules.DEVICE, *rules.VERSIONS, *rules.LIBRARIES, *rules.IMPORTS)),
)
_OF_BUILDS = (
    (Outcome.BUILD_ERROR, rules.COMPILE_ERROR),
    (Outcome.INFRA_ERROR, (*rules.BUILD_INFRA, *rules.DISK, *rules.MEMORY, *rules.HOST)),
    (Outcome.INFRA_ERROR, (*rules.VERSIONS, *rules.IMPORTS)),
)


def _trial_hits(log: Log) -> Iterator[Hit]:
    yield from cuda_errors(log, _CUDA)
    for outcome, table in _OF_TRIALS:
        yield from told(log, table, outcome)


def _build_hits(log: Log) -> Iterator[Hit]:
    for outcome, table in _OF_BUILDS:
        yield from told(log, table, outcome)
