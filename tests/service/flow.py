"""Runs moved through the service as workers would, without their processes: rows in, rows out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import text
from sqlmodel import col, select

from runner import matrix as matrices
from runner import result
from runner.matrix import Matrix
from runner.outcome import Outcome
from runner.result import Device, RunStarted, TrialFinished
from runner.run import PreparedBuild
from service import advance, builds, claims, rows
from service.builds import BuildJob
from service.claims import Batch, Recorder
from service.database import Database
from service.queue import build_queue, environment_queue, git_queue, trial_queue
from service.settings import ServiceSettings
from service.submit import RunRequest, submit
from service.tables import (
    BuildState,
    Claim,
    ClaimState,
    Commit,
    CommitBuild,
    Measurement,
    Run,
    RunCell,
    Worker,
)

EMULATED = Device("emulated", "emulated CUDA", ids=("0",))
OTHER_DRIVER = replace(EMULATED, driver="580.1")
HEAD, PARENT = "a" * 40, "b" * 40
TOOLCHAIN, HARNESS = "host compiler", "2"
RACY, ALONE, OWNED = "stock, background", "stock, alone", "owned-stream"
MATRIX = matrices.parse(
    f"""
    clean_below = 0.2
    [[cells]]
    name = "{RACY}"
    variant = "stock"
    trials = 4
    [[cells]]
    name = "{ALONE}"
    variant = "stock"
    background = false
    trials = 4
    [[cells]]
    name = "{OWNED}"
    variant = "owned-stream"
    trials = 4
    """,
    "small",
)
"""Two builds (stock and instrumented), three cells, twelve trials."""
ONE_CELL = MATRIX.only((RACY,))
BATCH_S = 60.0


def order(db: Database, sha: str = HEAD, matrix: Matrix = MATRIX, **more: Any) -> UUID:
    """Order a run of a commit of the demo."""
    commit = result.Commit(sha, more.pop("ref", "main"))
    request = RunRequest("demo", matrix, "emulated", commit=commit, **more)
    with db.session() as session:
        return submit(session, request).id


def resolve(db: Database, run: UUID, base: str = "") -> None:
    """Find out a run's commit: its own, with that base."""
    with db.session() as session:
        claim = claims.hold(session, run, None)
    assert claim is not None
    with db.session() as session:
        row = session.get_one(Run, run)
        advance.prepared(session, run, claim, answer(row.head_sha, base, row.ref))


def answer(sha: str = HEAD, base: str = "", ref: str = "main") -> dict[str, Any]:
    """What a job says of a ref that it resolved."""
    return {
        "commit": asdict(result.Commit(sha, ref)),
        "base": asdict(result.Commit(base, base)) if base else None,
        "toolchain": TOOLCHAIN,
        "branches": {},
    }


def build(
    db: Database, sha: str = HEAD, made: Mapping[str, PreparedBuild] | None = None, of: str = ""
) -> None:
    """Make all builds of a commit that wait, and move on who needs them.

    made: those that are not plain ones, by name. of: the content, so that commits share a build.
    """
    for wanted in waiting(db, sha):
        with db.session() as session:
            job = builds.take(session, wanted, None, contained=True)
        assert job is not None
        plain = PreparedBuild(key=f"{job.name} of {of or sha}", folder="somewhere")
        finish(db, job, (made or {}).get(job.name, plain))


def waiting(db: Database, sha: str = HEAD) -> list[int]:
    """Ids of a commit's builds that nobody makes yet."""
    with db.session() as session:
        found = session.exec(
            select(CommitBuild.id)
            .join(Commit, col(Commit.id) == col(CommitBuild.commit_id))
            .where(Commit.sha == sha, CommitBuild.state == BuildState.WAITING)
            .order_by(col(CommitBuild.id))
        )
        return [identity for identity in found if identity is not None]


def finish(db: Database, job: BuildJob, made: PreparedBuild) -> None:
    """Store a build, and move on who needs it."""
    with db.session() as session:
        wanted = session.get_one(CommitBuild, job.id)
        needing = [run.id for run in builds.needing(session, wanted)]
        assert builds.done(session, job, made)
    for run in needing:
        step(db, run)


def worker(
    db: Database,
    name: str = "w",
    device: Device | None = EMULATED,
    parallel: int = 2,
    contained: bool = False,
    **columns: Any,
) -> UUID:
    """A live worker that takes builds and, where it has a device, its trials."""
    trusts = (True, False) if contained else (True,)
    queues = [git_queue("demo"), *(build_queue("demo", trusted) for trusted in trusts)]
    with db.session() as session:
        row = Worker(name=name, host="here", pid=1, parallel=parallel)
        if device is not None:
            environment = rows.environment_row(session, device, TOOLCHAIN, HARNESS).id
            assert environment is not None
            row.environment_id, row.device = environment, asdict(device)
            queues += [trial_queue("emulated", trusted) for trusted in trusts]
            queues += [environment_queue(environment, trusted) for trusted in trusts]
        row.queues = queues
        for column, value in columns.items():
            setattr(row, column, value)
        session.add(row)
        return row.id


def started(db: Database, matrix: Matrix = MATRIX, sha: str = HEAD, **more: Any) -> UUID:
    """A run whose builds are made, so that its trials can be taken."""
    run = order(db, sha, matrix, **more)
    resolve(db, run)
    build(db, sha)
    return run


def take(db: Database, run: UUID, who: UUID, batch_s: float = BATCH_S) -> Batch | None:
    """Claim a share of a run's trials for a worker."""
    with db.session() as session:
        return claims.take(session, run, session.get_one(Worker, who), batch_s)


