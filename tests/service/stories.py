"""Runs with their counts, as tests of what is told about them begin."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlmodel import Session, select

from runner import matrix as matrices
from runner import result
from runner.matrix import Matrix
from runner.outcome import Outcome
from runner.run import PreparedBuild
from service import rows
from service.submit import RunRequest, submit
from service.tables import (
    BuildState,
    Cell,
    Claim,
    CommitBuild,
    Environment,
    Origin,
    Run,
    RunCell,
    RunState,
    Trial,
    column_of,
)
from service.tables.columns import now

H200 = result.Device("cuda", "NVIDIA H200", (9, 0), "580.0", "0.11.2", "2.20.2", ("0",))
EMULATED = result.Device("emulated", "emulated CUDA")
STOCK, ALONE, OWNED, FFI13 = "stock, background", "stock, alone", "owned-stream", "ffi13"
MATRIX = matrices.parse(
    f"""
    clean_below = 0.05
    [[cells]]
    name = "{STOCK}"
    variant = "stock"
    [[cells]]
    name = "{ALONE}"
    variant = "stock"
    background = false
    [[cells]]
    name = "{OWNED}"
    variant = "owned-stream"
    [[cells]]
    name = "{FFI13}"
    variant = "ffi13"
    """,
    "issue-3863",
)
HEAD, BASE = "a" * 40, "b" * 40
CLEAN = {STOCK: (0, 100), ALONE: (0, 100), OWNED: (0, 100), FFI13: (0, 100)}
"""Counts (failed, trials) of cells that are all clean below 5 %."""
RACY = {**CLEAN, STOCK: (100, 100)}
Counts = Mapping[str, tuple[int, int]]


def run_of(
    session: Session,
    counts: Counts | None = None,
    sha: str = HEAD,
    *,
    state: RunState = RunState.COMPLETE,
    base: str = "",
    pull: int | None = 12,
    origin: Origin = Origin.PULL_REQUEST,
    ref: str = "",
    queue: str = "sm90",
    matrix: Matrix = MATRIX,
    title: str = "A title",
    broken: Mapping[str, tuple[Outcome, str, str]] | None = None,
    infra: Mapping[str, int] | None = None,
    signature: str = "cudaErrorStreamCaptureInvalidated",
    builds_of: str = "",
    device: result.Device | None = None,
    created_at: datetime | None = None,
    **columns: Any,
) -> Run:
    """A run of a commit with what its cells counted.

    counts: (failed, trials) by cell; cells that it does not name were not measured. base: the
    commit that it is compared with. broken: (outcome, signature, reason) of cells that could not
    be built. infra: infra_errors by cell. builds_of: a commit whose builds this one shares. device:
    by default the one of the queue.
    """
    commit = result.Commit(sha, ref or (f"pull/{pull}" if pull else "main"), title)
    request = RunRequest("te", matrix, queue, commit=commit, pull=pull, origin=origin)
    run = submit(session, request)
    device = device or (EMULATED if queue == "emulated" else H200)
    environment = rows.environment_row(session, device, "cu13", "2")
    if base:
        run.base_commit_id = rows.commit_row(session, "te", result.Commit(base, "main")).id
    run.state, run.facts = state, {"toolchain": "cu13"}
    run.environment_id = environment.id
    run.finished_at = now() if state == RunState.COMPLETE else None
    run.created_at = created_at or run.created_at
    for name, value in columns.items():
        setattr(run, name, value)
    session.add(run)
    claim = Claim(run_id=run.id)
    session.add(claim)
    session.flush()
    for cell in session.exec(select(RunCell).where(RunCell.run_id == run.id)):
        if broken and cell.name in broken:
            outcome, cell.signature, cell.decided = broken[cell.name]
            cell.outcome = str(outcome)
        else:
            failed, trials = (counts or {}).get(cell.name, (0, 0))
            errors = (infra or {}).get(cell.name, 0)
            _measure(
                session, run, claim, cell, environment, builds_of or sha,
                {Outcome.CAPTURE_ERROR: failed, Outcome.PASS: trials - failed,
                 Outcome.INFRA_ERROR: errors},
                signature,
            )  # fmt: skip
        session.add(cell)
    session.flush()
    return run


def _measure(
    session: Session,
    run: Run,
    claim: Claim,
    cell: RunCell,
    environment: Environment,
    sha: str,
    counts: Mapping[Outcome, int],
    signature: str,
) -> None:
    build = rows.build_row(session, "te", PreparedBuild(f"{cell.build} of {sha}"), "")
    key = {
        "commit_id": run.commit_id,
        "name": cell.build,
        "toolchain": "cu13",
        "architecture": run.queue,
    }
    if session.exec(select(CommitBuild).filter_by(**key)).first() is None:
        session.add(CommitBuild(**key, state=BuildState.DONE, build_id=build.id))
    row = session.get_one(Cell, cell.cell_id)
    measurement = rows.measurement_row(session, build, row, environment, run.adaptive)
    for outcome, number in counts.items():
        setattr(measurement, column_of(outcome), number)
    session.add(measurement)
    session.flush()
    assert measurement.id is not None
    cell.measurement_id = measurement.id
    for index in range(min(3, counts[Outcome.CAPTURE_ERROR])):
        session.add(
            Trial(
                measurement_id=measurement.id,
                run_id=run.id,
                run_cell_id=cell.id,
                claim_id=claim.id,
                index=1000 * cell.position + index,
                outcome=str(Outcome.CAPTURE_ERROR),
                signature=signature,
            )
        )
