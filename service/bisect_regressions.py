"""Bisections that start by themselves: a cell of a watched branch turned to regressed.

Off unless a subject is configured so (`bisect = true`). The good end is the last commit of the
branch that was measured in the cell, the bad end the one that shows the higher rate.
"""

from __future__ import annotations

from uuid import UUID, uuid5

from sqlmodel import Session, col, select

from runner import matrix as matrices
from runner.statistics.kinds import Kind
from service import bisection, judged
from service.judged import JudgedCell
from service.settings import ServiceSettings
from service.tables import Bisection, Commit, Measurement, Origin, Run, RunCell, RunState

LOOKED_BACK = 50
"""Runs of the branch among which a cell's last measurement is looked for."""
_STARTED = UUID("5c0a4f4e-6a0f-5f0e-8e0e-0b6d1b7c2f1d")
"""Namespace of their ids: one for each cell and commit that shows a change."""


def start(session: Session, settings: ServiceSettings, run: Run) -> list[Bisection]:
    """Order what follows from a run that is complete, each bisection once; those that are new."""
    tracked = settings.subjects.get(run.subject)
    if tracked is None or not tracked.bisect or not run.matrix:
        return []
    if run.origin != Origin.PUSH or run.state != RunState.COMPLETE:
        return []
    ordered = []
    for cell, earlier in _regressed(session, run):
        identity = _identity(run, cell)
        if session.get(Bisection, identity) is not None:
            continue
        good, bad = session.get(Commit, earlier.commit_id), session.get(Commit, run.commit_id)
        assert good is not None
        assert bad is not None
        request = bisection.BisectionRequest(
            subject=run.subject,
            good=good.sha,
            bad=bad.sha,
            matrix=matrices.from_data(run.matrix),
            cell=cell.name,
            queue=run.queue,
            toolchain=run.toolchain,
            budget_s=tracked.bisect_hours * 3600,
            requested_by=f"{run.ref} regressed",
            cause=run.id,
            id=identity,
        )
        ordered.append(bisection.order(session, request))
    return ordered


def _identity(run: Run, cell: JudgedCell) -> UUID:
    return uuid5(_STARTED, f"{run.subject} {run.queue} {cell.cell_id} {run.commit_id}")


def _regressed(session: Session, run: Run) -> list[tuple[JudgedCell, Run]]:
    """Cells whose rate is shown to be higher than when they were last measured, and in which run
    that was."""
    wanted = _measured(session, run)
    found: list[tuple[JudgedCell, Run]] = []
    for earlier in _runs_before(session, run):
        there = wanted & _measured(session, earlier)
        against = judged.cells_against(session, run, earlier) if there else []
        worse = (c for c in against if c.ships and c.verdict.kind is Kind.REGRESSED)
        found.extend((cell, earlier) for cell in worse if cell.cell_id in there)
        # One that shares its build with this run's commit was measured too, and has not changed.
        wanted -= there
        if not wanted:
            break
    return found


def _measured(session: Session, run: Run) -> set[int]:
    """Cells that have trials in a run's environment."""
    rows = session.exec(
        select(RunCell.cell_id, Measurement)
        .join(Measurement, col(Measurement.id) == col(RunCell.measurement_id))
        .where(RunCell.run_id == run.id, Measurement.environment_id == run.environment_id)
    )
    return {cell for cell, measurement in rows if measurement.n}


def _runs_before(session: Session, run: Run) -> list[Run]:
    """Complete runs of the branch's earlier commits in this environment, the newest first."""
    found = session.exec(
        select(Run)
        .where(
            Run.subject == run.subject,
            Run.ref == run.ref,
            Run.queue == run.queue,
            Run.environment_id == run.environment_id,
            Run.origin == Origin.PUSH,
            Run.state == RunState.COMPLETE,
            Run.commit_id != run.commit_id,
            Run.created_at < run.created_at,
        )
        .order_by(col(Run.created_at).desc())
        .limit(LOOKED_BACK)
    )
    return list(found)