def taken(db: Database, run: UUID, who: UUID, batch_s: float = BATCH_S) -> Batch:
    """Such a share, which must be there."""
    batch = take(db, run, who, batch_s)
    assert batch is not None
    return batch


@dataclass
class Recording:
    """A claim whose trials are stored as they come, in cells' order."""

    db: Database
    batch: Batch
    recorder: Recorder
    index: int = 0

    def store(self, cell: str, outcome: Outcome = Outcome.PASS, **changed: Any) -> bool:
        """Store one trial of a cell, or of a reference."""
        self.index += 1
        build = "instrumented" if cell == OWNED else "stock"
        event = TrialFinished(
            "run", self.index, cell, outcome, "", "", **{"build": self.batch.keys[build], **changed}
        )
        with self.db.session() as session:
            return self.recorder.trial(session, event, "its log")

    def store_all(self, outcome: Outcome = Outcome.PASS) -> None:
        """Store every trial of the claim."""
        for cell in self.batch.matrix.cells:
            for _ in range(cell.trials):
                self.store(cell.name, outcome)


def recording(db: Database, batch: Batch, who: UUID, device: Device = EMULATED) -> Recording:
    """Begin to store a claim's trials, in what they turned out to run in."""
    event = RunStarted(
        run=str(batch.claim),
        subject=batch.subject,
        commit=result.Commit(**batch.commit),
        device=device,
        matrix=batch.matrix,
        parallel=2,
        sandbox="process",
        toolchain=TOOLCHAIN,
        harness=HARNESS,
        started="2026-07-01T12:00:00+00:00",
        trials_planned=0,
    )
    recorder = Recorder(batch, who)
    with db.session() as session:
        recorder.started(session, event)
    return Recording(db, batch, recorder)


def release(
    db: Database, claim: UUID, state: ClaimState = ClaimState.DONE, reason: str = ""
) -> None:
    """End a claim and move its run on."""
    with db.session() as session:
        run = session.get_one(Claim, claim).run_id
        claims.release(session, claim, state, reason)
    step(db, run)


def carry_out(
    db: Database, run: UUID, who: UUID, outcome: Outcome = Outcome.PASS, device: Device = EMULATED
) -> None:
    """Claim, store and release a share of a run's trials, all with one outcome."""
    batch = taken(db, run, who)
    recording(db, batch, who, device).store_all(outcome)
    release(db, batch.claim)


def complete(db: Database, run: UUID, who: UUID, outcome: Outcome = Outcome.PASS) -> None:
    """Carry out all trials of a run."""
    while (batch := take(db, run, who)) is not None:
        recording(db, batch, who).store_all(outcome)
        release(db, batch.claim)


def step(db: Database, run: UUID) -> None:
    """Advance a run in a transaction of its own."""
    with db.session() as session:
        advance.advance(session, run)


def row(db: Database, run: UUID) -> Run:
    """A run as it is stored."""
    with db.session() as session:
        return session.get_one(Run, run)


def cells(db: Database, run: UUID) -> dict[str, RunCell]:
    """A run's cells by name."""
    with db.session() as session:
        found = session.exec(select(RunCell).where(RunCell.run_id == run))
        return {cell.name: cell for cell in found}


def counts(db: Database, run: UUID) -> dict[str, dict[str, int]]:
    """Trials of a run's cells by outcome, those that are there."""
    with db.session() as session:
        found = session.exec(
            select(RunCell.name, Measurement)
            .join(Measurement, col(Measurement.id) == col(RunCell.measurement_id))
            .where(RunCell.run_id == run)
        )
        return {name: {k: n for k, n in m.counts.items() if n} for name, m in found}


@dataclass(frozen=True)
class Job:
    """A job that waits in the queue. later: seconds until it is due, 0 for at once."""

    task: str
    queue: str
    lock: str
    priority: int
    later: float


def jobs(db: Database, task: str = "") -> list[Job]:
    """All that waits in the queue but what tells the outside, in the order in which it came."""
    with db.session() as session:
        found = session.connection().execute(
            text(
                "SELECT task_name, queue_name, queueing_lock, priority, "
                "greatest(0, extract(epoch FROM scheduled_at - now())) FROM procrastinate_jobs "
                "WHERE status = 'todo' AND task_name <> 'deliver' ORDER BY id"
            )
        )
        every = [Job(*row[:4], float(row[4] or 0)) for row in found]
    return [job for job in every if not task or job.task == task]


def fetched(db: Database, task: str = "") -> None:
    """Take jobs out of the queue as a worker does that is then killed."""
    with db.session() as session:
        session.connection().execute(
            text(
                "UPDATE procrastinate_jobs SET status = 'doing' "
                "WHERE status = 'todo' AND (:task = '' OR task_name = :task)"
            ),
            {"task": task},
        )


def silent(db: Database, table: str, since: timedelta = timedelta(hours=1)) -> None:
    """Let workers, claims or builds have said nothing for so long."""
    with db.session() as session:
        session.connection().execute(
            text(f"UPDATE {table} SET heartbeat_at = clock_timestamp() - CAST(:since AS interval)"),
            {"since": since},
        )


def patient(db: Database) -> ServiceSettings:
    """Settings by which none is lost that was heard since the server began, or for half an hour."""
    with db.session() as session:
        age = text("SELECT extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())")
        seconds = float(session.connection().execute(age).scalar_one())
    return ServiceSettings(worker_lost_s=min(seconds, 1800.0), database_url="")


def moment(db: Database) -> datetime:
    """Now, as the database has it."""
    with db.session() as session:
        found: datetime = (
            session.connection().execute(text("SELECT clock_timestamp()")).scalar_one()
        )
        return found


def states(db: Database, runs: Sequence[UUID]) -> set[str]:
    """The states of several runs."""
    return {str(row(db, run).state) for run in runs}
