"""Pages of a list by cursor: where the last one ended, so rows added meanwhile move nothing."""

from __future__ import annotations

import base64
import binascii
from datetime import datetime
from typing import Annotated, Generic, TypeVar
from urllib.parse import urlencode
from uuid import UUID

from fastapi import Request, Response
from pydantic import BaseModel, Field, StringConstraints

from runner.errors import InputError
from service.api.parameters import INTEGER_MAX

Cursor = Annotated[
    str,
    StringConstraints(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9_-]+$"),
    Field(
        description="Where to go on: taken from a page's `next`, never made up.",
        json_schema_extra={"format": "cursor"},
    ),
]
Item = TypeVar("Item")


class Page(BaseModel, Generic[Item]):
    """Some of a list. next: the rest, None where this is its end; the same as the Link header."""

    items: list[Item]
    next: str | None = Field(description="Path and query of the next page, null on the last one.")


def at_moment(moment: datetime, identity: UUID) -> str:
    """A cursor behind a row of a list that is ordered by time, then id."""
    return _packed(f"t{moment.isoformat()}|{identity}")


def moment_of(cursor: str) -> tuple[datetime, UUID]:
    """What `at_moment` was given. Raises InputError."""
    moment, _, identity = _unpacked(cursor, "t").partition("|")
    try:
        when = datetime.fromisoformat(moment)
        if when.tzinfo is None:
            raise ValueError("no zone")
        return when, UUID(identity)
    except ValueError:
        raise _strange(cursor) from None


def at_number(number: int) -> str:
    """A cursor behind a row of a list that is ordered by a whole number."""
    return _packed(f"n{number}")


def number_of(cursor: str) -> int:
    """What `at_number` was given. Raises InputError."""
    text = _unpacked(cursor, "n")
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= INTEGER_MAX):
        raise _strange(cursor)
    return int(text)


def next_of(request: Request, response: Response, cursor: str | None) -> str | None:
    """The path and query of the page that begins at `cursor`; it becomes a Link header too."""
    if cursor is None:
        return None
    query = [(key, value) for key, value in request.query_params.multi_items() if key != "cursor"]
    link = f"{request.url.path}?{urlencode([*query, ('cursor', cursor)])}"
    response.headers["Link"] = f'<{link}>; rel="next"'
    return link


def _packed(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _unpacked(cursor: str, kind: str) -> str:
    padded = cursor + "=" * (-len(cursor) % 4)
    try:
        text = base64.b64decode(padded, altchars=b"-_", validate=True).decode("ascii")
    except (binascii.Error, UnicodeDecodeError):
        raise _strange(cursor) from None
    if not text.startswith(kind):
        raise _strange(cursor)
    return text[1:]


def _strange(cursor: str) -> InputError:
    return InputError(
        f"cursor {cursor[:60]!r} is none that this list gave: take it from a page's `next`, or "
        "leave it out to begin at the start"
    )
