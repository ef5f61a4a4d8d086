"""Each page answers, shows what it is for, and holds nothing that a strict policy forbids."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from starlette.testclient import TestClient

from service.pages.static import ASSETS
from tests.service.reading.showcase import Showcase


def addresses(made: Showcase) -> dict[str, str]:
    return {
        "grid": "/",
        "other branch": "/?subject=te&branch=~",
        "emulated grid": "/?subject=demo",
        "filtered grid": "/?subject=te&outcome=crash&text=jax&since=2020-01-01&matrix=issue-3863",
        "trend": f"/trend?subject=te&queue=sm90&cell={made.cells['stock, background']}",
        "trend of foreign work": "/trend?subject=te&queue=sm90&rate=swallow"
        f"&cell={made.cells['stock, background']}",
        "unwatched trend": "/trend?subject=te&queue=sm90&rate=swallow"
        f"&cell={made.cells['softmax stock, background']}",
        "quiet trend": f"/trend?subject=te&cell={made.cells['stock, alone']}",
        "emulated trend": f"/trend?subject=demo&cell={made.cells['stock, background']}",
        "compare": f"/compare?subject=te&a={made.shas['before']}&b={made.shas['race'][:12]}",
        "compare broken": f"/compare?subject=te&a={made.shas['race']}&b={made.shas['broken']}",
        "compare variants": f"/compare?subject=te&a={made.shas['race']}&b={made.shas['race']}"
        "&base=stock&head=owned-stream&queue=sm90",
        "compare nothing": "/compare",
        "signatures": "/signatures",
        "no signature": "/signatures?text=of+nothing",
        "signature": "/signature?subject=te&queue=sm90&outcome=crash"
        "&signature=SIGSEGV+in+cuEventRecord",
        "measurement": f"/measurements/{made.measurement}",
        "order": f"/order/{made.commits['head']}/{made.cells['unregistered, background']}",
        "runs": "/runs",
        "run": f"/runs/{made.runs['race']}",
        "doubted run": f"/runs/{made.runs['doubted']}",
        "running": f"/runs/{made.runs['running']}",
        "awaiting": f"/runs/{made.runs['awaiting']}",
        "broken": f"/runs/{made.runs['broken']}",
        "emulated run": f"/runs/{made.runs['emulated']}",
        "trial": f"/trials/{made.failed_trial}",
        "swallowing trial": f"/trials/{made.swallowing_pass}",
        "commit": f"/commits/te/{made.shas['race']}",
        "broken commit": f"/commits/te/{made.shas['broken']}",
        "build": f"/builds/{made.failed_build}/log",
        "workers": "/workers",
        "pulls": "/pulls?state=all",
        "nothing": "/runs?state=failed",
        "not there": "/nowhere",
    }


PAGES = (
    "grid", "other branch", "emulated grid", "filtered grid", "trend", "trend of foreign work",
    "unwatched trend", "quiet trend", "emulated trend", "compare", "compare broken",
    "compare variants", "compare nothing", "signatures", "no signature", "signature",
    "measurement", "order", "runs", "run", "doubted run", "running", "awaiting", "broken",
    "emulated run", "trial", "swallowing trial", "commit", "broken commit", "build", "workers",
    "pulls", "nothing", "not there",
)  # fmt: skip
_VOID = {"meta", "link", "img", "input", "br", "hr", "col"}
_CLOSED = {"rect", "line", "path", "circle"}
"""Of SVG, closed in themselves."""


class Reader(HTMLParser):
    """Reads a page as a browser would, and notes what it must not have."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        for name in given:
            if name == "style" or name.startswith("on"):
                self.wrong.append(f"<{tag} {name}>")
        if tag == "style" or (tag == "script" and not given.get("src")):
            self.wrong.append(f"inline <{tag}>")
        if given.get("id"):
            self.ids.append(str(given["id"]))
        for name in ("href", "src", "action", "formaction"):
            if given.get(name):
                self.links.append(str(given[name]))
        if tag == "img" and "alt" not in given:
            self.wrong.append("<img> without alt")
        if tag not in _VOID | _CLOSED:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in _VOID | _CLOSED:
            return
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}> in the wrong place")

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    return reader


