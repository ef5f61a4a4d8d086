"""Moves a run on as far as its rows allow: idempotent, called after every step and by the sweep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, func, text, true
from sqlmodel import Session, col, select

from runner import matrix as matrices
from runner import result
from runner.controls import none_for
from runner.outcome import Outcome
from runner.run import BuildId, builds_of
from runner.statistics.sequential import Action, Stopping
from runner.variants.names import Variant
from service import bisection, branch, builds, claims, rows
from service.database import clock
from service.events import publish
from service.finished import on_run_changed
from service.queue import build_queue, environment_queue, git_queue, trial_queue, wake
from service.submit import RunRequest, begin, locked, submit
from service.tables import (
    OPEN_STATES,
    Build,
    BuildState,
    Cell,
    Claim,
    ClaimState,
    Commit,
    Environment,
    Measurement,
    Origin,
    Run,
    RunCell,
    RunState,
    Trial,
    Worker,
    WorkerState,
)
from service.tables.columns import now

SETBACKS = 3
"""Attempts in a row that settled no trial, after which a run is given up."""
LOOKS = 8
"""Attempts to find out a run's commit: with the pauses between them a third of an hour, for git's
servers may be away that long."""
PAUSE_S, PAUSE_MAX_S = 10, 600
"""After the first setback; twice as long after each further one, up to the cap."""
NOBODY = "no worker takes "


def advance(session: Session, run_id: UUID) -> None:
    """Do what is due for a run: find out its commit, order builds, wake workers, or end it."""
    run = locked(session, run_id)
    if run is None or run.state not in OPEN_STATES:
        return
    if run.state == RunState.QUEUED:
        _advance_queued(session, run)
    if run.state == RunState.BUILDING:
        _advance_builds(session, run)
    if run.state == RunState.RUNNING:
        _advance_trials(session, run)
    if run.state in OPEN_STATES:
        _say_who_is_missing(session, run)


def _advance_queued(session: Session, run: Run) -> None:
    if claims.live(session, run.id):
        return
    if run.setbacks >= LOOKS:
        reason = f"given up: its commit was not found out in {run.setbacks} attempts: {run.reason}"
        _end(session, run, RunState.FAILED, reason)
        return
    begin(session, run, _after_setbacks(session, run))


def _after_setbacks(session: Session, run: Run) -> datetime | None:
    """When it is worth another attempt; None for at once."""
    if not run.setbacks:
        return None
    pause = min(PAUSE_MAX_S, PAUSE_S * 2 ** (run.setbacks - 1))
    last = session.exec(
        select(func.max(Claim.finished_at)).where(
            Claim.run_id == run.id, Claim.state != ClaimState.LIVE
        )
    ).one()
    return (last or clock(session)) + timedelta(seconds=pause)


def _say_who_is_missing(session: Session, run: Run) -> None:
    """An open run that nobody can move on says so, where it has nothing more important to say."""
    waits = run.state == RunState.RUNNING and not run.setbacks  # for an engine, if it says anything
    if run.reason and not waits and not run.reason.startswith(NOBODY):
        return
    needed, container = git_queue(run.subject), ""
    if run.state != RunState.QUEUED and not run.trusted:
        container = " with --sandbox docker"
    if run.state == RunState.BUILDING:
        needed = build_queue(run.subject, run.trusted)
    if run.state == RunState.RUNNING:
        needed = trial_queue(run.queue, run.trusted)
    reason = _missing(session, needed, container)
    if not reason and not run.reason.startswith(NOBODY):
        return
    if run.reason != reason:
        run.reason = reason
        session.add(run)
        publish(session, "run", run=run.id, state=run.state)


def _missing(session: Session, queue: str, container: str = "") -> str:
    """Empty where a live worker takes from the queue."""
    workers = session.exec(select(Worker.queues).where(Worker.state == WorkerState.LIVE))
    if any(queue in queues for queues in workers):
        return ""
    return f"{NOBODY}{queue}: start a `racewatch worker`{container} for it"


def say_who_is_missing(session: Session) -> None:
    """The same for all runs that are queued, at once: there may be thousands."""
    subjects = select(Run.subject).where(Run.state == RunState.QUEUED).distinct()
    for subject in session.exec(subjects).all():
        reason = _missing(session, git_queue(subject))
        said = {"subject": subject, "reason": reason, "nobody": NOBODY}
        session.connection().execute(_SAY, said)


_SAY = text(
    """
    UPDATE runs SET reason = :reason WHERE id IN (
        SELECT id FROM runs
        WHERE state = 'queued' AND subject = :subject AND reason <> :reason
            AND (reason = '' OR starts_with(reason, :nobody))
        FOR NO KEY UPDATE SKIP LOCKED
    )
    """
)


def prepared(session: Session, run_id: UUID, claim: UUID, answer: Mapping[str, Any]) -> None:
    """Take in what a worker found out of a run's ref: its commit, its base and its toolchain.

    claim: the worker's; where it is lost, others do this. A pull request's run orders a run of its
    merge base too.
    """
    if not claims.release(session, claim, ClaimState.DONE):
        return
    run = locked(session, run_id)
    if run is None or run.state != RunState.QUEUED:
        return
    commit = rows.commit_row(session, run.subject, result.Commit(**answer["commit"]))
    run.commit_id, run.head_sha = commit.id, commit.sha
    if answer["base"]:
        base = rows.commit_row(session, run.subject, result.Commit(**answer["base"]))
        run.base_commit_id = base.id
    run.facts = {**run.facts, "toolchain": answer["toolchain"]}
    if answer.get("control"):
        control = rows.commit_row(session, run.subject, result.Commit(**answer["control"]))
        run.facts = {**run.facts, "control": control.id}
    run.notes = [*run.notes, *answer.get("notes", ())]
    run.state, run.reason, run.setbacks = RunState.BUILDING, "", 0
    session.add(run)
    session.flush()
    if run.pull is not None and run.origin == Origin.PULL_REQUEST and answer["base"]:
        _order_base(session, run, result.Commit(**answer["base"]))
    publish(session, "run", run=run.id, state=run.state)
    on_run_changed(session, run)
    advance(session, run.id)


def _order_base(session: Session, run: Run, base: result.Commit) -> None:
    """The run of a pull request's merge base: one that is there, or a new one."""
    found = session.exec(
        select(Run)
        .where(
            Run.commit_id == run.base_commit_id,
            Run.matrix == run.matrix,
            Run.queue == run.queue,
            Run.toolchain == run.toolchain,
            col(Run.pull).is_(None),
            col(Run.adaptive).is_(False),
            col(Run.state).in_(OPEN_STATES) | _measured_where_workers_are(session, run),
        )
        .order_by(col(Run.created_at).desc())
    ).first()
    if found is None:
        matrix = matrices.from_data(run.matrix)
        merges = any(cell.variant.pulls for cell in matrix.cells)
        request = RunRequest(
            subject=run.subject,
            matrix=matrix,
            queue=run.queue,
            commit=base,
            toolchain=run.toolchain,
            origin=Origin.PULL_REQUEST,
            requested_by=f"base of pull request {run.pull}",
            trusted=run.trusted or not merges,  # a fork's code may come by the matrix as well
        )
        found = submit(session, request)
    run.base_run_id = found.id
    session.add(run)
    session.flush()


