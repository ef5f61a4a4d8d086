"""Live updates: what is committed reaches open pages, once, in order, through losses."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from sqlalchemy import text

from service import live
from service.database import Database
from service.events import publish
from service.live import WAITING, Change, Subscription
from tests.service.pages.served import Served, served

Eventually = Callable[[Callable[[], object], str], None]


@pytest.fixture
def site(db: Database, tmp_path: Path) -> Iterator[Served]:
    """A running server on a database of the test's own."""
    with served(db, tmp_path) as running:
        yield running


class Page:
    """An open page: what its event stream brought so far."""

    def __init__(self, address: str, headers: dict[str, str] | None = None, **query: Any) -> None:
        self.lines: list[str] = []
        self.ended = threading.Event()
        self._connection = HTTPConnection(address.removeprefix("http://"), timeout=30)
        self._connection.connect()
        asked = f"/events?{urlencode(query, doseq=True)}"
        self._connection.request("GET", asked, headers=headers or {})
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for line in self._connection.getresponse():
                self.lines.append(line.decode().rstrip("\n"))
        except (OSError, HTTPException):
            self.lines.append("broken off")
        finally:
            self.ended.set()

    @property
    def events(self) -> list[dict[str, Any]]:
        """What it was told, in order."""
        data = [line.removeprefix("data: ") for line in self.lines if line.startswith("data: ")]
        return [event for event in map(json.loads, data) if event]

    @property
    def missed(self) -> int:
        """How often it was told to look at everything again."""
        return self.lines.count("event: missed")

    def close(self) -> None:
        """Leave, as a closed tab does."""
        if self._connection.sock is not None:
            with suppress(OSError):  # the server may have been faster
                self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._connection.close()


@contextmanager
def page(site: Served, **query: Any) -> Iterator[Page]:
    """An open page that is connected."""
    opened = Page(site.address, **query)
    try:
        yield opened
    finally:
        opened.close()


def tell(database: Database, kind: str, **what: Any) -> None:
    with database.session() as session:
        publish(session, kind, **what)


def test_what_is_committed_reaches_pages_that_asked_for_it(
    site: Served, db: Database, eventually: Eventually
) -> None:
    with page(site, topic=["run:a", "worker"]) as one, page(site, topic="trial") as other:
        eventually(lambda: one.missed and other.missed, "both are connected")
        tell(db, "trial", run="a", outcome="crash")
        tell(db, "trial", run="b", outcome="pass")
        tell(db, "worker", worker="w")
        eventually(lambda: len(one.events) == 2 and len(other.events) == 2, "both were told")
        assert one.events == [
            {"kind": "trial", "run": "a", "outcome": "crash"},
            {"kind": "worker", "worker": "w"},
        ]
        assert [event["run"] for event in other.events] == ["a", "b"]


def test_what_is_rolled_back_is_never_told(
    site: Served, db: Database, eventually: Eventually
) -> None:
    with page(site, topic="run") as opened:
        eventually(lambda: opened.missed, "it is connected")
        with db.session() as session:
            publish(session, "run", run="undone")
            session.rollback()
        tell(db, "run", run="done")
        eventually(lambda: opened.events, "it was told")
        assert [event["run"] for event in opened.events] == ["done"]


def test_a_page_is_told_what_came_while_it_was_made(
    site: Served, db: Database, eventually: Eventually
) -> None:
    with page(site, topic="run") as first:
        eventually(lambda: first.missed, "the service listens")
        made = site.feed.cursor
        assert made
        tell(db, "run", run="meanwhile")
        eventually(lambda: first.events, "it happened")
        with page(site, topic="run", after=made) as late:
            eventually(lambda: late.events, "it was told of what it could not see")
            assert late.missed == 0


def test_a_browser_that_comes_back_goes_on_where_it_left_off(
    site: Served, db: Database, eventually: Eventually
) -> None:
    with page(site, topic="run") as first:
        eventually(lambda: first.missed, "the service listens")
        tell(db, "run", run="seen")
        eventually(lambda: first.events, "it was told")
        last = [line.removeprefix("id: ") for line in first.lines if line.startswith("id: ")][-1]
    tell(db, "run", run="while it was away")
    headers = {"Last-Event-ID": last}
    with page(site, topic="run", after="of the page", headers=headers) as again:
        eventually(lambda: again.events, "it was told")
        assert [event["run"] for event in again.events] == ["while it was away"]
        assert again.missed == 0


