"""Workers: processes that build commits and run trials, and the devices they have."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import String
from sqlmodel import Field, SQLModel

from service.tables.columns import json_list, json_object, moment


class WorkerState(StrEnum):
    """What a worker last said, or what its silence says."""

    LIVE = "live"
    DRAINING = "draining"
    STOPPED = "stopped"
    LOST = "lost"


class Worker(SQLModel, table=True):
    """One `racewatch worker` process.

    device: as `runner.result.Device`, empty for one that only builds. doing: a sentence.
    """

    __tablename__ = "workers"

    id: UUID = Field(default_factory=uuid4, primary_key=True)
    name: str
    host: str
    pid: int
    version: str = ""
    queues: list[str] = json_list()
    device: dict[str, Any] = json_object()
    environment_id: int | None = Field(default=None, foreign_key="environments.id")
    parallel: int = 1
    state: WorkerState = Field(default=WorkerState.LIVE, sa_type=String, index=True)
    doing: str = ""
    started_at: datetime = moment(default_now=True)
    heartbeat_at: datetime = moment(default_now=True)
