"""The whole application on the showcase, asked as a browser asks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from service.app import create_app
from service.database import Database
from service.settings import ServiceSettings
from tests.service.reading import showcase
from tests.service.reading.showcase import Showcase

BROWSER = {"Accept": "text/html,application/xhtml+xml"}


@pytest.fixture(scope="package")
def shown(postgres: str, template: str) -> Iterator[tuple[Database, Showcase]]:
    """The showcase, which these tests leave as it is."""
    with showcase.database(postgres, template) as database:
        yield database, showcase.make(database)


@pytest.fixture(scope="package")
def made(shown: tuple[Database, Showcase]) -> Showcase:
    """What the showcase has."""
    return shown[1]


@pytest.fixture(scope="package")
def browser(
    shown: tuple[Database, Showcase], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestClient]:
    """A client of the application, as a browser without scripts."""
    settings = ServiceSettings(home=tmp_path_factory.mktemp("home"), config=None)
    app = create_app(settings, shown[0])
    with TestClient(app, headers=BROWSER, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def empty(db: Database, tmp_path: Path) -> Iterator[TestClient]:
    """The same on a database without a row."""
    app = create_app(ServiceSettings(home=tmp_path, config=None), db)
    with TestClient(app, headers=BROWSER, raise_server_exceptions=False) as client:
        yield client
