"""Finds the errors that a text names: each rule's first one that is no warning, and where."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from runner import outcome_rules as rules
from runner.outcome_text import Log, read, stable

CudaGroups = tuple[tuple[str, tuple[rules.CudaError, ...]], ...]


@dataclass(frozen=True)
class Hit:
    """One error that a text names, and where it starts."""

    start: int
    end: int
    meaning: str
    signature: str


def first(hits: Iterable[Hit]) -> Hit | None:
    """The earliest; of two that start together, the longer text."""
    return min(hits, key=lambda hit: (hit.start, -hit.end), default=None)


def told(log: Log, table: tuple[rules.Rule, ...], meaning: str) -> Iterator[Hit]:
    """Each rule's first error in the log."""
    any_level = table in (rules.FALLBACK, rules.COMPILER_FILES)
    for rule in table:
        if not any(needle in log.lower for needle in rule.needles):
            continue
        match = rule.pattern.search(log.lower)
        while match and not (any_level or log.is_error(match.start(), match.end())):
            match = rule.pattern.search(log.lower, match.start() + 1)
        if match:
            group = next((i for i, text in enumerate(match.groups(), 1) if text is not None), 0)
            start, end = match.span(group)
            text = log.text[start : min(end, log.bounds(start)[1])] if group else ""
            yield Hit(match.start(), match.end(), meaning, stable(rule.signature.format(text)))


def cuda_errors(log: Log, groups: CudaGroups) -> Iterator[Hit]:
    """Each CUDA error's first naming, by name, sentence or number."""
    for meaning, errors in groups:
        for error in errors:
            yield from _named(log, error, meaning)
    yield from _numbered(log, groups)


def _named(log: Log, error: rules.CudaError, meaning: str) -> Iterator[Hit]:
    """Names and sentences, found by letters alone so that no wrap can hide them."""
    for needle in error.needles:
        at = log.letters.find(needle)
        while at >= 0:
            start, end = log.position(at), log.position(at + len(needle) - 1) + 1
            if log.is_error(start, end):
                yield Hit(start, end, meaning, error.name)
                break
            at = log.letters.find(needle, at + 1)


def _numbered(log: Log, groups: CudaGroups) -> Iterator[Hit]:
    """Numbers, where the words around them make them a CUDA error's."""
    if "cu" not in log.lower and "ffi" not in log.lower:
        return
    unseen = {error.number: (meaning, error.name) for meaning, table in groups for error in table}
    for match in _NUMBER.finditer(log.lower):
        number = _value(match)
        if number not in unseen or not _is_cuda_number(log, match):
            continue
        if log.is_error(match.start(), match.end()):
            yield Hit(match.start(), match.end(), *unseen.pop(number))


def _value(match: re.Match[str]) -> int:
    digits = match["number"]
    return int(digits, 16) if digits.startswith("0x") else int(digits)


def _is_cuda_number(log: Log, match: re.Match[str]) -> bool:
    before = log.lower[max(0, match.start("number") - 100) : match.start("number")]
    if _CUDA_BEFORE.search(before):
        return True
    if _value(match) < 100 or _NOT_CUDA_BEFORE.search(before):
        return False
    if match["intro"] is None and not _PAREN_BEFORE.search(before):
        return False
    return _CUDA_CONTEXT.search(log.around(match.start(), match.end())) is not None


def located(name: str, log: Log) -> str:
    """A signal's name, with the CUDA call that the crash's stack names."""
    for match in _FRAME.finditer(log.text):
        if not log.soft[log.line(match.start())]:
            return f"{name} in {match['call']}"
    return name


def exception_of(error: str) -> str:
    """What the main thread's exception says, in one stable line."""
    if not error.strip():
        return ""
    log = read(error)
    told = log.text[: log.bounds(0)[1]] if log.starts else ""
    return exception_in(log) or stable(told) or "exception without a message"


def exception_in(log: Log) -> str:
    """The first exception of a text that is no warning: `TypeError: what it says`."""
    for index, start in enumerate(log.starts):
        match = None if log.soft[index] else _EXCEPTION.match(log.text, start)
        if match:
            return stable(log.text[start : log.bounds(start)[1]])
    return ""


_CALL = r"\bcu(?:da)?(?:[a-z0-9]*(?:stream|event|graph|launch|mem|device|ctx|module|func|error)\w*)"
_NUMBER = re.compile(
    r"(?:(?P<intro>error(?:_t|_enum|string|name)?|\berr|failure|exception|\bfailed|\bcode|status"
    rf"|result|returned|returns|\brc|\bret|{_CALL}(?:\([^()]{{0,60}}\))?(?=\s*(?:->|=|:)))"
    r"(?:[ _]?(?:code|number|no\.|id|value|with|error|status|is|was))*"
    r"[\s:#=(\['\"<>_-]{0,6}|(?<![\w)\]])\()"
    r"(?P<number>0x[0-9a-f]{1,3}|\d{1,3})"
    # a number with a unit, a sum, a shape, a version or a share is none
    r"(?![\w.%]|,? ?\d|\s*(?:[x*/]\s*\d|of\b|ms\b|us\b|ns\b|s\b|sec|min|rows|bytes|lines|times"
    r"|[kmg]i?b\b|errors|warnings|tests))"
)
_CUDA_BEFORE = re.compile(
    r"\bcu(?:da\w*|result)[ _]?(?:\([^()]{0,60}\) ?)?(?:runtime |driver |api )?"
    r"(?:(?:error|failure|failed|returned|returns|call|with|code|number|status|result|an?|was|is"
    r"|got|gave|[\"'`]|[:=#,>-])[ ]?)*[(\[]? ?$"
    rf"|{_CALL}(?:\([^()]{{0,60}}\))? ?"
    r"(?:(?:error|failure|failed|returned|returns|call|with|code|number|status|result|an?|was|is"
    r"|[:=#,>-])[ ]?)+[(\[]? ?$"
)
_NOT_CUDA_BEFORE = re.compile(r"\b(?:https?|exit|port|line|errno|process|grpc)\b[ _/]?\w*[\s:=(]*$")
_PAREN_BEFORE = re.compile(
    r"(?:error|fail\w*|status|code|captur\w+|capture|began|stream|sequences|work|thread"
    r"|encountered|failure|['\"`:]|\))\s*\($"
)
_CUDA_CONTEXT = re.compile(
    r"cuda|\bcu(?:stream|event|graph|launch|ctx|mem|module|device|init|result)|\bnvte_|xla ffi call"
)

_FRAME = re.compile(
    r"(?:\bin |@ |#\d+ +(?:0x[0-9a-f]+ +(?:in )?)?|0x[0-9a-f]+[:>)]? +(?:in )?|\bframe )"
    r"(?:\([^)\s]{0,80}\) +|/[\w./-]{1,200} +)?"
    r"(?P<call>cu(?:da)?(?:Event|Stream|Graph|Launch|Mem|Ctx|Module|Device|Func|Lib|Kernel|Init)"
    r"[A-Za-z0-9]*)"
)
_EXCEPTION = re.compile(
    r"(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Failure|Expired)(?=:|\s|$)"
)
