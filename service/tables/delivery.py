"""What GitHub delivered, and which commits of pull requests someone with the right approved."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlmodel import Field, SQLModel, UniqueConstraint

from service.tables.columns import json_object, moment


class Delivery(SQLModel, table=True):
    """One webhook delivery; its id is GitHub's, so that a replayed one is known.

    effect: a sentence on what it caused.
    """

    __tablename__ = "deliveries"

    id: str = Field(primary_key=True)
    event: str
    action: str = ""
    repository: str = ""
    payload: dict[str, Any] = json_object()
    effect: str = ""
    received_at: datetime = moment(default_now=True, index=True)


class Approval(SQLModel, table=True):
    """Someone with write permission approved exactly this head commit. via: `comment` or `api`."""

    __tablename__ = "approvals"
    __table_args__ = (UniqueConstraint("subject", "sha"),)

    id: int | None = Field(default=None, primary_key=True)
    subject: str
    pull: int
    sha: str
    by: str
    via: str
    created_at: datetime = moment(default_now=True)
