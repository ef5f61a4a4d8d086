"""The grid: the newest commits of a branch by the cells they were measured in.

Every rate in it is one measurement's: of one build, in one environment. A grid shows one queue, so
emulated trials never stand beside a GPU's. It asks the database a fixed number of questions, none
of which looks at trials.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import ARRAY, ColumnElement, Integer, Row, Select, any_, bindparam, func
from sqlalchemy import select as columns
from sqlmodel import Session, col, select

from runner.result import Commit as CommitFacts
from service.reading.cells import CellName, cell_name
from service.reading.environments import EMULATED, EnvironmentName, environment_name, queue_of
from service.reading.rate import COUNT_COLUMNS, Mark, mark_of_outcome, rate_of
from service.statistics.counts import span
from service.tables import (
    OPEN_STATES,
    BranchCommit,
    Build,
    BuildState,
    Cell,
    Commit,
    CommitBuild,
    Environment,
    Measurement,
    Run,
    RunCell,
    RunState,
)

_Query = Select[*tuple[Any, ...]]
_Row = Row[*tuple[Any, ...]]
ROWS = 100
"""Commits on a page."""
LOOSE = "~"
"""In place of a branch: commits that are on none, such as releases and heads of pull requests. No
branch of git can have this name."""
CLEAN_BELOW = 0.05
"""The bound that the whole grid is judged by, unless asked otherwise; matrices differ in theirs."""
_UNSETTLED = (*OPEN_STATES, RunState.AWAITING_APPROVAL)


@dataclass(frozen=True)
class GridFilter:
    """What is asked for; empty for what suits best.

    branch: a branch, or LOOSE. environment: an id; None for each cell's newest. before: only
    commits older than this place (a position on the branch, for LOOSE an id).
    """

    subject: str = ""
    branch: str = ""
    queue: str = ""
    environment: int | None = None
    before: int | None = None
    clean_below: float = CLEAN_BELOW


class GridCell(NamedTuple):
    """One commit in one cell. A tuple, because a page makes thousands of them.

    text: `10/10`, or a word where nothing was measured. note: interval, outcomes, what is needed.
    strength: see `Rate`. measurement, build, run: what to look at for more; None or empty where
    there is none. active: trials of it are on their way. repeated: the next older commit shares
    build and trials. older: not the newest environment.
    """

    mark: Mark
    text: str = ""
    note: str = ""
    strength: int = 0
    measurement: int | None = None
    build: int | None = None
    run: str = ""
    active: bool = False
    repeated: bool = False
    older: bool = False


@dataclass(frozen=True)
class GridRow:
    """One commit with its cells, in the order of the grid's columns.

    run, state: its newest run on this queue, if any.
    """

    position: int
    sha: str
    ref: str
    title: str
    author: str
    date: datetime | None
    release: bool
    cells: tuple[GridCell, ...]
    run: str = ""
    state: str = ""


@dataclass(frozen=True)
class ColumnGroup:
    """Neighbouring columns with one program, or with one program and variant."""

    name: str
    width: int


@dataclass(frozen=True)
class Grid:
    """A page of the grid, and what else could be chosen.

    newest, oldest: first and last place on the page. newer, older: `before` of the pages next to
    it, None where there is none; newer is 0 for the first page. total: commits of the branch.
    environments: those that may be chosen, newest first. shown: those that the page's cells
    have. notes: what was asked for and is not there.
    """

    chosen: GridFilter
    subjects: tuple[str, ...]
    branches: tuple[str, ...]
    queues: tuple[str, ...]
    environments: tuple[EnvironmentName, ...]
    shown: tuple[EnvironmentName, ...]
    programs: tuple[ColumnGroup, ...]
    variants: tuple[ColumnGroup, ...]
    columns: tuple[CellName, ...]
    rows: tuple[GridRow, ...]
    total: int
    newer: int | None
    older: int | None
    any_run: bool
    notes: tuple[str, ...]

    @property
    def emulated(self) -> bool:
        """True where no GPU took part in any trial of this page."""
        return self.chosen.queue == EMULATED


class _Measured(NamedTuple):
    """What a measurement counted: trials by outcome, in the order of OUTCOMES."""

    id: int
    environment: int
    counts: tuple[int, ...]


class _Scope(NamedTuple):
    """What runs there are, by subject, queue and environment."""

    subject: str
    queue: str
    environment: int | None
    newest: datetime


def read(session: Session, asked: GridFilter) -> Grid:
    """The page of the grid that is asked for."""
    scopes = [
        _Scope(*row)
        for row in session.exec(
            select(Run.subject, Run.queue, Run.environment_id, func.max(Run.created_at)).group_by(
                col(Run.subject), col(Run.queue), col(Run.environment_id)
            )
        )
    ]
    scopes.sort(key=lambda scope: scope.newest, reverse=True)
    scopes.sort(key=lambda scope: scope.queue == EMULATED)  # what is real comes first
    subjects = tuple(sorted({scope.subject for scope in scopes}))
    subject = asked.subject or (scopes[0].subject if scopes else "")
    queues = tuple(dict.fromkeys(s.queue for s in scopes if s.subject == subject))
    heads = _branches(session, subject)
    branches = tuple(sorted(heads, key=lambda name: (name != "main", name)))
    chosen = replace(
        asked,
        subject=subject,
        branch=_one_of(asked.branch, (*branches, LOOSE)),
        queue=_one_of(asked.queue, queues),
    )
    environments = _environments(session, scopes, chosen)
    if chosen.environment not in {one.id for one in environments}:
        chosen = replace(chosen, environment=None)
    commits = _commits(session, chosen)
    page = _Page(session, chosen, environments, commits[:ROWS])
    columns = page.columns()
    return Grid(
        chosen=chosen,
        subjects=subjects,
        branches=branches,
        queues=queues,
        environments=environments,
        shown=page.shown,
        programs=_groups(columns, lambda column: column.program),
        variants=_groups(columns, lambda column: (column.program, column.variant)),
        columns=columns,
        rows=page.rows(columns),
        total=heads.get(chosen.branch, 0),
        newer=_newer(commits, chosen, heads.get(chosen.branch, 0)),
        older=commits[ROWS - 1].position if len(commits) > ROWS else None,
        any_run=bool(scopes),
        notes=_changed(asked, chosen),
    )


def _one_of(asked: str, there: Sequence[str]) -> str:
    """What was asked for, if it is there; else the first."""
    return asked if asked in there else next(iter(there), "")


def _changed(asked: GridFilter, chosen: GridFilter) -> tuple[str, ...]:
    """What was asked for and is not there, such as a branch of another subject."""
    notes = []
    if asked.branch not in ("", chosen.branch):
        notes.append(f"{chosen.subject} has no branch {asked.branch}")
    if asked.queue not in ("", chosen.queue):
        notes.append(f"no run of {chosen.subject} asked for {asked.queue}")
    if asked.environment not in (None, chosen.environment):
        notes.append("nothing of this was measured in the environment that was asked for")
    return tuple(notes)


def _branches(session: Session, subject: str) -> dict[str, int]:
    """Each branch of the subject, and how many commits it has."""
    found = session.exec(
        select(BranchCommit.branch, func.count())
        .where(BranchCommit.subject == subject)
        .group_by(col(BranchCommit.branch))
    )
    return dict(found.all())


def _environments(
    session: Session, scopes: Sequence[_Scope], chosen: GridFilter
) -> tuple[EnvironmentName, ...]:
    """Those in which this queue's trials of the subject may have run, the newest first."""
    used = [
        scope.environment
        for scope in scopes
        if scope.subject == chosen.subject and scope.queue == chosen.queue
    ]
    found = [
        environment
        for environment in session.exec(select(Environment))
        if environment.emulated == (chosen.queue == EMULATED)
        and (environment.id in used or queue_of(environment) == chosen.queue)
    ]
    place = {identity: n for n, identity in enumerate(used)}
    found.sort(key=lambda one: (place.get(one.id, len(place)), -(one.id or 0)))
    return tuple(environment_name(environment) for environment in found)


