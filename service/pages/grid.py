"""`/`: the grid of commits by cells; `/grid.json` and `/grid.csv`: the same view as data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import HTMLResponse, Response

from service.api.doubts import doubts
from service.api.export import csv_response
from service.pages import asked
from service.pages.cells import row_cells
from service.pages.exported import SWALLOW_COLUMNS, as_swallow, swallow_row
from service.pages.view import database, page
from service.reading import grid, grid_commits
from service.reading.grid import Grid, GridCell, GridFilter, GridRow
from service.reading.rate import NO_COUNTS, OUTCOMES, Rate, rate_of

router = APIRouter()
BOUNDS = (0.01, 0.02, 0.05, 0.1, 0.2)
"""Bounds of `clean` that the page offers."""
CHANGES = 3
"""Commits with changes that are shown at once; older ones are behind a summary."""


@dataclass(frozen=True)
class Chip:
    """A filter that narrows the view. parameter: of the address, that asks for it."""

    name: str
    value: str
    parameter: str


def _filter(
    subject: str = "",
    branch: str = "",
    queue: str = "",
    environment: str = "",
    before: str = "",
    clean_below: str = "",
    pull: str = "",
    matrix: str = "",
    outcome: str = "",
    text: str = "",
    since: str = "",
    until: str = "",
) -> GridFilter:
    """What the address asks for."""
    return GridFilter(
        subject=asked.plain("subject", subject),
        branch=asked.plain("branch", branch),
        queue=asked.plain("queue", queue),
        environment=asked.number("environment", environment),
        before=asked.number("before", before),
        clean_below=asked.bound("clean_below", clean_below, grid.CLEAN_BELOW),
        pull=asked.number("pull", pull.removeprefix("#")),
        matrix=asked.plain("matrix", matrix),
        outcome=asked.choice("outcome", outcome, grid_commits.OUTCOMES),
        text=asked.plain("text", text).strip(),
        since=asked.day("since", since),
        until=asked.day("until", until),
    )


Asked = Annotated[GridFilter, Depends(_filter)]


def _read(request: Request, chosen: GridFilter) -> Grid:
    with database(request).session() as session:
        return grid.read(session, chosen, request.app.state.changes, doubts(request, session))


@router.get("/")
def show(request: Request, chosen: Asked) -> HTMLResponse:
    """The newest commits of a branch, or those older than `before`."""
    found = _read(request, chosen)
    return page(
        request,
        "grid.html",
        grid=found,
        cells={row.id: row_cells(row, found.columns, found.chosen.queue) for row in found.rows},
        chips=_chips(found),
        bounds=sorted({*BOUNDS, chosen.clean_below}),
        outcomes_offered=grid_commits.OUTCOMES,
        loose=grid.LOOSE,
        usual=grid.CLEAN_BELOW,
        changes_shown=CHANGES,
    )


def _chips(found: Grid) -> tuple[Chip, ...]:
    chosen = found.chosen
    environment = next(
        (one.full for one in found.choices.environments if one.id == chosen.environment), ""
    )
    days = (chosen.since, chosen.until)
    chips = (
        Chip("text", chosen.text, "text"),
        Chip("pull request", f"#{chosen.pull}" if chosen.pull is not None else "", "pull"),
        Chip("matrix", chosen.matrix, "matrix"),
        Chip("outcome", chosen.outcome, "outcome"),
        Chip("from", days[0].isoformat() if days[0] else "", "since"),
        Chip("to", days[1].isoformat() if days[1] else "", "until"),
        Chip("environment", environment, "environment"),
    )
    return tuple(chip for chip in chips if chip.value)


CSV_COLUMNS = (
    "place", "sha", "title", "author", "date", "cell", "verdict", *map(str, OUTCOMES), "k", "n",
    "rate", "interval_low", "interval_high", "environment", "measurement", "change",
    *SWALLOW_COLUMNS,
)  # fmt: skip


@router.get("/grid.json")
def as_json(request: Request, chosen: Asked) -> Response:
    """This page of the grid: its commits with their cells, and where rates changed."""
    found = _read(request, chosen)
    data = {
        "subject": found.chosen.subject,
        "branch": found.chosen.branch,
        "device": found.chosen.queue,
        "emulated": found.emulated,
        "clean_below": found.chosen.clean_below,
        "columns": [column.full for column in found.columns],
        "commits": [_commit(row, found) for row in found.rows],
        "changes": [
            {
                "sha": changed.sha,
                "oldest": changed.oldest,
                "newest": changed.newest,
                "direction": "rise" if changed.rises else "fall",
                "cells": [
                    {
                        "cell": name.full,
                        "environment": change.environment,
                        "before": {"k": change.before.k, "n": change.before.n},
                        "after": {"k": change.after.k, "n": change.after.n},
                        "p": change.p,
                    }
                    for name, change in changed.cells
                ],
            }
            for changed in found.changes
        ],
        "older": found.older,
    }
    return Response(json.dumps(data), media_type="application/json")


@router.get("/grid.csv")
def as_csv(request: Request, chosen: Asked) -> Response:
    """This page of the grid, a line for each commit and cell that says something."""
    return csv_response("grid", CSV_COLUMNS, _lines(_read(request, chosen)))


def _commit(row: GridRow, found: Grid) -> dict[str, Any]:
    return {
        "place": row.place,
        "sha": row.sha,
        "title": row.title,
        "author": row.author,
        "date": row.date.isoformat() if row.date else None,
        "run": row.run or None,
        "state": row.state or None,
        "cells": [
            {
                "cell": column.full,
                "verdict": str(cell.mark),
                "counts": dict(rate.counts) if rate else {},
                "k": rate.k if rate else 0,
                "n": rate.n if rate else 0,
                "interval": [rate.low, rate.high] if rate else None,
                "trials_needed": rate.needed if rate else 0,
                "swallow": as_swallow(rate.swallow) if rate and rate.swallow else None,
                "note": cell.note,
                "environment": cell.environment,
                "measurement": cell.measurement,
                "change": cell.change or None,
            }
            for column, cell, rate in _saying(row, found)
        ],
    }


def _saying(row: GridRow, found: Grid) -> Iterator[tuple[Any, GridCell, Rate | None]]:
    """The cells that say something; rate: None where nothing was measured."""
    for column, cell in zip(found.columns, row.cells, strict=True):
        if cell.mark != "not-run":
            counts = cell.told.counts or NO_COUNTS
            rate = rate_of(counts, found.chosen.clean_below, watch=cell.told.watch)
            yield column, cell, rate if cell.told.counts else None


_NOTHING = (0, 0, None, None, None)


def _lines(found: Grid) -> Iterator[list[Any]]:
    for row in found.rows:
        for column, cell, rate in _saying(row, found):
            yield [
                row.place, row.sha, row.title, row.author, row.date, column.full, str(cell.mark),
                *(cell.told.counts or NO_COUNTS),
                *((rate.k, rate.n, rate.rate, rate.low, rate.high) if rate else _NOTHING),
                cell.environment, cell.measurement, cell.change, *swallow_row(rate),
            ]  # fmt: skip
