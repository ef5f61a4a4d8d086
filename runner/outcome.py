"""What a trial or a build left behind, and the one outcome that its evidence supports."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from runner import outcome_rules as rules
from runner.outcome_search import Hit, cuda_errors, exception_in, exception_of, first, located, told
from runner.outcome_text import Log, read, stable


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
    """Raw facts of one trial or one build; all optional, because a dead process leaves few.

    kind: `trial` or `build`.
    exit_status: the process's exit status, None when it was killed by a signal or never ended.
    signal: number of the signal that ended it, None otherwise.
    killed: the supervisor ended it (deadline, missing progress, cancel), so `signal` is not the
        program's own.
    finished: the program reported its last step; exit status 0 without it proves nothing.
    stage: last stage that was reported: start, import, device, compile, execute, background,
        compare, done.
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


def classify(evidence: Evidence) -> Classification:
    """The one outcome that the evidence supports: facts count before texts, first errors first."""
    if evidence.kind == "build":
        return _classify_build(evidence)
    misplaced = _wrong_platform(evidence) or _fallback(evidence)
    if misplaced:
        return misplaced
    if _ended_clean(evidence):
        return _classify_values(evidence)
    return _classify_failure(evidence, _read(evidence))


def _read(evidence: Evidence) -> Log:
    """The log, then the exception's text: a log that repeats it has the earlier place."""
    return read(evidence.output, evidence.error)


def _ended_clean(evidence: Evidence) -> bool:
    return (
        _finished(evidence)
        and evidence.exit_status == 0
        and evidence.signal is None
        and not evidence.killed
        and not evidence.error.strip()
    )


def _finished(evidence: Evidence) -> bool:
    return evidence.finished or evidence.stage == "done"


def _platform(name: str | None) -> str:
    """JAX calls a CUDA device's platform `gpu` and its client's `cuda`."""
    plain = (name or "").strip().lower()
    return "cuda" if plain == "gpu" else plain


def _wrong_platform(evidence: Evidence) -> Classification | None:
    there, asked = _platform(evidence.platform), _platform(evidence.expected_platform)
    if not there or not asked or there == asked:
        return None
    return _infra(f"ran on {there}, not {asked}", "the cell asks for another platform")


def _fallback(evidence: Evidence) -> Classification | None:
    """A log that tells of the CPU counts unless the platform itself is known to be right."""
    if evidence.platform and _platform(evidence.platform) in ("cuda", "emulated"):
        return None
    if not evidence.platform or not evidence.expected_platform:
        log = _read(evidence)
        hit = first(told(log, rules.FALLBACK, Outcome.INFRA_ERROR))
        # A capture error can only come from a device, whatever else the log tells.
        if hit and not first(cuda_errors(log, ((Outcome.CAPTURE_ERROR, rules.CAPTURE),))):
            return _infra(hit.signature, "the log says that JAX did not get its GPU")
    if _finished(evidence) and evidence.expected_platform and not evidence.platform:
        return _infra(
            "platform unknown",
            f"nothing proves that the trial ran on {evidence.expected_platform}",
        )
    return None


def _classify_values(evidence: Evidence) -> Classification:
    """A trial that ended clean is judged by its values; its log only explains wrong ones."""
    verdict = _unfinished_threads(evidence) or _wrong_values(evidence)
    if verdict:
        cause = _root(evidence, _read(evidence))
        return _of_hit(cause) if cause else verdict
    if evidence.reference_digest and not evidence.digest:
        return _infra("output not compared", "the output's digest is missing, so nothing is proven")
    if evidence.missing_handlers:
        return Classification(
            Outcome.UNSUPPORTED,
            "handler not reached",
            f"the trial never entered {', '.join(evidence.missing_handlers)}",
        )
    return Classification(Outcome.PASS, "", "it finished, and its values are exact")


def _classify_failure(evidence: Evidence, log: Log) -> Classification:
    cause = _root(evidence, log)
    if cause:
        return _of_hit(cause)
    if evidence.killed:
        return _classify_killed(evidence, log)
    number = _signal_number(evidence)
    if number is None or _finished(evidence):
        verdict = _wrong_values(evidence)
        # A failed check of the values is an AssertionError; any other exception came before it.
        checked = "AssertionError" in evidence.error or not _uncaught(evidence.error)
        if verdict and (_finished(evidence) or checked):
            return verdict
    if number is not None:
        return _classify_signal(evidence, log, number)
    return _classify_exit(evidence, log)


