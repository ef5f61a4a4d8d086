"""A real browser on a real server: Debian's chromium, driven by playwright."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from service.database import Database
from tests.conftest import Needs
from tests.dashboards import branch
from tests.service.conftest import db, postgres, template
from tests.service.pages.served import Served, served
from tests.service.reading import bisected, showcase
from tests.service.reading.bisected import Made
from tests.service.reading.showcase import Showcase

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

__all__ = ["db", "postgres", "template"]
WIDE, NARROW = {"width": 1360, "height": 900}, {"width": 390, "height": 844}
WAIT_MS = 20_000
LONG = 330
"""Commits of the long branch."""


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


@pytest.fixture(scope="session")
def site(postgres: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The showcase, served; tests may add trials to it."""
    with showcase.database(postgres, template) as database:
        made = showcase.make(database)
        with served(database, tmp_path_factory.mktemp("home")) as running:
            yield Site(running, database, made)


@pytest.fixture(scope="session")
def long_branch(
    postgres: str, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """A branch of many commits, served."""
    with showcase.database(postgres, template) as database:
        branch.fill(database, LONG)
        with served(database, tmp_path_factory.mktemp("home")) as running:
            yield running


@pytest.fixture(scope="module")
def bisecting(
    postgres: str, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Served, Made]]:
    """Bisections in every state, served."""
    with showcase.database(postgres, template) as database:
        made = bisected.make(database)
        with served(database, tmp_path_factory.mktemp("home")) as running:
            yield running, made


@pytest.fixture(scope="module")
def chromium(needs: Needs) -> Iterator[Browser]:
    """One browser for all tests of a file. Not for longer: while playwright runs, this thread has
    an event loop, which tests of other folders do not expect."""
    with browser(needs) as running:
        yield running


@contextmanager
def browser(needs: Needs, *options: str) -> Iterator[Browser]:
    """Debian's chromium, without a window."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    needs(found, "chromium")
    needs(importlib.util.find_spec("playwright"), "playwright")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Its own sandbox needs rights that a container seldom has; it only ever sees this server.
        running = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", *options])
        yield running
        running.close()


@pytest.fixture(scope="session")
def axe(needs: Needs) -> str:
    """axe-core's script, as a package of the package index has it."""
    found = importlib.util.find_spec("axe_playwright_python")
    needs(found, "axe-playwright-python")
    assert found is not None
    assert found.origin is not None
    return (Path(found.origin).parent / "axe.min.js").read_text(encoding="utf-8")


class Tab(NamedTuple):
    """An open page, and everything that went wrong on it: on its console, or asked elsewhere."""

    page: Page
    wrong: list[str]


@contextmanager
def opened(browser: Browser, address: str, **options: Any) -> Iterator[Tab]:
    """A page at that address in a context of its own."""
    context = browser.new_context(**{"viewport": WIDE, **options})
    try:
        tab = watched(context, "/".join(address.split("/")[:3]))
        tab.page.goto(address)
        yield tab
    finally:
        context.close()


def watched(context: BrowserContext, host: str) -> Tab:
    """A new page; what is not of that host is wrong."""
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "request",
        lambda asked: None if asked.url.startswith(f"{host}/") else wrong.append(asked.url),
    )
    return Tab(page, wrong)
