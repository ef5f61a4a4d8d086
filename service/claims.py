"""Claims: a worker's hold on a run, and the only way by which trials get stored.

A claim holds some of the run's trials; one that holds none is for finding out the run's commit.
Locks are taken in one order: the claim, then its run, then what belongs to the run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import func
from sqlmodel import Session, col, select

from runner import controls, result
from runner import matrix as matrices
from runner.errors import InfrastructureError
from runner.matrix import Matrix
from runner.outcome import FAILURES, Outcome
from runner.variants.names import Variant
from service import builds, rows
from service import controls as control_cells
from service.database import clock
from service.events import publish
from service.queue import environment_queue, trial_queue
from service.recording import record_trial
from service.submit import locked
from service.tables import (
    OPEN_STATES,
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
    Trial,
    Worker,
    WorkerState,
)

COUNTED = frozenset({*FAILURES, Outcome.PASS, Outcome.UNSUPPORTED})
"""Outcomes that settle a trial which was wanted; an infrastructure error settles nothing."""
PROVEN_FOR = timedelta(minutes=15)
"""How long control trials vouch for a device in a run that goes on."""
FIRST_BATCH = 8
"""Trials for each that runs at a time, while it is not known how long one takes."""


@dataclass(frozen=True)
class Batch:
    """A claim with all that it takes to carry it out.

    keys: of the builds, by name. base: a fixed commit's base, whose outputs are compared. control:
    the commit of the control cells, where the worker is still to be proven in this run. without:
    devices of the worker that failed them in this run.
    """

    claim: UUID
    run: UUID
    subject: str
    commit: dict[str, Any]
    matrix: Matrix
    keys: dict[str, str]
    base: dict[str, Any] | None
    control: dict[str, Any] | None
    adaptive: bool
    cells: dict[str, int] = field(default_factory=dict)
    without: tuple[str, ...] = ()


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
    own = _settled_by(session, run) if run.bisection_id is not None else {}
    found = []
    for cell, measurement in rows_of:
        settled = measurement.n + measurement.unsupported if measurement else 0
        if run.bisection_id is not None:
            settled = own.get(cell.id, 0)
        missing = max(0, cell.wanted - settled)
        if missing:
            assert cell.id is not None
            found.append(Remaining(cell, missing, max(0, missing - held.get(cell.id, 0))))
    return found


def _settled_by(session: Session, run: Run) -> dict[int | None, int]:
    """Trials that the run's own claims settled, by its cells."""
    found = session.exec(
        select(ClaimCell.run_cell_id, func.sum(ClaimCell.recorded))
        .join(Claim, col(Claim.id) == col(ClaimCell.claim_id))
        .where(Claim.run_id == run.id)
        .group_by(col(ClaimCell.run_cell_id))
    )
    return {cell: int(count) for cell, count in found}


def live(session: Session, run: UUID) -> bool:
    """Whether somebody holds a claim of the run."""
    found = select(Claim.id).where(Claim.run_id == run, Claim.state == ClaimState.LIVE).limit(1)
    return session.exec(found).first() is not None


def bind(session: Session, run: Run, environment: Environment) -> None:
    """Give a run its environment, and each of its cells the measurement that counts its trials."""
    run.environment_id = environment.id
    session.add(run)
    made = builds.of_run(session, run)
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


def live_workers(session: Session, run: Run) -> list[Worker]:
    """Workers that take trials of such a run now, whatever they find on their hosts."""
    return taking(session, trial_queue(run.queue, run.trusted))


def bound_workers(session: Session, run: Run) -> list[Worker]:
    """Workers that go on with a run in the environment in which it began; none before that."""
    if run.environment_id is None:
        return []
    return taking(session, environment_queue(run.environment_id, run.trusted))


def taking(session: Session, queue: str) -> list[Worker]:
    """Live workers that take from a queue."""
    found = session.exec(select(Worker).where(Worker.state == WorkerState.LIVE))
    return [worker for worker in found if queue in worker.queues]


def hold(session: Session, run_id: UUID, worker: UUID | None) -> UUID | None:
    """Claim a run whose commit is to be found out; None where that is done, or somebody does it."""
    run = locked(session, run_id)
    if run is None or run.state != RunState.QUEUED or live(session, run.id):
        return None
    return _claim(session, run, worker).id


def _claim(session: Session, run: Run, worker: UUID | None) -> Claim:
    moment = clock(session)
    claim = Claim(run_id=run.id, worker_id=worker, created_at=moment, heartbeat_at=moment)
    session.add(claim)
    session.flush()
    return claim


