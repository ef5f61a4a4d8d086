"""Pages as people use them: live, by keyboard, without scripts, and from a failure to its cause."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from service.database import Database
from tests.dashboards.conftest import NARROW, WAIT_MS, Site, opened
from tests.service.pages.served import served
from tests.service.reading import showcase

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["SEEN", "WAIT_MS", "opened"]
SEEN = "window.untouched = true"


def background(page: Page) -> str:
    colour: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return colour


def choose(page: Page, theme: str) -> None:
    """Press one of the buttons, and wait for the page that follows."""
    page.get_by_role("button", name=theme, exact=True).click()
    page.locator(f'html[data-theme="{theme.lower()}"] .bottom').wait_for()


def test_colours_follow_the_system_until_someone_chooses(chromium: Browser, site: Site) -> None:
    with opened(chromium, site.address, color_scheme="light") as tab:
        page = tab.page
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


def test_without_javascript_only_charts_and_live_updates_are_missing(
    chromium: Browser, site: Site
) -> None:
    with opened(chromium, site.address, java_script_enabled=False) as tab:
        page = tab.page
        page.get_by_label("Subject").select_option("demo")
        page.get_by_role("button", name="Show").click()
        page.get_by_text("EMULATED: no GPU took part").wait_for()
        assert "subject=demo" in page.url
        choose(page, "Dark")
        assert "subject=demo" in page.url
        page.goto(f"{site.address}/trials/{site.made.failed_trial}#first-error")
        assert page.locator(".line.first").first.is_visible()
        page.goto(f"{site.address}/trend?subject=te&cell={site.made.cells['stock, background']}")
        assert page.locator(".trend .dot").count() > 5, "not even the chart is missing"


def test_a_new_trial_shows_without_a_reload(chromium: Browser, site: Site) -> None:
    run = site.made.runs["running"]
    with opened(chromium, f"{site.address}/runs/{run}") as tab:
        page = tab.page
        page.locator("#live.on", has_text="live").wait_for()
        row = page.locator("#cells tbody tr").first
        failed = row.locator("td").nth(1)
        before = int(failed.inner_text())
        done = page.locator("#state progress").get_attribute("value")
        page.evaluate(SEEN)
        showcase.one_more(site.database, run)
        page.wait_for_function(
            "before => document.querySelector('#cells tbody td:nth-of-type(2)').innerText > before",
            arg=before,
        )
        assert int(failed.inner_text()) == before + 1
        assert page.locator("#state progress").get_attribute("value") != done, "the bar moved"
        assert page.evaluate("window.untouched"), "the page was not loaded again"
        assert tab.wrong == []


def test_the_grid_follows_and_keeps_the_place_of_the_reader(chromium: Browser, site: Site) -> None:
    run = site.made.runs["running"]
    with opened(chromium, f"{site.address}/?subject=te", viewport=NARROW) as tab:
        page = tab.page
        page.locator("#live.on", has_text="live").wait_for()
        box = page.locator(".grid-scroll")
        box.evaluate("box => { box.scrollLeft = 60; box.scrollTop = 5; }")
        cell = page.locator(".grid tbody tr").first.locator("td a").first
        cell.focus()
        page.evaluate("window.was = document.activeElement")
        place = box.evaluate("box => [box.scrollLeft, box.scrollTop]")
        before = cell.inner_text()
        showcase.one_more(site.database, run)
        page.wait_for_function(
            "before => document.querySelector('.grid tbody td a').innerText !== before", arg=before
        )
        assert box.evaluate("box => [box.scrollLeft, box.scrollTop]") == place
        assert page.evaluate("document.activeElement === window.was"), "focus stays"
        assert tab.wrong == []


def test_what_a_reader_opened_stays_open(chromium: Browser, site: Site) -> None:
    run = site.made.runs["running"]
    address = f"{site.address}/trend?subject=te&cell={site.made.cells['stock, background']}"
    with opened(chromium, address) as tab:
        page = tab.page
        page.locator("#live.on", has_text="live").wait_for()
        before = page.locator("#trend .big").inner_text()
        page.locator("#trend .chart").evaluate("chart => { chart.dataset.mine = 'yes'; }")
        page.evaluate("window.dot = document.querySelector('.trend .dot')")
        showcase.one_more(site.database, run)
        page.wait_for_function(
            "before => document.querySelector('#trend .big').innerText !== before", arg=before
        )
        assert page.evaluate("window.dot.isConnected"), "what did not change is the same element"
        assert tab.wrong == []


def test_a_lost_connection_is_told_and_found_again(
    chromium: Browser, db: Database, tmp_path: Path
) -> None:
    with served(db, tmp_path) as first:
        port = int(first.address.rpartition(":")[2])
        with opened(chromium, f"{first.address}/runs") as tab:
            page = tab.page
            page.locator("#live.on", has_text="live").wait_for()
            page.evaluate(SEEN)
            first.feed.stop()
            first.server.should_exit = True
            first.thread.join(20)
            page.locator("#live.lost", has_text="connection lost, retrying").wait_for()
            made = showcase.make(db)
            with served(db, tmp_path, port):
                page.locator("#live.on:not(.lost)", has_text="live").wait_for()
                page.locator(f'a[href="/runs/{made.runs["race"]}"]').wait_for()
                assert page.evaluate("window.untouched"), "the page was not loaded again"


def test_the_keyboard_reaches_everything(chromium: Browser, site: Site) -> None:
    with opened(chromium, f"{site.address}/?subject=te") as tab:
        page = tab.page
        page.keyboard.press("Tab")
        skip = page.locator(".skip")
        assert skip.evaluate("link => link === document.activeElement")
        assert skip.bounding_box()["y"] >= 0, "it shows once it has the focus"  # type: ignore[index]
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.closest('.grid td') !== null"):
                break
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid", "the focus is seen"


def test_a_button_copies_the_command(chromium: Browser, site: Site) -> None:
    address = f"{site.address}/trials/{site.made.failed_trial}"
    with opened(chromium, address, permissions=["clipboard-read", "clipboard-write"]) as tab:
        page = tab.page
        button = page.locator('[data-copy="rerun"]')
        button.click()
        page.locator('[data-copy="rerun"]', has_text="Copied").wait_for()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied == page.locator("#rerun").inner_text()
        page.evaluate("navigator.clipboard.writeText('')")
        page.keyboard.press("y")
        page.wait_for_function("async () => (await navigator.clipboard.readText()) !== ''")
        assert page.evaluate("navigator.clipboard.readText()") == copied


def test_a_new_user_finds_the_commit_the_certainty_the_log_and_the_command(
    chromium: Browser, site: Site
) -> None:
    """From `/`, by clicks alone: which commit brought the race, how sure that is, the log of one
    crash, and the command that reproduces it, in at most six."""
    clicks = 0
    with opened(chromium, site.address) as tab:
        page = tab.page
        # Which commit, and how sure: it stands above the grid.
        changes = page.get_by_role("region", name="Where rates changed on main")
        rose = changes.locator("ol > li", has_text="rose").last
        assert "[JAX] Add FFI initialize stages for custom calls" in rose.inner_text()
        told = rose.inner_text().replace("\N{NO-BREAK SPACE}", " ")
        assert "This commit, with 95 %." in told
        assert "0 of 20 failed before, 40 of 40 since; p < 0.0001" in told
        # Its cell, whose name the change has.
        page.locator("#c4 td.rise a").first.click()
        clicks += 1
        # A crash among its trials.
        page.locator("#trials tr", has_text="crash").first.locator("a").first.click()
        clicks += 1
        error = page.locator(".line.first").first
        error.wait_for()
        assert "SIGSEGV" in error.inner_text()
        # The command is on the same page; one more click copies it.
        assert page.locator("#rerun").inner_text() == (
            f"racewatch run --subject te --ref {site.made.shas['race']} --matrix issue-3863 "
            "--cell 'stock, background' --trials 1"
        )
        page.locator('[data-copy="rerun"]').click()
        clicks += 1
        assert clicks <= 6
        assert tab.wrong == []


def test_whether_a_failure_is_known_takes_two_clicks(chromium: Browser, site: Site) -> None:
    with opened(chromium, site.address) as tab:
        page = tab.page
        page.get_by_role("link", name="Signatures").click()
        page.get_by_role("link", name="SIGSEGV in cuEventRecord").click()
        first = page.locator(".facts div", has_text="First seen")
        first.wait_for()
        assert site.made.shas["race"][:9] in first.inner_text()
