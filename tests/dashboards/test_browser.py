"""The pages in a real browser: nothing forbidden or from elsewhere, live, usable by keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from service.database import Database
from tests.dashboards.conftest import NARROW, WIDE, Site
from tests.service.pages.served import served
from tests.service.pages.test_pages import PAGES, addresses
from tests.service.reading import showcase

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SEEN = "window.untouched = true"
WAIT_MS = 30_000


@contextmanager
def opened(browser: Browser, address: str, **options: Any) -> Iterator[tuple[Page, list[str]]]:
    """A page, and everything that went wrong on it."""
    context = browser.new_context(**{"viewport": WIDE, **options})
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    host = address.split("/")[2]
    page.on(
        "request",
        lambda asked: None if asked.url.split("/")[2] == host else wrong.append(asked.url),
    )
    page.goto(address)
    yield page, wrong
    context.close()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_clean_in_dark_and_light_wide_and_narrow(
    chromium: Browser, site: Site, name: str
) -> None:
    with opened(chromium, site.address + addresses(site.made)[name]) as (page, wrong):
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            for viewport in (WIDE, NARROW):
                page.set_viewport_size(viewport)
                width = page.evaluate("document.documentElement.scrollWidth")
                assert width <= viewport["width"], "the page itself does not scroll sideways"
        if name == "not there":  # of which the browser itself tells its console
            wrong = [text for text in wrong if "404" not in text]
        assert wrong == []


def background(page: Page) -> str:
    colour: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return colour


def choose(page: Page, theme: str) -> None:
    """Press one of the buttons, and wait for the page that follows."""
    page.get_by_role("button", name=theme, exact=True).click()
    page.locator(f'html[data-theme="{theme.lower()}"] .bottom').wait_for()


def test_colours_follow_the_system_until_someone_chooses(chromium: Browser, site: Site) -> None:
    with opened(chromium, site.address, color_scheme="light") as (page, _):
        light = background(page)
        page.emulate_media(color_scheme="dark")
        dark = background(page)
        assert light != dark
        choose(page, "Light")
        assert background(page) == light
        page.goto(f"{site.address}/runs")
        assert background(page) == light, "the choice stays on other pages"
        choose(page, "Auto")
        assert background(page) == dark


def test_without_javascript_only_live_updates_are_missing(chromium: Browser, site: Site) -> None:
    with opened(chromium, site.address, java_script_enabled=False) as (page, _):
        page.get_by_label("Subject").select_option("demo")
        page.get_by_role("button", name="Show").click()
        page.get_by_text("EMULATED: no GPU took part").wait_for()
        assert "subject=demo" in page.url
        choose(page, "Dark")
        assert "subject=demo" in page.url
        page.goto(f"{site.address}/trials/{site.made.failed_trial}#first-error")
        assert page.locator(".line.first").first.is_visible()


def test_a_new_trial_shows_without_a_reload(chromium: Browser, site: Site) -> None:
    run = site.made.runs["running"]
    with opened(chromium, f"{site.address}/runs/{run}") as (page, wrong):
        page.locator("#live", has_text="live").wait_for()
        row = page.locator("#cells tbody tr").first
        failed = row.locator("td").nth(1)
        before = int(failed.inner_text())
        page.evaluate(SEEN)
        showcase.one_more(site.database, run)
        page.wait_for_function(
            "before => document.querySelector('#cells tbody td:nth-of-type(2)').innerText > before",
            arg=before,
        )
        assert int(failed.inner_text()) == before + 1
        assert page.evaluate("window.untouched"), "the page was not loaded again"
        assert wrong == []


def test_the_grid_follows_and_keeps_the_place_of_the_reader(chromium: Browser, site: Site) -> None:
    run = site.made.runs["running"]
    with opened(chromium, f"{site.address}/?subject=te", viewport=NARROW) as (page, wrong):
        page.locator("#live", has_text="live").wait_for()
        box = page.locator(".grid-scroll")
        box.evaluate("box => { box.scrollLeft = 60; box.scrollTop = 5; }")
        cell = page.locator(".grid tbody tr").first.locator("td a").first
        cell.focus()
        place = box.evaluate("box => [box.scrollLeft, box.scrollTop]")
        before = cell.inner_text()
        showcase.one_more(site.database, run)
        page.wait_for_function(
            "before => document.querySelector('.grid tbody td a').innerText !== before", arg=before
        )
        assert box.evaluate("box => [box.scrollLeft, box.scrollTop]") == place
        assert page.evaluate("document.activeElement.closest('td') !== null"), "focus stays"
        assert wrong == []


def test_a_lost_connection_is_told_and_found_again(
    chromium: Browser, db: Database, tmp_path: Path
) -> None:
    with served(db, tmp_path) as first:
        port = int(first.address.rpartition(":")[2])
        with opened(chromium, f"{first.address}/runs") as (page, _):
            page.locator("#live", has_text="live").wait_for()
            page.evaluate(SEEN)
            first.feed.stop()
            first.server.should_exit = True
            first.thread.join(20)
            page.locator("#live.lost", has_text="connection lost, retrying").wait_for()
            made = showcase.make(db)
            with served(db, tmp_path, port):
                page.locator("#live:not(.lost)", has_text="live").wait_for()
                page.locator(f'a[href="/runs/{made.runs["race"]}"]').wait_for()
                assert page.evaluate("window.untouched"), "the page was not loaded again"


def test_the_keyboard_reaches_everything(chromium: Browser, site: Site) -> None:
    with opened(chromium, f"{site.address}/?subject=te") as (page, _):
        page.keyboard.press("Tab")
        skip = page.locator(".skip")
        assert skip.evaluate("link => link === document.activeElement")
        assert skip.bounding_box()["y"] >= 0, "it shows once it has the focus"  # type: ignore[index]
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        for _ in range(20):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.closest('.grid td') !== null"):
                break
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid", "the focus is seen"


def test_from_the_grid_to_the_log_of_a_failure_takes_three_clicks(
    chromium: Browser, site: Site
) -> None:
    with opened(chromium, f"{site.address}/?subject=te") as (page, _):
        page.locator(".grid td.races.r4 a").first.click()
        page.locator("#trials tbody a").first.click()
        page.locator(".line.first").first.wait_for()
        assert "first-error" in page.url
        page.get_by_text("The whole log").click()
        page.locator("#L1").wait_for()