def take(
    session: Session, run_id: UUID, worker: Worker, batch_s: float, contained: bool = False
) -> Batch | None:
    """Claim a share of a run's trials for a worker; None where there is nothing for it to do.

    As much as takes about batch_s seconds, and no more than its share among those who hold none.
    contained: the worker puts a fork's code into containers; others leave it alone. A run goes on
    where it began for as long as anyone there holds or takes trials of it.
    """
    run = locked(session, run_id)
    if run is None or run.state != RunState.RUNNING or not (run.trusted or contained):
        return None
    environment = session.get_one(Environment, worker.environment_id)
    if run.environment_id != environment.id:
        if run.environment_id is not None and (
            live(session, run.id) or bound_workers(session, run)
        ):
            return None
        bind(session, run, environment)
    left = remaining(session, run)
    unclaimed = sum(one.unclaimed for one in left)
    if not unclaimed:
        return None
    share = math.ceil(unclaimed / max(1, _free_workers(session, run)))
    size = max(worker.parallel, min(share, _size(session, run, worker, batch_s)))
    chosen = _interleaved(left, size)
    claim = _claim(session, run, worker.id)
    for cell, trials in chosen:
        assert cell.id is not None
        session.add(ClaimCell(claim_id=claim.id, run_cell_id=cell.id, trials=trials))
    if not run.setbacks:
        run.reason = ""  # what it waited for is here
        session.add(run)
    publish(session, "run", run=run.id, state=run.state)
    return _batch(session, run, claim, chosen)


def _free_workers(session: Session, run: Run) -> int:
    """How many workers may still take a share of a run: not those that hold one."""
    live = select(Claim.worker_id).where(Claim.run_id == run.id, Claim.state == ClaimState.LIVE)
    holding = set(session.exec(live))
    return sum(worker.id not in holding for worker in bound_workers(session, run))


def _size(session: Session, run: Run, worker: Worker, batch_s: float) -> int:
    """Trials that fit into a batch, by how fast this run's claims went so far."""
    trials, seconds = _pace(session, run)
    if not trials or not seconds:
        return FIRST_BATCH * worker.parallel
    return max(1, int(batch_s * trials / seconds))


