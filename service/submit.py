"""Ordering a run: its row, its cells, and the job that begins it, in one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from sqlmodel import Session, col, select

from runner import matrix as matrices
from runner import result
from runner.matrix import Matrix
from runner.run import BuildId
from service import rows
from service.events import publish
from service.queue import build_queue, wake
from service.tables import OPEN_STATES, PRIORITIES, Origin, Run, RunCell, RunState
from service.tables.columns import now


@dataclass(frozen=True)
class RunRequest:
    """What is asked for.

    ref: a branch, tag, commit or `pull/N` that is still to be resolved; or commit, where it is
    known. version: a release instead. queue: what its trials need, such as `sm90` or `emulated`.
    trusted: False for a fork's code. awaiting_approval: it is stored, and nothing happens yet.
    sequential: cells stop as soon as they are decided. facts: kept with the run, such as the
    `repository` that its commit comes from. id: the run's, a random one by default.
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
    id: UUID | None = None


def submit(session: Session, request: RunRequest) -> Run:
    """Store a run and wake who prepares it, in the session's transaction."""
    commit = request.commit and rows.commit_row(session, request.subject, request.commit)
    state = RunState.AWAITING_APPROVAL if request.awaiting_approval else RunState.QUEUED
    run = Run(
        id=request.id or uuid4(),
        subject=request.subject,
        commit_id=commit.id if commit else None,
        ref=request.ref or request.version or (request.commit.ref if request.commit else ""),
        pull=request.pull,
        head_sha=request.commit.sha if request.commit else "",
        matrix_name=request.matrix.name,
        matrix=matrices.as_data(request.matrix),
        clean_below=request.matrix.clean_below,
        queue=request.queue,
        toolchain=request.toolchain,
        origin=request.origin,
        priority=PRIORITIES[request.origin],
        state=state,
        requested_by=request.requested_by,
        trusted=request.trusted,
        sequential=request.sequential,
        adaptive=request.sequential,
        facts={**request.facts, **({"version": request.version} if request.version else {})},
    )
    session.add(run)
    session.flush()
    for position, cell in enumerate(request.matrix.cells):
        session.add(
            RunCell(
                run_id=run.id,
                position=position,
                name=cell.name,
                cell_id=_id(rows.cell_row(session, cell)),
                build=str(BuildId.of(cell)),
                wanted=cell.trials,
            )
        )
    session.flush()
    if state is RunState.QUEUED:
        begin(session, run)
    publish(session, "run", run=run.id, state=run.state)
    return run


def begin(session: Session, run: Run) -> None:
    """Wake who resolves the run's commit and orders its builds."""
    wake(
        session, "prepare", build_queue(run.subject),
        lock=f"prepare:{run.id}", priority=run.priority, run=str(run.id),
    )  # fmt: skip


def approve(session: Session, run: Run, by: str) -> bool:
    """Let a run that awaits approval begin; False where it did not."""
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
    run = session.exec(select(Run).where(Run.id == run_id).with_for_update()).one_or_none()
    if run is None or run.state not in (*OPEN_STATES, RunState.AWAITING_APPROVAL):
        return False
    run.state, run.reason, run.finished_at = RunState.CANCELLED, reason, now()
    session.add(run)
    publish(session, "run", run=run.id, state=run.state)
    return True


def cancel_older(session: Session, subject: str, pull: int, keep_sha: str, reason: str) -> int:
    """End the open runs of a pull request's other heads; how many they were."""
    older = session.exec(
        select(Run.id).where(
            Run.subject == subject,
            Run.pull == pull,
            Run.head_sha != keep_sha,
            col(Run.state).in_((*OPEN_STATES, RunState.AWAITING_APPROVAL)),
        )
    ).all()
    return sum(cancel(session, run, reason) for run in older)


def _id(row: object) -> int:
    identity: int | None = getattr(row, "id", None)
    assert identity is not None, "the row was flushed"
    return identity
