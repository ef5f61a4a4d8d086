"""A real browser on a real server: Debian's chromium, driven by playwright."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from service.database import Database
from tests.conftest import Needs
from tests.service.conftest import db, postgres, template
from tests.service.pages.served import Served, served
from tests.service.reading import showcase
from tests.service.reading.showcase import Showcase

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["db", "postgres", "template"]
WIDE, NARROW = {"width": 1360, "height": 900}, {"width": 390, "height": 844}


@dataclass(frozen=True)
class Site:
    """A server with the showcase."""

    served: Served
    database: Database
    made: Showcase

    @property
    def address(self) -> str:
        """Its URL, without a slash at the end."""
        return self.served.address


@pytest.fixture(scope="package")
def site(postgres: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The showcase, served; tests may add trials to it."""
    with showcase.database(postgres, template) as database:
        made = showcase.make(database)
        with served(database, tmp_path_factory.mktemp("home")) as running:
            yield Site(running, database, made)


@pytest.fixture(scope="package")
def chromium(needs: Needs) -> Iterator[Browser]:
    """One browser for all tests here. Not for longer: while playwright runs, this thread has an
    event loop, which other tests may not expect."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    needs(found, "chromium")
    needs(importlib.util.find_spec("playwright"), "playwright")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Its own sandbox needs rights that a container seldom has; it only ever sees this server.
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()