def _pace(session: Session, run: Run) -> tuple[int, float]:
    """Trials stored and seconds taken by this run's claims that came to their end. Control and
    reference trials are of them: they take time as all others do."""
    recorded = (
        select(func.count(col(Trial.id)))
        .where(Trial.claim_id == Claim.id)
        .correlate(Claim)
        .scalar_subquery()
    )
    taken = func.extract("epoch", col(Claim.finished_at) - col(Claim.created_at))
    trials, seconds = session.exec(
        select(func.coalesce(func.sum(recorded), 0), func.coalesce(func.sum(taken), 0)).where(
            Claim.run_id == run.id, Claim.state == ClaimState.DONE, recorded > 0
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
    made = builds.of_run(session, run)
    whole = matrices.from_data(run.matrix)
    failed = control_cells.failed_devices(session, run.id, claim.worker_id)
    lacking = _control_trials(session, run, whole, claim.worker_id, failed)
    trials = {cell.name: n for cell, n in chosen}
    matrix = replace(
        whole,
        controls=lacking,
        cells=tuple(
            replace(cell, trials=trials[cell.name]) for cell in whole.cells if cell.name in trials
        ),
    )
    base = None
    if run.facts.get("needs_base") and run.base_commit_id is not None:
        base = builds.as_result(session.get_one(Commit, run.base_commit_id))
    control = None
    if lacking:
        control = builds.as_result(session.get_one(Commit, run.facts["control"]))
    return Batch(
        claim=claim.id,
        run=run.id,
        subject=run.subject,
        commit=builds.as_result(commit, run.ref if run.pull else commit.sha),
        matrix=matrix,
        keys={name: build.key for name, build in made.items()},
        base=base,
        control=control,
        adaptive=run.adaptive,
        cells={cell.name: cell.id for cell, _ in chosen if cell.id is not None},
        without=tuple(failed),
    )


def _control_trials(
    session: Session, run: Run, matrix: Matrix, worker: UUID | None, failed: Sequence[str]
) -> int:
    """Trials of each control cell that a worker's devices lack in a run: what was proven long ago
    is proven anew, and a device that failed its control cells gets no more trials at all."""
    if run.facts.get("control_build") is None:
        return 0
    seen = session.exec(
        select(Trial.device, func.count())
        .where(
            Trial.run_id == run.id,
            Trial.worker_id == worker,
            Trial.control == controls.Control.KNOWN_BAD,
            col(Trial.outcome).in_(COUNTED),
            Trial.finished_at > clock(session) - PROVEN_FOR,
        )
        .group_by(Trial.device)
    ).all()
    counts = [count for device, count in seen if device not in failed]
    if failed and not counts:
        return 0  # no other device has shown anything: that much is known
    return max(0, matrix.controls - min(counts, default=0))


class Recorder:
    """Stores the events of one claim, each trial in a transaction of its own."""

    def __init__(self, batch: Batch, worker: UUID | None) -> None:
        self._batch = batch
        self._worker = worker
        self._environment: int | None = None
        self._measurements: dict[tuple[str, str], int] = {}

    def started(self, session: Session, event: result.RunStarted) -> int:
        """What the trials of this claim run in: the id of that environment. Raises ClaimLost.

        Where nothing could be imported, as its first trials will tell, it is what the run has.
        """
        self._live(session)
        run = locked(session, self._batch.run)
        assert run is not None
        if event.device.jax or event.device.emulated or run.environment_id is None:
            environment = rows.environment_row(
                session, event.device, event.toolchain, event.harness
            )
            if run.environment_id != environment.id:
                # A worker tells its kind before it knows which JAX its trials import.
                bind(session, run, environment)
        assert run.environment_id is not None
        self._environment = run.environment_id
        run.facts = {
            **run.facts,
            "parallel": event.parallel,
            "sandbox": event.sandbox,
            "trial_mode": event.trial_mode,
        }
        session.add(run)
        return self._environment

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
        """The measurement in this claim's own environment: the run may have gone to another."""
        build = session.exec(select(Build).where(Build.key == event.build)).one_or_none()
        if build is None:
            raise InfrastructureError(
                f"{event.cell}: this host made the build {event.build[:12]}, which nobody ordered: "
                "hosts that share runs need the same compiler and the same Racewatch"
            )
        if cell_id is not None:
            cell = session.get_one(Cell, session.get_one(RunCell, cell_id).cell_id)
        else:
            cell = rows.cell_row(session, self._added(event), reference=True)
        environment = session.get_one(Environment, self._environment)
        row = rows.measurement_row(session, build, cell, environment, self._batch.adaptive)
        assert row.id is not None
        return row.id

    def _added(self, event: result.TrialFinished) -> matrices.Cell:
        control = controls.control_of(event.cell)
        if control is not None:
            return controls.cell(control)
        program = event.cell.removeprefix(result.REFERENCE).removeprefix(result.BASE)
        # Of a program's recipes the one that ran: a reference's name does not tell it.
        asked = [c.recipe for c in self._batch.matrix.cells if str(c.program) == program]
        recipe = next((r for r in asked if r == event.recipe), matrices.Recipe.AUTO)
        return matrices.Cell(
            name="",
            variant=Variant.parse("stock"),
            program=matrices.Program(program),
            background=False,
            hold_ms=0.0,
            recipe=recipe,
            trials=1,
        )


def alive(session: Session, claim_id: UUID) -> bool:
    """Say that a claim is still held; False where it is no longer live, or its run has ended."""
    claim = session.exec(select(Claim).where(Claim.id == claim_id).with_for_update()).one()
    if claim.state != ClaimState.LIVE:
        return False
    if session.get_one(Run, claim.run_id).state not in OPEN_STATES:
        return False
    claim.heartbeat_at = clock(session)
    session.add(claim)
    return True


def release(
    session: Session, claim_id: UUID, state: ClaimState, reason: str = "", notes: Iterable[str] = ()
) -> bool:
    """End a claim; False where it had ended.

    One that settled no trial is a setback for its run, else a fresh start.
    """
    claim = session.exec(select(Claim).where(Claim.id == claim_id).with_for_update()).one()
    if claim.state != ClaimState.LIVE:
        return False
    claim.state, claim.reason, claim.finished_at = state, reason, clock(session)
    session.add(claim)
    run = locked(session, claim.run_id)
    assert run is not None
    if run.state in OPEN_STATES:  # what ended already keeps the reason of its end
        settled = session.exec(
            select(func.sum(ClaimCell.recorded)).where(ClaimCell.claim_id == claim_id)
        ).one()
        if settled:
            run.setbacks, run.reason = 0, ""
        elif state is not ClaimState.CANCELLED:
            run.setbacks += 1
            run.reason = reason or "its trials settled nothing"
    new = [note for note in notes if note not in run.notes]
    if new:
        run.notes = [*run.notes, *new]
    session.add(run)
    session.flush()
    return True


__all__ = [
    "COUNTED",
    "Batch",
    "ClaimLost",
    "Recorder",
    "Remaining",
    "alive",
    "bind",
    "bound_workers",
    "hold",
    "live",
    "live_workers",
    "release",
    "remaining",
    "take",
    "taking",
]
