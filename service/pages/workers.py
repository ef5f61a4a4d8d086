"""`/workers`: workers, what they do, and what waits for them; `.csv`: the workers as data."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from service.api.export import csv_response
from service.pages.view import database, page, settings
from service.reading import workers
from service.reading.workers import WorkersPage

router = APIRouter()
VERSION = version("racewatch")
"""Of this service."""


def _read(request: Request) -> WorkersPage:
    with database(request).session() as session:
        controlled = request.app.state.controls(session, None)
        return workers.read(session, settings(request).worker_lost_s, VERSION, controlled)


@router.get("/workers")
def show(request: Request) -> HTMLResponse:
    """All workers and queues."""
    lost_s = settings(request).worker_lost_s
    return page(request, "workers.html", work=_read(request), lost_s=lost_s)


CSV_COLUMNS = (
    "name", "host", "pid", "version", "state", "late", "device", "details", "emulated", "parallel",
    "queues", "doing", "heartbeat_at", "known_bad_k", "known_bad_n", "known_good_k",
    "known_good_n", "proof", "flags",
)  # fmt: skip


@router.get("/workers.csv")
def as_csv(request: Request) -> Response:
    """A line for each worker."""
    return csv_response("workers", CSV_COLUMNS, _lines(_read(request)))


def _lines(found: WorkersPage) -> Iterator[list[Any]]:
    for one in found.workers:
        shown = one.controls
        controls = (
            (shown.known_bad.k, shown.known_bad.n, shown.known_good.k, shown.known_good.n,
             str(shown.verdict.proof))
            if shown else (0, 0, 0, 0, None)
        )  # fmt: skip
        yield [
            one.name, one.host, one.pid, one.version, one.state, one.late, one.device,
            one.device_details, one.emulated, one.parallel, " ".join(one.queues), one.doing,
            one.heartbeat_at, *controls, "; ".join(one.flags),
        ]  # fmt: skip
