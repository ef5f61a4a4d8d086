"""Whatever a worker leaves behind goes to others, and one thing that fails holds up no other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

import pytest
from pydantic import SecretStr
from sqlalchemy import event
from sqlmodel import Session, select

from service import builds, claims
from service import sweep as sweeping
from service.database import Database
from service.settings import ServiceSettings
from service.sweep import end_orphaned_jobs, sweep
from service.tables import (
    BuildState,
    Claim,
    ClaimState,
    CommitBuild,
    Message,
    Run,
    RunState,
    Worker,
    WorkerState,
)
from tests.service import flow
from tests.service.consumer import execute, statuses
from tests.service.flow import ONE_CELL

SETTINGS = ServiceSettings(worker_lost_s=0.3, database_url="")
"""The server of the tests runs for longer than that."""


def worker_state(db: Database, worker: UUID) -> WorkerState:
    with db.session() as session:
        return session.get_one(Worker, worker).state


def test_a_silent_worker_is_lost_and_told_of(db: Database) -> None:
    hook = {"notify_url": "http://hook.example", "notify_secret": SecretStr("s")}
    settings = SETTINGS.model_copy(update=hook)
    silent, stopped = flow.worker(db, "silent"), flow.worker(db, "gone", state=WorkerState.STOPPED)
    flow.silent(db, "workers")
    live = flow.worker(db, "live", heartbeat_at=flow.moment(db) + timedelta(minutes=1))
    sweep(db, settings)
    assert worker_state(db, silent) == WorkerState.LOST
    assert worker_state(db, stopped) == WorkerState.STOPPED
    assert worker_state(db, live) == WorkerState.LIVE
    with db.session() as session:
        told = session.exec(select(Message.topic)).all()
    assert len(told) == 1
    assert "silent" not in told[0]
    sweep(db, settings)
    with db.session() as session:
        assert len(session.exec(select(Message)).all()) == 1


def test_a_lost_claims_trials_go_to_others(db: Database) -> None:
    who = flow.worker(db, heartbeat_at=flow.moment(db) + timedelta(hours=1))
    run = flow.started(db, ONE_CELL)
    lost = flow.taken(db, run, who)
    flow.fetched(db)
    flow.silent(db, "claims")
    sweep(db, SETTINGS)
    with db.session() as session:
        assert session.get_one(Claim, lost.claim).state == ClaimState.LOST
    assert len(flow.jobs(db, "trials")) == 1
    assert flow.row(db, run).setbacks == 1
    assert flow.taken(db, run, who).matrix == lost.matrix


def test_a_lost_build_goes_to_others(db: Database) -> None:
    run = flow.order(db, matrix=ONE_CELL)
    flow.resolve(db, run)
    with db.session() as session:
        job = builds.take(session, flow.waiting(db)[0], None)
        assert job is not None
    flow.fetched(db)
    flow.silent(db, "commit_builds")
    sweep(db, SETTINGS)
    with db.session() as session:
        wanted = session.get_one(CommitBuild, job.id)
        assert (wanted.state, wanted.token) == (BuildState.WAITING, None)
    assert [job.later > 0 for job in flow.jobs(db, "build")] == [True]


def test_a_run_whose_commit_was_being_found_out_is_taken_up_by_others(db: Database) -> None:
    run = flow.order(db)
    flow.fetched(db)
    with db.session() as session:
        claims.hold(session, run, None)
    sweep(db, flow.patient(db))
    assert flow.jobs(db) == []
    flow.silent(db, "claims")
    sweep(db, SETTINGS)
    assert [job.task for job in flow.jobs(db)] == ["prepare"]


@pytest.mark.parametrize("reached", [RunState.QUEUED, RunState.BUILDING, RunState.RUNNING])
def test_an_open_run_whose_jobs_were_lost_is_woken_again(db: Database, reached: RunState) -> None:
    run = flow.order(db)
    if reached != RunState.QUEUED:
        flow.resolve(db, run)
    if reached == RunState.RUNNING:
        flow.build(db)
    before = flow.jobs(db)
    execute(db, "DELETE FROM procrastinate_jobs")
    sweep(db, SETTINGS)
    assert flow.row(db, run).state == reached
    tasks = {RunState.QUEUED: "prepare", RunState.BUILDING: "build", RunState.RUNNING: "trials"}
    again = flow.jobs(db, tasks[reached])
    assert again
    assert again == [job for job in before if job.task == tasks[reached]]


def test_what_has_spoken_since_it_was_found_stays_its_workers(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    who = flow.worker(db)
    run = flow.started(db, ONE_CELL)
    batch = flow.taken(db, run, who)
    other = flow.order(db, "d" * 40)
    flow.resolve(db, other)
    with db.session() as session:
        job = builds.take(session, flow.waiting(db, "d" * 40)[0], None)
        assert job is not None
    flow.silent(db, "claims")
    flow.silent(db, "commit_builds")
    real = sweeping._each

    def late(
        database: Database, statement: object, work: Callable[[Session, object], object]
    ) -> None:
        def speaks_first(session: Session, one: object) -> None:
            with db.session() as speaking:
                assert claims.alive(speaking, batch.claim)
                assert builds.alive(speaking, job)
            work(session, one)

        real(database, statement, speaks_first)

    monkeypatch.setattr(sweeping, "_each", late)
    sweep(db, SETTINGS)
    with db.session() as session:
        assert session.get_one(Claim, batch.claim).state == ClaimState.LIVE
        assert session.get_one(CommitBuild, job.id).token == job.token


def test_right_after_the_database_began_nobody_is_lost(db: Database) -> None:
    """While it was down nobody could tell it anything."""
    who = flow.worker(db)
    flow.silent(db, "workers")
    began = "SELECT extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())"
    age = float(execute(db, began))
    sweep(db, ServiceSettings(worker_lost_s=age + 600, database_url=""))
    assert worker_state(db, who) == WorkerState.LIVE
    sweep(db, SETTINGS)
    assert worker_state(db, who) == WorkerState.LOST


def test_a_run_that_cannot_be_moved_on_holds_up_no_other(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    broken = flow.order(db, origin="pull_request")
    with db.session() as session:
        row = session.get_one(Run, broken)
        row.state, row.commit_id, row.matrix = RunState.BUILDING, 1, {"no": "matrix"}
        session.add(row)
    other = flow.order(db)
    execute(db, "DELETE FROM procrastinate_jobs")
    sweep(db, SETTINGS)
    assert [job.lock for job in flow.jobs(db)] == [f"prepare:{other}"]
    assert f"the sweep cannot move on {broken}" in caplog.text


def test_jobs_of_the_queues_lost_workers_end_and_others_do_not(db: Database) -> None:
    for name in ("lost", "live", "nobody's", "waiting"):
        execute(
            db,
            "INSERT INTO procrastinate_jobs (queue_name, task_name, args, status) VALUES "
            "('q', 't', jsonb_build_object('name', CAST(:name AS text)), "
            "CASE WHEN :name = 'waiting' THEN 'todo' ELSE 'doing' END::procrastinate_job_status)",
            name=name,
        )
    for name, age in (("lost", 100), ("live", 10)):
        execute(
            db,
            "WITH w AS (INSERT INTO procrastinate_workers (last_heartbeat) "
            "VALUES (now() - make_interval(secs => :age)) RETURNING id) "
            "UPDATE procrastinate_jobs SET worker_id = w.id FROM w WHERE args->>'name' = :name",
            name=name,
            age=age,
        )
    with db.session() as session:
        assert end_orphaned_jobs(session, 60) == 2
    assert statuses(db) == {
        "lost": "failed",
        "live": "doing",
        "nobody's": "failed",
        "waiting": "todo",
    }


def test_two_sweeps_at_a_time_do_everything_once(db: Database) -> None:
    who = flow.worker(db)
    run = flow.started(db, ONE_CELL)
    flow.taken(db, run, who)
    flow.fetched(db)
    flow.silent(db, "claims")
    both = [threading.Thread(target=sweep, args=(db, SETTINGS)) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join(30)
    assert flow.row(db, run).setbacks == 1
    assert len(flow.jobs(db, "trials")) == 1


def test_thousands_of_queued_runs_say_who_is_missing_in_few_statements(db: Database) -> None:
    runs = [flow.order(db, f"{n:040d}", ONE_CELL) for n in range(20)]
    asked: list[str] = []
    event.listen(db.engine, "before_cursor_execute", lambda *what: asked.append(what[2]))
    sweep(db, SETTINGS)
    assert len(asked) < 20
    assert {flow.row(db, run).reason for run in runs} == {
        "no worker takes git-demo: start a `racewatch worker` for it"
    }
    flow.worker(db, heartbeat_at=flow.moment(db) + timedelta(hours=1))
    sweep(db, SETTINGS)
    assert {flow.row(db, run).reason for run in runs} == {""}
