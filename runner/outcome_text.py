"""A log as one searchable line: colours, prefixes and wraps taken away, each line's level kept."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

_ESCAPES = re.compile(
    r"(?:\x1b|\\x1b|\\u001b|\\033|\\e)"
    r"(?:\[[0-9;?]*[A-Za-z]|\][^\x07\x1b]{0,300}(?:\x07|\x1b\\)|[()][A-Z0-9])"
)
_PLAIN = str.maketrans(
    {"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u00a0": " ", "\r": "\n"}
    | {chr(code): None for code in range(32) if chr(code) not in "\t\n\r"}
)

_LEVEL = (
    r"(?P<level>TRACE|DEBUG|VERBOSE|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL|SEVERE"
    r"|Trace|Debug|Info|Notice|Warning|Warn|Error|Critical|Fatal)"
)
_PREFIXES = tuple(
    re.compile(prefix)
    for prefix in (
        # absl and glog: `E1113 12:00:00.000000 1234 file.cc:12] `, `W0000 00:00:1731.5 12 f.cc:1] `
        r"(?P<level>[IWEF])\d{4,8} +[\d:.]+ +\d+(?: +[^\s\]]{1,200})?\] ?",
        # TensorFlow's and XLA's older form, after its own timestamp
        r"(?P<level>[IWEF]) [^\s\]]{1,200}:\d+\] ?",
        r"\[?\d{4}-\d\d-\d\d[T _]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?:? *(?:- +)?",
        r"\[?\d\d:\d\d:\d\d(?:[.,]\d+)?\]?:? +(?:- +)?",
        r"\[ *\d+\.\d{3,}\] ?",
        # logging.basicConfig (`ERROR:name:text`), with JAX's own timestamp and line in between
        _LEVEL + r":(?:\d{4}-\d\d-\d\d[ T][\d:.,]+:)?[\w.]+:(?:\d+:)? ?",
        r"[\w.]+ +- +" + _LEVEL + r" +- +",
        r"(?:\[[\w.:/-]{1,80}\])?\[" + _LEVEL + r"\](?: *[-:|])? *",
        r"\[(?P<level>[IWEFDV])\] ?",
        # `Error: ` itself stays: it may introduce a number or a compiler's message
        r"(?P<level>TRACE|DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL"
        r"|Trace|Debug|Info|Notice|Warning|Warn) *[-:|]+ +",
        r"(?P<level>E) {2,}",  # pytest's failing lines
        r"\[?rank ?\d+\]?: ?",
        r"\[\d+,\d+\]<std(?:err|out)>: ?",
        r"(?:std(?:err|out)|what\(\)): +",
        r"[\w.-]{1,60} +\| ",  # compose
        r"(?P<level>TRACE|DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL) +[\w.]{1,60}: ",
        r"\[(?![Ee]rrno)[^\[\]]{1,60}\]:? +",  # any other tag
        r"[|>#]{1,3} +",
    )
)
_PREFIX_STARTS = frozenset("IWEFTDVNCSEtdincwesrf[|>#<0123456789")
_SOFT_LEVELS = frozenset("iwdtvn")
_SOFT_HEAD = re.compile(
    r"(?:\S{1,200}:\s*){0,2}(?:\w+ )?(?:\w*warning|note|hint)\s*(?:#[\w-]+|\[[\w-]+\])?\s*:",
    re.IGNORECASE,
)
_JSON_SOFT = re.compile(
    r"\"(?:level|levelname|severity)\"\s*:\s*\"(?:warn|info|debug)", re.IGNORECASE
)
_SOFT_WORDS = re.compile(
    r"(?<!not )(?<!without )(?<!after )(?<!stop )(?<!stopped )\bretrying\b|\bwill (?:be )?retr"
    r"|\bnot a failure|\bnot an error|\bnon-?fatal|\brecovered\b|\bignored\b|\bignoring\b"
    r"|\bskipping\b|\bharmless|\bbenign|falling back to (?!(?:the )?(?:cpu|host))"
    r"|unable to initialize backend \W{0,3}(?:tpu|rocm|metal|interpreter)"
    r"|\{standard input\}"  # what an assembler says of a compiler that died
)
_NEGATION = re.compile(r"\b(?:no|not|without|never|zero)(?: (?:an?|any|the|such))? [\"'`(\[]{0,3}$")
_NOT_LETTERS = re.compile(r"[^a-z]+")
_LETTERS = re.compile(r"[a-z]+")
_CONTEXT = 240
_TOKEN_BREAK = " "


@dataclass(frozen=True)
class Log:
    """`text` is every line joined by one space; `lower` is the same length in lower case."""

    text: str
    lower: str
    starts: tuple[int, ...]
    soft: tuple[bool, ...]

    def line(self, position: int) -> int:
        return max(bisect_right(self.starts, position) - 1, 0)

    def bounds(self, position: int) -> tuple[int, int]:
        """Where the line that holds `position` begins and ends."""
        index = self.line(position)
        last = index + 1 == len(self.starts)
        return self.starts[index], len(self.text) if last else self.starts[index + 1] - 1

    def around(self, start: int, end: int) -> str:
        """Lower-case text of the lines that hold a match, no further than a sentence or two."""
        first, _ = self.bounds(start)
        _, last = self.bounds(max(end - 1, start))
        return self.lower[max(first, start - _CONTEXT) : min(last, end + _CONTEXT)]

    def is_error(self, start: int, end: int) -> bool:
        """Whether a match is an error: not a warning, not retried, not negated."""
        if self.soft and self.soft[self.line(start)]:
            return False
        if _NEGATION.search(self.lower[max(0, start - 30) : start]):
            return False
        return not _SOFT_WORDS.search(self.around(start, end))

    @cached_property
    def letters(self) -> str:
        """Letters alone: finds a name or a sentence however it was wrapped, quoted or boxed."""
        return _NOT_LETTERS.sub("", self.lower)

    @cached_property
    def _runs(self) -> tuple[list[int], list[int]]:
        runs = [(match.start(), match.end()) for match in _LETTERS.finditer(self.lower)]
        ends = list(accumulate(end - start for start, end in runs))
        return [start for start, _ in runs], ends

    def position(self, letter: int) -> int:
        """Offset in `text` of the `letter`-th letter."""
        starts, ends = self._runs
        run = bisect_right(ends, letter)
        before = ends[run - 1] if run else 0
        return starts[run] + letter - before


def read(*texts: str) -> Log:
    """Normalise a log and what follows it (an exception's text), in this order."""
    bodies: list[str] = []
    soft: list[bool] = []
    previous = False
    for line in _plain("\n".join(text for text in texts if text)).split("\n"):
        if not line.strip():
            continue
        body, level = _strip_prefix(line)
        indented = not level and line[0] in " \t"
        previous = (indented and previous) or _is_soft(body, level)
        # Leading blanks say nothing in the joined text, and trailing ones would hide a wrap.
        bodies.append(body.strip())
        soft.append(previous)
    starts = tuple(accumulate((len(body) + 1 for body in bodies[:-1]), initial=0)) if bodies else ()
    joined = _TOKEN_BREAK.join(bodies)
    return Log(text=joined, lower=joined.lower(), starts=starts, soft=tuple(soft))


def letters_of(text: str) -> str:
    return _NOT_LETTERS.sub("", text.lower())


def stable(text: str, limit: int = 160) -> str:
    """A message without what changes from run to run: paths, addresses, ids, times, lines."""
    text = text[: 8 * limit]
    for pattern, replacement in _UNSTABLE:
        text = pattern.sub(replacement, text)
    return " ".join(text.split())[:limit].rstrip(" :;,-(")


_UNSTABLE = (
    (re.compile(r"(?<!\w)(?:\.{0,2}/[\w.+@=~-]+)*/([\w.+@-]+)"), r"\1"),
    (re.compile(r"\b(?:[\w.+@=~-]+/)+([\w+@.-]+\.(?:cc|cpp|cuh?|h|hpp|py|so[\w.]*|o)\b)"), r"\1"),
    (re.compile(r"\b0x[0-9a-fA-F]+\b"), ""),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?Z?"), ""),
    (re.compile(r"\b\d\d:\d\d:\d\d(?:[.,]\d+)?\b"), ""),
    (re.compile(r"(\.(?:cc|cpp|cu|cuh|c|h|hpp|py))(?::\d+){1,2}"), r"\1"),
    (re.compile(r"(\.(?:cc|cpp|cu|cuh|c|h|hpp|py))\(\d+\)"), r"\1"),
    (re.compile(r"\b(line|pid|tid|thread|rank|device)([ =:#]+)\d+\b", re.IGNORECASE), r"\1"),
    (re.compile(r"\b[0-9a-fA-F]{12,}\b"), ""),
    (re.compile(r"\b\d{5,}\b"), "N"),
)


def _plain(text: str) -> str:
    text = text.replace("\\r\\n", "\n").replace("\\n", "\n").replace("\\t", " ")
    if "\x1b" in text or "\\" in text:
        text = _ESCAPES.sub("", text)
    return text.translate(_PLAIN).encode("ascii", "ignore").decode("ascii")


def _strip_prefix(line: str) -> tuple[str, str]:
    """The line without up to five prefixes, and the first level they name (`w`, `e`, ...)."""
    level = ""
    body = line.lstrip()
    for _ in range(5):
        if not body or not _may_have_prefix(body):
            break
        match = next((m for prefix in _PREFIXES if (m := prefix.match(body))), None)
        if match is None:
            break
        level = level or str(match.groupdict().get("level") or "")[:1].lower()
        body = body[match.end() :].lstrip()
    return body, level


def _may_have_prefix(body: str) -> bool:
    return body[0] in _PREFIX_STARTS or " | " in body[:70] or " - " in body[:100]


def _is_soft(body: str, level: str) -> bool:
    if level:
        return level in _SOFT_LEVELS
    if body.startswith("{") and _JSON_SOFT.search(body[:400]):
        return True
    return _SOFT_HEAD.match(body[:400]) is not None
