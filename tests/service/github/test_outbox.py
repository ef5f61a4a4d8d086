"""Messages to the outside: one of a topic, in order, tried again, and never sent by two at once."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import text
from sqlmodel import Session, col, select

from service.database import Database
from service.github import outbox
from service.github.errors import Refused, TryAgain, Unavailable
from service.github.outbox import Delivered, Sender, deliver, enqueue, pause_s, readiness
from service.settings import ServiceSettings
from service.tables import Head, Message, MessageState
from tests.service.github.standin import StandIn

SETTINGS = ServiceSettings(
    github_token=SecretStr("t"), base_url="https://racewatch.example", database_url=""
)


@dataclass
class Clock:
    """The time, which is the one thing here that is made up."""

    moment: datetime = field(default_factory=lambda: datetime.now(UTC))

    def __call__(self) -> datetime:
        return self.moment

    def later(self, seconds: float) -> None:
        self.moment += timedelta(seconds=seconds)


@dataclass
class Recorded:
    """A sender's other side: keeps what it was told, and may fail first."""

    told: list[dict[str, Any]] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    before: Callable[[], None] = lambda: None

    def send(self, session: Session, content: Mapping[str, Any]) -> None:
        self.before()
        if self.errors:
            raise self.errors.pop(0)
        self.told.append(dict(content))

    def senders(self, *kinds: str) -> dict[str, Sender]:
        return {kind: Sender("there", self.send) for kind in kinds or ("status",)}

    @property
    def numbers(self) -> list[int]:
        return [content["n"] for content in self.told]


@pytest.fixture
def clock() -> Clock:
    return Clock()


def put(db: Database, n: int, topic: str = "t", kind: str = "status") -> None:
    with db.session() as session:
        enqueue(session, kind, topic, {"n": n}, SETTINGS)


def states(db: Database) -> list[tuple[int, str]]:
    with db.session() as session:
        rows = session.exec(select(Message).order_by(col(Message.id)))
        return [(row.payload["n"], str(row.state)) for row in rows]


def jobs(db: Database) -> list[tuple[str, str, str]]:
    with db.session() as session:
        found = session.connection().execute(
            text("SELECT task_name, queue_name, status FROM procrastinate_jobs ORDER BY id")
        )
        return [tuple(row) for row in found]


def test_a_message_is_sent_once(db: Database, clock: Clock) -> None:
    there = Recorded()
    put(db, 1)
    clock.later(1)
    assert deliver(db, there.senders(), clock) == Delivered(sent=1)
    assert deliver(db, there.senders(), clock) == Delivered()
    assert there.numbers == [1]
    assert states(db) == [(1, "sent")]


def test_it_is_kept_only_with_what_it_tells_of(db: Database) -> None:
    def undone() -> None:
        with db.session() as session:
            enqueue(session, "status", "t", {"n": 1}, SETTINGS)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        undone()
    assert states(db) == []
    assert jobs(db) == []


def test_every_message_wakes_the_queue_in_its_own_transaction(db: Database) -> None:
    """One that shared another's job could come after that job has looked."""
    put(db, 1)
    put(db, 2)
    assert jobs(db) == [("deliver", "control", "todo")] * 2


def test_the_newest_of_a_topic_replaces_those_that_wait(db: Database, clock: Clock) -> None:
    there = Recorded()
    for n in (1, 2, 3):
        put(db, n)
    put(db, 9, topic="another")
    clock.later(1)
    assert deliver(db, there.senders(), clock) == Delivered(sent=2)
    assert sorted(there.numbers) == [3, 9]
    assert states(db) == [(1, "replaced"), (2, "replaced"), (3, "sent"), (9, "sent")]


def test_the_same_message_again_is_none(db: Database, clock: Clock) -> None:
    there = Recorded()
    put(db, 1)
    put(db, 1)
    clock.later(1)
    deliver(db, there.senders(), clock)
    put(db, 1)
    clock.later(1)
    assert deliver(db, there.senders(), clock) == Delivered()
    assert there.numbers == [1]


