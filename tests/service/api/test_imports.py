"""POST /api/v1/imports: real results, twice, broken, and too large."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func
from sqlmodel import select
from starlette.testclient import TestClient

from service.api.imports import MAX_BYTES
from service.database import Database
from service.tables import Measurement, Run, Trial

Headers = dict[str, str]
RESULTS = Path(__file__).parents[3] / "docs" / "results"
RESULT = RESULTS / "h200-te-2.20.2-issue-3863.json"


def send(
    client: TestClient, headers: Headers, content: bytes, kind: str = "application/json"
) -> Any:
    return client.post(
        "/api/v1/imports", content=content, headers={**headers, "Content-Type": kind}
    )


def test_a_real_result_comes_in_once(client: TestClient, runner: Headers, db: Database) -> None:
    content = RESULT.read_bytes()
    result = json.loads(content)
    first = send(client, runner, content)
    assert first.status_code == 201, first.text
    (item,) = first.json()["items"]
    assert item["run"] == result["run"]
    assert (item["created"], item["new_trials"]) == (True, len(result["trials"]))
    again = send(client, runner, content)
    assert again.status_code == 200
    (item,) = again.json()["items"]
    assert (item["created"], item["new_trials"]) == (False, 0)
    with db.session() as session:
        assert session.exec(select(func.count()).select_from(Trial)).one() == len(result["trials"])
    run = client.get(first.headers["location"]).json()
    assert (run["origin"], run["state"], run["requested_by"]) == ("import", "complete", "runner")
    assert [(c["name"], c["k"], c["n"]) for c in run["cells"]] == [
        (c["name"], c["k"], c["n"]) for c in result["cells"]
    ]
    assert run["parity"]["status"] == result["parity"]["status"]


def test_every_result_in_the_docs_reads_back_through_the_api(
    client: TestClient, runner: Headers
) -> None:
    for file in sorted(RESULTS.glob("*.json")):
        taken = send(client, runner, file.read_bytes())
        assert taken.status_code in (200, 201), f"{file.name}: {taken.text}"
        run = client.get(taken.headers["location"])
        assert run.status_code == 200, f"{file.name}: {run.text}"
        trials = client.get(f"{taken.headers['location']}/trials?limit=200").json()["items"]
        assert client.get(f"/api/v1/trials/{trials[0]['id']}").json()["evidence"]
    runs = client.get("/api/v1/runs?origin=import&limit=200").json()["items"]
    assert len(runs) == len(list(RESULTS.glob("*.json")))


@pytest.mark.parametrize(
    ("content", "kind", "status", "sentence"),
    [
        (b"", "application/json", 422, "neither a result nor events of a run"),
        (b"{", "application/json", 422, "neither a result nor events of a run"),
        (b"[" * 100_000, "application/json", 422, "neither a result nor events of a run"),
        (b"null", "application/json", 422, "neither a result nor events of a run"),
        (b'{"run": 1}', "application/json", 422, "not a result of a run: it has no"),
        (b'{"event": "run"}', "application/x-ndjson", 422, "line 1: "),
        (b"\xff", "application/json", 400, "the body is not UTF-8: invalid start byte at byte 0"),
        (b"{}", "text/plain", 415, "the body must be application/json or application/x-ndjson"),
        (b"{}", "", 415, "the body must be application/json or application/x-ndjson"),
    ],
)
def test_what_is_no_result(
    client: TestClient, runner: Headers, db: Database, content: bytes, kind: str, status: int,
    sentence: str,
) -> None:  # fmt: skip
    answer = send(client, runner, content, kind)
    assert answer.status_code == status
    assert answer.json()["detail"].startswith(sentence)
    with db.session() as session:
        assert session.exec(select(Run)).all() == []
        assert session.exec(select(Measurement)).all() == []


def test_a_compressed_body_is_refused(client: TestClient, runner: Headers) -> None:
    headers = {**runner, "Content-Encoding": "gzip"}
    answer = send(client, headers, gzip.compress(b"{}"))
    assert answer.status_code == 415
    assert "not compressed, got application/json, gzip" in answer.json()["detail"]


def test_a_body_that_is_too_large(client: TestClient, runner: Headers) -> None:
    answer = send(client, runner, b" " * (MAX_BYTES + 1))
    assert answer.status_code == 413
    assert answer.headers["content-type"] == "application/problem+json"
    assert "larger than 16 MiB" in answer.json()["detail"]


def damaged(**trial: Any) -> bytes:
    result = json.loads(RESULT.read_text())
    result["trials"] = [{**one, **trial} for one in result["trials"][:2]]
    return json.dumps(result).encode()


@pytest.mark.parametrize(
    "trial",
    [
        {"signature": "a\x00b", "reason": "\ud800"},
        {"signature": "s" * 10_000},
        {"digests": [1, None]},
        {"digests": "abc"},
        {"handlers": [{}]},
        {"times": {"compile": "x"}},
        {"times": []},
        {"seconds": 1e400},
        {"seconds": -1},
        {"background_updates": 2**70},
        {"index": 2**40},
        {"index": -1},
        {"evidence": {"output": "\x00", "n": float("nan")}},
        {"evidence": []},
        {"device": None},
        {"recipe": 7},
    ],
)
def test_strange_values_are_refused_or_kept_readable(
    client: TestClient, runner: Headers, trial: dict[str, Any]
) -> None:
    answer = send(client, runner, damaged(**trial))
    assert answer.status_code in (201, 422), answer.text
    if answer.status_code == 422:
        assert answer.json()["detail"]
        return
    listed = client.get(f"{answer.headers['location']}/trials")
    assert listed.status_code == 200, listed.text
    for one in listed.json()["items"]:
        assert client.get(f"/api/v1/trials/{one['id']}").status_code == 200
        assert client.get(one["log"]).status_code == 200