def _commits(session: Session, chosen: GridFilter) -> Sequence[_Row]:
    """Commits of the page, newest first, and one more if there are older ones."""
    facts = (
        col(Commit.id),
        col(Commit.sha),
        col(Commit.ref),
        col(Commit.title),
        col(Commit.author),
        col(Commit.date),
    )
    if chosen.branch == LOOSE:
        on_branch = select(BranchCommit.commit_id).where(BranchCommit.commit_id == Commit.id)
        query: _Query = (
            columns(col(Commit.id).label("position"), *facts)
            .where(col(Commit.subject) == chosen.subject, ~on_branch.exists())
            .order_by(col(Commit.id).desc())
        )
        if chosen.before is not None:
            query = query.where(col(Commit.id) < chosen.before)
    else:
        query = (
            columns(col(BranchCommit.position).label("position"), *facts)
            .join(Commit, col(Commit.id) == col(BranchCommit.commit_id))
            .where(
                col(BranchCommit.subject) == chosen.subject,
                col(BranchCommit.branch) == chosen.branch,
            )
            .order_by(col(BranchCommit.position).desc())
        )
        if chosen.before is not None:
            query = query.where(col(BranchCommit.position) < chosen.before)
    return session.connection().execute(query.limit(ROWS + 1)).all()


