"""Bisections in a real browser: live, in dark and light, wide and narrow, and without scripts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from service.database import Database
from tests.dashboards.conftest import NARROW, WIDE
from tests.dashboards.test_browser import SEEN, WAIT_MS, opened
from tests.service.pages.served import Served, served
from tests.service.reading import bisected
from tests.service.reading.bisected import Bisections, Made, Truth

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("found", "searching", "merge", "queued", "list")


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_clean_in_dark_and_light_wide_and_narrow(
    chromium: Browser, bisecting: tuple[Served, Made], name: str
) -> None:
    site, made = bisecting
    path = "/bisections" if name == "list" else f"/bisections/{made.ids[name]}"
    with opened(chromium, site.address + path) as (page, wrong):
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            for viewport in (WIDE, NARROW):
                page.set_viewport_size(viewport)
                width = page.evaluate("document.documentElement.scrollWidth")
                assert width <= viewport["width"], "the page itself does not scroll sideways"
        assert wrong == []


def test_the_picture_is_drawn_without_scripts(
    chromium: Browser, bisecting: tuple[Served, Made]
) -> None:
    site, made = bisecting
    path = f"{site.address}/bisections/{made.ids['found']}"
    with opened(chromium, path, java_script_enabled=False) as (page, _):
        assert page.locator(".chart .column.hot").count() == 1
        assert page.locator(".chart .column").count() == 72
        box = page.locator(".chart .column.hot").bounding_box()
        assert box is not None
        assert box["height"] > 100


def test_the_posterior_follows_without_a_reload(
    chromium: Browser, db: Database, tmp_path: Path
) -> None:
    searched = bisected.path("te", 9)
    truth = Truth.of(searched, 4, 0.0, 1.0)
    with db.session() as session:
        them = Bisections(session)
        identity = them.order("te", "sm90", "v2.7", "main")
    with (
        served(db, tmp_path) as site,
        opened(chromium, f"{site.address}/bisections/{identity}") as (page, wrong),
    ):
        page.evaluate(SEEN)
        page.wait_for_function("document.getElementById('live').textContent === 'live'")
        assert page.locator("#posterior .chart").count() == 0
        with db.session() as session:
            Bisections(session).ranged(identity, searched)
        page.locator("#posterior .chart").wait_for(timeout=WAIT_MS)
        with db.session() as session:
            Bisections(session).go(identity, truth)
        page.locator(".verdict.regressed").wait_for(timeout=WAIT_MS)
        assert page.locator(".chart .column.hot").count() == 1
        assert "culprit" in page.locator(".verdict").inner_text()
        assert page.evaluate("window.untouched") is True, "it was not loaded again"
        assert wrong == []
