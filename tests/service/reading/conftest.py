"""One database with the whole showcase, for tests that only read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from service.database import Database
from tests.service.reading import showcase
from tests.service.reading.showcase import Showcase


@pytest.fixture(scope="package")
def shown(postgres: str, template: str) -> Iterator[tuple[Database, Showcase]]:
    """The showcase, which these tests leave as it is."""
    with showcase.database(postgres, template) as database:
        yield database, showcase.make(database)
