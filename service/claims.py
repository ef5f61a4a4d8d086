"""Claims: a worker's hold on some trials of a run, and the only way by which trials get stored."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from sqlalchemy import func
from sqlmodel import Session, col, select

from runner import matrix as matrices
from runner import result
from runner.matrix import Matrix
from runner.outcome import FAILURES, Outcome
from runner.variants.names import Variant
from service import builds, rows
from service.events import publish
from service.queue import trial_queue
from service.recording import record_trial
from service.tables import (
    Build,
    Cell,
    Claim,
    ClaimCell,
    ClaimState,
    Commit,
    Environment,
    Measurement,
    Run,
    RunCell,
    RunState,
    Worker,
    WorkerState,
)
from service.tables.columns import now

COUNTED = frozenset({*FAILURES, Outcome.PASS, Outcome.UNSUPPORTED})
"""Outcomes that settle a trial which was wanted; an infrastructure error settles nothing."""
FIRST_BATCH = 8
"""Trials for each that runs at a time, while it is not known how long one takes."""


@dataclass(frozen=True)
class Batch:
    """A claim with all that it takes to carry it out.

    keys: of the builds, by name. base: a fixed commit's base, whose outputs are compared.
    """

    claim: UUID
    run: UUID
    subject: str
    commit: dict[str, Any]
    matrix: Matrix
    keys: dict[str, str]
    base: dict[str, Any] | None
    trusted: bool
    adaptive: bool
    cells: dict[str, int] = field(default_factory=dict)


class ClaimLost(Exception):
    """The claim is no longer live: its run was cancelled, or others have taken its trials over."""


@dataclass(frozen=True)
class Remaining:
    """Trials of a run's cell that are still to be run. unclaimed: those that nobody holds."""

    cell: RunCell
    trials: int
    unclaimed: int


def remaining(session: Session, run: Run) -> list[Remaining]:
    """What a run still lacks, cell by cell, in the matrix's order; nothing for settled cells."""
    held: dict[int, int] = dict(
        session.exec(
            select(
                ClaimCell.run_cell_id,
                func.sum(func.greatest(ClaimCell.trials - ClaimCell.recorded, 0)),
            )
            .join(Claim, col(Claim.id) == col(ClaimCell.claim_id))
            .where(Claim.run_id == run.id, Claim.state == ClaimState.LIVE)
            .group_by(col(ClaimCell.run_cell_id))
        ).all()
    )
    rows_of = session.exec(
        select(RunCell, Measurement)
        .join(Measurement, col(Measurement.id) == col(RunCell.measurement_id), isouter=True)
        .where(RunCell.run_id == run.id, RunCell.decided == "", col(RunCell.outcome).is_(None))
        .order_by(col(RunCell.position))
    )
    found = []
    for cell, measurement in rows_of:
        settled = measurement.n + measurement.unsupported if measurement else 0
        missing = max(0, cell.wanted - settled)
        if missing:
            assert cell.id is not None
            found.append(Remaining(cell, missing, max(0, missing - held.get(cell.id, 0))))
    return found


def bind(session: Session, run: Run, environment: Environment) -> None:
    """Give a run its environment, and each of its cells the measurement that counts its trials."""
    run.environment_id = environment.id
    session.add(run)
    assert run.commit_id is not None
    made = builds.made(session, builds.of_commit(session, run, run.commit_id))
    for cell in session.exec(
        select(RunCell).where(RunCell.run_id == run.id, col(RunCell.outcome).is_(None))
    ):
        measurement = rows.measurement_row(
            session,
            made[cell.build],
            session.get_one(Cell, cell.cell_id),
            environment,
            run.adaptive,
        )
        cell.measurement_id = measurement.id
        session.add(cell)
    session.flush()


def live_workers(session: Session, queue: str) -> list[Worker]:
    """Workers that take trials of that queue now."""
    found = session.exec(select(Worker).where(Worker.state == WorkerState.LIVE))
    return [worker for worker in found if trial_queue(queue) in worker.queues]


