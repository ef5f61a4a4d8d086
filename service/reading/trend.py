"""The trend of one cell: its rate along a branch, where that changed, and what else did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, Select
from sqlalchemy import select as columns
from sqlmodel import Session, col, select

from runner.outcome import Outcome
from service.reading import changes as finding
from service.reading import commands, grid_choices
from service.reading.cells import CellName, cell_name
from service.reading.changes import Change, Of, Scope
from service.reading.commands import Command, What
from service.reading.doubted import NONE, Doubts
from service.reading.environments import EMULATED, EnvironmentName
from service.reading.grid_choices import CLEAN_BELOW, Choices, GridFilter
from service.reading.rate import COUNT_COLUMNS, WATCH_COLUMNS, Rate, Swallow, Watch, rate_of
from service.tables import BranchCommit, Build, Cell, Commit, CommitBuild, Measurement

POINTS = 150
"""Measured commits on a page."""
SUSPECTS = 20
"""Commits that are named where one of them brought a change."""


@dataclass(frozen=True)
class TrendFilter:
    """Which cell, where. environment: an id; None for all, each a sequence of its own. before: only
    commits older than this position. of: which of its two rates is shown."""

    cell: int
    subject: str = ""
    branch: str = ""
    queue: str = ""
    environment: int | None = None
    clean_below: float = CLEAN_BELOW
    before: int | None = None
    of: Of = Of.FAILURE


@dataclass(frozen=True)
class TrendCommit:
    """A commit on the branch."""

    position: int
    sha: str
    title: str
    author: str
    date: datetime | None


@dataclass(frozen=True)
class TrendPoint:
    """What a build counted, at the oldest commit that has it. shared: newer ones that have it too.

    changed: what is other than at the measured commit before, such as `driver 570 to 580`.
    """

    commit: TrendCommit
    measurement: int
    environment: EnvironmentName
    rate: Rate
    shared: int
    changed: str
    of: Of = Of.FAILURE

    @property
    def shown(self) -> Rate | Swallow:
        """The rate that the trend is of."""
        if self.of is Of.FAILURE:
            return self.rate
        assert self.rate.swallow is not None, "only watched points are read for the second rate"
        return self.rate.swallow


@dataclass(frozen=True)
class TrendChange:
    """A change of the rate. commit: the likeliest that brought it; suspects: all that may have, the
    oldest first, as far as they are named."""

    commit: TrendCommit
    environment: EnvironmentName
    suspects: tuple[TrendCommit, ...]
    more_suspects: int
    change: Change

    @property
    def count(self) -> int:
        """How many may have brought it."""
        return self.change.high - self.change.low + 1


@dataclass(frozen=True)
class TrendPage:
    """One cell along a branch. points: oldest first. unbuilt: commits of the same stretch that do
    not build. older: `before` of the page with older points, None where there are none.
    watched: whether there is a second rate to show.
    """

    choices: Choices
    asked: TrendFilter
    cell: CellName
    points: tuple[TrendPoint, ...]
    unbuilt: tuple[tuple[TrendCommit, int], ...]
    changes: tuple[TrendChange, ...]
    older: int | None
    watched: bool
    command: Command | None

    @property
    def of(self) -> Of:
        """Which of the two rates is shown."""
        return self.asked.of

    @property
    def chosen(self) -> GridFilter:
        """Subject, branch, queue and environment that are shown."""
        return self.choices.chosen

    @property
    def emulated(self) -> bool:
        """True where no GPU took part."""
        return self.chosen.queue == EMULATED

    @property
    def latest(self) -> TrendPoint | None:
        """The newest measured commit."""
        return self.points[-1] if self.points else None


_Row = Row[*tuple[Any, ...]]


def read(
    session: Session,
    asked: TrendFilter,
    find: finding.Find = finding.find,
    doubts: Doubts = NONE,
) -> TrendPage | None:
    """The trend; None where there is no such cell."""
    cell = session.get(Cell, asked.cell)
    if cell is None or cell.reference:
        return None
    name = cell_name(cell)
    choices = grid_choices.read(
        session,
        GridFilter(
            subject=asked.subject,
            branch="" if asked.branch == grid_choices.LOOSE else asked.branch,
            queue=asked.queue,
            environment=asked.environment,
            clean_below=asked.clean_below,
        ),
    )
    environments = {one.id: one for one in choices.environments if one.id in choices.compared}
    points = _points(session, choices, environments, name, asked, doubts)
    watched = any(point.rate.swallow for point in points)
    if asked.before is not None:
        points = [point for point in points if point.commit.position < asked.before]
    shown = points[-POINTS:]
    chosen = choices.chosen
    changes = [
        change
        for change in find(
            session,
            Scope(chosen.subject, chosen.branch, chosen.queue, choices.compared, asked.of),
        )
        if change.cell == asked.cell
        and shown
        and shown[0].commit.position <= change.position <= shown[-1].commit.position
    ]
    return TrendPage(
        choices=choices,
        asked=asked,
        cell=name,
        points=tuple(shown),
        unbuilt=_unbuilt(session, chosen, name, shown),
        changes=tuple(_change(session, chosen, change, environments) for change in changes),
        older=shown[0].commit.position if len(points) > POINTS else None,
        watched=watched,
        command=_command(chosen.subject, shown, cell, asked.clean_below),
    )


def _points(
    session: Session,
    choices: Choices,
    environments: dict[int, EnvironmentName],
    name: CellName,
    asked: TrendFilter,
    doubts: Doubts,
) -> list[TrendPoint]:
    query: Select[*tuple[Any, ...]] = (
        _placed(
            choices.chosen,
            name,
            col(Measurement.id),
            col(Measurement.environment_id),
            *WATCH_COLUMNS,
            *COUNT_COLUMNS,
        )
        .join(Measurement, col(Measurement.build_id) == col(CommitBuild.build_id))
        .where(
            col(Measurement.cell_id) == name.id,
            col(Measurement.environment_id).in_(list(environments)),
            col(Measurement.adaptive).is_(False),
        )
        .order_by(col(BranchCommit.position), col(Measurement.id))
    )
    oldest: dict[int, _Row] = {}
    shared: dict[int, int] = {}
    for row in session.connection().execute(query).all():
        if row[5] in oldest:
            shared[row[5]] = shared.get(row[5], 0) + 1
        elif any(row[10:]):
            oldest[row[5]] = row
    points: list[TrendPoint] = []
    for row in oldest.values():
        if asked.of is Of.SWALLOW and not row[7]:
            continue
        environment = environments[row[6]]
        points.append(
            TrendPoint(
                commit=TrendCommit(*row[:5]),
                measurement=row[5],
                environment=environment,
                rate=rate_of(
                    tuple(row[10:]),
                    asked.clean_below,
                    watch=Watch(*row[7:10]),
                    control=doubts.get(row[5]),
                ),
                shared=shared.get(row[5], 0),
                changed=environment.other_than(points[-1].environment) if points else "",
                of=asked.of,
            )
        )
    return points


def _placed(chosen: GridFilter, name: CellName, *more: Any) -> Select[*tuple[Any, ...]]:
    """Commits of the branch with the build that the cell needs."""
    found: Select[*tuple[Any, ...]] = (
        columns(
            col(BranchCommit.position),
            col(Commit.sha),
            col(Commit.title),
            col(Commit.author),
            col(Commit.date),
            *more,
        )
        .join(Commit, col(Commit.id) == col(BranchCommit.commit_id))
        .join(CommitBuild, col(CommitBuild.commit_id) == col(Commit.id))
        .where(
            col(BranchCommit.subject) == chosen.subject,
            col(BranchCommit.branch) == chosen.branch,
            col(CommitBuild.architecture) == chosen.queue,
            col(CommitBuild.name) == name.build,
        )
    )
    return found


def _unbuilt(
    session: Session, chosen: GridFilter, name: CellName, points: Sequence[TrendPoint]
) -> tuple[tuple[TrendCommit, int], ...]:
    """Commits with a build error, and those builds, from the first point to the end."""
    if not points:
        return ()
    query = (
        _placed(chosen, name, col(Build.id))
        .join(Build, col(Build.id) == col(CommitBuild.build_id))
        .where(
            col(Build.outcome) == Outcome.BUILD_ERROR,
            col(BranchCommit.position) > points[0].commit.position,
        )
        .order_by(col(BranchCommit.position))
        .limit(POINTS)
    )
    return tuple(
        (TrendCommit(*row[:5]), row[5]) for row in session.connection().execute(query).all()
    )


def _change(
    session: Session,
    chosen: GridFilter,
    change: Change,
    environments: dict[int, EnvironmentName],
) -> TrendChange:
    query = (
        select(BranchCommit.position, Commit)
        .join(Commit, col(Commit.id) == col(BranchCommit.commit_id))
        .where(
            BranchCommit.subject == chosen.subject,
            BranchCommit.branch == chosen.branch,
            col(BranchCommit.position).between(change.low, change.high),
        )
        .order_by(col(BranchCommit.position))
    )
    found = {
        position: TrendCommit(position, commit.sha, commit.title, commit.author, commit.date)
        for position, commit in session.exec(query)
    }
    suspects = tuple(found.values())
    return TrendChange(
        commit=found[change.position],
        environment=environments[change.environment],
        suspects=suspects[:SUSPECTS],
        more_suspects=max(0, len(suspects) - SUSPECTS),
        change=change,
    )


def _command(
    subject: str, points: Sequence[TrendPoint], cell: Cell, clean_below: float
) -> Command | None:
    """Runs the cell again at the newest measured commit."""
    if not points:
        return None
    matrix, name = commands.of_cell(cell, clean_below)
    latest = points[-1]
    trials = max(1, latest.rate.n)
    return commands.rerun(What(subject, latest.commit.sha, matrix, (name,), trials))