def _classify_killed(evidence: Evidence, log: Log) -> Classification:
    """The supervisor ended it. A crash report or an exception before that came first."""
    fatal = first(told(log, rules.FATAL, Outcome.CRASH))
    # An abort may be the supervisor's own way to make the process dump its stacks.
    if fatal and fatal.signature != "SIGABRT":
        return _crash(located(fatal.signature, log), "it reported a fatal signal, then stayed")
    if _uncaught(evidence.error) and not first(told(log, rules.GAVE_UP, Outcome.HANG)):
        return _crash(exception_of(evidence.error), "an exception ended its work, then it stayed")
    if evidence.stage in _BEFORE_COMPILE and not evidence.threads_alive:
        return _infra(
            f"stuck in {evidence.stage}",
            "it stopped before the subject's code was compiled, so the race cannot be the cause",
        )
    if _finished(evidence) and not evidence.threads_alive:
        verdict = _wrong_values(evidence)
        if verdict:
            return verdict
    return _hang(evidence, "it made no progress and had to be ended")


def _classify_signal(evidence: Evidence, log: Log, number: int) -> Classification:
    name = _signal_name(number)
    if number in _FROM_OUTSIDE:
        why = "nobody here sent it: most likely the host ran out of memory or stopped the job"
        return _infra(f"killed by {name}", why)
    if first(told(log, rules.GAVE_UP, Outcome.HANG)):
        return _hang(evidence, f"it gave up waiting and ended itself with {name}")
    return _crash(located(name, log), f"it died of {name} and no text names a cause")


def _classify_exit(evidence: Evidence, log: Log) -> Classification:
    """Neither a signal nor a known cause: a report in the log, an exception, a bare status."""
    if evidence.threads_alive and not _uncaught(evidence.error):
        return _hang(evidence, "threads were still alive when it was judged")
    if evidence.exit_status != 0:
        if first(told(log, rules.GAVE_UP, Outcome.HANG)):
            return _hang(evidence, "it gave up waiting and ended itself")
        fatal = first(told(log, rules.FATAL, Outcome.CRASH))
        if fatal:
            return _crash(located(fatal.signature, log), "its log reports a fatal signal")
    interrupted = _INTERRUPTED.search(evidence.error or evidence.output[-2000:])
    if interrupted and evidence.exit_status != 0:
        return _infra("interrupted", "somebody interrupted it from outside")
    if evidence.exit_status != 0 or evidence.error.strip():
        symptom = first(told(log, rules.CUDA_SYMPTOM, Outcome.CRASH))
        if symptom:
            return _of_hit(symptom)
    exception = exception_of(evidence.error) or (
        exception_in(log) if evidence.exit_status != 0 else ""
    )
    if exception and evidence.stage in _BEFORE_EXECUTION:
        lacking = first(told(log, rules.COMPILER_FILES, Outcome.INFRA_ERROR))
        if lacking:
            return _infra(
                lacking.signature,
                "XLA has no CUDA compiler files: where trials run, install jax[cuda13] whole, or "
                "CUDA in /usr/local/cuda",
            )
        return Classification(
            Outcome.UNSUPPORTED,
            exception,
            f"the program cannot be prepared on this commit (stage {evidence.stage}), so nothing "
            "raced",
        )
    if exception:
        return _crash(exception, "an exception of the subject, with no cause outside it, ended it")
    if evidence.exit_status is None:
        return _infra("lost", "no exit status, no signal: the runner that held it is gone")
    if evidence.exit_status == 0:
        return _infra(
            "exit 0 before its end", "it ended early without an error, which proves nothing"
        )
    if evidence.exit_status in _CANNOT_START:
        return _infra(f"exit {evidence.exit_status}", "its command could not be started")
    return _crash(f"exit {evidence.exit_status}", "it ended itself without a word")


def _unfinished_threads(evidence: Evidence) -> Classification | None:
    if not evidence.threads_alive:
        return None
    return _hang(evidence, "the main thread finished and others never did")


