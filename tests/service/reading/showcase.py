"""A small history in every state that pages show: races, a fix, a build error, work going on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from uuid import UUID

from sqlmodel import Session, col, select

from runner import controls, result
from runner import matrix as matrices
from runner.controls import Control
from runner.detector.record import ForeignCall, Swallow, Swallowed
from runner.matrix import Matrix
from runner.outcome import Outcome
from runner.result import TrialFinished
from runner.run import BuildId, PreparedBuild
from service import rows
from service.database import Database
from service.events import publish
from service.recording import record_trial
from service.submit import RunRequest, approve, submit
from service.tables import (
    BranchCommit,
    Build,
    BuildState,
    Cell,
    Claim,
    ClaimCell,
    ClaimState,
    Commit,
    CommitBuild,
    Environment,
    Measurement,
    Origin,
    Pull,
    Run,
    RunCell,
    RunState,
    Trial,
    Worker,
)
from service.tables.columns import now
from tests.service.conftest import _database

H200 = result.Device("cuda", "NVIDIA H200", (9, 0), "580.159.04", "0.11.2", "2.20.2", ("0", "1"))
OLD_H200 = replace(H200, driver="570.86.15")
EMULATED = result.Device("emulated", "emulated device", ids=("0",))
MATRIX = matrices.load("issue-3863")
QUICK = matrices.load("quick")

CAPTURE_LOG = """\
2026-11-30 10:58:59.100 I te.cc:12] compiling jit_both
W1130 10:59:00.000000 12 stream.cc:99] retrying after a slow start
\x1b[31mTraceback (most recent call last):\x1b[0m
  File "runner/trial/te.py", line 138, in execute
    outputs = jax.block_until_ready(self._compiled(*self._arguments))
jax.errors.JaxRuntimeError: UNKNOWN: XLA FFI call failed: rtc.h:71 in function launch: CUDA Error: \
operation failed due to a previous error during capture [executable_name='jit_both']
the background thread goes on <script>alert("never runs")</script>
E1130 10:59:01.000000 12 graph.cc:5] a later error that only follows
"""
CRASH_LOG = """\
compiling jit_both
*** Process received signal SIGSEGV (11) ***
#0 0x7f in cuEventRecord at libcuda.so
#1 0x7e in GetEventForComputeStreamSyncPoint
"""
BUILD_LOG = """\
[1/3] Building CXX object activation.cpp.o
[2/3] Building CXX object normalization.cpp.o
normalization.cpp:88:12: error: 'NormForwardFFl' was not declared in this scope; did you mean \
'NormForwardFFI'?
   88 |   return wrapInStreamCapture(std::function(NormForwardFFl), stream);
ninja: build stopped: subcommand failed.
"""
_LOGS = {Outcome.CAPTURE_ERROR: CAPTURE_LOG, Outcome.CRASH: CRASH_LOG}
_SIGNATURES = {
    Outcome.CAPTURE_ERROR: "cudaErrorStreamCaptureInvalidated",
    Outcome.CRASH: "SIGSEGV in cuEventRecord",
    Outcome.HANG: "hang in execute",
    Outcome.DATA_LOSS: "stale rows",
    Outcome.INFRA_ERROR: "cudaErrorMemoryAllocation",
}
Counts = Mapping[str, Mapping[Outcome, int]]
"""Trials by outcome, by name of a cell; cells that are not named get their trials as passes."""
RACES: Counts = {
    "stock, background": {Outcome.CAPTURE_ERROR: 9, Outcome.CRASH: 1},
    "stock, background, hold 20 ms": {Outcome.CAPTURE_ERROR: 4, Outcome.HANG: 1, Outcome.PASS: 1},
    "softmax ffi13, background": {Outcome.CAPTURE_ERROR: 1, Outcome.PASS: 9},
    "softmax ffi13, background, hold 20 ms": {Outcome.DATA_LOSS: 2, Outcome.PASS: 4},
    "unregistered, background": {Outcome.PASS: 10, Outcome.INFRA_ERROR: 1},
}


@contextmanager
def database(postgres: str, template: str) -> Iterator[Database]:
    """A database with the whole schema on that server, dropped afterwards."""
    with _database(postgres, template) as url:
        found = Database(url)
        yield found
        found.close()


@dataclass(frozen=True)
class Showcase:
    """What was made: hashes and ids of commits by tag, ids of runs and cells by name, and of some
    rows."""

    shas: Mapping[str, str]
    commits: Mapping[str, int]
    cells: Mapping[str, int]
    runs: Mapping[str, UUID]
    failed_trial: int
    swallowing_pass: int
    measurement: int
    failed_build: int
    worker: UUID


class _Maker:
    def __init__(self, session: Session) -> None:
        self.session = session

    def commit(
        self, subject: str, number: int, title: str, branch: str = "main", place: int | None = None
    ) -> Commit:
        sha = f"{number:02d}{subject}".encode().hex().ljust(40, "0")[:40]
        moment = now() - timedelta(hours=9 * (30 - number))
        commit = rows.commit_row(
            self.session,
            subject,
            result.Commit(sha, branch, title, "Ada Maintainer", moment.isoformat()),
        )
        assert commit.id is not None
        if place is not None:
            self.session.add(
                BranchCommit(subject=subject, branch=branch, position=place, commit_id=commit.id)
            )
        return commit

    def builds(
        self, commit: Commit, matrix: Matrix, queue: str, key: str, broken: bool = False
    ) -> dict[str, Build]:
        """The builds of a commit, shared by all commits with that key."""
        made = {}
        for name in sorted({str(BuildId.of(cell)) for cell in matrix.cells}):
            prepared = PreparedBuild(f"{key}-{name}-{queue}", seconds=74.6)
            if broken:
                prepared = replace(
                    prepared,
                    outcome=Outcome.BUILD_ERROR,
                    signature="error: 'NormForwardFFl' was not declared in this scope",
                    reason="the first error is the compiler's or the linker's",
                    log=BUILD_LOG,
                )
            build = rows.build_row(self.session, commit.subject, prepared, "")
            assert commit.id is not None
            self.session.add(
                CommitBuild(
                    commit_id=commit.id,
                    name=name,
                    toolchain="cu13-jax011",
                    architecture=queue,
                    state=BuildState.DONE,
                    build_id=build.id,
                    attempts=1,
                    finished_at=now(),
                )
            )
            made[name] = build
        self.session.flush()
        return made

    def run(
        self,
        commit: Commit,
        matrix: Matrix,
        device: result.Device,
        queue: str,
        builds: Mapping[str, Build],
        counts: Counts,
        *,
        state: RunState = RunState.COMPLETE,
        age: timedelta = timedelta(),
        worker: Worker | None = None,
    ) -> Run:
        """A run whose cells have those counts; all in one claim."""
        environment = rows.environment_row(self.session, device, "cu13-jax011", "2")
        run = Run(
            subject=commit.subject,
            commit_id=commit.id,
            head_sha=commit.sha,
            ref="main",
            matrix_name=matrix.name,
            matrix=matrices.as_data(matrix),
            clean_below=matrix.clean_below,
            queue=queue,
            origin=Origin.PUSH,
            state=state,
            environment_id=environment.id,
            requested_by="push to main",
            facts={"toolchain": "cu13-jax011", "parallel": 16, "sandbox": "process"},
            created_at=now() - age,
            started_at=now() - age,
            finished_at=None if state is RunState.RUNNING else now() - age,
        )
        self.session.add(run)
        self.session.flush()
        claim = Claim(
            run_id=run.id,
            worker_id=worker.id if worker else None,
            state=ClaimState.LIVE if state is RunState.RUNNING else ClaimState.DONE,
        )
        self.session.add(claim)
        self.session.flush()
        index = 0
        for position, cell in enumerate(matrix.cells):
            build = builds[str(BuildId.of(cell))]
            cell_row = rows.cell_row(self.session, cell)
            ordered = RunCell(
                run_id=run.id,
                position=position,
                name=cell.name,
                cell_id=_id(cell_row),
                build=str(BuildId.of(cell)),
                wanted=cell.trials,
            )
            if build.outcome:
                ordered.outcome, ordered.signature = build.outcome, build.signature
                ordered.decided = build.reason
                self.session.add(ordered)
                continue
            measurement = rows.measurement_row(self.session, build, cell_row, environment)
            ordered.measurement_id = measurement.id
            self.session.add(ordered)
            self.session.flush()
            index = self.trials(run, claim, ordered, measurement, _of(cell, counts), index, worker)
            if state is RunState.RUNNING:
                self.session.add(
                    ClaimCell(
                        claim_id=claim.id,
                        run_cell_id=_id(ordered),
                        trials=cell.trials,
                        recorded=sum(_of(cell, counts).values()),
                    )
                )
        self.session.flush()
        return run

    def trials(
        self,
        run: Run,
        claim: Claim,
        ordered: RunCell,
        measurement: Measurement,
        counts: Mapping[Outcome, int],
        index: int,
        worker: Worker | None = None,
    ) -> int:
        for outcome, count in counts.items():
            for _ in range(count):
                add_trial(self.session, run, claim, ordered, measurement, outcome, index, worker)
                index += 1
        return index


def add_trial(
    session: Session,
    run: Run,
    claim: Claim,
    ordered: RunCell,
    measurement: Measurement,
    outcome: Outcome,
    index: int,
    worker: Worker | None = None,
) -> None:
    """One finished trial, stored as a worker's are."""
    failed = outcome is not Outcome.PASS
    cell = session.get_one(Cell, measurement.cell_id)
    event = TrialFinished(
        run=str(run.id),
        index=index,
        cell=ordered.name,
        outcome=outcome,
        signature=_SIGNATURES.get(outcome, "") if failed else "",
        reason="the first error is CUDA's own report of a broken stream capture"
        if failed
        else "it finished, and its values are exact",
        seconds=2.807 + 0.01 * index,
        device="0",
        recipe="fp8-current-scaling",
        digests=()
        if failed
        else ("be8804e96d631a1b7cd7fc46967741e4342d7b72fec3a6b3d092fed417",) * 2,
        background_updates=128,
        times={"compile": 1.8682, "execute": 2.6351},
        evidence={
            "kind": "trial",
            "exit_status": 1 if failed else 0,
            "finished": not failed,
            "stage": "execute" if failed else "done",
            "error": "JaxRuntimeError: UNKNOWN: XLA FFI call failed" if failed else "",
            "platform": "cuda",
        },
        swallow=_seen(cell, outcome, index) if run.subject == "te" else None,
    )
    record_trial(
        session,
        claim_id=claim.id,
        run_id=run.id,
        run_cell_id=ordered.id,
        measurement_id=_id(measurement),
        event=event,
        log=_LOGS.get(outcome, "compiling jit_both\ndone\n"),
        worker_id=worker.id if worker else None,
    )


def _seen(cell: Cell, outcome: Outcome, index: int) -> Swallow | None:
    """What a detector would have seen: whatever fails swallowed first, and of held passes of
    `ffi13` every other did. Some cells were run without."""
    if cell.reference or cell.variant == "unregistered":
        return Swallow(reason="the device's driver took another tool's library")
    if cell.program == "softmax-quantize-router" and cell.variant == "stock":
        return None
    own = 18 if cell.variant != "owned-stream" else 12
    failed = outcome is not Outcome.PASS
    lucky = not failed and cell.variant == "ffi13" and cell.hold_ms and index % 2 == 0
    if not (failed or lucky):
        return Swallow(windows=6, own=own)
    foreign = 15 + index % 40
    launches = foreign - 3
    return Swallow(
        windows=6,
        own=own,
        foreign=foreign,
        calls=(
            Swallowed("cuLaunchKernelEx", "background", launches),
            Swallowed("cuMemcpyDtoDAsync_v2", "background", 3),
        ),
        first=tuple(
            ForeignCall("cuLaunchKernelEx", "background", 1, 0.041 + 0.11 * n) for n in range(5)
        ),
    )


def one_more(database: Database, run_id: UUID, outcome: Outcome = Outcome.CRASH) -> None:
    """One more trial of a run's first cell, told to whoever listens."""
    with database.session() as session:
        run = session.get_one(Run, run_id)
        claim = session.exec(select(Claim).where(Claim.run_id == run_id)).first()
        ordered = session.exec(
            select(RunCell).where(RunCell.run_id == run_id, RunCell.position == 0)
        ).one()
        assert claim is not None
        measurement = session.get_one(Measurement, ordered.measurement_id)
        index = 10_000 + ordered.recorded
        add_trial(session, run, claim, ordered, measurement, outcome, index)
        publish(session, "trial", run=run_id, cell=ordered.name, outcome=outcome)


def commit_on_main(session: Session, title: str, place: int) -> None:
    """One more commit at the head of TE's main."""
    _Maker(session).commit("te", 40 + place, title, place=place)


def remove_from_main(session: Session, place: int) -> None:
    """Undo it, for the tests that follow."""
    session.delete(session.get_one(BranchCommit, ("te", "main", place)))


def make(database: Database) -> Showcase:
    """All of it, in one transaction."""
    with database.session() as session:
        return _make(_Maker(session))


_TITLES = (
    "[JAX] Support head dimension 256 in fused attention",
    "[C] Tune the layernorm kernels for Hopper",
    "[Common] Sort the tile sizes by how often they win (#2207)",
    "[JAX] Check shapes before tracing (#2212)",
    "[JAX] Add FFI initialize stages for custom calls (#2219)",
    "[PyTorch] Fix a typo in the docs (#2231)",
    "[JAX] Capture on the compute stream of the device that the program was compiled for, whatever "
    "the stream that the caller passes (#2240)",
    "[JAX] Rename NormForwardFFI (#2244)",
    "[JAX] Repair the build (#2245)",
    "[JAX] Quantize gradients in one pass (#2250)",
    "[JAX] Capture on a stream that TE owns (#3864)",
    "[C] Add release notes (#3870)",
)


def _make(maker: _Maker) -> Showcase:
    session = maker.session
    worker = _worker(session, "gpu-host-7", H200)
    _worker(session, "build-host-1", None, doing="")
    lost = _worker(session, "gpu-host-3", OLD_H200)
    lost.heartbeat_at = now() - timedelta(minutes=4)
    main = [maker.commit("te", n, title, place=n) for n, title in enumerate(_TITLES)]
    runs: dict[str, Run] = {}
    for n, commit in enumerate(main[:11]):
        race = 4 <= n <= 9
        key = {5: "k4", 11: "k10"}.get(n, f"k{n}")
        broken = n == 7
        built = maker.builds(commit, MATRIX, "sm90", key, broken)
        if n in (1, 5):
            continue
        device = OLD_H200 if n == 0 else H200
        made = maker.run(
            commit,
            MATRIX,
            device,
            "sm90",
            built,
            RACES if race else {},
            age=timedelta(hours=30 - n),
        )
        made.parity = {
            "between": "stock and owned-stream",
            "status": "identical",
            "reason": "one SHA-256 over the bits of both executions",
        }
        runs[{4: "race", 7: "broken", 8: "doubted", 10: "fix"}.get(n, f"commit {n}")] = made
        if n in (4, 8):
            _controls(maker, made, main[4], built["stock"], good_fails=5 if n == 8 else 0)
    runs["running"] = _under_way(maker, main[11], worker)
    _more_trials_of_the_fix(maker, runs["fix"])
    fork = maker.commit("te", 20, "Speed up the router", "pull/2800")
    session.add(
        Pull(
            subject="te", number=2800, title="Speed up the router", author="someone",
            head_sha=fork.sha, head_repository="someone/TransformerEngine", base_ref="main",
            base_repository="NVIDIA/TransformerEngine", fork=True,
        )
    )  # fmt: skip
    runs["awaiting"] = submit(session, _of_pull(fork, awaiting=True))
    own = maker.commit("te", 21, "Try another tile size", "pull/2801")
    session.add(
        Pull(
            subject="te", number=2801, title="Try another tile size", author="ada",
            head_sha=own.sha, head_repository="NVIDIA/TransformerEngine", base_ref="main",
            base_repository="NVIDIA/TransformerEngine", fork=False, draft=True,
        )
    )  # fmt: skip
    queued = submit(session, _of_pull(own, awaiting=True))
    approve(session, queued, "a maintainer")
    runs["queued"] = queued
    runs["emulated"] = _demo(maker)
    for run in runs.values():
        session.add(run)
    session.flush()
    failed = session.exec(
        select(Build.id).where(Build.subject == "te", Build.outcome == Outcome.BUILD_ERROR)
    ).first()
    tags = {"before": 3, "race": 4, "same": 5, "broken": 7, "doubted": 8, "fix": 10, "head": 11}
    return Showcase(
        shas={tag: main[n].sha for tag, n in tags.items()},
        commits={tag: main[n].id or 0 for tag, n in tags.items()},
        cells={cell.name: _id(rows.cell_row(session, cell)) for cell in MATRIX.cells},
        runs={name: run.id for name, run in runs.items()},
        failed_trial=_first_failure(session, runs["race"]),
        swallowing_pass=_swallowing_pass(session, runs["race"]),
        measurement=_first_cell(session, runs["race"]),
        failed_build=failed or 0,
        worker=worker.id,
    )


def _controls(maker: _Maker, run: Run, commit: Commit, build: Build, good_fails: int) -> None:
    """Six trials of each control cell: known-bad fails always, known-good so often."""
    session = maker.session
    run.facts = {**run.facts, "control": commit.id, "control_build": build.id}
    claim = session.exec(select(Claim).where(Claim.run_id == run.id)).one()
    environment = session.get_one(Environment, run.environment_id)
    for control, failing in ((Control.KNOWN_BAD, 6), (Control.KNOWN_GOOD, good_fails)):
        cell = rows.cell_row(session, controls.cell(control), reference=True)
        measurement = rows.measurement_row(session, build, cell, environment)
        session.flush()
        for n in range(6):
            outcome = Outcome.CAPTURE_ERROR if n < failing else Outcome.PASS
            event = TrialFinished(
                run=str(run.id),
                index=(5_000 if control is Control.KNOWN_BAD else 6_000) + n,
                cell=f"{controls.PREFIX}{control}",
                outcome=outcome,
                signature=_SIGNATURES.get(outcome, ""),
                reason="a control cell",
                seconds=2.8,
                device="0",
            )
            record_trial(
                session,
                claim_id=claim.id,
                run_id=run.id,
                run_cell_id=None,
                measurement_id=_id(measurement),
                event=event,
                log=_LOGS.get(outcome, ""),
            )


def _under_way(maker: _Maker, commit: Commit, worker: Worker) -> Run:
    built = maker.builds(commit, QUICK, "sm90", "k11")
    counts = {cell.name: {Outcome.PASS: 2} for cell in QUICK.cells}
    counts[QUICK.cells[-1].name] = {}
    run = maker.run(
        commit, QUICK, H200, "sm90", built, counts, state=RunState.RUNNING, worker=worker
    )
    worker.doing = f"trials of run {str(run.id)[:8]}"
    return run


def _more_trials_of_the_fix(maker: _Maker, run: Run) -> None:
    """Enough passes for `clean`, in its first cell."""
    ordered = maker.session.exec(
        select(RunCell).where(RunCell.run_id == run.id, RunCell.position == 0)
    ).one()
    claim = maker.session.exec(select(Claim).where(Claim.run_id == run.id)).one()
    measurement = maker.session.get_one(Measurement, ordered.measurement_id)
    maker.trials(run, claim, ordered, measurement, {Outcome.PASS: 70}, 1_000)


def _demo(maker: _Maker) -> Run:
    commits = [
        maker.commit("demo", n, title, place=n)
        for n, title in enumerate(("Add the handlers", "Capture in initialize", "Own the stream"))
    ]
    run = None
    for n, commit in enumerate(commits):
        built = maker.builds(commit, QUICK, "emulated", f"demo{n}")
        counts: Counts = {QUICK.cells[0].name: {Outcome.CAPTURE_ERROR: 5, Outcome.PASS: 1}}
        run = maker.run(
            commit, QUICK, EMULATED, "emulated", built, counts if n == 1 else {},
            age=timedelta(days=3),
        )  # fmt: skip
    assert run is not None
    return run


def _of_pull(commit: Commit, awaiting: bool) -> RunRequest:
    return RunRequest(
        subject="te",
        matrix=QUICK,
        queue="sm90",
        commit=result.Commit(commit.sha, commit.ref, commit.title),
        pull=int(commit.ref.removeprefix("pull/")),
        origin=Origin.PULL_REQUEST,
        trusted=False,
        awaiting_approval=awaiting,
    )


def _worker(session: Session, name: str, device: result.Device | None, doing: str = "") -> Worker:
    facts = {} if device is None else {
        "kind": device.kind, "name": device.name, "driver": device.driver, "jax": device.jax,
        "ids": list(device.ids),
    }  # fmt: skip
    queues = ["build-te", *(["trial-sm90"] if device else [])]
    worker = Worker(
        name=name, host=f"{name}.example", pid=4711, version="0.1.0", queues=queues,
        device=facts, parallel=16 if device else 1, doing=doing,
    )  # fmt: skip
    session.add(worker)
    session.flush()
    return worker


def _of(cell: matrices.Cell, counts: Counts) -> Mapping[Outcome, int]:
    return counts.get(cell.name, {Outcome.PASS: cell.trials})


def _first_failure(session: Session, run: Run) -> int:
    found = session.exec(
        select(Trial.id).where(Trial.run_id == run.id, Trial.outcome == Outcome.CAPTURE_ERROR)
    ).first()
    assert found is not None
    return found


def _swallowing_pass(session: Session, run: Run) -> int:
    found = session.exec(
        select(Trial.id).where(
            Trial.run_id == run.id, Trial.outcome == Outcome.PASS, col(Trial.foreign_nodes) > 0
        )
    ).first()
    assert found is not None
    return found


def _first_cell(session: Session, run: Run) -> int:
    found = session.exec(
        select(RunCell.measurement_id).where(RunCell.run_id == run.id, RunCell.position == 0)
    ).one()
    assert found is not None
    return found


def _id(row: Cell | RunCell | Measurement) -> int:
    assert row.id is not None, "the row was flushed"
    return row.id
