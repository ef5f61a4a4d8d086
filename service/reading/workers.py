"""Workers and what they do now, and what waits for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import func, text
from sqlalchemy import select as columns
from sqlmodel import Session, col, select

from service.reading.environments import EMULATED
from service.tables import Claim, ClaimCell, ClaimState, Run, Worker, WorkerState
from service.tables.columns import now

GONE = timedelta(days=7)
"""How long a worker that has stopped, or was lost, stays in the list."""
JOBS = 50
"""Jobs that the page lists."""


@dataclass(frozen=True)
class HeldRun:
    """Trials of a run that a worker holds."""

    run: UUID
    subject: str
    matrix: str
    trials: int
    recorded: int


@dataclass(frozen=True)
class WorkerLine:
    """One worker. late: it has not been heard of for longer than it should."""

    id: UUID
    name: str
    host: str
    pid: int
    version: str
    queues: tuple[str, ...]
    device: str
    device_details: str
    emulated: bool
    parallel: int
    state: str
    doing: str
    started_at: datetime
    heartbeat_at: datetime
    late: bool
    held: tuple[HeldRun, ...]


@dataclass(frozen=True)
class QueueLine:
    """One queue. workers: live ones that take from it. failed: jobs that were given up.

    oldest: when the job that has waited longest was put in.
    """

    name: str
    waiting: int
    later: int
    doing: int
    failed: int
    oldest: datetime | None
    workers: int


@dataclass(frozen=True)
class JobLine:
    """A job that waits or is being done. run: what it is for, as far as its arguments tell."""

    id: int
    queue: str
    task: str
    state: str
    priority: int
    attempts: int
    scheduled_at: datetime | None
    since: datetime | None
    run: str
    arguments: str


@dataclass(frozen=True)
class WorkersPage:
    """All workers and queues. jobs: the first ones; more: there are others."""

    workers: tuple[WorkerLine, ...]
    queues: tuple[QueueLine, ...]
    jobs: tuple[JobLine, ...]
    more: bool
    now: datetime


def read(session: Session, lost_after_s: float) -> WorkersPage:
    """All that is at work. lost_after_s: silence after which a worker counts as late."""
    workers = session.exec(
        select(Worker)
        .where(
            col(Worker.state).in_((WorkerState.LIVE, WorkerState.DRAINING))
            | (col(Worker.heartbeat_at) > now() - GONE)
        )
        .order_by(col(Worker.name), col(Worker.started_at).desc())
    ).all()
    held = _held(session)
    lines = [_worker(worker, held.get(worker.id, ()), lost_after_s) for worker in workers]
    lines.sort(key=lambda line: (_ORDER.index(WorkerState(line.state)), line.name))
    jobs = _jobs(session)
    return WorkersPage(
        workers=tuple(lines),
        queues=_queues(session, lines),
        jobs=jobs[:JOBS],
        more=len(jobs) > JOBS,
        now=now(),
    )


_ORDER = (WorkerState.LIVE, WorkerState.DRAINING, WorkerState.LOST, WorkerState.STOPPED)


def _worker(worker: Worker, held: tuple[HeldRun, ...], lost_after_s: float) -> WorkerLine:
    device: Mapping[str, Any] = worker.device
    ids = device.get("ids") or ()
    details = [f"{len(ids)} devices"] if len(ids) > 1 else []
    details += [f"driver {device['driver']}"] if device.get("driver") else []
    details += [f"JAX {device['jax']}"] if device.get("jax") else []
    silent = (now() - worker.heartbeat_at).total_seconds()
    return WorkerLine(
        id=worker.id,
        name=worker.name,
        host=worker.host,
        pid=worker.pid,
        version=worker.version,
        queues=tuple(worker.queues),
        device=str(device.get("name", "")),
        device_details=", ".join(details),
        emulated=device.get("kind") == EMULATED,
        parallel=worker.parallel,
        state=worker.state,
        doing=worker.doing,
        started_at=worker.started_at,
        heartbeat_at=worker.heartbeat_at,
        late=worker.state == WorkerState.LIVE and silent > lost_after_s,
        held=held,
    )


def _held(session: Session) -> dict[UUID, tuple[HeldRun, ...]]:
    query = (
        columns(
            col(Claim.worker_id),
            col(Run.id),
            col(Run.subject),
            col(Run.matrix_name),
            func.sum(col(ClaimCell.trials)),
            func.sum(col(ClaimCell.recorded)),
        )
        .join(Run, col(Run.id) == col(Claim.run_id))
        .join(ClaimCell, col(ClaimCell.claim_id) == col(Claim.id))
        .where(col(Claim.state) == ClaimState.LIVE)
        .group_by(col(Claim.worker_id), col(Run.id), col(Run.subject), col(Run.matrix_name))
        .order_by(col(Run.id))
    )
    held: dict[UUID, tuple[HeldRun, ...]] = {}
    for worker, run, subject, matrix, trials, recorded in session.connection().execute(query):
        if worker is not None:
            held_run = HeldRun(run, subject, matrix, trials, recorded)
            held[worker] = (*held.get(worker, ()), held_run)
    return held


# Procrastinate's own tables, which no model describes.
_QUEUES = text(
    """
    SELECT j.queue_name,
           count(*) FILTER (WHERE j.status = 'todo'
                            AND coalesce(j.scheduled_at, now()) <= now()) AS waiting,
           count(*) FILTER (WHERE j.status = 'todo' AND j.scheduled_at > now()) AS later,
           count(*) FILTER (WHERE j.status = 'doing') AS doing,
           count(*) FILTER (WHERE j.status = 'failed') AS failed,
           min(e.at) FILTER (WHERE j.status = 'todo'
                             AND coalesce(j.scheduled_at, now()) <= now()) AS oldest
    FROM procrastinate_jobs j
    LEFT JOIN LATERAL (
        SELECT max(at) AS at FROM procrastinate_events
        WHERE job_id = j.id AND j.status = 'todo'
    ) e ON true
    WHERE j.status IN ('todo', 'doing', 'failed')
    GROUP BY j.queue_name
    ORDER BY j.queue_name
    """
)
_JOBS = text(
    """
    SELECT j.id, j.queue_name, j.task_name, j.status::text, j.priority, j.attempts,
           j.scheduled_at, e.at, j.args
    FROM procrastinate_jobs j
    LEFT JOIN LATERAL (
        SELECT max(at) AS at FROM procrastinate_events WHERE job_id = j.id
    ) e ON true
    WHERE j.status IN ('todo', 'doing')
    ORDER BY j.status DESC, j.priority DESC, j.id
    LIMIT :jobs
    """
)


def _queues(session: Session, workers: list[WorkerLine]) -> tuple[QueueLine, ...]:
    """Queues that hold something, or that a live worker takes from."""
    taking: dict[str, int] = {}
    for worker in workers:
        if worker.state == WorkerState.LIVE:
            for name in worker.queues:
                taking[name] = taking.get(name, 0) + 1
    found = {
        row.queue_name: QueueLine(
            name=row.queue_name,
            waiting=row.waiting,
            later=row.later,
            doing=row.doing,
            failed=row.failed,
            oldest=row.oldest,
            workers=taking.get(row.queue_name, 0),
        )
        for row in session.connection().execute(_QUEUES)
    }
    for name, workers_of in taking.items():
        found.setdefault(name, QueueLine(name, 0, 0, 0, 0, None, workers_of))
    return tuple(found[name] for name in sorted(found))


def _jobs(session: Session) -> tuple[JobLine, ...]:
    """What is being done, then what waits in the order in which it is taken; one more than JOBS."""
    rows = session.connection().execute(_JOBS, {"jobs": JOBS + 1})
    return tuple(
        JobLine(
            id=row.id,
            queue=row.queue_name,
            task=row.task_name,
            state="doing" if row.status == "doing" else "waiting",
            priority=row.priority,
            attempts=row.attempts,
            scheduled_at=row.scheduled_at,
            since=row.at,
            run=str(row.args.get("run", "")),
            arguments=", ".join(f"{name} {value}" for name, value in row.args.items()),
        )
        for row in rows
    )
