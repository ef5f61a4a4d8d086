"""The grid in a real browser: filters, keys, cards, older commits; how quick and still it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.dashboards.conftest import LONG, NARROW, WIDE, Site, Tab, opened, watched
from tests.service.pages.served import Served
from tests.service.reading import showcase

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page


def asked(page: Page) -> dict[str, str]:
    """The query of the page's address, as far as it says something."""
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


def places(page: Page) -> list[str]:
    return [row.get_attribute("id") or "" for row in page.locator(".grid tbody tr").all()]


def show(page: Page) -> None:
    with page.expect_navigation():
        page.get_by_role("button", name="Show", exact=True).click()


@pytest.fixture(scope="module")
def filtered(chromium: Browser, site: Site) -> Iterator[Tab]:
    """One page for all filters."""
    context = chromium.new_context(viewport=WIDE)
    yield watched(context, site.address)
    context.close()


@pytest.mark.parametrize(
    ("role", "label", "parameter", "value", "left"),
    [
        ("searchbox", "Text", "text", "typo", ["c5"]),
        ("combobox", "Outcome", "outcome", "build_error", ["c7"]),
        ("textbox", "Pull request", "pull", "2219", None),
        ("", "From", "since", "2100-01-01", []),
        ("", "To", "until", "2000-01-01", []),
        ("combobox", "Matrix", "matrix", "quick", None),
        ("combobox", "Branch", "branch", "~", None),
        ("combobox", "Environment", "environment", "1", None),
        ("combobox", "Clean below", "clean_below", "0.1", None),
        ("combobox", "Device", "queue", "sm90", None),
        ("combobox", "Subject", "subject", "demo", ["c2", "c1", "c0"]),
    ],
)
def test_each_filter_lives_in_the_address(
    filtered: Tab,
    site: Site,
    role: str,
    label: str,
    parameter: str,
    value: str,
    left: list[str] | None,
) -> None:
    page = filtered.page
    page.goto(f"{site.address}/?subject=te")
    page.get_by_text("More filters").click()
    field = page.get_by_label(label, exact=True)
    if role:
        field = page.get_by_role(role, name=label, exact=True)  # type: ignore[arg-type]
    if role == "combobox":
        field.select_option(value)
    else:
        field.fill(value)
    show(page)
    assert asked(page)[parameter] == value
    if left is not None:
        assert places(page) == left
    chip = page.locator(".chips a").first
    if chip.count():
        with page.expect_navigation():
            chip.click()
        assert parameter not in asked(page)
        assert page.locator(".grid tbody tr").count() >= 12
    assert filtered.wrong == []


def test_a_link_to_a_view_shows_it_again(chromium: Browser, site: Site) -> None:
    address = f"{site.address}/?subject=te&outcome=crash&text=JAX"
    with opened(chromium, address) as tab:
        first = places(tab.page)
        assert first == ["c9", "c8", "c6", "c4"]
        assert tab.page.get_by_label("Outcome").input_value() == "crash"
        tab.page.reload()
        assert places(tab.page) == first


def focused(page: Page) -> str:
    """Which row and column has the focus."""
    found: str = page.evaluate(
        """() => {
          const cell = document.activeElement.closest("tbody tr > *");
          if (!cell) return "";
          return `${cell.parentElement.id} ${[...cell.parentElement.children].indexOf(cell)}`;
        }"""
    )
    return found


def test_single_keys_move_through_the_grid(chromium: Browser, site: Site) -> None:
    with opened(chromium, f"{site.address}/?subject=te") as tab:
        page = tab.page
        for key, place in (
            ("j", "c11 0"), ("j", "c10 0"), ("l", "c10 1"), ("l", "c10 2"), ("j", "c9 2"),
            ("k", "c10 2"), ("h", "c10 1"), ("k", "c11 1"), ("k", "c11 1"),
        ):  # fmt: skip
            page.keyboard.press(key)
            assert focused(page) == place, key
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid", "the focus is seen"
        with page.expect_navigation():
            page.keyboard.press("Enter")
        assert "/measurements/" in page.url


def test_slash_searches_and_question_mark_helps(chromium: Browser, site: Site) -> None:
    with opened(chromium, f"{site.address}/?subject=te") as tab:
        page = tab.page
        page.keyboard.press("/")
        page.keyboard.type("jk?")
        field = page.get_by_label("Text")
        assert field.input_value() == "jk?", "keys are letters in a field"
        page.keyboard.press("Escape")
        assert page.evaluate("document.activeElement === document.body")
        page.keyboard.press("?")
        help_ = page.get_by_role("dialog", name="Keyboard")
        help_.wait_for()
        page.keyboard.press("Escape")
        help_.wait_for(state="hidden")


