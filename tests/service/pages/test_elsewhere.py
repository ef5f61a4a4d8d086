"""What pages let one take along: commands, permalinks, Markdown."""

from __future__ import annotations

import html
import re

import pytest
from markdown_it import MarkdownIt
from starlette.testclient import TestClient

from tests.service.reading.showcase import Showcase


def copied(browser: TestClient, address: str, name: str) -> str:
    """The text of what a page lets one copy."""
    text = browser.get(address).text
    found = re.search(rf'<pre id="{name}"[^>]*>(.*?)</pre>', text, re.DOTALL)
    assert found, f"{name} on {address}"
    return html.unescape(found[1])


def rows(markdown: str) -> list[list[str]]:
    """The rows of the one table, as GitHub would show them."""
    rendered = MarkdownIt("commonmark").enable("table").render(markdown)
    assert rendered.count("<table>") == 1
    lines = re.findall(r"<tr>(.*?)</tr>", rendered, re.DOTALL)
    cells = (re.findall(r"<t[dh].*?</t[dh]>", line, re.DOTALL) for line in lines)
    return [[html.unescape(re.sub(r"<[^>]*>", "", cell)) for cell in line] for line in cells]


def test_a_trial_a_cell_and_a_run_say_how_to_run_them_again(
    browser: TestClient, made: Showcase
) -> None:
    begin = f"racewatch run --subject te --ref {made.shas['race']} --matrix issue-3863"
    stock = f"{begin} --cell 'stock, background'"
    assert copied(browser, f"/trials/{made.failed_trial}", "rerun") == f"{stock} --trials 1"
    assert copied(browser, f"/measurements/{made.measurement}", "rerun") == f"{stock} --trials 10"
    assert copied(browser, f"/runs/{made.runs['race']}", "rerun") == begin
    assert copied(browser, f"/commits/te/{made.shas['race']}", "rerun") == begin


@pytest.mark.parametrize("page", ["trials", "runs", "commits/te"])
def test_permalinks_are_whole(browser: TestClient, made: Showcase, page: str) -> None:
    last: object = {
        "trials": made.failed_trial,
        "runs": made.runs["race"],
        "commits/te": made.shas["race"],
    }[page]
    link = copied(browser, f"/{page}/{last}", "permalink")
    assert link == f"http://127.0.0.1:8000/{page}/{last}"


def test_a_run_s_table_as_markdown(browser: TestClient, made: Showcase) -> None:
    markdown = copied(browser, f"/runs/{made.runs['race']}", "markdown")
    head, first, second, *others = rows(markdown)
    assert head == ["cell", "trials", "failed", "rate (95 % interval)", "verdict"]
    assert first == ["stock, background", "10", "10", "100 % (69.2 to 100 %)", "races"]
    assert second == ["stock, alone", "10", "0", "0 % (0 to 30.8 %)", "undersampled"]
    assert len(others) == 9
    assert f"/runs/{made.runs['race']})" in markdown
    assert "Outputs of stock and owned-stream: identical." in markdown


def test_an_emulated_run_says_so_in_markdown_too(browser: TestClient, made: Showcase) -> None:
    markdown = copied(browser, f"/runs/{made.runs['emulated']}", "markdown")
    assert "EMULATED: no GPU took part" in markdown


def test_a_comparison_as_markdown(browser: TestClient, made: Showcase) -> None:
    before, race = made.shas["before"], made.shas["race"]
    address = f"/compare?subject=te&a={before}&b={race}"
    head, first, *others = rows(copied(browser, address, "markdown"))
    assert head == ["cell", before[:9], race[:9], "one-sided p", "verdict"]
    assert first == [
        "norm-act-gemm: stock, background", "0/10 (0 to 30.8 %)", "10/10 (69.2 to 100 %)",
        "higher, p < 0.0001", "newly failing",
    ]  # fmt: skip
    assert len(others) == 10
    broken = copied(browser, f"/compare?subject=te&a={race}&b={made.shas['broken']}", "markdown")
    assert "build error: " in rows(broken)[1][2]


@pytest.mark.parametrize(
    ("address", "status", "sentence"),
    [
        ("/compare?subject=te&a=ffff&b=30", 404, "there is no commit of te that begins with"),
        ("/compare?subject=te&a=30&b=30", 404, "give more of it"),
        ("/compare?subject=te&base=stock", 422, "give both, or neither"),
        (
            "/signature?subject=te&queue=sm90&outcome=crash&signature=no",
            404,
            "There is no crash of",
        ),
        ("/signatures?outcome=odd", 422, "must be one of failed, capture_error"),
    ],
)
def test_what_makes_no_sense_is_told_in_a_sentence(
    browser: TestClient, address: str, status: int, sentence: str
) -> None:
    answer = browser.get(address)
    assert answer.status_code == status
    assert sentence.lower() in html.unescape(answer.text).lower()
