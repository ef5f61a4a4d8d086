"""Trials of a run: pages, filters, evidence, logs, CSV."""

from __future__ import annotations

import csv
import io
from uuid import uuid4

import pytest
from sqlmodel import select
from starlette.testclient import TestClient

from service.database import Database
from service.tables import Trial, TrialEvidence
from tests.service.api.history import BROKEN, RACE, History


def path(history: History, sha: str = RACE) -> str:
    return f"/api/v1/runs/{history.runs[sha]}/trials"


def test_trials_come_in_pages(client: TestClient, history: History) -> None:
    indexes, url = [], path(history) + "?limit=4"
    while url:
        answer = client.get(url).json()
        indexes += [trial["index"] for trial in answer["items"]]
        url = answer["next"]
    assert indexes == list(range(10))


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("?outcome=capture_error", 6),
        ("?outcome=pass", 4),
        ("?outcome=hang", 0),
        ("?cell=stock%2C+background", 10),
        ("?cell=stock%2C+background&outcome=pass&limit=200", 4),
    ],
)
def test_filters(client: TestClient, history: History, query: str, count: int) -> None:
    assert len(client.get(path(history) + query).json()["items"]) == count


@pytest.mark.parametrize(
    ("query", "status"), [("?cell=none", 404), ("?outcome=bad", 422), ("?cursor=zzz", 422)]
)
def test_filters_that_name_nothing(
    client: TestClient, history: History, query: str, status: int
) -> None:
    assert client.get(path(history) + query).status_code == status


def test_a_run_without_trials_and_a_run_that_is_not_there(
    client: TestClient, history: History
) -> None:
    assert client.get(path(history, BROKEN)).json() == {"items": [], "next": None}
    assert client.get(f"/api/v1/runs/{uuid4()}/trials").status_code == 404


def test_a_trial_has_its_evidence_and_its_log(client: TestClient, history: History) -> None:
    last = client.get(path(history) + "?outcome=capture_error").json()["items"][-1]
    whole = client.get(f"/api/v1/trials/{last['id']}").json()
    assert whole == {**whole, **last}
    assert whole["commit"]["sha"] == RACE
    assert whole["worker"]["name"] == "gpu-1"
    assert whole["what"]["variant"] == "stock"
    assert whole["environment"]["device_kind"] == "cuda"
    assert whole["evidence"] == {"kind": "trial", "exit_status": 0}
    log = client.get(whole["log"])
    assert log.text == "line of trial 9\n"
    assert log.headers["content-type"] == "text/plain; charset=utf-8"
    assert log.headers["x-content-type-options"] == "nosniff"


def test_a_pruned_trial_says_so(client: TestClient, history: History, db: Database) -> None:
    with db.session() as session:
        trial = session.exec(select(Trial)).first()
        assert trial is not None
        session.delete(session.get_one(TrialEvidence, trial.id))
    whole = client.get(f"/api/v1/trials/{trial.id}").json()
    assert (whole["evidence"], whole["log_kept"]) == (None, False)
    log = client.get(whole["log"])
    assert log.status_code == 404
    assert log.json()["detail"] == f"the log of trial {trial.id} was pruned"


@pytest.mark.parametrize(
    ("identity", "status"),
    [("999999", 404), ("0", 422), ("-1", 422), ("2147483648", 422), ("9" * 50, 422), ("x", 422)],
)
@pytest.mark.parametrize("suffix", ["", "/log"])
def test_trials_that_are_not_there(
    client: TestClient, identity: str, status: int, suffix: str
) -> None:
    answer = client.get(f"/api/v1/trials/{identity}{suffix}")
    assert (answer.status_code, answer.json()["status"]) == (status, status)
    assert client.get("/api/v1/builds/999/log").status_code == 404


def test_trials_as_csv(client: TestClient, history: History) -> None:
    answer = client.get(path(history) + "?format=csv&outcome=capture_error")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert len(rows) == 6
    assert rows[0]["cell"] == "stock, background"
    assert rows[0]["signature"] == "capture_error somewhere"
    assert rows[0]["digests"] == "d1 d1"
