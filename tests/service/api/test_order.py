"""POST /api/v1/runs and its cancellation: who may, what is stored, and what is refused."""

from __future__ import annotations

import json
import threading
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text
from sqlmodel import select
from starlette.testclient import TestClient

from service.database import Database
from service.tables import Approval, Head, Pull, Run, RunCell
from tests.service.api.history import FORK_HEAD, OWN_HEAD, RACE, History

Headers = dict[str, str]


def start(client: TestClient, headers: Headers, **body: Any) -> Any:
    content = json.dumps({"subject": "te", **body})  # httpx itself refuses half a surrogate pair
    headers = {**headers, "Content-Type": "application/json"}
    return client.post("/api/v1/runs", content=content, headers=headers)


def jobs(database: Database) -> list[str]:
    with database.session() as session:
        found = session.connection().execute(text("SELECT task_name FROM procrastinate_jobs"))
        return [name for (name,) in found]


def test_a_run_is_stored_with_the_job_that_begins_it(
    client: TestClient, runner: Headers, db: Database
) -> None:
    answer = start(client, runner, ref="main", matrix="issue-3863", trials=3)
    assert answer.status_code == 201
    run = answer.json()
    assert answer.headers["location"] == f"/api/v1/runs/{run['id']}"
    assert client.get(answer.headers["location"]).json() == run
    assert (run["state"], run["origin"], run["queue"]) == ("queued", "manual", "sm90")
    assert (run["requested_by"], run["trusted"]) == ("runner", True)
    assert len(run["cells"]) == 11
    assert {cell["wanted"] for cell in run["cells"]} == {3}
    assert run["progress"]["wanted"] == 33
    assert jobs(db) == ["prepare"]


def test_what_is_left_out_is_the_subjects_own(client: TestClient, runner: Headers) -> None:
    run = start(client, runner, version="2.9.0").json()
    assert (run["matrix"], run["queue"], run["ref"]) == ("quick", "sm90", "2.9.0")


def test_a_matrix_of_ones_own(client: TestClient, runner: Headers) -> None:
    mine = {
        "name": "mine",
        "clean_below": 0.2,
        "cells": [{"variant": "stock", "hold_ms": 20, "trials": 4}, {"variant": "owned-stream"}],
    }
    run = start(client, runner, ref="main", matrix=mine, sequential=True).json()
    assert (run["matrix"], run["clean_below"], run["sequential"]) == ("mine", 0.2, True)
    assert [(cell["hold_ms"], cell["wanted"]) for cell in run["cells"]] == [(20, 4), (0, 10)]


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        ({}, 422, "body: give either ref or version"),
        ({"ref": "main", "version": "2.9.0"}, 422, "body: give either ref or version"),
        ({"ref": "main", "subject": "other"}, 404, "there is no tracked subject 'other'"),
        ({"ref": "main", "matrix": "mine"}, 422, "body, matrix: must be one of"),
        ({"ref": "main", "matrix": "/etc/passwd"}, 422, "body, matrix: must be one of"),
        (
            {"ref": "main", "queue": "sm12"},
            409,
            "queue: te is tracked on sm90, and no worker takes 'sm12'",
        ),
        ({"ref": "main", "trials": 0}, 422, "body, trials: must be greater than or equal to 1"),
        ({"ref": "main", "trials": True}, 422, "body, trials: must be a valid integer, got True"),
        ({"ref": "main", "trials": "3"}, 422, "body, trials: must be a valid integer, got '3'"),
        ({"ref": "main", "trial": 3}, 422, "body, trial: is not known, got 3"),
        ({"ref": "--upload-pack=x"}, 422, "body, ref: must be a branch, a tag, a commit or pull/N"),
        ({"ref": "a\ud800"}, 422, "body, ref: must be text in UTF-8"),
        ({"ref": "a\x00"}, 422, "body, ref: must be a branch, a tag, a commit or pull/N"),
        ({"ref": "refs/heads/main"}, 422, "body, ref: give a branch, a tag, a commit or pull/N"),
        ({"ref": "FETCH_HEAD"}, 422, "body, ref: give a branch, a tag, a commit or pull/N"),
        ({"ref": "pull/12/merge"}, 422, "body, ref: give a branch, a tag, a commit or pull/N"),
        ({"ref": "pull/99"}, 409, "pull request 99 of te is not known here (yet)"),
    ],
)
def test_what_cannot_be_run_is_refused_with_one_sentence(
    client: TestClient,
    runner: Headers,
    history: History,
    db: Database,
    body: dict[str, Any],
    status: int,
    sentence: str,
) -> None:
    answer = start(client, runner, **body)
    assert (answer.status_code, answer.headers["content-type"]) == (
        status,
        "application/problem+json",
    )
    assert answer.json()["detail"].startswith(sentence)
    assert jobs(db) == []


