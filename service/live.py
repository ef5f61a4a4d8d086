"""Live updates: what PostgreSQL notifies of, passed on to every open page as server-sent events.

One connection a process listens; its notifications are handed to all subscribers on the event loop.
What a page needs of an event is that something changed, so a subscriber that falls behind, or that
was away for too long, is told `missed` instead of everything and looks at the whole again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import uuid
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Annotated, Any

import psycopg
import uvicorn
from fastapi import APIRouter, Depends, FastAPI, Query, Request
from psycopg.sql import SQL, Identifier
from starlette.responses import Response, StreamingResponse

from service.api.access import reader
from service.api.errors import refused
from service.events import CHANNEL
from service.postgres import libpq

_LOG = logging.getLogger("racewatch.live")

KEPT = 500
"""Events that a page which was away for a moment can still be told of."""
WAITING = 100
"""Events that may wait for one subscriber."""
SUBSCRIBERS = 1_000
TOPICS = 16
TOPIC_CHARACTERS = 100
KEEP_ALIVE_S = 15.0
"""Between two signs of life, so that proxies keep a quiet connection."""
PAUSE_S = 0.2
"""Between two packets to one subscriber: a burst of events travels together."""
RETRY_S = (0.5, 1.0, 2.0, 5.0)
"""Pauses before PostgreSQL is asked again."""
_CONNECTION: dict[str, Any] = {
    "autocommit": True,
    "connect_timeout": 10,
    "application_name": "racewatch live",
    # A server that vanished without a word is noticed within half a minute.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}


@dataclass(frozen=True)
class Change:
    """One event as it was published, and its place in the order of this process."""

    number: int
    data: Mapping[str, Any]
    text: str

    def is_about(self, topics: Iterable[str]) -> bool:
        """Whether any topic names it: a kind (`run`), or a key and its value (`run:<id>`)."""
        return any(self._is(topic) for topic in topics)

    def _is(self, topic: str) -> bool:
        key, separator, value = topic.partition(":")
        if separator:
            return key in self.data and str(self.data[key]) == value
        return self.data.get("kind") == topic


@dataclass(eq=False)
class Subscription:
    """What waits for one open page. missed: it did not get everything since it began."""

    topics: tuple[str, ...]
    waiting: deque[Change] = field(default_factory=deque)
    missed: bool = False
    ended: bool = False
    awake: asyncio.Event = field(default_factory=asyncio.Event)

    def offer(self, change: Change) -> None:
        """Let a change wait, if it is about this page."""
        if not change.is_about(self.topics):
            return
        self.waiting.append(change)
        if len(self.waiting) > WAITING:
            self.miss()
        self.awake.set()

    def miss(self) -> None:
        """Forget what waits: the page shall look at everything again."""
        self.waiting.clear()
        self.missed = True
        self.awake.set()

    def end(self) -> None:
        """Let the page go."""
        self.ended = True
        self.awake.set()

    def taken(self) -> str:
        """What waits, as text of the event stream; nothing waits afterwards."""
        parts = ["event: missed\ndata: {}\n\n"] if self.missed else []
        self.missed = False
        changes, self.waiting = self.waiting, deque()
        self.awake.clear()
        return "".join([*parts, *(f"data: {change.text}\n\n" for change in changes)])


class Feed:
    """All changes of one database, for all pages that this process serves.

    It begins to listen when the first page asks, and goes on until it is stopped.
    """

    def __init__(self, url: str) -> None:
        self._url = libpq(url)
        self._subscriptions: set[Subscription] = set()
        self._kept: deque[Change] = deque(maxlen=KEPT)
        self._age = ""
        self._number = 0
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = False

    @property
    def cursor(self) -> str:
        """This moment in the order of changes: what comes after it is told to who subscribes there.

        Empty while nobody listens. It may be asked for in any thread.
        """
        age, number = self._age, self._number
        return f"{age}-{number}" if age else ""

    @property
    def subscribers(self) -> int:
        """Pages that are connected."""
        return len(self._subscriptions)

    async def stream(self, topics: tuple[str, ...], after: str) -> AsyncIterator[str]:
        """The event stream of one page, until it leaves or the feed is stopped."""
        subscription = Subscription(topics)
        self._begin()
        self._subscriptions.add(subscription)
        try:
            self._catch_up(subscription, after)
            yield "retry: 2000\n\n"
            while not (subscription.ended or self._stopped):
                try:
                    await asyncio.wait_for(subscription.awake.wait(), KEEP_ALIVE_S)
                except TimeoutError:
                    yield ": still here\n\n"
                    continue
                text = subscription.taken()
                if text:
                    yield f"id: {self.cursor}\n{text}"
                    await asyncio.sleep(PAUSE_S)
        finally:
            self._subscriptions.discard(subscription)

    def stop(self) -> None:
        """End every stream, and listening; from any thread or signal handler."""
        self._stopped = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        for subscription in self._subscriptions:
            subscription.end()
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
        if self._task is None and not self._stopped:
            self._loop = asyncio.get_running_loop()
            self._task = asyncio.create_task(self._listen(), name="live")

    def _catch_up(self, subscription: Subscription, after: str) -> None:
        """Offer what was published since the page was made, or say that it is no longer known.

        Where nobody listens yet, `_restart` says so as soon as someone does.
        """
        if not self._age:
            return
        age, _, number = after.rpartition("-")
        oldest = self._kept[0].number if self._kept else self._number + 1
        known = age == self._age and number.isascii() and number.isdigit()
        if not known or int(number) + 1 < oldest:
            subscription.miss()
            return
        for change in self._kept:
            if change.number > int(number):
                subscription.offer(change)

    async def _listen(self) -> None:
        failures = 0
        while not self._stopped:
            try:
                async with await psycopg.AsyncConnection.connect(
                    self._url, **_CONNECTION
                ) as connection:
                    await connection.execute(SQL("LISTEN {}").format(Identifier(CHANNEL)))
                    failures = 0
                    self._restart()
                    async for notification in connection.notifies():
                        self._pass_on(notification.payload)
            except psycopg.Error as error:
                self._age = ""
                pause = RETRY_S[min(failures, len(RETRY_S) - 1)]
                failures += 1
                _LOG.warning("live updates wait for the database: %s", str(error).strip())
                await asyncio.sleep(pause)

    def _restart(self) -> None:
        """Count anew: what was published before this moment is not known."""
        self._kept.clear()
        self._number = 0
        self._age = uuid.uuid4().hex[:12]
        for subscription in self._subscriptions:
            subscription.miss()

    def _pass_on(self, payload: str) -> None:
        try:
            data = json.loads(payload)
        except ValueError:
            data = None
        if not isinstance(data, dict):
            _LOG.warning("not an event: %.80r", payload)
            return
        self._number += 1
        # Written anew, so that it is one line whatever was published.
        change = Change(self._number, data, json.dumps(data))
        self._kept.append(change)
        for subscription in self._subscriptions:
            subscription.offer(change)


class Server(uvicorn.Server):
    """uvicorn's server, which ends open event streams when it is told to stop.

    By itself it would wait for them, and they never end.
    """

    def __init__(self, config: uvicorn.Config, feed: Feed) -> None:
        super().__init__(config)
        self._feed = feed

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Of SIGINT and SIGTERM."""
        self._feed.stop()
        super().handle_exit(signal.Signals(sig), frame)