def test_single_keys_can_be_turned_off_for_good(chromium: Browser, site: Site) -> None:
    with opened(chromium, f"{site.address}/?subject=te") as tab:
        page = tab.page
        page.get_by_role("button", name="Keyboard").click()
        page.get_by_label("Single keys do this").uncheck()
        page.get_by_role("button", name="Close").click()
        for _ in range(2):
            page.keyboard.press("j")
            assert focused(page) == ""
            page.reload()


def test_lists_have_the_same_keys(chromium: Browser, site: Site) -> None:
    with opened(chromium, f"{site.address}/runs") as tab:
        page = tab.page
        for _ in range(2):
            page.keyboard.press("j")
        second = page.locator("table.runs tbody tr").nth(1).locator("a").first
        assert second.evaluate("link => link === document.activeElement")


def card(page: Page) -> Locator:
    return page.locator(".card:popover-open")


def race(page: Page, site: Site) -> Locator:
    """The first cell of the commit that brought the race."""
    return page.locator("#c4 td").nth(0).locator("a")


def test_hover_and_focus_say_how_sure_a_cell_is(chromium: Browser, site: Site) -> None:
    with opened(chromium, f"{site.address}/?subject=te") as tab:
        page = tab.page
        cell = race(page, site)
        cell.hover()
        card(page).wait_for()
        told = [line for line in card(page).inner_text().splitlines() if line]
        assert told == [
            "norm-act-gemm: stock, background",
            "[JAX] Add FFI initialize stages for custom calls",
            "10 of 10 failed",
            "69.2 to 100 %",
            "9 capture_error, 1 crash",
            "the rate rose here, likeliest",
        ]
        assert cell.get_attribute("title") is None, "no second one from the browser"
        card(page).hover()
        assert card(page).is_visible(), "it stays while the pointer is on it"
        page.keyboard.press("Escape")
        card(page).wait_for(state="hidden")
        assert cell.get_attribute("title")
        page.keyboard.press("j")
        page.keyboard.press("l")
        card(page).wait_for()
        assert "of 6 trials" in card(page).inner_text(), "work going on is told"
        page.keyboard.press("l")
        page.keyboard.press("j")
        assert "66 more to be clean" in card(page).inner_text()
        assert tab.wrong == []


def test_without_a_script_the_focus_shows_a_cell_s_words(chromium: Browser, site: Site) -> None:
    with opened(chromium, f"{site.address}/?subject=te", java_script_enabled=False) as tab:
        cell = race(tab.page, site)
        assert cell.get_attribute("title") == "69.2 to 100 %: 9 capture_error, 1 crash"
        cell.focus()
        tab.page.keyboard.press("Shift+Tab")
        tab.page.keyboard.press("Tab")
        content = cell.evaluate("link => getComputedStyle(link, '::after').content")
        assert "69.2 to 100 %" in content
        assert not tab.page.locator("[data-help]").is_visible(), "nothing that needs a script"


def test_certainty_has_a_form_besides_its_colour(chromium: Browser, site: Site) -> None:
    with opened(chromium, f"{site.address}/?subject=te", forced_colors="active") as tab:
        glyphs = {
            name: tab.page.locator(f".grid td.{name} > a").first.evaluate(
                "link => getComputedStyle(link, '::before').content"
            )
            for name in ("races:not(.rise)", "undersampled:not(.fall)", "rise", "fall", "clean")
        }
        assert len({glyph for name, glyph in glyphs.items() if name != "clean"}) == 4, glyphs


def rows(page: Page) -> int:
    return page.locator("#grid tbody tr").count()


def to_the_end(page: Page) -> None:
    page.evaluate("() => { const box = document.getElementById('grid'); box.scrollTop = 1e9; }")


def all_rows(page: Page) -> None:
    page.wait_for_function(
        """all => {
          const box = document.getElementById("grid");
          box.scrollTop = box.scrollHeight;
          return box.querySelectorAll("tbody tr").length === all;
        }""",
        arg=LONG,
        polling=50,
    )