def _wrong_values(evidence: Evidence) -> Classification | None:
    if evidence.stale_rows is not None and evidence.stale_rows > 0:
        return Classification(
            Outcome.DATA_LOSS,
            "stale rows",
            f"{evidence.stale_rows} rows of the resident buffer were never updated",
        )
    digest, reference = (
        (text or "").strip().lower() for text in (evidence.digest, evidence.reference_digest)
    )
    if digest and reference and digest != reference:
        return Classification(
            Outcome.WRONG_OUTPUT, "digest differs", "the output's bits are not the reference's"
        )
    return None


def _causes(evidence: Evidence, log: Log) -> Iterator[Hit]:
    """Errors that explain a failure by themselves."""
    yield from cuda_errors(log, _CUDA)
    for outcome, table in _TEXTS:
        yield from told(log, table, outcome)
    if _finished(evidence) and not evidence.error.strip():
        return
    for outcome, table in _STARTUP_TEXTS:
        yield from told(log, table, outcome)
    if not _died_after_import(evidence):
        yield from told(log, rules.IMPORTS, Outcome.INFRA_ERROR)


def _died_after_import(evidence: Evidence) -> bool:
    """Whether a failed import in the log was an optional one that the program went on without."""
    if evidence.stage not in _AFTER_IMPORT:
        return False
    if evidence.error.strip():
        return not any(text in evidence.error for text in ("No module named", "ImportError"))
    return evidence.killed or _signal_number(evidence) is not None


def _root(evidence: Evidence, log: Log) -> Hit | None:
    """The first error, unless it is a crash that broken hardware explains."""
    cause = first(_causes(evidence, log))
    if cause and cause.meaning == Outcome.CRASH:
        broken = cuda_errors(log, ((Outcome.INFRA_ERROR, rules.CUDA_HARDWARE),))
        lost = told(log, rules.HARDWARE, Outcome.INFRA_ERROR)
        return first(broken) or first(lost) or cause
    return cause


def _uncaught(error: str) -> bool:
    """Whether an exception of its own ended the main thread's work, not a stop from outside."""
    return bool(error.strip()) and not _INTERRUPTED.search(error)


def _classify_build(evidence: Evidence) -> Classification:
    if evidence.exit_status == 0 and evidence.signal is None and not evidence.killed:
        return Classification(Outcome.PASS, "", "it built")
    log = _read(evidence)
    hits = [
        (log.line(hit.start), rank, hit)
        for rank, hits in enumerate(_build_hits(log))
        for hit in hits
    ]
    if hits:
        return _of_hit(min(hits, key=lambda entry: (entry[0], entry[1], entry[2].start))[2])
    if evidence.killed:
        return _infra("build stopped", "it was ended before it could finish")
    number = _signal_number(evidence)
    if number in _FROM_OUTSIDE:
        return _infra(f"killed by {_signal_name(number)}", "nobody here sent it: likely no memory")
    if number is not None:
        return Classification(Outcome.BUILD_ERROR, _signal_name(number), "a build tool crashed")
    if evidence.exit_status is None:
        return _infra("lost", "no exit status, no signal: the runner that held it is gone")
    if evidence.exit_status in _CANNOT_START:
        return _infra(f"exit {evidence.exit_status}", "the build's command could not be started")
    text = exception_of(evidence.error) or exception_in(log) or f"exit {evidence.exit_status}"
    return Classification(Outcome.BUILD_ERROR, text, "the build failed without a compiler's error")


def _build_hits(log: Log) -> Iterator[Iterator[Hit]]:
    """On one line the environment's fault outranks the compiler's error that reports it."""
    yield _tables(log, _BUILD_ENVIRONMENT, Outcome.INFRA_ERROR)
    yield told(log, rules.COMPILE_ERROR, Outcome.BUILD_ERROR)
    yield _tables(log, _BUILD_HOST, Outcome.INFRA_ERROR)


def _tables(
    log: Log, tables: tuple[tuple[rules.Rule, ...], ...], outcome: Outcome
) -> Iterator[Hit]:
    for table in tables:
        yield from told(log, table, outcome)


# Small makers.


