"""A bisection through the queue: its probes are runs of one cell, on all workers there are.

Its state is the fold of its stored events (see `runner.bisect`); `advance` looks at what ended,
stores it, and orders what the state asks for next. Idempotent, like a run's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import func
from sqlmodel import Session, col, select

from runner import matrix as matrices
from runner.bisect.bisection import Bisection as State
from runner.bisect.bisection import Decision, Probe, Settings
from runner.bisect.events import Entered, Event, Observation, Reverted, Seen, from_data, to_data
from runner.bisect.local import higher
from runner.bisect.range import Range
from runner.bisect.settings import Observe
from runner.bisect.verdict import Verdict
from runner.errors import InputError
from runner.matrix import Cell, Matrix
from runner.outcome import FAILURES, Outcome
from runner.result import Commit
from service import claims, rows, submit
from service.database import clock
from service.events import publish
from service.queue import CONTROL, build_queue, git_queue, trial_queue, wake
from service.reading import doubted
from service.tables import (
    OPEN_STATES,
    PRIORITIES,
    Bisection,
    BisectionEvent,
    BisectionState,
    Build,
    Claim,
    ClaimCell,
    CommitBuild,
    Measurement,
    Origin,
    Pull,
    Run,
    RunCell,
    Trial,
    Worker,
    WorkerState,
)
from service.tables import Commit as CommitRow
from service.tables.columns import now

OPEN = (BisectionState.QUEUED, BisectionState.RUNNING)
LOOKS = 8
"""Attempts to have git tell one thing: with the pauses between them a third of an hour."""
PAUSE_S = 10
"""After the first attempt that the host could not carry out; twice as long after each further."""


@dataclass(frozen=True)
class BisectionRequest:
    """What is asked for; see `service.tables.Bisection`. id: a random one by default."""

    subject: str
    good: str
    bad: str
    matrix: Matrix
    cell: str
    queue: str
    toolchain: str = ""
    confidence: float = 0.99
    budget_s: float | None = None
    requested_by: str = ""
    observe: Observe = Observe.FAILURE
    cause: UUID | None = None
    id: UUID | None = None


def order(session: Session, request: BisectionRequest) -> Bisection:
    """Store a bisection and wake who works out its range. Raises InputError, MatrixError."""
    (cell,) = request.matrix.only((request.cell,)).cells
    if not 0.5 < request.confidence < 1:
        raise InputError(
            f"confidence: must be more than 0.5 and less than 1, got {request.confidence:g}"
        )
    if request.budget_s is not None and not request.budget_s > 0:
        raise InputError(f"budget: must be more than 0 s, got {request.budget_s:g}")
    for name, ref in (("good", request.good), ("bad", request.bad)):
        if not ref:
            raise InputError(f"{name}: must be a commit, branch or tag, got nothing")
    row = Bisection(
        id=request.id or uuid4(),
        subject=request.subject,
        good=request.good,
        bad=request.bad,
        matrix_name=request.matrix.name,
        cell_name=request.cell,
        cell=matrices.as_data(replace(request.matrix, cells=(cell,)))["cells"][0],
        queue=request.queue,
        toolchain=request.toolchain,
        confidence=request.confidence,
        budget_s=request.budget_s,
        requested_by=request.requested_by,
        observe=request.observe,
        cause_id=request.cause,
    )
    session.add(row)
    session.flush()
    _wake(session, row)
    publish(session, "bisection", bisection=row.id, state=row.state)
    return row


def _wake(session: Session, row: Bisection, what: str = "range", place: int = 0) -> None:
    """Wake a worker with git: for the range, for a merge's inside, or for a revert."""
    wake(
        session, "bisect", git_queue(row.subject), lock=f"bisect:{row.id}",
        priority=PRIORITIES[Origin.BISECTION], at=row.again_at,
        bisection=str(row.id), what=what, place=place,
    )  # fmt: skip


