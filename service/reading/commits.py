"""A commit: its builds, what was measured of it, and its runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlmodel import Session, col, select

from runner import matrix as matrices
from runner.result import Commit as CommitFacts
from service.reading import changes as finding
from service.reading import commands
from service.reading.builds import BuildLine, build_lines
from service.reading.cells import CellName, cell_name
from service.reading.changes import Change, Of, Scope
from service.reading.commands import Command, What
from service.reading.doubted import NONE, Doubts
from service.reading.environments import EnvironmentName, environment_name, queue_of
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

ISSUE = "issue-3863"
RUNS = 50
"""Runs that a commit's page lists."""


@dataclass(frozen=True)
class MeasuredCell:
    """What was measured of a cell at a commit. queue: of its trials, such as `sm90`."""

    measurement: int
    cell: CellName
    queue: str
    adaptive: bool
    rate: Rate


@dataclass(frozen=True)
class MeasuredIn:
    """All that was measured of a commit in one environment."""

    environment: EnvironmentName
    cells: tuple[MeasuredCell, ...]

    @property
    def watched(self) -> bool:
        """Whether the detector watched any trial of them."""
        return any(one.rate.swallow for one in self.cells)

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Variants that were measured without and with the fix, worth comparing."""
        there = {one.cell.variant for one in self.cells}
        fixed = {"stock": "owned-stream", "ffi13": "ffi13+owned-stream"}
        return tuple((base, head) for base, head in fixed.items() if {base, head} <= there)


@dataclass(frozen=True)
class CommitChange:
    """A change of a cell's rate that this commit may have brought. likeliest: before all others.

    of: which of the cell's rates.
    """

    branch: str
    queue: str
    cell: CellName
    change: Change
    likeliest: bool
    of: Of = Of.FAILURE

    @property
    def suspects(self) -> int:
        """Commits that may have brought it."""
        return self.change.high - self.change.low + 1


@dataclass(frozen=True)
class Place:
    """Where a branch holds a commit, and its neighbours there; empty where there is none."""

    branch: str
    position: int
    older: str
    newer: str


@dataclass(frozen=True)
class CommitPage:
    """One commit. clean_below: the bound that its cells are judged by here.

    command: runs all of the issue's matrix at it.
    """

    subject: str
    sha: str
    ref: str
    title: str
    author: str
    date: datetime | None
    release: bool
    clean_below: float
    places: tuple[Place, ...]
    changes: tuple[CommitChange, ...]
    measured: tuple[MeasuredIn, ...]
    builds: tuple[BuildLine, ...]
    runs: tuple[RunLine, ...]
    command: Command


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


def read(
    session: Session,
    subject: str,
    sha: str,
    clean_below: float,
    find_changes: finding.Find = finding.find,
    doubts: Doubts = NONE,
) -> CommitPage | None:
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
    places = _places(session, commit.id)
    measured = _measured(session, commit.id, clean_below, doubts)
    return CommitPage(
        subject=subject,
        sha=sha,
        ref=commit.ref,
        title=commit.title,
        author=commit.author,
        date=commit.date,
        release=CommitFacts(sha, commit.ref).is_release,
        clean_below=clean_below,
        places=places,
        changes=_changes(session, subject, places, measured, find_changes),
        measured=measured,
        builds=build_lines(session, commit.id),
        runs=run_lines(session, [(run, commit) for run in runs]),
        command=commands.rerun(What(subject, sha, matrices.load(ISSUE))),
    )


def _changes(
    session: Session,
    subject: str,
    places: Sequence[Place],
    measured: Sequence[MeasuredIn],
    find: finding.Find,
) -> tuple[CommitChange, ...]:
    """In the environments that it was measured in."""
    environments: dict[str, list[int]] = {}
    names: dict[int, CellName] = {}
    for one in measured:
        for cell in one.cells:
            names[cell.cell.id] = cell.cell
            there = environments.setdefault(cell.queue, [])
            if one.environment.id not in there:
                there.append(one.environment.id)
    return tuple(
        CommitChange(
            place.branch, queue, names[change.cell], change, change.position == place.position, of
        )
        for of in Of
        for place in places
        for queue, ids in environments.items()
        for change in find(session, Scope(subject, place.branch, queue, tuple(ids), of))
        if change.low <= place.position <= change.high and change.cell in names
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


def _measured(
    session: Session, commit_id: int, clean_below: float, doubts: Doubts
) -> tuple[MeasuredIn, ...]:
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
        assert measurement.id is not None
        control = doubts.get(measurement.id)
        rate = rate_of_measurement(measurement, clean_below, control=control)
        if not rate.trials:
            continue
        name = environment_name(environment)
        names[name.id] = name
        environments.setdefault(name.id, []).append(
            MeasuredCell(
                measurement.id,
                cell_name(cell),
                queue_of(environment),
                measurement.adaptive,
                rate,
            )
        )
    return tuple(
        MeasuredIn(
            names[identity],
            tuple(sorted(environments[identity], key=lambda one: (one.cell.order, one.adaptive))),
        )
        for identity in sorted(environments, reverse=True)
    )
