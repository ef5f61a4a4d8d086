"""Runs: listed, looked at, started and cancelled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, Field
from sqlalchemy import func
from sqlalchemy import select as columns_of
from sqlmodel import Session, col, or_, select
from sqlmodel.sql.expression import Select

from runner.statistics.control import Proof
from runner.statistics.kinds import Kind
from service import controls
from service.api.access import reader
from service.api.commits import CommitOut
from service.api.counted import (
    CellOut,
    ComparisonOut,
    CountedOut,
    EnvironmentOut,
    cell_fields,
    counted_fields,
)
from service.api.cursor import Cursor, Page, at_moment, moment_of, next_of
from service.api.documentation import API, errors, paged
from service.api.errors import missing
from service.api.export import ROWS_AT_ONCE, FormatParameter, csv_response, wants_csv
from service.api.parameters import (
    Device,
    Filters,
    Limit,
    PullNumber,
    Ref,
    RunId,
    ShaPrefix,
    Subject,
    Text,
    Time,
)
from service.api.rows import taken
from service.database import Database
from service.judged import JudgedCell, cells_of
from service.tables import (
    Build,
    BuildState,
    Cell,
    Commit,
    CommitBuild,
    Environment,
    Measurement,
    Origin,
    Run,
    RunCell,
    RunState,
)

router = APIRouter(prefix=API, tags=["runs"], dependencies=[Depends(reader)])


class Progress(BaseModel):
    """How far a run has come.

    settled: of the wanted trials, those that are there or no longer needed. recorded: trials that
    this run itself stored; others had run before, on a build that commits share.
    """

    cells: int
    wanted: int
    settled: int
    recorded: int


class RunOut(BaseModel):
    """A run, without its cells."""

    id: UUID
    subject: str = Field(examples=["te"])
    commit: CommitOut | None = Field(description="Null until its ref is resolved.")
    ref: str = Field(examples=["main"])
    pull: int | None
    matrix: str = Field(examples=["issue-3863"])
    queue: str = Field(description="Kind of device that its trials need.", examples=["sm90"])
    toolchain: str
    origin: Origin
    priority: int
    state: RunState
    reason: str
    requested_by: str
    trusted: bool = Field(description="False for a fork's code.")
    sequential: bool = Field(description="Cells stop as soon as they are decided.")
    adaptive: bool
    bisection_id: UUID | None = Field(description="The bisection whose probe it is.")
    clean_below: float
    environment: EnvironmentOut | None
    progress: Progress
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class RunCellOut(CellOut, CountedOut):
    """A cell that a run ordered; the counts are its measurement's, whoever ran the trials."""

    name: str = Field(examples=["stock, background"])
    position: int
    build: str = Field(examples=["stock"])
    wanted: int
    recorded: int
    decided: str = Field(description="Why it needs no more trials although fewer are there.")
    outcome: str | None = Field(
        description="`build_error` or `unsupported` where there is nothing to run."
    )
    signature: str
    against_base: ComparisonOut | None = Field(
        description="Against the merge base, as far as that was measured."
    )


class BuildOut(BaseModel):
    """A build that a run needs. log: where the compiler's output is, null without one."""

    name: str = Field(examples=["stock"])
    state: BuildState
    reason: str
    outcome: str | None
    signature: str
    key: str | None
    seconds: float | None
    attempts: int
    log: str | None


class ParityOut(BaseModel):
    """The issue's own check: whether outputs are bitwise the same."""

    status: str = Field(examples=["identical"])
    reason: str
    between: str = Field(default="", examples=["stock and owned-stream"])
    digests: dict[str, list[str]] = {}


class BaseOut(BaseModel):
    """What a run is compared with: the merge base, and its run."""

    commit: CommitOut
    run: UUID | None


class CountsOut(BaseModel):
    """Failures of trials that count."""

    k: int
    n: int