def locked(session: Session, bisection: UUID) -> Bisection | None:
    """The row as it is now, for this transaction alone; None where it is not there."""
    return session.get(Bisection, bisection, populate_existing=True, with_for_update=True)


def is_open(session: Session, bisection: UUID) -> bool:
    """Whether it has not ended yet."""
    found = select(Bisection.id).where(Bisection.id == bisection, col(Bisection.state).in_(OPEN))
    return session.exec(found).first() is not None


def cancel(session: Session, bisection: UUID, reason: str) -> bool:
    """End a bisection and its probes; False where it had ended, or is not there."""
    row = locked(session, bisection)
    if row is None or row.state not in OPEN:
        return False
    _end(session, row, BisectionState.CANCELLED, reason)
    return True


def _end(session: Session, row: Bisection, state: BisectionState, reason: str = "") -> None:
    row.state, row.reason, row.finished_at = state, reason, now()
    session.add(row)
    session.flush()
    for run in probes(session, row, open_only=True):
        submit.cancel(session, run.id, "its bisection has ended")
    publish(session, "bisection", bisection=row.id, state=row.state)


def fail(session: Session, bisection: UUID, reason: str) -> None:
    """End a bisection that cannot be carried out: there is nothing to bisect, say."""
    row = locked(session, bisection)
    if row is not None and row.state in OPEN:
        _end(session, row, BisectionState.FAILED, reason)


# What happened


def asked(session: Session, bisection: UUID, what: str) -> dict[str, Any] | None:
    """What a worker is told besides for a job of it; None where that is no longer wanted."""
    row = locked(session, bisection)
    if row is None or row.state not in OPEN:
        return None
    if what == "range":
        return {"own": _own_heads(session, row)} if row.searched is None else None
    wanted = decision(session, row)
    state = state_of(row, events(session, row))
    assert state is not None
    if what == "enter" and wanted.enter is not None:
        return {"place": wanted.enter, "range": state.range.to_data()}
    if what == "revert" and wanted.revert is not None:
        return {
            "culprit": asdict(wanted.revert.culprit),
            "head": asdict(wanted.revert.head),
        }
    return None


def refused(session: Session, bisection: UUID, what: str, reason: str) -> None:
    """What was asked of git is not to be had: without a range it ends, else it goes on without."""
    if what == "range":
        fail(session, bisection, reason)
        return
    event = Entered(None, reason) if what == "enter" else Reverted(reason=reason)
    _happened(session, bisection, event)


def held_up(session: Session, bisection: UUID, what: str, reason: str) -> None:
    """A host could not find out what was asked of git: somebody does later, LOOKS times at most."""
    if asked(session, bisection, what) is None:
        return
    row = session.get_one(Bisection, bisection)
    row.setbacks += 1
    if row.setbacks >= LOOKS:
        given_up = f"given up: git told nothing in {LOOKS} attempts: " if what == "range" else ""
        session.flush()
        refused(session, bisection, what, f"{given_up}{reason}")
        return
    pause = timedelta(seconds=PAUSE_S * 2 ** (row.setbacks - 1))
    row.reason, row.again_at = reason, clock(session) + pause
    session.add(row)
    session.flush()
    publish(session, "bisection", bisection=row.id, state=row.state)
    advance(session, bisection)


def _got_on(row: Bisection) -> None:
    """Git told what was asked: what held it up is over."""
    row.setbacks, row.reason, row.again_at = 0, "", None


def _own_heads(session: Session, row: Bisection) -> list[str]:
    """Ends that are heads of pull requests of the repository's own branches."""
    found = select(Pull.head_sha).where(
        Pull.subject == row.subject, ~col(Pull.fork), col(Pull.head_sha).in_((row.good, row.bad))
    )
    return list(session.exec(found))


def ranged(session: Session, bisection: UUID, answer: Mapping[str, Any]) -> None:
    """Take in the range that a worker worked out, and trials of its builds that are there."""
    searched = answer["range"]
    row = locked(session, bisection)
    if row is None or row.state != BisectionState.QUEUED:
        return
    row.searched, row.state, row.started_at = searched, BisectionState.RUNNING, now()
    _got_on(row)
    session.add(row)
    session.flush()
    for number, event in enumerate(_known(session, row, Range.from_data(searched))):
        session.add(_event_row(row, number, event))
    session.flush()
    advance(session, bisection)


