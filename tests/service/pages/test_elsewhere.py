"""What pages let one take along: commands, permalinks, Markdown."""

from __future__ import annotations

import csv
import html
import io
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


def rows(markdown: str, table: int = 0, of: int = 1) -> list[list[str]]:
    """The rows of one of its tables, as GitHub would show them."""
    rendered = MarkdownIt("commonmark").enable("table").render(markdown)
    tables = re.findall(r"<table>(.*?)</table>", rendered, re.DOTALL)
    assert len(tables) == of
    lines = re.findall(r"<tr>(.*?)</tr>", tables[table], re.DOTALL)
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


@pytest.mark.parametrize("page", ["trials", "runs", "commits/te", "measurements"])
def test_permalinks_are_whole(browser: TestClient, made: Showcase, page: str) -> None:
    last: object = {
        "trials": made.failed_trial,
        "runs": made.runs["race"],
        "commits/te": made.shas["race"],
        "measurements": made.measurement,
    }[page]
    link = copied(browser, f"/{page}/{last}", "permalink")
    assert link == f"http://127.0.0.1:8000/{page}/{last}"


def test_a_permalink_names_what_the_page_chose_itself(browser: TestClient, made: Showcase) -> None:
    cell = made.cells["stock, background"]
    link = copied(browser, f"/trend?cell={cell}&rate=swallow", "permalink")
    trend = f"/trend?subject=te&branch=main&queue=sm90&cell={cell}&rate=swallow"
    assert link == f"http://127.0.0.1:8000{trend}"
    before, race = made.shas["before"], made.shas["race"]
    link = copied(browser, f"/compare?a={before[:9]}&b={race[:9]}&clean_below=0.1", "permalink")
    compared = f"/compare?subject=te&a={before}&b={race}&clean_below=0.1"
    assert link == f"http://127.0.0.1:8000{compared}"
    signature = "/signature?subject=te&queue=sm90&outcome=crash&signature=SIGSEGV+in+cuEventRecord"
    assert copied(browser, signature, "permalink") == f"http://127.0.0.1:8000{signature}"


def test_a_run_s_table_as_markdown(browser: TestClient, made: Showcase) -> None:
    markdown = copied(browser, f"/runs/{made.runs['race']}", "markdown")
    head, first, second, *others = rows(markdown, of=2)
    assert head == [
        "cell", "trials", "failed", "rate (95 % interval)", "verdict", "trials with foreign work",
    ]  # fmt: skip
    assert first == [
        "stock, background", "10", "10", "100 % (69.2 to 100 %)", "races",
        "10/10 (69.2 to 100 %), swallows",
    ]  # fmt: skip
    assert second == [
        "stock, alone", "10", "0", "0 % (0 to 30.8 %)", "undersampled",
        "0/10 (0 to 30.8 %), undersampled",
    ]  # fmt: skip
    assert len(others) == 9
    held = next(row for row in others if row[0] == "softmax ffi13, background, hold 20 ms")
    assert held[5] == "4/6 (22.3 to 95.7 %), swallows, 2 passed"
    assert f"/runs/{made.runs['race']})" in markdown
    assert "Outputs of stock and owned-stream: identical." in markdown
    work = rows(markdown, 1, of=2)
    assert work[0] == ["swallowed work of API", "thread", "nodes or refused calls", "trials"]
    assert [row[0] for row in work[1:]] == ["cuLaunchKernelEx", "cuMemcpyDtoDAsync_v2"]


def test_where_nothing_was_watched_markdown_has_no_column_for_it(
    browser: TestClient, made: Showcase
) -> None:
    markdown = copied(browser, f"/runs/{made.runs['emulated']}", "markdown")
    assert rows(markdown)[0][-1] == "verdict"
    assert "EMULATED: no GPU took part" in markdown


def test_a_comparison_as_markdown(browser: TestClient, made: Showcase) -> None:
    before, race = made.shas["before"], made.shas["race"]
    address = f"/compare?subject=te&a={before}&b={race}"
    head, first, *others = rows(copied(browser, address, "markdown"))
    assert head == [
        "cell", before[:9], race[:9], "one-sided p", "verdict", "trials with foreign work",
    ]  # fmt: skip
    assert first == [
        "norm-act-gemm: stock, background", "0/10 (0 to 30.8 %)", "10/10 (69.2 to 100 %)",
        "higher, p < 0.0001", "newly failing",
        "0/10 to 10/10, higher, p < 0.0001, newly swallowing",
    ]  # fmt: skip
    assert len(others) == 10
    broken = copied(browser, f"/compare?subject=te&a={race}&b={made.shas['broken']}", "markdown")
    assert "build error: " in rows(broken)[1][2]


