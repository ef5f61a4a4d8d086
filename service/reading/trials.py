"""Trials: one with its evidence and log, and those of a cell at a build."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import func
from sqlmodel import Session, col, select

from runner.detector import record
from runner.detector.record import Swallow
from runner.outcome import FAILURES, Outcome
from service.reading import commands, signatures
from service.reading.builds import BuildCommit
from service.reading.cells import CellName, cell_name
from service.reading.commands import Command, What
from service.reading.doubted import NONE, Doubts
from service.reading.environments import EnvironmentName, environment_name, queue_of
from service.reading.logs import LogView, trial_log
from service.reading.rate import Rate, rate_of_measurement
from service.reading.signatures import Known
from service.tables import (
    BranchCommit,
    Build,
    Cell,
    Commit,
    CommitBuild,
    Environment,
    Measurement,
    Run,
    RunCell,
    Trial,
    TrialEvidence,
    Worker,
)

TRIALS = 100
"""Trials on a page of a measurement."""
COMMITS = 20
_FAILURES = tuple(map(str, FAILURES))


@dataclass(frozen=True)
class TrialFilter:
    """Which trials are listed. outcome: one, `failed` for all failures, or `swallow` for those with
    foreign work, however they ended. before: an id."""

    outcome: str = ""
    before: int | None = None


@dataclass(frozen=True)
class TrialLine:
    """A trial in a list. foreign: graph nodes of other threads' work in its capture windows, None
    where it was not watched."""

    id: int
    run: UUID
    outcome: str
    signature: str
    seconds: float
    worker: str
    device: str
    finished_at: datetime
    foreign: int | None


@dataclass(frozen=True)
class MeasurementPage:
    """All trials of a build in a cell and environment, newest first.

    commits: those that have this build, the oldest first. older: `before` of the next page, None
    on the last. queue: of its trials, such as `sm90`. command: runs them again, None without a
    commit.
    """

    id: int
    subject: str
    build: int
    build_key: str
    cell: CellName
    reference: bool
    environment: EnvironmentName
    adaptive: bool
    rate: Rate
    first_trial_at: datetime | None
    last_trial_at: datetime | None
    commits: tuple[BuildCommit, ...]
    more_commits: bool
    chosen: TrialFilter
    trials: tuple[TrialLine, ...]
    older: int | None
    queue: str
    command: Command | None


@dataclass(frozen=True)
class TrialPage:
    """One trial. control: what a trial of a control cell is known to do, empty for all others.

    log: None once it was pruned. next_failure: an older one of the same kind.

    known: how often trials ended as this one did, None for a pass. foreign: graph nodes that other
    threads' work became in its capture windows, None where it was not watched. swallow: what the
    detector saw of them, None where nothing was to watch or its evidence was pruned.
    command: runs one like it again; None for a reference, which no matrix names.
    """

    id: int
    index: int
    run: UUID
    subject: str
    sha: str
    title: str
    run_cell: str
    cell: CellName
    reference: bool
    control: str
    environment: EnvironmentName
    measurement: int
    build: int
    outcome: str
    signature: str
    reason: str
    seconds: float
    worker: str
    device: str
    recipe: str
    digests: tuple[str, ...]
    background_updates: int
    handlers: tuple[str, ...] | None
    times: Mapping[str, float]
    finished_at: datetime
    facts: tuple[tuple[str, str], ...]
    errors: tuple[tuple[str, LogView], ...]
    log: LogView | None
    foreign: int | None
    swallow: Swallow | None
    newer: int | None
    older: int | None
    next_failure: int | None
    known: Known | None
    queue: str
    command: Command | None

    @property
    def failed(self) -> bool:
        """Whether it counts as a failure."""
        return self.outcome in _FAILURES


def read(session: Session, trial_id: int) -> TrialPage | None:
    """A trial with its evidence; None where there is none of that id."""
    found = session.exec(
        select(Trial, Measurement, Cell, Environment)
        .join(Measurement, col(Measurement.id) == col(Trial.measurement_id))
        .join(Cell, col(Cell.id) == col(Measurement.cell_id))
        .join(Environment, col(Environment.id) == col(Measurement.environment_id))
        .where(Trial.id == trial_id)
    ).one_or_none()
    if found is None:
        return None
    trial, measurement, cell, environment = found
    assert measurement.id is not None
    run = session.get_one(Run, trial.run_id)
    commit = session.get(Commit, run.commit_id) if run.commit_id is not None else None
    worker = session.get(Worker, trial.worker_id) if trial.worker_id is not None else None
    ordered = session.get(RunCell, trial.run_cell_id) if trial.run_cell_id is not None else None
    kept = session.get(TrialEvidence, trial_id)
    return TrialPage(
        id=trial_id,
        index=trial.index,
        run=trial.run_id,
        subject=run.subject,
        sha=commit.sha if commit else run.head_sha,
        title=commit.title if commit else "",
        run_cell=ordered.name if ordered else trial.control or "reference",
        cell=cell_name(cell),
        reference=cell.reference,
        control=trial.control,
        environment=environment_name(environment),
        measurement=measurement.id,
        build=measurement.build_id,
        outcome=trial.outcome,
        signature=trial.signature,
        reason=trial.reason,
        seconds=trial.seconds,
        worker=worker.name if worker else "",
        device=trial.device,
        recipe=trial.recipe,
        digests=tuple(trial.digests),
        background_updates=trial.background_updates,
        handlers=None if trial.handlers is None else tuple(trial.handlers),
        times=trial.times,
        finished_at=trial.finished_at,
        facts=_facts(kept.evidence) if kept else (),
        errors=_errors(trial, kept.evidence) if kept else (),
        log=_log(trial, kept) if kept else None,
        foreign=trial.foreign_nodes,
        swallow=_swallow(kept.evidence) if kept else None,
        newer=_neighbour(session, trial, newer=True),
        older=_neighbour(session, trial, newer=False),
        next_failure=_next_failure(session, trial),
        known=signatures.known(session, run.subject, run.queue, trial.outcome, trial.signature)
        if trial.outcome != Outcome.PASS and not trial.control
        else None,
        queue=run.queue,
        command=_command(run, commit, ordered, cell, environment),
    )


def _command(
    run: Run,
    commit: Commit | None,
    ordered: RunCell | None,
    cell: Cell,
    environment: Environment,
) -> Command | None:
    """By the run's own matrix, as far as it has the cell."""
    sha = commit.sha if commit else run.head_sha
    if cell.reference or not sha:
        return None
    matrix, name = commands.of_run(run.matrix_name, run.matrix), ordered.name if ordered else ""
    if matrix is None or name not in {one.name for one in matrix.cells}:
        matrix, name = commands.of_cell(cell, run.clean_below)
    return commands.rerun(What(run.subject, sha, matrix, (name,), 1, environment.toolchain))


