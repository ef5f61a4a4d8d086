"""What Procrastinate 3.10 does that one does not expect, and what we do about it.

Each trap is shown as the library has it, so that a version that no longer has it is noticed, and
then that the service holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import procrastinate
import pytest
from procrastinate.exceptions import AlreadyEnqueued
from procrastinate.worker import Worker as QueueWorker
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlmodel import Session, select

from service import consume, control, tasks
from service.database import Database
from service.postgres import libpq
from service.queue import app, wake, wake_new
from service.settings import ServiceSettings
from service.sweep import end_orphaned_jobs, sweep
from service.tables import ClaimState, Head, RunState
from tests.conftest import Eventually
from tests.service import flow
from tests.service.consumer import Consumer, Desk, defer, execute, statuses

SETTINGS = ServiceSettings(worker_lost_s=0.3, database_url="")
HEARTBEATS = "SELECT sum(extract(epoch FROM last_heartbeat)) FROM procrastinate_workers"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats and new attempts that tests need not wait for."""
    monkeypatch.setattr(consume, "HEARTBEAT_S", 0.05)
    monkeypatch.setattr(consume, "RESTART_S", 0.05)


def as_is(
    db: Database,
    work: Callable[[procrastinate.App, Desk], Any],
) -> Any:
    """Do something with the library as it is, on the test's database."""

    async def run() -> Any:
        connector = procrastinate.PsycopgConnector(conninfo=libpq(db.url))
        with app.replace_connector(connector) as own:
            async with own.open_async():
                return await work(own, Desk())

    return asyncio.run(run())


def queue_worker(own: procrastinate.App, desk: Desk, **more: Any) -> QueueWorker:
    """A worker as the library has it, with quick heartbeats."""
    return QueueWorker(
        own,
        queues=["desk"],
        additional_context={"desk": desk},
        install_signal_handlers=False,
        update_heartbeat_interval=0.05,
        **more,
    )


# 1. Heartbeats stop while a worker drains


def silent(db: Database) -> bool:
    """Whether the queue has heard no heartbeat for many times as long as between two of them."""
    newest = "SELECT now() - max(last_heartbeat) > interval '1 s' FROM procrastinate_workers"
    return bool(execute(db, newest))


def test_a_worker_that_drains_looks_dead(db: Database, eventually: Eventually) -> None:
    defer(db, "long", held=True)

    async def work(own: procrastinate.App, desk: Desk) -> None:
        worker = queue_worker(own, desk)
        running = asyncio.create_task(worker.run())  # type: ignore[no-untyped-call]
        while not desk.begun:
            await asyncio.sleep(0.01)
        worker.stop()  # type: ignore[no-untyped-call]
        await asyncio.to_thread(eventually, lambda: silent(db), "no heartbeat is heard any more")
        assert not running.done()
        desk.let_go.set()
        await running

    as_is(db, work)


def test_ours_is_heard_while_it_drains(db: Database, eventually: Eventually) -> None:
    with Consumer(db) as consumer:
        defer(db, "long", held=True)
        eventually(lambda: consumer.desk.begun, "the job begins")
        consumer.stop()
        draining = execute(db, "SELECT clock_timestamp()")
        later = "SELECT max(last_heartbeat) > :since + interval '1.2 s' FROM procrastinate_workers"
        eventually(lambda: execute(db, later, since=draining), "heartbeats go on")
        assert consumer.runs
        with db.session() as session:  # now() stands still in it: who was heard since is not gone
            asked = text("SELECT extract(epoch FROM now() - :since)")
            lasts = session.connection().execute(asked, {"since": draining}).scalar_one()
            assert end_orphaned_jobs(session, float(lasts)) == 0


def test_what_a_worker_holds_while_it_drains_is_watched_by_our_own_heartbeat(
    db: Database,
) -> None:
    run = flow.started(db)
    kept, lost = (
        flow.taken(db, run, flow.worker(db, name, parallel=1)).claim for name in ("one", "two")
    )
    flow.silent(db, "claims")
    with db.session() as session:
        assert flow.claims.alive(session, kept)
    sweep(db, flow.patient(db))
    with db.session() as session:
        states = {c.id: c.state for c in session.exec(select(flow.Claim)).all()}
    assert (states[kept], states[lost]) == (ClaimState.LIVE, ClaimState.LOST)


# 2. Finishing a job is not fenced


