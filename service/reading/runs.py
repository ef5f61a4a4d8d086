"""Runs: the list of them, and one run in the table of the issue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import func
from sqlalchemy import select as columns
from sqlmodel import Session, col, select

from runner.outcome import Outcome
from runner.statistics.control import ControlVerdict, Proof
from runner.statistics.kinds import Kind
from service import controls
from service.controls import Shown
from service.judged import JudgedCell, cells_of
from service.reading import commands
from service.reading.builds import BuildLine, build_lines
from service.reading.cells import CellName, cell_name
from service.reading.commands import Command, What
from service.reading.environments import EMULATED, EnvironmentName, environment_name
from service.reading.rate import (
    COUNT_COLUMNS,
    NO_COUNTS,
    Mark,
    Rate,
    judged_as,
    mark_of_outcome,
    rate_of,
    rate_of_measurement,
)
from service.reading.swallowed import SwallowedWork, of_run
from service.tables import (
    OPEN_STATES,
    Cell,
    Claim,
    ClaimCell,
    ClaimState,
    Commit,
    Environment,
    Measurement,
    Run,
    RunCell,
    RunState,
    Trial,
    Worker,
)

RUNS = 50
"""Runs on a page of the list."""
FAILURES_SHOWN = 50
"""Kinds of failure that a run's page lists."""


@dataclass(frozen=True)
class RunFilter:
    """Which runs are listed; empty for any. before: only runs older than this one."""

    subject: str = ""
    queue: str = ""
    state: str = ""
    pull: int | None = None
    before: UUID | None = None


@dataclass(frozen=True)
class RunLine:
    """A run in the list. done, wanted: trials. marks: how many of its cells say what."""

    id: UUID
    subject: str
    sha: str
    ref: str
    title: str
    pull: int | None
    matrix: str
    queue: str
    origin: str
    state: str
    reason: str
    created_at: datetime
    finished_at: datetime | None
    done: int
    wanted: int
    marks: tuple[tuple[Mark, int], ...]

    @property
    def emulated(self) -> bool:
        """True where no GPU takes part."""
        return self.queue == EMULATED


@dataclass(frozen=True)
class RunList:
    """A page of the list, newest first. older: `before` of the next page, None on the last."""

    chosen: RunFilter
    runs: tuple[RunLine, ...]
    older: UUID | None
    subjects: tuple[str, ...]
    queues: tuple[str, ...]
    states: tuple[str, ...]


@dataclass(frozen=True)
class RunRow:
    """A cell that a run ordered.

    mark, label: verdict, or why there is none. detail: what its verdict or its lack rests on.
    done: trials that settled something, of `wanted`. recorded: those that this run itself ran.
    held: trials that workers hold now. base: what the commit that it is compared with counted.
    unproven: control cells of the device say that its verdict would mean nothing.
    """

    position: int
    name: str
    cell: CellName
    mark: Mark
    label: str
    detail: str
    rate: Rate
    base: str
    unproven: bool
    wanted: int
    done: int
    recorded: int
    held: int
    measurement: int | None


@dataclass(frozen=True)
class ClaimLine:
    """Trials that a worker holds. recorded: of them, stored so far."""

    worker: str
    trials: int
    recorded: int
    cells: tuple[str, ...]
    since: datetime
    heartbeat_at: datetime


@dataclass(frozen=True)
class FailureLine:
    """Trials of a run that failed alike. trial: one of them."""

    outcome: str
    signature: str
    count: int
    trial: int
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Approval:
    """What lets a run begin that waits for an approval."""

    pull: int | None
    sha: str


