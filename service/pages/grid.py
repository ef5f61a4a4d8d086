"""`/`: the grid of commits by cells."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from service.pages import asked
from service.pages.view import database, page
from service.reading import grid

router = APIRouter()
BOUNDS = (0.01, 0.02, 0.05, 0.1, 0.2)
"""Bounds of `clean` that the page offers."""


@router.get("/")
def show(
    request: Request,
    subject: str = "",
    branch: str = "",
    queue: str = "",
    environment: str = "",
    before: str = "",
    clean_below: str = "",
) -> HTMLResponse:
    """The newest commits of a branch, or those older than `before`."""
    chosen = grid.GridFilter(
        subject=asked.plain("subject", subject),
        branch=asked.plain("branch", branch),
        queue=asked.plain("queue", queue),
        environment=asked.number("environment", environment),
        before=asked.number("before", before),
        clean_below=asked.bound("clean_below", clean_below, grid.CLEAN_BELOW),
    )
    with database(request).session() as session:
        found = grid.read(session, chosen)
    return page(
        request,
        "grid.html",
        grid=found,
        bounds=sorted({*BOUNDS, chosen.clean_below}),
        loose=grid.LOOSE,
        usual=grid.CLEAN_BELOW,
    )