def take(session: Session, run_id: UUID, worker: Worker, batch_s: float) -> Batch | None:
    """Claim a share of a run's trials for a worker; None where there is nothing for it to do.

    As much as takes about batch_s seconds, and no more than its share among the live workers.
    """
    run = session.exec(select(Run).where(Run.id == run_id).with_for_update()).one_or_none()
    if run is None or run.state != RunState.RUNNING:
        return None
    environment = session.get_one(Environment, worker.environment_id)
    workers = live_workers(session, run.queue)
    if run.environment_id != environment.id:
        bound = {w.environment_id for w in workers if w.id != worker.id}
        if run.environment_id is not None and run.environment_id in bound:
            return None  # its own kind of worker is there and goes on with it
        bind(session, run, environment)
    left = remaining(session, run)
    unclaimed = sum(one.unclaimed for one in left)
    if not unclaimed:
        return None
    share = math.ceil(unclaimed / max(1, len(workers)))
    size = max(worker.parallel, min(share, _size(session, run, worker, batch_s)))
    chosen = _interleaved(left, size)
    claim = Claim(run_id=run.id, worker_id=worker.id)
    session.add(claim)
    session.flush()
    for cell, trials in chosen:
        assert cell.id is not None
        session.add(ClaimCell(claim_id=claim.id, run_cell_id=cell.id, trials=trials))
    publish(session, "run", run=run.id, state=run.state)
    return _batch(session, run, claim, chosen)


def _size(session: Session, run: Run, worker: Worker, batch_s: float) -> int:
    """Trials that fit into a batch, by how fast this run's claims went so far."""
    trials, seconds = _pace(session, run)
    if not trials or not seconds:
        return FIRST_BATCH * worker.parallel
    return max(1, int(batch_s * trials / seconds))


def _pace(session: Session, run: Run) -> tuple[int, float]:
    """Trials stored and seconds taken by this run's claims that came to their end."""
    recorded = (
        select(func.coalesce(func.sum(ClaimCell.recorded), 0))
        .where(ClaimCell.claim_id == Claim.id)
        .correlate(Claim)
        .scalar_subquery()
    )
    taken = func.extract("epoch", col(Claim.finished_at) - col(Claim.created_at))
    trials, seconds = session.exec(
        select(func.coalesce(func.sum(recorded), 0), func.coalesce(func.sum(taken), 0)).where(
            Claim.run_id == run.id, Claim.state == ClaimState.DONE
        )
    ).one()
    return int(trials), float(seconds)


def _interleaved(left: Iterable[Remaining], size: int) -> list[tuple[RunCell, int]]:
    """As many trials as asked for, one of each cell in turn, so that all cells move on alike."""
    open_cells = [one for one in left if one.unclaimed]
    chosen = dict.fromkeys(range(len(open_cells)), 0)
    total = 0
    while total < size:
        before = total
        for n, one in enumerate(open_cells):
            if total < size and chosen[n] < one.unclaimed:
                chosen[n] += 1
                total += 1
        if total == before:
            break
    return [(open_cells[n].cell, trials) for n, trials in chosen.items() if trials]


def _batch(session: Session, run: Run, claim: Claim, chosen: list[tuple[RunCell, int]]) -> Batch:
    assert run.commit_id is not None
    commit = session.get_one(Commit, run.commit_id)
    made = builds.made(session, builds.of_commit(session, run, run.commit_id))
    whole = matrices.from_data(run.matrix)
    trials = {cell.name: n for cell, n in chosen}
    matrix = replace(
        whole,
        cells=tuple(
            replace(cell, trials=trials[cell.name]) for cell in whole.cells if cell.name in trials
        ),
    )
    base = None
    if run.facts.get("needs_base") and run.base_commit_id is not None:
        base = builds.as_result(session.get_one(Commit, run.base_commit_id))
    return Batch(
        claim=claim.id,
        run=run.id,
        subject=run.subject,
        commit=builds.as_result(commit, run.ref if run.pull else commit.sha),
        matrix=matrix,
        keys={name: build.key for name, build in made.items()},
        base=base,
        trusted=run.trusted,
        adaptive=run.adaptive,
        cells={cell.name: cell.id for cell, _ in chosen if cell.id is not None},
    )


