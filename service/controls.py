"""What the control cells of runs say of the devices that they ran on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import ColumnElement, func
from sqlalchemy import select as columns
from sqlmodel import Session, col, select

from runner import controls
from runner.controls import DeviceControl
from runner.outcome import FAILURES, Outcome
from runner.statistics.control import ControlVerdict, Proof
from service.tables import RunCell, Trial, Worker

COUNTED = (*FAILURES, Outcome.PASS)


@dataclass(frozen=True)
class Place:
    """A device of a worker. worker: None where the run was imported."""

    worker: UUID | None
    device: str


def by_run(session: Session, *where: ColumnElement[bool]) -> dict[UUID, dict[Place, DeviceControl]]:
    """What control trials say of each device that they ran on, for each of the runs that ordered
    them. where: which trials, all where nothing is said."""
    by = (
        col(Trial.run_id),
        col(Trial.worker_id),
        col(Trial.device),
        col(Trial.control),
        col(Trial.outcome),
    )
    counted = session.connection().execute(
        columns(by[0], by[1], by[2], by[3], by[4], func.count())
        .where(col(Trial.control) != "", *where)
        .group_by(*by)
        .order_by(col(Trial.device))
    )
    found: dict[UUID, dict[Place, DeviceControl]] = {}
    for run, worker, device, control, outcome, count in counted:
        places = found.setdefault(run, {})
        place = Place(worker, device)
        known = places.get(place, DeviceControl(device))
        places[place] = known.with_trials(control, Outcome(outcome), count)
    return found


def of_run(session: Session, run: UUID) -> dict[Place, DeviceControl]:
    """The same of one run."""
    return by_run(session, col(Trial.run_id) == run).get(run, {})


def failed_devices(session: Session, run: UUID, worker: UUID | None) -> list[str]:
    """Devices of a worker that failed their control cells in a run: it goes on without them."""
    return [
        place.device
        for place, shown in of_run(session, run).items()
        if place.worker == worker and shown.verdict.proof is Proof.UNPROVEN
    ]


def by_cell(
    session: Session, *runs: UUID, only: Proof | None = None
) -> Mapping[int, ControlVerdict]:
    """For each cell of these runs that met a device with control cells, what that can prove.

    A cell counts what any run tried of its build. only: of devices that can prove just that.
    """
    measured = session.exec(
        select(RunCell.id, RunCell.measurement_id).where(
            col(RunCell.run_id).in_(runs), col(RunCell.measurement_id).is_not(None)
        )
    ).all()
    proofs = by_measurement(session, {found for _, found in measured if found is not None}, only)
    return {
        cell: proofs[found]
        for cell, found in measured
        if cell is not None and found is not None and found in proofs
    }


def by_measurement(
    session: Session, measurements: Collection[int], only: Proof | None = None
) -> Mapping[int, ControlVerdict]:
    """The same for each of these measurements: each run that has trials in it tells of the devices
    that its own trials met."""
    runs = session.exec(
        select(RunCell.run_id).where(col(RunCell.measurement_id).in_(measurements)).distinct()
    ).all()
    controlled = by_run(session, col(Trial.run_id).in_(runs))
    return worst_met(session, controlled, only, col(Trial.measurement_id).in_(measurements))


def worst_met(
    session: Session,
    controlled: Mapping[UUID, Mapping[Place, DeviceControl]],
    only: Proof | None,
    *where: ColumnElement[bool],
) -> Mapping[int, ControlVerdict]:
    """What the least proven of these devices that a measurement's trials met can prove, for each
    that met one. controlled: as `by_run` tells of them. only: those that can prove just that.
    where: which trials, all where nothing is said."""
    proofs = {
        (run, place): verdict
        for run, places in controlled.items()
        for place, shown in places.items()
        if only in (None, (verdict := shown.verdict).proof)
    }
    if not proofs:
        return {}
    met: dict[int, list[ControlVerdict]] = {}
    for measurement, run, worker, device in session.exec(
        select(Trial.measurement_id, Trial.run_id, Trial.worker_id, Trial.device)
        .where(
            col(Trial.run_id).in_({run for run, _ in proofs}),
            col(Trial.run_cell_id).is_not(None),
            col(Trial.outcome).in_(COUNTED),
            *where,
        )
        .distinct()
    ):
        proof = proofs.get((run, Place(worker, device)))
        if proof is not None:
            met.setdefault(measurement, []).append(proof)
    worst = {measurement: controls.worst(verdicts) for measurement, verdicts in met.items()}
    return {measurement: verdict for measurement, verdict in worst.items() if verdict is not None}


@dataclass(frozen=True)
class Shown:
    """A row of a table of devices. worker: its name, empty where the run was imported."""

    worker: str
    control: DeviceControl
    verdict: ControlVerdict


def shown(session: Session, run: UUID) -> list[Shown]:
    """What each device of a run showed, by worker and device."""
    places = of_run(session, run)
    names = _names(session, {place.worker for place in places})
    rows = [
        Shown(names.get(place.worker, ""), control, control.verdict)
        for place, control in places.items()
    ]
    return sorted(rows, key=lambda row: (row.worker, row.control.device))


def _names(session: Session, workers: Iterable[UUID | None]) -> dict[UUID | None, str]:
    wanted = [worker for worker in workers if worker is not None]
    found = session.exec(select(Worker.id, Worker.name).where(col(Worker.id).in_(wanted)))
    return dict(found.all())
