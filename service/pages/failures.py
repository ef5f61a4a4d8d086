"""`/signatures`: failures that are alike; `/signature`: one of them."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from service.api.errors import missing
from service.pages import asked
from service.pages.view import database, page
from service.reading import signatures
from service.reading.signatures import FAILED, OUTCOMES, SignatureFilter

router = APIRouter()
ANY = "any"
_CHARACTERS = 1_000
"""Of a signature, at most."""


@router.get("/signatures")
def show_list(
    request: Request, subject: str = "", queue: str = "", outcome: str = ""
) -> HTMLResponse:
    """Failures by signature, the most recently seen first."""
    ended = asked.choice("outcome", outcome, (*OUTCOMES, ANY)) or FAILED
    chosen = SignatureFilter(
        subject=asked.plain("subject", subject),
        queue=asked.plain("queue", queue),
        outcome="" if ended == ANY else ended,
    )
    with database(request).session() as session:
        groups = request.app.state.signatures(session, chosen)
        found = signatures.read(session, chosen, groups)
    return page(
        request, "signatures.html", list=found, ended=ended, outcomes_offered=(*OUTCOMES, ANY)
    )


@router.get("/signature")
def show(
    request: Request, subject: str = "", queue: str = "", outcome: str = "", signature: str = ""
) -> HTMLResponse:
    """One signature: since when, where, and the newest trials that have it."""
    ended = asked.choice("outcome", outcome, OUTCOMES)
    name, device = asked.plain("subject", subject), asked.plain("queue", queue)
    if len(signature) > _CHARACTERS or "\0" in signature:
        raise missing("such failure", signature)
    with database(request).session() as session:
        found = signatures.read_one(session, name, device, ended, signature)
    if found is None:
        raise missing(f"{ended or 'failure'} of {name} on {device} with signature", signature)
    return page(request, "signature.html", found=found)
