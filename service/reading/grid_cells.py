"""The cells of a page of the grid: what its commits' builds counted, and what is on its way.

It asks the database a fixed number of questions, none of which looks at trials.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ARRAY, ColumnElement, Integer, Row, Select, any_, bindparam
from sqlalchemy import select as columns
from sqlmodel import Session, col, select

from service.reading import told
from service.reading.cells import CellName, cell_name
from service.reading.doubted import NONE, Doubts
from service.reading.grid_choices import GridFilter
from service.reading.rate import COUNT_COLUMNS, WATCH_COLUMNS, Mark, Watch, mark_of_outcome
from service.reading.told import Told
from service.tables import (
    OPEN_STATES,
    Build,
    BuildState,
    Cell,
    CommitBuild,
    Measurement,
    Run,
    RunCell,
    RunState,
)

_Query = Select[*tuple[Any, ...]]
_Row = Row[*tuple[Any, ...]]
MATRIX_RUNS = 20
_UNSETTLED = (*OPEN_STATES, RunState.AWAITING_APPROVAL)
_NONE: dict[Any, Any] = {}


class GridCell(NamedTuple):
    """One commit in one cell. A tuple, because a page makes thousands of them.

    measurement, build, run: what to look at for more; None or empty where there is none.
    environment: of its trials. active: trials of it are on their way. repeated: the commit below
    shares build and trials. older: not the newest environment. change: see `CHANGES`.
    """

    told: Told
    measurement: int | None = None
    environment: int | None = None
    build: int | None = None
    run: str = ""
    active: bool = False
    repeated: bool = False
    older: bool = False
    change: str = ""

    @property
    def mark(self) -> Mark:
        """Its verdict, or why there is none."""
        return self.told.mark

    @property
    def text(self) -> str:
        """`10/10`, or a word."""
        return self.told.text

    @property
    def note(self) -> str:
        """Interval, outcomes, what is needed."""
        return self.told.note


_NOT_RUN = GridCell(Told(Mark.NOT_RUN))


class _Measured(NamedTuple):
    """What a measurement counted."""

    id: int
    environment: int
    told: Told


class PageCells:
    """What the database holds on some commits. environments: ids, the newest first."""

    def __init__(
        self,
        session: Session,
        chosen: GridFilter,
        environments: Sequence[int],
        commits: Iterable[int],
        doubts: Doubts = NONE,
    ) -> None:
        self._session = session
        self._chosen = chosen
        self._environments = environments
        self._doubts = doubts
        self._ids = _any(commits)
        self._builds = self._read_builds()
        self._measured = self._read_measurements()
        self.runs = self._read_runs()
        self._ordered = self._read_ordered()

    @property
    def shown(self) -> set[int]:
        """Environments of what was measured."""
        return {measured.environment for measured in self._measured.values()}

    def columns(self) -> tuple[CellName, ...]:
        """All cells that any of the commits was measured in or is to be, of the chosen matrix."""
        ids = {cell for _, cell in self._measured}
        for ordered in self._ordered.values():
            ids |= set(ordered)
        if self._chosen.matrix:
            ids &= self._of_matrix()
        cells = self._session.exec(
            select(Cell).where(col(Cell.id) == _any(ids), col(Cell.reference).is_(False))
        )
        return tuple(sorted(map(cell_name, cells), key=lambda name: name.order))

    def row(
        self, commit: int, columns: Sequence[CellName], older: Sequence[GridCell] | None
    ) -> tuple[GridCell, ...]:
        """A commit's cells. older: those of the commit below, if any."""
        builds = self._builds.get(commit, _NONE)
        ordered = self._ordered.get(commit, _NONE)
        below: Iterable[GridCell | None] = older or [None] * len(columns)
        return tuple(
            [
                self._cell(column.id, builds.get(column.build), ordered.get(column.id), under)
                for column, under in zip(columns, below, strict=True)
            ]
        )

    def _cell(
        self, cell: int, build: _Row | None, ordered: _Row | None, older: GridCell | None
    ) -> GridCell:
        measured = self._measured.get((build.build_id, cell)) if build is not None else None
        if measured is None:
            if build is None and ordered is None:
                return _NOT_RUN
            return _unmeasured(build, ordered, older)
        saying = measured.told
        active = False
        if ordered is not None and ordered.state in OPEN_STATES:
            active = saying.trials < ordered.wanted
            if active:
                progress = f"{ordered.state}, {saying.trials} of {ordered.wanted} trials"
                saying = saying._replace(note=f"{progress}; {saying.note}")
        identity, environment = measured.id, measured.environment
        repeated = older is not None and older.measurement == identity
        # By position, which takes half the time: a page makes thousands.
        return GridCell(
            saying, identity, environment, None, "", active, repeated,
            environment != self._environments[0],
        )  # fmt: skip

    def _of_matrix(self) -> set[int]:
        """Cells of the matrix in its newest runs: the newest alone may be of one cell."""
        newest = (
            select(Run.id)
            .where(
                Run.subject == self._chosen.subject,
                Run.queue == self._chosen.queue,
                Run.matrix_name == self._chosen.matrix,
            )
            .order_by(col(Run.created_at).desc())
            .limit(MATRIX_RUNS)
        )
        found = self._session.exec(
            select(RunCell.cell_id).where(col(RunCell.run_id).in_(newest)).distinct()
        )
        return set(found.all())

    def _read_builds(self) -> dict[int, dict[str, _Row]]:
        """By commit, then name; of several toolchains the newest that is done."""
        query: _Query = (
            columns(
                col(CommitBuild.commit_id),
                col(CommitBuild.name),
                col(CommitBuild.state),
                col(CommitBuild.reason),
                col(CommitBuild.build_id),
                col(Build.outcome),
                col(Build.signature),
                col(Build.reason).label("why"),
            )
            .join(Build, col(Build.id) == col(CommitBuild.build_id), isouter=True)
            .where(
                col(CommitBuild.commit_id) == self._ids,
                col(CommitBuild.architecture) == self._chosen.queue,
            )
            .order_by(col(CommitBuild.build_id).is_not(None), col(CommitBuild.id))
        )
        found: dict[int, dict[str, _Row]] = {}
        for row in self._session.connection().execute(query).all():
            found.setdefault(row.commit_id, {})[row.name] = row
        return found

    def _read_measurements(self) -> dict[tuple[int, int], _Measured]:
        """By build and cell; of several environments the newest that counted a trial."""
        builds = {row.build_id for named in self._builds.values() for row in named.values()}
        query: _Query = columns(
            col(Measurement.build_id),
            col(Measurement.cell_id),
            col(Measurement.id),
            col(Measurement.environment_id),
            *WATCH_COLUMNS,
            *COUNT_COLUMNS,
        ).where(
            col(Measurement.build_id) == _any(builds - {None}),
            col(Measurement.environment_id) == _any(self._environments),
            col(Measurement.adaptive).is_(False),
        )
        place = {identity: n for n, identity in enumerate(self._environments)}
        bound = self._chosen.clean_below
        measured: dict[tuple[int, int], _Measured] = {}
        for row in self._session.connection().execute(query).all():
            key, environment, counts = (row[0], row[1]), row[3], tuple(row[7:])
            there = measured.get(key)
            if (there is None or place[environment] < place[there.environment]) and any(counts):
                saying = told.of_counts(counts, bound, Watch(*row[4:7]), self._doubts.get(row[2]))
                measured[key] = _Measured(row[2], environment, saying)
        return measured

    def _read_runs(self) -> dict[int, _Row]:
        """The newest run of each commit on this queue."""
        query: _Query = (
            columns(col(Run.id), col(Run.commit_id), col(Run.state))
            .where(
                col(Run.commit_id) == self._ids,
                col(Run.queue) == self._chosen.queue,
            )
            .order_by(col(Run.created_at))
        )
        return {row.commit_id: row for row in self._session.connection().execute(query).all()}

    def _read_ordered(self) -> dict[int, dict[int, _Row]]:
        """By commit, then cell: what runs ordered and could not run, or have not run yet."""
        query: _Query = (
            columns(
                col(Run.commit_id),
                col(Run.id).label("run_id"),
                col(Run.state),
                col(RunCell.cell_id),
                col(RunCell.wanted),
                col(RunCell.outcome),
                col(RunCell.signature),
                col(RunCell.decided),
            )
            .join(RunCell, col(RunCell.run_id) == col(Run.id))
            .where(
                col(Run.commit_id) == self._ids,
                col(Run.queue) == self._chosen.queue,
                col(RunCell.outcome).is_not(None) | col(Run.state).in_(_UNSETTLED),
            )
            .order_by(col(Run.created_at), col(RunCell.id))
        )
        found: dict[int, dict[int, _Row]] = {}
        for row in self._session.connection().execute(query).all():
            found.setdefault(row.commit_id, {})[row.cell_id] = row
        return found


