"""`/bisections` and `/bisections/{id}`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from runner import matrix as matrices
from runner.bisect.settings import Observe
from runner.matrix import Matrix
from service.api.errors import missing, refused
from service.pages import asked, markdown
from service.pages.bisection_chart import Picture, picture
from service.pages.view import database, page, settings
from service.reading import bisections
from service.reading.bisections import BisectionLine, BisectionPage, Searched, Suspect
from service.tables import BisectionState

router = APIRouter()
ALL = 24
"""Classes of a range up to which the table lists them all."""
LIKELY = 0.05
"""Probability from which on a commit is listed, however little is known of it."""


@dataclass(frozen=True)
class Between:
    """Classes that the table leaves out, together: nothing was seen of them."""

    count: int
    probability: float


@dataclass(frozen=True)
class Table:
    """A range as a table and as a picture. rows: some of its classes; whole: it has them all."""

    searched: Searched
    rows: tuple[Suspect | Between, ...]
    whole: bool
    picture: Picture


@router.get("/bisections")
def show_list(
    request: Request, subject: str = "", queue: str = "", state: str = "", before: str = ""
) -> HTMLResponse:
    """Bisections, newest first."""
    try:
        last = UUID(before) if before else None
    except ValueError:
        raise refused(
            422, f"query parameter before: must be the id of a bisection, got {before[:80]!r}"
        ) from None
    chosen = bisections.BisectionFilter(
        subject=asked.plain("subject", subject),
        queue=asked.plain("queue", queue),
        state=asked.choice("state", state, tuple(BisectionState)),
        before=last,
    )
    with database(request).session() as session:
        found = bisections.read_list(session, chosen)
    return page(request, "bisections.html", list=found)


@router.get("/bisections/{bisection_id}")
def show(request: Request, bisection_id: str) -> HTMLResponse:
    """One bisection: its posterior, what it saw, what it does next, and its verdict."""
    try:
        identity = UUID(bisection_id)
    except ValueError:
        raise missing("bisection", bisection_id) from None
    with database(request).session() as session:
        found = bisections.read(session, identity)
    if found is None:
        raise missing("bisection", bisection_id)
    running = {one.probe.key: one for one in found.running}
    return page(
        request,
        "bisection.html",
        found=found,
        # The range that is searched now comes first, then what it is inside of.
        tables=[_table(one, frozenset(running), found) for one in reversed(found.searched)],
        running=running,
        body=_request(found),
        command=_command(found.line),
        markdown=markdown.bisection(found, settings(request).link),
    )


def _table(searched: Searched, running: frozenset[str], found: BisectionPage) -> Table:
    rows = tuple(_rows(searched, running))
    return Table(
        searched,
        rows,
        not any(isinstance(row, Between) for row in rows),
        picture(searched, running, found.verdict),
    )


def _rows(searched: Searched, running: frozenset[str]) -> Iterator[Suspect | Between]:
    """Classes of which something is known or that are likely; what lies between them together."""
    suspects = searched.suspects
    shown = {
        one.place
        for one in suspects
        if len(suspects) <= ALL
        or one.tally.n
        or one.broken
        or one.key in running
        or one.suspected
        or one.base
        or (one.probability or 0.0) >= LIKELY
    } | {0, len(suspects) - 1, searched.likeliest.place}
    hidden: list[Suspect] = []
    for one in suspects:
        if one.place not in shown:
            hidden.append(one)
            continue
        yield from _together(hidden)
        hidden = []
        yield one


def _together(hidden: list[Suspect]) -> Iterator[Suspect | Between]:
    if len(hidden) == 1:  # which takes no more room than its sum
        yield hidden[0]
    elif hidden:
        yield Between(len(hidden), sum(one.probability or 0.0 for one in hidden))


def _request(found: BisectionPage) -> str:
    """The body of the request that asks the same again, as JSON."""
    line = found.line
    body: dict[str, object] = {
        "subject": line.subject,
        "good": line.good,
        "bad": line.bad,
        "cell": line.cell,
        "matrix": line.matrix,
        "queue": line.queue,
        "confidence": line.confidence,
    }
    if line.matrix not in matrices.available():
        alone = matrices.as_data(Matrix(line.matrix, "", (found.cell,)))
        body["matrix"] = {"name": line.matrix, "cells": alone["cells"]}
    if line.budget_s is not None:
        body["budget_s"] = line.budget_s
    if line.observe is not Observe.FAILURE:
        body["observe"] = str(line.observe)
    return json.dumps(body)


def _command(line: BisectionLine) -> str:
    """The command that does the same on one machine; empty where it would need a matrix file."""
    if line.matrix not in matrices.available():
        return ""
    words = [
        "racewatch", "bisect", "--subject", line.subject, "--good", line.good, "--bad", line.bad,
        "--matrix", line.matrix, "--cell", line.cell, "--confidence", f"{line.confidence:g}",
    ]  # fmt: skip
    if line.budget_s is not None:
        words += ["--budget", f"{line.budget_s:g}s"]
    if line.observe is not Observe.FAILURE:
        words += ["--observe", str(line.observe)]
    return shlex.join(words)
