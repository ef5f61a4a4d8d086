"""`/commits/{subject}/{sha}`: a commit with its builds, cells and runs."""

from __future__ import annotations

from urllib.parse import quote

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from service.api.doubts import doubts
from service.api.errors import missing, refused
from service.pages import asked, markdown
from service.pages.view import database, page, settings
from service.reading import commits
from service.reading.grid import CLEAN_BELOW

router = APIRouter()


@router.get("/commits/{subject}/{sha}")
def show(request: Request, subject: str, sha: str, clean_below: str = "") -> Response:
    """A commit; a hash that is shorter, but clear, leads to the whole one."""
    name = f"{asked.plain('subject', subject)} {asked.plain('sha', sha)}"
    bound = asked.bound("clean_below", clean_below, CLEAN_BELOW)
    with database(request).session() as session:
        whole = commits.find(session, subject, sha)
        if whole is None:
            raise missing("commit", name)
        if not isinstance(whole, str):
            raise refused(404, f"commit {name} may be one of {', '.join(whole)}: give more of it")
        if whole != sha:
            return RedirectResponse(f"/commits/{quote(subject)}/{quote(whole)}", 302)
        commit = commits.read(
            session, subject, whole, bound, request.app.state.changes, doubts(request, session)
        )
    if commit is None:
        raise missing("commit", name)
    table = markdown.commit(commit, settings(request).link) if commit.measured else ""
    return page(request, "commit.html", commit=commit, markdown=table)
