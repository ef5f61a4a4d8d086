"""Measurements with trials on devices that failed their control cells: what those can prove."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from uuid import UUID

from sqlalchemy import func
from sqlalchemy import select as columns
from sqlmodel import Session, col, select

from runner import controls
from runner.controls import DeviceControl
from runner.outcome import Outcome
from runner.statistics.control import ControlVerdict, Proof
from service.controls import COUNTED, Place
from service.tables import Trial

Doubts = Mapping[int, ControlVerdict]
"""By measurement. What is not in it stands as it is judged."""
NONE: Doubts = MappingProxyType({})


def find(session: Session, _: None = None) -> Doubts:
    """All that there are. No more than the least proven device can prove, as in a run.

    Where every device is believed, which is usual, only control trials are looked at.
    """
    proofs = {
        key: verdict
        for key, shown in _controls(session).items()
        if (verdict := shown.verdict).proof is Proof.UNPROVEN
    }
    if not proofs:
        return NONE
    runs = {run for run, _ in proofs}
    met: dict[int, list[ControlVerdict]] = {}
    for run, worker, device, measurement in session.exec(
        select(Trial.run_id, Trial.worker_id, Trial.device, Trial.measurement_id)
        .where(
            col(Trial.run_id).in_(runs),
            col(Trial.run_cell_id).is_not(None),
            col(Trial.outcome).in_(COUNTED),
        )
        .distinct()
    ):
        proof = proofs.get((run, Place(worker, device)))
        if proof is not None:
            met.setdefault(measurement, []).append(proof)
    worst = {measurement: controls.worst(verdicts) for measurement, verdicts in met.items()}
    return {measurement: verdict for measurement, verdict in worst.items() if verdict is not None}


def _controls(session: Session) -> dict[tuple[UUID, Place], DeviceControl]:
    """What control cells showed, by run and device."""
    by = (
        col(Trial.run_id),
        col(Trial.worker_id),
        col(Trial.device),
        col(Trial.control),
        col(Trial.outcome),
    )
    counted = session.connection().execute(
        columns(by[0], by[1], by[2], by[3], by[4], func.count())
        .where(col(Trial.control) != "")
        .group_by(*by)
    )
    found: dict[tuple[UUID, Place], DeviceControl] = {}
    for run, worker, device, control, outcome, count in counted:
        key = (run, Place(worker, device))
        known = found.get(key, DeviceControl(device))
        found[key] = known.with_trials(control, Outcome(outcome), count)
    return found