def test_a_commit_and_a_trend_as_markdown(browser: TestClient, made: Showcase) -> None:
    race = made.shas["race"]
    head, first, *_ = rows(copied(browser, f"/commits/te/{race}", "markdown"))
    assert head[-1] == "trials with foreign work"
    assert first[:3] == ["norm-act-gemm: stock, background", "10", "10"]
    address = f"/trend?subject=te&cell={made.cells['stock, background']}"
    markdown = copied(browser, address, "markdown")
    table = rows(markdown)
    assert table[0] == ["commit", "title", "failed", "rate (95 % interval)", "verdict"]
    assert table[1][0] == made.shas["head"][:9]
    assert "- rose from 0 of 20 to 30 of 30 (p < 0.0001), with 95 % by this commit: " in (
        markdown.replace("\N{NO-BREAK SPACE}", " ")
    )
    second = rows(copied(browser, f"{address}&rate=swallow", "markdown"))
    assert second[0][2] == "trials with foreign work"


def lines(browser: TestClient, address: str) -> list[dict[str, str]]:
    """A CSV file's lines by column."""
    answer = browser.get(address)
    assert answer.headers["content-type"].startswith("text/csv")
    return list(csv.DictReader(io.StringIO(answer.text)))


def test_every_table_is_there_as_data_with_both_rates(browser: TestClient, made: Showcase) -> None:
    race = made.shas["race"]
    cell = made.cells["softmax ffi13, background, hold 20 ms"]
    query = f"subject=te&cell={cell}&rate=swallow"
    (line,) = (one for one in lines(browser, f"/trend.csv?{query}") if one["sha"] == race)
    assert (line["k"], line["n"], line["swallow_k"], line["watched"]) == ("2", "6", "4", "6")
    assert (line["swallow_passes"], line["swallow_verdict"]) == ("2", "swallows")
    found = browser.get(f"/trend.json?{query}").json()
    (point,) = (one for one in found["points"] if one["sha"] == race)
    assert (found["rate"], point["swallow"]["k"], point["swallow"]["n"]) == ("swallow", 4, 6)
    grid = lines(browser, "/grid.csv?subject=te")
    (line,) = (one for one in grid if one["sha"] == race and "ffi13, background, h" in one["cell"])
    assert (line["swallow_k"], line["watched"]) == ("4", "6")
    rows_ = browser.get("/grid.json?subject=te").json()["commits"]
    (commit,) = (one for one in rows_ if one["sha"] == race)
    (told,) = (one for one in commit["cells"] if "ffi13, background, h" in one["cell"])
    assert told["swallow"]["passes"] == 2


def test_the_api_has_both_rates_too(browser: TestClient, made: Showcase) -> None:
    race, cell = made.shas["race"], made.cells["softmax ffi13, background, hold 20 ms"]
    run = browser.get(f"/api/v1/runs/{made.runs['race']}").json()
    (held,) = (
        one for one in run["cells"] if one["name"] == "softmax ffi13, background, hold 20 ms"
    )
    assert held["swallow"] == {
        "k": 4, "n": 6, "passes": 2, "rate": pytest.approx(2 / 3), "verdict": "races",
        "interval": [pytest.approx(0.223, abs=1e-3), pytest.approx(0.957, abs=1e-3)],
    }  # fmt: skip
    stock = f"/api/v1/trend?subject=te&branch=main&cell={made.cells['stock, background']}"
    changes = browser.get(f"{stock}&rate=swallow").json()["changes"]
    assert [(one["commit"]["sha"], one["direction"]) for one in changes][-1] == (race, "rise")
    assert browser.get(f"{stock}&rate=odd").status_code == 422
    line = next(
        one for one in lines(browser, f"/api/v1/trend?subject=te&cell={cell}&format=csv")
        if one["sha"] == race
    )  # fmt: skip
    assert (line["watched"], line["swallow_k"], line["swallow_passes"]) == ("6", "4", "2")
    trials = lines(browser, f"/api/v1/runs/{made.runs['race']}/trials?format=csv")
    foreign = {one["foreign_nodes"] for one in trials if "alone" in one["cell"]}
    assert foreign == {"0"}, "watched, and nothing was seen"
    assert {one["foreign_nodes"] for one in trials if "unregistered" in one["cell"]} == {""}


