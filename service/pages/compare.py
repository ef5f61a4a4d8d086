"""`/compare`: two commits, or two variants of one, against each other; `.json`, `.csv`: as data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Request
from starlette.responses import HTMLResponse, Response

from service.api.doubts import doubts
from service.api.errors import refused
from service.api.export import csv_response
from service.pages import asked
from service.pages.exported import as_swallow
from service.pages.markdown import comparison
from service.pages.view import database, page, settings
from service.reading import compare
from service.reading.compare import ComparedRow, ComparedSwallow, CompareFilter, ComparePage
from service.reading.grid import CLEAN_BELOW
from service.reading.rate import Mark, Rate, Swallow

router = APIRouter()


def _filter(
    subject: str = "",
    a: str = "",
    b: str = "",
    base: str = "",
    head: str = "",
    queue: str = "",
    clean_below: str = "",
) -> CompareFilter:
    """What the address asks for."""
    if bool(base) != bool(head):
        raise refused(422, "query parameters base and head: give both, or neither")
    return CompareFilter(
        subject=asked.plain("subject", subject),
        a=asked.plain("a", a).strip(),
        b=asked.plain("b", b).strip(),
        base=asked.plain("base", base),
        head=asked.plain("head", head),
        queue=asked.plain("queue", queue),
        clean_below=asked.bound("clean_below", clean_below, CLEAN_BELOW),
    )


Asked = Annotated[CompareFilter, Depends(_filter)]


def _read(request: Request, chosen: CompareFilter) -> ComparePage:
    try:
        with database(request).session() as session:
            return compare.read(session, chosen, doubts(request, session))
    except compare.NoSuchCommit as error:
        raise refused(404, str(error)) from None


def _both(request: Request, chosen: CompareFilter) -> ComparePage:
    if not (chosen.a and chosen.b):
        raise refused(422, "query parameters a and b: are required, a commit's hash each")
    return _read(request, chosen)


@router.get("/compare")
def show(request: Request, chosen: Asked) -> HTMLResponse:
    """The table of differences; without commits, a form."""
    found = _read(request, chosen)
    return page(
        request,
        "compare.html",
        compared=found,
        counted={mark: found.counted(mark) for mark in Mark},
        markdown=comparison(found, settings(request).link) if found.rows else "",
        whole=_whole(found),
    )


def _whole(found: ComparePage) -> str:
    """The query of this view, with whole hashes, so that it stays what it is."""
    asked_for = found.asked
    parts = {
        "subject": asked_for.subject,
        "a": found.a.sha if found.a else "",
        "b": found.b.sha if found.b else "",
        "base": asked_for.base,
        "head": asked_for.head,
        "queue": asked_for.queue,
        "clean_below": "" if asked_for.clean_below == CLEAN_BELOW else asked_for.clean_below,
    }
    return urlencode({name: value for name, value in parts.items() if value})


@router.get("/compare.json")
def as_json(request: Request, chosen: Asked) -> Response:
    """The comparison: its cells, those that differ first, and its output bits."""
    found = _both(request, chosen)
    assert found.a is not None, "both were asked for"
    assert found.b is not None, "both were asked for"
    data = {
        "subject": found.asked.subject,
        "base": {"sha": found.a.sha, "variant": found.asked.base or None},
        "head": {"sha": found.b.sha, "variant": found.asked.head or None},
        "clean_below": found.asked.clean_below,
        "cells": [_cell(row) for row in found.rows],
        "parity": [
            {"of": one.of, "where": one.where, "equal": one.equal, "reason": one.reason}
            for one in found.parity
        ],
    }
    return Response(json.dumps(data), media_type="application/json")


def _cell(row: ComparedRow) -> dict[str, Any]:
    return {
        "cell": row.cell.full,
        "device": row.queue,
        "environment": row.environment.full if row.environment else None,
        "emulated": bool(row.environment and row.environment.emulated),
        "base": _side(row.a, row.why_a),
        "head": _side(row.b, row.why_b),
        "verdict": str(row.mark),
        "label": row.label,
        "direction": row.direction or None,
        "p": row.p,
        "difference": row.difference,
        "same_build": row.same,
        "trials_needed": row.needed[0],
        "base_trials_needed": row.needed[1],
        "swallow": _swallow(row.swallow),
    }


def _swallow(found: ComparedSwallow | None) -> dict[str, Any] | None:
    """Trials with foreign work in a capture window; null where none was watched."""
    if found is None:
        return None
    return {
        "base": found.a and as_swallow(found.a),
        "head": found.b and as_swallow(found.b),
        "verdict": str(found.mark),
        "label": found.label,
        "direction": found.direction or None,
        "p": found.p,
        "difference": found.difference,
        "trials_needed": found.needed[0],
        "base_trials_needed": found.needed[1],
    }


def _side(rate: Rate | None, why: str) -> dict[str, Any]:
    if rate is None:
        return {"k": 0, "n": 0, "rate": None, "interval": None, "counts": {}, "reason": why}
    return {
        "k": rate.k,
        "n": rate.n,
        "rate": rate.rate,
        "interval": [rate.low, rate.high] if rate.n else None,
        "counts": dict(rate.counts),
        "reason": why,
    }


CSV_COLUMNS = (
    "cell", "device", "environment", "emulated", "base_k", "base_n", "base_low", "base_high",
    "head_k", "head_n", "head_low", "head_high", "verdict", "label", "direction", "p",
    "difference_low", "difference_high", "same_build", "base_swallow_k", "base_watched",
    "base_swallow_low", "base_swallow_high", "head_swallow_k", "head_watched", "head_swallow_low",
    "head_swallow_high", "swallow_verdict", "swallow_direction", "swallow_p",
)  # fmt: skip


@router.get("/compare.csv")
def as_csv(request: Request, chosen: Asked) -> Response:
    """A line for each cell."""
    return csv_response("compare", CSV_COLUMNS, _lines(_both(request, chosen)))


def _lines(found: ComparePage) -> Iterator[list[Any]]:
    for row in found.rows:
        where = row.environment
        yield [
            row.cell.full, row.queue, where.full if where else None,
            bool(where and where.emulated), *_counted(row.a), *_counted(row.b), str(row.mark),
            row.label, row.direction, row.p, *(row.difference or (None, None)), row.same,
            *_counted(row.a and row.a.swallow), *_counted(row.b and row.b.swallow),
            *((str(row.swallow.mark), row.swallow.direction, row.swallow.p)
              if row.swallow else (None, None, None)),
        ]  # fmt: skip


def _counted(rate: Rate | Swallow | None) -> tuple[Any, ...]:
    if rate is None or not rate.n:
        return (0, 0, None, None)
    return (rate.k, rate.n, rate.low, rate.high)
