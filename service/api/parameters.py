"""Types of what a request may say: text that PostgreSQL takes, whole numbers, times, ids.

They are stricter than pydantic is by itself, which would take `1_0` for a number and 7 for a time,
so that what the schema says is what is accepted.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
)

PRINTABLE = r"^[^\x00-\x1f\x7f]+$"
"""No control characters: PostgreSQL takes no NUL, and a name has no use for the others."""
INTEGER_MAX = 2**31 - 1
"""The largest id: PostgreSQL's `integer`."""
_DIGITS = re.compile(r"(-?[0-9]{1,18})(?:\.0+)?", re.ASCII)
_BASE = r"(?:stock|unregistered|owned-stream|ffi13(?:\+owned-stream)?)"
_PULLS = r"pr-[1-9][0-9]{0,8}(?:\+pr-[1-9][0-9]{0,8}){0,2}"
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        digits = _DIGITS.fullmatch(value)
        if not digits:
            raise ValueError("must be a whole number")
        return int(digits[1])
    return value


def _integral(value: Any) -> Any:
    """JSON has one kind of numbers: there, 3.0 is a whole one."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _time(value: Any) -> Any:
    if isinstance(value, datetime):
        return value
    if not isinstance(value, str) or not _TIME.fullmatch(value):
        raise ValueError(
            "must be a time with its zone, such as 2026-01-31T12:00:00Z (a + is written %2B)"
        )
    return value


def _uuid(value: Any) -> Any:
    if isinstance(value, str) and not _UUID.fullmatch(value):
        raise ValueError("must be an id such as 6d3f6f0a-6a0e-4f57-9d0b-2f8d1a7a3c11")
    return value


Text = Annotated[
    str, StringConstraints(min_length=1, max_length=200, pattern=PRINTABLE), Field(strict=True)
]
"""A name or a part of one."""
_FROM_DIGITS = BeforeValidator(_whole)  # behind the bounds, else the schema would not tell them
RowId = Annotated[int, Field(ge=1, le=INTEGER_MAX), _FROM_DIGITS]
"""The id of a row."""
RunId = Annotated[UUID, BeforeValidator(_uuid)]
"""The id of a run."""
PullNumber = Annotated[int, Field(ge=1, le=999_999_999, examples=[2800]), _FROM_DIGITS]
"""The number of a pull request, as long as a variant's name allows (`pr-N`)."""
Time = Annotated[AwareDatetime, BeforeValidator(_time)]
"""A point in time, as RFC 3339 writes it."""
CleanBelow = Annotated[
    float,
    Field(
        ge=0.0001,
        lt=1,
        description="Rate that a cell without a failure has to be shown below.",
        examples=[0.05],
    ),
]
"""A bound; one much lower would take more trials than anyone runs, and as long to count them."""
INTEGRAL = BeforeValidator(_integral)
"""Beside a whole number in a body."""
Limit = Annotated[
    int, Field(ge=1, le=200, description="How many there are at most on a page."), _FROM_DIGITS
]
ShaPrefix = Annotated[
    str,
    StringConstraints(min_length=1, max_length=64, pattern=r"^[0-9A-Za-z][0-9A-Za-z._+-]*$"),
    Field(examples=["81a6d4f"]),
]
"""The beginning of a commit's hash, or a release's version."""
Subject = Annotated[
    str,
    StringConstraints(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$"),
    Field(examples=["te"]),
]
Device = Annotated[
    str,
    StringConstraints(max_length=32, pattern=r"^[a-z][a-z0-9]{0,31}$"),
    Field(examples=["sm90"]),
]
"""A kind of device, such as `sm90` or `emulated`: what the design calls a run's queue."""
Ref = Annotated[
    str,
    StringConstraints(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/+-]*$"),
    Field(examples=["main"]),
]
"""A branch, a tag, a commit or `pull/N`."""

VARIANT = rf"^(?:{_BASE}|{_PULLS}(?:\+{_BASE})?)$"
"""A variant's name, with its parts in the order in which Racewatch writes them."""
FORMS = {
    VARIANT: "a variant, such as stock, owned-stream, ffi13+owned-stream or pr-12+owned-stream",
    PRINTABLE: "text without control characters",
    r"^[0-9A-Za-z][0-9A-Za-z._+-]*$": "a commit's hash, its beginning, or a version",
    r"^[A-Za-z0-9][A-Za-z0-9._-]*$": "a name of letters, digits, dots and dashes",
    r"^[a-z][a-z0-9]{0,31}$": "a kind of device, such as sm90",
    r"^[A-Za-z0-9][A-Za-z0-9._/+-]*$": "a branch, a tag, a commit or pull/N",
    r"^[A-Za-z0-9_-]+$": "taken from a page's `next`",
    r"^[0-9A-Fa-f]{7,40}$": "7 to 40 hexadecimal digits",
}
"""What a pattern asks for, in words."""


class Filters(BaseModel):
    """Query parameters; one that is not known is refused, since a typing error filters nothing."""

    model_config = ConfigDict(extra="forbid")
