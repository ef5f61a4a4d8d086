"""Workers, and the jobs that wait for them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, Field
from sqlalchemy import func, text
from sqlmodel import Session, col, or_, select

from service.api.access import reader
from service.api.counted import EnvironmentOut
from service.api.cursor import Cursor, Page, at_moment, moment_of, next_of
from service.api.documentation import API, errors, paged
from service.api.parameters import Filters, Limit
from service.api.rows import taken
from service.metrics import QUEUES
from service.tables import OPEN_STATES, Environment, Run, RunState, Worker, WorkerState

router = APIRouter(prefix=API, tags=["workers"], dependencies=[Depends(reader)])


class WorkerOut(BaseModel):
    """One `racewatch worker` process."""

    id: UUID
    name: str
    host: str
    pid: int
    version: str
    state: WorkerState
    queues: list[str] = Field(examples=[["build-te", "trial-sm90"]])
    environment: EnvironmentOut | None = Field(
        description="What its trials run in; null for one that only builds, or is not sure yet."
    )
    parallel: int = Field(description="Trials at a time on one device.")
    doing: str
    started_at: datetime
    heartbeat_at: datetime


class WorkerFilters(Filters):
    """Which workers."""

    state: WorkerState | None = None
    limit: Limit = 50
    cursor: Cursor | None = None


class QueueOut(BaseModel):
    """One queue. oldest_waiting_s: of the job that is due and has waited longest."""

    queue: str = Field(examples=["trial-sm90"])
    waiting: int = Field(ge=0)
    running: int = Field(ge=0)
    oldest_waiting_s: float | None
    workers: int = Field(ge=0, description="Live workers that take its jobs.")


class QueuesOut(BaseModel):
    """All queues that have jobs or workers, and how many runs are open."""

    queues: list[QueueOut]
    runs: dict[str, int] = Field(
        description="Runs that have not ended, by state.", examples=[{"queued": 2, "running": 1}]
    )


@router.get(
    "/workers",
    operation_id="listWorkers",
    summary="Workers, the last started first",
    responses=paged(errors()),
)
def list_workers(
    request: Request, response: Response, asked: Annotated[WorkerFilters, Query()]
) -> Page[WorkerOut]:
    """Those that stopped or were lost too, unless a state is asked for."""
    query = (
        select(Worker, Environment)
        .join(Environment, col(Environment.id) == col(Worker.environment_id), isouter=True)
        .order_by(col(Worker.started_at).desc(), col(Worker.id))
        .limit(asked.limit + 1)
    )
    if asked.state is not None:
        query = query.where(col(Worker.state) == asked.state)
    if asked.cursor is not None:
        moment, identity = moment_of(asked.cursor)
        query = query.where(
            or_(
                col(Worker.started_at) < moment,
                (col(Worker.started_at) == moment) & (col(Worker.id) > identity),
            )
        )
    with request.app.state.database.session() as session:
        rows = session.exec(query).all()
    page = rows[: asked.limit]
    last = page[-1][0] if len(rows) > asked.limit else None
    rest = at_moment(last.started_at, last.id) if last else None
    return Page(
        items=[_worker(worker, environment) for worker, environment in page],
        next=next_of(request, response, rest),
    )


@router.get(
    "/queue",
    operation_id="getQueue",
    summary="Jobs that wait or run, by queue",
    responses=errors(),
)
def get_queue(request: Request) -> QueuesOut:
    """A job is a build or a batch of trials; rows of runs are the state, jobs only wake workers."""
    with request.app.state.database.session() as session:
        return QueuesOut(queues=_queues(session), runs=_open_runs(session))


def _worker(worker: Worker, environment: Environment | None) -> WorkerOut:
    return WorkerOut(
        **taken(worker, WorkerOut, but=("environment",)),
        environment=EnvironmentOut.of(environment) if environment else None,
    )


def _queues(session: Session) -> list[QueueOut]:
    found: dict[str, QueueOut] = {}

    def queue(name: str) -> QueueOut:
        empty = QueueOut(queue=name, waiting=0, running=0, oldest_waiting_s=None, workers=0)
        return found.setdefault(name, empty)

    for name, state, jobs, age in session.connection().execute(text(QUEUES)):
        one = queue(name)
        if state == "todo":
            one.waiting = jobs
            one.oldest_waiting_s = None if age is None else max(0.0, float(age))
        else:
            one.running = jobs
    for queues in session.exec(select(Worker.queues).where(Worker.state == WorkerState.LIVE)):
        for name in queues:
            queue(name).workers += 1
    return sorted(found.values(), key=lambda one: one.queue)


def _open_runs(session: Session) -> dict[str, int]:
    states = (RunState.AWAITING_APPROVAL, *OPEN_STATES)
    counted = session.exec(
        select(Run.state, func.count()).where(col(Run.state).in_(states)).group_by(col(Run.state))
    )
    found = dict(counted.all())
    return {str(state): found.get(state, 0) for state in states}
