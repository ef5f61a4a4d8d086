"""The trend of one cell along a branch: what each build counted, and where the rate changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, Field

from runner.statistics.counts import Counts
from runner.statistics.verdict import judge_cell
from service.api.access import reader
from service.api.commits import PlacedCommit
from service.api.counted import (
    CELL_COLUMNS,
    COUNT_COLUMNS,
    CellOut,
    CountedOut,
    SwallowOut,
    cell_fields,
)
from service.api.documentation import API, errors
from service.api.doubts import doubts as doubts_of
from service.api.errors import missing
from service.api.export import FormatParameter, csv_response, wants_csv
from service.api.parameters import CleanBelow, Device, Filters, Ref, RowId, Subject
from service.reading import trend
from service.reading.changes import Of
from service.reading.doubted import Doubts
from service.reading.rate import OUTCOMES, Rate, Watch
from service.reading.trend import TrendChange, TrendCommit, TrendPage, TrendPoint
from service.tables import Cell

router = APIRouter(prefix=API, tags=["commits"], dependencies=[Depends(reader)])


class TrendPointOut(CountedOut):
    """What a build counted, at the oldest commit that has it."""

    commit: PlacedCommit
    environment: int = Field(description="Its id: rates of two environments are never compared.")
    device_name: str
    details: str = Field(examples=["driver 580.159, JAX 0.11.2, toolchain cu13-jax011, harness 2"])
    changed: str = Field(description="What is other than at the measured commit before.")
    shared_by: int = Field(description="Newer commits that have the same build.")
    measurement: int


class TrialCounts(BaseModel):
    """k failures in n trials."""

    k: int
    n: int
    interval: tuple[float, float]


class TrendChangeOut(BaseModel):
    """A change of the rate."""

    commit: PlacedCommit = Field(description="The likeliest first commit with the new rate.")
    environment: int
    direction: str = Field(examples=["rise"], description="`rise` or `fall`.")
    oldest: int = Field(description="Place of the oldest commit that may have brought it, 95 %.")
    newest: int = Field(description="Place of the newest one.")
    before: TrialCounts
    after: TrialCounts
    p: float = Field(
        description="Chance, at most, that a branch without a change shows one like it anywhere."
    )


class TrendOut(BaseModel):
    """One cell along a branch, oldest commit first."""

    subject: str
    branch: str
    queue: str
    emulated: bool = Field(description="True where no GPU took part.")
    cell: CellOut
    rate: Of = Field(description="Which of its rates the changes are of.")
    points: list[TrendPointOut]
    changes: list[TrendChangeOut]
    older: int | None = Field(description="`before` of the page with older points, null without.")


class TrendFilters(Filters):
    """Which cell, where."""

    cell: RowId = Field(description="The id of a cell, as the pages' addresses have it.")
    subject: Subject
    branch: Ref | None = None
    queue: Device | None = None
    environment: RowId | None = None
    clean_below: CleanBelow = 0.05
    before: RowId | None = Field(default=None, description="Only commits before this place.")
    rate: Of = Field(
        default=Of.FAILURE,
        description="Whose changes; `swallow`: of trials with foreign work, of watched ones.",
    )
    format: FormatParameter = None


CSV_COLUMNS = (
    "position", "sha", "date", "title", "environment", "device_name", "details", "changed",
    "shared_by", "measurement", *CELL_COLUMNS, *COUNT_COLUMNS,
)  # fmt: skip


@router.get(
    "/trend",
    operation_id="getTrend",
    summary="One cell's rate along a branch",
    response_model=TrendOut,
    responses={
        **errors(404),
        200: {
            "content": {
                "text/csv": {"schema": {"type": "string"}, "example": ",".join(CSV_COLUMNS)}
            }
        },
    },
)
def get_trend(request: Request, response: Response, asked: Annotated[TrendFilters, Query()]) -> Any:
    """A build's trials count once, at its oldest commit; environments are never mixed."""
    wanted = trend.TrendFilter(
        cell=asked.cell,
        subject=asked.subject,
        branch=asked.branch or "",
        queue=asked.queue or "",
        environment=asked.environment,
        clean_below=asked.clean_below,
        before=asked.before,
        of=asked.rate,
    )
    with request.app.state.database.session() as session:
        doubts = doubts_of(request, session)
        found = trend.read(session, wanted, doubts=doubts)
        if found is None:
            raise missing("cell", asked.cell)
        cell = session.get_one(Cell, asked.cell)
        if found.choices.notes:
            raise missing("such trend", "; ".join(found.choices.notes))
    if wants_csv(request, asked.format):
        return csv_response("trend", CSV_COLUMNS, _lines(found, cell, doubts))
    response.headers["Vary"] = "Accept"
    return TrendOut(
        subject=found.chosen.subject,
        branch=found.chosen.branch,
        queue=found.chosen.queue,
        emulated=found.emulated,
        cell=CellOut(**cell_fields(cell)),
        rate=found.of,
        points=[_point(point, asked.clean_below, doubts) for point in found.points],
        changes=[_change(change) for change in found.changes],
        older=found.older,
    )


def _commit(commit: TrendCommit) -> PlacedCommit:
    return PlacedCommit(
        sha=commit.sha,
        ref="",
        title=commit.title,
        author=commit.author,
        date=commit.date,
        position=commit.position,
    )


def _point(point: TrendPoint, clean_below: float, doubts: Doubts) -> TrendPointOut:
    rate = point.rate
    counts = {str(outcome): 0 for outcome in OUTCOMES} | dict(rate.counts)
    return TrendPointOut(
        commit=_commit(point.commit),
        environment=point.environment.id,
        device_name=point.environment.device,
        details=point.environment.details,
        changed=point.changed,
        shared_by=point.shared,
        measurement=point.measurement,
        counts=counts,
        k=rate.k,
        n=rate.n,
        rate=rate.rate,
        interval=(rate.low, rate.high),
        verdict=judge_cell(
            Counts(rate.k, rate.n), None, clean_below, doubts.get(point.measurement)
        ).kind,
        verdict_text=rate.text,
        trials_needed=rate.needed,
        swallow=SwallowOut.of(_watch(rate), clean_below, adaptive=False),
    )


def _watch(rate: Rate) -> Watch:
    found = rate.swallow
    return Watch(found.n, found.k, found.passes) if found else Watch()


def _change(change: TrendChange) -> TrendChangeOut:
    found = change.change
    return TrendChangeOut(
        commit=_commit(change.commit),
        environment=found.environment,
        direction="rise" if found.rises else "fall",
        oldest=found.low,
        newest=found.high,
        before=_counts(found.before),
        after=_counts(found.after),
        p=found.p,
    )


def _counts(counts: Counts) -> TrialCounts:
    return TrialCounts(k=counts.k, n=counts.n, interval=counts.interval)


def _lines(found: TrendPage, cell: Cell, doubts: Doubts) -> Iterator[list[Any]]:
    for point in found.points:
        out = _point(point, found.asked.clean_below, doubts)
        yield [
            out.commit.position, out.commit.sha, out.commit.date, out.commit.title,
            out.environment, out.device_name, out.details, out.changed, out.shared_by,
            out.measurement, *cell_fields(cell).values(), *out.row(),
        ]  # fmt: skip
