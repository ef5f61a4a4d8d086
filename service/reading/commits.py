"""A commit: its builds, what was measured of it, and its runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlmodel import Session, col, select

from runner.result import Commit as CommitFacts
from service.reading.builds import BuildLine, build_lines
from service.reading.cells import CellName, cell_name
from service.reading.environments import EnvironmentName, environment_name
from service.reading.rate import Rate, rate_of_measurement
from service.reading.runs import RunLine, run_lines
from service.tables import (
    BranchCommit,
    Cell,
    Commit,
    CommitBuild,
    Environment,
    Measurement,
    Run,
)

RUNS = 50
"""Runs that a commit's page lists."""


@dataclass(frozen=True)
class MeasuredCell:
    """What was measured of a cell at a commit."""

    measurement: int
    cell: CellName
    adaptive: bool
    rate: Rate


@dataclass(frozen=True)
class MeasuredIn:
    """All that was measured of a commit in one environment."""

    environment: EnvironmentName
    cells: tuple[MeasuredCell, ...]


@dataclass(frozen=True)
class Place:
    """Where a branch holds a commit, and its neighbours there; empty where there is none."""

    branch: str
    position: int
    older: str
    newer: str


@dataclass(frozen=True)
class CommitPage:
    """One commit. clean_below: the bound that its cells are judged by here."""

    subject: str
    sha: str
    ref: str
    title: str
    author: str
    date: datetime | None
    release: bool
    clean_below: float
    places: tuple[Place, ...]
    measured: tuple[MeasuredIn, ...]
    builds: tuple[BuildLine, ...]
    runs: tuple[RunLine, ...]


def find(session: Session, subject: str, sha: str) -> str | Sequence[str] | None:
    """The whole hash that a beginning names; several where it is not clear, None for none."""
    if len(sha) < 4 and "." not in sha:
        return None
    found = session.exec(
        select(Commit.sha)
        .where(Commit.subject == subject, col(Commit.sha).startswith(sha, autoescape=True))
        .order_by(col(Commit.sha))
        .limit(10)
    ).all()
    if sha in found:
        return sha
    return None if not found else found[0] if len(found) == 1 else found


def read(session: Session, subject: str, sha: str, clean_below: float) -> CommitPage | None:
    """A commit by its whole hash; None where it is not known."""
    commit = session.exec(
        select(Commit).where(Commit.subject == subject, Commit.sha == sha)
    ).one_or_none()
    if commit is None or commit.id is None:
        return None
    runs = session.exec(
        select(Run)
        .where(Run.commit_id == commit.id)
        .order_by(col(Run.created_at).desc(), col(Run.id))
        .limit(RUNS)
    ).all()
    return CommitPage(
        subject=subject,
        sha=sha,
        ref=commit.ref,
        title=commit.title,
        author=commit.author,
        date=commit.date,
        release=CommitFacts(sha, commit.ref).is_release,
        clean_below=clean_below,
        places=_places(session, commit.id),
        measured=_measured(session, commit.id, clean_below),
        builds=build_lines(session, commit.id),
        runs=run_lines(session, [(run, commit) for run in runs]),
    )


def _places(session: Session, commit_id: int) -> tuple[Place, ...]:
    places = session.exec(
        select(BranchCommit)
        .where(BranchCommit.commit_id == commit_id)
        .order_by(col(BranchCommit.branch))
    ).all()
    return tuple(
        Place(
            branch=place.branch,
            position=place.position,
            older=_at(session, place, place.position - 1),
            newer=_at(session, place, place.position + 1),
        )
        for place in places
    )


def _at(session: Session, place: BranchCommit, position: int) -> str:
    found = session.exec(
        select(Commit.sha)
        .join(BranchCommit, col(BranchCommit.commit_id) == col(Commit.id))
        .where(
            BranchCommit.subject == place.subject,
            BranchCommit.branch == place.branch,
            BranchCommit.position == position,
        )
    ).one_or_none()
    return found or ""


def _measured(session: Session, commit_id: int, clean_below: float) -> tuple[MeasuredIn, ...]:
    """By environment, the newest first; cells in the order of the grid."""
    builds = select(CommitBuild.build_id).where(CommitBuild.commit_id == commit_id)
    found = session.exec(
        select(Measurement, Cell, Environment)
        .join(Cell, col(Cell.id) == col(Measurement.cell_id))
        .join(Environment, col(Environment.id) == col(Measurement.environment_id))
        .where(col(Measurement.build_id).in_(builds), col(Cell.reference).is_(False))
    ).all()
    environments: dict[int, list[MeasuredCell]] = {}
    names: dict[int, EnvironmentName] = {}
    for measurement, cell, environment in found:
        rate = rate_of_measurement(measurement, clean_below)
        if not rate.trials:
            continue
        assert measurement.id is not None
        name = environment_name(environment)
        names[name.id] = name
        environments.setdefault(name.id, []).append(
            MeasuredCell(measurement.id, cell_name(cell), measurement.adaptive, rate)
        )
    return tuple(
        MeasuredIn(
            names[identity],
            tuple(sorted(environments[identity], key=lambda one: (one.cell.order, one.adaptive))),
        )
        for identity in sorted(environments, reverse=True)
    )
