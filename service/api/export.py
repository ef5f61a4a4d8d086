"""Lists as CSV: streamed, and safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from fastapi import Request
from pydantic import Field
from starlette.responses import StreamingResponse

ROWS_AT_ONCE = 1_000
"""Rows that are read from the database, and written, at a time."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""How text begins that a spreadsheet would run. Source: OWASP, CSV Injection."""


class Format(StrEnum):
    """How a list is written."""

    JSON = "json"
    CSV = "csv"


FormatParameter = Annotated[
    Format | None,
    Field(description="Instead of the Accept header. CSV is the whole list, unless limit is set."),
]


def wants_csv(request: Request, asked: Format | None) -> bool:
    """Whether the list goes out as CSV: the parameter decides, else what Accept likes better."""
    if asked is not None:
        return asked is Format.CSV
    liked = _quality(request, "text/csv")
    return liked > 0 and liked > _quality(request, "application/json")


def csv_response(
    name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]
) -> StreamingResponse:
    """The rows as a file of that name, sent while they are read."""
    return StreamingResponse(
        _lines(columns, rows),
        media_type="text/csv",
        headers={
            "Content-Disposition": f'attachment; filename="{name}.csv"',
            "Vary": "Accept",
        },
    )


def safe(value: Any) -> Any:
    """A value as a spreadsheet may see it: text that would run as a formula gets a quote before it.

    Numbers stay what they are, negative ones too.
    """
    if isinstance(value, datetime):
        return value.isoformat()
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return value
    text = str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def _lines(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(columns)
    for n, row in enumerate(rows, start=1):
        writer.writerow([safe(value) for value in row])
        if n % ROWS_AT_ONCE == 0:
            yield _taken(buffer)
    yield _taken(buffer)


def _taken(buffer: io.StringIO) -> str:
    text = buffer.getvalue()
    buffer.seek(0)
    buffer.truncate()
    return text


def _quality(request: Request, media_type: str) -> float:
    """How much the client likes a media type, 0 to 1; the most specific range decides."""
    accepted = request.headers.get("accept", "*/*")
    ranges = {media_type: 3, media_type.partition("/")[0] + "/*": 2, "*/*": 1}
    best, quality = 0, 0.0
    for part in accepted.split(","):
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        if ranges.get(name, 0) > best:
            best, quality = ranges[name], _q(parameters)
    return quality


def _q(parameters: Sequence[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0
