"""`/pulls`: pull requests, and which of them wait for an approval."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from service.pages import asked
from service.pages.view import database, page
from service.reading import pulls

router = APIRouter()
STATES = ("open", "closed", "all")


@router.get("/pulls")
def show(request: Request, subject: str = "", state: str = "open") -> HTMLResponse:
    """Pull requests, last changed first."""
    chosen = asked.choice("state", state, STATES) or "open"
    filtered = pulls.PullFilter(
        subject=asked.plain("subject", subject), state="" if chosen == "all" else chosen
    )
    with database(request).session() as session:
        found = pulls.read(session, filtered)
    return page(request, "pulls.html", found=found, state_asked=chosen, states=STATES)
