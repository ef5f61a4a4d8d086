"""The queue's consumer in a thread of its own, and tasks whose jobs tests hold and let go."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import psycopg
from procrastinate import JobContext
from sqlalchemy import make_url, text

from service.consume import consume
from service.database import Database
from service.postgres import libpq
from service.queue import app, wake
from service.tasks import AGAIN

_NUMBERS = itertools.count(1)


@dataclass
class Desk:
    """What the jobs of a test do and have done. held: those that begin wait for `let_go`."""

    begun: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    let_go: threading.Event = field(default_factory=threading.Event)
    fail: Callable[[str], Exception | None] = lambda name: None

    def work(self, name: str, held: bool) -> None:
        """A job."""
        self.begun.append(name)
        if held:
            assert self.let_go.wait(60)
        if (error := self.fail(name)) is not None:
            raise error
        self.done.append(name)


@app.task(name="desk", pass_context=True, retry=AGAIN)
async def desk(context: JobContext, name: str, held: bool = False) -> None:
    """Work of a test, in a thread as all work of the service is."""
    await asyncio.to_thread(context.additional_context["desk"].work, name, held)


@app.task(name="desk-once", pass_context=True)
async def desk_once(context: JobContext, name: str, held: bool = False) -> None:
    """The same, with no strategy to try it again."""
    await asyncio.to_thread(context.additional_context["desk"].work, name, held)


def defer(
    db: Database, name: str, queue: str = "desk", held: bool = False, lock: str = "", **more: Any
) -> None:
    """Put a job for the desk into a queue."""
    with db.session() as session:
        lock = lock or f"desk {next(_NUMBERS)}"
        wake(session, more.pop("task", "desk"), queue, lock=lock, name=name, held=held, **more)


class Consumer:
    """`consume` as a worker runs it; leaving the `with` block lets all go and waits for its end."""

    def __init__(self, db: Database, *lanes: list[str], **more: Any) -> None:
        self.desk = Desk()
        self._arguments = (db.url, lanes or (["desk"],), {"desk": self.desk})
        self._more = more
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.error: BaseException | None = None

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(consume(*self._arguments, self._stop, **self._more))
        except BaseException as error:
            self.error = error
        finally:
            self._loop.close()

    def start(self) -> None:
        """Begin, before the `with` block does."""
        self._thread.start()

    def __enter__(self) -> Self:
        if not self.runs:
            self.start()
        return self

    def stop(self) -> None:
        """Tell it to take nothing new."""
        self._loop.call_soon_threadsafe(self._stop.set)

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self._thread.is_alive()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.desk.let_go.set()
        if self.runs:
            self.stop()
        self._thread.join(60)
        assert not self.runs, "the consumer does not end"
        assert self.error is None, self.error


def statuses(db: Database) -> dict[str, str]:
    """Status of each job that is there, by the name that the desk knows it by."""
    with db.session() as session:
        found = session.connection().execute(
            text(
                "SELECT args->>'name' AS name, status::text AS status FROM procrastinate_jobs "
                "ORDER BY id"
            )
        )
        return {row.name: row.status for row in found}


def execute(db: Database, statement: str, **values: Any) -> Any:
    """The first column of the first row that a statement gives, if any."""
    with db.session() as session:
        result = session.connection().execute(text(statement), values)
        return result.scalar() if result.returns_rows else result.rowcount


def cut(db: Database) -> None:
    """Cut every other connection to the database, as a restart does."""
    execute(
        db,
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )


@contextmanager
def shut(postgres: str, db: Database) -> Iterator[None]:
    """The database lets nobody in, and has cut who was."""
    name = make_url(db.url).database
    with psycopg.connect(libpq(postgres), autocommit=True) as server:
        server.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        server.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
        )
        try:
            yield
        finally:
            server.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
