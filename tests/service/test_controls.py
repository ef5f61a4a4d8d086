"""Control cells through the service: ordered with a run, run by real workers, believed or not."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from sqlmodel import col, select

from runner import matrix as matrices
from runner.controls import Control
from runner.demo_repo import create
from runner.outcome import Outcome
from runner.statistics.control import Proof
from runner.statistics.kinds import Kind
from service import controls
from service.database import Database
from service.github.status import decide
from service.judged import JudgedCell, cells_of
from service.reading import runs
from service.reading.rate import Mark
from service.settings import ServiceSettings
from service.submit import RunRequest, submit
from service.tables import BuildState, Cell, CommitBuild, Measurement, Run, RunState, Trial
from service.worker import WorkerOptions, WorkerProcess
from tests.service import flow

BACKGROUND = {"name": "stock, background", "variant": "stock", "trials": 24}
HIDES = ("EMULATION_RATE", "0.0001")
"""Of a device that hardly ever lets the race happen."""


@pytest.fixture(autouse=True)
def environment(home: Path, compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process's jobs find."""
    monkeypatch.setenv("RACEWATCH_HOME", str(home))
    monkeypatch.setenv("CXX", compiler)


def ordered(db: Database, ref: str, trials: int = 6, **more: object) -> UUID:
    """A run of a ref of the demo, with so many trials of each control cell."""
    asked = {"name": "m", "clean_below": 0.2, "controls": trials, "cells": [BACKGROUND | more]}
    with db.session() as session:
        request = RunRequest("demo", matrices.from_data(asked), "emulated", ref=ref)
        return submit(session, request).id


def carried_out(db: Database, run: UUID, **settings: object) -> None:
    """One worker does all that a run takes, batch by batch."""
    found = ServiceSettings(heartbeat_s=0.1, database_url="", **settings)
    worker = WorkerProcess(found, db, WorkerOptions(name="w", subjects=("demo",), parallel=2))
    try:
        worker.register()
        worker.prepare(run)
        while (state := state_of(db, run)) in (RunState.BUILDING, RunState.RUNNING):
            if state == RunState.RUNNING:
                worker.trials(run)
                continue
            waiting = waiting_builds(db)
            assert waiting, "a run that builds waits for a build"
            for build in waiting:
                worker.build(build)
    finally:
        worker.close()


def state_of(db: Database, run: UUID) -> RunState:
    with db.session() as session:
        return session.get_one(Run, run).state


def waiting_builds(db: Database) -> list[int]:
    with db.session() as session:
        wanted = select(CommitBuild.id).where(CommitBuild.state == BuildState.WAITING)
        return [build for build in session.exec(wanted.order_by(col(CommitBuild.id))) if build]


def trials_of(db: Database, run: UUID) -> list[Trial]:
    with db.session() as session:
        found = session.exec(select(Trial).where(Trial.run_id == run).order_by(col(Trial.id)))
        return list(found)


def judged(db: Database, run: UUID) -> JudgedCell:
    with db.session() as session:
        (cell,) = cells_of(session, session.get_one(Run, run))
        return cell


def test_a_run_proves_its_device_by_trials_of_the_pinned_commit(db: Database) -> None:
    run = ordered(db, "fix")
    carried_out(db, run)
    trials = trials_of(db, run)
    known = [trial.control for trial in trials if trial.control]
    assert sorted(set(known)) == ["known-bad", "known-good"]
    assert known.count("known-bad") == known.count("known-good") == 6
    places = [n for n, trial in enumerate(trials) if trial.control]
    among = [trial for trial in trials[places[0] : places[-1]] if not trial.control]
    assert len(among) > 6, "they are spread over the first batch"
    with db.session() as session:
        (shown,) = controls.shown(session, run)
        assert (shown.worker, shown.control.device) == ("w", "0")
        assert shown.verdict.proof is Proof.PROVEN
        row = session.get_one(Run, run)
        assert row.state == RunState.COMPLETE
        assert row.notes == []
    cell = judged(db, run)
    assert cell.verdict.kind is Kind.CLEAN
    assert cell.head.n == 24, "control trials count in no cell"


