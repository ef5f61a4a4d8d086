"""One real PostgreSQL for the session, and an empty database on it for each test that asks."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.sql import SQL, Identifier
from sqlalchemy import make_url

from service.database import sqlalchemy_url
from service.postgres import EmbeddedPostgres, libpq

_QUICK = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a server for the whole session, whose loss nobody minds.

    RACEWATCH_TEST_DATABASE_URL names another one, whose user may create databases.
    """
    given = os.environ.get("RACEWATCH_TEST_DATABASE_URL")
    if given:
        yield sqlalchemy_url(given)
        return
    folder: Path = tmp_path_factory.mktemp("postgres")
    with EmbeddedPostgres(folder, _QUICK) as server:
        yield server.url


@pytest.fixture
def database(postgres: str) -> Iterator[str]:
    """URL (`postgresql+psycopg://...`) of an empty database, dropped afterwards."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(libpq(postgres), autocommit=True) as connection:
        connection.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
        yield make_url(postgres).set(database=name).render_as_string(hide_password=False)
        connection.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))
