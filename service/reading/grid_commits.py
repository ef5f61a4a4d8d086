"""Which commits a page of the grid has, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, time, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, or_
from sqlalchemy import select as columns
from sqlmodel import Session, col, select

from runner.outcome import FAILURES, Outcome
from service.reading.grid_choices import LOOSE, GridFilter
from service.tables import (
    BranchCommit,
    Build,
    Commit,
    CommitBuild,
    Measurement,
    Run,
    RunCell,
    column_of,
)

CommitRow = Row[*tuple[Any, ...]]
"""place (a position, or an id where there is none), id, sha, ref, title, author, date."""
FAILED = "failed"
"""Any outcome that is a failure."""
OUTCOMES = (FAILED, *map(str, Outcome))


def read(
    session: Session, chosen: GridFilter, environments: Sequence[int], limit: int
) -> Sequence[CommitRow]:
    """At most so many commits that the filter lets through, newest first."""
    place = col(BranchCommit.position) if chosen.on_branch else col(Commit.id)
    query: Select[*tuple[Any, ...]] = columns(
        place.label("place"),
        col(Commit.id),
        col(Commit.sha),
        col(Commit.ref),
        col(Commit.title),
        col(Commit.author),
        col(Commit.date),
    )
    if chosen.on_branch:
        query = query.join(BranchCommit, col(BranchCommit.commit_id) == col(Commit.id)).where(
            col(BranchCommit.subject) == chosen.subject,
            col(BranchCommit.branch) == chosen.branch,
        )
    else:
        query = query.where(col(Commit.subject) == chosen.subject)
    if chosen.pull is not None:
        query = query.where(_of_pull(chosen.pull))
    elif chosen.branch == LOOSE:
        query = query.where(
            ~select(BranchCommit.commit_id).where(BranchCommit.commit_id == Commit.id).exists()
        )
    if chosen.before is not None:
        query = query.where(place < chosen.before)
    for condition in _conditions(chosen, environments):
        query = query.where(condition)
    return session.connection().execute(query.order_by(place.desc()).limit(limit)).all()


def _conditions(chosen: GridFilter, environments: Sequence[int]) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if chosen.text:
        found.append(_says(chosen.text))
    if chosen.since is not None:
        found.append(col(Commit.date) >= datetime.combine(chosen.since, time(), UTC))
    if chosen.until is not None:
        end = datetime.combine(chosen.until, time(), UTC) + timedelta(days=1)
        found.append(col(Commit.date) < end)
    if chosen.outcome:
        found.append(_has(chosen, environments))
    return found


def _of_pull(number: int) -> ColumnElement[bool]:
    """Its merged commit, by the number that GitHub puts at the end of the title, and its heads."""
    ran = select(Run.id).where(Run.commit_id == Commit.id, Run.pull == number)
    return or_(
        col(Commit.title).endswith(f"(#{number})", autoescape=True),
        col(Commit.ref) == f"pull/{number}",
        ran.exists(),
    )


def _says(text: str) -> ColumnElement[bool]:
    return or_(
        col(Commit.title).icontains(text, autoescape=True),
        col(Commit.author).icontains(text, autoescape=True),
        col(Commit.sha).startswith(text.lower(), autoescape=True),
    )


def _has(chosen: GridFilter, environments: Sequence[int]) -> ColumnElement[bool]:
    """A measurement that counted the outcome, or a build that ended with it."""
    outcomes = FAILURES if chosen.outcome == FAILED else (Outcome(chosen.outcome),)
    counted = (
        select(Measurement.id)
        .join(CommitBuild, col(CommitBuild.build_id) == col(Measurement.build_id))
        .where(
            CommitBuild.commit_id == Commit.id,
            CommitBuild.architecture == chosen.queue,
            col(Measurement.environment_id).in_(environments),
            col(Measurement.adaptive).is_(False),
            or_(*(col(getattr(Measurement, column_of(one))) > 0 for one in outcomes)),
        )
    )
    if chosen.outcome not in (Outcome.BUILD_ERROR, Outcome.UNSUPPORTED):
        return counted.exists()
    built = (
        select(Build.id)
        .join(CommitBuild, col(CommitBuild.build_id) == col(Build.id))
        .where(
            CommitBuild.commit_id == Commit.id,
            CommitBuild.architecture == chosen.queue,
            Build.outcome == chosen.outcome,
        )
    )
    ordered = (
        select(RunCell.id)
        .join(Run, col(Run.id) == col(RunCell.run_id))
        .where(
            Run.commit_id == Commit.id,
            Run.queue == chosen.queue,
            RunCell.outcome == chosen.outcome,
        )
    )
    return or_(counted.exists(), built.exists(), ordered.exists())