def test_the_same_message_after_a_failed_one_is_a_new_attempt(db: Database, clock: Clock) -> None:
    there = Recorded(errors=[Refused("no", 401)])
    put(db, 1)
    clock.later(1)
    assert deliver(db, there.senders(), clock) == Delivered(failed=1)
    put(db, 1)
    clock.later(1)
    assert deliver(db, there.senders(), clock) == Delivered(sent=1)
    assert states(db) == [(1, "failed"), (1, "sent")]


def test_what_is_refused_fails_with_its_reason(db: Database, clock: Clock) -> None:
    there = Recorded(errors=[Refused("GitHub answered 422", 422)])
    put(db, 1)
    clock.later(1)
    assert deliver(db, there.senders(), clock) == Delivered(failed=1)
    clock.later(1e6)
    assert deliver(db, there.senders(), clock) == Delivered()
    with db.session() as session:
        message = session.exec(select(Message)).one()
    assert (message.state, message.last_error) == (MessageState.FAILED, "GitHub answered 422")


def test_what_may_arrive_later_is_tried_again_after_a_pause(db: Database, clock: Clock) -> None:
    there = Recorded(errors=[TryAgain("500"), TryAgain("500")])
    put(db, 1)
    clock.later(1)
    assert deliver(db, there.senders(), clock) == Delivered(again=1)
    clock.later(4.9)
    assert deliver(db, there.senders(), clock) == Delivered()
    clock.later(0.2)
    assert deliver(db, there.senders(), clock) == Delivered(again=1)
    clock.later(9.9)
    assert deliver(db, there.senders(), clock) == Delivered()
    clock.later(0.2)
    assert deliver(db, there.senders(), clock) == Delivered(sent=1)


def test_a_failed_attempt_schedules_the_next(db: Database, clock: Clock) -> None:
    put(db, 1)
    clock.later(1)
    deliver(db, Recorded(errors=[TryAgain("500")]).senders(), clock)
    with db.session() as session:
        at = session.connection().execute(text("SELECT max(scheduled_at) FROM procrastinate_jobs"))
        assert at.scalar_one() == clock() + timedelta(seconds=5)


def test_nobody_tries_sooner_than_the_other_side_asks(db: Database, clock: Clock) -> None:
    there = Recorded(errors=[TryAgain("slow down", after_s=900)])
    put(db, 1)
    clock.later(1)
    deliver(db, there.senders(), clock)
    clock.later(899)
    assert deliver(db, there.senders(), clock) == Delivered()
    clock.later(2)
    assert deliver(db, there.senders(), clock) == Delivered(sent=1)


@pytest.mark.parametrize(
    ("attempts", "asked", "pause"),
    [
        (0, None, 5), (1, None, 10), (8, None, 1280), (9, None, 1800), (59, None, 1800),
        (10_000, None, 1800), (0, 60, 60), (9, 60, 1800), (0, 1e9, 6 * 3600),
    ],
)  # fmt: skip
def test_pauses_grow_to_half_an_hour_or_what_is_asked(
    attempts: int, asked: float | None, pause: float
) -> None:
    assert pause_s(attempts, asked) == pause


def test_an_outage_of_a_day_is_outlived_and_then_it_fails(db: Database, clock: Clock) -> None:
    there = Recorded(errors=[TryAgain("503") for _ in range(outbox.ATTEMPTS)])
    put(db, 1)
    began, attempts = clock(), 0
    while states(db) == [(1, "waiting")]:
        clock.later(1801)
        attempts += 1
        deliver(db, there.senders(), clock)
    assert attempts == outbox.ATTEMPTS
    assert sum(pause_s(n) for n in range(outbox.ATTEMPTS - 1)) > 24 * 3600
    assert clock() > began
    with db.session() as session:
        message = session.exec(select(Message)).one()
    assert message.last_error == "given up after 60 attempts: 503"