@dataclass(frozen=True)
class RunPage:
    """One run.

    bisection: whose probe it is. setup: what else is known of how its trials ran, such as the
    sandbox. controls: what each device's control cells showed; control_sha: of the commit that they
    run. command: runs it again elsewhere; None where its commit or matrix is not known.
    """

    id: UUID
    subject: str
    sha: str
    ref: str
    title: str
    author: str
    date: datetime | None
    pull: int | None
    matrix: str
    matrix_title: str
    clean_below: float
    queue: str
    toolchain: str
    environment: EnvironmentName | None
    origin: str
    requested_by: str
    bisection: UUID | None
    trusted: bool
    adaptive: bool
    state: str
    reason: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    rows: tuple[RunRow, ...]
    parity: Mapping[str, Any] | None
    notes: tuple[str, ...]
    setup: tuple[tuple[str, str], ...]
    builds: tuple[BuildLine, ...]
    claims: tuple[ClaimLine, ...]
    failures: tuple[FailureLine, ...]
    swallowed: tuple[SwallowedWork, ...]
    controls: tuple[Shown, ...]
    control_sha: str
    base_sha: str
    base_run: UUID | None
    approval: Approval | None
    command: Command | None

    @property
    def emulated(self) -> bool:
        """True where no GPU takes part."""
        return self.queue == EMULATED

    @property
    def watched(self) -> bool:
        """Whether the detector watched any trial of its cells."""
        return any(row.rate.swallow for row in self.rows)

    @property
    def is_open(self) -> bool:
        """Whether there is work to do."""
        return self.state in OPEN_STATES

    @property
    def done(self) -> int:
        """Trials that are settled."""
        return sum(row.done for row in self.rows)

    @property
    def wanted(self) -> int:
        """Trials that were ordered."""
        return sum(row.wanted for row in self.rows)


def read_list(session: Session, asked: RunFilter) -> RunList:
    """The newest runs that the filter lets through."""
    query = select(Run, Commit).join(Commit, col(Commit.id) == col(Run.commit_id), isouter=True)
    if asked.subject:
        query = query.where(Run.subject == asked.subject)
    if asked.queue:
        query = query.where(Run.queue == asked.queue)
    if asked.state:
        query = query.where(Run.state == asked.state)
    if asked.pull is not None:
        query = query.where(Run.pull == asked.pull)
    last = session.get(Run, asked.before) if asked.before else None
    if last is not None:
        earlier = (col(Run.created_at) < last.created_at) | (
            (col(Run.created_at) == last.created_at) & (col(Run.id) > last.id)
        )
        query = query.where(earlier)
    query = query.order_by(col(Run.created_at).desc(), col(Run.id)).limit(RUNS + 1)
    found = session.exec(query).all()
    shown = found[:RUNS]
    lines = run_lines(session, shown)
    there = session.exec(select(Run.subject, Run.queue).distinct()).all()
    return RunList(
        chosen=asked,
        runs=lines,
        older=lines[-1].id if len(found) > RUNS else None,
        subjects=tuple(sorted({subject for subject, _ in there})),
        queues=tuple(sorted({queue for _, queue in there})),
        states=tuple(map(str, RunState)),
    )


def run_lines(session: Session, runs: Sequence[tuple[Run, Commit | None]]) -> tuple[RunLine, ...]:
    """Runs as lines of a list, with their cells counted."""
    ids = [run.id for run, _ in runs]
    query = (
        columns(
            col(RunCell.run_id),
            col(RunCell.id),
            col(RunCell.wanted),
            col(RunCell.outcome),
            col(RunCell.decided),
            col(Measurement.adaptive),
            *COUNT_COLUMNS,
        )
        .join(Measurement, col(Measurement.id) == col(RunCell.measurement_id), isouter=True)
        .where(col(RunCell.run_id).in_(ids))
    )
    doubts = controls.by_cell(session, *ids, only=Proof.UNPROVEN)
    cells: dict[UUID, list[_ListedCell]] = {}
    for found in session.connection().execute(query):
        run_id, identity, wanted, outcome, decided, adaptive, *counts = found
        counted = NO_COUNTS if adaptive is None else tuple(counts)
        doubt = doubts.get(identity)
        cell = _ListedCell(wanted, outcome, decided, bool(adaptive), counted, doubt)
        cells.setdefault(run_id, []).append(cell)
    return tuple(_line(run, commit, cells.get(run.id, [])) for run, commit in runs)


class _ListedCell(NamedTuple):
    """What a list needs of a run's cell. A tuple, because a list looks at thousands."""

    wanted: int
    outcome: str | None
    decided: str
    adaptive: bool
    counts: tuple[int, ...]
    doubt: ControlVerdict | None


def _line(run: Run, commit: Commit | None, cells: Iterable[_ListedCell]) -> RunLine:
    marks: dict[Mark, int] = {}
    done = wanted = 0
    for cell in cells:
        rate = rate_of(cell.counts, run.clean_below, adaptive=cell.adaptive, control=cell.doubt)
        mark = mark_of_outcome(cell.outcome) if cell.outcome else rate.mark
        marks[mark] = marks.get(mark, 0) + 1
        ended = cell.outcome is not None or bool(cell.decided)
        settled, ordered = _progress(rate, cell.wanted, ended)
        done += settled
        wanted += ordered
    return RunLine(
        id=run.id,
        subject=run.subject,
        sha=commit.sha if commit else run.head_sha,
        ref=run.ref,
        title=commit.title if commit else "",
        pull=run.pull,
        matrix=run.matrix_name,
        queue=run.queue,
        origin=run.origin,
        state=run.state,
        reason=run.reason,
        created_at=run.created_at,
        finished_at=run.finished_at,
        done=done,
        wanted=wanted,
        marks=tuple((mark, marks[mark]) for mark in Mark if mark in marks),
    )


