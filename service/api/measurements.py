"""Measurements: all trials of one build in one cell and environment, whatever runs stored them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, Field
from sqlmodel import Session

from runner.outcome import Outcome
from service.api.access import reader
from service.api.counted import CellOut, CountedOut, cell_fields, counted_fields
from service.api.documentation import API, errors
from service.api.doubts import doubts as doubts_of
from service.api.errors import missing
from service.api.export import FormatParameter, csv_response, wants_csv
from service.api.parameters import CleanBelow, Filters, RowId
from service.database import Database
from service.reading import trials
from service.reading.trials import MeasurementPage, TrialFilter, TrialLine
from service.tables import Cell, Measurement

router = APIRouter(prefix=API, tags=["trials"], dependencies=[Depends(reader)])


class MeasuredTrial(BaseModel):
    """One of its trials."""

    id: int
    run: UUID
    outcome: Outcome
    signature: str = Field(description="The error's stable part, empty for a pass.")
    seconds: float
    worker: str
    device: str
    finished_at: datetime


class MeasurementOut(CountedOut):
    """What a build counted in a cell and environment, and a page of the trials behind it."""

    id: int
    subject: str
    cell: CellOut
    environment: str = Field(examples=["NVIDIA H200, driver 580.159, JAX 0.11.2"])
    emulated: bool = Field(description="True where no GPU took part.")
    adaptive: bool = Field(description="How many there are depended on how earlier ones ended.")
    commits: list[str] = Field(description="Hashes that have the build, the oldest first.")
    trials: list[MeasuredTrial] = Field(description="The newest first.")
    older: int | None = Field(description="`before` of the page with older trials, null without.")


class MeasurementFilters(Filters):
    """Which of its trials."""

    outcome: Outcome | None = None
    clean_below: CleanBelow = 0.05
    before: RowId | None = Field(default=None, description="Only trials before this one.")
    format: FormatParameter = None


CSV_COLUMNS = tuple(MeasuredTrial.model_fields)


@router.get(
    "/measurements/{measurement_id}",
    operation_id="getMeasurement",
    summary="All trials of a build in a cell and environment",
    response_model=MeasurementOut,
    responses={
        **errors(404),
        200: {
            "content": {
                "text/csv": {"schema": {"type": "string"}, "example": ",".join(CSV_COLUMNS)}
            }
        },
    },
)
def get_measurement(
    request: Request,
    response: Response,
    measurement_id: RowId,
    asked: Annotated[MeasurementFilters, Query()],
) -> Any:
    """Its counts are all trials', whatever the filter; as CSV it is the whole list of them."""
    database: Database = request.app.state.database
    with database.session() as session:
        found = _read(session, measurement_id, asked, asked.before)
        if found is None:
            raise missing("measurement", measurement_id)
        measurement = session.get_one(Measurement, measurement_id)
        doubts = doubts_of(request, session)
        cell = session.get_one(Cell, measurement.cell_id)
    if wants_csv(request, asked.format):
        lines = _lines(database, measurement_id, asked)
        return csv_response(f"measurement-{measurement_id}", CSV_COLUMNS, lines)
    response.headers["Vary"] = "Accept"
    return MeasurementOut(
        **counted_fields(measurement, asked.clean_below, doubts=doubts),
        id=measurement_id,
        subject=found.subject,
        cell=CellOut(**cell_fields(cell)),
        environment=found.environment.full,
        emulated=found.environment.emulated,
        adaptive=found.adaptive,
        commits=[commit.sha for commit in found.commits],
        trials=[_trial(line) for line in found.trials],
        older=found.older,
    )


def _read(
    session: Session, measurement_id: int, asked: MeasurementFilters, before: int | None
) -> MeasurementPage | None:
    chosen = TrialFilter(str(asked.outcome or ""), before)
    return trials.read_measurement(session, measurement_id, chosen, asked.clean_below)


def _trial(line: TrialLine) -> MeasuredTrial:
    return MeasuredTrial(**{**asdict(line), "outcome": Outcome(line.outcome)})


def _lines(
    database: Database, measurement_id: int, asked: MeasurementFilters
) -> Iterator[list[Any]]:
    """Row by row, a page at a time, each in a short transaction of its own."""
    before = asked.before
    while True:
        with database.session() as session:
            found = _read(session, measurement_id, asked, before)
        if found is None:
            return
        yield from (list(_trial(line).model_dump().values()) for line in found.trials)
        before = found.older
        if before is None:
            return
