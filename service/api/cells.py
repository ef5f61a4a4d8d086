"""Cells of a range of commits: the grid as data, and two commits against each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, Field
from sqlmodel import Session, col, select

from runner.statistics.counts import Counts
from runner.statistics.verdict import judge_cell
from service.api.access import reader
from service.api.commits import CommitOut, PlacedCommit, branch_of, commit_of, place_of
from service.api.counted import (
    CELL_COLUMNS,
    COUNT_COLUMNS,
    CellOut,
    ComparisonOut,
    CountedOut,
    EnvironmentOut,
    cell_fields,
    counted_fields,
)
from service.api.cursor import Cursor, Page, at_number, next_of, number_of
from service.api.documentation import API, errors, paged
from service.api.doubts import doubts as doubts_of
from service.api.export import FormatParameter, csv_response, wants_csv
from service.api.parameters import (
    CleanBelow,
    Device,
    Filters,
    Limit,
    Ref,
    RowId,
    ShaPrefix,
    Subject,
)
from service.database import Database
from service.reading import measured
from service.reading.doubted import Doubts
from service.reading.measured import Measured
from service.tables import BranchCommit, Commit, Measurement, Run, RunState

router = APIRouter(prefix=API, tags=["commits"], dependencies=[Depends(reader)])
COMMITS_AT_ONCE = 100
"""Commits whose cells are read together for a CSV file."""


class CommitCell(CellOut, CountedOut):
    """One commit in one cell and environment."""

    queue: str = Field(examples=["sm90"])
    environment: EnvironmentOut | None = Field(description="Null where nothing could be run.")
    outcome: str | None = Field(
        description="`build_error` or `unsupported` where nothing could be run."
    )
    first_trial_at: datetime | None
    last_trial_at: datetime | None


class CommitCells(BaseModel):
    """A commit and its cells."""

    commit: PlacedCommit
    cells: list[CommitCell]


class CellFilters(Filters):
    """Which commits, and which of their cells."""

    subject: Subject
    branch: Ref | None = Field(default=None, description="By default the first that is tracked.")
    oldest: ShaPrefix | None = Field(
        default=None, alias="from", description="The oldest commit, included."
    )
    newest: ShaPrefix | None = Field(
        default=None, alias="to", description="The newest commit, included."
    )
    queue: Device | None = None
    environment: RowId | None = None
    clean_below: CleanBelow = 0.05
    limit: Limit | None = Field(default=None, description="Commits on a page, 50 by default.")
    cursor: Cursor | None = None
    format: FormatParameter = None


@dataclass(frozen=True)
class _Range:
    """Places on a branch, both ends included; None for an open end."""

    subject: str
    branch: str
    oldest: int | None
    newest: int | None

    def read(self, session: Session, limit: int) -> list[tuple[int, Commit]]:
        """The newest commits of it."""
        query = (
            select(BranchCommit.position, Commit)
            .join(Commit, col(Commit.id) == col(BranchCommit.commit_id))
            .where(BranchCommit.subject == self.subject, BranchCommit.branch == self.branch)
            .order_by(col(BranchCommit.position).desc())
            .limit(limit)
        )
        if self.oldest is not None:
            query = query.where(col(BranchCommit.position) >= self.oldest)
        if self.newest is not None:
            query = query.where(col(BranchCommit.position) <= self.newest)
        return list(session.exec(query).all())


CSV_COLUMNS = (
    "position", "sha", "date", "title", "queue", "device_name", "driver", "jax", "toolchain",
    "harness", "emulated", *CELL_COLUMNS, *COUNT_COLUMNS, "outcome",
)  # fmt: skip


@router.get(
    "/cells",
    operation_id="listCells",
    summary="Cells by commit range",
    response_model=Page[CommitCells],
    responses=paged(errors(404, 409), CSV_COLUMNS),
)
def list_cells(request: Request, response: Response, asked: Annotated[CellFilters, Query()]) -> Any:
    """For each commit of a branch, newest first, its cells with counts, rate and verdict.

    Commits with one build key share its trials, so they show the same counts.
    """
    database: Database = request.app.state.database
    with database.session() as session:
        doubts = doubts_of(request, session)
        chosen = _range(session, request, asked)
        if not wants_csv(request, asked.format):
            limit = asked.limit or 50
            rows = chosen.read(session, limit + 1)
            items = _with_cells(session, rows[:limit], asked, doubts)
            rest = at_number(rows[limit - 1][0]) if len(rows) > limit else None
            response.headers["Vary"] = "Accept"
            return Page(items=items, next=next_of(request, response, rest))
    return csv_response("cells", CSV_COLUMNS, _csv(database, chosen, asked, doubts))


def _range(session: Session, request: Request, asked: CellFilters) -> _Range:
    branch = branch_of(session, request.app.state.settings, asked.subject, asked.branch)
    oldest = asked.oldest and place_of(session, asked.subject, branch, asked.oldest)
    newest = asked.newest and place_of(session, asked.subject, branch, asked.newest)
    before = None if asked.cursor is None else number_of(asked.cursor) - 1
    ends = [end for end in (newest, before) if isinstance(end, int)]
    return _Range(
        asked.subject,
        branch,
        oldest if isinstance(oldest, int) else None,
        min(ends, default=None),
    )


def _with_cells(
    session: Session, rows: list[tuple[int, Commit]], asked: CellFilters, doubts: Doubts
) -> list[CommitCells]:
    ids = [commit.id for _, commit in rows if commit.id is not None]
    found = measured.of_commits(session, ids, asked.queue, asked.environment)
    return [
        CommitCells(
            commit=PlacedCommit(**CommitOut.of(commit).model_dump(), position=position),
            cells=[_cell(one, asked.clean_below, doubts) for one in found.get(commit.id or 0, [])],
        )
        for position, commit in rows
    ]


def _cell(one: Measured, clean_below: float, doubts: Doubts) -> CommitCell:
    why = f"{one.outcome}: {one.reason}" if one.outcome else ""
    return CommitCell(
        **cell_fields(one.cell),
        **counted_fields(one.measurement, clean_below, why, doubts),
        queue=one.queue,
        environment=EnvironmentOut.of(one.environment) if one.environment else None,
        outcome=one.outcome,
        first_trial_at=one.measurement.first_trial_at if one.measurement else None,
        last_trial_at=one.measurement.last_trial_at if one.measurement else None,
    )


def _csv(
    database: Database, chosen: _Range, asked: CellFilters, doubts: Doubts
) -> Iterator[list[Any]]:
    """Row by row, a number of commits at a time, each in a short transaction of its own."""
    left = asked.limit
    while left is None or left > 0:
        size = COMMITS_AT_ONCE if left is None else min(left, COMMITS_AT_ONCE)
        with database.session() as session:
            rows = chosen.read(session, size)
            items = _with_cells(session, rows, asked, doubts)
        for item in items:
            yield from (_csv_row(item.commit, cell) for cell in item.cells)
        if len(rows) < size:
            return
        left = None if left is None else left - size
        chosen = _Range(chosen.subject, chosen.branch, chosen.oldest, rows[-1][0] - 1)


def _csv_row(commit: PlacedCommit, cell: CommitCell) -> list[Any]:
    where = cell.environment
    names = ("device_name", "driver", "jax", "toolchain", "harness", "emulated")
    return [
        commit.position, commit.sha, commit.date, commit.title, cell.queue,
        *(getattr(where, name) if where else None for name in names),
        *(getattr(cell, name) for name in CELL_COLUMNS),
        *cell.row(), cell.outcome,
    ]  # fmt: skip


class Outputs(BaseModel):
    """Whether the outputs of one program and recipe are bitwise the same at both commits."""

    of: str = Field(examples=["stock norm-act-gemm, fp8-current-scaling"])
    environment: int = Field(description="Its id: bits of two environments are never compared.")
    equal: bool
    a: list[str] = Field(description="SHA-256 of the output bits.")
    b: list[str]


class ComparedCell(CellOut):
    """A cell at two commits; null where one of them was not measured in that environment."""

    queue: str
    environment: EnvironmentOut | None
    a: CountedOut | None
    b: CountedOut | None
    comparison: ComparisonOut | None = Field(
        description="b as head against a as base; null unless both were measured."
    )


class ComparedCommits(BaseModel):
    """Two commits: `a` as base, `b` as head."""

    subject: str
    a: CommitOut
    b: CommitOut
    cells: list[ComparedCell]
    outputs: list[Outputs] = Field(description="As far as complete runs of both compared them.")
    outputs_equal: bool | None = Field(description="Null where that is not known.")


class CompareFilters(Filters):
    """Which commits."""

    subject: Subject
    a: ShaPrefix = Field(description="The base.")
    b: ShaPrefix = Field(description="The head.")
    queue: Device | None = None
    clean_below: CleanBelow = 0.05


@router.get(
    "/compare",
    operation_id="compareCommits",
    summary="Compare two commits",
    responses=errors(404, 409),
)
def compare_commits(request: Request, asked: Annotated[CompareFilters, Query()]) -> ComparedCommits:
    """Cell by cell, where both were measured in one environment, whether `b` is worse than `a`."""
    with request.app.state.database.session() as session:
        a = commit_of(session, asked.subject, asked.a)
        b = commit_of(session, asked.subject, asked.b)
        ids = [commit.id for commit in (a, b) if commit.id is not None]
        found = measured.of_commits(session, ids, asked.queue)
        doubts = doubts_of(request, session)
        outputs = _outputs(
            _digests(session, ids[0], asked.queue), _digests(session, ids[-1], asked.queue)
        )
    cells = _compared(found[ids[0]], found[ids[-1]], asked.clean_below, doubts)
    return ComparedCommits(
        subject=asked.subject,
        a=CommitOut.of(a),
        b=CommitOut.of(b),
        cells=cells,
        outputs=outputs,
        outputs_equal=all(one.equal for one in outputs) if outputs else None,
    )


def _compared(
    a: list[Measured], b: list[Measured], clean_below: float, doubts: Doubts
) -> list[ComparedCell]:
    of_a = {(one.queue, *one.key): one for one in a}
    of_b = {(one.queue, *one.key): one for one in b}
    return [
        _both(of_a.get(key), of_b.get(key), clean_below, doubts)
        for key in dict.fromkeys([*of_a, *of_b])
    ]


def _both(
    a: Measured | None, b: Measured | None, clean_below: float, doubts: Doubts
) -> ComparedCell:
    either = a or b
    assert either is not None, "a key comes from one of the two"
    comparison = None
    if a and b and a.measurement and b.measurement:
        head, base = _counts(b.measurement), _counts(a.measurement)
        of_a, of_b = (doubts.get(one.id or 0) for one in (a.measurement, b.measurement))
        verdict = judge_cell(head, base, clean_below, of_b, base_control=of_a)
        comparison = ComparisonOut.of(verdict, head, base)
    return ComparedCell(
        **cell_fields(either.cell),
        queue=either.queue,
        environment=EnvironmentOut.of(either.environment) if either.environment else None,
        a=_counted(a, clean_below, doubts),
        b=_counted(b, clean_below, doubts),
        comparison=comparison,
    )


def _counted(one: Measured | None, clean_below: float, doubts: Doubts) -> CountedOut | None:
    if one is None:
        return None
    why = f"{one.outcome}: {one.reason}" if one.outcome else ""
    return CountedOut(**counted_fields(one.measurement, clean_below, why, doubts))


def _counts(measurement: Measurement) -> Counts:
    return Counts(measurement.k, measurement.n)


_Digests = dict[tuple[int, str], list[str]]


def _digests(session: Session, commit_id: int, queue: str | None) -> _Digests:
    """Output digests of a commit by environment and what they are of, of its newest runs."""
    query = (
        select(Run.environment_id, Run.parity)
        .where(
            Run.commit_id == commit_id,
            Run.state == RunState.COMPLETE,
            col(Run.parity).is_not(None),
            col(Run.environment_id).is_not(None),
        )
        .order_by(col(Run.created_at).desc())
        .limit(20)
    )
    if queue is not None:
        query = query.where(Run.queue == queue)
    found: _Digests = {}
    for environment, parity in session.exec(query):
        for name, digests in ((parity or {}).get("digests") or {}).items():
            if environment is not None and not name.startswith("base "):
                found.setdefault((environment, name), digests)
    return found


def _outputs(a: _Digests, b: _Digests) -> list[Outputs]:
    return [
        Outputs(of=key[1], environment=key[0], equal=set(a[key]) == set(b[key]), a=a[key], b=b[key])
        for key in sorted(set(a) & set(b))
    ]
