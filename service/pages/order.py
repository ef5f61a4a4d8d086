"""`/order/{commit}/{cell}`: order trials of a cell at a commit, with a token or by a command."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from runner.matrix import MAX_TRIALS
from runner.rates import clean_trials
from service.api.errors import missing, refused
from service.pages import asked
from service.pages.view import database, page
from service.reading import order
from service.reading.grid import CLEAN_BELOW

router = APIRouter()


@router.get("/order/{commit_id}/{cell_id}")
def show(
    request: Request, commit_id: str, cell_id: str, queue: str = "", trials: str = ""
) -> HTMLResponse:
    """The form and the commands; it is a script that sends the form, since it sends a token."""
    commit, cell = asked.row("commit", commit_id), asked.row("cell", cell_id)
    device = asked.plain("queue", queue)
    wanted = asked.number("trials", trials)
    if wanted is not None and not 1 <= wanted <= MAX_TRIALS:
        raise refused(422, f"query parameter trials: must be 1 to {MAX_TRIALS}, got {wanted}")
    with database(request).session() as session:
        found = order.read(session, commit, cell, device, wanted)
    if found is None:
        raise missing("cell of a commit", f"{commit_id}/{cell_id}")
    return page(
        request,
        "order.html",
        order=found,
        most=MAX_TRIALS,
        bound=CLEAN_BELOW,
        enough=clean_trials(CLEAN_BELOW),
    )
