"""Trials, and apart from them their evidence and log, which may be pruned."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, Column, Index, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel, UniqueConstraint

from service.tables.columns import json_list, json_object, moment


class Trial(SQLModel, table=True):
    """One trial; see `runner.result.TrialFinished`.

    claim_id and index make it unique, so that storing or importing it twice counts once.
    run_cell_id: None for an added reference or control trial. signature: empty for a pass.
    foreign_nodes: graph nodes that other threads' work became in its capture windows, and calls of
    theirs that a window refused; None where the detector did not watch. control: what a control
    trial is known to do (`known-bad`, `known-good`), empty for all others.
    """

    __tablename__ = "trials"
    __table_args__ = (
        UniqueConstraint("claim_id", "index"),
        Index("trials_by_run", "run_id", "id"),
        Index("trials_by_measurement", "measurement_id", "id"),
        Index("trials_of_controls", "run_id", "id", postgresql_where=text("control <> ''")),
        Index("trials_by_signature", "signature", "id", postgresql_where=text("outcome <> 'pass'")),
    )

    id: int | None = Field(default=None, primary_key=True, sa_type=BigInteger)
    measurement_id: int = Field(foreign_key="measurements.id")
    run_id: UUID = Field(foreign_key="runs.id")
    run_cell_id: int | None = Field(default=None, foreign_key="run_cells.id")
    claim_id: UUID = Field(foreign_key="claims.id")
    worker_id: UUID | None = Field(default=None, foreign_key="workers.id")
    index: int
    outcome: str
    signature: str = ""
    reason: str = ""
    seconds: float = 0.0
    device: str = ""
    recipe: str = ""
    digests: list[str] = json_list()
    background_updates: int = 0
    handlers: list[str] | None = Field(default=None, sa_column=Column(JSONB(none_as_null=True)))
    times: dict[str, float] = json_object()
    finished_at: datetime = moment(default_now=True)
    foreign_nodes: int | None = Field(default=None, sa_type=BigInteger)
    control: str = ""


class TrialEvidence(SQLModel, table=True):
    """Raw evidence of a trial and what it printed (both ends of a long log)."""

    __tablename__ = "trial_evidence"

    trial_id: int = Field(primary_key=True, foreign_key="trials.id", sa_type=BigInteger)
    evidence: dict[str, Any] = json_object()
    log: str = ""