@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_whole_and_fits_a_strict_policy(
    browser: TestClient, made: Showcase, name: str
) -> None:
    answer = browser.get(addresses(made)[name])
    assert answer.status_code == (404 if name == "not there" else 200)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    page = read(answer.text)
    assert page.wrong == []
    assert page.open == []
    assert len(page.ids) == len(set(page.ids)), "an id stands for one element"
    assert answer.text.count("<h1") == 1
    assert '<html lang="en"' in answer.text


@pytest.fixture(scope="module")
def led() -> set[str]:
    """Links that were followed: pages share most of theirs."""
    return set()


@pytest.mark.parametrize("name", PAGES)
def test_every_link_of_every_page_leads_somewhere(
    browser: TestClient, made: Showcase, led: set[str], name: str
) -> None:
    page = read(browser.get(addresses(made)[name]).text)
    inside = {link.partition("#")[0] for link in page.links if link.startswith(("/", "?"))} - {
        "",
        "/theme",
    }
    outside = {link for link in page.links if "://" in link}
    assert all(link.startswith("https://github.com/NVIDIA/TransformerEngine/") for link in outside)
    here = addresses(made)[name].partition("?")[0]
    for link in inside:
        if link.startswith("/theme"):
            continue
        address = here + link if link.startswith("?") else link
        if address not in led:
            assert browser.get(address).status_code == 200, f"{address} on {name}"
            led.add(address)
    anchors = {link[1:] for link in page.links if link.startswith("#")}
    assert anchors <= set(page.ids)