def _newer(commits: Sequence[_Row], chosen: GridFilter, total: int) -> int | None:
    """`before` of the page with newer commits; those on no branch only lead back to the first."""
    if chosen.before is None:
        return None
    before = chosen.before + ROWS
    return 0 if chosen.branch == LOOSE or before >= total else before


def _groups(columns: Iterable[CellName], key: Any) -> tuple[ColumnGroup, ...]:
    groups: list[tuple[Any, str, int]] = []
    for column in columns:
        of = key(column)
        if groups and groups[-1][0] == of:
            groups[-1] = (of, groups[-1][1], groups[-1][2] + 1)
        else:
            groups.append((of, of if isinstance(of, str) else of[-1], 1))
    return tuple(ColumnGroup(name, width) for _, name, width in groups)


class _Page:
    """What the database holds on the commits of one page."""

    def __init__(
        self,
        session: Session,
        chosen: GridFilter,
        environments: Sequence[EnvironmentName],
        commits: Sequence[_Row],
    ) -> None:
        self._session = session
        self._chosen = chosen
        self._commits = commits
        self._environments = environments
        self._ids = _any(commit.id for commit in commits)
        self._compared = [one.id for one in environments if chosen.environment in (None, one.id)]
        self._builds = self._read_builds()
        self._measured = self._read_measurements()
        self._runs = self._read_runs()
        self._ordered = self._read_ordered()

    @property
    def shown(self) -> tuple[EnvironmentName, ...]:
        """Environments of what was measured."""
        there = {measured.environment for measured in self._measured.values()}
        return tuple(one for one in self._environments if one.id in there)

    def columns(self) -> tuple[CellName, ...]:
        """All cells that any of the commits was measured in or is to be."""
        ids = {cell for _, cell in self._measured}
        ids |= {cell for _, cell in self._ordered}
        cells = self._session.exec(
            select(Cell).where(col(Cell.id).in_(ids), col(Cell.reference).is_(False))
        )
        return tuple(sorted(map(cell_name, cells), key=lambda name: name.order))

    def rows(self, columns: Sequence[CellName]) -> tuple[GridRow, ...]:
        """The commits in order, each with a cell for each column."""
        rows: list[GridRow] = []
        older: tuple[GridCell, ...] = ()
        for commit in reversed(self._commits):
            cells = tuple(
                self._cell(commit.id, column, older[n] if older else None)
                for n, column in enumerate(columns)
            )
            run = self._runs.get(commit.id)
            rows.append(
                GridRow(
                    position=commit.position,
                    sha=commit.sha,
                    ref=commit.ref,
                    title=commit.title,
                    author=commit.author,
                    date=commit.date,
                    release=CommitFacts(commit.sha, commit.ref).is_release,
                    cells=cells,
                    run=str(run.id) if run else "",
                    state=run.state if run else "",
                )
            )
            older = cells
        return tuple(reversed(rows))

    def _cell(self, commit: int, column: CellName, older: GridCell | None) -> GridCell:
        build = self._builds.get((commit, column.build))
        ordered = self._ordered.get((commit, column.id))
        measured = None
        if build is not None and build.build_id is not None:
            measured = self._measured.get((build.build_id, column.id))
        if measured is None:
            return self._unmeasured(build, ordered, older)
        mark, text, note, strength, trials = _told(measured.counts, self._chosen.clean_below)
        active = ordered is not None and ordered.state in OPEN_STATES and trials < ordered.wanted
        if active and ordered is not None:
            note = f"{ordered.state}, {trials} of {ordered.wanted} trials; {note}"
        return GridCell(
            mark=mark,
            text=text,
            note=note,
            strength=strength,
            measurement=measured.id,
            active=active,
            repeated=older is not None and older.measurement == measured.id,
            older=measured.environment != self._compared[0],
        )

    def _unmeasured(
        self, build: _Row | None, ordered: _Row | None, older: GridCell | None
    ) -> GridCell:
        run = str(ordered.run_id) if ordered else ""
        if build is not None and build.outcome:
            mark = mark_of_outcome(build.outcome)
            note = f"{build.signature}: {build.why}" if build.signature else build.why
            repeated = older is not None and older.build == build.build_id
            return GridCell(
                mark, mark.words, note, build=build.build_id, run=run, repeated=repeated
            )
        if ordered is not None and ordered.outcome:
            mark = mark_of_outcome(ordered.outcome)
            return GridCell(mark, mark.words, ordered.decided or ordered.signature, run=run)
        if build is not None and build.state == BuildState.FAILED:
            return GridCell(Mark.INFRA_ERROR, Mark.INFRA_ERROR.words, build.reason, run=run)
        if ordered is not None and ordered.state in _UNSETTLED:
            mark = _OF_STATE[ordered.state]
            return GridCell(mark, mark.words, "", run=run, active=ordered.state in OPEN_STATES)
        return _NOT_RUN

    def _read_builds(self) -> dict[tuple[int, str], _Row]:
        """By commit and name; of several toolchains the newest that is done."""
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
        found = self._session.connection().execute(query)
        return {(row.commit_id, row.name): row for row in found}

    def _read_measurements(self) -> dict[tuple[int, int], _Measured]:
        """By build and cell; of several environments the newest that counted a trial."""
        builds = {row.build_id for row in self._builds.values()} - {None}
        found = self._session.connection().execute(
            columns(
                col(Measurement.build_id),
                col(Measurement.cell_id),
                col(Measurement.id),
                col(Measurement.environment_id),
                *COUNT_COLUMNS,
            ).where(
                col(Measurement.build_id) == _any(builds),
                col(Measurement.environment_id) == _any(self._compared),
                col(Measurement.adaptive).is_(False),
            )
        )
        place = {identity: n for n, identity in enumerate(self._compared)}
        measured: dict[tuple[int, int], _Measured] = {}
        for build, cell, identity, environment, *counts in found:
            there = measured.get((build, cell))
            newer = there is None or place[environment] < place[there.environment]
            if newer and any(counts):
                measured[build, cell] = _Measured(identity, environment, tuple(counts))
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
        return {row.commit_id: row for row in self._session.connection().execute(query)}

    def _read_ordered(self) -> dict[tuple[int, int], _Row]:
        """By commit and cell: what runs ordered and could not run, or have not run yet."""
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
        found = self._session.connection().execute(query)
        return {(row.commit_id, row.cell_id): row for row in found}


