"""`/pulls`: pull requests, and which of them wait for an approval; `.csv`: the same as data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from service.api.export import csv_response
from service.pages import asked
from service.pages.view import database, page
from service.reading import pulls

router = APIRouter()
STATES = ("open", "closed", "all")


def _read(request: Request, subject: str, state: str) -> tuple[pulls.PullsPage, str]:
    """What the address asks for, and the state that it chose."""
    chosen = asked.choice("state", state, STATES) or "open"
    filtered = pulls.PullFilter(
        subject=asked.plain("subject", subject), state="" if chosen == "all" else chosen
    )
    with database(request).session() as session:
        return pulls.read(session, filtered), chosen


@router.get("/pulls")
def show(request: Request, subject: str = "", state: str = "open") -> HTMLResponse:
    """Pull requests, last changed first."""
    found, chosen = _read(request, subject, state)
    return page(request, "pulls.html", found=found, state_asked=chosen, states=STATES)


CSV_COLUMNS = (
    "subject", "number", "title", "author", "open", "draft", "fork", "head_sha", "base_ref",
    "approved_by", "awaiting_approval", "run", "run_state", "queue", "updated_at",
)  # fmt: skip


@router.get("/pulls.csv")
def as_csv(request: Request, subject: str = "", state: str = "open") -> Response:
    """A line for each pull request and run of its head."""
    found, _ = _read(request, subject, state)
    return csv_response("pulls", CSV_COLUMNS, _lines(found))


def _lines(found: pulls.PullsPage) -> Iterator[list[Any]]:
    for one in found.pulls:
        for run in one.runs or (None,):
            about = (run.id, run.state, run.queue) if run else (None, None, None)
            yield [
                one.subject, one.number, one.title, one.author, one.open, one.draft, one.fork,
                one.head_sha, one.base_ref, one.approved_by, one.awaiting_approval, *about,
                one.updated_at,
            ]  # fmt: skip
