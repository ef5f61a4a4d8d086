"""Workers and queues; subjects and matrices; pull requests and approvals."""

from __future__ import annotations

from typing import Any

import pytest
from sqlmodel import select
from starlette.testclient import TestClient

from runner import matrix as matrices
from service.database import Database
from service.queue import wake
from service.tables import Approval, Run, RunState, Worker, WorkerState
from tests.service.api.history import BROKEN, FORK_HEAD, History

Headers = dict[str, str]


def get(client: TestClient, path: str) -> Any:
    answer = client.get(f"/api/v1/{path}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_workers_in_pages_and_by_state(client: TestClient, history: History, db: Database) -> None:
    with db.session() as session:
        for n in range(3):
            session.add(Worker(name=f"w{n}", host="h", pid=n, state=WorkerState.LOST))
    names, url = [], "/api/v1/workers?limit=2"
    while url:
        answer = client.get(url).json()
        names += [worker["name"] for worker in answer["items"]]
        url = answer["next"]
    assert sorted(names) == ["gpu-1", "w0", "w1", "w2"]
    assert [w["name"] for w in get(client, "workers?state=live")["items"]] == ["gpu-1"]
    assert client.get("/api/v1/workers?state=asleep").status_code == 422


def test_queues_with_their_jobs_and_workers(
    client: TestClient, history: History, db: Database
) -> None:
    with db.session() as session:
        wake(session, "prepare", "build-te", lock="a", run="x")
        wake(session, "prepare", "build-demo", lock="b", run="y")
        session.add(Run(subject="te", matrix_name="m", queue="sm90", state=RunState.QUEUED))
    found = get(client, "queue")
    queues = {one["queue"]: one for one in found["queues"]}
    assert (queues["build-te"]["waiting"], queues["build-te"]["workers"]) == (1, 1)
    assert 0 <= queues["build-te"]["oldest_waiting_s"] < 60
    assert (queues["build-demo"]["waiting"], queues["build-demo"]["workers"]) == (1, 0)
    assert (queues["trial-sm90"]["waiting"], queues["trial-sm90"]["workers"]) == (0, 1)
    assert found["runs"] == {"awaiting_approval": 0, "queued": 1, "building": 0, "running": 0}


def test_subjects_with_their_branches(client: TestClient, history: History, db: Database) -> None:
    with db.session() as session:
        session.add(Run(subject="imported", matrix_name="m", queue="sm90"))
    found = {one["name"]: one for one in get(client, "subjects")["items"]}
    te, other = found["te"], found["imported"]
    assert (te["name"], te["tracked"], te["queues"]) == ("te", True, ["sm90"])
    assert te["branches"] == [{"name": "main", "commits": 4, "head": BROKEN}]
    assert (other["tracked"], other["branches"]) == (False, [])


def test_matrices_as_they_ship(client: TestClient) -> None:
    items = get(client, "matrices")["items"]
    assert [one["name"] for one in items] == list(matrices.available())
    issue = next(one for one in items if one["name"] == "issue-3863")
    assert [cell["trials"] for cell in issue["cells"][:6]] == [10, 10, 10, 10, 6, 6]


def test_pulls_with_their_newest_run_and_approval(
    client: TestClient, history: History, runner: Headers, db: Database
) -> None:
    for _ in range(2):
        run = client.post("/api/v1/runs", json={"subject": "te", "ref": "pull/12"}, headers=runner)
    with db.session() as session:
        session.add(Approval(subject="te", pull=12, sha=FORK_HEAD, by="ann", via="comment"))
    own, fork = get(client, "pulls?subject=te")["items"]
    assert (own["number"], own["fork"], own["approved_by"], own["run"]) == (13, False, None, None)
    assert (fork["number"], fork["fork"], fork["approved_by"]) == (12, True, "ann")
    assert fork["run"] == {"id": run.json()["id"], "state": "awaiting_approval"}
    first = get(client, "pulls?subject=te&limit=1")
    assert [one["number"] for one in first["items"]] == [13]
    rest = client.get(first["next"]).json()
    assert ([one["number"] for one in rest["items"]], rest["next"]) == ([12], None)
    assert get(client, "pulls?subject=te&state=closed")["items"] == []
    assert client.get("/api/v1/pulls?subject=te&state=merged").status_code == 422


def test_an_approval_lets_exactly_the_waiting_runs_of_that_commit_begin(
    client: TestClient, history: History, runner: Headers, approver: Headers, db: Database
) -> None:
    run = client.post(
        "/api/v1/runs", json={"subject": "te", "ref": "pull/12"}, headers=runner
    ).json()
    body = {"subject": "te", "pull": 12, "sha": FORK_HEAD[:12]}
    answer = client.post("/api/v1/approvals", json=body, headers=approver)
    assert answer.status_code == 200
    assert answer.json() == {
        "subject": "te", "pull": 12, "sha": FORK_HEAD, "new": True, "runs": [run["id"]],
    }  # fmt: skip
    assert get(client, f"runs/{run['id']}")["state"] == "queued"
    again = client.post("/api/v1/approvals", json=body, headers=approver).json()
    assert (again["new"], again["runs"]) == (False, [])
    with db.session() as session:
        (stored,) = session.exec(select(Approval))
        assert (stored.by, stored.via) == ("approver", "api")


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        ({"sha": "f" * 40}, 409, f"{'f' * 40} is not the head of pull request 12"),
        ({"pull": 77}, 409, "pull request 77 of te is not known here"),
        ({"subject": "other"}, 404, "there is no tracked subject 'other'"),
        ({"sha": "xyz"}, 422, "body, sha: must be 7 to 40 hexadecimal digits"),
        ({"sha": None}, 422, "body, sha: must be a valid string, got None"),
        ({"pull": 2**40}, 422, "body, pull: must be less than or equal to 999999999"),
    ],
)
def test_what_cannot_be_approved(
    client: TestClient, history: History, approver: Headers, db: Database, body: dict[str, Any],
    status: int, sentence: str,
) -> None:  # fmt: skip
    said = {"subject": "te", "pull": 12, "sha": FORK_HEAD, **body}
    answer = client.post("/api/v1/approvals", json=said, headers=approver)
    assert answer.status_code == status
    assert answer.json()["detail"].startswith(sentence)
    with db.session() as session:
        assert session.exec(select(Approval)).all() == []