def _log(trial: Trial, kept: TrialEvidence) -> LogView:
    """What it printed; where only its last lines were kept (an imported result), those."""
    text = kept.log or str(kept.evidence.get("output") or "")
    return trial_log(text, trial.outcome, trial.signature)


def _errors(trial: Trial, evidence: Mapping[str, Any]) -> tuple[tuple[str, LogView], ...]:
    """What its threads' exceptions said, as their log lines may not."""
    named = {"error": "main thread", "background_error": "background thread"}
    return tuple(
        (words, trial_log(str(evidence[name]), trial.outcome, trial.signature))
        for name, words in named.items()
        if evidence.get(name)
    )


def _facts(evidence: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Raw evidence that is no text, in words; what is unknown is left out."""
    apart = {"output", "error", "background_error", "swallow"}
    return tuple(
        (name.replace("_", " "), _plain(value))
        for name, value in evidence.items()
        if name not in apart and value not in (None, "", [], {})
    )


def _swallow(evidence: Mapping[str, Any]) -> Swallow | None:
    """What the detector saw. It was checked when it came; an import's is stored as it was."""
    there = evidence.get("swallow")
    return record.from_data(there) if there else None


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(inner)}" for key, inner in value.items() if inner)
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return str(value)


def _neighbour(session: Session, trial: Trial, newer: bool) -> int | None:
    """The next trial of the same measurement."""
    query = select(Trial.id).where(Trial.measurement_id == trial.measurement_id)
    if newer:
        query = query.where(col(Trial.id) > trial.id).order_by(col(Trial.id))
    else:
        query = query.where(col(Trial.id) < trial.id).order_by(col(Trial.id).desc())
    return session.exec(query.limit(1)).first()


