"""`/trials/{id}`: a trial with its log; `/measurements/{id}`: the trials of a cell at a build."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from runner.outcome import Outcome
from service.api.doubts import doubts
from service.api.errors import missing
from service.pages import asked
from service.pages.view import database, page
from service.reading import trials
from service.reading.grid import CLEAN_BELOW

router = APIRouter()
FAILED = "failed"
SWALLOW = "swallow"
OUTCOMES = (FAILED, SWALLOW, *map(str, Outcome))


@router.get("/trials/{trial_id}")
def show(request: Request, trial_id: str) -> HTMLResponse:
    """A trial with its evidence, its log at the first error line."""
    identity = asked.row("trial", trial_id)
    with database(request).session() as session:
        trial = trials.read(session, identity)
    if trial is None:
        raise missing("trial", trial_id)
    return page(request, "trial.html", trial=trial)


@router.get("/measurements/{measurement_id}")
def show_measurement(
    request: Request,
    measurement_id: str,
    outcome: str = "",
    before: str = "",
    clean_below: str = "",
) -> HTMLResponse:
    """All trials of a build in a cell and environment."""
    identity = asked.row("measurement", measurement_id)
    chosen = trials.TrialFilter(
        outcome=asked.choice("outcome", outcome, OUTCOMES),
        before=asked.number("before", before),
    )
    bound = asked.bound("clean_below", clean_below, CLEAN_BELOW)
    with database(request).session() as session:
        found = trials.read_measurement(session, identity, chosen, bound, doubts(request, session))
    if found is None:
        raise missing("measurement", measurement_id)
    return page(
        request,
        "measurement.html",
        measurement=found,
        outcomes_offered=OUTCOMES,
        clean_below=bound,
    )
