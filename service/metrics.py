"""What Prometheus scrapes: the queue, runs, trials, workers and GitHub, and how fast requests are.

What the database knows is asked at a scrape, in a few queries of which none looks at trials, and
kept for some seconds: two scrapers cost no more than one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Histogram, Info, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner.outcome import Outcome
from service.database import Database
from service.tables import MessageState, RunState, WorkerState, column_of

CACHE_S = 5.0
"""How long an answer of the database is good for."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Everything that is measured of one service."""

    def __init__(self, database: Database) -> None:
        self.registry = CollectorRegistry()
        self.requests = Histogram(
            "racewatch_http_request_seconds",
            "Seconds from a request to the end of its response (of a live stream: to its begin)",
            ["method", "route", "status"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        Info("racewatch", "What runs here", registry=self.registry).info(
            {"version": version("racewatch")}
        )
        ProcessCollector(registry=self.registry)
        self.registry.register(DatabaseCollector(database))

    def text(self) -> bytes:
        """All of it, in Prometheus' text format."""
        return generate_latest(self.registry)


class DatabaseCollector(Collector):
    """Asks the database at a scrape; one that does not answer costs its own metrics only."""

    def __init__(self, database: Database, cache_s: float = CACHE_S) -> None:
        self._database = database
        self._cache_s = cache_s
        self._lock = threading.Lock()
        self._asked = 0.0
        self._kept: list[Metric] = []

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry would ask the database for it when the service starts."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """What was found at most CACHE_S ago."""
        with self._lock:
            if not self._kept or time.monotonic() - self._asked >= self._cache_s:
                self._kept = self._ask()
                self._asked = time.monotonic()
            kept = self._kept
        yield from kept

    def _ask(self) -> list[Metric]:
        up = GaugeMetricFamily("racewatch_database_up", "1 where the database answers, else 0")
        try:
            with self._database.engine.connect() as connection:
                found = [*_queue(connection), *_counts(connection), *_trials(connection)]
        except SQLAlchemyError:
            up.add_metric([], 0)
            return [up]
        up.add_metric([], 1)
        return [up, *found]


def _queue(connection: Connection) -> Iterator[Metric]:
    jobs = GaugeMetricFamily("racewatch_jobs", "Jobs by queue and state", labels=["queue", "state"])
    oldest = GaugeMetricFamily(
        "racewatch_oldest_waiting_job_seconds",
        "Age of the job of a queue that is due and has waited longest",
        labels=["queue"],
    )
    for queue, state, count, age in connection.execute(text(QUEUES)):
        jobs.add_metric([queue, state], count)
        if age is not None:
            oldest.add_metric([queue], max(0.0, float(age)))
    yield jobs
    yield oldest


def _counts(connection: Connection) -> Iterator[Metric]:
    """States that nothing is in count 0, so that a rule on them has something to look at."""
    plain = (
        ("racewatch_runs", "Runs by state", "runs", RunState),
        ("racewatch_workers", "Workers by state", "workers", WorkerState),
        ("racewatch_outbox_messages", "Messages to the outside by state", "outbox", MessageState),
    )
    for name, help_text, table, states in plain:
        metric = GaugeMetricFamily(name, help_text, labels=["state"])
        found = {
            str(state): count
            for state, count in connection.execute(
                text(f"SELECT state, count(*) FROM {table} GROUP BY state")
            )
        }
        for state in states:
            metric.add_metric([str(state)], found.get(str(state), 0))
        yield metric
    deliveries = CounterMetricFamily(
        "racewatch_deliveries", "Webhook deliveries that were stored, by event", labels=["event"]
    )
    for event, count in connection.execute(
        text("SELECT event, count(*) FROM deliveries GROUP BY event")
    ):
        deliveries.add_metric([event], count)
    yield deliveries


def _trials(connection: Connection) -> Iterator[Metric]:
    """From the counts that measurements keep, never from the trials themselves."""
    trials = CounterMetricFamily(
        "racewatch_trials",
        "Trials by subject, kind of device and outcome",
        labels=["subject", "device", "outcome"],
    )
    for subject, device, *counts in connection.execute(text(_TRIALS)):
        for outcome, count in zip(Outcome, counts, strict=True):
            trials.add_metric([subject, device, str(outcome)], int(count))
    yield trials


QUEUES = """
SELECT j.queue_name, j.status::text, count(*),
       extract(epoch FROM now() - min(greatest(e.at, j.scheduled_at))
               FILTER (WHERE j.status = 'todo' AND coalesce(j.scheduled_at, now()) <= now()))
FROM procrastinate_jobs j
LEFT JOIN LATERAL (
    SELECT at FROM procrastinate_events WHERE job_id = j.id AND type = 'deferred' LIMIT 1
) e ON j.status = 'todo'
WHERE j.status IN ('todo', 'doing')
GROUP BY j.queue_name, j.status
ORDER BY j.queue_name, j.status
"""
"""Queue, state, jobs and seconds that the oldest due one waits (null where none is due)."""
_SUMS = ", ".join(f"sum(m.{column_of(outcome)})" for outcome in Outcome)
_TRIALS = f"""
SELECT b.subject, e.device_kind, {_SUMS}
FROM measurements m
JOIN builds b ON b.id = m.build_id
JOIN environments e ON e.id = m.environment_id
GROUP BY b.subject, e.device_kind
"""


class RequestTimes:
    """Measures every request under its route's template, never under its path: ids are endless."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        status, seconds = 0, 0.0

        async def watched(message: Message) -> None:
            nonlocal status, seconds
            if message["type"] == "http.response.start":
                status = message["status"]
                if _is_stream(message):
                    seconds = time.perf_counter() - began
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            self._metrics.requests.labels(
                scope["method"] if scope["method"] in _METHODS else "other",
                _template(scope),
                str(status or 500),
            ).observe(seconds or time.perf_counter() - began)


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def _is_stream(start: Message) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in start.get("headers", ())
    )


def _template(scope: Scope) -> str:
    return getattr(scope.get("route"), "path", None) or "none"