def _measured_where_workers_are(session: Session, run: Run) -> ColumnElement[bool]:
    """Complete runs in an environment that is still there: no other can be compared with."""
    here = {worker.environment_id for worker in claims.live_workers(session, run)}
    complete = col(Run.state) == RunState.COMPLETE
    return complete & (col(Run.environment_id).in_(here) if here else true())


def not_prepared(session: Session, run_id: UUID, claim: UUID, reason: str) -> None:
    """A run whose ref names nothing."""
    if not claims.release(session, claim, ClaimState.DONE, reason):
        return
    run = locked(session, run_id)
    if run is not None and run.state == RunState.QUEUED:
        _end(session, run, RunState.FAILED, reason)


def _advance_builds(session: Session, run: Run) -> None:
    assert run.commit_id is not None
    matrix = matrices.from_data(run.matrix)
    ordered = {
        str(build): builds.order(session, run, run.commit_id, str(build))
        for build in builds_of(matrix)
    }
    failed = next((row for row in ordered.values() if row.state == BuildState.FAILED), None)
    if failed is not None:
        reason = f"build {failed.name} could not be made: {failed.reason}"
        _end(session, run, RunState.FAILED, reason)
        return
    if any(row.state != BuildState.DONE for row in ordered.values()):
        return
    made = builds.made(session, ordered)
    if _needs_base(made) and run.base_commit_id is not None:
        base = builds.order(session, run, run.base_commit_id, builds.STOCK)
        if base.state not in (BuildState.DONE, BuildState.FAILED):
            return
        run.facts = {**run.facts, "needs_base": base.state == BuildState.DONE}
    if not _control_is_settled(session, run):
        return
    builds.settle(session, run, made)
    _settle_cells(session, run, made)
    run.state, run.reason, run.started_at = RunState.RUNNING, "", run.started_at or now()
    session.add(run)
    session.flush()
    publish(session, "run", run=run.id, state=run.state)
    on_run_changed(session, run)