def _known(session: Session, row: Bisection, searched: Range) -> list[Observation]:
    """Trials that other runs made of the range's builds in this cell: observations for nothing.

    Of one environment only: of those in which probes could run now, the one that has most of them;
    of all, where no worker is there. Of swallows, those that were watched. None of a device that
    failed its control cells.
    """
    here = {one.environment_id for one in claims.taking(session, trial_queue(row.queue))}
    doubts = doubted.find(session)
    cell = rows.cell_row(session, cell_of(row))
    places = {one.sha: each.key for each in searched.classes for one in each.commits}
    found = session.exec(
        select(CommitRow.sha, Build.id, Measurement)
        .join(CommitBuild, col(CommitBuild.commit_id) == col(CommitRow.id))
        .join(Build, col(Build.id) == col(CommitBuild.build_id))
        .join(Measurement, col(Measurement.build_id) == col(Build.id))
        .where(
            CommitRow.subject == row.subject,
            col(CommitRow.sha).in_(places),
            CommitBuild.name == searched.build,
            CommitBuild.architecture == row.queue,
            Measurement.cell_id == cell.id,
        )
    ).all()
    by_environment: dict[int, dict[tuple[str, int | None], tuple[str, int, int]]] = {}
    for sha, _, measurement in found:
        if measurement.id in doubts or (here and measurement.environment_id not in here):
            continue
        kept = by_environment.setdefault(measurement.environment_id, {})
        k, n = measurement.k, measurement.n
        if row.observe == Observe.SWALLOW:
            k, n = measurement.swallowed, measurement.watched
        kept[places[sha], measurement.id] = (places[sha], k, n)
    if not by_environment:
        return []
    best = max(by_environment.values(), key=lambda kept: sum(n for _, _, n in kept.values()))
    return [Observation(key, k=k, n=n) for key, k, n in best.values() if n]


def entered(session: Session, bisection: UUID, answer: Mapping[str, Any]) -> None:
    """Take in the range inside a merge, if there is one."""
    inner = answer["range"]
    _happened(session, bisection, Entered(Range.from_data(inner) if inner else None))


def reverted(session: Session, bisection: UUID, answer: Mapping[str, Any]) -> None:
    """Take in the head without the culprit, or why there is none."""
    commit = Commit(**answer["commit"]) if answer.get("commit") else None
    event = Reverted(commit, answer.get("key", ""), answer.get("reason", ""))
    _happened(session, bisection, event)


def _happened(session: Session, bisection: UUID, event: Event) -> None:
    row = locked(session, bisection)
    if row is None or row.state != BisectionState.RUNNING:
        return
    expected = decision(session, row)
    asked = expected.enter is not None if isinstance(event, Entered) else expected.revert
    if asked:  # else a job that ran twice tells it again
        _got_on(row)
        session.add(_event_row(row, len(events(session, row)), event))
        session.flush()
    advance(session, bisection)


def _event_row(
    row: Bisection, number: int, event: Event, run: UUID | None = None
) -> BisectionEvent:
    return BisectionEvent(bisection_id=row.id, number=number, data=to_data(event), run_id=run)


# Where it stands


def settings_of(row: Bisection) -> Settings:
    """The settings of its policy."""
    return Settings(confidence=row.confidence, budget_s=row.budget_s, observe=Observe(row.observe))


def cell_of(row: Bisection) -> Cell:
    """The cell whose rate it looks at."""
    (cell,) = matrices.from_data({"name": row.matrix_name, "cells": [row.cell]}).cells
    return cell


def events(session: Session, row: Bisection) -> list[Event]:
    """What happened so far, in order."""
    found = session.exec(
        select(BisectionEvent.data)
        .where(BisectionEvent.bisection_id == row.id)
        .order_by(col(BisectionEvent.number))
    )
    return [from_data(dict(data)) for data in found]


