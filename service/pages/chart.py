"""The picture of a trend: where everything stands, in the coordinates of an SVG.

It is drawn on the server, as plain SVG: it needs no script and fits a policy that allows no style
in a page. (Plotly's script cannot: it writes style elements at run time.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runner.outcome import Outcome
from service.pages.words import interval, percent
from service.reading.changes import Of
from service.reading.trend import TrendChange, TrendCommit, TrendPage, TrendPoint

PLOT_HEIGHT, MIX_HEIGHT = 220.0, 56.0
TOP, GAP, BOTTOM = 46.0, 40.0, 30.0
"""Above the plot (names of what changed around), between plot and mix, below (dates)."""
LEFT, RIGHT = 14.0, 52.0
LEAST_WIDTH, WIDEST_STEP, LEAST_STEP = 1_200.0, 96.0, 3.0
LABEL_EVERY = 108.0
MIX_TOP = TOP + PLOT_HEIGHT + GAP
HEIGHT = MIX_TOP + MIX_HEIGHT + BOTTOM
TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Bar:
    """A part of a measured commit's outcomes, as a share of all its trials."""

    outcome: str
    y: float
    height: float


@dataclass(frozen=True)
class Dot:
    """One measured commit. low, high: y of the interval's ends; y: of the rate.

    shape: how sure it is, by form: `race`, `clean` or `unsure`; `none` where no trial counted.
    """

    x: float
    y: float
    low: float
    high: float
    mark: str
    shape: str
    measurement: int
    title: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Band:
    """The commits that may have brought a change. anchor: of the change in the page."""

    x: float
    width: float
    middle: float
    rises: bool
    label: str
    anchor: str


@dataclass(frozen=True)
class Line:
    """Something that is other from a commit on: device, driver, library."""

    x: float
    label: str


@dataclass(frozen=True)
class Tick:
    """A word at an axis."""

    at: float
    label: str


@dataclass(frozen=True)
class Cross:
    """A commit that does not build."""

    x: float
    build: int
    title: str


@dataclass(frozen=True)
class Chart:
    """Everything, in pixels. right: where the plot ends. width_bar: of a column of outcomes."""

    width: float
    right: float
    bar: float
    dots: tuple[Dot, ...]
    bands: tuple[Band, ...]
    lines: tuple[Line, ...]
    crosses: tuple[Cross, ...]
    rates: tuple[Tick, ...]
    dates: tuple[Tick, ...]
    bound: float

    plot_top: float = TOP
    plot_bottom: float = TOP + PLOT_HEIGHT
    mix_top: float = MIX_TOP
    mix_bottom: float = MIX_TOP + MIX_HEIGHT
    left: float = LEFT
    height: float = HEIGHT


def chart(trend: TrendPage) -> Chart | None:
    """The picture; None where there is nothing to draw."""
    if not trend.points:
        return None
    places = _Places.of(trend)
    clean_below = trend.asked.clean_below
    return Chart(
        width=places.width,
        right=places.width - RIGHT,
        bar=max(1.0, min(16.0, places.step * 0.7)),
        dots=tuple(_dot(point, places) for point in trend.points),
        bands=tuple(_band(change, places) for change in trend.changes),
        lines=tuple(_lines(trend.points, places)),
        crosses=tuple(
            Cross(places.x(commit), build, f"{_named(commit)}: does not build")
            for commit, build in trend.unbuilt
        ),
        rates=tuple(Tick(_y(rate), percent(rate)) for rate in TICKS),
        dates=tuple(_dates(trend.points, places)),
        bound=_y(clean_below),
    )


@dataclass(frozen=True)
class _Places:
    """Where commits stand: as far apart as there are commits between them."""

    first: int
    step: float
    width: float

    @classmethod
    def of(cls, trend: TrendPage) -> _Places:
        positions = [point.commit.position for point in trend.points]
        positions += [commit.position for commit, _ in trend.unbuilt]
        span = max(positions) - min(positions) + 1
        room = LEAST_WIDTH - LEFT - RIGHT
        step = max(LEAST_STEP, min(WIDEST_STEP, room / span))
        return cls(min(positions), step, LEFT + RIGHT + step * span)

    def at(self, position: float) -> float:
        return round(LEFT + (position - self.first + 0.5) * self.step, 1)

    def x(self, commit: TrendCommit) -> float:
        return self.at(commit.position)


def _y(rate: float) -> float:
    return round(TOP + (1 - rate) * PLOT_HEIGHT, 1)


def _named(commit: TrendCommit) -> str:
    return f"{commit.sha[:9]} {commit.title}".strip()


def _dot(point: TrendPoint, places: _Places) -> Dot:
    rate = point.shown
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in point.rate.counts)
    if rate.rate is None:
        said, shape = rate.label, "none"
    else:
        did = "failed" if point.of is Of.FAILURE else "had foreign work"
        said = f"{rate.k} of {rate.n} {did}, {percent(rate.rate)} ({interval(rate.low, rate.high)})"
        shape = {"clean": "clean", "undersampled": "unsure", "unproven": "unsure"}.get(
            rate.mark, "race"
        )
    return Dot(
        x=places.x(point.commit),
        y=_y(rate.rate or 0.0),
        low=_y(rate.low),
        high=_y(rate.high),
        mark=rate.mark,
        shape=shape,
        measurement=point.measurement,
        title=f"{_named(point.commit)}\n{said}\n{outcomes}",
        bars=tuple(_bars(point)),
    )


_ORDER = (
    Outcome.CAPTURE_ERROR, Outcome.CRASH, Outcome.HANG, Outcome.DATA_LOSS, Outcome.WRONG_OUTPUT,
    Outcome.BUILD_ERROR, Outcome.INFRA_ERROR, Outcome.UNSUPPORTED, Outcome.PASS,
)  # fmt: skip
"""From the bottom of a column up: failures stand on the line, so that their share is read there."""


def _bars(point: TrendPoint) -> list[Bar]:
    counts = dict(point.rate.counts)
    total = point.rate.trials
    bars = []
    bottom = MIX_TOP + MIX_HEIGHT
    for outcome in _ORDER:
        count = counts.get(str(outcome), 0)
        if count:
            height = MIX_HEIGHT * count / total
            bottom -= height
            bars.append(Bar(str(outcome), round(bottom, 1), round(height, 1)))
    return bars


def _band(change: TrendChange, places: _Places) -> Band:
    left = places.at(change.change.low - 0.5)
    width = max(2.0, places.at(change.change.high + 0.5) - left)
    return Band(
        x=left,
        width=round(width, 1),
        middle=places.at(change.change.position),
        rises=change.change.rises,
        label=f"{'▲' if change.change.rises else '▼'} {change.commit.sha[:9]}",
        anchor=f"change-{change.change.position}",
    )


def _lines(points: Sequence[TrendPoint], places: _Places) -> list[Line]:
    return [
        Line(places.at(point.commit.position - 0.5), point.changed)
        for point in points
        if point.changed
    ]


def _dates(points: Sequence[TrendPoint], places: _Places) -> list[Tick]:
    """The newest first, as many as have room."""
    ticks: list[Tick] = []
    for point in reversed(points):
        x = places.x(point.commit)
        if point.commit.date and (not ticks or ticks[-1].at - x >= LABEL_EVERY):
            ticks.append(Tick(x, f"{point.commit.date:%Y-%m-%d}"))
    return ticks