def test_control_trials_count_for_no_rate_of_the_pinned_commit(db: Database) -> None:
    carried_out(db, ordered(db, "fix"))
    with db.session() as session:
        found = session.exec(
            select(Cell.reference, Measurement).join(Cell, col(Cell.id) == Measurement.cell_id)
        ).all()
    counted = [row for reference, row in found if not reference]
    assert [(row.k, row.n) for row in counted] == [(0, 24)]
    assert {row.k for reference, row in found if reference} == {0, 6}


def test_clean_on_a_device_that_hides_races_is_unproven(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*HIDES)
    run = ordered(db, "fix")
    carried_out(db, run)
    cell = judged(db, run)
    assert (cell.head.k, cell.head.n) == (0, 24)
    assert cell.verdict.kind is Kind.UNPROVEN
    assert cell.verdict.text.startswith("unproven on this device: known-bad failed 0 of 6")
    with db.session() as session:
        decision = decide(session.get_one(Run, run), [cell])
    assert decision.state == "error"
    assert "unproven on this device" in decision.text


def test_trials_stay_doubted_when_their_commit_is_ordered_again(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*HIDES)
    carried_out(db, ordered(db, "fix"))
    again = ordered(db, "fix")
    carried_out(db, again)
    assert trials_of(db, again) == [], "all were there"
    cell = judged(db, again)
    assert cell.verdict.kind is Kind.UNPROVEN
    assert cell.verdict.text.startswith("unproven on this device: known-bad failed 0 of 6")
    with db.session() as session:
        listed = runs.read_list(session, runs.RunFilter()).runs
    assert (listed[0].id, dict(listed[0].marks)) == (again, {Mark.UNPROVEN: 1})


def test_only_trials_that_met_the_device_are_doubted(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ordered(db, "fix")
    carried_out(db, first)
    monkeypatch.setenv(*HIDES)
    again = ordered(db, "fix", trials=30, hold_ms=0)
    carried_out(db, again)
    assert judged(db, first).verdict.kind is Kind.CLEAN
    with db.session() as session:
        proofs = controls.by_cell(session, first)
        assert {verdict.proof for verdict in proofs.values()} == {Proof.PROVEN}


def test_a_device_that_failed_its_controls_gets_nothing_of_the_next_batch(
    db: Database,
) -> None:
    run = ordered(db, "fix")
    worker = flow.worker(db, "two devices", device=replace(flow.EMULATED, ids=("0", "1")))
    carried_out(db, run)
    with db.session() as session:
        for trial in session.exec(select(Trial).where(Trial.run_id == run, Trial.control != "")):
            # As if it had been that worker's second device, which hides races.
            trial.worker_id, trial.device = worker, "1"
            if trial.control == Control.KNOWN_BAD:
                trial.outcome = Outcome.PASS
            session.add(trial)
    with db.session() as session:
        assert controls.failed_devices(session, run, worker) == ["1"]
        assert controls.failed_devices(session, run, None) == []


def test_without_a_pinned_commit_a_run_says_that_no_device_is_proven(
    db: Database, tmp_path: Path
) -> None:
    repository, config = tmp_path / "demo", tmp_path / "racewatch.toml"
    create(repository)
    subprocess.run(["git", "-C", repository, "tag", "-d", "race"], check=True, capture_output=True)
    config.write_text(f'[subjects.demo]\nrepository = "{repository}"\n', encoding="utf-8")
    run = ordered(db, "fix")
    carried_out(db, run, config=config)
    with db.session() as session:
        row = session.get_one(Run, run)
        assert row.state == RunState.COMPLETE
        (note,) = row.notes
    assert note.startswith("no control cells, so no device is proven: ")
    assert {trial.control for trial in trials_of(db, run)} == {""}
    assert judged(db, run).verdict.kind is Kind.CLEAN
