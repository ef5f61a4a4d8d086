"""Whose work capture windows took in: what the detector saw of trials, from their evidence."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import text
from sqlmodel import Session

from runner.outcome import FAILURES, Outcome

_COUNTED = [str(outcome) for outcome in Outcome if outcome in FAILURES or outcome is Outcome.PASS]
_OF_RUN = text(
    """
    SELECT call->>'api', call->>'thread', sum((call->>'count')::bigint), count(*), min(t.id)
    FROM trials t
    JOIN trial_evidence e ON e.trial_id = t.id,
    LATERAL jsonb_array_elements(e.evidence#>'{swallow,calls}') AS call
    WHERE t.run_id = :run AND t.run_cell_id IS NOT NULL AND t.foreign_nodes > 0
      AND t.outcome = ANY(:counted)
    GROUP BY 1, 2
    ORDER BY 3 DESC, 1, 2
    """
)


@dataclass(frozen=True)
class SwallowedWork:
    """What one thread's calls of one API lost to capture windows.

    count: graph nodes that they became, or calls that were refused. trials: in how many trials;
    trial: one of them.
    """

    api: str
    thread: str
    count: int
    trials: int
    trial: int


def of_run(session: Session, run: UUID) -> tuple[SwallowedWork, ...]:
    """In the trials of its cells that count and were watched, the most first.

    Evidence that was pruned is not among it.
    """
    asked = {"run": run, "counted": _COUNTED}
    found = session.connection().execute(_OF_RUN, asked).all()
    return tuple(SwallowedWork(row[0], row[1], int(row[2]), row[3], row[4]) for row in found)
