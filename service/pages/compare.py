"""`/compare`: two commits, or two variants of one, against each other."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from service.api.errors import refused
from service.pages import asked
from service.pages.markdown import comparison
from service.pages.view import database, page, settings
from service.reading import compare
from service.reading.grid import CLEAN_BELOW
from service.reading.rate import Mark

router = APIRouter()


@router.get("/compare")
def show(
    request: Request,
    subject: str = "",
    a: str = "",
    b: str = "",
    base: str = "",
    head: str = "",
    queue: str = "",
    clean_below: str = "",
) -> HTMLResponse:
    """The table of differences; without commits, a form."""
    chosen = compare.CompareFilter(
        subject=asked.plain("subject", subject),
        a=asked.plain("a", a).strip(),
        b=asked.plain("b", b).strip(),
        base=asked.plain("base", base),
        head=asked.plain("head", head),
        queue=asked.plain("queue", queue),
        clean_below=asked.bound("clean_below", clean_below, CLEAN_BELOW),
    )
    if bool(base) != bool(head):
        raise refused(422, "query parameters base and head: give both, or neither")
    try:
        with database(request).session() as session:
            found = compare.read(session, chosen)
    except compare.NoSuchCommit as error:
        raise refused(404, str(error)) from None
    return page(
        request,
        "compare.html",
        compared=found,
        counted={mark: found.counted(mark) for mark in Mark},
        markdown=comparison(found, settings(request).link) if found.rows else "",
    )
