"""The service and its workers as real processes, on a database of the test's own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import httpx
import pytest
from sqlmodel import col, func, select

from runner import matrix as matrices
from runner.demo_subject import DemoSubject
from runner.matrix import Matrix
from runner.subject import Folders, Options, Request
from service.database import Database
from service.submit import RunRequest, submit
from service.tables import (
    ENDED_STATES,
    Measurement,
    Run,
    RunCell,
    Trial,
    Worker,
    WorkerState,
)
from tests.conftest import Eventually
from tests.service.github.deliveries import REPOSITORY, SECRET

CONFIG = f"""
[subjects.demo]
github = "{REPOSITORY}"
queues = ["emulated"]
pull_matrix = "quick"
push_matrix = "quick"
poll_minutes = 0
"""
QUICK = {"HEARTBEAT_S": "0.3", "WORKER_LOST_S": "6", "SWEEP_S": "0.5", "DRAIN_S": "20"}
"""Settings that make losses be noticed soon."""
ANSWER_S = 60.0


@dataclass
class Processes:
    """Starts commands of Racewatch on one database, and kills what is left of them at the end."""

    database: Database
    environment: Mapping[str, str]
    port: int
    folder: Path
    eventually: Eventually
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *arguments: str, code: str = "", **more: str) -> subprocess.Popen[bytes]:
        """Start a command in a session of its own; with `code`, after that Python code ran."""
        begin = f"import sys\nfrom service.cli import main\nsys.argv[1:] = {arguments!r}"
        run = f"{begin}\n{code}\nmain()"
        number = len(self.started)
        with (self.folder / f"process-{number}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", run],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment, **more},
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def worker(self, name: str, *options: str, **more: str) -> subprocess.Popen[bytes]:
        """Start a worker for the demo subject and wait until it is registered."""
        process = self.start("worker", "--subject", "demo", "--name", name, *options, **more)
        self.eventually(lambda: self.worker_row(name) is not None, f"worker {name} registers")
        return process

    def worker_row(self, name: str) -> Worker | None:
        """The row of the live worker of that name."""
        with self.database.session() as session:
            return session.exec(
                select(Worker).where(Worker.name == name, Worker.state == WorkerState.LIVE)
            ).first()

    def service(self, code: str = "", **more: str) -> subprocess.Popen[bytes]:
        """Start the service and wait until it is ready."""
        process = self.start("serve", "--port", str(self.port), code=code, **more)

        def ready() -> bool:
            assert process.poll() is None, self.logs()
            try:
                return httpx.get(f"{self.url}/readyz").status_code == 200
            except httpx.TransportError:
                return False

        self.eventually(ready, "the service is ready")
        return process

    @property
    def url(self) -> str:
        """Where the service answers."""
        return f"http://127.0.0.1:{self.port}"

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> httpx.Response:
        """Deliver something to the service, however busy this host is."""
        return httpx.post(f"{self.url}{path}", content=body, headers=headers, timeout=ANSWER_S)

    def logs(self) -> str:
        """What all processes have printed."""
        return "\n".join(
            f"== {path.name}\n{path.read_text(errors='replace')[-6000:]}"
            for path in sorted(self.folder.glob("process-*.log"))
        )

    def submit(self, matrix: Matrix, ref: str = "race") -> UUID:
        """Order a run of a commit of the demo."""
        with self.database.session() as session:
            request = RunRequest(subject="demo", matrix=matrix, queue="emulated", ref=ref)
            return submit(session, request).id

    def run(self, run: UUID) -> Run:
        """The run's row."""
        with self.database.session() as session:
            return session.get_one(Run, run)

    def trials(self, run: UUID) -> list[Trial]:
        """The run's stored trials, without those that it added."""
        with self.database.session() as session:
            return list(
                session.exec(
                    select(Trial)
                    .where(Trial.run_id == run, col(Trial.run_cell_id).is_not(None))
                    .order_by(col(Trial.id))
                )
            )

    def ends(self, run: UUID, seconds: int = 120) -> Run:
        """Wait for the run's end."""

        def ended() -> bool:
            return self.run(run).state in ENDED_STATES

        try:
            for _ in range(seconds // 60):
                try:
                    self.eventually(ended, "the run ends")
                    break
                except AssertionError:
                    continue
            assert ended(), "the run does not end"
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.run(run)!r}\n{self.logs()}") from None
        return self.run(run)

    def counted_once(self, run: UUID) -> None:
        """Every cell of the run has the trials that were wanted, each stored and counted once."""
        with self.database.session() as session:
            for cell in session.exec(select(RunCell).where(RunCell.run_id == run)):
                if cell.outcome is not None:  # it had nothing to run, and says why
                    continue
                measurement = session.get_one(Measurement, cell.measurement_id)
                stored = session.exec(
                    select(func.count())
                    .select_from(Trial)
                    .where(Trial.measurement_id == measurement.id)
                ).one()
                assert sum(measurement.counts.values()) == stored
                assert measurement.n == cell.wanted, (cell.name, measurement.counts)

    def kill_all(self) -> None:
        """End what still runs."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()


def matrix_of(*cells: Mapping[str, object], name: str = "test") -> Matrix:
    """A matrix of such cells."""
    return matrices.from_data({"name": name, "cells": [dict(cell) for cell in cells]})


@pytest.fixture
def environment(home: Path, compiler: str, tmp_path: Path) -> dict[str, str]:
    """What commands of this test have in their environment besides."""
    config = tmp_path / "racewatch.toml"
    config.write_text(CONFIG)
    own = {
        "RACEWATCH_HOME": str(home),
        "RACEWATCH_CONFIG": str(config),
        "RACEWATCH_WEBHOOK_SECRET": SECRET,
        "CXX": compiler,
    }
    return own | {f"RACEWATCH_{name}": value for name, value in QUICK.items()}


@pytest.fixture
def port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
        return number


@pytest.fixture
def processes(
    db: Database, environment: Mapping[str, str], port: int, tmp_path: Path, eventually: Eventually
) -> Iterator[Processes]:
    """Processes on a fresh database."""
    own = {**environment, "DATABASE_URL": db.url}
    with_all = Processes(db, own, port, tmp_path, eventually)
    yield with_all
    with_all.kill_all()


@pytest.fixture
def demo_head(home: Path, compiler: str) -> str:
    """The head of the demo's pull request."""
    subject = DemoSubject(Options(Folders(home, str(home / "store"))))
    return subject.resolve(Request("pull/7")).sha