def _progress(rate: Rate, wanted: int, ended: bool) -> tuple[int, int]:
    """Trials that are settled, and that there are to be: no more where a cell cannot or need not
    go on."""
    settled = min(rate.n + rate.unsupported, wanted)
    return settled, settled if ended else wanted


def read(session: Session, run_id: UUID) -> RunPage | None:
    """A run with its cells; None where there is none of that id."""
    run = session.get(Run, run_id)
    if run is None:
        return None
    commit = session.get(Commit, run.commit_id) if run.commit_id is not None else None
    base = session.get(Commit, run.base_commit_id) if run.base_commit_id is not None else None
    environment = (
        session.get(Environment, run.environment_id) if run.environment_id is not None else None
    )
    claims, held = _claims(session, run)
    return RunPage(
        id=run.id,
        subject=run.subject,
        sha=commit.sha if commit else run.head_sha,
        ref=run.ref,
        title=commit.title if commit else "",
        author=commit.author if commit else "",
        date=commit.date if commit else None,
        pull=run.pull,
        matrix=run.matrix_name,
        matrix_title=str(run.matrix.get("title", "")),
        clean_below=run.clean_below,
        queue=run.queue,
        toolchain=run.toolchain or str(run.facts.get("toolchain", "")),
        environment=environment_name(environment) if environment else None,
        origin=run.origin,
        requested_by=run.requested_by,
        bisection=run.bisection_id,
        trusted=run.trusted,
        adaptive=run.adaptive,
        state=run.state,
        reason=run.reason,
        created_at=run.created_at,
        started_at=run.started_at,
        finished_at=run.finished_at,
        rows=_rows(session, run, held),
        parity=run.parity,
        notes=tuple(run.notes),
        setup=_setup(run),
        builds=build_lines(session, run.commit_id, run.queue) if run.commit_id else (),
        claims=claims,
        failures=_failures(session, run),
        swallowed=of_run(session, run.id),
        controls=tuple(controls.shown(session, run.id)),
        control_sha=_control(session, run),
        base_sha=base.sha if base else "",
        base_run=run.base_run_id,
        approval=(
            Approval(run.pull, run.head_sha) if run.state == RunState.AWAITING_APPROVAL else None
        ),
        command=_command(run, commit),
    )


def _control(session: Session, run: Run) -> str:
    """The hash of the commit that its control cells run, empty where it has none."""
    identity = run.facts.get("control")
    commit = session.get(Commit, identity) if identity is not None else None
    return commit.sha if commit else ""


def _command(run: Run, commit: Commit | None) -> Command | None:
    matrix = commands.of_run(run.matrix_name, run.matrix)
    if matrix is None or commit is None:
        return None
    used = str(run.facts.get("toolchain", "")) or run.toolchain
    return commands.rerun(What(run.subject, commit.sha, matrix, toolchain=used))


def _rows(session: Session, run: Run, held: Mapping[int, int]) -> tuple[RunRow, ...]:
    judged = {cell.cell_id: cell for cell in cells_of(session, run)}
    found = session.exec(
        select(RunCell, Cell, Measurement)
        .join(Cell, col(Cell.id) == col(RunCell.cell_id))
        .join(Measurement, col(Measurement.id) == col(RunCell.measurement_id), isouter=True)
        .where(RunCell.run_id == run.id)
        .order_by(col(RunCell.position))
    )
    return tuple(
        _row(run, ordered, cell, measurement, judged.get(ordered.cell_id), held)
        for ordered, cell, measurement in found
    )


