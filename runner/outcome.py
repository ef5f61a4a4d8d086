"""What a trial or a build left behind, and the one outcome that its evidence supports."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """The closed set of outcomes; `failures`, `PASS` and the rest are counted apart."""

    PASS = "pass"
    CAPTURE_ERROR = "capture_error"
    CRASH = "crash"
    HANG = "hang"
    DATA_LOSS = "data_loss"
    WRONG_OUTPUT = "wrong_output"
    UNSUPPORTED = "unsupported"
    INFRA_ERROR = "infra_error"
    BUILD_ERROR = "build_error"


FAILURES = frozenset(
    {
        Outcome.CAPTURE_ERROR,
        Outcome.CRASH,
        Outcome.HANG,
        Outcome.DATA_LOSS,
        Outcome.WRONG_OUTPUT,
    }
)
"""Outcomes that count as failures; with `pass` they are the trials that a rate is taken over."""


@dataclass(frozen=True)
class Evidence:
    """Raw facts of one trial or one build; every field is optional because a dead process leaves few.

    kind: `trial` or `build`.
    exit_status: the process's exit status, None when it was killed by a signal or never ended.
    signal: number of the signal that ended it, None otherwise.
    killed: the supervisor ended it (deadline, missing progress, cancel), so `signal` is not the program's own.
    finished: the program reported its last step; exit status 0 without it proves nothing.
    stage: last stage that was reported: start, import, device, compile, execute, background, compare, done.
    output: text of the log (standard output and error together, in order).
    error: text of the exception that the main thread caught, empty if none.
    stale_rows: rows of the resident buffer that do not hold what they must, None if never compared.
    threads_alive: names of the threads that had not finished when the trial was judged.
    platform: where it really ran: `cuda`, `emulated`, `cpu`, ...; None if unknown.
    expected_platform: where it had to run, None if it does not matter.
    digest / reference_digest: SHA-256 over the output bits, and what they must be; None if unknown.
    missing_handlers: initialize handlers that the cell expects and that were not entered.
    """

    kind: str = "trial"
    exit_status: int | None = None
    signal: int | None = None
    killed: bool = False
    finished: bool = False
    stage: str = ""
    output: str = ""
    error: str = ""
    stale_rows: int | None = None
    threads_alive: tuple[str, ...] = ()
    platform: str | None = None
    expected_platform: str | None = None
    digest: str | None = None
    reference_digest: str | None = None
    missing_handlers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Classification:
    """One primary outcome, its signature (the error's stable part) and a sentence that says why."""

    outcome: Outcome
    signature: str
    reason: str
