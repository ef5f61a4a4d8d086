"""One real PostgreSQL for the session, and a database on it for each test that asks."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.sql import SQL, Composed, Identifier
from sqlalchemy import make_url

from service import schema
from service.database import Database, sqlalchemy_url
from service.postgres import EmbeddedPostgres, libpq

_QUICK = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
_MEMORY = Path("/dev/shm")


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a server for the whole session, whose loss nobody minds.

    RACEWATCH_TEST_DATABASE_URL names another one, whose user may create databases.
    """
    given = os.environ.get("RACEWATCH_TEST_DATABASE_URL")
    if given:
        yield sqlalchemy_url(given)
        return
    with _folder(tmp_path_factory) as folder, EmbeddedPostgres(folder, _QUICK) as server:
        yield server.url


@contextmanager
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """In memory where there is plenty: a database is copied in 15 ms there, in 300 ms on a disk."""
    if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > 4 << 30:
        with tempfile.TemporaryDirectory(prefix="racewatch-test-", dir=_MEMORY) as folder:
            yield Path(folder)
    else:
        yield tmp_path_factory.mktemp("postgres")


@pytest.fixture
def database(postgres: str) -> Iterator[str]:
    """URL (`postgresql+psycopg://...`) of an empty database, dropped afterwards."""
    with _database(postgres, "template0") as url:
        yield url


@pytest.fixture(scope="session")
def template(postgres: str) -> Iterator[str]:
    """Name of a database with the whole schema, which the fixture `db` copies."""
    with _database(postgres, "template0") as url:
        schema.upgrade(url)
        yield make_url(url).database or ""


@pytest.fixture
def db(postgres: str, template: str) -> Iterator[Database]:
    """A database of this test's own with the whole schema (and no rows), dropped afterwards."""
    with _database(postgres, template) as url:
        database = Database(url)
        yield database
        database.close()


@contextmanager
def _database(postgres: str, template: str) -> Iterator[str]:
    name = f"test_{uuid.uuid4().hex[:12]}"
    create = SQL("CREATE DATABASE {} TEMPLATE {}")
    _execute(postgres, create.format(Identifier(name), Identifier(template)))
    yield make_url(postgres).set(database=name).render_as_string(hide_password=False)
    _execute(postgres, SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))


def _execute(url: str, statement: Composed) -> None:
    with psycopg.connect(libpq(url), autocommit=True) as connection:
        connection.execute(statement)