def test_while_a_place_is_unavailable_nothing_goes_there(db: Database, clock: Clock) -> None:
    there, elsewhere = Recorded(errors=[Unavailable("rate limit", 600)]), Recorded()
    senders = {
        **there.senders("status", "comment"),
        "webhook": Sender("elsewhere", elsewhere.send),
    }
    settings = SETTINGS.model_copy(
        update={"notify_url": "http://h", "notify_secret": SecretStr("s")}
    )
    put(db, 1, "a")
    put(db, 2, "b", "comment")
    with db.session() as session:
        enqueue(session, "webhook", "c", {"n": 3}, settings)
    clock.later(1)
    assert deliver(db, senders, clock) == Delivered(sent=1, again=1)
    assert (there.told, elsewhere.numbers) == ([], [3])
    clock.later(601)
    assert deliver(db, senders, clock) == Delivered(sent=2)
    with db.session() as session:
        attempts = session.exec(select(Message.attempts).order_by(col(Message.id))).all()
    assert sorted(attempts) == [1, 1, 2]


def test_one_that_never_arrives_keeps_back_no_other(db: Database, clock: Clock) -> None:
    put(db, 1, "a")
    put(db, 2, "b")
    there = Recorded(errors=[Unavailable("timeout")])
    clock.later(1)
    assert deliver(db, there.senders(), clock) == Delivered(again=1)
    clock.later(6)
    assert deliver(db, there.senders(), clock) == Delivered(sent=2)
    assert there.numbers == [2, 1]


def test_a_newer_message_does_not_wait_for_the_pause_of_an_older(
    db: Database, clock: Clock
) -> None:
    there = Recorded(errors=[TryAgain("500")])
    put(db, 1)
    clock.later(1)
    deliver(db, there.senders(), clock)
    put(db, 2)
    clock.later(1)
    assert deliver(db, there.senders(), clock) == Delivered(sent=1)
    clock.later(1e6)
    assert deliver(db, there.senders(), clock) == Delivered()
    assert there.numbers == [2]
    assert states(db) == [(1, "replaced"), (2, "sent")]


def test_a_message_that_comes_while_an_older_is_sent_waits_and_nobody_waits_for_it(
    db: Database, clock: Clock
) -> None:
    """Sending takes as long as the other side likes; who ends a run must not wait for that."""
    order: list[str] = []

    def meanwhile() -> None:
        if not order:
            order.append("first is being sent")
            with db.session() as session:
                session.connection().execute(text("SET LOCAL lock_timeout = '2s'"))
                enqueue(session, "status", "t", {"n": 2}, SETTINGS)
            other = Recorded()
            clock.later(1)
            assert deliver(db, other.senders(), clock) == Delivered()

    there = Recorded(before=meanwhile)
    put(db, 1)
    clock.later(1)
    assert deliver(db, there.senders(), clock) == Delivered(sent=2)
    assert there.numbers == [1, 2]


def test_an_older_that_failed_meanwhile_is_replaced(db: Database, clock: Clock) -> None:
    def meanwhile() -> None:
        there.before = lambda: None
        put(db, 2)

    there = Recorded(errors=[TryAgain("500")], before=meanwhile)
    put(db, 1)
    clock.later(1)
    deliver(db, there.senders(), clock)
    clock.later(1)
    deliver(db, there.senders(), clock)
    assert there.numbers == [2]
    assert states(db) == [(1, "replaced"), (2, "sent")]


def test_many_deliver_at_once_and_each_message_is_sent_once(db: Database, clock: Clock) -> None:
    there = Recorded()
    for n in range(60):
        put(db, n, topic=f"t{n}")
    clock.later(60)  # sixty were put, however long that took
    results: list[Delivered] = []
    in_parallel([lambda: results.append(deliver(db, there.senders(), clock))] * 4)
    assert sorted(there.numbers) == list(range(60))
    assert sum(result.sent for result in results) == 60


