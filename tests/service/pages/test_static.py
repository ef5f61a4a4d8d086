"""What pages load is kept by browsers for good, and asked anew when it changed."""

from __future__ import annotations

import re

from starlette.testclient import TestClient

from service.pages.static import ASSETS, address


def test_a_file_is_kept_for_good_under_the_name_of_its_content(browser: TestClient) -> None:
    for name, asset in ASSETS.items():
        answer = browser.get(address(name))
        assert answer.status_code == 200
        assert answer.content == asset.content
        assert "immutable" in answer.headers["cache-control"]


def test_a_page_of_another_version_gets_what_there_is_and_keeps_it_not(browser: TestClient) -> None:
    answer = browser.get("/static/0000000000000000/style.css")
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-cache"


def test_nothing_else_is_served(browser: TestClient) -> None:
    for name in ("nothing.css", "..%2Ftemplates%2Fbase.html", "__init__.py"):
        assert browser.get(f"/static/0/{name}").status_code == 404


def test_nothing_is_loaded_from_elsewhere() -> None:
    for asset in ASSETS.values():
        text = asset.content.decode().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|//[a-z]+\.[a-z]|@import|url\(", text)


def test_every_mark_has_a_glyph_so_that_colour_is_never_alone() -> None:
    from service.reading.rate import Mark

    css = ASSETS["style.css"].content.decode()
    for mark in Mark:
        if mark is not Mark.NOT_RUN:
            rule = re.search(rf"\.mark\.{mark}, \.grid \.{mark} > a {{([^}}]*)}}", css)
            assert rule, mark
            assert "--glyph:" in rule.group(1), mark
