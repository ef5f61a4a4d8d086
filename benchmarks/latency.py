"""Latency of the webhook and of the grid, and the service's memory, at the size of years of use.

Run by hand, on a machine that does nothing else:

    python benchmarks/latency.py [--trials 1000000] [--seconds 30]

A PostgreSQL of its own is filled with 2,000 commits x 20 cells and a million trials, a real service
answers, and every figure stands beside that of `/healthz`, which asks nothing of the database: the
ratio is what a machine's mood does not change. Deliveries are sent at fixed times whatever became
of the earlier ones (an open loop), so that a slow answer cannot hide the ones behind it.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import hmac
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
from sqlalchemy import text

from runner import matrix as matrices
from runner.matrix import Matrix
from service import rows, schema
from service.database import Database
from service.postgres import EmbeddedPostgres

SECRET = "benchmark"
COMMITS = 2_000
CELLS = 20


@dataclass(frozen=True)
class Latency:
    """Times of answers, in ms."""

    name: str
    times: tuple[float, ...]
    failed: int = 0

    def row(self, beside: Latency | None) -> str:
        """One line: how many, median, p95, p99, the largest, and the p95 beside another's."""
        p95, p99 = (self._at(q) for q in (0.95, 0.99))
        ratio = f"{p95 / beside._at(0.95):8.1f} x" if beside else ""
        return (
            f"{self.name:34} {len(self.times):6} {self.failed:6}"
            f" {statistics.median(self.times):8.1f} {p95:8.1f} {p99:8.1f} {max(self.times):8.1f}"
            f" {ratio}"
        )

    def _at(self, quantile: float) -> float:
        ordered = sorted(self.times)
        return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))]


def cells() -> Matrix:
    """Twenty cells of two programs."""
    rows_of = [
        {"variant": variant, "program": program, "hold_ms": hold, "name": f"{variant} {n} {hold}"}
        for n, program in enumerate(("norm-act-gemm", "softmax-quantize-router"))
        for variant in ("stock", "owned-stream", "ffi13", "ffi13+owned-stream", "stock")
        for hold in (0, 20)
    ]
    for n, row in enumerate(rows_of):
        row["background_period_ms"] = n
        row["name"] = f"cell {n}"
    return matrices.from_data({"name": "benchmark", "cells": rows_of})


