"""Bisections, and the events whose fold each one's state is."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Column, Index, String, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel, UniqueConstraint

from service.tables.columns import json_object, moment


class BisectionState(StrEnum):
    """How far a bisection has come."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Bisection(SQLModel, table=True):
    """Which commit between two changed a cell's failure rate; see `runner.bisect`.

    good, bad: refs as asked for. cell: as a matrix file has it; cell_name: as it was asked for.
    queue: kind of device. budget_s: of wall time, None for none. observe: what is counted of a
    trial, a `runner.bisect.settings.Observe`. cause_id: of the run whose regression started it by
    itself, None for one that somebody asked for. searched: the range as
    `runner.bisect.range.Range` writes it, None until it is known. verdict: as
    `runner.bisect.verdict.Verdict`, None until then. setbacks: attempts in a row to have git tell
    something that no host could carry out. again_at: the next one is not before then.
    """

    __tablename__ = "bisections"
    __table_args__ = (
        Index("bisections_open", "state", postgresql_where=text("state IN ('queued', 'running')")),
        Index("bisections_by_time", text("created_at DESC"), "id"),
    )

    id: UUID = Field(default_factory=uuid4, primary_key=True)
    subject: str
    good: str
    bad: str
    matrix_name: str
    cell_name: str
    cell: dict[str, Any] = json_object()
    queue: str
    toolchain: str = ""
    confidence: float = 0.99
    budget_s: float | None = None
    state: BisectionState = Field(default=BisectionState.QUEUED, sa_type=String)
    reason: str = ""
    requested_by: str = ""
    observe: str = "failure"
    cause_id: UUID | None = None
    searched: dict[str, Any] | None = Field(
        default=None, sa_column=Column(JSONB(none_as_null=True))
    )
    verdict: dict[str, Any] | None = Field(default=None, sa_column=Column(JSONB(none_as_null=True)))
    setbacks: int = 0
    again_at: datetime | None = moment()
    created_at: datetime = moment(default_now=True)
    started_at: datetime | None = moment()
    finished_at: datetime | None = moment()


class BisectionEvent(SQLModel, table=True):
    """One thing that happened, in its order; see `runner.bisect.events`.

    run_id: of the probe that it came of, whose trials count once.
    """

    __tablename__ = "bisection_events"
    __table_args__ = (UniqueConstraint("bisection_id", "run_id"),)

    bisection_id: UUID = Field(foreign_key="bisections.id", primary_key=True)
    number: int = Field(primary_key=True)
    data: dict[str, Any] = json_object()
    run_id: UUID | None = Field(default=None, foreign_key="runs.id")
    created_at: datetime = moment(default_now=True)