class ControlOut(BaseModel):
    """What the control cells showed on one device."""

    worker: str = Field(description="Empty where the run was imported.")
    device: str = Field(examples=["0"])
    known_bad: CountsOut
    known_good: CountsOut
    proof: Proof
    text: str = Field(examples=["proven: known-bad failed 6 of 6 (52.2 to 100 %), known-good ..."])


class RunWhole(RunOut):
    """A run with everything that it showed."""

    cells: list[RunCellOut]
    builds: list[BuildOut]
    parity: ParityOut | None
    base: BaseOut | None
    notes: list[str]
    controls: list[ControlOut] = Field(description="By worker and device.")
    sandbox: str
    trial_mode: str
    parallel: int | None


class RunFilters(Filters):
    """Which runs."""

    subject: Subject | None = None
    commit: ShaPrefix | None = Field(default=None, description="A hash or the beginning of one.")
    ref: Ref | None = None
    pull: PullNumber | None = None
    state: RunState | None = None
    origin: Origin | None = None
    queue: Device | None = None
    matrix: Text | None = None
    since: Time | None = Field(default=None, description="Created then or later.")
    until: Time | None = Field(default=None, description="Created before then.")
    limit: Limit | None = Field(default=None, description="Runs on a page, 50 by default.")
    cursor: Cursor | None = None
    format: FormatParameter = None


CSV_COLUMNS = (
    "id", "subject", "sha", "title", "ref", "pull", "matrix", "queue", "device_name", "emulated",
    "toolchain", "origin", "state", "reason", "requested_by", "trusted", "sequential", "cells",
    "wanted", "settled", "recorded", "created_at", "started_at", "finished_at",
)  # fmt: skip
_Row = tuple[Run, Commit | None, Environment | None]


@router.get(
    "/runs",
    operation_id="listRuns",
    summary="Runs, newest first",
    response_model=Page[RunOut],
    responses=paged(errors(), CSV_COLUMNS),
)
def list_runs(request: Request, response: Response, asked: Annotated[RunFilters, Query()]) -> Any:
    """All filters have to fit."""
    database: Database = request.app.state.database
    after = None if asked.cursor is None else moment_of(asked.cursor)
    if wants_csv(request, asked.format):
        return csv_response("runs", CSV_COLUMNS, _csv(database, asked, after))
    limit = asked.limit or 50
    with database.session() as session:
        rows = _read(session, asked, after, limit + 1)
        items = _with_progress(session, rows[:limit])
    last = rows[limit - 1][0] if len(rows) > limit else None
    rest = at_moment(last.created_at, last.id) if last else None
    response.headers["Vary"] = "Accept"
    return Page(items=items, next=next_of(request, response, rest))


@router.get(
    "/runs/{run_id}",
    operation_id="getRun",
    summary="A run with its cells, builds and parity",
    responses=errors(404),
)
def get_run(request: Request, run_id: RunId) -> RunWhole:
    """Counts, rates, intervals and verdicts of every cell, as of now."""
    with request.app.state.database.session() as session:
        return whole(session, run_id)


def whole(session: Session, run_id: UUID) -> RunWhole:
    """The run with everything that it showed. Raises 404."""
    found = session.exec(_joined().where(col(Run.id) == run_id)).one_or_none()
    if found is None:
        raise missing("run", str(run_id))
    run = found[0]
    cells = _cells(session, run)
    base = session.get(Commit, run.base_commit_id) if run.base_commit_id else None
    summary = _with_progress(session, [found])[0]
    return RunWhole(
        **summary.model_dump(),
        cells=cells,
        builds=_builds(session, run, {cell.build for cell in cells}),
        parity=ParityOut.model_validate(run.parity) if run.parity else None,
        base=BaseOut(commit=CommitOut.of(base), run=run.base_run_id) if base else None,
        notes=run.notes,
        controls=[
            ControlOut(
                worker=one.worker,
                device=one.control.device,
                known_bad=CountsOut(k=one.control.known_bad.k, n=one.control.known_bad.n),
                known_good=CountsOut(k=one.control.known_good.k, n=one.control.known_good.n),
                proof=one.verdict.proof,
                text=one.verdict.text,
            )
            for one in controls.shown(session, run.id)
        ],
        sandbox=str(run.facts.get("sandbox") or ""),
        trial_mode=str(run.facts.get("trial_mode") or ""),
        parallel=run.facts.get("parallel"),
    )