def test_whatever_ends_first_the_last_that_is_told_is_how_things_stand(db: Database) -> None:
    """Writers and senders race on one topic: sends never overlap, and none comes too late."""
    writes, at_work, overlaps = 40, threading.Lock(), []

    def content(session: Session, payload: Mapping[str, Any]) -> dict[str, Any]:
        return {"n": int(session.get_one(Head, ("te", "main")).sha)}

    def check() -> None:
        if not at_work.acquire(blocking=False):
            overlaps.append(1)
            return
        threading.Event().wait(0.002)
        at_work.release()

    there = Recorded(before=check)
    senders = {"status": Sender("there", there.send, content)}
    with db.session() as session:
        session.add(Head(subject="te", ref="main", sha="0"))

    def write() -> None:
        for _ in range(writes):
            with db.session() as session:
                head = session.get_one(Head, ("te", "main"), with_for_update=True)
                head.sha = str(int(head.sha) + 1)
                session.add(head)
                enqueue(session, "status", "t", {"n": head.sha}, SETTINGS)

    def send() -> None:
        while there.numbers[-1:] != [2 * writes]:
            assert deliver(db, senders).failed == 0

    in_parallel([write, write, send, send])
    assert there.numbers == sorted(set(there.numbers))
    assert there.numbers[-1] == 2 * writes
    assert overlaps == []


def in_parallel(works: list[Callable[[], object]], within_s: float = 30) -> None:
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(within_s)
    assert not any(thread.is_alive() for thread in threads)


def test_what_is_told_is_worked_out_when_it_is_sent(db: Database, clock: Clock) -> None:
    there = Recorded()
    now_said = {"n": 7}
    sender = Sender("there", there.send, lambda session, payload: dict(now_said))
    put(db, 1)
    now_said["n"] = 8
    clock.later(1)
    deliver(db, {"status": sender}, clock)
    assert there.numbers == [8]


def test_what_was_told_already_is_not_told_again(db: Database, clock: Clock) -> None:
    there = Recorded()
    sender = {"status": Sender("there", there.send, lambda session, payload: {"n": 0})}
    put(db, 1)
    clock.later(1)
    assert deliver(db, sender, clock) == Delivered(sent=1)
    put(db, 2)
    clock.later(1)
    assert deliver(db, sender, clock) == Delivered(unchanged=1)
    assert there.numbers == [0]


def test_it_is_told_again_where_something_else_may_have_arrived_since(
    db: Database, clock: Clock
) -> None:
    """A, then B whose answer was lost, then A: the other side may hold B."""
    there = Recorded()
    said = {"n": 1}
    sender = {"status": Sender("there", there.send, lambda session, payload: dict(said))}
    put(db, 1)
    clock.later(1)
    deliver(db, sender, clock)
    said["n"] = 2
    there.errors = [TryAgain("the answer was lost")]
    put(db, 2)
    clock.later(1)
    deliver(db, sender, clock)
    said["n"] = 1
    put(db, 3)
    clock.later(1)
    assert deliver(db, sender, clock) == Delivered(sent=1)
    assert there.numbers == [1, 1]


def test_a_message_with_nothing_left_to_tell_ends(db: Database, clock: Clock) -> None:
    there = Recorded()
    put(db, 1)
    clock.later(1)
    nothing = {"status": Sender("there", there.send, lambda session, payload: None)}
    assert deliver(db, nothing, clock) == Delivered(replaced=1)
    assert there.told == []
    assert states(db) == [(1, "replaced")]


@pytest.mark.parametrize("breaks", ["python", "sql"])
def test_a_bug_in_one_message_keeps_back_no_other(
    db: Database, clock: Clock, breaks: str, caplog: pytest.LogCaptureFixture
) -> None:
    there = Recorded()

    def content(session: Session, payload: Mapping[str, Any]) -> dict[str, Any]:
        if payload["n"] == 1 and breaks == "sql":
            session.connection().execute(text("SELECT nonsense"))
        if payload["n"] == 1:
            raise KeyError("nonsense")
        return dict(payload)

    put(db, 1, "a")
    put(db, 2, "b")
    clock.later(1)
    senders = {"status": Sender("there", there.send, content)}
    assert deliver(db, senders, clock) == Delivered(sent=1, again=1)
    assert there.numbers == [2]
    assert "nonsense" in caplog.text
    with db.session() as session:
        message = session.exec(select(Message).where(Message.topic == "a")).one()
    assert message.last_error.startswith("could not be told, see the log")