def state_of(row: Bisection, happened: Sequence[Event]) -> State | None:
    """Its state, None while its range is not known."""
    if row.searched is None:
        return None
    return State.start(Range.from_data(row.searched), higher, settings_of(row), happened)


def decision(session: Session, row: Bisection) -> Decision:
    """What is to be done now."""
    state = state_of(row, events(session, row))
    if state is None:
        return Decision("working out the range")
    running = [probe_of(run) for run in probes(session, row, open_only=True)]
    elapsed = (now() - (row.started_at or row.created_at)).total_seconds()
    return state.next(
        builders=max(1, _builders(session, row)),
        running=running,
        cached=_built(session, row, state.range),
        elapsed_s=elapsed,
    )


def _builders(session: Session, row: Bisection) -> int:
    found = session.exec(select(Worker).where(Worker.state == WorkerState.LIVE))
    return sum(build_queue(row.subject) in worker.queues for worker in found)


def _built(session: Session, row: Bisection, searched: Range) -> set[str]:
    """Keys of the range whose build is there."""
    keys = {one.sha: each.key for each in searched.classes for one in each.commits}
    found = session.exec(
        select(CommitRow.sha)
        .join(CommitBuild, col(CommitBuild.commit_id) == col(CommitRow.id))
        .join(Build, col(Build.id) == col(CommitBuild.build_id))
        .where(
            CommitRow.subject == row.subject,
            col(CommitRow.sha).in_(keys),
            CommitBuild.name == searched.build,
            CommitBuild.architecture == row.queue,
            col(Build.outcome).is_(None),
        )
    )
    return {keys[sha] for sha in found}


def probes(session: Session, row: Bisection, open_only: bool = False) -> list[Run]:
    """The runs that are its probes, the oldest first."""
    statement = select(Run).where(Run.bisection_id == row.id).order_by(col(Run.created_at))
    if open_only:
        statement = statement.where(col(Run.state).in_(OPEN_STATES))
    return list(session.exec(statement))


def probe_of(run: Run) -> Probe:
    """What a run of a bisection was ordered for."""
    data = run.facts["probe"]
    return Probe(**{**data, "commit": Commit(**data["commit"])})


# What follows


def advance(session: Session, bisection: UUID) -> None:
    """Store what ended, and order what is wanted next."""
    row = locked(session, bisection)
    if row is None or row.state not in OPEN:
        return
    if row.state == BisectionState.QUEUED:
        _wake(session, row)
        return
    _observe(session, row)
    wanted = decision(session, row)
    if wanted.verdict is not None:
        row.verdict = verdict_data(wanted.verdict)
        _end(session, row, BisectionState.DONE)
        return
    if wanted.enter is not None:
        _wake(session, row, "enter", wanted.enter)
    if wanted.revert is not None:
        _wake(session, row, "revert")
    for probe in wanted.probes:
        _submit(session, row, probe)
    publish(session, "bisection", bisection=row.id, state=row.state)


def verdict_data(verdict: Verdict) -> dict[str, Any]:
    """A verdict as JSON takes it, its sentences among it."""
    data = asdict(verdict)
    for name, side in (("before", verdict.before), ("after", verdict.after)):
        if side is not None:
            data[name] = {**data[name], "text": side.text}
    return data


def _observe(session: Session, row: Bisection) -> None:
    """Turn probes that ended into events, in the order in which they ended, each once."""
    known = set(
        session.exec(
            select(BisectionEvent.run_id).where(BisectionEvent.bisection_id == row.id)
        ).all()
    )
    number = len(events(session, row))
    ended = [
        run for run in probes(session, row) if run.state not in OPEN_STATES and run.id not in known
    ]
    for run in sorted(ended, key=lambda run: (run.finished_at or run.created_at, str(run.id))):
        seen = _observation(session, run, Observe(row.observe))
        session.add(_event_row(row, number, seen, run.id))
        number += 1
    session.flush()


