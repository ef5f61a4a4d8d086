"""Bisections through the API: who may start one and of what, what is told of it, its end."""

from __future__ import annotations

import csv
import io
import threading
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text
from sqlmodel import select
from starlette.testclient import TestClient

from service import bisection
from service.app import create_app
from service.database import Database
from service.settings import ServiceSettings
from service.tables import OPEN_STATES, Bisection, Head, Pull, Run, RunState
from tests.service.api.history import FORK_HEAD, OWN_HEAD, RACE, History
from tests.service.reading import bisected, showcase
from tests.service.reading.bisected import Bisections, Made, Truth

Headers = dict[str, str]
ENDS = {"subject": "te", "good": "v2.7", "bad": "v2.9", "cell": "stock, background"}


@pytest.fixture(scope="module")
def shown(
    postgres: str, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[TestClient, Made]]:
    """One of each kind, which these tests leave as it is."""
    with showcase.database(postgres, template) as database:
        made = bisected.make(database)
        settings = ServiceSettings(home=tmp_path_factory.mktemp("home"), config=None)
        with TestClient(create_app(settings, database)) as client:
            yield client, made


def start(client: TestClient, headers: Headers, **body: Any) -> Any:
    return client.post("/api/v1/bisections", json={**ENDS, **body}, headers=headers)


def jobs(database: Database) -> list[tuple[str, str]]:
    with database.session() as session:
        found = session.connection().execute(
            text("SELECT task_name, queue_name FROM procrastinate_jobs")
        )
        return [(name, queue) for name, queue in found]


def get(shown: tuple[TestClient, Made], name: str) -> Any:
    client, made = shown
    answer = client.get(f"/api/v1/bisections/{made.ids[name]}")
    assert answer.status_code == 200
    return answer.json()


# Starting


def test_a_bisection_is_stored_with_the_job_that_works_out_its_range(
    client: TestClient, runner: Headers, db: Database
) -> None:
    answer = start(client, runner)
    assert answer.status_code == 201
    found = answer.json()
    assert answer.headers["location"] == f"/api/v1/bisections/{found['id']}"
    again = client.get(answer.headers["location"]).json()
    assert {**again, "elapsed_s": 0} == {**found, "elapsed_s": 0}
    assert (found["state"], found["requested_by"], found["queue"]) == ("queued", "runner", "sm90")
    assert (found["matrix"], found["cell"]) == ("issue-3863", "stock, background")
    assert found["variant"]["variant"] == "stock"
    assert (found["confidence"], found["budget_s"]) == (0.99, None)
    assert (found["ranges"], found["verdict"], found["stage"]) == ([], None, None)
    assert found["next"] == {"text": "working out the range", "probes": []}
    assert jobs(db) == [("bisect", "git-te")]