def _control_is_settled(session: Session, run: Run) -> bool:
    """Whether the build of the run's control cells is there, or it is clear that there is none."""
    commit = run.facts.get("control")
    if commit is None:
        return True
    ordered = builds.order(session, run, commit, builds.STOCK)
    if ordered.state not in (BuildState.DONE, BuildState.FAILED):
        return False
    made = builds.made(session, {builds.STOCK: ordered}).get(builds.STOCK)
    if made is not None and made.outcome is None:
        run.facts = {**run.facts, "control_build": made.id}
    else:
        why = made.reason if made else ordered.reason
        run.notes = [*run.notes, none_for(why)]
    session.add(run)
    return True


def _needs_base(made: Mapping[str, Build]) -> bool:
    return any(
        build.outcome is None and not build.owned_stream_needed and not BuildId.parse(name).pulls
        for name, build in made.items()
    )


def _settle_cells(session: Session, run: Run, made: Mapping[str, Build]) -> None:
    """Cells that have nothing to run say so now: no build, or nothing for the variant to change."""
    for cell in session.exec(select(RunCell).where(RunCell.run_id == run.id)):
        build = made[cell.build]
        variant = Variant.parse(session.get_one(Cell, cell.cell_id).variant)
        if build.outcome is not None:
            cell.outcome, cell.signature = build.outcome, build.signature
            cell.decided = build.reason or build.outcome
        elif variant.owned_stream and not build.owned_stream_needed:
            cell.outcome, cell.signature = str(Outcome.UNSUPPORTED), "not needed"
            cell.decided = "not needed: this commit captures on a stream of its own already"
        else:
            continue
        session.add(cell)
    session.flush()


def _advance_trials(session: Session, run: Run) -> None:
    workers = claims.live_workers(session, run)
    if run.environment_id is None:
        kinds = {worker.environment_id for worker in workers} - {None}
        if len(kinds) == 1:  # then it is clear where it will run, and what is known there already
            claims.bind(session, run, session.get_one(Environment, kinds.pop()))
    if run.sequential:
        _stop_decided(session, run)
    left = claims.remaining(session, run)
    held = claims.live(session, run.id)
    if not left and not held:
        _end(session, run, RunState.COMPLETE, "")
    elif run.setbacks >= SETBACKS:
        if not held:
            reason = f"given up: {run.setbacks} attempts in a row settled no trial: {run.reason}"
            _end(session, run, RunState.FAILED, reason)
    else:
        unclaimed = sum(one.unclaimed for one in left)
        _wake_trials(session, run, unclaimed, workers, held)


def _wake_trials(
    session: Session, run: Run, unclaimed: int, workers: Sequence[Worker], held: bool
) -> None:
    """Wake as many workers as there is work for, of those that can go on with this run.

    Where it began, as long as anyone there takes trials or ends what he holds; then anywhere.
    """
    bound = claims.bound_workers(session, run)
    if bound and run.environment_id is not None:
        workers = bound
    elif run.environment_id is not None and held:
        return
    at = _after_setbacks(session, run)
    for n in range(min(unclaimed, max(1, len(workers)))):
        _wake_one(session, run, n, bool(bound), at)


def _wake_one(session: Session, run: Run, n: int, bound: bool, at: datetime | None) -> None:
    queue = trial_queue(run.queue, run.trusted)
    if bound and run.environment_id is not None:
        queue = environment_queue(run.environment_id, run.trusted)
    wake(
        session, "trials", queue,
        lock=f"trials:{run.id}:{n}", priority=run.priority, at=at, run=str(run.id),
    )  # fmt: skip