def test_whoever_has_lost_a_job_still_finishes_it(db: Database) -> None:
    """So what a job did is stored under tokens of our own, and its status says nothing."""
    defer(db, "taken over")

    async def work(own: procrastinate.App, desk: Desk) -> None:
        manager = own.job_manager
        first, second = await manager.register_worker(), await manager.register_worker()
        job = await manager.fetch_job(["desk"], first)
        assert job is not None
        await manager.retry_job(job)
        again = await manager.fetch_job(["desk"], second)
        assert again is not None
        assert (again.id, again.worker_id) == (job.id, second)
        await manager.finish_job(job, procrastinate.jobs.Status.FAILED, delete_job=False)

    as_is(db, work)
    assert statuses(db) == {"taken over": "failed"}


def test_a_job_that_was_ended_for_its_worker_disturbs_nobody_when_it_ends(
    db: Database, eventually: Eventually
) -> None:
    with Consumer(db) as consumer:
        defer(db, "orphaned", held=True)
        eventually(lambda: consumer.desk.begun, "the job begins")
        execute(db, "UPDATE procrastinate_jobs SET worker_id = NULL")
        with db.session() as session:
            assert end_orphaned_jobs(session, 60) == 1
        consumer.desk.let_go.set()
        defer(db, "next")
        eventually(lambda: "next" in consumer.desk.done, "its worker goes on")
    assert statuses(db) == {"orphaned": "failed"}


# 3. A second `todo` with one queueing_lock


def test_a_second_job_with_one_lock_undoes_a_transaction_and_waking_does_not(
    db: Database,
) -> None:
    with db.session() as session:
        wake(session, "task", "queue", lock="the lock")
    with db.engine.connect() as connection, Session(connection) as session:
        with pytest.raises(AlreadyEnqueued):
            wake_new(session, "task", "queue", lock="the lock")
        with pytest.raises(DBAPIError, match="current transaction is aborted"):
            session.exec(select(Head))
    with db.session() as session:
        assert not wake(session, "task", "queue", lock="the lock")
        assert session.exec(select(Head)).all() == []


def test_a_job_that_failed_while_another_with_its_lock_waits_ends_nothing(
    db: Database, eventually: Eventually
) -> None:
    with Consumer(db) as consumer:
        consumer.desk.fail = lambda name: RuntimeError("for the test") if name == "one" else None
        defer(db, "one", held=True, lock="the lock")
        eventually(lambda: consumer.desk.begun == ["one"], "the first begins")
        defer(db, "two", lock="the lock")
        consumer.desk.let_go.set()
        eventually(lambda: consumer.desk.done == ["two"], "the second is done")
        assert statuses(db)["one"] == "doing"  # it could not be put back, nor ended
    execute(db, "DELETE FROM procrastinate_workers")
    with db.session() as session:
        assert end_orphaned_jobs(session, 60) == 1
    assert statuses(db)["one"] == "failed"


# 4. Retrying stalled jobs ignores max attempts


def test_a_job_is_put_back_however_often_it_was_so_we_end_it_and_count_ourselves(
    db: Database,
) -> None:
    defer(db, "stalled")
    execute(db, "UPDATE procrastinate_jobs SET attempts = 99")
    assert tasks.AGAIN.max_attempts is not None
    assert tasks.AGAIN.max_attempts < 99

    async def work(own: procrastinate.App, desk: Desk) -> None:
        manager = own.job_manager
        job = await manager.fetch_job(["desk"], await manager.register_worker())
        assert job is not None
        (stalled,) = await manager.get_stalled_jobs(seconds_since_heartbeat=0)
        await manager.retry_job(stalled)

    as_is(db, work)
    assert statuses(db) == {"stalled": "todo"}
    execute(db, "UPDATE procrastinate_jobs SET status = 'doing', worker_id = NULL")
    with db.session() as session:
        assert end_orphaned_jobs(session, 60) == 1
    assert statuses(db) == {"stalled": "failed"}


def test_trials_that_kill_their_worker_each_time_end_their_run(db: Database) -> None:
    run = flow.started(db)
    who = flow.worker(db)
    for _ in range(3):
        assert flow.row(db, run).state == RunState.RUNNING
        flow.taken(db, run, who)
        flow.fetched(db)
        flow.silent(db, "claims")
        flow.silent(db, "workers", timedelta(hours=-1))
        sweep(db, SETTINGS)
    ended = flow.row(db, run)
    assert (ended.state, ended.reason) == (
        RunState.FAILED,
        "given up: 3 attempts in a row settled no trial: its worker was lost",
    )


# 5. A job aborted at shutdown is lost without a retry strategy