def test_older_commits_come_as_they_are_scrolled_to(chromium: Browser, long_branch: Served) -> None:
    with opened(chromium, long_branch.address) as tab:
        page = tab.page
        assert rows(page) < 200, "not all at once"
        all_rows(page)
        ids = [int(one[1:]) for one in places(page)]
        assert ids == list(range(LONG - 1, -1, -1)), "each commit once, none left out"
        page.get_by_text(f"{LONG} commits shown, all there are").wait_for()
        assert page.locator('.pager a[rel="next"]').count() == 0
        assert tab.wrong == []


def test_many_rows_scroll_in_little_time(chromium: Browser, long_branch: Served) -> None:
    with opened(chromium, long_branch.address) as tab:
        page = tab.page
        all_rows(page)
        page.evaluate("document.getElementById('grid').scrollTop = 0")
        session = page.context.new_cdp_session(page)
        # Ticks of the page's own thread: what other processes do does not count.
        session.send("Performance.enable", {"timeDomain": "threadTicks"})

        def busy() -> float:
            found = session.send("Performance.getMetrics")["metrics"]
            return next(one["value"] for one in found if one["name"] == "TaskDuration")

        before = busy()
        frames = page.evaluate(
            """() => new Promise(done => {
              const box = document.getElementById("grid");
              let frames = 0;
              function step() {
                const at = box.scrollTop;
                box.scrollTop = at + 300;
                frames += 1;
                if (box.scrollTop === at || frames === 80) done(frames);
                else requestAnimationFrame(step);
              }
              requestAnimationFrame(step);
            })"""
        )
        assert frames > 30
        assert (busy() - before) / frames < 0.1, "seconds of its thread for a frame of 300 pixels"


def test_without_a_script_links_lead_to_older_commits(
    chromium: Browser, long_branch: Served
) -> None:
    with opened(chromium, long_branch.address, java_script_enabled=False) as tab:
        page = tab.page
        first = places(page)
        page.get_by_role("link", name="older →").click()
        page.wait_for_url("**before=*")
        second = places(page)
        assert int(second[0][1:]) == int(first[-1][1:]) - 1


def test_the_keys_n_and_p_turn_pages(chromium: Browser, long_branch: Served) -> None:
    with opened(chromium, f"{long_branch.address}/?before=200") as tab:
        page = tab.page
        newest = places(page)[0]
        with page.expect_navigation():
            page.keyboard.press("p")
        assert int(places(page)[0][1:]) > int(newest[1:])


SHIFTS = """() => new Promise(done => {
  const seen = [];
  new PerformanceObserver(list => seen.push(...list.getEntries().map(one => one.value)))
    .observe({type: "layout-shift", buffered: true});
  requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(() => done(seen))));
})"""


def test_it_is_small_and_holds_still(chromium: Browser, long_branch: Served) -> None:
    with opened(chromium, long_branch.address) as tab:
        page = tab.page
        page.locator("#live.on").wait_for()
        assert page.evaluate(SHIFTS) == [], "nothing moves once it is there"
        size = page.evaluate("performance.getEntriesByType('navigation')[0].decodedBodySize")
        assert size < 300_000
        page.evaluate("document.querySelector('main').style.paddingTop = '9rem'")
        assert page.evaluate(SHIFTS) != [], "what moves is seen"


SCROLLED_TO_THE_END = """() => {
  window.scrollTo(0, document.body.scrollHeight);
  return document.querySelectorAll("#grid tbody tr").length === 12;
}"""


def test_new_commits_push_no_older_one_out_of_sight(
    chromium: Browser, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.reading.grid.ROWS", 5)
    monkeypatch.setattr("service.reading.grid.LEAST_ROWS", 5)
    with opened(chromium, f"{site.address}/?subject=te", viewport=NARROW) as tab:
        page = tab.page
        page.locator("#live.on").wait_for()
        page.wait_for_function(SCROLLED_TO_THE_END)
        with site.database.session() as session:
            showcase.commit_on_main(session, "Come later", 12)
        showcase.one_more(site.database, site.made.runs["running"])
        page.locator("#c12").wait_for()
        assert places(page) == [f"c{n}" for n in range(12, -1, -1)]
        with site.database.session() as session:
            showcase.remove_from_main(session, 12)
        assert tab.wrong == []


def test_a_title_of_a_pull_request_is_found_by_what_people_type(
    chromium: Browser, site: Site
) -> None:
    with opened(chromium, f"{site.address}/?subject=te") as tab:
        page = tab.page
        page.keyboard.press("/")
        page.keyboard.type("ffi initialize")
        with page.expect_navigation():
            page.keyboard.press("Enter")
        assert places(page) == ["c4"]
        assert re.search(r"[?&]text=ffi\+initialize", page.url)