def postpone(session: Session, run_id: UUID, reason: str) -> None:
    """Put off the trials of a run that a worker was woken for and cannot take, for that reason.

    No attempt of the run is lost: it waits, and says for what, unless others go on with it.
    """
    run = locked(session, run_id)
    if run is None or run.state != RunState.RUNNING:
        return
    if run.reason != reason and not claims.live(session, run.id):
        run.reason = reason
        session.add(run)
        publish(session, "run", run=run.id, state=run.state)
    at = clock(session) + timedelta(seconds=PAUSE_S)
    at = max(at, _after_setbacks(session, run) or at)
    _wake_one(session, run, 0, bool(claims.bound_workers(session, run)), at)


def _stop_decided(session: Session, run: Run) -> None:
    """Cells of a sequential run that are decided need no more trials."""
    found = session.exec(
        select(RunCell, Measurement)
        .join(Measurement, col(Measurement.id) == col(RunCell.measurement_id))
        .where(RunCell.run_id == run.id, RunCell.decided == "")
    )
    for cell, measurement in found:
        stopping = Stopping(clean_below=run.clean_below, max_trials=cell.wanted)
        decision = stopping.decide(measurement.k, measurement.n)
        if decision.action is not Action.CONTINUE:
            cell.decided = decision.reason
            session.add(cell)
    session.flush()


def _end(session: Session, run: Run, state: RunState, reason: str) -> None:
    run.state, run.reason, run.finished_at = state, reason, now()
    if state is RunState.COMPLETE:
        run.parity = asdict(parity(session, run))
    session.add(run)
    session.flush()
    publish(session, "run", run=run.id, state=run.state)
    on_run_changed(session, run)
    if run.bisection_id is not None:
        # Later, and not under this run's lock: a bisection locks its runs when it ends.
        bisection.wake_advance(session, run.bisection_id)


def parity(session: Session, run: Run) -> result.Parity:
    """Whether the outputs of this run's trials are bitwise the same; see `runner.result.Parity`."""
    cells = session.exec(
        select(RunCell, Cell)
        .join(Cell, col(Cell.id) == col(RunCell.cell_id))
        .where(RunCell.run_id == run.id, col(RunCell.measurement_id).is_not(None))
    ).all()
    alone = [
        (cell.program, trial)
        for row, cell in cells
        if cell.variant == "stock" and not cell.background and not cell.hold_ms
        for trial in _outputs(session, [row.measurement_id])
    ]
    alone += _reference_outputs(session, run, run.commit_id)
    base = session.get(Commit, run.base_commit_id) if run.facts.get("needs_base") else None
    if base is not None:
        of_base = _reference_outputs(session, run, base.id)
        return result.Parity.with_base(result.Commit(base.sha, base.ref), alone, of_base)
    owned = [
        (cell.program, trial)
        for row, cell in cells
        if cell.variant == "owned-stream"
        for trial in _outputs(session, [row.measurement_id])
    ]
    return result.Parity.between_variants(alone, owned)


def _outputs(session: Session, measurements: Iterable[int | None]) -> list[result.TrialFinished]:
    """The different outputs that trials of these measurements had, as trials."""
    found = session.exec(
        select(Trial.outcome, Trial.recipe, Trial.digests)
        .where(
            col(Trial.measurement_id).in_(list(measurements)),
            col(Trial.outcome).in_((Outcome.PASS, Outcome.WRONG_OUTPUT)),
        )
        .distinct()
    )
    return [
        result.TrialFinished(
            "", 0, "", Outcome(outcome), "", "", recipe=recipe, digests=tuple(digests)
        )
        for outcome, recipe, digests in found
    ]


def _reference_outputs(
    session: Session, run: Run, commit_id: int | None
) -> list[tuple[str, result.TrialFinished]]:
    """Outputs of the reference trials of a commit's stock build, each with its program."""
    if commit_id is None:
        return []
    stock = builds.made(session, builds.of_commit(session, run, commit_id)).get("stock")
    if stock is None:
        return []
    found = session.exec(
        select(Measurement.id, Cell.program)
        .join(Cell, col(Cell.id) == col(Measurement.cell_id))
        .where(
            Measurement.build_id == stock.id,
            Measurement.environment_id == run.environment_id,
            col(Cell.reference).is_(True),
            col(Cell.background).is_(False),
        )
    ).all()
    return [
        (program, trial) for identity, program in found for trial in _outputs(session, [identity])
    ]


def record_history(
    session: Session, subject: str, name: str, history: Iterable[Mapping[str, Any]]
) -> None:
    """Keep where a branch's commits stand, for the grid; `history` is newest first."""
    commits = [result.Commit(**one) for one in history]
    branch.record_branch(session, subject, name, list(reversed(commits)))