router = APIRouter(include_in_schema=False, dependencies=[Depends(reader)])


def install(app: FastAPI, url: str) -> Feed:
    """Add `/events`, fed by the database at that URL; the feed is `app.state.feed` from then on."""
    feed = Feed(url)
    app.state.feed = feed
    app.include_router(router)
    return feed


@router.get("/events")
async def events(
    request: Request,
    topic: Annotated[list[str] | None, Query()] = None,
    after: Annotated[str, Query(max_length=TOPIC_CHARACTERS)] = "",
) -> Response:
    """Changes as server-sent events. topic: see `Change.is_about`. after: see `Feed.cursor`."""
    topics = tuple(topic or ())
    if not 1 <= len(topics) <= TOPICS or any(len(one) > TOPIC_CHARACTERS for one in topics):
        raise refused(
            422,
            f"query parameter topic: must be given 1 to {TOPICS} times, such as topic=run, each of "
            f"at most {TOPIC_CHARACTERS} characters",
        )
    feed: Feed = request.app.state.feed
    if feed.subscribers >= SUBSCRIBERS:
        raise refused(
            503, f"{SUBSCRIBERS} pages follow already; reload to see changes", {"Retry-After": "60"}
        )
    # A browser that comes back says where it left off.
    last = request.headers.get("last-event-id", "")[:TOPIC_CHARACTERS]
    return StreamingResponse(
        feed.stream(topics, last or after),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )
