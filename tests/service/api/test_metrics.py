"""GET /metrics: what the database counts, and how fast requests are."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import event, text
from starlette.testclient import TestClient

from service import metrics
from service.database import Database
from service.metrics import DatabaseCollector
from service.queue import wake
from service.tables import Message, MessageState
from tests.service.api.history import RACE, History


def scraped(client: TestClient) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    answer = client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_what_the_database_counts(client: TestClient, history: History, db: Database) -> None:
    with db.session() as session:
        wake(session, "prepare", "build-te", lock="a", run="x")
        session.add(Message(kind="status", topic="t", state=MessageState.FAILED))
        session.connection().execute(
            text(
                "INSERT INTO deliveries (id, event, action, repository, payload, effect, "
                "received_at) VALUES ('1', 'push', '', '', '{}', '', now())"
            )
        )
    found = scraped(client)
    assert found["racewatch_database_up", ()] == 1
    assert found["racewatch_jobs", (("queue", "build-te"), ("state", "todo"))] == 1
    assert found["racewatch_oldest_waiting_job_seconds", (("queue", "build-te"),)] >= 0
    assert found["racewatch_runs", (("state", "complete"),)] == 4
    assert found["racewatch_runs", (("state", "queued"),)] == 0
    assert found["racewatch_workers", (("state", "live"),)] == 1
    assert found["racewatch_outbox_messages", (("state", "failed"),)] == 1
    assert found["racewatch_outbox_messages", (("state", "waiting"),)] == 0
    assert found["racewatch_deliveries_total", (("event", "push"),)] == 1

    def trials(outcome: str) -> float:
        labels = (("device", "cuda"), ("outcome", outcome), ("subject", "te"))
        return found["racewatch_trials_total", labels]

    assert (trials("pass"), trials("capture_error"), trials("hang")) == (86, 6, 0)
    assert found["process_resident_memory_bytes", ()] > 0


def test_a_scheduled_job_does_not_wait_before_its_time(client: TestClient, db: Database) -> None:
    with db.session() as session:
        wake(session, "prepare", "build-te", lock="a", run="x")
        session.connection().execute(
            text("UPDATE procrastinate_jobs SET scheduled_at = now() + interval '1 hour'")
        )
    names = {name for name, _ in scraped(client)}
    assert "racewatch_jobs" in names
    assert "racewatch_oldest_waiting_job_seconds" not in names


def test_requests_are_measured_by_route_and_not_by_path(
    client: TestClient, history: History
) -> None:
    client.get(f"/api/v1/runs/{history.runs[RACE]}")
    client.get("/api/v1/runs/x")
    for n in range(5):
        client.get(f"/no/such/{n}")
    client.request("BREW", "/api/v1/runs")
    counts = {
        labels: value
        for (name, labels), value in scraped(client).items()
        if name == "racewatch_http_request_seconds_count"
    }

    def count(method: str, route: str, status: str) -> float:
        return counts[("method", method), ("route", route), ("status", status)]

    assert count("GET", "/api/v1/runs/{run_id}", "200") == 1
    assert count("GET", "/api/v1/runs/{run_id}", "422") == 1
    assert count("GET", "none", "404") == 5
    assert count("other", "/api/v1/runs", "405") == 1


def test_two_scrapes_in_a_row_ask_the_database_once(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def note(*arguments: Any) -> None:
        asked.append(arguments[2])

    event.listen(db.engine, "before_cursor_execute", note)
    moment = [1_000.0]
    monkeypatch.setattr(metrics.time, "monotonic", lambda: moment[0])  # time, which is made up
    collector = DatabaseCollector(db, cache_s=5.0)
    list(collector.collect())
    first = len(asked)
    assert 0 < first <= 8
    assert not any("FROM trials" in statement for statement in asked)
    moment[0] += 4.9
    list(collector.collect())
    assert len(asked) == first
    moment[0] += 0.2
    list(collector.collect())
    assert len(asked) == 2 * first
