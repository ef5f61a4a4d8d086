"""Trials of a run, each with its evidence and its log; and the logs of builds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, Field
from sqlmodel import Session, col, select
from sqlmodel.sql.expression import Select
from starlette.responses import PlainTextResponse

from runner.outcome import Outcome
from service.api.access import reader
from service.api.commits import CommitOut
from service.api.counted import CELL_COLUMNS, CellOut, EnvironmentOut, cell_fields
from service.api.cursor import Cursor, Page, at_number, next_of, number_of
from service.api.documentation import API, Responses, errors, paged
from service.api.errors import missing, refused
from service.api.export import ROWS_AT_ONCE, FormatParameter, csv_response, wants_csv
from service.api.parameters import Filters, Limit, RowId, RunId, Text
from service.api.rows import taken
from service.database import Database
from service.tables import (
    Build,
    Cell,
    Commit,
    Environment,
    Measurement,
    Run,
    RunCell,
    Trial,
    TrialEvidence,
    Worker,
)

router = APIRouter(prefix=API, tags=["trials"], dependencies=[Depends(reader)])


class WorkerName(BaseModel):
    """The worker that ran a trial."""

    id: UUID
    name: str


class TrialOut(BaseModel):
    """One trial, without its evidence."""

    id: int
    run: UUID
    cell: str | None = Field(
        description="The name of the run's cell, null for a reference that the run added.",
        examples=["stock, background"],
    )
    index: int = Field(description="Its number in what the worker ran at once.")
    outcome: Outcome
    signature: str = Field(description="The error's stable part, empty for a pass.")
    reason: str
    seconds: float
    device: str
    recipe: str
    digests: list[str] = Field(description="SHA-256 of the output bits of each execution.")
    background_updates: int
    handlers: list[str] | None = Field(
        description="Initialize handlers that were entered, null where the build cannot tell."
    )
    foreign_nodes: int | None = Field(
        description="Graph nodes that other threads' work became in its capture windows, and "
        "calls of theirs that these refused; null where the detector did not watch."
    )
    times: dict[str, float]
    worker: WorkerName | None
    finished_at: datetime
    log: str = Field(description="Where its log is.", examples=["/api/v1/trials/1/log"])


class TrialWhole(TrialOut):
    """A trial with all that is kept of it."""

    subject: str
    commit: CommitOut | None
    what: CellOut
    environment: EnvironmentOut
    evidence: dict[str, Any] | None = Field(
        description="Raw facts that the outcome rests on, null once they were pruned."
    )
    log_kept: bool


class TrialFilters(Filters):
    """Which trials of the run."""

    cell: Text | None = Field(default=None, description="The name of a cell of the run.")
    outcome: Outcome | None = None
    limit: Limit | None = Field(default=None, description="Trials on a page, 100 by default.")
    cursor: Cursor | None = None
    format: FormatParameter = None


CSV_COLUMNS = (
    "id", "run", "cell", *CELL_COLUMNS, "index", "outcome", "signature", "reason", "seconds",
    "device", "recipe_run", "background_updates", "digests", "handlers", "worker", "finished_at",
    "foreign_nodes",
)  # fmt: skip
_Row = tuple[Trial, str | None, Cell, str | None]
_LOG: Responses = {
    200: {"description": "The log.", "content": {"text/plain": {"schema": {"type": "string"}}}},
    **errors(404),
}


@router.get(
    "/runs/{run_id}/trials",
    operation_id="listTrials",
    summary="Trials of a run, in the order in which they were stored",
    response_model=Page[TrialOut],
    responses=paged(errors(404), CSV_COLUMNS),
)
def list_trials(
    request: Request, response: Response, run_id: RunId, asked: Annotated[TrialFilters, Query()]
) -> Any:
    """Those that this run stored; cells may count others too, which ran on the same build."""
    database: Database = request.app.state.database
    after = 0 if asked.cursor is None else number_of(asked.cursor)
    limit = asked.limit or 100
    with database.session() as session:
        if session.get(Run, run_id) is None:
            raise missing("run", str(run_id))
        cell = _cell_of(session, run_id, asked.cell)
        if wants_csv(request, asked.format):
            return csv_response(
                f"trials-{run_id}", CSV_COLUMNS, _csv(database, run_id, asked, cell, after)
            )
        rows = _read(session, run_id, asked, cell, after, limit + 1)
    rest = at_number(rows[limit - 1][0].id or 0) if len(rows) > limit else None
    response.headers["Vary"] = "Accept"
    return Page(
        items=[TrialOut(**_fields(*row)) for row in rows[:limit]],
        next=next_of(request, response, rest),
    )


@router.get(
    "/trials/{trial_id}",
    operation_id="getTrial",
    summary="A trial with its evidence",
    responses=errors(404),
)
def get_trial(request: Request, trial_id: RowId) -> TrialWhole:
    """Everything that is kept of it but the log."""
    with request.app.state.database.session() as session:
        row = session.exec(_joined().where(col(Trial.id) == trial_id)).one_or_none()
        if row is None:
            raise missing("trial", trial_id)
        trial, _, cell, _ = row
        subject, commit, environment = session.exec(
            select(Run.subject, Commit, Environment)
            .select_from(Trial)
            .join(Run, col(Run.id) == col(Trial.run_id))
            .join(Commit, col(Commit.id) == col(Run.commit_id), isouter=True)
            .join(Measurement, col(Measurement.id) == col(Trial.measurement_id))
            .join(Environment, col(Environment.id) == col(Measurement.environment_id))
            .where(col(Trial.id) == trial_id)
        ).one()
        evidence = session.get(TrialEvidence, trial.id)
    return TrialWhole(
        **_fields(*row),
        subject=subject,
        commit=CommitOut.of(commit) if commit else None,
        what=CellOut(**cell_fields(cell)),
        environment=EnvironmentOut.of(environment),
        evidence=evidence.evidence if evidence else None,
        log_kept=evidence is not None,
    )


@router.get(
    "/trials/{trial_id}/log",
    operation_id="getTrialLog",
    summary="What a trial printed",
    response_class=PlainTextResponse,
    responses=_LOG,
)
def get_trial_log(request: Request, trial_id: RowId) -> PlainTextResponse:
    """Both ends of a long one. 404 once it was pruned."""
    with request.app.state.database.session() as session:
        if session.get(Trial, trial_id) is None:
            raise missing("trial", trial_id)
        evidence = session.get(TrialEvidence, trial_id)
        if evidence is None:
            raise refused(404, f"the log of trial {trial_id} was pruned")
        return PlainTextResponse(evidence.log)


@router.get(
    "/builds/{build_id}/log",
    operation_id="getBuildLog",
    summary="What a build printed",
    response_class=PlainTextResponse,
    responses=_LOG,
)
def get_build_log(request: Request, build_id: RowId) -> PlainTextResponse:
    """Both ends of a long one."""
    with request.app.state.database.session() as session:
        build = session.get(Build, build_id)
        if build is None:
            raise missing("build", build_id)
        return PlainTextResponse(build.log)


def _joined() -> Select[Trial, Any, Cell, Any]:
    return (
        select(Trial, RunCell.name, Cell, Worker.name)
        .join(Measurement, col(Measurement.id) == col(Trial.measurement_id))
        .join(Cell, col(Cell.id) == col(Measurement.cell_id))
        .join(RunCell, col(RunCell.id) == col(Trial.run_cell_id), isouter=True)
        .join(Worker, col(Worker.id) == col(Trial.worker_id), isouter=True)
    )


def _cell_of(session: Session, run_id: UUID, name: str | None) -> int | None:
    """The run's cell of that name. Raises 404."""
    if name is None:
        return None
    found = session.exec(
        select(RunCell.id).where(RunCell.run_id == run_id, RunCell.name == name)
    ).first()
    if found is None:
        raise missing(f"cell of run {run_id}", name)
    return found