def _joined() -> Select[Run, Any, Any]:
    return (
        select(Run, Commit, Environment)
        .join(Commit, col(Commit.id) == col(Run.commit_id), isouter=True)
        .join(Environment, col(Environment.id) == col(Run.environment_id), isouter=True)
    )


def _read(
    session: Session, asked: RunFilters, after: tuple[datetime, UUID] | None, limit: int
) -> Sequence[_Row]:
    """Rows in the order of the index `runs_by_time`: newest first, then by id."""
    query = _joined().order_by(col(Run.created_at).desc(), col(Run.id)).limit(limit)
    for column, value in (
        (Run.subject, asked.subject),
        (Run.ref, asked.ref),
        (Run.pull, asked.pull),
        (Run.state, asked.state),
        (Run.origin, asked.origin),
        (Run.queue, asked.queue),
        (Run.matrix_name, asked.matrix),
    ):
        if value is not None:
            query = query.where(col(column) == value)
    if asked.commit is not None:
        query = query.where(
            or_(
                func.starts_with(Commit.sha, asked.commit),
                func.starts_with(Run.head_sha, asked.commit),
            )
        )
    if asked.since is not None:
        query = query.where(col(Run.created_at) >= asked.since)
    if asked.until is not None:
        query = query.where(col(Run.created_at) < asked.until)
    if after is not None:
        moment, identity = after
        query = query.where(
            or_(
                col(Run.created_at) < moment,
                (col(Run.created_at) == moment) & (col(Run.id) > identity),
            )
        )
    return session.exec(query).all()


def _with_progress(session: Session, rows: Sequence[_Row]) -> list[RunOut]:
    progress = _progress(session, [run.id for run, _, _ in rows])
    return [
        RunOut(
            **taken(run, RunOut, but=("commit", "matrix", "environment", "progress")),
            commit=CommitOut.of(commit) if commit else None,
            matrix=run.matrix_name,
            environment=EnvironmentOut.of(environment) if environment else None,
            progress=progress[run.id],
        )
        for run, commit, environment in rows
    ]


def _progress(session: Session, runs: Sequence[UUID]) -> dict[UUID, Progress]:
    """Of all these runs in one question, from the counts that measurements keep."""
    there = (
        Measurement.passed
        + Measurement.capture_error
        + Measurement.crash
        + Measurement.hang
        + Measurement.data_loss
        + Measurement.wrong_output
        + Measurement.unsupported
    )
    done = (col(RunCell.decided) != "") | col(RunCell.outcome).is_not(None)
    settled = func.least(col(RunCell.wanted), func.coalesce(there, 0))
    query = (
        columns_of(
            col(RunCell.run_id),
            func.count(),
            func.sum(col(RunCell.wanted)),
            func.coalesce(func.sum(col(RunCell.wanted)).filter(done), 0)
            + func.coalesce(func.sum(settled).filter(~done), 0),
            func.sum(col(RunCell.recorded)),
        )
        .join(Measurement, col(Measurement.id) == col(RunCell.measurement_id), isouter=True)
        .where(col(RunCell.run_id).in_(runs))
        .group_by(col(RunCell.run_id))
    )
    found = dict.fromkeys(runs, Progress(cells=0, wanted=0, settled=0, recorded=0))
    for run, cells, wanted, settled_trials, recorded in session.execute(query):
        found[run] = Progress(cells=cells, wanted=wanted, settled=settled_trials, recorded=recorded)
    return found


def _cells(session: Session, run: Run) -> list[RunCellOut]:
    judged = {one.name: one for one in cells_of(session, run)}
    return [
        RunCellOut(
            **{name: getattr(row, name) for name in _OF_ROW},
            **cell_fields(cell),
            **counted_fields(measurement, run.clean_below, _why_not(row))
            | _doubts(judged.get(row.name)),
            against_base=_against(judged.get(row.name)),
        )
        for row, cell, measurement in _ordered(session, run.id)
    ]  # fmt: skip


