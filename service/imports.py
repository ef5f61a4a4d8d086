"""Taking in runs that a runner carried out by itself: its result, or its stream of events.

A run keeps its UUID and each of its trials its index, so that a file may come twice, or first in
part and then whole, and counts once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import func
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DataError
from sqlmodel import Session, col, select

from runner import matrix as matrices
from runner.errors import InputError, ResultError
from runner.result import BASE, TrialFinished
from runner.run import BuildId, PreparedBuild
from service import rows, storable
from service.events import publish
from service.recording import REASON_CHARACTERS, TEXT_CHARACTERS, Finished, record_trials
from service.runfile import WrittenRun, read
from service.tables import (
    PRIORITIES,
    Build,
    BuildState,
    Cell,
    Claim,
    ClaimState,
    CommitBuild,
    Environment,
    Origin,
    Run,
    RunCell,
    RunState,
)
from service.tables.columns import now

STATES = {
    "complete": RunState.COMPLETE,
    "interrupted": RunState.CANCELLED,
    "failed": RunState.FAILED,
}
STOPS_EARLY = "the stream of events stops early"
_TURN = 0x696D706F7274  # "import", of PostgreSQL's advisory locks


@dataclass(frozen=True)
class Imported:
    """What became of a run's file.

    new_trials, known_trials: trials of it that were stored now, and that were there already.
    created: whether the run was not known before.
    """

    run: UUID
    new_trials: int
    known_trials: int
    created: bool


def import_text(session: Session, text: str, requested_by: str = "") -> Imported:
    """Store the one run of a file. Raises InputError, and then nothing of it is stored."""
    written = read(text)
    if len(written) != 1:
        ids = ", ".join(str(one.run) for one in written) or "none"
        raise ResultError(f"a file with one run is needed, this has {len(written)}: {ids}")
    return _import(session, written, requested_by)[0]


def import_all(session: Session, text: str, requested_by: str = "") -> list[Imported]:
    """Store every run of a file. Raises InputError, and then nothing of it is stored."""
    return _import(session, read(text), requested_by)


def _import(session: Session, written: list[WrittenRun], requested_by: str) -> list[Imported]:
    try:
        with session.begin_nested():
            return [_Import(session, one, requested_by).store() for one in written]
    except DataError as error:
        # What is known to be refused was named when the file was read.
        raise ResultError(f"the database refuses a value of this file: {error.orig}") from error


class _Import:
    """One run on its way into the store."""

    def __init__(self, session: Session, written: WrittenRun, requested_by: str) -> None:
        self._session = session
        self._written = written
        self._started = written.started
        self._requested_by = requested_by
        self._builds: dict[str, Build] = {}
        self._measurements: dict[tuple[int, str], int] = {}

    def store(self) -> Imported:
        """Store what is new of the run."""
        session, written = self._session, self._written
        # Imports take turns: two of one run count it once, and none waits for rows of another.
        session.connection().execute(select(func.pg_advisory_xact_lock(_TURN)))
        run = session.get(Run, written.run)
        self._refuse_own(run)
        started = self._started
        environment = rows.environment_row(
            session, started.device, started.toolchain, started.harness
        )
        created = run is None
        run = run or self._new_run(environment)
        if run.environment_id != environment.id:
            raise ResultError(f"run {run.id} is there already, and ran in another environment")
        self._store_builds(run)
        cells = self._store_cells(run, environment)
        new, known = self._store_trials(run, environment, cells)
        self._note_end(run, new)
        publish(session, "run", run=run.id, state=run.state)
        return Imported(written.run, new, known, created)

    def _refuse_own(self, run: Run | None) -> None:
        claim = self._session.get(Claim, self._written.run)
        owner = run.id if run else claim.run_id if claim else None
        if (run and run.origin != Origin.IMPORT) or (claim and not run):
            raise InputError(
                f"run {self._written.run} is not imported: this service ran it itself, "
                f"as run {owner}, and has its trials"
            )

    def _new_run(self, environment: Environment) -> Run:
        session, started = self._session, self._started
        commit = rows.commit_row(session, started.subject, started.commit)
        base = started.base and rows.commit_row(session, started.subject, started.base)
        pull = re.fullmatch(r"pull/([1-9][0-9]{0,8})", started.commit.ref)
        run = Run(
            id=self._written.run,
            subject=started.subject,
            commit_id=commit.id,
            ref=started.commit.ref,
            pull=int(pull[1]) if pull else None,
            head_sha=started.commit.sha,
            matrix_name=started.matrix.name,
            matrix=matrices.as_data(started.matrix),
            clean_below=started.matrix.clean_below,
            queue=self._written.architecture,
            toolchain=started.toolchain,
            origin=Origin.IMPORT,
            priority=PRIORITIES[Origin.IMPORT],
            state=RunState.CANCELLED,
            reason=STOPS_EARLY,
            requested_by=self._requested_by,
            environment_id=environment.id,
            base_commit_id=base.id if base else None,
            facts={
                "toolchain": started.toolchain,
                "parallel": started.parallel,
                "sandbox": started.sandbox,
                "trial_mode": started.trial_mode,
                "command": started.command,
                "environment": storable.data(started.environment),
                "device": storable.data(asdict(started.device)),
                "trials_planned": started.trials_planned,
            },
            started_at=_moment(started.started),
        )
        session.add(run)
        session.flush()
        session.add(Claim(id=run.id, run_id=run.id, state=ClaimState.DONE, finished_at=now()))
        session.flush()
        return run

    # Builds

    def _store_builds(self, run: Run) -> None:
        for name, prepared in self._written.builds.items():
            build = self._build(prepared, f"{self._started.commit.sha} {name}")
            self._builds[name] = build
            self._of_commit(run, run.commit_id, name, build)

    def _build(self, prepared: PreparedBuild, asked: str) -> Build:
        """The build's row. What is known of a build that can be run is not replaced."""
        key = prepared.key or f"none:{asked}"
        known = self._session.exec(select(Build).where(Build.key == key)).first()
        if known is not None and (known.outcome is None or prepared.outcome is not None):
            return known
        return rows.build_row(self._session, self._started.subject, prepared, asked)

    def _of_commit(self, run: Run, commit_id: int | None, name: str, build: Build) -> None:
        """Say that the commit needs that build, unless its own is there or on its way."""
        statement = insert(CommitBuild).values(
            commit_id=commit_id,
            name=name,
            toolchain=self._started.toolchain,
            architecture=run.queue,
            state=BuildState.DONE,
            build_id=build.id,
            finished_at=now(),
        )
        self._session.connection().execute(
            statement.on_conflict_do_update(
                index_elements=["commit_id", "name", "toolchain", "architecture"],
                set_={"state": BuildState.DONE, "build_id": build.id, "reason": ""},
                where=col(CommitBuild.state) == BuildState.FAILED,
            )
        )

    # Cells

    def _store_cells(self, run: Run, environment: Environment) -> dict[str, RunCell]:
        """The run's cells by name, each with the measurement of its planned build, if any."""
        there = self._session.exec(
            select(RunCell).where(RunCell.run_id == run.id).order_by(col(RunCell.position))
        ).all()
        cells = {row.name: row for row in there or self._new_cells(run)}
        if list(cells) != [cell.name for cell in self._started.matrix.cells]:
            raise ResultError(f"run {run.id} is there already, with other cells")
        for trial in self._written.trials.values():
            row = cells.get(trial.cell)
            if row is not None and trial.evidence.get("kind") == "build":
                row.outcome = str(trial.outcome)
                row.signature = storable.text(trial.signature, TEXT_CHARACTERS)
                row.decided = storable.text(trial.reason, REASON_CHARACTERS)
                self._session.add(row)
        for row in cells.values():
            build = self._builds.get(row.build)
            if row.measurement_id is None and row.outcome is None and build is not None:
                row.measurement_id = self._measurement(row.cell_id, build, environment)
                self._session.add(row)
        self._session.flush()
        return cells

    def _new_cells(self, run: Run) -> list[RunCell]:
        made = []
        for position, cell in enumerate(self._started.matrix.cells):
            row = rows.cell_row(self._session, cell)
            assert row.id is not None
            made.append(
                RunCell(
                    run_id=run.id,
                    position=position,
                    name=cell.name,
                    cell_id=row.id,
                    build=str(BuildId.of(cell)),
                    wanted=cell.trials,
                )
            )
        self._session.add_all(made)
        self._session.flush()
        return made

    def _measurement(self, cell_id: int, build: Build, environment: Environment) -> int:
        key = (cell_id, build.key)
        if key not in self._measurements:
            cell = self._session.get_one(Cell, cell_id)
            row = rows.measurement_row(self._session, build, cell, environment)
            assert row.id is not None
            self._measurements[key] = row.id
        return self._measurements[key]

    # Trials

    def _store_trials(
        self, run: Run, environment: Environment, cells: Mapping[str, RunCell]
    ) -> tuple[int, int]:
        """How many trials are new, and how many were known."""
        at = _moment(self._written.ended.finished if self._written.ended else "")
        at = at or run.started_at or now()
        finished = []
        for _, trial in sorted(self._written.trials.items()):
            if trial.evidence.get("kind") == "build":
                continue
            row = cells.get(trial.cell)
            measurement = self._measurement_of(run, environment, trial, row)
            finished.append(
                Finished(
                    claim_id=run.id,
                    run_id=run.id,
                    run_cell_id=row.id if row else None,
                    measurement_id=measurement,
                    event=trial,
                    log=str(trial.evidence.get("output") or ""),
                    worker_id=None,
                    finished_at=at,
                )
            )
        new = len(record_trials(self._session, finished))
        return new, len(finished) - new

    def _measurement_of(
        self, run: Run, environment: Environment, trial: TrialFinished, row: RunCell | None
    ) -> int:
        build = self._build_of(run, trial, row)
        if row is None:
            cell = self._written.reference(trial)
            assert cell is not None, "a trial of no cell is one that was added"
            cell_id = rows.cell_row(self._session, cell, reference=True).id
            assert cell_id is not None
            return self._measurement(cell_id, build, environment)
        measurement = self._measurement(row.cell_id, build, environment)
        if row.measurement_id is None:
            row.measurement_id = measurement
            self._session.add(row)
            self._session.flush()
        return measurement

    def _build_of(self, run: Run, trial: TrialFinished, row: RunCell | None) -> Build:
        """The build of a trial, which may be one that the run event does not tell of: the base's,
        or any in a file whose builds were left out."""
        for build in self._builds.values():
            if trial.build and build.key == trial.build:
                return build
        if trial.control:
            return self._build_of_control(trial)
        planned = row.build if row else "stock"
        of_base = trial.cell.startswith(BASE)
        if not trial.build and not of_base and planned in self._builds:
            return self._builds[planned]
        build = self._build(PreparedBuild(trial.build), f"{self._started.commit.sha} {planned}")
        if of_base:
            self._builds[f"{BASE}{build.key}"] = build
            if run.base_commit_id is not None:
                self._of_commit(run, run.base_commit_id, planned, build)
        else:
            self._builds.setdefault(planned, build)
            self._of_commit(run, run.commit_id, planned, build)
        return build

    def _build_of_control(self, trial: TrialFinished) -> Build:
        commit = self._started.control or self._started.commit
        build = self._build(PreparedBuild(trial.build), f"{commit.sha} {trial.cell}")
        self._builds[f"{trial.cell}{build.key}"] = build
        return build

    # The end

    def _note_end(self, run: Run, new: int) -> None:
        """The run's state as its file tells it; one that stops early has nothing to tell."""
        ended = self._written.ended
        if ended is not None:
            run.state, run.reason = (
                STATES[ended.status],
                storable.text(ended.reason, REASON_CHARACTERS),
            )
            run.notes = storable.data(ended.notes)
            run.finished_at = _moment(ended.finished) or run.finished_at or now()
            run.facts = {**run.facts, "seconds": storable.data(ended.seconds)}
        if ended is not None or new:
            run.parity = storable.data(asdict(self._written.fold.parity))
        self._session.add(run)
        self._session.flush()


def _moment(text: str) -> datetime | None:
    """A time that can be one of a run."""
    moment = rows.moment_of(text)
    return moment if moment and 2000 <= moment.year < 2200 else None
