"""`/runs` and `/runs/{id}`."""

from __future__ import annotations

from uuid import UUID

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from service.api.errors import missing
from service.pages import asked, markdown
from service.pages.view import database, page, settings
from service.reading import runs
from service.tables import RunState

router = APIRouter()


@router.get("/runs")
def show_list(
    request: Request,
    subject: str = "",
    queue: str = "",
    state: str = "",
    pull: str = "",
    before: str = "",
) -> HTMLResponse:
    """Runs, newest first."""
    chosen = runs.RunFilter(
        subject=asked.plain("subject", subject),
        queue=asked.plain("queue", queue),
        state=asked.choice("state", state, tuple(RunState)),
        pull=asked.number("pull", pull),
        before=asked.identity("before", before),
    )
    with database(request).session() as session:
        found = runs.read_list(session, chosen)
    return page(request, "runs.html", list=found)


@router.get("/runs/{run_id}")
def show(request: Request, run_id: str) -> HTMLResponse:
    """One run in the table of the issue."""
    try:
        identity = UUID(run_id)
    except ValueError:
        raise missing("run", run_id) from None
    with database(request).session() as session:
        run = runs.read(session, identity)
    if run is None:
        raise missing("run", run_id)
    table = markdown.run(run, settings(request).link)
    return page(request, "run.html", run=run, markdown=table)