_OF_STATE = {
    RunState.AWAITING_APPROVAL: Mark.AWAITING,
    RunState.QUEUED: Mark.QUEUED,
    RunState.BUILDING: Mark.BUILDING,
    RunState.RUNNING: Mark.RUNNING,
}
_NOT_RUN = GridCell(Mark.NOT_RUN)


def _any(ids: Iterable[int | None]) -> ColumnElement[bool]:
    """Any of these ids: one parameter, so that PostgreSQL prepares the question once."""
    return any_(bindparam(None, list(ids), type_=ARRAY(Integer)))


@lru_cache(maxsize=65_536)
def _told(counts: tuple[int, ...], clean_below: float) -> tuple[Mark, str, str, int, int]:
    """A measured cell's mark, text, note and strength, and how many trials it had.

    The note is short, since a page has thousands: a race's verdict shows in its figures.
    """
    rate = rate_of(counts, clean_below)
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in rate.counts)
    if not rate.n:
        return rate.mark, rate.mark.words, outcomes, 0, rate.trials
    verdict = "" if rate.mark is Mark.RACES else f"{rate.mark.words}, "
    more = f"; {rate.needed} more to be clean" if rate.needed and not rate.k else ""
    note = f"{verdict}{span((rate.low, rate.high))}: {outcomes}{more}"
    return rate.mark, f"{rate.k}/{rate.n}", note, rate.strength, rate.trials
