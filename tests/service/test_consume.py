"""Jobs are taken from queues through any outage, and those in hand are finished before the end."""

from __future__ import annotations

import pytest

from service import consume
from service.database import Database
from tests.conftest import Eventually
from tests.service.consumer import Consumer, cut, defer, execute, shut, statuses


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats and new attempts that tests need not wait for."""
    monkeypatch.setattr(consume, "HEARTBEAT_S", 0.1)
    monkeypatch.setattr(consume, "RESTART_S", 0.05)


def test_the_most_urgent_job_is_taken_first(db: Database, eventually: Eventually) -> None:
    for name, priority in (("backfill", 10), ("pull request", 40), ("manual", 30)):
        defer(db, name, priority=priority)
    with Consumer(db) as consumer:
        eventually(lambda: statuses(db) == {}, "all jobs are done")
    assert consumer.desk.done == ["pull request", "manual", "backfill"]


def test_a_long_job_holds_up_its_own_lane_only(db: Database, eventually: Eventually) -> None:
    with Consumer(db, ["build-demo"], ["trial-emulated"]) as consumer:
        defer(db, "long", "build-demo", held=True)
        eventually(lambda: consumer.desk.begun == ["long"], "the long job begins")
        defer(db, "build", "build-demo")
        defer(db, "trial", "trial-emulated")
        eventually(
            lambda: statuses(db) == {"long": "doing", "build": "todo"}, "the other lane goes on"
        )
        consumer.desk.let_go.set()
        eventually(lambda: len(consumer.desk.done) == 3, "all jobs are done")


def test_told_to_stop_it_finishes_what_it_has_and_takes_nothing_new(
    db: Database, eventually: Eventually
) -> None:
    with Consumer(db) as consumer:
        defer(db, "in hand", held=True)
        eventually(lambda: consumer.desk.begun, "the job begins")
        defer(db, "next")
        consumer.stop()
        assert consumer.runs
        consumer.desk.let_go.set()
        eventually(lambda: not consumer.runs, "it ends")
    assert consumer.desk.done == ["in hand"]
    assert statuses(db) == {"next": "todo"}


def test_a_queue_that_is_added_to_a_lane_is_taken_from(
    db: Database, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = ["desk"]
    with Consumer(db, lane) as consumer:
        defer(db, "known")
        eventually(lambda: consumer.desk.done == ["known"], "the known queue is taken from")
        lane.append("environment-7")
        defer(db, "learnt", "environment-7")
        eventually(lambda: consumer.desk.done == ["known", "learnt"], "so is the other")


def test_it_goes_on_when_its_connections_are_cut(db: Database, eventually: Eventually) -> None:
    with Consumer(db) as consumer:
        defer(db, "before", held=True)
        eventually(lambda: consumer.desk.begun, "the job begins")
        cut(db)
        consumer.desk.let_go.set()
        eventually(lambda: consumer.desk.done == ["before"], "the job in hand is done")
        defer(db, "after")
        eventually(lambda: consumer.desk.done == ["before", "after"], "the next is taken")


def test_it_waits_for_a_database_that_lets_nobody_in(
    db: Database,
    postgres: str,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(consume, "CONNECT_S", 0.2)
    defer(db, "waits")
    consumer = Consumer(db)
    with shut(postgres, db):
        consumer.start()
        eventually(
            lambda: sum("taking jobs from desk ended" in said for said in caplog.messages) >= 3,
            "it has tried in vain, longer than a connection is waited for",
        )
    with consumer:
        eventually(lambda: consumer.desk.done == ["waits"], "it works")


def test_it_ends_when_told_to_though_the_database_lets_nobody_in(
    db: Database, postgres: str, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consume, "CONNECT_S", 0.2)
    with shut(postgres, db), Consumer(db) as consumer:
        consumer.stop()
        eventually(lambda: not consumer.runs, "it ends")


def test_a_job_that_fails_is_tried_again_later(db: Database, eventually: Eventually) -> None:
    with Consumer(db) as consumer:
        consumer.desk.fail = lambda name: RuntimeError("for the test")
        defer(db, "fails")
        waits = "SELECT count(*) FROM procrastinate_jobs WHERE status = 'todo' AND attempts = 1"
        eventually(lambda: execute(db, waits) == 1, "it waits for its next attempt")
