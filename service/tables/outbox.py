"""Messages to the outside, kept until they are delivered."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import BigInteger, Index, String, text
from sqlmodel import Field, SQLModel

from service.tables.columns import json_object, moment


class MessageState(StrEnum):
    """What became of a message."""

    WAITING = "waiting"
    SENT = "sent"
    FAILED = "failed"
    REPLACED = "replaced"
    """A newer message of the same topic made it pointless before it was sent."""


class Message(SQLModel, table=True):
    """One message. kind: `status`, `comment`, `permission`, `webhook` or `email`.

    topic: what it is about; of several waiting messages of one topic only the newest is sent.
    """

    __tablename__ = "outbox"
    __table_args__ = (
        Index("outbox_waiting", "next_attempt_at", postgresql_where=text("state = 'waiting'")),
        Index("outbox_by_topic", "topic", "id"),
    )

    id: int | None = Field(default=None, primary_key=True)
    kind: str
    topic: str
    payload: dict[str, Any] = json_object()
    state: MessageState = Field(default=MessageState.WAITING, sa_type=String)
    attempts: int = 0
    last_error: str = ""
    created_at: datetime = moment(default_now=True)
    next_attempt_at: datetime = moment(default_now=True)
    sent_at: datetime | None = moment()


class PullComment(SQLModel, table=True):
    """The one comment that Racewatch keeps on a pull request, by GitHub's id."""

    __tablename__ = "pull_comments"

    subject: str = Field(primary_key=True)
    pull: int = Field(primary_key=True)
    comment_id: int = Field(sa_type=BigInteger)