def _unmeasured(build: _Row | None, ordered: _Row | None, older: GridCell | None) -> GridCell:
    run = str(ordered.run_id) if ordered is not None else ""
    if build is not None and build.outcome:
        note = f"{build.signature}: {build.why}" if build.signature else build.why
        return GridCell(
            _word(mark_of_outcome(build.outcome), note),
            build=build.build_id,
            run=run,
            repeated=older is not None and older.build == build.build_id,
        )
    if ordered is not None and ordered.outcome:
        note = ordered.decided or ordered.signature
        return GridCell(_word(mark_of_outcome(ordered.outcome), note), run=run)
    if build is not None and build.state == BuildState.FAILED:
        return GridCell(_word(Mark.INFRA_ERROR, build.reason), run=run)
    if ordered is not None and ordered.state in _UNSETTLED:
        active = ordered.state in OPEN_STATES
        return GridCell(_word(_OF_STATE[ordered.state], ""), run=run, active=active)
    return _NOT_RUN


def _word(mark: Mark, note: str) -> Told:
    return Told(mark, mark.words, note)


_OF_STATE = {
    RunState.AWAITING_APPROVAL: Mark.AWAITING,
    RunState.QUEUED: Mark.QUEUED,
    RunState.BUILDING: Mark.BUILDING,
    RunState.RUNNING: Mark.RUNNING,
}


def _any(ids: Iterable[int | None]) -> ColumnElement[bool]:
    """Any of these ids: one parameter, so that PostgreSQL prepares the question once."""
    return any_(bindparam(None, list(ids), type_=ARRAY(Integer)))
