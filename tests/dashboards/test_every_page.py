"""Every page in a real browser: nothing forbidden, nothing from elsewhere, nothing that axe-core
finds, in dark and light, wide and on a phone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.dashboards.conftest import NARROW, WIDE, Site, Tab, opened, watched
from tests.service.pages.served import Served
from tests.service.pages.test_pages import PAGES, addresses
from tests.service.reading.bisected import Made

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

OPEN = "document.querySelectorAll('details').forEach(one => { one.open = true; })"
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")


@pytest.fixture(scope="module")
def tab(chromium: Browser, site: Site) -> Iterator[Tab]:
    """One page for all: starting another takes longer than what is asked here."""
    context = chromium.new_context(viewport=WIDE)
    yield watched(context, site.address)
    context.close()


def violations(page: Page, rules: tuple[str, ...] = RULES) -> list[str]:
    """What axe-core finds on the page as it is, a line each."""
    found: dict[str, Any] = page.evaluate(
        "rules => axe.run(document, {resultTypes: ['violations'], runOnly: rules})", list(rules)
    )
    return [
        f"{one['id']}: {node['html'][:200]}" for one in found["violations"] for node in one["nodes"]
    ]


@pytest.mark.parametrize("name", PAGES)
def test_it_is_clean_in_dark_and_light_wide_and_narrow(
    tab: Tab, site: Site, axe: str, name: str
) -> None:
    tab.wrong.clear()
    look(tab.page, site.address + addresses(site.made)[name], axe)
    if name == "not there":  # of which the browser itself tells its console
        tab.wrong[:] = [text for text in tab.wrong if "404" not in text]
    assert tab.wrong == []


@pytest.mark.parametrize("name", ["list", "found", "searching", "merge", "queued", "failed"])
def test_bisections_are_clean_too(
    chromium: Browser, bisecting: tuple[Served, Made], axe: str, name: str
) -> None:
    site, made = bisecting
    path = "" if name == "list" else f"/{made.ids[name]}"
    with opened(chromium, f"{site.address}/bisections{path}") as tab:
        look(tab.page, tab.page.url, axe)
        assert tab.wrong == []


def look(page: Page, address: str, axe: str) -> None:
    """Light and dark, wide and on a phone, with all that a reader can open: axe-core finds nothing,
    and the page itself does not scroll sideways."""
    page.set_viewport_size(WIDE)  # type: ignore[arg-type]
    page.goto(address)
    page.evaluate(OPEN)
    page.evaluate(axe)
    for viewport in (WIDE, NARROW):
        page.set_viewport_size(viewport)  # type: ignore[arg-type]
        assert sideways(page) <= viewport["width"]
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            assert violations(page) == [], f"{scheme}, {viewport['width']} pixels wide"


def sideways(page: Page) -> int:
    width: int = page.evaluate("document.documentElement.scrollWidth")
    return width


def test_what_opens_is_clean_too(chromium: Browser, site: Site, axe: str) -> None:
    with opened(chromium, f"{site.address}/?subject=te", color_scheme="dark") as tab:
        page = tab.page
        page.get_by_text("More filters").click()
        page.evaluate(axe)
        assert violations(page) == []
        page.locator(".grid tbody td a").first.hover()
        page.locator(".card:popover-open").wait_for()
        page.keyboard.press("?")
        page.locator("#help[open]").wait_for()
        assert violations(page) == []


def test_the_checker_finds_what_is_wrong(chromium: Browser, site: Site, axe: str) -> None:
    with opened(chromium, f"{site.address}/runs") as tab:
        tab.page.evaluate("document.querySelector('.brand img').removeAttribute('alt')")
        tab.page.evaluate(axe)
        assert any(line.startswith("image-alt: ") for line in violations(tab.page))
