"""Errors are pages to a browser, and problem+json to everyone else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError
from starlette.testclient import TestClient

from service import tokens
from service.app import create_app
from service.database import Database
from service.settings import ServiceSettings
from tests.service.pages.conftest import BROWSER


def test_a_browser_gets_a_page(browser: TestClient) -> None:
    answer = browser.get("/nowhere")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "There is nothing at /nowhere." in answer.text


def test_a_program_gets_problem_json(browser: TestClient) -> None:
    for address, accept in (
        ("/nowhere", "application/json"),
        ("/nowhere", "*/*"),
        ("/api/v1/nowhere", "text/html"),
    ):
        answer = browser.get(address, headers={"Accept": accept})
        assert answer.status_code == 404
        assert answer.headers["content-type"] == "application/problem+json"


def test_what_an_address_says_is_escaped(browser: TestClient) -> None:
    answer = browser.get("/<script>alert(1)</script>")
    assert "<script>alert" not in answer.text
    assert "&lt;script&gt;" in answer.text


def test_headers_of_the_error_stay(browser: TestClient) -> None:
    answer = browser.delete("/runs", headers=BROWSER)
    assert answer.status_code == 405
    assert "GET" in answer.headers["allow"]
    assert "<h1>" in answer.text


def test_a_failing_page_says_nothing_of_why(
    browser: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("a secret")

    monkeypatch.setattr("service.reading.grid.read", broken)
    answer = browser.get("/")
    assert answer.status_code == 500
    assert "a secret" not in answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"


def test_a_database_that_does_not_answer_is_503_and_a_page(
    browser: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise OperationalError("SELECT 1", {}, Exception("server closed the connection"))

    monkeypatch.setattr("service.reading.grid.read", gone)
    answer = browser.get("/")
    assert answer.status_code == 503
    assert "retry-after" in answer.headers
    assert "Reload in a moment." in answer.text


@pytest.fixture
def private(db: Database, tmp_path: Path) -> Iterator[TestClient]:
    """A service whose pages need a token."""
    app = create_app(ServiceSettings(home=tmp_path, config=None, private=True), db)
    with TestClient(app, headers=BROWSER) as client:
        yield client


@pytest.mark.parametrize("address", ["/", "/runs", "/workers", "/pulls", "/events?topic=run"])
def test_a_private_service_shows_nothing_without_a_token(private: TestClient, address: str) -> None:
    answer = private.get(address)
    assert answer.status_code == 401
    assert "Basic" in answer.headers["www-authenticate"]


def test_a_browser_gives_its_token_as_a_password(private: TestClient, db: Database) -> None:
    with db.session() as session:
        token = tokens.create(session, "reader", ["run"])
    assert private.get("/runs", auth=("", token)).status_code == 200
    assert private.get("/runs", auth=("", "wrong")).status_code == 401