def fill(database: Database, trials: int) -> None:
    """Commits on `main`, a build for each, a measurement for each cell, and the trials behind."""
    matrix = cells()
    with database.session() as session:
        ids = [rows.cell_row(session, cell).id for cell in matrix.cells]
    run = uuid.uuid4()
    each = max(1, trials // (COMMITS * CELLS))
    statements = f"""
    INSERT INTO environments (digest, device_kind, device_name, compute_capability, driver, jax,
        toolchain, harness) VALUES ('benchmark', 'cuda', 'NVIDIA H200', '9.0', '580.159', '0.11.2',
        'cu13-jax011', '2');
    INSERT INTO commits (subject, sha, ref, title, author, date)
        SELECT 'te', md5(n::text) || substr(md5(n::text), 1, 8), 'main',
            '[JAX] Change number ' || n || ' of a long history', 'Author ' || n % 40,
            now() - make_interval(hours => 6 * ({COMMITS} - n))
        FROM generate_series(0, {COMMITS} - 1) n;
    INSERT INTO branch_commits (subject, branch, position, commit_id)
        SELECT 'te', 'main', row_number() OVER (ORDER BY id) - 1, id FROM commits;
    INSERT INTO builds (subject, key, signature, reason, log, seconds, owned_stream_needed, facts,
        created_at) SELECT 'te', sha, '', '', '', 75, true, '{{}}', now() FROM commits;
    INSERT INTO commit_builds (commit_id, name, toolchain, architecture, state, build_id, attempts,
        reason) SELECT c.id, 'stock', 'cu13-jax011', 'sm90', 'done', b.id, 1, ''
        FROM commits c JOIN builds b ON b.key = c.sha;
    INSERT INTO measurements (build_id, cell_id, environment_id, adaptive, passed, capture_error,
        crash, hang, data_loss, wrong_output, unsupported, infra_error, build_error,
        first_trial_at, last_trial_at, watched, swallowed, swallowed_passes)
        SELECT b.id, cell, (SELECT id FROM environments), false, greatest({each} - b.id % 3, 0),
            b.id % 3, 0, 0, 0, 0, 0, 0, 0, now(), now(), {each}, b.id % 3, 0
        FROM builds b, unnest(ARRAY{ids}) cell;
    INSERT INTO runs (id, subject, commit_id, ref, head_sha, matrix_name, matrix, clean_below,
        queue, toolchain, origin, priority, state, reason, requested_by, adaptive,
        sequential, trusted, setbacks, told, notes, facts, created_at)
        SELECT '{run}', 'te', min(id), 'main', '', 'benchmark', '{{}}', 0.05, 'sm90', '',
            'backfill', 10, 'complete', '', '', false, false, true, 0, 'complete', '[]',
            '{{}}', now() FROM commits;
    INSERT INTO claims (id, run_id, state, reason, created_at, heartbeat_at)
        VALUES ('{run}', '{run}', 'done', '', now(), now());
    INSERT INTO trials (measurement_id, run_id, claim_id, index, outcome, signature, reason,
        seconds, device, recipe, digests, background_updates, times, finished_at, control)
        SELECT m.id, '{run}', '{run}', (m.id - 1) * {each} + n,
            CASE WHEN n < m.capture_error THEN 'capture_error' ELSE 'pass' END, '', '', 0.2, '0',
            'fp8-current-scaling', '[]', 64, '{{}}', now(), ''
        FROM measurements m, generate_series(0, {each} - 1) n;
    """
    with database.engine.begin() as connection:
        for statement in statements.split(";\n"):
            if statement.strip():
                connection.execute(text(statement.replace(":", r"\:").replace(r"\:\:", r"\:\:")))
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE"))


@contextmanager
def served(url: str, folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    """A service of its own on that database: its URL and its process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = folder / "racewatch.toml"
    config.write_text('[subjects.te]\ngithub = "NVIDIA/TransformerEngine"\npoll_minutes = 0\n')
    environment = {
        **os.environ,
        "DATABASE_URL": url,
        "RACEWATCH_WEBHOOK_SECRET": SECRET,
        "RACEWATCH_CONFIG": str(config),
        "RACEWATCH_HOME": str(folder),
    }
    command = [sys.executable, "-m", "service.cli", "serve", "--port", str(port)]
    with (folder / "serve.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        base = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 60
        while True:
            try:
                if httpx.get(f"{base}/readyz").status_code == 200:
                    break
            except httpx.TransportError:
                pass
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit((folder / "serve.log").read_text())
            time.sleep(0.05)
        yield base, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def asked(base: str, path: str, times: int) -> Latency:
    """One request after the other."""
    taken = []
    size = 0
    with httpx.Client(base_url=base, headers={"Accept-Encoding": "gzip"}, timeout=60) as client:
        client.get(path)
        for _ in range(times):
            began = time.perf_counter()
            answer = client.get(path)
            taken.append((time.perf_counter() - began) * 1000)
            answer.raise_for_status()
            size = len(answer.content)
    return Latency(f"{path.partition('?')[0]} ({size / 1000:.0f} kB)", tuple(taken))


async def at_rate(
    name: str, rate: float, seconds: float, send: Callable[[int], Awaitable[bool]]
) -> Latency:
    """Send at fixed times; an answer's time counts from when its request was due."""
    taken: list[float] = []
    failed = 0
    begin = time.perf_counter() + 0.1

    async def one(n: int) -> None:
        nonlocal failed
        due = begin + n / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        if not await send(n):
            failed += 1
        taken.append((time.perf_counter() - due) * 1000)

    await asyncio.gather(*(one(n) for n in range(int(rate * seconds))))
    return Latency(name, tuple(taken), failed)


def body(n: int) -> bytes:
    """A push of another commit to `main`, of the size that GitHub's have."""
    sha = hashlib.sha1(f"benchmark {n}".encode()).hexdigest()
    commit = {
        "id": sha,
        "message": "[JAX] A change\n\nWith some words on it.",
        "timestamp": "2026-11-30T12:00:00Z",
        "author": {"name": "Someone", "email": "someone@example.invalid"},
        "added": [], "removed": [], "modified": [f"docs/page-{i}.rst" for i in range(40)],
    }  # fmt: skip
    payload = {
        "ref": "refs/heads/main",
        "before": "0" * 39 + "1",
        "after": sha,
        "deleted": False,
        "head_commit": commit,
        "commits": [commit] * 5,
        "repository": {"full_name": "NVIDIA/TransformerEngine"},
        "sender": {"login": "someone", "type": "User"},
    }
    return json.dumps(payload).encode()


async def deliver(base: str, rate: float, seconds: float) -> tuple[Latency, Latency]:
    """Deliveries at a rate, and as many requests of `/healthz`."""
    limits = httpx.Limits(max_connections=100, max_keepalive_connections=100)
    async with httpx.AsyncClient(base_url=base, limits=limits, timeout=60) as client:

        async def webhook(n: int) -> bool:
            data = body(n)
            signature = hmac.new(SECRET.encode(), data, hashlib.sha256).hexdigest()
            headers = {
                "Content-Type": "application/json",
                "X-GitHub-Delivery": str(uuid.uuid4()),
                "X-GitHub-Event": "push",
                "X-Hub-Signature-256": f"sha256={signature}",
            }
            answer = await client.post("/webhooks/github", content=data, headers=headers)
            return answer.status_code == 202

        async def health(n: int) -> bool:
            return (await client.get("/healthz")).status_code == 200

        beside = await at_rate(f"/healthz at {rate:g}/s", rate, seconds, health)
        return await at_rate(f"deliveries at {rate:g}/s", rate, seconds, webhook), beside


def main() -> None:
    """Fill, serve, ask, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--pages", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="racewatch-benchmark-") as scratch:
        folder = Path(scratch)
        folder.chmod(0o755)
        with EmbeddedPostgres(folder / "database") as server:
            schema.upgrade(server.url)
            database = Database(server.url)
            began = time.monotonic()
            fill(database, options.trials)
            print(f"filled in {time.monotonic() - began:.0f} s", flush=True)
            database.close()
            with served(server.url, folder) as (base, process):
                report(base, process, options)


def report(base: str, process: psutil.Process, options: argparse.Namespace) -> None:
    """Ask and print."""
    before = process.memory_info().rss
    busy = process.cpu_times()
    health = asked(base, "/healthz", options.pages)
    pages = [
        asked(base, "/?subject=te", options.pages),
        asked(base, "/?subject=te&page=10", options.pages),
        asked(base, "/api/v1/cells?subject=te&branch=main", options.pages // 2),
    ]
    hook, beside = asyncio.run(deliver(base, options.rate, options.seconds))
    spent = process.cpu_times()
    print(
        f"{'':34} {'n':>6} {'failed':>6} {'median':>8} {'p95':>8} {'p99':>8} {'max':>8}"
        "   p95 beside /healthz"
    )
    for latency, other in (
        (health, None),
        *((p, health) for p in pages),
        (beside, None),
        (hook, beside),
    ):
        print(latency.row(other))
    after = process.memory_info().rss
    cpu = spent.user + spent.system - busy.user - busy.system
    print(f"processor time of the service for all of it: {cpu:.1f} s")
    print(f"memory of the service: {before / 1e6:.0f} MB at first, {after / 1e6:.0f} MB at the end")


if __name__ == "__main__":
    main()
