"""Pages of bisections: whole, strict, and saying what is known, what follows and how it ended."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from starlette.testclient import TestClient

from runner.bisect.settings import Observe
from service.app import create_app
from service.database import Database
from service.pages.bisection_chart import picture
from service.pages.words import chance
from service.reading import bisections
from service.settings import ServiceSettings
from service.tables import Bisection
from tests.conftest import Eventually
from tests.service.pages.conftest import BROWSER
from tests.service.pages.served import served
from tests.service.pages.test_elsewhere import copied, rows
from tests.service.pages.test_live import page as stream
from tests.service.pages.test_pages import read
from tests.service.reading import bisected, showcase
from tests.service.reading.bisected import Bisections, Made, Truth

NAMES = (
    "found", "searching", "checking", "merge", "no change", "cancelled", "failed", "queued",
)  # fmt: skip


@pytest.fixture(scope="module")
def bisecting(postgres: str, template: str) -> Iterator[tuple[Database, Made]]:
    """One of each kind, which these tests leave as it is."""
    with showcase.database(postgres, template) as database:
        yield database, bisected.make(database)


@pytest.fixture(scope="module")
def browser(
    bisecting: tuple[Database, Made], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestClient]:
    """A browser without scripts."""
    settings = ServiceSettings(home=tmp_path_factory.mktemp("home"), config=None)
    app = create_app(settings, bisecting[0])
    with TestClient(app, headers=BROWSER, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="module")
def led() -> set[str]:
    """Links that were followed."""
    return set()


def address(made: Made, name: str) -> str:
    return "/bisections" if name == "list" else f"/bisections/{made.ids[name]}"


def told(html: str) -> str:
    """What a reader reads."""
    return " ".join(" ".join(read(html).text).split())


@pytest.mark.parametrize("name", ["list", *NAMES])
def test_every_page_is_whole_fits_a_strict_policy_and_leads_somewhere(
    browser: TestClient, bisecting: tuple[Database, Made], led: set[str], name: str
) -> None:
    answer = browser.get(address(bisecting[1], name))
    assert answer.status_code == 200
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    page = read(answer.text)
    assert page.wrong == []
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert answer.text.count("<h1") == 1
    assert "<script>alert" not in answer.text
    outside = {link for link in page.links if "://" in link}
    assert all(
        re.fullmatch(r"https://github.com/NVIDIA/TransformerEngine/commit/[0-9a-f]{40}", link)
        for link in outside
    )
    inside = {link.partition("#")[0] for link in page.links if link.startswith("/")}
    for link in inside - led - {"", "/theme"}:
        if not link.startswith(("/theme?", "/static/")):
            assert browser.get(link).status_code == 200, link
            led.add(link)
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)


def test_a_verdict_names_the_culprit_with_both_rates(
    browser: TestClient, bisecting: tuple[Database, Made]
) -> None:
    made = bisecting[1]
    text = browser.get(address(made, "found")).text
    said = told(text)
    assert re.search(r"culprit over 99.99 % sure [0-9a-f]{9} ↗ \[C\] Tune the layernorm", said)
    assert re.search(r"before it 0 % 0 of \d+ failed 95 %: 0 to [0-9.]+ %", said)
    assert re.search(r"from it on 3\d(\.\d)? % \d+ of \d+ failed 95 %: 2\d", said)
    assert f'href="https://github.com/NVIDIA/TransformerEngine/commit/{made.culprit}"' in text
    assert f'href="/commits/te/{made.culprit}"' in text
    assert "reverted on the head" in said
    assert "passed" in said
    assert "Still expected" not in said


def test_the_commit_that_it_made_itself_is_nowhere_at_github(
    browser: TestClient, bisecting: tuple[Database, Made]
) -> None:
    database, made = bisecting
    with database.session() as session:
        found = bisections.read(session, made.ids["found"])
    assert found is not None
    (own,) = found.made
    text = browser.get(address(made, "found")).text
    assert f'href="/commits/te/{own}"' in text
    assert f"/commit/{own}" not in text


def test_while_it_searches_it_says_what_it_does_and_what_that_takes(
    browser: TestClient, bisecting: tuple[Database, Made]
) -> None:
    database, made = bisecting
    text = browser.get(address(made, "searching")).text
    said = told(text)
    assert re.search(r"\d+ commits hold the change with 99 % so far", said)
    assert re.search(r"Still expected \d+ min( \d+ s)? about \d builds?, one after the other", said)
    assert "of 2 h at most" in said
    assert "To end it early" in said
    with database.session() as session:
        found = bisections.read(session, made.ids["searching"])
    assert found is not None
    assert found.running
    for one in found.running:
        assert f'href="/runs/{one.run}"' in text
    assert f'data-live="bisection:{made.ids["searching"]} trial build"' in text
    ended = browser.get(address(made, "cancelled")).text
    assert f'data-live="bisection:{made.ids["cancelled"]}"' in ended
    assert "Cancelled by ada." in told(ended)


def test_the_table_has_every_class_and_what_was_left_out_together(
    browser: TestClient, bisecting: tuple[Database, Made]
) -> None:
    text = browser.get(address(bisecting[1], "found")).text
    shown, _, everything = text.partition("All 73 builds")
    assert everything.count('<td class="likely">') == 73
    rows = shown.count('<td class="likely">')
    assert 15 < rows < 40
    left_out = sum(int(n) for n in re.findall(r"(\d+) builds between, together", shown))
    assert left_out + rows - len(re.findall("builds between", shown)) - 1 == 73
    short = browser.get(address(bisecting[1], "no change")).text
    assert "builds between" not in short
    assert "<details" not in short.partition("Take it elsewhere")[0]


def test_the_picture_has_what_the_table_has(bisecting: tuple[Database, Made]) -> None:
    database, made = bisecting
    with database.session() as session:
        found = bisections.read(session, made.ids["found"])
        unsure = bisections.read(session, made.ids["searching"])
    assert found is not None
    assert unsure is not None
    (searched,) = found.searched
    drawn = picture(searched, frozenset(), found.verdict)
    assert len(drawn.columns) == 72
    hot = [one for one in drawn.columns if one.hot]
    assert len(hot) == 1
    assert hot[0].height == max(one.height for one in drawn.columns)
    assert len(drawn.dots) == sum(one.tally.n > 0 for one in searched.suspects)
    assert len(drawn.broken) == sum(bool(one.broken) for one in searched.suspects)
    assert drawn.leader is not None
    assert made.culprit[:9] in drawn.leader.text
    low, high = drawn.levels
    assert low.x + low.width == high.x == drawn.band[0] if drawn.band else False
    assert high.y < low.y, "a higher rate is drawn higher"
    assert 0 <= drawn.begin <= hot[0].x
    for one in (*drawn.columns, *drawn.dots):
        assert drawn.left <= one.x <= drawn.right
    running = frozenset(one.probe.key for one in unsure.running)
    early = picture(unsure.searched[0], running, None)
    assert (early.levels, early.band, len(early.running)) == ((), None, len(running))
    top = max(one.probability or 0 for one in unsure.searched[0].suspects)
    assert float(early.likely[-1].label.removesuffix(" %")) / 100 >= top


@pytest.mark.parametrize(
    ("probability", "text"),
    [
        (0.0, "under 0.1 %"),
        (1e-9, "under 0.1 %"),
        (0.001, "0.1 %"),
        (0.315, "31.5 %"),
        (0.9949, "99.49 %"),
        (0.99999, "over 99.99 %"),
        (1.0, "over 99.99 %"),
    ],
)
def test_a_probability_is_never_certain(probability: float, text: str) -> None:
    assert chance(probability) == text


def test_a_merge_s_inside_comes_first(
    browser: TestClient, bisecting: tuple[Database, Made]
) -> None:
    text = browser.get(address(bisecting[1], "merge")).text
    headings = [unescape(one) for one in re.findall(r'<h2 id="posterior-\d">([^<]*)<', text)]
    assert re.fullmatch("Inside merge [0-9a-f]{9}", headings[0])
    assert headings[1:] == ["The whole range"]


def test_emulated_is_said_loudly(browser: TestClient, bisecting: tuple[Database, Made]) -> None:
    made = bisecting[1]
    for name in ("merge", "queued"):
        text = browser.get(address(made, name)).text
        assert '<p class="emulated" role="note">EMULATED: no GPU took part' in text
    assert "EMULATED" not in browser.get(address(made, "found")).text
    assert browser.get("/bisections").text.count(">EMULATED<") == 3


def test_the_list_says_what_each_found(
    browser: TestClient, bisecting: tuple[Database, Made]
) -> None:
    said = told(browser.get("/bisections").text)
    assert re.search(r"culprit over 99.99 % sure [0-9a-f]{9} \[C\] Tune the layernorm", said)
    assert "0 of 640 failed at the good end, 0 of 640 at the bad one" in said
    assert "ref 'nowhere' names nothing in the repository" in said
    assert "its range is being worked out" in said
    assert "by <script>alert(1)</script>" in said
    assert 'data-live="bisection"' in browser.get("/bisections").text
    only = browser.get("/bisections?subject=demo&queue=&state=done").text
    assert only.count('href="/bisections/') == 2


def test_a_page_says_how_to_ask_the_same_again(
    browser: TestClient, bisecting: tuple[Database, Made]
) -> None:
    said = told(browser.get(address(bisecting[1], "searching")).text)
    assert (
        "racewatch bisect --subject te --good v2.7 --bad v2.9 --matrix issue-3863 "
        "--cell 'stock, background' --confidence 0.99 --budget 7200s"
    ) in said
    assert '"budget_s": 7200' in said


def test_without_any_a_page_says_how_to_start_one(db: Database, tmp_path: Path) -> None:
    app = create_app(ServiceSettings(home=tmp_path, config=None), db)
    with TestClient(app, headers=BROWSER) as client:
        text = client.get("/bisections").text
        assert read(text).wrong == []
        said = told(text)
        assert "No bisection has been started." in said
        assert "racewatch bisect --subject te --good" in said
        assert "/api/v1/bisections" in said


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/bisections?before=x", "query parameter before: must be the id of a bisection, got"),
        ("/bisections?state=odd", "query parameter state: must be one of queued, running, done"),
        ("/bisections?subject=a%00b", "query parameter subject: must be a name"),
    ],
)
def test_a_filter_that_makes_no_sense_gets_one_sentence(
    browser: TestClient, path: str, sentence: str
) -> None:
    answer = browser.get(path)
    assert answer.status_code == 422
    assert sentence in told(answer.text).replace("Query", "query")


def test_what_is_not_there_is_404(browser: TestClient) -> None:
    for path in ("/bisections/7", f"/bisections/{uuid4()}"):
        answer = browser.get(path)
        assert answer.status_code == 404
        assert "There is no bisection" in answer.text


def test_an_open_page_is_told_of_each_observation(
    db: Database, tmp_path: Path, eventually: Eventually
) -> None:
    with db.session() as session:
        them = Bisections(session)
        identity = them.order("te", "sm90", "v2.7", "main")
        searched = bisected.path("te", 7)
        them.ranged(identity, searched)
    with served(db, tmp_path) as site, stream(site, topic=f"bisection:{identity}") as opened:
        eventually(lambda: opened.missed, "it is connected")
        before = told(httpx.get(f"{site.address}/bisections/{identity}", headers=BROWSER).text)
        assert "None yet: trials of both ends come first" in before
        with db.session() as session:
            them = Bisections(session)
            them.go(identity, Truth.of(searched, 3, 0.0, 1.0), most=2)
        eventually(lambda: opened.events, "it was told")
        event = opened.events[-1]
        assert (event["kind"], event["bisection"]) == ("bisection", str(identity))
        after = told(httpx.get(f"{site.address}/bisections/{identity}", headers=BROWSER).text)
        assert "0 of 16 failed" in after
        assert "16 of 16 failed" in after
    with db.session() as session:
        assert session.get_one(Bisection, identity).state == "running"


def test_its_verdict_as_markdown(browser: TestClient, bisecting: tuple[Database, Made]) -> None:
    made = bisecting[1]
    markdown = copied(browser, address(made, "found"), "markdown")
    assert f"/bisections/{made.ids['found']})**" in markdown
    assert "raised the failure rate from" in markdown
    table = rows(markdown)
    assert table[0] == ["build of", "title", "probability", "failed", "rate (95 % interval)"]
    assert any(row[2] == "over 99.99 %" for row in table[1:])
    assert copied(browser, address(made, "found"), "permalink").endswith(address(made, "found"))
    for name in NAMES:
        assert copied(browser, address(made, name), "markdown").startswith("**["), name


def test_one_that_observes_swallowed_work_says_so_in_every_word(
    db: Database, tmp_path: Path
) -> None:
    searched = bisected.path("te", 9)
    with db.session() as session:
        them = Bisections(session)
        identity = them.order("te", "sm90", "v2.7", "main", observe=Observe.SWALLOW)
        them.ranged(identity, searched)
    app = create_app(ServiceSettings(home=tmp_path, config=None), db)
    with TestClient(app, headers=BROWSER) as client:
        text = unescape(client.get(f"/bisections/{identity}").text)
    told = " ".join(" ".join(read(text).text).split())
    assert "Counts trials with foreign work in a capture window" in told
    assert "Below: trials with foreign work of each build, with 95 % intervals" in told
    assert "never had foreign work" in told
    assert "Failures per trial" not in told
    assert "--observe swallow" in copied_from(text, "alone")
    assert '"observe": "swallow"' in copied_from(text, "again")


def copied_from(text: str, name: str) -> str:
    """What a page that was read already lets one copy."""
    found = re.search(rf'<pre id="{name}"[^>]*>(.*?)</pre>', text, re.DOTALL)
    assert found, name
    return found[1]
