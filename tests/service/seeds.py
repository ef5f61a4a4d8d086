"""Rows that tests of the store begin with: a commit, its build, a run with cells, trials."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from sqlmodel import Session

from runner import matrix, result
from runner.matrix import Matrix
from runner.outcome import Outcome
from runner.result import TrialFinished
from runner.run import BuildId, PreparedBuild
from service import rows
from service.tables import Claim, Run, RunCell, RunState

MATRIX = matrix.parse(
    """
    title = "two cells"
    [[cells]]
    name = "stock, background"
    variant = "stock"
    trials = 20
    [[cells]]
    name = "owned-stream"
    variant = "owned-stream"
    trials = 20
    """,
    "two",
)
H200 = result.Device("cuda", "NVIDIA H200", (9, 0), "580.0", "0.11.2", "2.20.2", ("0",))
EMULATED = result.Device("emulated", "emulated CUDA")
NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Seeded:
    """Ids of a run that is under way, by name of its cells."""

    run: UUID
    claim: UUID
    cells: dict[str, int]
    measurements: dict[str, int]


def running(
    session: Session, matrix: Matrix = MATRIX, sha: str = "a" * 40, subject: str = "te"
) -> Seeded:
    """A run with a live claim, each of its cells with a measurement of its own."""
    commit = rows.commit_row(session, subject, result.Commit(sha, "main", "A title"))
    environment = rows.environment_row(session, H200, "cu13", "2")
    run = Run(
        subject=subject,
        commit_id=commit.id,
        matrix_name=matrix.name,
        queue="sm90",
        state=RunState.RUNNING,
        environment_id=environment.id,
    )
    session.add(run)
    session.flush()
    claim = Claim(run_id=run.id)
    session.add(claim)
    cells: dict[str, int] = {}
    measurements: dict[str, int] = {}
    for position, cell in enumerate(matrix.cells):
        name = str(BuildId.of(cell))
        build = rows.build_row(session, subject, PreparedBuild(f"{name} of {sha}"), "")
        row = rows.cell_row(session, cell)
        measurement = rows.measurement_row(session, build, row, environment)
        run_cell = RunCell(
            run_id=run.id,
            position=position,
            name=cell.name,
            cell_id=row.id,
            build=name,
            wanted=cell.trials,
            measurement_id=measurement.id,
        )
        session.add(run_cell)
        session.flush()
        assert run_cell.id is not None
        assert measurement.id is not None
        cells[cell.name], measurements[cell.name] = run_cell.id, measurement.id
    return Seeded(run.id, claim.id, cells, measurements)


def trial(index: int, outcome: Outcome = Outcome.PASS, **changed: Any) -> TrialFinished:
    """A trial as a worker gets it."""
    failed = outcome is not Outcome.PASS
    values: dict[str, Any] = {
        "run": "of the runner",
        "cell": MATRIX.cells[0].name,
        "signature": f"{outcome} somewhere" if failed else "",
        "reason": "why",
        "seconds": 2.5,
        "device": "0",
        "recipe": "fp8-current-scaling",
        "digests": ("d1", "d1"),
        "times": {"compile": 0.5, "execute": 2.0},
        "evidence": {"kind": "trial", "exit_status": 0},
    }
    return TrialFinished(index=index, outcome=outcome, **{**values, **changed})
