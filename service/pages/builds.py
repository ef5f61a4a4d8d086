"""`/builds/{id}/log`: a build with what its compiler said."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from service.api.errors import missing
from service.pages import asked
from service.pages.view import database, page
from service.reading import builds

router = APIRouter()


@router.get("/builds/{build_id}/log")
def show(request: Request, build_id: str) -> HTMLResponse:
    """The log, at its first error line where the build failed."""
    identity = asked.row("build", build_id)
    with database(request).session() as session:
        build = builds.read(session, identity)
    if build is None:
        raise missing("build", build_id)
    return page(request, "build.html", build=build)