@pytest.mark.parametrize(("task", "left"), [("desk-once", "aborted"), ("desk", "todo")])
def test_a_job_aborted_at_shutdown_is_lost_unless_it_may_be_tried_again(
    db: Database, task: str, left: str
) -> None:
    defer(db, "long", held=True, task=task)

    async def work(own: procrastinate.App, desk: Desk) -> None:
        worker = queue_worker(own, desk, shutdown_graceful_timeout=0.05)
        running = asyncio.create_task(worker.run())  # type: ignore[no-untyped-call]
        while not desk.begun:
            await asyncio.sleep(0.01)
        worker.stop()  # type: ignore[no-untyped-call]
        await running
        desk.let_go.set()

    as_is(db, work)
    assert statuses(db) == {"long": left}


def test_all_our_tasks_may_be_tried_again_and_none_is_aborted(
    db: Database, eventually: Eventually
) -> None:
    ours = [tasks.prepare, tasks.build, tasks.trials, control.deliver, control.check_command]
    assert all(task.retry_strategy is tasks.AGAIN for task in ours)
    with Consumer(db) as consumer:
        defer(db, "long", held=True)
        eventually(lambda: consumer.desk.begun, "the job begins")
        consumer.stop()
        begun = "SELECT now() - max(at) > interval '0.3 s' FROM procrastinate_events"
        eventually(lambda: execute(db, begun), "some time goes by")
        assert consumer.runs
        consumer.desk.let_go.set()
        eventually(lambda: not consumer.runs, "it ends")
    assert statuses(db) == {}


# 6. One heartbeat that fails is the last

FAILING = "ALTER FUNCTION procrastinate_update_heartbeat_v1(bigint) RENAME TO gone"
WORKING = "ALTER FUNCTION gone(bigint) RENAME TO procrastinate_update_heartbeat_v1"
TOLD_WHEN_FAILING = (
    "CREATE SEQUENCE failed",  # which, unlike a table, keeps what a failed transaction did to it
    FAILING,
    "CREATE FUNCTION procrastinate_update_heartbeat_v1(bigint) RETURNS void LANGUAGE plpgsql AS "
    "$$BEGIN PERFORM nextval('failed'); RAISE 'for the test'; END$$",
)
NO_LONGER_TOLD = "DROP FUNCTION procrastinate_update_heartbeat_v1(bigint)"


def test_one_heartbeat_that_fails_is_a_workers_last(db: Database, eventually: Eventually) -> None:
    """With a periodic task it ends the worker. Without one nobody notices, and it looks dead."""

    async def work(own: procrastinate.App, desk: Desk) -> None:
        worker = queue_worker(own, desk)
        running = asyncio.create_task(worker.run())  # type: ignore[no-untyped-call]
        await asyncio.to_thread(
            eventually, lambda: (execute(db, HEARTBEATS) or 0) > 0, "a heartbeat is heard"
        )
        with db.session() as session:  # at one blow, so that no failure is missed
            for statement in TOLD_WHEN_FAILING:
                session.connection().execute(text(statement))
        failed = "SELECT is_called FROM failed"
        await asyncio.to_thread(eventually, lambda: execute(db, failed), "a heartbeat fails")
        execute(db, NO_LONGER_TOLD)
        execute(db, WORKING)
        before = execute(db, HEARTBEATS)
        await asyncio.sleep(0.3)  # six heartbeats
        assert execute(db, HEARTBEATS) == before
        assert not running.done()
        worker.stop()  # type: ignore[no-untyped-call]
        await running

    as_is(db, work)


def test_ours_is_heard_again(db: Database, eventually: Eventually) -> None:
    with Consumer(db) as consumer:
        defer(db, "before")
        eventually(lambda: consumer.desk.done == ["before"], "it works")
        execute(db, FAILING)
        eventually(lambda: silent(db), "no heartbeat is heard")
        execute(db, WORKING)
        eventually(lambda: not silent(db), "they are heard again")
        defer(db, "after")
        eventually(lambda: consumer.desk.done == ["before", "after"], "it works as before")


def test_a_worker_that_others_took_for_dead_begins_anew(
    db: Database, eventually: Eventually
) -> None:
    with Consumer(db) as consumer:
        defer(db, "before")
        eventually(lambda: consumer.desk.done == ["before"], "it works")
        execute(db, "DELETE FROM procrastinate_workers")
        defer(db, "after")
        eventually(lambda: consumer.desk.done == ["before", "after"], "it works as before")