def test_a_matrix_of_ones_own_and_what_it_shall_cost(client: TestClient, runner: Headers) -> None:
    mine = {"name": "mine", "cells": [{"variant": "stock", "hold_ms": 20, "name": "held"}]}
    answer = start(
        client, runner, matrix=mine, cell="held", confidence=0.9, budget_s=7200, observe="swallow"
    )
    assert answer.status_code == 201
    found = answer.json()
    assert (found["matrix"], found["cell"], found["variant"]["hold_ms"]) == ("mine", "held", 20)
    assert (found["confidence"], found["budget_s"]) == (0.9, 7200)
    assert (found["observe"], found["cause"]) == ("swallow", None)


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        ({"subject": "other"}, 404, "there is no tracked subject 'other'"),
        ({"cell": "mine"}, 422, "matrix issue-3863: no cell 'mine'; it has stock, background;"),
        ({"matrix": "mine"}, 422, "body, matrix: must be one of"),
        ({"bad": "v2.7"}, 422, "body: good and bad are both 'v2.7': nothing to bisect"),
        ({"good": ""}, 422, "body, good: must have at least 1 character"),
        ({"good": "--output=x"}, 422, "body, good: must be a branch, a tag, a commit or pull/N"),
        ({"bad": "refs/heads/x"}, 422, "body, bad: give a branch, a tag, a commit or pull/N"),
        ({"bad": "FETCH_HEAD"}, 422, "body, bad: give a branch, a tag, a commit or pull/N"),
        ({"confidence": 0.5}, 422, "body, confidence: must be greater than 0.5, got 0.5"),
        ({"confidence": 1}, 422, "body, confidence: must be less than 1, got 1.0"),
        ({"confidence": "0.9"}, 422, "body, confidence: must be a valid number, got '0.9'"),
        ({"budget_s": 0}, 422, "body, budget_s: must be greater than 0, got 0.0"),
        ({"budget_s": True}, 422, "body, budget_s: must be a valid number, got True"),
        ({"observe": "luck"}, 422, "body, observe: must be 'failure' or 'swallow', got 'luck'"),
        ({"queue": "sm12"}, 409, "queue: te is tracked on sm90, and no worker takes 'sm12'"),
        ({"budget": 7200}, 422, "body, budget: is not known, got 7200"),
    ],
)
def test_what_cannot_be_bisected_is_refused_with_one_sentence(
    client: TestClient,
    runner: Headers,
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


def test_a_number_that_json_cannot_have_is_refused(client: TestClient, runner: Headers) -> None:
    body = '{"subject": "te", "good": "a", "bad": "b", "cell": "stock, background", "budget_s": %s}'
    headers = {**runner, "Content-Type": "application/json"}
    for value in ("Infinity", "NaN", "1e999"):
        answer = client.post("/api/v1/bisections", content=body % value, headers=headers)
        assert answer.status_code in (400, 422), value


def test_it_takes_a_token_that_may_run(client: TestClient, approver: Headers) -> None:
    assert start(client, {}).status_code == 401
    refused = start(client, approver)
    assert refused.status_code == 403
    assert refused.json()["detail"] == "token approver lacks the scope run; it has approve"
    assert client.post(f"/api/v1/bisections/{uuid4()}/cancel").status_code == 401


# Whose code it is


@pytest.mark.parametrize(
    ("end", "sentence"),
    [
        ("pull/12", "good is pull request 12, which is a fork's"),
        ("refs/pull/12/head", "good is pull request 12, which is a fork's"),
        ("pull/99", "good is pull request 99, which is not known here"),
        (FORK_HEAD, f"good: commit {FORK_HEAD} is a fork's: a bisection runs the repository's own"),
        (FORK_HEAD[:9], f"good: commit {FORK_HEAD[:9]} is a fork's"),
    ],
)
def test_no_fork_s_code_is_bisected_by_whoever(
    client: TestClient, admin: Headers, history: History, db: Database, end: str, sentence: str
) -> None:
    answer = start(client, admin, good=end)
    assert answer.status_code == 409
    assert answer.json()["detail"].startswith(sentence)
    assert jobs(db) == []


def test_a_cell_that_merges_a_fork_s_pull_request_is_not_bisected(
    client: TestClient, admin: Headers, history: History
) -> None:
    def merging(number: int) -> Any:
        cell = {"variant": f"pr-{number}+owned-stream", "name": "merged"}
        return start(client, admin, matrix={"name": "m", "cells": [cell]}, cell="merged")

    refused = merging(12)
    assert refused.status_code == 409
    assert refused.json()["detail"].startswith(
        "cell 'merged' merges pull request 12, which is a fork's"
    )
    assert merging(13).status_code == 201


def test_commits_of_branches_and_own_pull_requests_are(
    client: TestClient, runner: Headers, history: History, db: Database
) -> None:
    found = start(client, runner, good=RACE[:9], bad="pull/13").json()
    assert (found["good"], found["bad"]) == (RACE, "pull/13")
    assert start(client, runner, good=OWN_HEAD[:12]).json()["good"] == OWN_HEAD
    with db.session() as session:
        session.add(Head(subject="te", ref="tags/deadbeef", sha=RACE))
    assert start(client, runner, good="deadbeef").json()["good"] == "deadbeef"
    with db.session() as session:
        session.get_one(Pull, ("te", 13)).fork = True
    assert start(client, runner, good=OWN_HEAD).status_code == 409


def test_whether_a_branch_has_a_commit_that_is_not_known_here_is_found_out_by_a_worker(
    client: TestClient, runner: Headers, history: History, db: Database
) -> None:
    answer = start(client, runner, good="1" * 40, bad=OWN_HEAD)
    assert answer.status_code == 201
    with db.session() as session:
        told = bisection.asked(session, UUID(answer.json()["id"]), "range")
    assert told == {"own": [OWN_HEAD]}


def test_of_a_history_that_racewatch_makes_any_commit_is(
    client: TestClient, runner: Headers
) -> None:
    answer = start(client, runner, subject="demo", good="1" * 40, bad="fix", queue="emulated")
    assert answer.status_code == 201
    assert answer.json()["emulated"] is True


# Under a key


def test_the_same_key_and_body_give_the_same_bisection(
    client: TestClient, runner: Headers, admin: Headers, history: History, db: Database
) -> None:
    key = {"Idempotency-Key": "main 17"}
    first = start(client, {**runner, **key}, good=RACE[:8], budget_s=600)
    again = start(client, {**runner, **key}, good=RACE[:8], budget_s=600)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    assert first.headers["location"] == again.headers["location"]
    assert jobs(db) == [("bisect", "git-te")]
    for other in (
        {"good": "v2.8"},
        {"bad": "main"},
        {"cell": "stock, alone"},
        {"confidence": 0.9},
        {"budget_s": 601},
        {"queue": "emulated", "subject": "demo"},
    ):
        refused = start(client, {**runner, **key}, **{"good": RACE[:8], "budget_s": 600, **other})
        assert refused.status_code == 422, other
        assert "Idempotency-Key was used for another request" in refused.json()["detail"]
    other_token = start(client, {**admin, **key}, good=RACE[:8], budget_s=600)
    assert other_token.json()["id"] != first.json()["id"]
    assert start(client, runner).json()["id"] != start(client, runner).json()["id"]


def test_a_request_that_comes_twice_at_once_starts_one_bisection(
    client: TestClient, runner: Headers, db: Database
) -> None:
    answers: list[Any] = []
    headers = {**runner, "Idempotency-Key": "k"}
    threads = [
        threading.Thread(target=lambda: answers.append(start(client, headers))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer.status_code for answer in answers) == [200] * 5 + [201]
    assert len({answer.json()["id"] for answer in answers}) == 1
    with db.session() as session:
        assert len(session.exec(select(Bisection)).all()) == 1


# Cancelling


def test_a_bisection_is_cancelled_once_with_its_probes(
    client: TestClient, runner: Headers, db: Database
) -> None:
    with db.session() as session:
        them = Bisections(session)
        identity = them.order("te", "sm90", "v2.7", "v2.9")
        searched = bisected.path("te", 9)
        them.ranged(identity, searched)
        assert len(them.open_probes(identity)) == 2
    answer = client.post(f"/api/v1/bisections/{identity}/cancel", headers=runner)
    assert answer.status_code == 200
    found = answer.json()
    assert (found["state"], found["reason"]) == ("cancelled", "cancelled by runner")
    assert (found["running"], found["next"]) == ([], None)
    with db.session() as session:
        assert session.exec(select(Run).where(Run.state.in_(OPEN_STATES))).all() == []  # type: ignore[attr-defined]
    again = client.post(f"/api/v1/bisections/{identity}/cancel", headers=runner)
    assert again.status_code == 409
    assert again.json()["detail"] == f"bisection {identity} has ended already: it is cancelled"


def test_a_bisection_that_is_not_there(client: TestClient, runner: Headers) -> None:
    for address in ("", "/observations", "/posterior"):
        assert client.get(f"/api/v1/bisections/{uuid4()}{address}").status_code == 404
    assert client.post(f"/api/v1/bisections/{uuid4()}/cancel", headers=runner).status_code == 404
    assert client.get("/api/v1/bisections/7").status_code == 422


# What is told


def test_what_was_found_has_its_culprit_both_rates_and_what_it_cost(
    shown: tuple[TestClient, Made],
) -> None:
    found = get(shown, "found")
    verdict = found["verdict"]
    assert (found["state"], verdict["kind"]) == ("done", "culprit")
    assert [commit["sha"] for commit in verdict["commits"]] == [shown[1].culprit]
    assert verdict["probability"] > 0.99
    before, after = verdict["before"], verdict["after"]
    assert before["k"] == 0
    assert after["interval"][0] < 0.3 < after["interval"][1]
    assert after["text"] in verdict["text"]
    assert before["n"] + after["n"] <= found["cost"]["trials"]
    assert found["cost"]["builds"] == sum(seen["build_s"] > 0 for seen in found["observations"])
    assert found["cost"]["trials"] == sum(seen["n"] for seen in found["observations"])
    assert (found["next"], found["running"], found["stage"]) == (None, [], "done")
    assert [check["kind"] for check in found["checks"]] == ["neighbours", "revert"]
    assert {check["state"] for check in found["checks"]} == {"passed"}


def test_a_posterior_is_of_every_commit_that_may_be_the_culprit(
    shown: tuple[TestClient, Made],
) -> None:
    (searched,) = get(shown, "searching")["ranges"]
    classes = searched["classes"]
    assert searched["text"] == "97 commits in 73 classes by build"
    assert len(classes) == 73
    assert classes[0]["probability"] is None
    whole = searched["no_change"] + sum(one["probability"] for one in classes[1:])
    assert whole == pytest.approx(1)
    assert sum(len(one["same_build"]) + 1 for one in classes) == 97
    broken = [one for one in classes if one["broken"]]
    assert all(one["n"] == 0 for one in broken)
    measured = [one for one in classes if one["n"]]
    assert measured
    assert all(one["interval"][0] <= one["k"] / one["n"] <= one["interval"][1] for one in measured)


def test_what_goes_on_is_told_with_its_runs_and_what_follows(
    shown: tuple[TestClient, Made],
) -> None:
    client, _ = shown
    found = get(shown, "searching")
    assert found["stage"] == "search"
    assert found["running"]
    for probe in found["running"]:
        run = client.get(f"/api/v1/runs/{probe['run']}").json()
        assert (run["origin"], run["bisection_id"]) == ("bisection", found["id"])
        page = client.get(f"/runs/{probe['run']}").text
        assert f'href="/bisections/{found["id"]}"' in page
        assert (probe["done"], probe["check"]) == (0, 0)
        assert probe["expected_s"] > 0
    assert found["next"]["text"]
    expected = found["expected"]
    assert 30 < expected["build_s"] < 300
    assert expected["builds"] > 1
    assert expected["seconds"] > expected["builds"] * expected["build_s"]
    checking = get(shown, "checking")
    assert checking["stage"] == "check"
    assert {probe["check"] for probe in checking["running"]} == {1}
    assert sum(one["suspected"] for one in checking["ranges"][0]["classes"]) == 1


def test_observations_come_in_order_with_the_run_that_each_came_of(
    shown: tuple[TestClient, Made],
) -> None:
    client, made = shown
    found = get(shown, "found")
    seen = found["observations"]
    assert [one["number"] for one in seen] == list(range(len(seen)))
    assert all(one["run"] for one in seen if one["event"] == "observation")
    assert {one["seen"] for one in seen if one["seen"]} >= {"trials", "unbuildable"}
    assert [one["event"] for one in seen].count("reverted") == 1
    searching = [one for one in seen if one["likeliest"]]
    assert searching[-1]["number"] < seen[-1]["number"]
    pages: list[Any] = []
    address: str | None = f"/api/v1/bisections/{made.ids['found']}/observations?limit=7"
    while address:
        page = client.get(address).json()
        pages += page["items"]
        address = page["next"]
    assert pages == seen


def test_a_merge_is_entered(shown: tuple[TestClient, Made]) -> None:
    found = get(shown, "merge")
    outer, inner = found["ranges"]
    assert (outer["inside"], inner["inside"]["title"]) == (
        None,
        "Merge branch 'ffi-initialize' into main",
    )
    assert [one["merge"] for one in outer["classes"]].count(True) == 1
    assert len(inner["classes"]) == 5
    assert found["emulated"] is True


@pytest.mark.parametrize(
    ("name", "state", "kind"),
    [
        ("no change", "done", "no change"),
        ("cancelled", "cancelled", None),
        ("failed", "failed", None),
        ("queued", "queued", None),
    ],
)
def test_other_ends(
    shown: tuple[TestClient, Made], name: str, state: str, kind: str | None
) -> None:
    found = get(shown, name)
    assert found["state"] == state
    assert (found["verdict"] or {"kind": None})["kind"] == kind
    assert bool(found["reason"]) == (name in ("cancelled", "failed"))


def test_the_list_is_newest_first_and_comes_in_pages(shown: tuple[TestClient, Made]) -> None:
    client, made = shown
    found: list[Any] = []
    address: str | None = "/api/v1/bisections?limit=3"
    while address:
        page = client.get(address)
        assert len(page.json()["items"]) <= 3
        found += page.json()["items"]
        address = page.json()["next"]
    assert {one["id"] for one in found} == {str(one) for one in made.ids.values()}
    assert len(found) == len(made.ids)
    moments = [one["created_at"] for one in found]
    assert moments == sorted(moments, reverse=True)
    whole = get(shown, "found")
    listed = next(one for one in found if one["id"] == whole["id"])
    assert listed == {name: whole[name] for name in listed}


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("state=queued", {"queued"}),
        ("subject=demo", {"merge", "no change", "queued"}),
        ("queue=sm90&state=running", {"searching", "checking"}),
        ("subject=te&queue=emulated", set()),
    ],
)
def test_the_list_can_be_filtered(
    shown: tuple[TestClient, Made], query: str, names: set[str]
) -> None:
    client, made = shown
    items = client.get(f"/api/v1/bisections?{query}").json()["items"]
    assert {one["id"] for one in items} == {str(made.ids[name]) for name in names}


