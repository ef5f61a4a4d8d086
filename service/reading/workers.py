"""Workers, what they do now and whether they are believed, and what waits for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Row, func, text
from sqlalchemy import select as columns
from sqlmodel import Session, col, select

from runner.controls import Control
from runner.statistics.control import ControlVerdict, judge_control
from runner.statistics.counts import Counts
from service.reading.environments import EMULATED
from service.tables import (
    Cell,
    Claim,
    ClaimCell,
    ClaimState,
    Measurement,
    Run,
    Worker,
    WorkerState,
)
from service.tables.columns import now

GONE = timedelta(days=7)
"""How long a worker that has stopped, or was lost, stays in the list."""
CONTROLLED = timedelta(days=1)
"""How far back a worker's own trials are looked at: a long good past hides a rate that fell."""
KNOWN_AFTER = 20
"""Others' trials after which a cell may be known."""
KNOWN_BAD = 0.9
"""Share of others' trials that fail in a cell that is known to be bad."""
INFRA_SHARE = 0.05
"""Share of a worker's trials that may fail for the host's or device's reasons, unflagged."""
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
class Controls:
    """What a worker's own trials of the last day say of it. See `controls`.

    infra: trials that the host or device failed, of `trials`.
    """

    verdict: ControlVerdict
    known_bad: Counts
    known_good: Counts
    infra: int
    trials: int


@dataclass(frozen=True)
class WorkerLine:
    """One worker. late: it has not been heard of for longer than it should.

    controls: None for one that ran no trial in the last day. flags: what is odd about it, each a
    few words.
    """

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
    controls: Controls | None
    flags: tuple[str, ...]


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


def controls(session: Session, _: None = None) -> Mapping[UUID, Controls]:
    """By worker, what its trials of the last day say of it.

    Its control cells are those of its runs (see `service.controls`), and cells that are known by
    others' trials. Known-bad are those that nearly always fail in everybody's other trials: a
    worker on which they pass hides races. Known-good ones have no background thread, nothing to
    race with, and never failed in others' trials. These need no trials of their own.
    """
    own: dict[UUID, list[Row[*tuple[Any, ...]]]] = {}
    for row in session.connection().execute(_OWN, {"since": now() - CONTROLLED}).all():
        own.setdefault(row.worker_id, []).append(row)
    measured = {row.measurement_id for rows in own.values() for row in rows}
    totals = {
        measurement.id: (measurement, cell)
        for measurement, cell in session.exec(
            select(Measurement, Cell)
            .join(Cell, col(Cell.id) == col(Measurement.cell_id))
            .where(col(Measurement.id).in_(measured))
        )
    }
    return {worker: _controls(rows, totals) for worker, rows in own.items()}


_OWN = text(
    """
    SELECT c.worker_id, t.measurement_id, t.control,
           count(*) FILTER (WHERE t.outcome NOT IN (
               'pass', 'unsupported', 'infra_error', 'build_error')) AS k,
           count(*) FILTER (WHERE t.outcome NOT IN (
               'unsupported', 'infra_error', 'build_error')) AS n,
           count(*) FILTER (WHERE t.outcome = 'infra_error') AS infra,
           count(*) AS trials
    FROM claims c
    JOIN trials t ON t.claim_id = c.id
    WHERE c.worker_id IS NOT NULL AND c.heartbeat_at > :since
    GROUP BY c.worker_id, t.measurement_id, t.control
    """
)


def _controls(
    rows: Iterable[Row[*tuple[Any, ...]]], totals: Mapping[int | None, tuple[Measurement, Cell]]
) -> Controls:
    bad, good, infra, trials = Counts(), Counts(), 0, 0
    for row in rows:
        infra, trials = infra + row.infra, trials + row.trials
        if row.control:
            bad += Counts(row.k, row.n) if row.control == Control.KNOWN_BAD else Counts()
            good += Counts(row.k, row.n) if row.control == Control.KNOWN_GOOD else Counts()
            continue
        measurement, cell = totals[row.measurement_id]
        others = measurement.n - row.n
        if others < KNOWN_AFTER:
            continue
        failed = measurement.k - row.k
        if failed >= KNOWN_BAD * others:
            bad += Counts(row.k, row.n)
        elif not failed and not cell.background:
            good += Counts(row.k, row.n)
    return Controls(judge_control(bad, good), bad, good, infra, trials)


def read(
    session: Session,
    lost_after_s: float,
    version: str = "",
    controlled: Mapping[UUID, Controls] | None = None,
) -> WorkersPage:
    """All that is at work. lost_after_s: silence after which a worker counts as late. version: of
    this service. controlled: see `controls`."""
    workers = session.exec(
        select(Worker)
        .where(
            col(Worker.state).in_((WorkerState.LIVE, WorkerState.DRAINING))
            | (col(Worker.heartbeat_at) > now() - GONE)
        )
        .order_by(col(Worker.name), col(Worker.started_at).desc())
    ).all()
    held = _held(session)
    known = controlled or {}
    lines = [
        _worker(worker, held.get(worker.id, ()), lost_after_s, known.get(worker.id), version)
        for worker in workers
    ]
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


def _worker(
    worker: Worker,
    held: tuple[HeldRun, ...],
    lost_after_s: float,
    controlled: Controls | None,
    version: str,
) -> WorkerLine:
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
        controls=controlled,
        flags=tuple(_flags(worker, controlled, version)),
    )


def _flags(worker: Worker, controlled: Controls | None, version: str) -> Iterator[str]:
    if version and worker.version not in ("", version) and worker.state == WorkerState.LIVE:
        yield f"runs Racewatch {worker.version}, the service {version}"
    if controlled is not None and controlled.verdict.hides:
        yield "its passes prove nothing: known-bad cells pass on it"
    if controlled is not None and controlled.verdict.fails_alone:
        yield "its failures prove nothing: known-good cells fail on it"
    if controlled is not None and controlled.infra > INFRA_SHARE * controlled.trials:
        yield f"{controlled.infra} of its {controlled.trials} last trials were infra errors"


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
