"""The pages, a module per noun: each reads, then hands what it read to a template."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Depends, FastAPI

from service import live
from service.api.access import reader
from service.pages import (
    badge,
    bisections,
    builds,
    commits,
    compare,
    failures,
    grid,
    order,
    pulls,
    runs,
    static,
    theme,
    trend,
    trials,
    workers,
)
from service.pages.errors import ErrorPages
from service.pages.view import opening
from service.reading import changes, doubted, signatures
from service.reading import workers as workers_reading
from service.reading.kept import Kept

router = APIRouter(include_in_schema=False, dependencies=[Depends(reader), Depends(opening)])
for _part in (
    grid,
    trend,
    compare,
    failures,
    badge,
    order,
    runs,
    bisections,
    trials,
    commits,
    builds,
    workers,
    pulls,
):
    router.include_router(_part.router)


def install(app: FastAPI) -> None:
    """Add the pages, what they load, and live updates; `app.state.database` is there already.

    Errors of an address that a browser opens become pages, so this comes after every other
    middleware.
    """
    live.install(app, app.state.database.url)
    app.state.doubts = Kept(doubted.find)
    app.state.changes = Kept(partial(changes.find, doubts=app.state.doubts))
    app.state.signatures = Kept(signatures.find)
    app.state.controls = Kept(workers_reading.controls)
    app.include_router(router)
    app.include_router(static.router)
    app.include_router(theme.router)
    app.add_middleware(ErrorPages)