class Recorder:
    """Stores the events of one claim, each trial in a transaction of its own."""

    def __init__(self, batch: Batch, worker: UUID | None) -> None:
        self._batch = batch
        self._worker = worker
        self._environment: int | None = None
        self._measurements: dict[tuple[str, str], int] = {}

    def started(self, session: Session, event: result.RunStarted) -> None:
        """What the trials of this claim run in. Raises ClaimLost."""
        self._live(session)
        environment = rows.environment_row(session, event.device, event.toolchain, event.harness)
        self._environment = environment.id
        run = session.exec(select(Run).where(Run.id == self._batch.run).with_for_update()).one()
        if run.environment_id != environment.id:
            # A worker tells its kind before it knows which JAX its trials import.
            bind(session, run, environment)
            if self._worker is not None:
                worker = session.get_one(Worker, self._worker)
                worker.environment_id = environment.id
                session.add(worker)
        run.facts = {
            **run.facts,
            "parallel": event.parallel,
            "sandbox": event.sandbox,
            "trial_mode": event.trial_mode,
        }
        session.add(run)

    def trial(self, session: Session, event: result.TrialFinished, log: str) -> bool:
        """Store one trial; False where it is there already. Raises ClaimLost."""
        claim = self._live(session)
        cell_id = self._batch.cells.get(event.cell)
        measurement = self._measurement(session, event, cell_id)
        new = record_trial(
            session,
            claim_id=claim.id,
            run_id=self._batch.run,
            run_cell_id=cell_id,
            measurement_id=measurement,
            event=event,
            log=log,
            worker_id=self._worker,
        )
        if new and cell_id is not None and event.outcome in COUNTED:
            held = session.get_one(ClaimCell, (claim.id, cell_id))
            held.recorded += 1
            session.add(held)
        if new:
            publish(session, "trial", run=self._batch.run, cell=event.cell, outcome=event.outcome)
        return new

    def _live(self, session: Session) -> Claim:
        claim = session.exec(
            select(Claim).where(Claim.id == self._batch.claim).with_for_update()
        ).one()
        if claim.state != ClaimState.LIVE:
            raise ClaimLost(f"the claim is {claim.state}: {claim.reason}")
        return claim

    def _measurement(
        self, session: Session, event: result.TrialFinished, cell_id: int | None
    ) -> int:
        key = (event.cell, event.build)
        if key not in self._measurements:
            self._measurements[key] = self._found(session, event, cell_id)
        return self._measurements[key]

    def _found(self, session: Session, event: result.TrialFinished, cell_id: int | None) -> int:
        if cell_id is not None:
            found = session.get_one(RunCell, cell_id).measurement_id
            assert found is not None, "the run was bound before its trials began"
            return found
        build = session.exec(select(Build).where(Build.key == event.build)).one()
        program = event.cell.removeprefix(result.REFERENCE).removeprefix(result.BASE)
        # Of a program's recipes the one that ran: a reference's name does not tell it.
        asked = [c.recipe for c in self._batch.matrix.cells if str(c.program) == program]
        recipe = next((r for r in asked if r == event.recipe), matrices.Recipe.AUTO)
        added = matrices.Cell(
            name="",
            variant=Variant.parse("stock"),
            program=matrices.Program(program),
            background=False,
            hold_ms=0.0,
            recipe=recipe,
            trials=1,
        )
        row = rows.measurement_row(
            session,
            build,
            rows.cell_row(session, added, reference=True),
            session.get_one(Environment, self._environment),
            self._batch.adaptive,
        )
        assert row.id is not None
        return row.id


def alive(session: Session, claim_id: UUID) -> bool:
    """Say that a claim is still held; False where it is no longer live, or its run has ended."""
    claim = session.exec(select(Claim).where(Claim.id == claim_id).with_for_update()).one()
    if claim.state != ClaimState.LIVE:
        return False
    run = session.get_one(Run, claim.run_id)
    if run.state != RunState.RUNNING:
        return False
    claim.heartbeat_at = now()
    session.add(claim)
    return True


def release(
    session: Session, claim_id: UUID, state: ClaimState, reason: str = "", notes: Iterable[str] = ()
) -> None:
    """End a claim. One that settled no trial is a setback for its run, else a fresh start."""
    claim = session.exec(select(Claim).where(Claim.id == claim_id).with_for_update()).one()
    if claim.state != ClaimState.LIVE:
        return
    claim.state, claim.reason, claim.finished_at = state, reason, now()
    session.add(claim)
    run = session.exec(select(Run).where(Run.id == claim.run_id).with_for_update()).one()
    settled = session.exec(
        select(func.coalesce(func.sum(ClaimCell.recorded), 0)).where(ClaimCell.claim_id == claim_id)
    ).one()
    if settled:
        run.setbacks = 0
    elif state is not ClaimState.CANCELLED:
        run.setbacks += 1
        run.reason = reason
    new = [note for note in notes if note not in run.notes]
    if new:
        run.notes = [*run.notes, *new]
    session.add(run)
    session.flush()


__all__ = [
    "COUNTED",
    "Batch",
    "ClaimLost",
    "Recorder",
    "Remaining",
    "alive",
    "bind",
    "live_workers",
    "release",
    "remaining",
    "take",
]