def test_a_kind_without_a_sender_goes_on_waiting(db: Database, clock: Clock) -> None:
    put(db, 1)
    clock.later(1)
    assert deliver(db, {}, clock) == Delivered()
    assert states(db) == [(1, "waiting")]


def test_a_delivery_that_takes_long_leaves_the_rest_to_the_next(db: Database, clock: Clock) -> None:
    there = Recorded()
    put(db, 1)
    before = len(jobs(db))
    clock.later(1)
    with db.session() as session:
        session.connection().execute(text("UPDATE procrastinate_jobs SET status = 'doing'"))
    assert deliver(db, there.senders(), clock, budget_s=0) == Delivered()
    assert len(jobs(db)) == before + 1
    assert deliver(db, there.senders(), clock) == Delivered(sent=1)


@pytest.mark.parametrize("kind", ["status", "comment", "webhook", "email"])
def test_what_this_installation_does_not_send_is_not_kept(db: Database, kind: str) -> None:
    with db.session() as session:
        assert enqueue(session, kind, "t", {"n": 1}, ServiceSettings(database_url="")) is None
    assert states(db) == []
    assert jobs(db) == []


def test_readiness_says_what_is_missing() -> None:
    bare = ServiceSettings(database_url="")
    assert readiness(bare) == [
        "no GitHub token (RACEWATCH_GITHUB_TOKEN): results are shown here but not sent to GitHub"
    ]
    token = ServiceSettings(github_token=SecretStr("t"), database_url="")
    assert readiness(token) == [
        "no RACEWATCH_BASE_URL: what is sent to GitHub links to http://127.0.0.1:8000, which only "
        "this host can open"
    ]
    assert readiness(SETTINGS) == []
    broken = SETTINGS.model_copy(update={"github_token": SecretStr("two words")})
    assert readiness(broken) == [
        "nothing is sent to GitHub: RACEWATCH_GITHUB_TOKEN: must be printable characters without "
        "spaces"
    ]


def test_senders_are_those_that_are_set_up() -> None:
    assert outbox.senders(ServiceSettings(database_url="")) == {}
    assert set(outbox.senders(SETTINGS)) == {"status", "comment"}
    every = SETTINGS.model_copy(
        update={
            "notify_url": "http://h",
            "notify_secret": SecretStr("s"),
            "smtp_url": "smtp://h",
            "notify_email": "a@b.example",
        }
    )
    assert set(outbox.senders(every)) == {"status", "comment", "webhook", "email"}


CRASH = """
import os, sys
from service.database import Database
from service.github.client import GitHub
from service.github.outbox import Sender, deliver
url, api, token = sys.argv[1:]
github = GitHub(api, token)
def send(session, content):
    github.set_status(**content)
    os._exit(9)
deliver(Database(url), {"status": Sender("GitHub", send)})
"""


def test_a_process_that_dies_after_sending_sends_again_and_loses_nothing(
    db: Database, github: StandIn
) -> None:
    status = {
        "repository": "NVIDIA/TransformerEngine",
        "sha": "a" * 40,
        "state": "success",
        "context": "c",
        "description": "d",
    }
    with db.session() as session:
        session.add(Message(kind="status", topic="t", payload=status))
    command = [sys.executable, "-c", CRASH, db.url, github.url, github.token]
    assert subprocess.run(command, timeout=60, check=False).returncode == 9
    assert len(github.statuses) == 1

    settings = SETTINGS.model_copy(
        update={"github_api": github.url, "github_token": SecretStr(github.token)}
    )
    sender = outbox.senders(settings)["status"]
    as_it_is = {"status": Sender(sender.place, sender.send)}
    assert deliver(db, as_it_is) == Delivered(sent=1)
    assert github.status("a" * 40, "c") == github.statuses[0]
    assert github.complaints == []
