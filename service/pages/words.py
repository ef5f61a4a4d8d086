"""Numbers, times and shares as pages write them: with their units, short, the same everywhere."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from runner import rates
from runner.bisect.verdict import sure
from runner.statistics.counts import span

_PULL = re.compile(r"\(#([1-9][0-9]{0,8})\)\s*$")
_STATES = {
    "awaiting_approval": "waits",
    "queued": "queued",
    "waiting": "queued",
    "building": "running",
    "running": "running",
    "doing": "running",
    "live": "running",
    "draining": "waits",
    "complete": "ended",
    "done": "ended",
    "failed": "broke",
    "lost": "broke",
    "cancelled": "off",
    "stopped": "off",
}
"""How far a run, a build, a job or a worker has come. None is the green or red of a verdict: a run
that is complete may well race."""


def ago(moment: datetime, now: datetime | None = None) -> str:
    """How long ago it was, for example `5 min ago`; `live.js` says the same."""
    seconds = ((now or datetime.now(UTC)) - moment).total_seconds()
    if abs(seconds) < 10:
        return "just now"
    if abs(seconds) >= 60 * 86_400:
        return f"{moment:%Y-%m-%d}"
    words = _rounded(abs(seconds))
    return f"{words} ago" if seconds > 0 else f"in {words}"


def _rounded(seconds: float) -> str:
    if seconds < 60:
        return f"{int(seconds)} s"
    if seconds < 3_600:
        return f"{int(seconds // 60)} min"
    if seconds < 2 * 86_400:
        return f"{int(seconds // 3_600)} h"
    return f"{int(seconds // 86_400)} d"


def exact(moment: datetime) -> str:
    """The moment to the second, in UTC."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def machine(moment: datetime) -> str:
    """The moment for a `datetime` attribute."""
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def duration(seconds: float) -> str:
    """A time span: `0.35 s`, `26 s`, `3 min 5 s`, `2 h 3 min`."""
    if seconds < 10:
        return f"{seconds:.2f}".rstrip("0").rstrip(".") + " s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3_600:
        return f"{whole // 60} min {whole % 60} s".removesuffix(" 0 s")
    return f"{whole // 3_600} h {whole % 3_600 // 60} min".removesuffix(" 0 min")


def milliseconds(value: float) -> str:
    """A short time span: `0.35 ms`, `26 ms`."""
    shown = f"{value:.2f}".rstrip("0").rstrip(".") if value < 10 else f"{value:,.0f}"
    return f"{shown} ms"


def number(value: int) -> str:
    """A whole number with separated thousands."""
    return f"{value:,}"


def percent(rate: float) -> str:
    """A rate: `5 %`."""
    return rates.percent(rate)


def chance(probability: float) -> str:
    """A probability, rounded neither up to certainty nor down to impossibility: `over 99.99 %`."""
    if probability < 0.001:
        return "under 0.1 %"
    return sure(probability) if probability > 0.99 else percent(probability)


def interval(low: float, high: float) -> str:
    """An interval of rates: `3.2 to 37.9 %`."""
    return span((low, high))


def points(between: tuple[float, float]) -> str:
    """An interval of a difference of rates, in points: `+31.0 to +78.4 points`."""
    low, high = between
    return f"{100 * low:+.1f} to {100 * high:+.1f} points".replace("-", "−")


def p_value(p: float) -> str:
    """A p value, as exact as it means something: `p = 0.0031`, `p < 0.0001`."""
    # With spaces at which no line breaks.
    return f"p\u00a0=\u00a0{p:.2g}" if p >= 0.0001 else "p\u00a0<\u00a00.0001"


def short_sha(sha: str) -> str:
    """A hash as people write it; a release's version stays whole."""
    return sha if "." in sha else sha[:9]


def pull_of(title: str) -> str:
    """The number of the pull request that a commit's title ends with, empty if none."""
    found = _PULL.search(title)
    return found.group(1) if found else ""


def without_pull(title: str) -> str:
    """A commit's title without the number at its end."""
    return _PULL.sub("", title).rstrip()


def words(text: str) -> str:
    """A state of a run, a build or a job as people read it."""
    return text.replace("_", " ")


def state_class(state: str) -> str:
    """How a state looks."""
    return _STATES.get(state, "off")


def counted(count: int, noun: str) -> str:
    """`1 trial`, `2 trials`."""
    return f"{number(count)} {noun}" + ("" if count == 1 else "s")


def sentence(text: str) -> str:
    """Text with a capital letter at its beginning, the rest as it is."""
    return text[:1].upper() + text[1:]
