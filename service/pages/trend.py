"""`/trend`: one cell's rate along a branch; `.json`, `.csv`: as data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Request
from starlette.responses import HTMLResponse, Response

from runner.outcome import Outcome
from service.api.doubts import doubts
from service.api.errors import missing, refused
from service.api.export import csv_response
from service.pages import asked, markdown
from service.pages.chart import chart
from service.pages.exported import SWALLOW_COLUMNS, as_swallow, swallow_row
from service.pages.view import database, page, settings
from service.reading import trend
from service.reading.changes import Of
from service.reading.grid import CLEAN_BELOW
from service.reading.trend import TrendPage, TrendPoint

router = APIRouter()


@dataclass(frozen=True)
class Words:
    """What a rate counts, in words. name: of the rate. did: what its trials did."""

    name: str
    did: str


WORDS = {
    Of.FAILURE: Words("failures", "failed"),
    Of.SWALLOW: Words("foreign work", "had foreign work"),
}


def _filter(
    cell: str = "",
    subject: str = "",
    branch: str = "",
    queue: str = "",
    environment: str = "",
    clean_below: str = "",
    before: str = "",
    rate: str = "",
) -> trend.TrendFilter:
    """What the address asks for. rate: which of the two."""
    if not cell:
        raise refused(422, "query parameter cell: is required; a column of the grid leads here")
    return trend.TrendFilter(
        cell=asked.row("cell", cell),
        subject=asked.plain("subject", subject),
        branch=asked.plain("branch", branch),
        queue=asked.plain("queue", queue),
        environment=asked.number("environment", environment),
        clean_below=asked.bound("clean_below", clean_below, CLEAN_BELOW),
        before=asked.number("before", before),
        of=Of(asked.choice("rate", rate, tuple(Of)) or Of.FAILURE),
    )


Asked = Annotated[trend.TrendFilter, Depends(_filter)]


def _read(request: Request, chosen: trend.TrendFilter) -> TrendPage:
    with database(request).session() as session:
        found = trend.read(session, chosen, request.app.state.changes, doubts(request, session))
    if found is None:
        raise missing("cell", str(chosen.cell))
    return found


@router.get("/trend")
def show(request: Request, chosen: Asked) -> HTMLResponse:
    """The chart, the changes, and the table of what was measured."""
    found = _read(request, chosen)
    there = {outcome for point in found.points for outcome, _ in point.rate.counts}
    whole = _whole(found)
    return page(
        request,
        "trend.html",
        trend=found,
        chart=chart(found),
        words=WORDS[found.of],
        rates=WORDS,
        whole=whole,
        markdown=markdown.trend(found, settings(request).link, whole) if found.points else "",
        trend_outcomes=[str(outcome) for outcome in Outcome if outcome in there],
    )


@router.get("/trend.json")
def as_json(request: Request, chosen: Asked) -> Response:
    """The same as data: the points, oldest first, and the changes of the rate that is shown."""
    found = _read(request, chosen)
    data = {
        "subject": found.chosen.subject,
        "branch": found.chosen.branch,
        "device": found.chosen.queue,
        "emulated": found.emulated,
        "cell": found.cell.full,
        "rate": str(found.of),
        "clean_below": found.asked.clean_below,
        "points": [_point(point) for point in found.points],
        "changes": [
            {
                "place": change.commit.position,
                "sha": change.commit.sha,
                "title": change.commit.title,
                "environment": change.environment.full,
                "direction": "rise" if change.change.rises else "fall",
                "oldest": change.change.low,
                "newest": change.change.high,
                "before": {"k": change.change.before.k, "n": change.change.before.n},
                "after": {"k": change.change.after.k, "n": change.change.after.n},
                "p": change.change.p,
            }
            for change in found.changes
        ],
        "unbuilt": [
            {"place": commit.position, "sha": commit.sha, "build": build}
            for commit, build in found.unbuilt
        ],
        "older": found.older,
    }
    return Response(json.dumps(data), media_type="application/json")


def _point(point: TrendPoint) -> dict[str, Any]:
    commit, rate = point.commit, point.rate
    return {
        "place": commit.position,
        "sha": commit.sha,
        "title": commit.title,
        "author": commit.author,
        "date": commit.date.isoformat() if commit.date else None,
        "environment": point.environment.full,
        "changed": point.changed or None,
        "shared_by": point.shared,
        "measurement": point.measurement,
        "counts": dict(rate.counts),
        "k": rate.k,
        "n": rate.n,
        "rate": rate.rate,
        "interval": [rate.low, rate.high],
        "verdict": str(rate.mark),
        "swallow": as_swallow(rate.swallow) if rate.swallow else None,
    }


CSV_COLUMNS = (
    "place", "sha", "title", "author", "date", "environment", "changed", "shared_by",
    "measurement", *map(str, Outcome), "k", "n", "rate", "interval_low", "interval_high",
    "verdict", *SWALLOW_COLUMNS,
)  # fmt: skip


@router.get("/trend.csv")
def as_csv(request: Request, chosen: Asked) -> Response:
    """A line for each measured commit, with both of its rates."""
    return csv_response("trend", CSV_COLUMNS, _lines(_read(request, chosen)))


def _lines(found: TrendPage) -> Iterator[list[Any]]:
    for point in found.points:
        commit, rate = point.commit, point.rate
        counts = dict(rate.counts)
        yield [
            commit.position, commit.sha, commit.title, commit.author, commit.date,
            point.environment.full, point.changed, point.shared, point.measurement,
            *(counts.get(str(outcome), 0) for outcome in Outcome),
            rate.k, rate.n, rate.rate, rate.low, rate.high, str(rate.mark), *swallow_row(rate),
        ]  # fmt: skip


def _whole(found: TrendPage) -> str:
    """The query of this view, with what it chose itself."""
    asked_for, chosen = found.asked, found.chosen
    parts = {
        "subject": chosen.subject,
        "branch": chosen.branch,
        "queue": chosen.queue,
        "cell": found.cell.id,
        "environment": asked_for.environment,
        "clean_below": None if asked_for.clean_below == CLEAN_BELOW else asked_for.clean_below,
        "before": asked_for.before,
        "rate": None if found.of is Of.FAILURE else found.of,
    }
    return urlencode({name: value for name, value in parts.items() if value is not None})