@pytest.mark.parametrize("after", ["", "another-process-7", "x", "-", "a-b-c", "1-99999999999"])
def test_a_page_of_another_time_looks_at_everything_again(
    site: Served, eventually: Eventually, after: str
) -> None:
    with page(site, topic="run") as first:
        eventually(lambda: first.missed == 1, "the service listens")
        with page(site, topic="run", after=after) as opened:
            eventually(lambda: opened.missed == 1, "it was told that it missed something")


def test_a_page_that_was_away_for_too_long_looks_at_everything_again(
    site: Served, db: Database, eventually: Eventually
) -> None:
    with page(site, topic="run") as first:
        eventually(lambda: first.missed, "the service listens")
        made = site.feed.cursor
        with db.session() as session:
            for number in range(live.KEPT + 1):
                publish(session, "worker", number=number)
            publish(session, "run", run="last")
        eventually(lambda: first.events, "it happened")
        with page(site, topic="worker", after=made) as late:
            eventually(lambda: late.missed == 1, "it was told that it missed something")
            assert late.events == []


def test_it_goes_on_after_postgresql_was_gone(
    site: Served, db: Database, eventually: Eventually
) -> None:
    with page(site, topic="run") as opened:
        eventually(lambda: opened.missed == 1, "it is connected")
        before = site.feed.cursor
        with db.session() as session:
            session.connection().execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE application_name = 'racewatch live' AND datname = current_database()"
                )
            )
        eventually(lambda: opened.missed == 2, "it was told that it may have missed something")
        assert site.feed.cursor != before
        tell(db, "run", run="afterwards")
        eventually(lambda: opened.events, "it was told")
        assert not opened.ended.is_set()


def test_many_pages_share_one_connection(
    site: Served, db: Database, eventually: Eventually
) -> None:
    pages = [Page(site.address, topic="run") for _ in range(50)]
    try:
        eventually(lambda: all(one.missed for one in pages), "all are connected")
        assert site.feed.subscribers == 50
        with db.session() as session:
            count = session.connection().execute(
                text(
                    "SELECT count(*) FROM pg_stat_activity "
                    "WHERE application_name = 'racewatch live' AND datname = current_database()"
                )
            )
            assert count.scalar() == 1
        tell(db, "run", run="for all")
        eventually(lambda: all(one.events for one in pages), "all were told")
    finally:
        for one in pages:
            one.close()
    eventually(lambda: site.feed.subscribers == 0, "those that left are forgotten")


def test_stopping_the_server_ends_open_streams_at_once(
    site: Served, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "KEEP_ALIVE_S", 600.0)  # the next sign of life is not waited for
    with page(site, topic="run") as opened:
        eventually(lambda: opened.missed, "it is connected")
        site.server.handle_exit(signal.SIGINT, None)
        site.thread.join(60)
        assert not site.thread.is_alive()
        assert opened.ended.wait(60)
        assert "broken off" not in opened.lines, "the stream came to its end"


def test_a_quiet_stream_shows_signs_of_life(
    site: Served, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "KEEP_ALIVE_S", 0.05)
    with page(site, topic="run") as opened:
        eventually(lambda: ": still here" in opened.lines, "it was told that all is well")


@pytest.mark.parametrize("query", [{}, {"topic": ["x"] * 17}, {"topic": "x" * 101}])
def test_topics_are_needed_and_few(site: Served, query: dict[str, Any]) -> None:
    answer = httpx.get(f"{site.address}/events", params=query)
    assert answer.status_code == 422
    assert "query parameter topic" in answer.json()["detail"]


def test_more_pages_than_there_is_room_for_are_told_so(
    site: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "SUBSCRIBERS", 0)
    answer = httpx.get(f"{site.address}/events", params={"topic": "run"})
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "60"


def test_a_page_that_falls_behind_holds_a_bounded_number_of_events() -> None:
    slow = Subscription(("run",))
    for number in range(10 * WAITING):
        slow.offer(Change(number, {"kind": "run"}, "{}"))
        assert len(slow.waiting) <= WAITING
    assert slow.missed
    assert slow.taken().startswith("event: missed\n")
    assert slow.taken() == ""


@pytest.mark.parametrize(
    ("topic", "about"),
    [
        ("trial", True),
        ("run", False),
        ("run:7", True),
        ("run:8", False),
        ("commit:None", False),
        ("", False),
        (":", False),
    ],
)
def test_a_topic_is_a_kind_or_a_key_with_its_value(topic: str, about: bool) -> None:
    change = Change(1, {"kind": "trial", "run": 7}, "")
    assert change.is_about([topic]) is about