def _of_hit(hit: Hit) -> Classification:
    reason = {
        Outcome.CAPTURE_ERROR: "the first error is CUDA's own report of a broken stream capture",
        Outcome.INFRA_ERROR: "the first error lies in the host, the device or the installation",
        Outcome.UNSUPPORTED: "the device cannot run this, and says so",
        Outcome.CRASH: "the first error is one that ends a program",
        Outcome.DATA_LOSS: "the program reports rows that were never updated",
        Outcome.WRONG_OUTPUT: "the program reports values that are not the expected ones",
        Outcome.BUILD_ERROR: "the first error is the compiler's or the linker's",
    }
    outcome = Outcome(hit.meaning)
    return Classification(outcome, hit.signature, reason.get(outcome, "the first error"))


def _infra(signature: str, reason: str) -> Classification:
    return Classification(Outcome.INFRA_ERROR, stable(signature), reason)


def _crash(signature: str, reason: str) -> Classification:
    return Classification(Outcome.CRASH, signature, reason)


def _hang(evidence: Evidence, reason: str) -> Classification:
    names = sorted({re.sub(r"[-_ ]?\d+", "", name) for name in evidence.threads_alive})
    if names:
        return Classification(Outcome.HANG, stable(f"hang: {', '.join(names)}"), reason)
    where = f"hang in {evidence.stage}" if evidence.stage else "hang"
    return Classification(Outcome.HANG, where, reason)


def _signal_number(evidence: Evidence) -> int | None:
    """The signal itself, or what a status tells of it: -11 (subprocess), 139 (shells, docker)."""
    if evidence.signal:
        return abs(evidence.signal)
    status = evidence.exit_status
    if status is None:
        return None
    if -64 <= status < 0:
        return -status
    return status - 128 if 128 < status <= 128 + 64 else None


def _signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"


_AFTER_IMPORT = ("device", "compile", "execute", "background", "compare", "done")
_BEFORE_COMPILE = ("start", "import", "device")
_BEFORE_EXECUTION = frozenset({"import", "device", "compile"})
_FROM_OUTSIDE = frozenset(
    (
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGKILL,
        signal.SIGPIPE,
        signal.SIGTERM,
        signal.SIGXCPU,
        signal.SIGXFSZ,
    )
)
# Docker (125) and shells (126, 127) answer so when the command itself never ran.
_CANNOT_START = (125, 126, 127)

_CUDA: tuple[tuple[Outcome, tuple[rules.CudaError, ...]], ...] = (
    (Outcome.CAPTURE_ERROR, rules.CAPTURE),
    (Outcome.INFRA_ERROR, rules.CUDA_INFRA),
    (Outcome.INFRA_ERROR, rules.CUDA_HARDWARE),
    (Outcome.UNSUPPORTED, rules.CUDA_UNSUPPORTED),
    (Outcome.CRASH, rules.CUDA_CRASH),
)
_TEXTS: tuple[tuple[Outcome, tuple[rules.Rule, ...]], ...] = (
    (Outcome.INFRA_ERROR, rules.MEMORY),
    (Outcome.INFRA_ERROR, rules.HARDWARE),
    (Outcome.CRASH, rules.XID_OF_A_PROGRAM),
    (Outcome.INFRA_ERROR, rules.DISK),
    (Outcome.INFRA_ERROR, rules.HOST),
    (Outcome.WRONG_OUTPUT, rules.WRONG_OUTPUT),
    (Outcome.DATA_LOSS, rules.DATA_LOSS),
)
# What keeps a trial from starting; one that finished had its device and its libraries.
_STARTUP_TEXTS: tuple[tuple[Outcome, tuple[rules.Rule, ...]], ...] = (
    (Outcome.UNSUPPORTED, rules.UNSUPPORTED),
    (Outcome.INFRA_ERROR, rules.DEVICE),
    (Outcome.INFRA_ERROR, rules.VERSIONS),
    (Outcome.INFRA_ERROR, rules.LIBRARIES),
)
_BUILD_ENVIRONMENT = (rules.BUILD_INFRA, rules.DISK)
_BUILD_HOST = (
    rules.MEMORY,
    rules.HOST,
    rules.VERSIONS,
    rules.IMPORTS,
    tuple(rule for rule in rules.LIBRARIES if "undefined symbol" not in rule.needles),
)
_INTERRUPTED = re.compile(r"\b(?:KeyboardInterrupt|SystemExit: ?(?:130|143))\b")
