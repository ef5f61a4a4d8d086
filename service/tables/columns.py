"""Column types that the tables share: points in time, JSON, and counts by outcome."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Column, DateTime
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field


def now() -> datetime:
    """This moment, in UTC."""
    return datetime.now(UTC)


def moment(default_now: bool = False, index: bool = False) -> Any:
    """A column of a time with its zone; None where it may be unknown and nothing is said."""
    if default_now:
        return Field(default_factory=now, sa_type=DateTime(timezone=True), index=index)
    return Field(default=None, sa_type=DateTime(timezone=True), index=index, nullable=True)


def json_list() -> Any:
    """A column of a JSON array, empty by default."""
    return Field(default_factory=list, sa_column=Column(JSONB, nullable=False))


def json_object() -> Any:
    """A column of a JSON object, empty by default."""
    return Field(default_factory=dict, sa_column=Column(JSONB, nullable=False))