def test_a_comparison_as_data(browser: TestClient, made: Showcase) -> None:
    race = made.shas["race"]
    query = f"subject=te&a={race[:9]}&b={race[:9]}&base=stock&head=owned-stream"
    found = browser.get(f"/compare.json?{query}").json()
    assert found["base"] == {"sha": race, "variant": "stock"}
    first = found["cells"][0]
    assert (first["base"]["k"], first["base"]["n"], first["head"]["k"]) == (10, 10, 0)
    assert (first["direction"], first["swallow"]["direction"]) == ("lower", "lower")
    assert first["swallow"]["base"]["k"] == 10
    assert found["parity"][0]["equal"] is True
    table = lines(browser, f"/compare.csv?{query}")
    assert (table[0]["base_k"], table[0]["head_swallow_k"], table[0]["head_watched"]) == (
        "10", "0", "10",
    )  # fmt: skip
    assert table[-1]["head_n"] == "0"
    missing = browser.get("/compare.json?subject=te")
    assert missing.status_code == 422


def test_a_signature_as_data(browser: TestClient, made: Showcase) -> None:
    query = "subject=te&queue=sm90&outcome=crash&signature=SIGSEGV+in+cuEventRecord"
    found = browser.get(f"/signature.json?{query}").json()
    assert (found["trials"], found["first"]["sha"]) == (4, made.shas["race"])
    assert [one["place"] for one in found["commits"]] == [9, 8, 6, 4]
    assert found["cells"] == [{"cell": "norm-act-gemm: stock, background", "trials": 4}]
    assert [one["trials"] for one in lines(browser, f"/signature.csv?{query}")] == ["1"] * 4


def test_workers_and_pull_requests_as_data(browser: TestClient, made: Showcase) -> None:
    found = {one["name"]: one for one in lines(browser, "/workers.csv")}
    assert found["gpu-host-7"]["device"] == "NVIDIA H200"
    assert (found["gpu-host-3"]["late"], found["gpu-host-7"]["proof"]) == ("true", "unknown")
    pulls = {one["number"]: one for one in lines(browser, "/pulls.csv?state=all&subject=te")}
    assert set(pulls) == {"2800", "2801"}
    assert pulls["2800"]["awaiting_approval"] == "true"
    assert pulls["2800"]["run"] == str(made.runs["awaiting"])


def test_a_filtered_list_of_signatures_is_there_as_data(browser: TestClient) -> None:
    shown = browser.get("/signatures?subject=te&text=CUEVENTRECORD+sigsegv").text
    links = re.findall(r'href="(/api/v1/signatures[^"]*)"', shown)
    as_json, as_csv = (html.unescape(link) for link in links)
    found = browser.get(as_json).json()["items"]
    assert len(found) == shown.count('<th scope="row"')
    assert [one["signature"] for one in found] == ["SIGSEGV in cuEventRecord"]
    assert [line["signature"] for line in lines(browser, as_csv)] == ["SIGSEGV in cuEventRecord"]


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


def test_the_api_says_what_no_device_proves(browser: TestClient, made: Showcase) -> None:
    rows = browser.get(f"/api/v1/runs/{made.runs['doubted']}").json()["cells"]
    name = "stock, background"
    assert next(row for row in rows if row["name"] == name)["verdict"] == "unproven"
    commits = browser.get("/api/v1/cells?subject=te&branch=main&limit=50").json()["items"]
    doubted = [
        (commit["commit"]["sha"], cell)
        for commit in commits
        for cell in commit["cells"]
        if cell["verdict"] == "unproven"
    ]
    assert doubted
    assert all("unproven on this device" in cell["verdict_text"] for _, cell in doubted)
    line = browser.get("/api/v1/cells?subject=te&branch=main&format=csv").text
    assert ",unproven," in line
