"""The grid's page: filters in its address, its cells' bytes, and the same view as data."""

from __future__ import annotations

import csv
import io
import re

import pytest
from starlette.testclient import TestClient

from tests.service.pages.test_pages import read
from tests.service.reading.showcase import Showcase

ALL = (
    "/?subject=te&branch=main&queue=sm90&text=jax&outcome=failed&matrix=issue-3863&pull="
    "&since=2020-01-01&until=2100-01-01&clean_below=0.05"
)


def said(browser: TestClient, address: str) -> str:
    """The words of a page, without the spaces between: tags stand where none is seen."""
    return squeezed("".join(read(browser.get(address).text).text))


def squeezed(text: str) -> str:
    return re.sub(r"\s", "", text)


def test_what_is_asked_for_is_in_the_form_again_and_can_be_taken_back(browser: TestClient) -> None:
    text = browser.get(ALL).text
    assert 'name="text" value="jax"' in text
    assert '<option value="failed" selected>' in text
    assert '<option value="issue-3863" selected>' in text
    assert 'name="since" value="2020-01-01"' in text
    chips = re.findall(r'<li><a href="([^"]*)" title="Show any ([^"]*)">', text)
    assert [name for _, name in chips] == ["text", "matrix", "outcome", "from", "to"]
    for address, name in chips:
        parameter = {"from": "since", "to": "until"}.get(name, name)
        assert f"{parameter}=" not in address
        assert "subject=te" in address


def test_nothing_that_fits_says_how_to_see_everything_again(browser: TestClient) -> None:
    text = browser.get("/?subject=te&text=no+such+words").text
    assert "No commit fits these filters" in text
    assert 'href="?subject=te">Without them' in text


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("/?outcome=odd", "query parameter outcome: must be one of failed, pass, capture_error"),
        ("/?since=yesterday", "query parameter since: must be a day such as 2026-01-31"),
        ("/?until=2026-02-30", "query parameter until: must be a day"),
        ("/?pull=x", "query parameter pull: must be a whole number"),
        ("/?text=a%00b", "query parameter text: must be a name"),
        ("/trend", "query parameter cell: is required"),
        ("/trend?cell=1&clean_below=9", "query parameter clean_below: must be a rate"),
        ("/order/1/1?trials=0", "query parameter trials: must be 1 to 100000, got 0"),
    ],
)
def test_what_makes_no_sense_gets_one_sentence(
    browser: TestClient, address: str, sentence: str
) -> None:
    answer = browser.get(address)
    assert answer.status_code == 422
    assert sentence in " ".join(answer.text.replace("Query", "query").split())


@pytest.mark.parametrize(
    "address", ["/trend?cell=99999", "/order/99999/1", "/order/1/99999", "/badge/te/x.svg"]
)
def test_what_is_not_there_is_404(browser: TestClient, address: str) -> None:
    assert browser.get(address).status_code == 404


def test_a_number_sign_before_a_pull_request_is_fine(browser: TestClient) -> None:
    assert "Add FFI initialize stages" in browser.get("/?subject=te&pull=%232219").text


def test_a_cell_takes_few_bytes(browser: TestClient) -> None:
    text = browser.get("/?subject=te").text
    cells = re.findall(r"<td class=.*?</td>", text)
    assert len(cells) == 12 * 11
    assert max(map(len, cells)) < 260
    assert sum(map(len, cells)) / len(cells) < 140  # 1,800 of them fit into 250 kB


def test_certainty_has_a_form_besides_its_colour(browser: TestClient) -> None:
    text = browser.get("/?subject=te").text
    assert 'class="races r4 l13 h20 rise"' in text
    assert 'class="clean h1 fall"' in text
    assert 'class="undersampled h7"' in text


def test_where_rates_changed_stands_above(browser: TestClient, made: Showcase) -> None:
    told = said(browser, "/?subject=te")
    assert squeezed("Where rates changed on main") in told
    rose = told[told.index("rose[JAX]") :]
    assert rose.startswith(squeezed("rose [JAX] Add FFI initialize stages for custom calls"))
    assert (
        squeezed(
            "This commit, with 95 %. norm-act-gemm: stock, background 0 of 20 failed before, "
            "30 of 30 since; p < 0.0001"
        )
        in rose
    )
    assert "Where rates changed" not in browser.get("/?subject=te&before=9").text


def test_the_same_view_as_json(browser: TestClient, made: Showcase) -> None:
    data = browser.get("/grid.json?subject=te&outcome=failed").json()
    assert [commit["place"] for commit in data["commits"]] == [9, 8, 6, 5, 4]
    race = data["commits"][-1]["cells"][0]
    assert (race["cell"], race["k"], race["n"]) == ("norm-act-gemm: stock, background", 10, 10)
    assert race["interval"][0] == pytest.approx(0.692, abs=0.001)
    assert race["change"] == "rise"
    assert [change["sha"] for change in data["changes"]] == [made.shas["fix"], made.shas["race"]]
    assert data["emulated"] is False


def test_the_same_view_as_csv(browser: TestClient) -> None:
    answer = browser.get("/grid.csv?subject=te&text=typo")
    lines = list(csv.DictReader(io.StringIO(answer.text)))
    assert answer.headers["content-type"].startswith("text/csv")
    assert {line["place"] for line in lines} == {"5"}
    assert len(lines) == 11
    assert (lines[0]["k"], lines[0]["n"], lines[0]["verdict"]) == ("10", "10", "races")


def test_empty_cells_lead_to_ordering_them(browser: TestClient, made: Showcase) -> None:
    head, cell = made.commits["head"], made.cells["unregistered, background"]
    assert (
        f'<a href="/order/{head}/{cell}?queue=sm90">order</a>' in browser.get("/?subject=te").text
    )
    text = browser.get(f"/order/{head}/{cell}?queue=sm90").text
    assert f"racewatch submit --subject te --ref {made.shas['head']}" in text
    assert "--trials 72 --queue sm90" in text
    assert "racewatch run --subject te" in text
    fewer = browser.get(f"/order/{head}/{cell}?queue=sm90&trials=5&token=").text
    assert "--trials 5 --queue sm90" in fewer


def test_a_badge_says_its_rate_and_how_sure_it_is(browser: TestClient, made: Showcase) -> None:
    hold = made.cells["softmax ffi13, background"]
    answer = browser.get(f"/badge/te/main.svg?cell={hold}")
    assert answer.headers["content-type"].startswith("image/svg+xml")
    assert answer.headers["cross-origin-resource-policy"] == "cross-origin"
    assert ">undersampled 0/10, 62 more<" in answer.text
    wider = browser.get(f"/badge/te/main.svg?cell={hold}&clean_below=0.4").text
    assert ">clean below 40 %, 0/10<" in wider
    demo = browser.get("/badge/demo/main.svg").text
    assert ">EMULATED stock, background<" in demo


def test_a_trend_says_since_when_and_how_sure(browser: TestClient, made: Showcase) -> None:
    cell = made.cells["stock, background"]
    told = said(browser, f"/trend?subject=te&cell={cell}")
    change = "From 0 of 20 (0 to 16.8 %) to 30 of 30 (88.4 to 100 %); p < 0.0001"
    assert squeezed(change) in told
    assert squeezed("driver 570.86.15 to 580.159.04") in told
    assert squeezed("With 95 %, it came with this commit.") in told