_OF_ROW = (
    "name", "position", "build", "wanted", "recorded", "decided", "outcome", "signature",
)  # fmt: skip


def _why_not(cell: RunCell) -> str:
    if cell.outcome is None:
        return ""
    return f"{cell.outcome}: {cell.decided or cell.signature}"


def _ordered(session: Session, run_id: UUID) -> Iterator[tuple[RunCell, Cell, Measurement | None]]:
    query = (
        select(RunCell, Cell, Measurement)
        .join(Cell, col(Cell.id) == col(RunCell.cell_id))
        .join(Measurement, col(Measurement.id) == col(RunCell.measurement_id), isouter=True)
        .where(RunCell.run_id == run_id)
        .order_by(col(RunCell.position))
    )
    yield from session.exec(query)


def _doubts(judged: JudgedCell | None) -> dict[str, Any]:
    """What replaces a cell's verdict where the control cells of its devices do not bear it."""
    if judged is None or not judged.head.n or judged.verdict.kind is not Kind.UNPROVEN:
        return {}
    return {
        "verdict": judged.verdict.kind,
        "verdict_text": judged.verdict.text,
        "trials_needed": 0,
    }


def _against(judged: JudgedCell | None) -> ComparisonOut | None:
    """As statuses on GitHub have it."""
    if judged is None or judged.base is None:
        return None
    return ComparisonOut.of(judged.verdict, judged.head, judged.base)


def _builds(session: Session, run: Run, names: set[str]) -> list[BuildOut]:
    if run.commit_id is None:
        return []
    query = (
        select(CommitBuild, Build)
        .join(Build, col(Build.id) == col(CommitBuild.build_id), isouter=True)
        .where(
            CommitBuild.commit_id == run.commit_id,
            CommitBuild.architecture == run.queue,
            col(CommitBuild.name).in_(names),
        )
        .order_by(col(CommitBuild.id))
    )
    toolchain = run.facts.get("toolchain")
    if toolchain:
        query = query.where(CommitBuild.toolchain == toolchain)
    return [_build(row, build) for row, build in session.exec(query)]


def _build(row: CommitBuild, build: Build | None) -> BuildOut:
    return BuildOut(
        name=row.name,
        state=row.state,
        reason=row.reason or (build.reason if build else ""),
        outcome=build.outcome if build else None,
        signature=build.signature if build else "",
        key=build.key if build else None,
        seconds=build.seconds if build else None,
        attempts=row.attempts,
        log=f"{API}/builds/{build.id}/log" if build and build.log else None,
    )


def _csv(
    database: Database, asked: RunFilters, after: tuple[datetime, UUID] | None
) -> Iterator[list[Any]]:
    """Row by row, read a number at a time, each in a short transaction of its own."""
    left = asked.limit
    while left is None or left > 0:
        size = ROWS_AT_ONCE if left is None else min(left, ROWS_AT_ONCE)
        with database.session() as session:
            rows = _read(session, asked, after, size)
            items = _with_progress(session, rows)
        yield from map(_csv_row, items)
        if len(rows) < size:
            return
        left = None if left is None else left - size
        after = (rows[-1][0].created_at, rows[-1][0].id)


def _csv_row(run: RunOut) -> list[Any]:
    commit, environment, progress = run.commit, run.environment, run.progress
    return [
        run.id, run.subject, commit and commit.sha, commit and commit.title, run.ref, run.pull,
        run.matrix, run.queue, environment and environment.device_name,
        environment.emulated if environment else None, run.toolchain, run.origin, run.state,
        run.reason, run.requested_by, run.trusted, run.sequential, progress.cells, progress.wanted,
        progress.settled, progress.recorded, run.created_at, run.started_at, run.finished_at,
    ]  # fmt: skip
