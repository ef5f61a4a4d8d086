"""GET /api/v1/runs: filters, pages, one run as a whole, CSV."""

from __future__ import annotations

import csv
import io
from uuid import uuid4

import pytest
from starlette.testclient import TestClient

from service.database import Database
from service.tables import Run
from tests.service.api.history import BROKEN, FIX, GOOD, RACE, History


def shas(client: TestClient, query: str = "") -> list[str]:
    answer = client.get(f"/api/v1/runs{query}")
    assert answer.status_code == 200, answer.text
    return [item["commit"]["sha"] for item in answer.json()["items"]]


def test_runs_come_newest_first(client: TestClient, history: History) -> None:
    assert shas(client) == [BROKEN, FIX, RACE, GOOD]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("?subject=te", [BROKEN, FIX, RACE, GOOD]),
        ("?subject=demo", []),
        ("?commit=bbbb", [RACE]),
        ("?commit=b", [RACE]),
        ("?commit=9", []),
        ("?ref=main&state=complete", [BROKEN, FIX, RACE, GOOD]),
        ("?state=queued", []),
        ("?origin=push&queue=sm90&matrix=two", [BROKEN, FIX, RACE, GOOD]),
        ("?queue=emulated", []),
        ("?pull=12", []),
        ("?since=2026-07-01T13:00:00Z&until=2026-07-01T15:00:00Z", [FIX, RACE]),
        ("?since=2026-07-01T15:00:00%2B02:00&limit=2", [BROKEN, FIX]),
    ],
)
def test_filters_have_all_to_fit(
    client: TestClient, history: History, query: str, expected: list[str]
) -> None:
    assert shas(client, query) == expected


def test_pages_follow_one_another_without_gap_or_repetition(
    client: TestClient, history: History, db: Database
) -> None:
    seen, url = [], "/api/v1/runs?limit=1&subject=te"
    while url:
        answer = client.get(url)
        seen += [item["commit"]["sha"] for item in answer.json()["items"]]
        url = answer.json()["next"]
        assert answer.headers.get("link") == (f'<{url}>; rel="next"' if url else None)
        with db.session() as session:  # what comes meanwhile is newer, and moves nothing
            session.add(Run(subject="te", matrix_name="later", queue="sm90"))
    assert seen == [BROKEN, FIX, RACE, GOOD]


def test_runs_of_one_moment_are_all_listed(client: TestClient, db: Database) -> None:
    with db.session() as session:
        first = Run(subject="te", matrix_name="m", queue="sm90")
        session.add(first)
        for _ in range(4):
            session.add(
                Run(subject="te", matrix_name="m", queue="sm90", created_at=first.created_at)
            )
    ids, url = [], "/api/v1/runs?limit=2"
    while url:
        answer = client.get(url).json()
        ids += [item["id"] for item in answer["items"]]
        url = answer["next"]
    assert len(ids) == len(set(ids)) == 5


@pytest.mark.parametrize(
    "cursor", ["x", "AAAA", "bjEyMw", "dDIwMjYtMDctMDF8eA", "_" * 200, "%00", "a b", "é"]
)
def test_a_cursor_that_no_page_gave_is_refused_with_a_sentence(
    client: TestClient, cursor: str
) -> None:
    answer = client.get(f"/api/v1/runs?cursor={cursor}")
    assert answer.status_code == 422
    assert "cursor" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("limit=0", "query parameter limit: must be greater than or equal to 1, got 0"),
        ("limit=201", "query parameter limit: must be less than or equal to 200, got 201"),
        ("limit=1_0", "query parameter limit: must be a whole number, got '1_0'"),
        ("limit=" + "9" * 5000, "query parameter limit: must be a whole number, got"),
        ("pull=99999999999", "query parameter pull: must be less than or equal to 999999999"),
        ("stat=queued", "query parameter stat: is not known, got 'queued'"),
        ("state=open", "query parameter state: must be 'awaiting_approval', 'queued'"),
        ("since=yesterday", "query parameter since: must be a time with its zone"),
        ("since=2026-07-01T12:00:00", "query parameter since: must be a time with its zone"),
        ("since=2026-02-30T12:00:00Z", "query parameter since: must be a valid datetime"),
        ("subject=a%00b", "query parameter subject: must be a name of letters"),
        ("matrix=%0A", "query parameter matrix: must be text without control characters"),
        ("matrix=", "query parameter matrix: must have at least 1 character"),
        ("ref=--upload-pack", "query parameter ref: must be a branch, a tag, a commit or pull/N"),
    ],
)
def test_a_query_that_is_not_valid_gets_one_sentence(
    client: TestClient, query: str, sentence: str
) -> None:
    answer = client.get(f"/api/v1/runs?{query}")
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"].startswith(sentence)


