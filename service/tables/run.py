"""Runs, the cells that each ordered, and the claims under which workers carry them out."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Column, Index, String, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel, UniqueConstraint

from service.tables.columns import json_list, json_object, moment


class Origin(StrEnum):
    """Why a run was ordered; see `PRIORITIES`."""

    PULL_REQUEST = "pull_request"
    MANUAL = "manual"
    PUSH = "push"
    BISECTION = "bisection"
    BACKFILL = "backfill"
    IMPORT = "import"


PRIORITIES = {
    Origin.PULL_REQUEST: 40,
    Origin.PUSH: 30,
    Origin.MANUAL: 30,
    Origin.BISECTION: 20,
    Origin.BACKFILL: 10,
    Origin.IMPORT: 0,
}
"""Of a run's jobs; the highest is taken first."""


class RunState(StrEnum):
    """How far a run has come."""

    AWAITING_APPROVAL = "awaiting_approval"
    QUEUED = "queued"
    BUILDING = "building"
    RUNNING = "running"
    COMPLETE = "complete"
    FAILED = "failed"
    CANCELLED = "cancelled"


OPEN_STATES = (RunState.QUEUED, RunState.BUILDING, RunState.RUNNING)
"""States in which there is work to do."""
ENDED_STATES = (RunState.COMPLETE, RunState.FAILED, RunState.CANCELLED)


class Run(SQLModel, table=True):
    """One commit through one matrix on one kind of device.

    commit_id: None until its ref is resolved. queue: what its trials need, such as `sm90` or
    `emulated`. matrix: as `runner.matrix.as_data` gives it, empty for an import that knows only
    names. environment_id: bound by the first worker that takes it. base_run_id: the run of the
    merge base that a pull request's run is compared with. bisection_id: whose probe it is; then its
    own trials settle it, whatever others there are. setbacks: attempts in a row that the
    infrastructure cost, with no trial stored. adaptive: see `Measurement`. sequential: cells stop
    as soon as they are decided. told: the state that the outside was last told of, see
    `service.finished`.
    """

    __tablename__ = "runs"
    __table_args__ = (
        Index("runs_by_commit", "commit_id"),
        Index("runs_by_time", text("created_at DESC"), "id"),
        Index(
            "runs_open", "state", postgresql_where=text("state IN ('queued','building','running')")
        ),
        Index("runs_by_pull", "subject", "pull"),
        Index("runs_untold", "created_at", postgresql_where=text("told <> state")),
    )

    id: UUID = Field(default_factory=uuid4, primary_key=True)
    subject: str
    commit_id: int | None = Field(default=None, foreign_key="commits.id")
    ref: str = ""
    pull: int | None = None
    head_sha: str = ""
    matrix_name: str
    matrix: dict[str, Any] = json_object()
    clean_below: float = 0.05
    queue: str
    toolchain: str = ""
    origin: Origin = Field(default=Origin.MANUAL, sa_type=String)
    priority: int = 30
    state: RunState = Field(default=RunState.QUEUED, sa_type=String)
    reason: str = ""
    requested_by: str = ""
    adaptive: bool = False
    sequential: bool = False
    trusted: bool = True
    setbacks: int = 0
    told: str = ""
    environment_id: int | None = Field(default=None, foreign_key="environments.id")
    base_commit_id: int | None = Field(default=None, foreign_key="commits.id")
    bisection_id: UUID | None = Field(default=None, foreign_key="bisections.id", index=True)
    base_run_id: UUID | None = Field(default=None, foreign_key="runs.id")
    parity: dict[str, Any] | None = Field(default=None, sa_column=Column(JSONB(none_as_null=True)))
    notes: list[str] = json_list()
    facts: dict[str, Any] = json_object()
    created_at: datetime = moment(default_now=True)
    started_at: datetime | None = moment()
    finished_at: datetime | None = moment()


class RunCell(SQLModel, table=True):
    """A cell that a run ordered.

    position: in the matrix, from 0; references follow the matrix's own. build: a
    `runner.run.BuildId` as text. wanted: trials that the measurement shall have at least, whoever
    ran them. recorded: trials that this run itself stored. decided: why no more of them are
    needed although fewer are there, empty if that is not so. outcome: `build_error` or
    `unsupported` where the build tells that there is nothing to run, with its signature.
    """

    __tablename__ = "run_cells"
    __table_args__ = (UniqueConstraint("run_id", "position"),)

    id: int | None = Field(default=None, primary_key=True)
    run_id: UUID = Field(foreign_key="runs.id", index=True)
    position: int
    name: str
    cell_id: int = Field(foreign_key="cells.id")
    build: str
    wanted: int
    recorded: int = 0
    decided: str = ""
    outcome: str | None = None
    signature: str = ""
    measurement_id: int | None = Field(default=None, foreign_key="measurements.id", index=True)


class ClaimState(StrEnum):
    """What became of a claim. Only a live one may store trials."""

    LIVE = "live"
    DONE = "done"
    LOST = "lost"
    CANCELLED = "cancelled"


class Claim(SQLModel, table=True):
    """A worker's hold on some trials of a run; its id is the token that storing them takes.

    heartbeat_at: when its worker last said that it still holds it.
    """

    __tablename__ = "claims"
    __table_args__ = (Index("claims_live", "run_id", postgresql_where=text("state = 'live'")),)

    id: UUID = Field(default_factory=uuid4, primary_key=True)
    run_id: UUID = Field(foreign_key="runs.id", index=True)
    worker_id: UUID | None = Field(default=None, foreign_key="workers.id")
    state: ClaimState = Field(default=ClaimState.LIVE, sa_type=String)
    reason: str = ""
    created_at: datetime = moment(default_now=True)
    heartbeat_at: datetime = moment(default_now=True)
    finished_at: datetime | None = moment()


class ClaimCell(SQLModel, table=True):
    """How many trials of a run's cell a claim holds, and how many of them are stored."""

    __tablename__ = "claim_cells"

    claim_id: UUID = Field(foreign_key="claims.id", primary_key=True)
    run_cell_id: int = Field(foreign_key="run_cells.id", primary_key=True)
    trials: int
    recorded: int = 0
