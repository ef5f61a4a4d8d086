"""`/signatures`: failures that are alike; `/signature`, `.json`, `.csv`: one of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import HTMLResponse, Response

from service.api.errors import missing
from service.api.export import csv_response
from service.pages import asked
from service.pages.view import database, page
from service.reading import signatures
from service.reading.signatures import FAILED, OUTCOMES, Seen, SignatureFilter, SignaturePage

router = APIRouter()
ANY = "any"
_CHARACTERS = 1_000
"""Of a signature, at most."""


@router.get("/signatures")
def show_list(
    request: Request, subject: str = "", queue: str = "", outcome: str = "", text: str = ""
) -> HTMLResponse:
    """Failures by signature, the most recently seen first."""
    ended = asked.choice("outcome", outcome, (*OUTCOMES, ANY)) or FAILED
    chosen = SignatureFilter(
        subject=asked.plain("subject", subject),
        queue=asked.plain("queue", queue),
        outcome="" if ended == ANY else ended,
    )
    wanted = asked.plain("text", text).strip()
    with database(request).session() as session:
        groups = request.app.state.signatures(session, chosen)
        found = signatures.read(session, chosen, signatures.with_text(groups, wanted))
    return page(
        request,
        "signatures.html",
        list=found,
        ended=ended,
        text=wanted,
        outcomes_offered=(*OUTCOMES, ANY),
    )


def _one(
    request: Request, subject: str = "", queue: str = "", outcome: str = "", signature: str = ""
) -> SignaturePage:
    """The signature that the address names."""
    ended = asked.choice("outcome", outcome, OUTCOMES)
    name, device = asked.plain("subject", subject), asked.plain("queue", queue)
    if len(signature) > _CHARACTERS or "\0" in signature:
        raise missing("such failure", signature)
    with database(request).session() as session:
        found = signatures.read_one(session, name, device, ended, signature)
    if found is None:
        raise missing(f"{ended or 'failure'} of {name} on {device} with signature", signature)
    return found


One = Annotated[SignaturePage, Depends(_one)]


@router.get("/signature")
def show(request: Request, found: One) -> HTMLResponse:
    """One signature: since when, where, and the newest trials that have it."""
    return page(request, "signature.html", found=found)


@router.get("/signature.json")
def as_json(found: One) -> Response:
    """The same as data: by commit, cell and device."""
    group = found.line.group
    data = {
        "subject": group.subject,
        "device": group.queue,
        "emulated": found.line.emulated,
        "outcome": group.outcome,
        "signature": group.signature,
        "trials": group.trials,
        "first": _seen(found.line.first),
        "last": _seen(found.line.last),
        "commits": [dict(zip(CSV_COLUMNS, line, strict=True)) for line in _lines(found)],
        "more_commits": found.more_commits,
        "cells": [{"cell": one.cell.full, "trials": one.count} for one in found.cells],
        "environments": [
            {"environment": one.environment.full, "trials": one.count} for one in found.devices
        ],
    }
    return Response(json.dumps(data), media_type="application/json")


def _seen(seen: Seen) -> dict[str, Any]:
    return {"trial": seen.trial, "at": seen.at.isoformat(), "sha": seen.sha}


CSV_COLUMNS = ("sha", "title", "date", "branch", "place", "trials", "newest_trial")


@router.get("/signature.csv")
def as_csv(found: One) -> Response:
    """A line for each commit."""
    return csv_response("signature", CSV_COLUMNS, _lines(found))


def _lines(found: SignaturePage) -> Iterator[list[Any]]:
    for one in found.commits:
        yield [
            one.sha, one.title, one.date.isoformat() if one.date else None, one.branch or None,
            one.position if one.branch else None, one.count, one.trial,
        ]  # fmt: skip