@pytest.mark.parametrize(
    ("cells", "sentence"),
    [
        ([], "must have at least 1 item"),
        ([{"variant": "mine"}], "must be a variant, such as"),
        ([{"variant": "stock", "hold_ms": -1}], "must be greater than or equal to 0"),
        ([{"variant": "unregistered", "hold_ms": 5}], "hold_ms must be 0"),
        ([{"variant": "stock+ffi13"}], "must be a variant, such as"),
        ([{"variant": "stock", "name": "x"}] * 2, "name 'x' is taken by cell 1"),
        ([{"variant": "stock"}] * 201, "must have at most 200 items"),
    ],
)
def test_a_matrix_that_is_not_valid(
    client: TestClient, runner: Headers, cells: list[dict[str, Any]], sentence: str
) -> None:
    answer = start(client, runner, ref="main", matrix={"name": "mine", "cells": cells})
    assert answer.status_code == 422
    told = [answer.json()["detail"], *answer.json().get("errors", [])]
    assert any(sentence in one for one in told), told


def test_a_queue_that_a_worker_serves_may_be_asked_for(
    client: TestClient, runner: Headers, history: History
) -> None:
    assert start(client, runner, ref="main", queue="sm90").status_code == 201


def test_the_same_key_and_body_give_the_same_run(
    client: TestClient, runner: Headers, admin: Headers, db: Database
) -> None:
    key = {"Idempotency-Key": "build 17"}
    first = start(client, {**runner, **key}, ref="main")
    again = start(client, {**runner, **key}, ref="main")
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    assert first.headers["location"] == again.headers["location"]
    assert jobs(db) == ["prepare"]
    other = start(client, {**runner, **key}, ref="release_v2.9")
    assert other.status_code == 422
    assert "Idempotency-Key was used for another request" in other.json()["detail"]
    assert start(client, {**admin, **key}, ref="main").json()["id"] != first.json()["id"]
    assert start(client, runner, ref="main").json()["id"] != first.json()["id"]


def test_a_request_that_comes_twice_at_once_starts_one_run(
    client: TestClient, runner: Headers, db: Database
) -> None:
    answers: list[Any] = []
    threads = [
        threading.Thread(
            target=lambda: answers.append(
                start(client, {**runner, "Idempotency-Key": "k"}, ref="main")
            )
        )
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer.status_code for answer in answers) == [200] * 5 + [201]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert jobs(db) == ["prepare"]


# Whose code it is


def test_a_forks_head_awaits_its_approval_however_it_is_named(
    client: TestClient, runner: Headers, history: History, db: Database
) -> None:
    for ref in ("pull/12", "refs/pull/12/head", FORK_HEAD, FORK_HEAD[:10]):
        run = start(client, runner, ref=ref).json()
        assert (run["state"], run["trusted"], run["pull"]) == ("awaiting_approval", False, 12), ref
        assert run["commit"]["sha"] == FORK_HEAD
    assert jobs(db) == []


def test_a_closed_pull_request_is_not_run(
    client: TestClient, runner: Headers, history: History, db: Database
) -> None:
    with db.session() as session:
        session.get_one(Pull, ("te", 13)).open = False
    answer = start(client, runner, ref="pull/13")
    assert answer.status_code == 409
    assert answer.json()["detail"] == "pull request 13 of te is closed: reopen it to run it"