def test_a_log_cannot_reach_out_of_its_lines(browser: TestClient, made: Showcase) -> None:
    text = browser.get(f"/trials/{made.failed_trial}").text
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(&#34;never runs&#34;)&lt;/script&gt;" in text
    assert "\x1b" not in text


def test_the_first_error_of_a_log_has_an_anchor_and_stands_out(
    browser: TestClient, made: Showcase
) -> None:
    text = browser.get(f"/trials/{made.failed_trial}").text
    assert 'id="first-error">First error, line 6' in text
    assert re.search(r'class="line first" id="L6">.*previous error during capture', text)
    assert "#first-error" in browser.get(f"/runs/{made.runs['race']}").text


def test_what_control_cells_put_in_doubt_is_marked_and_says_why(
    browser: TestClient, made: Showcase
) -> None:
    text = browser.get(f"/runs/{made.runs['doubted']}").text
    assert text.count('<span class="mark unproven">unproven on this device</span>') == 4
    told = " ".join(" ".join(read(text).text).split())
    assert "Known-bad failed Known-good failed The device is 0 of another service 6 of 6" in told
    assert "5 of 6 unproven unproven on this device: known-good failed 5 of 6" in told
    proven = " ".join(" ".join(read(browser.get(f"/runs/{made.runs['race']}").text).text).split())
    assert "6 of 6 0 of 6 proven" in proven
    runs = browser.get("/runs?subject=te").text
    assert runs.count('<span class="mark unproven">unproven 4</span>') == 1


def test_the_run_page_has_the_issue_s_table(browser: TestClient, made: Showcase) -> None:
    page = read(browser.get(f"/runs/{made.runs['race']}").text)
    told = " ".join(" ".join(page.text).split())
    heading = "Cell Trials Failed Outcomes Rate and 95 % interval Verdict Trials with foreign work"
    assert heading in told
    assert "stock, background norm-act-gemm 10 10 9 capture_error 1 crash 100 %" in told
    assert "69.2 to 100 % races" in told
    assert "undersampled 62 more for clean below 5 %" in told
    assert "Outputs of stock and owned-stream: identical" in told


@pytest.mark.parametrize("name", ["emulated grid", "emulated run"])
def test_emulated_is_said_loudly(browser: TestClient, made: Showcase, name: str) -> None:
    text = browser.get(addresses(made)[name]).text
    assert '<p class="emulated" role="note">EMULATED: no GPU took part' in text
    assert "EMULATED" not in browser.get(f"/runs/{made.runs['race']}").text
    assert 'class="grid no-gpu"' in browser.get(addresses(made)["emulated grid"]).text
    assert "no-gpu" not in browser.get("/?subject=te").text
    assert browser.get("/runs").text.count(">EMULATED<") == 3


def test_a_run_that_waits_says_how_to_approve_it(browser: TestClient, made: Showcase) -> None:
    text = browser.get(f"/runs/{made.runs['awaiting']}").text
    assert re.search(r"/racewatch approve [0-9a-f]{40}<", text)
    assert "https://github.com/NVIDIA/TransformerEngine/pull/2800" in text


def test_times_are_relative_with_the_exact_one_beside(browser: TestClient) -> None:
    text = browser.get("/runs").text
    assert re.search(
        r'<time datetime="[\d-]{10}T[\d:]+Z" title="[\d-]{10} [\d:]+ UTC" data-ago>3 d ago<',
        text,
    )


def test_a_short_hash_leads_to_the_commit(browser: TestClient, made: Showcase) -> None:
    whole = made.shas["race"]
    answer = browser.get(f"/commits/te/{whole[:9]}", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (302, f"/commits/te/{whole}")


def test_empty_pages_say_what_to_do_next(empty: TestClient) -> None:
    assert "racewatch demo" in empty.get("/").text
    assert "racewatch submit" in empty.get("/runs").text
    assert "racewatch worker" in empty.get("/workers").text
    assert "/webhooks/github" in empty.get("/pulls").text
    for path in ("/", "/runs", "/workers", "/pulls"):
        assert read(empty.get(path).text).wrong == []


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("/?before=soon", "query parameter before: must be a whole number, got &#39;soon&#39;"),
        ("/?clean_below=7", "query parameter clean_below: must be a rate between 0 and 1"),
        ("/?environment=-1", "query parameter environment: must be a whole number"),
        ("/?subject=a%00b", "query parameter subject: must be a name"),
        ("/runs?state=odd", "query parameter state: must be one of awaiting_approval, queued"),
        ("/runs?before=x", "query parameter before: must be the id of a run"),
        ("/runs?pull=99999999999", "query parameter pull: must be a whole number"),
        ("/pulls?state=odd", "query parameter state: must be one of open, closed, all"),
        ("/measurements/1?outcome=odd", "query parameter outcome: must be one of failed, swallow"),
    ],
)
def test_a_filter_that_makes_no_sense_gets_one_sentence(
    browser: TestClient, address: str, sentence: str
) -> None:
    answer = browser.get(address)
    assert answer.status_code == 422
    assert sentence in " ".join(answer.text.replace("Query", "query").split())


@pytest.mark.parametrize(
    "address",
    [
        "/runs/not-an-id",
        "/runs/00000000-0000-0000-0000-000000000000",
        "/trials/0",
        "/trials/99999999999999999999",
        "/trials/1e3",
        "/measurements/123456789",
        "/builds/123456789/log",
        "/commits/te/ffffffffffff",
        "/commits/te/f%25",
    ],
)
def test_what_is_not_there_is_404(browser: TestClient, address: str) -> None:
    answer = browser.get(address)
    assert answer.status_code == 404
    assert "There is no " in answer.text


def test_fields_that_a_form_leaves_empty_filter_nothing(browser: TestClient) -> None:
    everything = "/runs?subject=&queue=&state=&pull="
    assert browser.get(everything).text.count('href="/runs/') == (
        browser.get("/runs").text.count('href="/runs/')
    )
    assert browser.get("/?subject=te&branch=&queue=&environment=&clean_below=").status_code == 200


def test_a_page_can_be_asked_for_its_headers_alone(browser: TestClient) -> None:
    for address in ("/", "/runs", "/workers"):
        assert browser.head(address).status_code == 200
    assert browser.head("/nowhere").status_code == 404


def test_every_file_that_pages_load_is_served(browser: TestClient) -> None:
    text = browser.get("/").text
    for name in ("style.css", "live.js", "keys.js", "copy.js", "grid.js", "icon.svg"):
        assert f"/static/{ASSETS[name].digest}/{name}" in text
