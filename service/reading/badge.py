"""The newest measured commit of a branch in one cell: what a badge says."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select as columns
from sqlmodel import Session, col, select

from service.reading import grid_choices
from service.reading.cells import CellName, cell_name
from service.reading.doubted import NONE, Doubts
from service.reading.environments import EMULATED
from service.reading.grid_choices import CLEAN_BELOW, GridFilter
from service.reading.rate import COUNT_COLUMNS, Rate, rate_of
from service.tables import BranchCommit, Cell, Commit, CommitBuild, Measurement

SCANNED = 500
"""Newest commits of the branch among which a measured one is looked for."""


@dataclass(frozen=True)
class Badge:
    """A cell of a branch, and its newest rate. rate, sha: None and empty where nothing was
    measured."""

    subject: str
    branch: str
    queue: str
    cell: CellName
    sha: str
    rate: Rate | None

    @property
    def emulated(self) -> bool:
        """True where no GPU took part."""
        return self.queue == EMULATED


def read(
    session: Session,
    subject: str,
    branch: str,
    queue: str,
    cell_id: int | None,
    clean_below: float = CLEAN_BELOW,
    doubts: Doubts = NONE,
) -> Badge | None:
    """The badge; without a cell that of stock with the background thread. None where subject,
    branch or cell is not known."""
    choices = grid_choices.read(
        session, GridFilter(subject=subject, branch=branch, queue=queue, clean_below=clean_below)
    )
    chosen = choices.chosen
    if (
        subject not in choices.subjects
        or chosen.branch != branch
        or queue not in ("", chosen.queue)
    ):
        return None
    cell = session.get(Cell, cell_id) if cell_id is not None else _first(session)
    if cell is None or cell.reference:
        return None
    name = cell_name(cell)
    query = (
        columns(
            col(Commit.sha), col(Measurement.environment_id), col(Measurement.id), *COUNT_COLUMNS
        )
        .select_from(BranchCommit)
        .join(Commit, col(Commit.id) == col(BranchCommit.commit_id))
        .join(CommitBuild, col(CommitBuild.commit_id) == col(Commit.id))
        .join(Measurement, col(Measurement.build_id) == col(CommitBuild.build_id))
        .where(
            col(BranchCommit.subject) == subject,
            col(BranchCommit.branch) == branch,
            col(BranchCommit.position) >= choices.heads[branch] - SCANNED,
            col(CommitBuild.architecture) == chosen.queue,
            col(CommitBuild.name) == name.build,
            col(Measurement.cell_id) == name.id,
            col(Measurement.environment_id).in_(list(choices.compared)),
            col(Measurement.adaptive).is_(False),
        )
        .order_by(col(BranchCommit.position).desc())
    )
    place = {identity: n for n, identity in enumerate(choices.compared)}
    counted = [row for row in session.connection().execute(query) if any(row[3:])]
    newest = [row for row in counted if row[0] == counted[0][0]]
    row = min(newest, key=lambda one: place[one[1]], default=None)
    return Badge(
        subject=subject,
        branch=branch,
        queue=chosen.queue,
        cell=name,
        sha=row[0] if row else "",
        rate=rate_of(tuple(row[3:]), clean_below, control=doubts.get(row[2])) if row else None,
    )


def _first(session: Session) -> Cell | None:
    """The issue's first row: stock, with the background thread."""
    return session.exec(
        select(Cell).where(
            Cell.variant == "stock",
            Cell.program == "norm-act-gemm",
            col(Cell.background),
            Cell.background_period_ms == 0,
            Cell.hold_ms == 0,
            Cell.recipe == "auto",
            col(Cell.reference).is_(False),
        )
    ).first()
