"""`/trend`: one cell's rate along a branch."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from runner.outcome import Outcome
from service.api.errors import missing, refused
from service.pages import asked
from service.pages.chart import chart
from service.pages.view import database, page
from service.reading import trend
from service.reading.grid import CLEAN_BELOW

router = APIRouter()


@router.get("/trend")
def show(
    request: Request,
    cell: str = "",
    subject: str = "",
    branch: str = "",
    queue: str = "",
    environment: str = "",
    clean_below: str = "",
    before: str = "",
) -> HTMLResponse:
    """The chart, the changes, and the table of what was measured."""
    if not cell:
        raise refused(422, "query parameter cell: is required; a column of the grid leads here")
    chosen = trend.TrendFilter(
        cell=asked.row("cell", cell),
        subject=asked.plain("subject", subject),
        branch=asked.plain("branch", branch),
        queue=asked.plain("queue", queue),
        environment=asked.number("environment", environment),
        clean_below=asked.bound("clean_below", clean_below, CLEAN_BELOW),
        before=asked.number("before", before),
    )
    with database(request).session() as session:
        found = trend.read(session, chosen, request.app.state.changes)
    if found is None:
        raise missing("cell", cell)
    there = {outcome for point in found.points for outcome, _ in point.rate.counts}
    return page(
        request,
        "trend.html",
        trend=found,
        chart=chart(found),
        trend_outcomes=[str(outcome) for outcome in Outcome if outcome in there],
    )
