"""Dark and light: by cookie, without a script, back on the page where it was chosen."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from starlette.testclient import TestClient


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_choice_stays(empty: TestClient, theme: str) -> None:
    answer = empty.post(f"/theme?theme={theme}&back=/runs", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/runs")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    page = empty.get("/runs").text
    assert f'data-theme="{theme}"' in page
    assert f'aria-pressed="true">{theme.title()}<' in page


def test_auto_forgets_the_choice(empty: TestClient) -> None:
    empty.post("/theme?theme=dark")
    empty.post("/theme?theme=auto")
    assert 'data-theme="auto"' in empty.get("/").text


def test_pages_differ_by_cookie(empty: TestClient) -> None:
    assert "Cookie" in empty.get("/").headers["vary"]


@pytest.mark.parametrize(
    "back",
    ["https://elsewhere.example", "//elsewhere.example", "/\\elsewhere.example", "x", "/a\nb"],
)
def test_it_leads_to_no_other_host(empty: TestClient, back: str) -> None:
    answer = empty.post(f"/theme?theme=dark&back={quote(back)}", follow_redirects=False)
    assert answer.headers["location"] == "/"


def test_a_strange_cookie_is_no_theme(empty: TestClient) -> None:
    empty.cookies.set("theme", '"><script>')
    assert 'data-theme="auto"' in empty.get("/").text
