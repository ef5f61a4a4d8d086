"""`/workers`: workers, what they do, and what waits for them."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from service.pages.view import database, page, settings
from service.reading import workers

router = APIRouter()
VERSION = version("racewatch")
"""Of this service."""


@router.get("/workers")
def show(request: Request) -> HTMLResponse:
    """All workers and queues."""
    with database(request).session() as session:
        controlled = request.app.state.controls(session, None)
        found = workers.read(session, settings(request).worker_lost_s, VERSION, controlled)
    return page(request, "workers.html", work=found, lost_s=settings(request).worker_lost_s)
