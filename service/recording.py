"""Storing finished trials: each once, counted in the transaction that stores it.

Live recording and imports both come through here, so that they cannot count in two ways.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import bindparam, func, insert, update
from sqlalchemy.dialects.postgresql import insert as insert_or_skip
from sqlmodel import Session, col

from runner.outcome import Outcome
from runner.result import TrialFinished
from service import storable
from service.tables import Measurement, RunCell, Trial, TrialEvidence, column_of
from service.tables.columns import now

TEXT_CHARACTERS = 500
"""Of a short text, such as a signature: an index of PostgreSQL takes 2,700 bytes."""
REASON_CHARACTERS = 4000
_AT_ONCE = 500  # so that the evidence of a large import is never in memory twice
_MOST = 2**31 - 1


@dataclass(frozen=True)
class Finished:
    """A finished trial and where it belongs.

    run_cell_id: None for an added reference trial. log: all that it printed.
    """

    claim_id: UUID
    run_id: UUID
    run_cell_id: int | None
    measurement_id: int
    event: TrialFinished
    log: str
    worker_id: UUID | None
    finished_at: datetime


def record_trial(
    session: Session,
    *,
    claim_id: UUID,
    run_id: UUID,
    run_cell_id: int | None,
    measurement_id: int,
    event: TrialFinished,
    log: str,
    worker_id: UUID | None = None,
    finished_at: datetime | None = None,
) -> bool:
    """Store a trial and count it; False, and nothing changed, where the claim has its index.

    Whoever calls holds the claim. The counts of rows that the session has loaded are read anew when
    they are next looked at.
    """
    finished = Finished(
        claim_id, run_id, run_cell_id, measurement_id, event, log, worker_id, finished_at or now()
    )
    return bool(record_trials(session, [finished]))


def record_trials(session: Session, finished: Sequence[Finished]) -> list[Finished]:
    """Store trials and count them; those that are new.

    The counts come last, in the order of their ids: rows that other recorders wait for are locked
    shortly, and two that record many at once cannot wait for each other.
    """
    new: list[Finished] = []
    for start in range(0, len(finished), _AT_ONCE):
        new.extend(_store(session, finished[start : start + _AT_ONCE]))
    _count(session, new)
    return new


def _store(session: Session, finished: Sequence[Finished]) -> list[Finished]:
    connection = session.connection()
    made = connection.execute(_INSERT_TRIALS, [_trial(one) for one in finished])
    ids = {(claim_id, index): trial_id for trial_id, claim_id, index in made}
    new = []
    evidence = []
    for one in finished:
        trial_id = ids.pop((one.claim_id, one.event.index), None)
        if trial_id is None:
            continue
        new.append(one)
        evidence.append(
            {
                "trial_id": trial_id,
                "evidence": storable.data(_evidence(one.event)),
                "log": storable.log(one.log),
            }
        )
    if evidence:
        connection.execute(_INSERT_EVIDENCE, evidence)
    return new


def _evidence(event: TrialFinished) -> Mapping[str, Any]:
    """What is known of how it ended, and what its windows swallowed, if that was watched."""
    if event.swallow is None:
        return event.evidence
    return {**event.evidence, "swallow": asdict(event.swallow)}


def _trial(finished: Finished) -> dict[str, Any]:
    event = finished.event
    handlers = event.handlers
    return {
        "measurement_id": finished.measurement_id,
        "run_id": finished.run_id,
        "run_cell_id": finished.run_cell_id,
        "claim_id": finished.claim_id,
        "worker_id": finished.worker_id,
        "index": event.index,
        "outcome": str(event.outcome),
        "signature": storable.text(event.signature, TEXT_CHARACTERS),
        "reason": storable.text(event.reason, REASON_CHARACTERS),
        "seconds": event.seconds if math.isfinite(event.seconds) else 0.0,
        "device": storable.text(event.device, TEXT_CHARACTERS),
        "recipe": storable.text(event.recipe, TEXT_CHARACTERS),
        "digests": storable.data(event.digests),
        "background_updates": max(0, min(event.background_updates, _MOST)),
        "handlers": None if handlers is None else storable.data(handlers),
        "times": _times(event.times),
        "finished_at": finished.finished_at,
        "foreign_nodes": event.swallow.reached if _watched(event) and event.swallow else None,
        "control": event.control,
    }


def _watched(event: TrialFinished) -> bool:
    """Whether the detector saw its capture windows."""
    return event.swallow is not None and event.swallow.watched


def _times(times: Mapping[str, float]) -> Any:
    return storable.data({stage: s for stage, s in times.items() if math.isfinite(s)})


def _count(session: Session, new: Sequence[Finished]) -> None:
    connection = session.connection()
    measured: dict[int, list[Finished]] = {}
    for one in new:
        measured.setdefault(one.measurement_id, []).append(one)
    for measurement_id, trials in sorted(measured.items()):
        outcomes = Counter(one.event.outcome for one in trials)
        watched = [t.event for t in trials if t.event.counted and _watched(t.event)]
        swallowed = [event for event in watched if event.swallowed]
        connection.execute(
            _COUNT,
            {
                "measurement": measurement_id,
                "first": min(one.finished_at for one in trials),
                "last": max(one.finished_at for one in trials),
                **{f"new_{column_of(outcome)}": outcomes[outcome] for outcome in Outcome},
                "new_watched": len(watched),
                "new_swallowed": len(swallowed),
                "new_swallowed_passes": sum(e.outcome is Outcome.PASS for e in swallowed),
            },
        )
    ordered = Counter(one.run_cell_id for one in new if one.run_cell_id is not None)
    for run_cell_id, trials_of_cell in sorted(ordered.items()):
        connection.execute(_RECORD, {"run_cell": run_cell_id, "new": trials_of_cell})
    _forget(session, Measurement, measured, (*_COUNTS, "first_trial_at", "last_trial_at"))
    _forget(session, RunCell, ordered, ("recorded",))


def _forget(
    session: Session,
    table: type[Measurement] | type[RunCell],
    ids: Mapping[int, object],
    columns: tuple[str, ...],
) -> None:
    """Let the session read those columns anew, of rows that it has loaded."""
    for row_id in ids:
        row = session.identity_map.get(session.identity_key(table, row_id))
        if row is not None:
            session.expire(row, columns)


_COUNTS = (
    *(column_of(outcome) for outcome in Outcome),
    *("watched", "swallowed", "swallowed_passes"),
)
_INSERT_TRIALS = (
    insert_or_skip(Trial)
    .on_conflict_do_nothing(index_elements=["claim_id", "index"])
    .returning(col(Trial.id), col(Trial.claim_id), col(Trial.index))
)
_INSERT_EVIDENCE = insert(TrialEvidence)
_COUNT = (
    update(Measurement)
    .where(col(Measurement.id) == bindparam("measurement"))
    .values(
        {column: getattr(Measurement, column) + bindparam(f"new_{column}") for column in _COUNTS}
        | {
            # LEAST and GREATEST of PostgreSQL pass over NULL.
            "first_trial_at": func.least(Measurement.first_trial_at, bindparam("first")),
            "last_trial_at": func.greatest(Measurement.last_trial_at, bindparam("last")),
        }
    )
)
_RECORD = (
    update(RunCell)
    .where(col(RunCell.id) == bindparam("run_cell"))
    .values(recorded=RunCell.recorded + bindparam("new"))
)