def _row(
    run: Run,
    ordered: RunCell,
    cell: Cell,
    measurement: Measurement | None,
    judged: JudgedCell | None,
    held: Mapping[int, int],
) -> RunRow:
    base = judged.base if judged else None
    rate = rate_of_measurement(measurement, run.clean_below, base)
    if judged:
        rate = judged_as(rate, judged.verdict)
    ended = ordered.outcome is not None or bool(ordered.decided)
    done, wanted = _progress(rate, ordered.wanted, ended)
    mark, label, detail = rate.mark, rate.label, rate.text
    if ordered.outcome:
        mark = mark_of_outcome(ordered.outcome)
        label, detail = mark.words, ordered.decided or ordered.signature
    elif not rate.trials:
        mark = _OF_STATE.get(run.state, Mark.NOT_RUN)
        label, detail = mark.words, ordered.decided
    elif ordered.decided:
        detail = f"{rate.text}; {ordered.decided}"
    return RunRow(
        position=ordered.position,
        name=ordered.name,
        cell=cell_name(cell),
        mark=mark,
        label=label,
        detail=detail,
        rate=rate,
        base=base.text if base is not None else "",
        unproven=bool(judged and rate.n and judged.verdict.kind is Kind.UNPROVEN),
        wanted=wanted,
        done=done,
        recorded=ordered.recorded,
        held=held.get(ordered.id or 0, 0),
        measurement=measurement.id if measurement else None,
    )


_OF_STATE = {
    RunState.AWAITING_APPROVAL: Mark.AWAITING,
    RunState.QUEUED: Mark.QUEUED,
    RunState.BUILDING: Mark.BUILDING,
    RunState.RUNNING: Mark.RUNNING,
}


def _claims(session: Session, run: Run) -> tuple[tuple[ClaimLine, ...], dict[int, int]]:
    """What workers hold of the run, by claim and by cell."""
    lines: dict[UUID, list[Any]] = {}
    held: dict[int, int] = {}
    found = session.exec(
        select(Claim, ClaimCell, RunCell.name, Worker.name)
        .join(ClaimCell, col(ClaimCell.claim_id) == col(Claim.id))
        .join(RunCell, col(RunCell.id) == col(ClaimCell.run_cell_id))
        .join(Worker, col(Worker.id) == col(Claim.worker_id), isouter=True)
        .where(Claim.run_id == run.id, Claim.state == ClaimState.LIVE)
        .order_by(col(Claim.created_at), col(RunCell.position))
    )
    for claim, share, cell, worker in found:
        left = max(0, share.trials - share.recorded)
        held[share.run_cell_id] = held.get(share.run_cell_id, 0) + left
        lines.setdefault(claim.id, []).append((claim, share, cell, worker))
    return (
        tuple(
            ClaimLine(
                worker=shares[0][3] or "unknown worker",
                trials=sum(share.trials for _, share, _, _ in shares),
                recorded=sum(share.recorded for _, share, _, _ in shares),
                cells=tuple(cell for _, share, cell, _ in shares if share.trials > share.recorded),
                since=shares[0][0].created_at,
                heartbeat_at=shares[0][0].heartbeat_at,
            )
            for shares in lines.values()
        ),
        held,
    )


def _failures(session: Session, run: Run) -> tuple[FailureLine, ...]:
    """What went wrong in the run's own trials, the most frequent first."""
    count = func.count()
    query = (
        columns(
            col(Trial.outcome),
            col(Trial.signature),
            count.label("count"),
            func.min(col(Trial.id)).label("trial"),
            func.array_agg(func.distinct(col(Trial.run_cell_id))).label("cells"),
        )
        .where(
            col(Trial.run_id) == run.id,
            col(Trial.outcome) != Outcome.PASS,
            # A known-bad control cell fails as it should.
            col(Trial.control) == "",
        )
        .group_by(col(Trial.outcome), col(Trial.signature))
        .order_by(count.desc(), col(Trial.outcome), col(Trial.signature))
        .limit(FAILURES_SHOWN)
    )
    found = session.connection().execute(query).all()
    names: dict[int | None, str] = dict(
        session.exec(select(RunCell.id, RunCell.name).where(RunCell.run_id == run.id)).all()
    )
    return tuple(
        FailureLine(
            outcome=row.outcome,
            signature=row.signature,
            count=row[2],
            trial=row.trial,
            cells=tuple(names.get(cell, "reference") for cell in sorted(row.cells, key=_or_last)),
        )
        for row in found
    )


def _or_last(run_cell: int | None) -> float:
    return float("inf") if run_cell is None else run_cell


def _setup(run: Run) -> tuple[tuple[str, str], ...]:
    known = {
        "parallel": "trials at a time",
        "sandbox": "sandbox",
        "trial_mode": "trial processes",
        "version": "release",
        "command": "command",
    }
    return tuple(
        (words, str(run.facts[name])) for name, words in known.items() if run.facts.get(name)
    )
