"""Pages as people use them: live, by keyboard, without scripts, and from a failure to its cause."""

from __future__ import annotations

import re
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
        assert "0 of 20 failed before, 30 of 30 since; p < 0.0001" in told
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


def test_a_line_of_a_job_s_log_finds_its_signature(chromium: Browser, site: Site) -> None:
    with opened(chromium, f"{site.address}/signatures") as tab:
        page = tab.page
        page.keyboard.press("/")
        page.keyboard.type("sigsegv CUEVENTRECORD")
        with page.expect_navigation():
            page.keyboard.press("Enter")
        assert "text=sigsegv+CUEVENTRECORD" in page.url
        rows = page.locator("#signatures tbody tr")
        assert [row.locator("th code").inner_text() for row in rows.all()] == [
            "SIGSEGV in cuEventRecord"
        ]
        page.get_by_label("Text").fill("of nothing that was seen")
        with page.expect_navigation():
            page.get_by_role("button", name="Show", exact=True).click()
        assert "No signature has all of these words" in page.locator(".empty").inner_text()
        assert tab.wrong == []


def test_a_trial_says_whether_it_is_known_and_since_when(chromium: Browser, site: Site) -> None:
    with opened(chromium, f"{site.address}/trials/{site.made.failed_trial}") as tab:
        known = tab.page.locator(".known")
        told = known.inner_text()
        assert re.search(r"Known: \d+ trials at 4 commits ended like it, first .* ago at ", told)
        assert site.made.shas["race"][:9] in told


def test_a_trend_shows_either_rate_by_a_link_in_the_address(chromium: Browser, site: Site) -> None:
    cell = site.made.cells["softmax ffi13, background, hold 20 ms"]
    with opened(chromium, f"{site.address}/trend?subject=te&cell={cell}") as tab:
        page = tab.page
        which = page.get_by_role("navigation", name="Which rate")
        assert which.locator("[aria-current]").inner_text() == "Rate of failures"
        failures = page.locator(".trend .dot.races").count()
        with page.expect_navigation():
            which.get_by_role("link", name="Rate of foreign work").click()
        assert "rate=swallow" in page.url
        assert page.locator(".trend .dot.swallows").count() > failures, "it was there before"
        assert "had foreign work" in page.locator("#trend .big").inner_text()
        with page.expect_navigation():
            page.get_by_role("button", name="Show", exact=True).click()
        assert "rate=swallow" in page.url, "the form keeps it"
        assert tab.wrong == []


def test_a_pass_that_swallowed_is_one_click_from_who_was_swallowed(
    chromium: Browser, site: Site
) -> None:
    with opened(chromium, f"{site.address}/runs/{site.made.runs['race']}") as tab:
        page = tab.page
        row = page.locator("#cells tr", has_text="softmax ffi13, background, hold 20 ms")
        assert "2 pass (swallow)" in row.inner_text()
        row.locator("th a").click()
        trial = page.locator("#trials tr", has_text="pass (swallow)").first
        trial.locator("td a").click()
        page.get_by_role("heading", name="Foreign work in capture windows").wait_for()
        assert page.get_by_role("heading", level=1).inner_text().startswith("pass (swallow)")
        assert page.locator("#swallow tbody tr", has_text="cuLaunchKernelEx").count() > 0
        page.get_by_text("The first 5 foreign calls").click()
        assert page.locator("#swallow tbody tr", has_text="0.04 ms").is_visible()
        assert tab.wrong == []


def test_on_a_phone_rate_and_verdict_are_in_sight(chromium: Browser, site: Site) -> None:
    address = f"{site.address}/runs/{site.made.runs['race']}"
    with opened(chromium, address, viewport=NARROW) as tab:
        row = tab.page.locator("#cells tbody tr").first
        row.scroll_into_view_if_needed()
        for name in ("Trials", "Failed", "Rate and 95 % interval", "Verdict"):
            box = row.locator(f'td[data-label="{name}"]').bounding_box()
            assert box is not None, name
            assert box["x"] >= 0, name
            assert box["x"] + box["width"] <= NARROW["width"], name


def test_on_a_phone_a_run_s_verdicts_are_in_sight(chromium: Browser, site: Site) -> None:
    with opened(chromium, f"{site.address}/runs?subject=te", viewport=NARROW) as tab:
        row = tab.page.locator("table.runs tbody tr", has_text="Add FFI initialize stages")
        row.scroll_into_view_if_needed()
        for seen in (row.locator(".mark.races"), row.locator("progress"), row.locator("time")):
            box = seen.bounding_box()
            assert box is not None
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= NARROW["width"]


def test_a_comparison_follows_too(chromium: Browser, db: Database, tmp_path: Path) -> None:
    made = showcase.make(db)
    path = f"/compare?subject=te&a={made.shas['fix']}&b={made.shas['head']}"
    with (
        served(db, tmp_path) as running,
        opened(chromium, running.address + path) as tab,
    ):
        page = tab.page
        page.locator("#live.on", has_text="live").wait_for()
        row = page.locator("#compared tr", has_text="stock, background").first
        head = row.locator('td[data-label="Head"] a')
        assert head.inner_text() == "0 of 2"
        showcase.one_more(db, made.runs["running"])
        row.locator('td[data-label="Head"] a', has_text="1 of 3").wait_for()
        assert tab.wrong == []
