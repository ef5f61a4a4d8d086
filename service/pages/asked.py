"""What a page's address may ask for. A form leaves fields empty, and empty means anything."""

from __future__ import annotations

from collections.abc import Collection
from datetime import date
from uuid import UUID

from service.api.errors import missing, refused

MAX_NUMBER = 2**31 - 1
"""The largest id: PostgreSQL's `integer`."""


def number(name: str, text: str) -> int | None:
    """A whole number from 0; None for an empty text."""
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= MAX_NUMBER):
        raise _refused(name, text, "a whole number")
    return int(text)


def row(what: str, text: str) -> int:
    """The id of a row from a path; what can be none's leads nowhere."""
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and 0 < int(text) <= MAX_NUMBER):
        raise missing(what, text)
    return int(text)


def identity(name: str, text: str) -> UUID | None:
    """An id of a run; None for an empty text."""
    try:
        return UUID(text) if text else None
    except ValueError:
        raise _refused(name, text, "the id of a run") from None


def bound(name: str, text: str, default: float) -> float:
    """A rate between 0 and 1."""
    try:
        rate = float(text) if text else default
    except ValueError:
        rate = 0.0
    if not 0 < rate < 1:
        raise _refused(name, text, "a rate between 0 and 1, such as 0.05")
    return rate


def day(name: str, text: str) -> date | None:
    """A day; None for an empty text."""
    try:
        return date.fromisoformat(text) if text else None
    except ValueError:
        raise _refused(name, text, "a day such as 2026-01-31") from None


def choice(name: str, text: str, known: Collection[str]) -> str:
    """One of several, or nothing."""
    if text and text not in known:
        raise _refused(name, text, f"one of {', '.join(known)}")
    return text


def plain(name: str, text: str) -> str:
    """A name; PostgreSQL takes no NUL."""
    if len(text) > 200 or not text.isprintable():
        raise _refused(name, text, "a name of at most 200 characters")
    return text


def _refused(name: str, text: str, wanted: str) -> Exception:
    return refused(422, f"query parameter {name}: must be {wanted}, got {text[:80]!r}")
