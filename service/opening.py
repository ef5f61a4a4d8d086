"""Opens the database that the settings name, or the embedded one in the data folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from service import credentials, schema
from service.database import Database
from service.postgres import EmbeddedPostgres
from service.settings import ServiceSettings


@contextmanager
def opened(settings: ServiceSettings, *, pool_size: int = 10) -> Iterator[Database]:
    """The database, its schema as this Racewatch needs it.

    The embedded one is brought up to date; of any other, InputError says what to do.
    """
    if settings.database_url:
        schema.require(settings.database_url)
        with _connected(settings.database_url, pool_size) as database:
            yield database
        return
    with EmbeddedPostgres(settings.home / "database") as server:
        schema.upgrade(server.url)
        credentials.refresh(server.url)
        with _connected(server.url, pool_size) as database:
            yield database


@contextmanager
def _connected(url: str, pool_size: int) -> Iterator[Database]:
    database = Database(url, pool_size)
    try:
        yield database
    finally:
        database.close()
