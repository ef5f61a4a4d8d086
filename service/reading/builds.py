"""Builds: those that a commit needs, and one with its log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.orm import defer
from sqlmodel import Session, col, select

from service.reading.logs import LogView, build_log
from service.reading.rate import Mark, mark_of_outcome
from service.tables import Build, BuildState, Commit, CommitBuild

COMMITS = 50
"""Commits that a build's page lists."""


@dataclass(frozen=True)
class BuildLine:
    """A build that a commit needs, as far as it has come. build: its id once it is there.

    mark: None for one that can be run.
    """

    name: str
    architecture: str
    toolchain: str
    state: str
    mark: Mark | None
    signature: str
    reason: str
    attempts: int
    seconds: float
    build: int | None
    has_log: bool
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True)
class BuildCommit:
    """A commit that uses a build."""

    id: int
    subject: str
    sha: str
    title: str
    name: str


@dataclass(frozen=True)
class BuildPage:
    """One build with its log. mark: None for one that can be run. more: further commits."""

    id: int
    subject: str
    key: str
    mark: Mark | None
    signature: str
    reason: str
    seconds: float
    created_at: datetime
    handlers: tuple[str, ...] | None
    facts: Mapping[str, Any]
    log: LogView
    commits: tuple[BuildCommit, ...]
    more: bool


def build_lines(session: Session, commit_id: int, architecture: str = "") -> tuple[BuildLine, ...]:
    """The builds of a commit; architecture: only those that trials of this queue run on."""
    query = (
        select(CommitBuild, Build, col(Build.log) != "")
        .join(Build, col(Build.id) == col(CommitBuild.build_id), isouter=True)
        .where(CommitBuild.commit_id == commit_id)
        .options(defer(Build.log), defer(Build.facts))  # type: ignore[arg-type]
        .order_by(col(CommitBuild.architecture), col(CommitBuild.toolchain), col(CommitBuild.id))
    )
    if architecture:
        query = query.where(CommitBuild.architecture == architecture)
    return tuple(_line(*row) for row in session.exec(query))


def _line(wanted: CommitBuild, build: Build | None, has_log: bool | None) -> BuildLine:
    return BuildLine(
        name=wanted.name,
        architecture=wanted.architecture,
        toolchain=wanted.toolchain,
        state=wanted.state,
        mark=_mark(wanted, build.outcome if build else None),
        signature=build.signature if build else "",
        reason=(build.reason if build else "") or wanted.reason,
        attempts=wanted.attempts,
        seconds=build.seconds if build else 0.0,
        build=wanted.build_id,
        has_log=bool(has_log),
        started_at=wanted.started_at,
        finished_at=wanted.finished_at,
    )


def _mark(wanted: CommitBuild, outcome: str | None) -> Mark | None:
    if outcome:
        return mark_of_outcome(outcome)
    return Mark.INFRA_ERROR if wanted.state == BuildState.FAILED else None


def read(session: Session, build_id: int) -> BuildPage | None:
    """A build with its log; None where there is none of that id."""
    build = session.get(Build, build_id)
    if build is None:
        return None
    commits = session.exec(
        select(Commit, CommitBuild.name)
        .join(CommitBuild, col(CommitBuild.commit_id) == col(Commit.id))
        .where(CommitBuild.build_id == build_id)
        .order_by(col(Commit.id).desc())
        .limit(COMMITS + 1)
    ).all()
    return BuildPage(
        id=build_id,
        subject=build.subject,
        key=build.key,
        mark=mark_of_outcome(build.outcome) if build.outcome else None,
        signature=build.signature,
        reason=build.reason,
        seconds=build.seconds,
        created_at=build.created_at,
        handlers=None if build.initialize is None else tuple(build.initialize),
        facts=build.facts,
        log=build_log(build.log, build.outcome is not None, build.signature),
        commits=tuple(
            BuildCommit(commit.id or 0, commit.subject, commit.sha, commit.title, name)
            for commit, name in commits[:COMMITS]
        ),
        more=len(commits) > COMMITS,
    )