def _observation(session: Session, run: Run, observe: Observe) -> Observation:
    probe = probe_of(run)
    cell = session.exec(select(RunCell).where(RunCell.run_id == run.id)).one()
    counts: dict[str, int] = dict(
        session.exec(
            select(Trial.outcome, func.count())
            .where(Trial.run_id == run.id, Trial.run_cell_id == cell.id)
            .group_by(col(Trial.outcome))
        ).all()
    )
    k = sum(counts.get(outcome, 0) for outcome in FAILURES)
    counted = n = k + counts.get(Outcome.PASS, 0)
    if observe is Observe.SWALLOW:
        k, n = _swallows(session, run, cell)
    seen = Observation(
        probe.key,
        k=k,
        n=n,
        check=probe.check,
        build_s=_build_seconds(session, run, cell.build),
        trial_s=_trial_seconds(session, run),
    )
    if seen.n:
        return seen
    if counted:
        reason = "no trial was watched by the detector"
        return replace(seen, seen=Seen.INFRASTRUCTURE, reason=reason)
    if cell.outcome is not None or counts.get(Outcome.UNSUPPORTED):
        return replace(seen, seen=Seen.UNBUILDABLE, reason=cell.decided or "unsupported")
    return replace(seen, seen=Seen.INFRASTRUCTURE, reason=run.reason or f"the run is {run.state}")


def _swallows(session: Session, run: Run, cell: RunCell) -> tuple[int, int]:
    """Trials with foreign work in a window, of those that count and were watched."""
    found = session.exec(
        select(func.count().filter(col(Trial.foreign_nodes) > 0), func.count()).where(
            Trial.run_id == run.id,
            Trial.run_cell_id == cell.id,
            col(Trial.foreign_nodes).is_not(None),
            col(Trial.outcome).in_((*FAILURES, Outcome.PASS)),
        )
    ).one()
    return found[0], found[1]


def _build_seconds(session: Session, run: Run, name: str) -> float:
    """Seconds that building took for this probe; 0 where the build was there."""
    found = session.exec(
        select(Build.seconds)
        .join(CommitBuild, col(CommitBuild.build_id) == col(Build.id))
        .where(
            CommitBuild.commit_id == run.commit_id,
            CommitBuild.name == name,
            CommitBuild.architecture == run.queue,
            Build.created_at >= run.created_at,
        )
    ).first()
    return found or 0.0


def _trial_seconds(session: Session, run: Run) -> float:
    taken = func.extract("epoch", col(Claim.finished_at) - col(Claim.created_at))
    of_trials = select(ClaimCell.claim_id).where(ClaimCell.claim_id == Claim.id).exists()
    found = session.exec(
        select(func.coalesce(func.sum(taken), 0)).where(Claim.run_id == run.id, of_trials)
    ).one()
    return float(found)


def _submit(session: Session, row: Bisection, probe: Probe) -> None:
    cell = replace(cell_of(row), trials=probe.trials)
    submit.submit(
        session,
        submit.RunRequest(
            subject=row.subject,
            matrix=Matrix("bisection", "", (cell,), detect=True),
            queue=row.queue,
            commit=probe.commit,
            toolchain=row.toolchain,
            origin=Origin.BISECTION,
            requested_by=f"bisection {row.id}",
            trusted=not any(_may_be_forks(session, row, pull) for pull in cell.variant.pulls),
            bisection=row.id,
            facts={"probe": {**asdict(probe)}},
        ),
    )


def _may_be_forks(session: Session, row: Bisection, pull: int) -> bool:
    """Whether a pull request that the cell merges brings code that nobody vouches for."""
    known = session.get(Pull, (row.subject, pull))
    return known is None or known.fork


def wake_advance(session: Session, bisection: UUID) -> None:
    """Let the service look at a bisection: a probe of it has ended."""
    wake(session, "bisection", CONTROL, lock=f"bisection:{bisection}", bisection=str(bisection))