def test_an_approved_head_runs_as_untrusted_and_is_pinned(
    client: TestClient, runner: Headers, history: History, db: Database
) -> None:
    with db.session() as session:
        session.add(Approval(subject="te", pull=12, sha=FORK_HEAD, by="ann", via="api"))
    run = start(client, runner, ref="pull/12").json()
    assert (run["state"], run["trusted"]) == ("queued", False)
    assert run["commit"]["sha"] == FORK_HEAD


def test_a_pull_request_of_the_repository_itself_runs(
    client: TestClient, runner: Headers, history: History
) -> None:
    run = start(client, runner, ref="pull/13").json()
    assert (run["state"], run["trusted"], run["commit"]["sha"]) == ("queued", True, OWN_HEAD)


def test_a_commit_of_a_branch_runs_by_its_whole_hash(
    client: TestClient, runner: Headers, history: History
) -> None:
    run = start(client, runner, ref=RACE[:9]).json()
    assert (run["state"], run["trusted"], run["ref"]) == ("queued", True, RACE)


def test_a_commit_of_nobody_known_takes_someone_who_vouches_for_it(
    client: TestClient, runner: Headers, admin: Headers, history: History
) -> None:
    stray = "1" * 40
    refused = start(client, runner, ref=stray)
    assert refused.status_code == 403
    assert "is on no branch or tag that is known here" in refused.json()["detail"]
    run = start(client, admin, ref=stray).json()
    assert (run["state"], run["trusted"]) == ("queued", False)


def test_a_branch_whose_name_looks_like_a_hash_is_a_branch(
    client: TestClient, runner: Headers, history: History, db: Database
) -> None:
    with db.session() as session:
        session.add(Head(subject="te", ref="tags/deadbeef", sha=RACE))
    run = start(client, runner, ref="deadbeef").json()
    assert (run["state"], run["trusted"], run["ref"]) == ("queued", True, "deadbeef")


def test_a_matrix_that_merges_a_forks_pull_request_takes_someone_who_vouches_for_it(
    client: TestClient, runner: Headers, admin: Headers, history: History
) -> None:
    def merging(number: int) -> dict[str, Any]:
        return {"name": "m", "cells": [{"variant": f"pr-{number}+owned-stream"}]}

    for number in (12, 99):
        refused = start(client, runner, ref="main", matrix=merging(number))
        assert refused.status_code == 403
        assert f"the matrix merges pull request {number}" in refused.json()["detail"]
    assert start(client, admin, ref="main", matrix=merging(12)).json()["trusted"] is False
    assert start(client, runner, ref="main", matrix=merging(13)).json()["trusted"] is True


# Cancelling


def test_a_run_is_cancelled_once(client: TestClient, runner: Headers) -> None:
    run = start(client, runner, ref="main").json()["id"]
    answer = client.post(f"/api/v1/runs/{run}/cancel", headers=runner)
    assert answer.status_code == 200
    assert (answer.json()["state"], answer.json()["reason"]) == ("cancelled", "cancelled by runner")
    again = client.post(f"/api/v1/runs/{run}/cancel", headers=runner)
    assert again.status_code == 409
    assert again.json()["detail"] == f"run {run} has ended already: it is cancelled"


def test_a_run_that_is_not_there_is_not_cancelled(client: TestClient, runner: Headers) -> None:
    assert client.post(f"/api/v1/runs/{uuid4()}/cancel", headers=runner).status_code == 404


def test_nothing_is_left_of_a_run_that_could_not_be_ordered(
    client: TestClient, runner: Headers, db: Database
) -> None:
    with db.session() as session:
        session.connection().execute(text("DROP TABLE procrastinate_jobs CASCADE"))
    answer = start(client, runner, ref="main")
    assert answer.status_code == 500
    assert "procrastinate" not in answer.text
    with db.session() as session:
        assert session.exec(select(Run)).all() == []
        assert session.exec(select(RunCell)).all() == []
