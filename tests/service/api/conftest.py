"""The application on a database of the test's own, with a small history, and tokens for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from service import tokens
from service.app import create_app
from service.database import Database
from service.settings import ServiceSettings
from tests.service.api.history import History, make


@pytest.fixture
def settings(tmp_path: Path) -> ServiceSettings:
    """TE is tracked, reading is open."""
    return ServiceSettings(home=tmp_path, config=None, private=False, webhook_secret="s3cret")


@pytest.fixture
def app(settings: ServiceSettings, db: Database) -> FastAPI:
    """The whole application."""
    return create_app(settings, db)


@pytest.fixture
def client(app: FastAPI) -> Iterator[TestClient]:
    """A client without a token."""
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def history(db: Database) -> History:
    """A branch with a race, its fix and a broken commit."""
    return make(db)


def bearer(database: Database, name: str, *scopes: str) -> dict[str, str]:
    """Headers of a new token."""
    with database.session() as session:
        return {"Authorization": f"Bearer {tokens.create(session, name, scopes)}"}


@pytest.fixture
def runner(db: Database) -> dict[str, str]:
    """Headers of a token that may run."""
    return bearer(db, "runner", "run")


@pytest.fixture
def approver(db: Database) -> dict[str, str]:
    """Headers of a token that may approve, and nothing else."""
    return bearer(db, "approver", "approve")


@pytest.fixture
def admin(db: Database) -> dict[str, str]:
    """Headers of a token that may do everything."""
    return bearer(db, "admin", "admin")