def test_a_run_shows_what_each_cell_counted_and_what_that_supports(
    client: TestClient, history: History
) -> None:
    run = client.get(f"/api/v1/runs/{history.runs[RACE]}").json()
    assert run["commit"]["title"] == "Commit 1"
    assert run["environment"]["device_name"] == "NVIDIA H200"
    assert run["environment"]["emulated"] is False
    assert run["progress"] == {"cells": 1, "wanted": 10, "settled": 10, "recorded": 10}
    assert run["parity"]["status"] == "identical"
    assert run["sandbox"] == "docker"
    assert [build["name"] for build in run["builds"]] == ["stock"]
    (cell,) = run["cells"]
    assert (cell["name"], cell["k"], cell["n"], cell["rate"]) == ("stock, background", 6, 10, 0.6)
    assert (cell["counts"]["capture_error"], cell["counts"]["pass"]) == (6, 4)
    assert cell["verdict"] == "races"
    assert cell["interval"] == pytest.approx([0.2624, 0.8784], abs=1e-4)


def test_a_cell_without_enough_passes_says_how_many_are_still_needed(
    client: TestClient, history: History
) -> None:
    (cell,) = client.get(f"/api/v1/runs/{history.runs[FIX]}").json()["cells"]
    assert (cell["verdict"], cell["trials_needed"]) == ("undersampled", 62)
    assert "62 more for clean below 5 %" in cell["verdict_text"]
    (cell,) = client.get(f"/api/v1/runs/{history.runs[GOOD]}").json()["cells"]
    assert (cell["verdict"], cell["trials_needed"]) == ("clean", 0)


def test_a_cell_that_no_build_could_give_says_why(client: TestClient, history: History) -> None:
    run = client.get(f"/api/v1/runs/{history.runs[BROKEN]}").json()
    (cell,) = run["cells"]
    assert cell["outcome"] == "build_error"
    assert cell["verdict"] == "not measured"
    assert cell["verdict_text"] == "not measured: build_error: the compiler failed"
    assert run["progress"] == {"cells": 1, "wanted": 20, "settled": 20, "recorded": 0}
    log = client.get(run["builds"][0]["log"])
    assert log.text == "ffi.h: No such file"
    assert log.headers["content-type"].startswith("text/plain")


def test_a_run_is_compared_with_its_merge_base(
    client: TestClient, history: History, db: Database
) -> None:
    with db.session() as session:
        run, base = (
            session.get_one(Run, history.runs[RACE]), session.get_one(Run, history.runs[GOOD])
        )  # fmt: skip
        run.base_commit_id, run.base_run_id = base.commit_id, base.id
        session.add(run)
    run_out = client.get(f"/api/v1/runs/{history.runs[RACE]}").json()
    assert run_out["base"]["commit"]["sha"] == GOOD
    assert run_out["base"]["run"] == str(history.runs[GOOD])
    against = run_out["cells"][0]["against_base"]
    assert against["verdict"] == "regressed"
    assert against["p"] < 0.01
    assert against["difference"][0] > 0


def test_a_run_that_is_not_there(client: TestClient) -> None:
    missing = uuid4()
    answer = client.get(f"/api/v1/runs/{missing}")
    assert answer.status_code == 404
    assert answer.json()["detail"] == f"there is no run '{missing}'"


@pytest.mark.parametrize(
    "identity", ["1", "x" * 36, "%00", "{aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa}"]
)
def test_an_id_that_is_none(client: TestClient, identity: str) -> None:
    answer = client.get(f"/api/v1/runs/{identity}")
    assert answer.status_code == 422
    assert "path parameter run_id: must be an id such as" in answer.json()["detail"]


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ("?format=csv", {}),
        ("", {"Accept": "text/csv"}),
        ("", {"Accept": "application/json;q=0.5, text/csv"}),
    ],
)
def test_runs_as_csv(
    client: TestClient, history: History, query: str, headers: dict[str, str]
) -> None:
    answer = client.get(f"/api/v1/runs{query}", headers=headers)
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"] == 'attachment; filename="runs.csv"'
    rows = table(answer.text)
    assert [row["sha"] for row in rows] == [BROKEN, FIX, RACE, GOOD]
    assert rows[2] == {**rows[2], "settled": "10", "emulated": "false", "state": "complete"}


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ("?format=json", {"Accept": "text/csv"}),
        ("", {"Accept": "*/*"}),
        ("", {"Accept": "text/html"}),
    ],
)
def test_json_unless_csv_is_liked_better(
    client: TestClient, query: str, headers: dict[str, str]
) -> None:
    answer = client.get(f"/api/v1/runs{query}", headers=headers)
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["vary"].startswith("Accept")


def test_text_that_a_spreadsheet_would_run_is_quoted(client: TestClient, db: Database) -> None:
    with db.session() as session:
        session.add(
            Run(subject="te", matrix_name="=HYPERLINK(1)", queue="sm90", reason="+1", ref="@x")
        )
    (row,) = table(client.get("/api/v1/runs?format=csv").text)
    assert (row["matrix"], row["reason"], row["ref"]) == ("'=HYPERLINK(1)", "'+1", "'@x")


def test_csv_of_more_runs_than_are_read_at_once(client: TestClient, db: Database) -> None:
    with db.session() as session:
        session.add_all(Run(subject="te", matrix_name="m", queue="sm90") for _ in range(2_300))
    rows = table(client.get("/api/v1/runs?format=csv").text)
    assert len({row["id"] for row in rows}) == len(rows) == 2_300
    assert len(table(client.get("/api/v1/runs?format=csv&limit=7").text)) == 7
