"""A cell's trend, failures by signature, and a measurement's trials, as the API writes them."""

from __future__ import annotations

import csv
import io

import pytest
from sqlmodel import select
from starlette.testclient import TestClient

from service.database import Database
from service.tables import Cell, Measurement
from tests.service.api.history import FIX, GOOD, RACE, History


@pytest.fixture
def cell(db: Database, history: History) -> int:
    """The id of the history's one cell."""
    with db.session() as session:
        return session.exec(select(Cell.id)).one() or 0


def lines(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_a_trend_has_its_points_and_its_changes(client: TestClient, cell: int) -> None:
    told = client.get(f"/api/v1/trend?subject=te&cell={cell}").json()
    points = [(point["commit"]["sha"], point["k"], point["n"]) for point in told["points"]]
    assert points == [(GOOD, 0, 72), (RACE, 6, 10), (FIX, 0, 10)]
    rise, fall = sorted(told["changes"], key=lambda change: str(change["direction"] == "fall"))
    assert (rise["direction"], rise["commit"]["sha"]) == ("rise", RACE)
    assert (rise["before"]["k"], rise["before"]["n"]) == (0, 72)
    assert (rise["oldest"], rise["newest"]) == (1, 1)
    assert rise["p"] < 0.001
    assert (fall["direction"], fall["commit"]["sha"]) == ("fall", FIX)
    assert (told["queue"], told["emulated"], told["older"]) == ("sm90", False, None)


def test_a_trend_as_csv(client: TestClient, cell: int) -> None:
    answer = client.get(f"/api/v1/trend?subject=te&cell={cell}&format=csv")
    assert answer.headers["content-type"].startswith("text/csv")
    told = lines(answer.text)
    assert [(line["position"], line["k"], line["n"]) for line in told] == [
        ("0", "0", "72"), ("1", "6", "10"), ("2", "0", "10"),
    ]  # fmt: skip
    assert {line["variant"] for line in told} == {"stock"}


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("subject=te&cell=99999", 404),
        ("subject=te&cell={cell}&branch=nowhere", 404),
        ("subject=te&cell={cell}&queue=sm80", 404),
        ("subject=te", 422),
        ("subject=te&cell={cell}&odd=1", 422),
    ],
)
def test_no_such_trend_is_a_problem(client: TestClient, cell: int, query: str, status: int) -> None:
    answer = client.get(f"/api/v1/trend?{query.format(cell=cell)}")
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"


def test_signatures_are_counted_with_first_and_last(client: TestClient, history: History) -> None:
    told = client.get("/api/v1/signatures?subject=te").json()
    assert told["more"] is False
    assert sum(item["count"] for item in told["items"]) == 6
    (first,) = {item["first"]["sha"] for item in told["items"]}
    assert first == RACE
    assert client.get("/api/v1/signatures?subject=demo").json()["items"] == []
    as_csv = lines(client.get("/api/v1/signatures?format=csv").text)
    assert sum(int(line["count"]) for line in as_csv) == 6
    assert client.get("/api/v1/signatures?limit=1").json()["items"] == told["items"][:1]


def test_signatures_are_found_by_their_words(client: TestClient, history: History) -> None:
    told = client.get("/api/v1/signatures").json()["items"]
    word = told[0]["signature"].split()[0]
    found = client.get("/api/v1/signatures", params={"text": word.swapcase()}).json()["items"]
    assert found == [one for one in told if word in one["signature"]] != []
    assert client.get(f"/api/v1/signatures?text={word}+nowhere").json()["items"] == []


def test_a_measurement_has_its_counts_and_trials(
    client: TestClient, db: Database, history: History
) -> None:
    with db.session() as session:
        race = session.exec(select(Measurement).where(Measurement.passed == 4)).one()
    told = client.get(f"/api/v1/measurements/{race.id}").json()
    assert (told["k"], told["n"], told["commits"]) == (6, 10, [RACE])
    assert len(told["trials"]) == 10
    passed = client.get(f"/api/v1/measurements/{race.id}?outcome=pass").json()
    assert {trial["outcome"] for trial in passed["trials"]} == {"pass"}
    assert passed["n"] == 10, "counts are all trials'"
    as_csv = lines(client.get(f"/api/v1/measurements/{race.id}?format=csv").text)
    assert [int(line["id"]) for line in as_csv] == [trial["id"] for trial in told["trials"]]
    assert client.get("/api/v1/measurements/99999").status_code == 404
