"""Builds by the key of their content, and what each commit needs of them."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import Column, String
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel, UniqueConstraint

from service.tables.columns import json_object, moment


class Build(SQLModel, table=True):
    """A build that was made, or could not be: see `runner.run.PreparedBuild`.

    key: the digest of its content; commits that share it share the build and its trials. A build
    that has none (a pull request that does not apply) has `none:` and what was asked for.
    outcome: None for one that can be run, else `build_error` or `unsupported`.
    log: of the compiler, both ends of a long one.
    """

    __tablename__ = "builds"

    id: int | None = Field(default=None, primary_key=True)
    subject: str
    key: str = Field(unique=True)
    outcome: str | None = None
    signature: str = ""
    reason: str = ""
    log: str = ""
    seconds: float = 0.0
    initialize: list[str] | None = Field(default=None, sa_column=Column(JSONB(none_as_null=True)))
    owned_stream_needed: bool = True
    facts: dict[str, Any] = json_object()
    created_at: datetime = moment(default_now=True)


class BuildState(StrEnum):
    """How far the build of a commit has come."""

    WAITING = "waiting"
    BUILDING = "building"
    DONE = "done"
    FAILED = "failed"
    """The infrastructure did not manage, however often it was tried."""


class CommitBuild(SQLModel, table=True):
    """One build that a commit needs: `name` is a `runner.run.BuildId` as text.

    architecture: what trials run on, such as `sm90` or `emulated`. token: of the attempt that may
    write the row, None while nobody builds. attempts: how many there were.
    """

    __tablename__ = "commit_builds"
    __table_args__ = (UniqueConstraint("commit_id", "name", "toolchain", "architecture"),)

    id: int | None = Field(default=None, primary_key=True)
    commit_id: int = Field(foreign_key="commits.id")
    name: str
    toolchain: str
    architecture: str
    state: BuildState = Field(default=BuildState.WAITING, sa_type=String)
    build_id: int | None = Field(default=None, foreign_key="builds.id", index=True)
    token: UUID | None = None
    worker_id: UUID | None = Field(default=None, foreign_key="workers.id")
    attempts: int = 0
    reason: str = ""
    started_at: datetime | None = moment()
    heartbeat_at: datetime | None = moment()
    finished_at: datetime | None = moment()
