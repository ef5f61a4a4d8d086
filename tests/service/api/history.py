"""A small history that API tests look at: a branch with a race, its fix, and a broken commit."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from sqlmodel import Session

from runner import result
from runner.outcome import Outcome
from runner.run import PreparedBuild
from service import rows
from service.database import Database
from service.recording import record_trial
from service.tables import (
    BranchCommit,
    Build,
    BuildState,
    Claim,
    ClaimState,
    Commit,
    CommitBuild,
    Head,
    Origin,
    Pull,
    Run,
    RunCell,
    RunState,
    Worker,
    WorkerState,
)
from tests.service.seeds import H200, MATRIX, NOON, trial

GOOD, RACE, FIX, BROKEN = ("a" * 40, "b" * 40, "c" * 40, "d" * 40)
FORK_HEAD, OWN_HEAD = "e" * 40, "f" * 40
SUBJECT = "te"


@dataclass
class History:
    """Ids of what is there. runs: by commit, oldest first."""

    runs: dict[str, UUID] = field(default_factory=dict)
    trials: list[int] = field(default_factory=list)
    builds: dict[str, int] = field(default_factory=dict)


def make(database: Database) -> History:
    """Good (clean of 72), race (6 of 10), fix (0 of 10, undersampled), broken (no build)."""
    history = History()
    with database.session() as session:
        session.add(Head(subject=SUBJECT, ref="main", sha=BROKEN))
        session.add(
            Pull(
                subject=SUBJECT,
                number=12,
                title="A fork's",
                author="someone",
                head_sha=FORK_HEAD,
                fork=True,
            )
        )
        session.add(
            Pull(subject=SUBJECT, number=13, title="Our own", head_sha=OWN_HEAD, fork=False)
        )
        worker = Worker(
            name="gpu-1",
            host="gpu-1",
            pid=1,
            queues=["build-te", "trial-sm90"],
            state=WorkerState.LIVE,
        )
        session.add(worker)
        session.flush()
        for n, (sha, passed, failed) in enumerate(
            ((GOOD, 72, 0), (RACE, 4, 6), (FIX, 10, 0), (BROKEN, 0, 0))
        ):
            _commit(session, history, n, sha, passed, failed, worker)
    return history


def _commit(
    session: Session,
    history: History,
    position: int,
    sha: str,
    passed: int,
    failed: int,
    worker: Worker,
) -> None:
    commit = rows.commit_row(
        session, SUBJECT, result.Commit(sha, "main", f"Commit {position}", "Ann", NOON.isoformat())
    )
    assert commit.id is not None
    session.add(
        BranchCommit(subject=SUBJECT, branch="main", position=position, commit_id=commit.id)
    )
    environment = rows.environment_row(session, H200, "cu13", "2")
    broken = sha == BROKEN
    run = Run(
        subject=SUBJECT,
        commit_id=commit.id,
        ref="main",
        head_sha=sha,
        matrix_name=MATRIX.name,
        queue="sm90",
        state=RunState.COMPLETE,
        origin=Origin.PUSH,
        environment_id=environment.id,
        facts={"toolchain": "cu13", "parallel": 4, "sandbox": "docker", "trial_mode": "fork"},
        parity={
            "status": "identical",
            "reason": "one SHA-256 over the bits of both executions",
            "digests": {"stock norm-act-gemm, bf16": ["d1" if sha != FIX else "d2"]},
            "between": "stock and owned-stream",
        },
        created_at=NOON + timedelta(hours=position),
    )
    session.add(run)
    session.flush()
    claim = Claim(run_id=run.id, worker_id=worker.id, state=ClaimState.DONE)
    session.add(claim)
    session.flush()
    build = _build(session, commit, sha, broken)
    assert build.id is not None
    history.runs[sha], history.builds[sha] = run.id, build.id
    cell = rows.cell_row(session, MATRIX.cells[0])
    assert cell.id is not None
    measurement = None if broken else rows.measurement_row(session, build, cell, environment)
    row = RunCell(
        run_id=run.id,
        position=0,
        name=MATRIX.cells[0].name,
        cell_id=cell.id,
        build="stock",
        wanted=passed + failed or 20,
        outcome="build_error" if broken else None,
        signature="no such header" if broken else "",
        decided="the compiler failed" if broken else "",
        measurement_id=measurement.id if measurement else None,
    )
    session.add(row)
    session.flush()
    if measurement is None:
        return
    assert measurement.id is not None
    for index in range(passed + failed):
        outcome = Outcome.PASS if index < passed else Outcome.CAPTURE_ERROR
        record_trial(
            session,
            claim_id=claim.id,
            run_id=run.id,
            run_cell_id=row.id,
            measurement_id=measurement.id,
            event=trial(index, outcome),
            log=f"line of trial {index}\n",
            worker_id=worker.id,
            finished_at=NOON,
        )


def _build(session: Session, commit: Commit, sha: str, broken: bool) -> Build:
    build = rows.build_row(
        session,
        SUBJECT,
        PreparedBuild(
            f"stock of {sha}",
            outcome=Outcome.BUILD_ERROR if broken else None,
            reason="the compiler failed" if broken else "",
            log="ffi.h: No such file" if broken else "",
        ),
        "",
    )
    session.add(
        CommitBuild(
            commit_id=commit.id,
            name="stock",
            toolchain="cu13",
            architecture="sm90",
            state=BuildState.DONE,
            build_id=build.id,
        )
    )
    session.flush()
    return build
