"""Ordering a run: its row, its cells, and the job that begins it, in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import insert, text
from sqlmodel import Session, SQLModel

from runner import matrix as matrices
from runner import result
from runner.matrix import Matrix
from runner.run import BuildId
from service import rows
from service.events import publish
from service.queue import git_queue, wake, wake_new
from service.tables import OPEN_STATES, PRIORITIES, Origin, Run, RunState
from service.tables.columns import now


@dataclass(frozen=True)
class RunRequest:
    """What is asked for.

    ref: a branch, tag, commit or `pull/N` that is still to be resolved; or commit, where it is
    known. version: a release instead. queue: what its trials need, such as `sm90` or `emulated`.
    trusted: False for a fork's code. awaiting_approval: it is stored, and nothing happens yet.
    sequential: cells stop as soon as they are decided. facts: kept with the run, such as the
    `repository` that its commit comes from. id: the run's, a random one by default.
    bisection: whose probe it is.
    """

    subject: str
    matrix: Matrix
    queue: str
    ref: str = ""
    version: str = ""
    commit: result.Commit | None = None
    pull: int | None = None
    toolchain: str = ""
    origin: Origin = Origin.MANUAL
    requested_by: str = ""
    trusted: bool = True
    awaiting_approval: bool = False
    sequential: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
    bisection: UUID | None = None
    id: UUID | None = None


def submit(session: Session, request: RunRequest) -> Run:
    """Store a run and wake who prepares it, in the session's transaction."""
    (run,) = submit_each(session, request, [request.queue])
    return session.get_one(Run, run)


def submit_each(session: Session, request: RunRequest, queues: Sequence[str]) -> list[UUID]:
    """Store such a run for each kind of device, and wake who prepares them; their ids.

    In few statements: whoever delivers to the webhook waits for them.
    """
    if not queues:
        return []
    commit = request.commit
    commit_id = rows.commit_id(session, request.subject, commit) if commit else None
    plan = _plan(request.matrix)
    runs = [_values(request, queue, commit_id, plan) for queue in queues]
    cells = {
        "runs": [run["id"] for run in runs],
        "cells": rows.cell_ids(session, request.matrix.cells),
        "names": plan.names,
        "builds": plan.builds,
        "wanted": plan.wanted,
    }
    connection = session.connection()
    connection.execute(_RUNS, runs)
    connection.execute(_CELLS, cells)
    for run in runs:
        if run["state"] is RunState.QUEUED:
            wake_new(session, **_preparing(request.subject, run["id"], run["priority"]))
        publish(session, "run", run=run["id"], state=run["state"])
    return [run["id"] for run in runs]


_RUNS = insert(SQLModel.metadata.tables["runs"])
_CELLS = text("""
    INSERT INTO run_cells
        (run_id, position, name, cell_id, build, wanted, recorded, decided, signature)
    SELECT run_id, position - 1, name, cell_id, build, wanted, 0, '', ''
    FROM unnest(
        CAST(:names AS text[]), CAST(:cells AS integer[]), CAST(:builds AS text[]),
        CAST(:wanted AS integer[])
    ) WITH ORDINALITY AS cell(name, cell_id, build, wanted, position),
    unnest(CAST(:runs AS uuid[])) AS run_id
""")


@dataclass(frozen=True)
class _Plan:
    """What every run of a matrix holds: its data, and by position what is asked of each cell."""

    data: dict[str, Any]
    names: list[str]
    builds: list[str]
    wanted: list[int]


@lru_cache(maxsize=64)
def _plan(matrix: Matrix) -> _Plan:
    return _Plan(
        data=matrices.as_data(matrix),
        names=[cell.name for cell in matrix.cells],
        builds=[str(BuildId.of(cell)) for cell in matrix.cells],
        wanted=[cell.trials for cell in matrix.cells],
    )


def _values(request: RunRequest, queue: str, commit_id: int | None, plan: _Plan) -> dict[str, Any]:
    """The columns of a run; the rest is as it is by default."""
    waits = request.awaiting_approval
    return {
        "id": request.id or uuid4(),
        "subject": request.subject,
        "commit_id": commit_id,
        "ref": request.ref or request.version or (request.commit.ref if request.commit else ""),
        "pull": request.pull,
        "head_sha": request.commit.sha if request.commit else "",
        "matrix_name": request.matrix.name,
        "matrix": plan.data,
        "clean_below": request.matrix.clean_below,
        "queue": queue,
        "toolchain": request.toolchain,
        "origin": request.origin,
        "priority": PRIORITIES[request.origin],
        "state": RunState.AWAITING_APPROVAL if waits else RunState.QUEUED,
        "requested_by": request.requested_by,
        "trusted": request.trusted,
        "sequential": request.sequential,
        "adaptive": request.sequential or request.bisection is not None,
        "bisection_id": request.bisection,
        "notes": [],
        "facts": {**request.facts, **({"version": request.version} if request.version else {})},
    }


_LOCK = {"key_share": True}  # who only refers to a run, as each of its trials does, need not wait


def locked(session: Session, run: UUID) -> Run | None:
    """A run's row as it is now, for this transaction alone; None where it is not there.

    It is read anew even if the session holds it: what it held may be older than the lock.
    """
    return session.get(Run, run, populate_existing=True, with_for_update=_LOCK)


def begin(session: Session, run: Run, at: datetime | None = None) -> None:
    """Wake who resolves the run's commit and orders its builds."""
    wake(session, **_preparing(run.subject, run.id, run.priority), at=at)


def _preparing(subject: str, run: UUID, priority: int) -> dict[str, Any]:
    return {
        "task": "prepare",
        "queue": git_queue(subject),
        "lock": f"prepare:{run}",
        "priority": priority,
        "run": str(run),
    }


def approve(session: Session, run: Run, by: str) -> bool:
    """Let a run that awaits approval begin; False where it did not, or was cancelled meanwhile."""
    session.flush()
    session.refresh(run, with_for_update=_LOCK)
    if run.state != RunState.AWAITING_APPROVAL:
        return False
    run.state, run.reason = RunState.QUEUED, f"approved by {by}"
    session.add(run)
    session.flush()
    begin(session, run)
    publish(session, "run", run=run.id, state=run.state)
    return True


def cancel(session: Session, run_id: UUID, reason: str) -> bool:
    """End a run; workers see it at their next look. False where it had ended, or is not there.

    What its trials showed so far stays.
    """
    run = locked(session, run_id)
    if run is None or run.state not in (*OPEN_STATES, RunState.AWAITING_APPROVAL):
        return False
    run.state, run.reason, run.finished_at = RunState.CANCELLED, reason, now()
    session.add(run)
    publish(session, "run", run=run.id, state=run.state)
    return True