def _read(
    session: Session,
    run_id: UUID,
    asked: TrialFilters,
    cell: int | None,
    after: int,
    limit: int,
) -> Sequence[_Row]:
    query = (
        _joined()
        .where(col(Trial.run_id) == run_id, col(Trial.id) > after)
        .order_by(col(Trial.id))
        .limit(limit)
    )
    if cell is not None:
        query = query.where(col(Trial.run_cell_id) == cell)
    if asked.outcome is not None:
        query = query.where(col(Trial.outcome) == asked.outcome)
    return session.exec(query).all()


def _fields(trial: Trial, cell_name: str | None, _: Cell, worker: str | None) -> dict[str, Any]:
    """The fields of TrialOut."""
    who = None
    if trial.worker_id is not None and worker is not None:
        who = WorkerName(id=trial.worker_id, name=worker)
    return {
        **taken(trial, TrialOut, but=("run", "cell", "worker", "log")),
        "run": trial.run_id,
        "cell": cell_name,
        "worker": who,
        "log": f"{API}/trials/{trial.id}/log",
    }


def _csv(
    database: Database, run_id: UUID, asked: TrialFilters, cell: int | None, after: int
) -> Iterator[list[Any]]:
    """Row by row, read a number at a time, each in a short transaction of its own."""
    left = asked.limit
    while left is None or left > 0:
        size = ROWS_AT_ONCE if left is None else min(left, ROWS_AT_ONCE)
        with database.session() as session:
            rows = _read(session, run_id, asked, cell, after, size)
        yield from (_csv_row(*row) for row in rows)
        if len(rows) < size:
            return
        left = None if left is None else left - size
        after = rows[-1][0].id or 0


def _csv_row(trial: Trial, name: str | None, cell: Cell, worker: str | None) -> list[Any]:
    return [
        trial.id, trial.run_id, name, *cell_fields(cell).values(), trial.index, trial.outcome,
        trial.signature, trial.reason, trial.seconds, trial.device, trial.recipe,
        trial.background_updates, " ".join(trial.digests), " ".join(trial.handlers or []), worker,
        trial.finished_at, trial.foreign_nodes,
    ]  # fmt: skip
