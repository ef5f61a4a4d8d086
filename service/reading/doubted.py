"""Measurements with trials on devices that failed their control cells: what those can prove."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sqlmodel import Session, col, select

from runner import controls
from runner.statistics.control import ControlVerdict, Proof
from service.controls import COUNTED, Place, by_run
from service.tables import Trial

Doubts = Mapping[int, ControlVerdict]
"""By measurement. What is not in it stands as it is judged."""
NONE: Doubts = MappingProxyType({})


def find(session: Session, _: None = None) -> Doubts:
    """All that there are. No more than the least proven device can prove, as in a run.

    Where every device is believed, which is usual, only control trials are looked at.
    """
    proofs = {
        (run, place): verdict
        for run, places in by_run(session).items()
        for place, shown in places.items()
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
