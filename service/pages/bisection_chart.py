"""The picture of a bisection: how likely each commit is, above what trials of each build showed.

Both stand over one line of builds, from the good end to the bad end, in the coordinates of an SVG.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from runner.bisect.verdict import SideRate, Verdict
from service.pages.words import chance, interval, percent, short_sha
from service.reading.bisections import Searched, Suspect

LEFT, RIGHT = 14.0, 56.0
TOP, LIKELY_HEIGHT, GAP, RATE_HEIGHT, BOTTOM = 28.0, 150.0, 28.0, 120.0, 28.0
WIDTH, WIDEST_STEP, LEAST_STEP = 1_240.0, 110.0, 9.0
RATE_TOP = TOP + LIKELY_HEIGHT + GAP
HEIGHT = RATE_TOP + RATE_HEIGHT + BOTTOM
SCALES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Where the scale of probabilities may end."""
NAMED = 0.1
"""Probability from which on the likeliest commit is named in the picture."""
SHOWN = 300.0
"""Pixels that a phone shows at a time, about."""
_CHARACTER = 7.0
"""Pixels of a character, about."""


@dataclass(frozen=True)
class Column:
    """A commit that may be the culprit. hot: it is being checked, or was found."""

    x: float
    width: float
    y: float
    height: float
    hot: bool
    title: str


@dataclass(frozen=True)
class Dot:
    """A build with trials. low, high: y of its interval's ends; failed: it failed at all."""

    x: float
    y: float
    low: float
    high: float
    failed: bool
    title: str


@dataclass(frozen=True)
class Sign:
    """A build that cannot be measured, or of which trials are under way."""

    x: float
    title: str


@dataclass(frozen=True)
class Level:
    """The rate on one side of the change, with its interval."""

    x: float
    width: float
    y: float
    low: float
    high: float
    title: str


@dataclass(frozen=True)
class Tick:
    """A word at an axis."""

    y: float
    label: str


@dataclass(frozen=True)
class Label:
    """A word in the picture. anchor: which part of it is at x."""

    x: float
    y: float
    text: str
    anchor: str


@dataclass(frozen=True)
class Picture:
    """Everything, in pixels. right: where both plots end. band: left and width of the suspects.

    begin: of what is shown first where the picture has to be scrolled.
    """

    width: float
    right: float
    columns: tuple[Column, ...]
    dots: tuple[Dot, ...]
    broken: tuple[Sign, ...]
    running: tuple[Sign, ...]
    levels: tuple[Level, ...]
    band: tuple[float, float] | None
    likely: tuple[Tick, ...]
    rates: tuple[Tick, ...]
    leader: Label | None
    begin: float

    left: float = LEFT
    height: float = HEIGHT
    likely_top: float = TOP
    likely_bottom: float = TOP + LIKELY_HEIGHT
    rate_top: float = RATE_TOP
    rate_bottom: float = RATE_TOP + RATE_HEIGHT


def picture(searched: Searched, running: frozenset[str], verdict: Verdict | None) -> Picture:
    """The picture of a range. running: keys of which trials are under way."""
    suspects = searched.suspects
    step = max(LEAST_STEP, min(WIDEST_STEP, (WIDTH - LEFT - RIGHT) / len(suspects)))
    right = LEFT + step * len(suspects)
    top = max(one.probability or 0.0 for one in suspects)
    scale = next((each for each in SCALES if top <= each), 1.0)

    def x(place: float) -> float:
        return round(LEFT + (place + 0.5) * step, 1)

    hot = [one.place for one in suspects if one.suspected]
    return Picture(
        width=right + RIGHT,
        right=right,
        columns=tuple(_column(one, x(one.place), step, scale) for one in suspects[1:]),
        dots=tuple(_dot(one, x(one.place)) for one in suspects if one.tally.n),
        broken=tuple(
            Sign(x(one.place), f"{_named(one)}: {one.broken}") for one in suspects if one.broken
        ),
        running=tuple(
            Sign(x(one.place), f"{_named(one)}: trials under way")
            for one in suspects
            if one.key in running
        ),
        levels=_levels(verdict, hot, x, right) if verdict and hot else (),
        band=(x(hot[0] - 0.5), round(step * len(hot), 1)) if hot else None,
        likely=tuple(Tick(_likely(scale * part, scale), percent(scale * part)) for part in _PARTS),
        rates=tuple(Tick(_rate(part), percent(part)) for part in _PARTS),
        leader=_leader(searched, x, scale, right),
        begin=max(0.0, x(searched.likeliest.place) - SHOWN / 2),
    )


_PARTS = (0.0, 0.5, 1.0)


def _likely(probability: float, scale: float) -> float:
    return round(TOP + (1 - probability / scale) * LIKELY_HEIGHT, 1)


def _rate(rate: float) -> float:
    return round(RATE_TOP + (1 - rate) * RATE_HEIGHT, 1)


def _named(one: Suspect) -> str:
    return f"{short_sha(one.built.sha)} {one.built.title}".strip()


def _column(one: Suspect, x: float, step: float, scale: float) -> Column:
    probability = one.probability or 0.0
    y = _likely(probability, scale)
    wide = max(2.0, min(28.0, step * 0.7))
    return Column(
        x=round(x - wide / 2, 1),
        width=round(wide, 1),
        y=y,
        height=round(TOP + LIKELY_HEIGHT - y, 1),
        hot=one.suspected,
        title=f"{short_sha(one.commit.sha)} {one.commit.title}: {chance(probability)}",
    )


def _dot(one: Suspect, x: float) -> Dot:
    rate = one.rate or 0.0
    return Dot(
        x=x,
        y=_rate(rate),
        low=_rate(one.low),
        high=_rate(one.high),
        failed=bool(one.tally.k),
        title=f"{_named(one)}: {one.tally.text} failed, {percent(rate)} "
        f"({interval(one.low, one.high)})",
    )


def _levels(
    verdict: Verdict, hot: list[int], x: Callable[[float], float], right: float
) -> tuple[Level, ...]:
    """The rates that the verdict states: up to the suspects, and from the last of them on."""
    first, last = x(hot[0] - 0.5), x(hot[-1] - 0.5)
    sides = ((verdict.before, LEFT, first), (verdict.after, last, right))
    return tuple(_level(side, start, end) for side, start, end in sides if side is not None)


def _level(side: SideRate, start: float, end: float) -> Level:
    return Level(
        x=start,
        width=round(end - start, 1),
        y=_rate(side.rate),
        low=_rate(side.low),
        high=_rate(side.high),
        title=side.text,
    )


def _leader(
    searched: Searched, x: Callable[[float], float], scale: float, right: float
) -> Label | None:
    """The name of the likeliest commit over its column, where it stands out."""
    one = searched.likeliest
    probability = one.probability or 0.0
    if probability < NAMED:
        return None
    text = f"{short_sha(one.commit.sha)} {chance(probability)}"
    half = len(text) * _CHARACTER / 2
    at = x(one.place)
    anchor = "start" if at - half < LEFT else "end" if at + half > right else "middle"
    return Label(at, _likely(probability, scale) - 7, text, anchor)
