"""Cells of many commits at once: what was measured of each, and what could not be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy.dialects.postgresql import distinct_on
from sqlmodel import Session, col, select

from service.reading.cells import cell_name
from service.reading.environments import queue_of
from service.tables import (
    Build,
    Cell,
    CommitBuild,
    Environment,
    Measurement,
    Run,
    RunCell,
)


@dataclass(frozen=True)
class Measured:
    """One commit in one cell and environment.

    measurement, environment: None where nothing could be run; then outcome (`build_error` or
    `unsupported`) and reason say why.
    """

    commit_id: int
    cell: Cell
    queue: str
    measurement: Measurement | None = None
    environment: Environment | None = None
    outcome: str | None = None
    reason: str = ""

    @property
    def key(self) -> tuple[object, ...]:
        """What makes cells of two commits comparable: one cell, one environment."""
        return (self.cell.id, self.environment.id if self.environment else None)


def of_commits(
    session: Session,
    commits: Sequence[int],
    queue: str | None = None,
    environment: int | None = None,
) -> dict[int, list[Measured]]:
    """By commit; three questions to the database, however many commits.

    Adaptively ordered trials and references are left out: they speak for no commit on their own.
    """
    found: dict[int, list[Measured]] = {commit: [] for commit in commits}
    if not commits:
        return found
    seen: set[tuple[object, ...]] = set()
    for one in _measurements(session, commits, queue, environment):
        # One build may have two names at a commit, such as a merged pull request's and stock.
        key = (one.commit_id, *one.key)
        if key not in seen:
            seen.add(key)
            found[one.commit_id].append(one)
    measured = {(commit, one.cell.id) for commit in commits for one in found[commit]}
    if environment is None:
        for one in _not_run(session, commits, queue):
            if (one.commit_id, one.cell.id) not in measured:
                found[one.commit_id].append(one)
    for cells in found.values():
        cells.sort(key=lambda one: (cell_name(one.cell).order, one.key[1] or 0))
    return found


def _measurements(
    session: Session, commits: Sequence[int], queue: str | None, environment: int | None
) -> Iterable[Measured]:
    query = (
        select(CommitBuild, Measurement, Cell, Environment)
        .join(Measurement, col(Measurement.build_id) == col(CommitBuild.build_id))
        .join(Cell, col(Cell.id) == col(Measurement.cell_id))
        .join(Environment, col(Environment.id) == col(Measurement.environment_id))
        .where(
            col(CommitBuild.commit_id).in_(commits),
            col(Measurement.adaptive).is_(False),
            col(Cell.reference).is_(False),
        )
        .order_by(col(CommitBuild.commit_id), col(CommitBuild.id))
    )
    if queue is not None:
        query = query.where(CommitBuild.architecture == queue)
    if environment is not None:
        query = query.where(Measurement.environment_id == environment)
    for build, measurement, cell, where in session.exec(query):
        # A bound measurement whose first trial is still to come says nothing yet. And where builds
        # for two kinds of device are the same, each has its own trials.
        if (
            build.name == cell_name(cell).build
            and queue_of(where) in ("", build.architecture)
            and any(measurement.counts.values())
        ):
            yield Measured(build.commit_id, cell, build.architecture, measurement, where)


def _not_run(session: Session, commits: Sequence[int], queue: str | None) -> Iterable[Measured]:
    """Cells that a run ordered and a build could not give, by the newest run that did."""
    query = (
        select(Run, RunCell, Cell, Build.reason)
        .join(RunCell, col(RunCell.run_id) == col(Run.id))
        .join(Cell, col(Cell.id) == col(RunCell.cell_id))
        .join(
            CommitBuild,
            (col(CommitBuild.commit_id) == col(Run.commit_id))
            & (col(CommitBuild.name) == col(RunCell.build))
            & (col(CommitBuild.architecture) == col(Run.queue)),
            isouter=True,
        )
        .join(Build, col(Build.id) == col(CommitBuild.build_id), isouter=True)
        .where(col(Run.commit_id).in_(commits), col(RunCell.outcome).is_not(None))
        .ext(distinct_on(col(Run.commit_id), col(Run.queue), col(RunCell.cell_id)))
        .order_by(
            col(Run.commit_id), col(Run.queue), col(RunCell.cell_id), col(Run.created_at).desc()
        )
    )
    if queue is not None:
        query = query.where(Run.queue == queue)
    for run, run_cell, cell, reason in session.exec(query):
        assert run.commit_id is not None, "it was asked for by its commit"
        why = run_cell.decided or reason or run_cell.signature
        yield Measured(run.commit_id, cell, run.queue, outcome=run_cell.outcome, reason=why)
