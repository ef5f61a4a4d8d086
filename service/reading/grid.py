"""The grid: the newest commits of a branch by the cells they were measured in.

Every rate in it is one measurement's: of one build, in one environment. A grid shows one queue, so
emulated trials never stand beside a GPU's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlmodel import Session, col, select

from runner.result import Commit as CommitFacts
from service.reading import bisected, grid_choices, grid_commits
from service.reading import changes as finding
from service.reading.bisected import Bisected
from service.reading.cells import CellName, cell_name
from service.reading.changes import Change, Scope
from service.reading.doubted import NONE, Doubts
from service.reading.environments import EMULATED, EnvironmentName
from service.reading.grid_cells import GridCell, PageCells
from service.reading.grid_choices import CLEAN_BELOW, LOOSE, Choices, GridFilter
from service.reading.grid_commits import CommitRow
from service.tables import BranchCommit, Cell, Commit

__all__ = ["CLEAN_BELOW", "LOOSE", "Grid", "GridCell", "GridFilter", "GridRow", "read"]
ROWS = 100
"""Commits on a page, at most."""
CELLS = 1_800
"""Cells on a page, about: where there are many columns, there are fewer commits."""
LEAST_ROWS = 20
CHANGED = 10
"""Commits with changes that are named, the newest."""
RISE, FALL, IN_RISE, IN_FALL = "rise", "fall", "in-rise", "in-fall"
"""What a cell has of a change: the likeliest first commit with a higher or a lower rate, or another
one that may have brought it."""


@dataclass(frozen=True)
class GridRow:
    """One commit with its cells, in the order of the grid's columns.

    place: its position on the branch, for LOOSE or a pull request its id. run, state: its newest
    run on this queue, if any.
    """

    place: int
    id: int
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
class ChangedCommit:
    """A commit that, likeliest, brought changes of rates, and those changes with their cells.

    oldest, newest: the hashes of the first and last commit that may have brought them. bisected:
    what a bisection found there, None where none did.
    """

    sha: str
    title: str
    author: str
    date: datetime | None
    rises: bool
    position: int
    low: int
    high: int
    oldest: str
    newest: str
    cells: tuple[tuple[CellName, Change], ...]
    bisected: Bisected | None = None

    @property
    def suspects(self) -> int:
        """Commits that may have brought them."""
        return self.high - self.low + 1


@dataclass(frozen=True)
class Grid:
    """A page of the grid, and what else could be chosen.

    newer, older: `before` of the pages next to it, None where there is none; newer is 0 for the
    first page. total: commits of the branch. shown: environments that the page's cells have.
    changes: on the branch, the newest first; only on the first page. more_changes: commits with
    others, before those.
    """

    choices: Choices
    shown: tuple[EnvironmentName, ...]
    programs: tuple[ColumnGroup, ...]
    variants: tuple[ColumnGroup, ...]
    columns: tuple[CellName, ...]
    rows: tuple[GridRow, ...]
    total: int
    newer: int | None
    older: int | None
    changes: tuple[ChangedCommit, ...]
    more_changes: int

    @property
    def chosen(self) -> GridFilter:
        """What is shown."""
        return self.choices.chosen

    @property
    def emulated(self) -> bool:
        """True where no GPU took part in any trial of this page."""
        return self.chosen.queue == EMULATED


def read(
    session: Session,
    asked: GridFilter,
    find: finding.Find = finding.find,
    doubts: Doubts = NONE,
) -> Grid:
    """The page of the grid that is asked for. find: how changes are found."""
    choices = grid_choices.read(session, asked)
    chosen = choices.chosen
    # One more than are shown: whether there are older ones, and whose trials the last one shares.
    commits = grid_commits.read(session, chosen, choices.compared, ROWS + 1)
    ids = [commit.id for commit in commits]
    page = PageCells(session, chosen, choices.compared, ids, doubts)
    columns = page.columns()
    size = max(LEAST_ROWS, min(ROWS, CELLS // max(1, len(columns))))
    changes = _changes(session, choices, find)
    total = choices.heads.get(chosen.branch, 0)
    changed, more = _changed(session, chosen, changes, columns)
    return Grid(
        choices=choices,
        shown=tuple(one for one in choices.environments if one.id in page.shown),
        programs=_groups(columns, lambda column: column.program),
        variants=_groups(columns, lambda column: (column.program, column.variant)),
        columns=columns,
        rows=_rows(page, columns, commits[: size + 1], changes)[:size],
        total=total,
        newer=_newer(chosen, total, size),
        older=commits[size - 1].place if len(commits) > size else None,
        changes=changed,
        more_changes=more,
    )


def _changes(session: Session, choices: Choices, find: finding.Find) -> tuple[Change, ...]:
    chosen = choices.chosen
    if not chosen.on_branch:
        return ()
    return find(session, Scope(chosen.subject, chosen.branch, chosen.queue, choices.compared))


def _rows(
    page: PageCells,
    columns: Sequence[CellName],
    commits: Sequence[CommitRow],
    changes: Sequence[Change],
) -> tuple[GridRow, ...]:
    rows: list[GridRow] = []
    below: tuple[GridCell, ...] | None = None
    numbers = {column.id: n for n, column in enumerate(columns)}
    for commit in reversed(commits):
        below = page.row(commit.id, columns, below)
        run = page.runs.get(commit.id)
        rows.append(
            GridRow(
                place=commit.place,
                id=commit.id,
                sha=commit.sha,
                ref=commit.ref,
                title=commit.title,
                author=commit.author,
                date=commit.date,
                release=CommitFacts(commit.sha, commit.ref).is_release,
                cells=_marked(below, commit.place, numbers, changes),
                run=str(run.id) if run else "",
                state=run.state if run else "",
            )
        )
    return tuple(reversed(rows))


def _marked(
    cells: tuple[GridCell, ...],
    place: int,
    numbers: dict[int, int],
    changes: Sequence[Change],
) -> tuple[GridCell, ...]:
    """The cells with what they have of a change in their environment."""
    marked: list[GridCell] | None = None
    for change in changes:
        number = numbers.get(change.cell)
        if number is None or not change.low <= place <= change.high:
            continue
        marked = marked or list(cells)
        cell = marked[number]
        if cell.environment in (None, change.environment):
            first = place == change.position
            kind = (RISE if first else IN_RISE) if change.rises else (FALL if first else IN_FALL)
            marked[number] = cell._replace(change=kind)
    return cells if marked is None else tuple(marked)


def _changed(
    session: Session, chosen: GridFilter, changes: Sequence[Change], columns: Sequence[CellName]
) -> tuple[tuple[ChangedCommit, ...], int]:
    """Changes by commit, of a chosen matrix those of its cells; and how many are not named."""
    if chosen.before is not None:
        return (), 0
    ids = {change.cell for change in changes}
    if chosen.matrix:
        ids &= {column.id for column in columns}
    cells = session.exec(select(Cell).where(col(Cell.id).in_(ids))) if ids else ()
    names = {name.id: name for name in map(cell_name, cells)}
    every = finding.grouped([change for change in changes if change.cell in names])
    groups = every[:CHANGED]
    spans = [_span(group) for group in groups]
    commits = _at(session, chosen, {n for span in spans for n in span})
    found = bisected.found(session, chosen.subject, chosen.branch, chosen.queue, names)
    named = tuple(
        ChangedCommit(
            sha=commits[position].sha,
            title=commits[position].title,
            author=commits[position].author,
            date=commits[position].date,
            rises=group[0].rises,
            position=position,
            low=low,
            high=high,
            oldest=commits[low].sha,
            newest=commits[high].sha,
            cells=tuple((names[change.cell], change) for change in group),
            bisected=bisected.of_change(
                found, {change.cell for change in group}, low, high, group[0].rises
            ),
        )
        for group, (low, position, high) in zip(groups, spans, strict=True)
        if {low, position, high} <= commits.keys()
    )
    return named, len(every) - len(groups)


def _span(group: Sequence[Change]) -> tuple[int, int, int]:
    """Which commits may have brought all of it, as the surest of its changes says."""
    surest = min(group, key=lambda one: (one.high - one.low, one.p))
    return surest.low, surest.position, surest.high


def _at(session: Session, chosen: GridFilter, positions: Iterable[int]) -> dict[int, Commit]:
    found = session.exec(
        select(BranchCommit.position, Commit)
        .join(Commit, col(Commit.id) == col(BranchCommit.commit_id))
        .where(
            BranchCommit.subject == chosen.subject,
            BranchCommit.branch == chosen.branch,
            col(BranchCommit.position).in_(list(positions)),
        )
    )
    return dict(found.all())


def _newer(chosen: GridFilter, total: int, size: int) -> int | None:
    """`before` of the page with newer commits; where places are not counted through, the first."""
    if chosen.before is None:
        return None
    before = chosen.before + size
    return 0 if chosen.narrowed or not chosen.on_branch or before >= total else before


def _groups(columns: Iterable[CellName], key: Callable[[CellName], Any]) -> tuple[ColumnGroup, ...]:
    groups: list[tuple[Any, str, int]] = []
    for column in columns:
        of = key(column)
        if groups and groups[-1][0] == of:
            groups[-1] = (of, groups[-1][1], groups[-1][2] + 1)
        else:
            groups.append((of, of if isinstance(of, str) else of[-1], 1))
    return tuple(ColumnGroup(name, width) for _, name, width in groups)