def test_lists_come_as_csv_too(shown: tuple[TestClient, Made]) -> None:
    client, made = shown

    def table(address: str) -> list[dict[str, str]]:
        answer = client.get(f"/api/v1/bisections{address}")
        assert answer.headers["content-type"].startswith("text/csv")
        return list(csv.DictReader(io.StringIO(answer.text)))

    rows = table("?format=csv")
    assert len(rows) == len(made.ids)
    by_id = {row["id"]: row for row in rows}
    found = by_id[str(made.ids["found"])]
    assert (found["verdict"], found["culprit"]) == ("culprit", made.culprit)
    assert by_id[str(made.ids["no change"])]["culprit"] == ""

    seen = table(f"/{made.ids['found']}/observations?format=csv")
    assert len(seen) == len(get(shown, "found")["observations"])
    assert len(table(f"/{made.ids['found']}/observations?format=csv&limit=2")) == 2
    posterior = table(f"/{made.ids['found']}/posterior?format=csv")
    assert len(posterior) == 73
    assert max(posterior[1:], key=lambda row: float(row["probability"]))["sha"] == made.culprit
    assert table(f"/{made.ids['failed']}/posterior?format=csv") == []


def test_a_bisection_tells_what_each_step_changed(
    client: TestClient, runner: Headers, db: Database
) -> None:
    identity = start(client, runner).json()["id"]
    searched = bisected.path("te", 9)
    truth = Truth.of(searched, 4, 0.0, 1.0)
    with db.session() as session:
        them = Bisections(session)
        them.ranged(identity, searched)
    before = client.get(f"/api/v1/bisections/{identity}").json()
    assert before["next"]["text"] == "waiting for trials of the ends"
    assert len(before["running"]) == 2
    with db.session() as session:
        them = Bisections(session)
        for run in them.open_probes(bisection.UUID(identity)):
            them.answer(bisection.UUID(identity), run, truth)
    after = client.get(f"/api/v1/bisections/{identity}").json()
    assert len(after["observations"]) == 2
    assert after["ranges"][0]["no_change"] < 0.01 < before["ranges"][0]["no_change"]
    with db.session() as session:
        assert session.exec(select(Run).where(Run.state == RunState.COMPLETE)).all()