def _next_failure(session: Session, trial: Trial) -> int | None:
    """The next older trial of the same measurement that failed."""
    return session.exec(
        select(Trial.id)
        .where(
            Trial.measurement_id == trial.measurement_id,
            col(Trial.id) < trial.id,
            col(Trial.outcome).in_(_FAILURES),
        )
        .order_by(col(Trial.id).desc())
        .limit(1)
    ).first()


def read_measurement(
    session: Session,
    measurement_id: int,
    asked: TrialFilter,
    clean_below: float,
    doubts: Doubts = NONE,
) -> MeasurementPage | None:
    """A measurement with a page of its trials; None where there is none of that id."""
    found = session.exec(
        select(Measurement, Cell, Environment)
        .join(Cell, col(Cell.id) == col(Measurement.cell_id))
        .join(Environment, col(Environment.id) == col(Measurement.environment_id))
        .where(Measurement.id == measurement_id)
    ).one_or_none()
    if found is None:
        return None
    measurement, cell, environment = found
    build = measurement.build_id
    key, subject = session.exec(select(Build.key, Build.subject).where(Build.id == build)).one()
    commits = _commits(session, build)
    trials = _trials(session, measurement_id, asked)
    return MeasurementPage(
        id=measurement_id,
        subject=subject,
        build=build,
        build_key=key,
        cell=cell_name(cell),
        reference=cell.reference,
        environment=environment_name(environment),
        adaptive=measurement.adaptive,
        rate=rate_of_measurement(measurement, clean_below, control=doubts.get(measurement_id)),
        first_trial_at=measurement.first_trial_at,
        last_trial_at=measurement.last_trial_at,
        commits=tuple(
            BuildCommit(commit.id or 0, commit.subject, commit.sha, commit.title, name)
            for commit, name in commits[:COMMITS]
        ),
        more_commits=len(commits) > COMMITS,
        chosen=asked,
        trials=trials[:TRIALS],
        older=trials[TRIALS - 1].id if len(trials) > TRIALS else None,
        queue=queue_of(environment),
        command=_again(measurement, commits[0][0], cell, environment, clean_below)
        if commits and not cell.reference
        else None,
    )


def _commits(session: Session, build: int) -> list[tuple[Commit, str]]:
    """Those that have the build, the oldest first, since it came with that one; one more than
    COMMITS if there are others."""
    place = func.min(col(BranchCommit.position))
    found = session.exec(
        select(Commit, CommitBuild.name, place)
        .join(CommitBuild, col(CommitBuild.commit_id) == col(Commit.id))
        .join(BranchCommit, col(BranchCommit.commit_id) == col(Commit.id), isouter=True)
        .where(CommitBuild.build_id == build)
        .group_by(col(Commit.id), col(CommitBuild.name))
        .order_by(place.nulls_last(), col(Commit.id))
        .limit(COMMITS + 1)
    )
    return [(commit, name) for commit, name, _ in found]


def _again(
    measurement: Measurement,
    commit: Commit,
    cell: Cell,
    environment: Environment,
    clean_below: float,
) -> Command:
    """As many trials of the cell as there were."""
    matrix, name = commands.of_cell(cell, clean_below)
    trials = max(1, measurement.n)
    what = What(commit.subject, commit.sha, matrix, (name,), trials, environment.toolchain)
    return commands.rerun(what)


def _trials(session: Session, measurement: int, asked: TrialFilter) -> tuple[TrialLine, ...]:
    query = (
        select(Trial, Worker.name)
        .join(Worker, col(Worker.id) == col(Trial.worker_id), isouter=True)
        .where(Trial.measurement_id == measurement)
        .order_by(col(Trial.id).desc())
        .limit(TRIALS + 1)
    )
    if asked.before is not None:
        query = query.where(col(Trial.id) < asked.before)
    if asked.outcome == "swallow":
        query = query.where(col(Trial.foreign_nodes) > 0)
    elif asked.outcome == "failed":
        query = query.where(col(Trial.outcome).in_(_FAILURES))
    elif asked.outcome:
        query = query.where(Trial.outcome == Outcome(asked.outcome))
    return tuple(
        TrialLine(
            id=trial.id or 0,
            run=trial.run_id,
            outcome=trial.outcome,
            signature=trial.signature,
            seconds=trial.seconds,
            worker=worker or "",
            device=trial.device,
            finished_at=trial.finished_at,
            foreign=trial.foreign_nodes,
        )
        for trial, worker in session.exec(query)
    )
