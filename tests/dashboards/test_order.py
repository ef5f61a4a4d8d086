"""Ordering from an empty cell, with a token, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from sqlmodel import select

from service import tokens
from service.tables import Run, RunCell
from service.tokens import Scope
from tests.dashboards.conftest import Site, opened

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture
def token(site: Site) -> Iterator[str]:
    """A token that may start runs."""
    with site.database.session() as session:
        plain = tokens.create(session, "a person", [Scope.RUN])
    yield plain
    with site.database.session() as session:
        tokens.revoke(session, "a person")


def test_an_empty_cell_leads_to_a_run(chromium: Browser, site: Site, token: str) -> None:
    with opened(chromium, f"{site.address}/?subject=te") as tab:
        page = tab.page
        page.locator("#c1 td.not-run a").first.click()
        page.get_by_label("Trials").fill("6")
        start = page.get_by_role("button", name="Start the run")
        start.click()
        page.get_by_text("Starting a run takes a token").wait_for()
        page.get_by_label("Token").fill("not a token")
        start.click()
        page.get_by_text("It was not started: the token is unknown or revoked").wait_for()
        tab.wrong.clear()  # the browser itself tells its console of the 401
        page.get_by_label("Token").fill(token)
        start.click()
        page.wait_for_url("**/runs/*")
        run = page.url.rpartition("/")[2]
        page.get_by_text("0 of 6 trials").wait_for()
        with site.database.session() as session:
            (cell,) = session.exec(select(RunCell).where(RunCell.run_id == run)).all()
            stored = session.get_one(Run, cell.run_id)
            assert (cell.name, cell.wanted, stored.queue) == ("stock, background", 6, "sm90")
            assert stored.requested_by == "a person"
        page.goto(f"{site.address}/order/1/1?queue=sm90")
        assert page.get_by_label("Token").input_value() == token, "kept for this window"
        page.get_by_role("button", name="Show the command").click()
        page.wait_for_url("**trials=*")
        assert token not in page.url
        assert tab.wrong == []


def test_without_a_script_there_is_the_command(chromium: Browser, site: Site) -> None:
    address = f"{site.address}/?subject=te"
    with opened(chromium, address, java_script_enabled=False) as tab:
        page = tab.page
        page.locator("#c1 td.not-run a").first.click()
        assert not page.get_by_label("Token").is_visible()
        page.get_by_label("Trials").fill("6")
        page.get_by_role("button", name="Show the command").click()
        page.wait_for_url("**trials=6*")
        assert "--trials 6 --queue sm90" in page.locator("#order-here").inner_text()
