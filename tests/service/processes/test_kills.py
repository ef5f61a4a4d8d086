"""Whatever is killed, and whenever: every run ends, nothing is counted twice, nothing is lost."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import httpx
import psutil
import psycopg
import pytest
from sqlmodel import select

from service import schema
from service.database import Database
from service.postgres import EmbeddedPostgres, libpq
from service.tables import Claim, ClaimState, Delivery, Run, RunState
from tests.conftest import Eventually
from tests.service.github.deliveries import headers_of
from tests.service.processes.conftest import Processes, matrix_of
from tests.service.processes.test_delivery import delivery

LONG = {"name": "long", "variant": "stock", "background": False, "hold_ms": 30, "trials": 40}
"""A cell whose trials take a while, so that there is time to kill something."""
MANY = 400
"""Trials that are not over when a command has started, also on a busy host."""


def test_a_killed_workers_trials_are_taken_over(
    processes: Processes, eventually: Eventually
) -> None:
    processes.service()
    first = processes.worker("first", RACEWATCH_BATCH_S="60")
    run = processes.submit(matrix_of(LONG, {"variant": "stock", "trials": 20, "name": "short"}))
    eventually(lambda: len(processes.trials(run)) >= 5, "some trials are stored")

    os.kill(first.pid, signal.SIGKILL)
    before = {trial.id: trial.outcome for trial in processes.trials(run)}
    second = processes.worker("second")
    ended = processes.ends(run)

    assert ended.state == RunState.COMPLETE
    processes.counted_once(run)
    after = {trial.id: trial.outcome for trial in processes.trials(run)}
    assert before.items() <= after.items()
    with processes.database.session() as session:
        states = Counter(session.exec(select(Claim.state).where(Claim.run_id == run)).all())
    assert states[ClaimState.LOST] == 1
    assert states[ClaimState.LIVE] == 0
    second.terminate()
    assert second.wait(60) == 0


def test_a_killed_workers_trials_and_compilers_die_with_it(
    processes: Processes, eventually: Eventually
) -> None:
    worker = processes.worker("only")
    run = processes.submit(matrix_of(LONG))
    eventually(lambda: processes.trials(run), "a trial is stored")
    below = psutil.Process(worker.pid).children(recursive=True)
    assert below

    os.kill(worker.pid, signal.SIGKILL)
    eventually(lambda: not any(_lives(one) for one in below), "all that it had started ends")


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_worker_told_to_end_finishes_its_batch_and_takes_no_other(
    processes: Processes, eventually: Eventually
) -> None:
    worker = processes.worker("draining", RACEWATCH_BATCH_S="1")
    run = processes.submit(matrix_of(LONG))
    eventually(lambda: processes.trials(run), "a trial is stored")

    worker.terminate()
    assert worker.wait(60) == 0

    with processes.database.session() as session:
        states = session.exec(select(Claim.state).where(Claim.run_id == run)).all()
    assert set(states) == {ClaimState.DONE}
    assert processes.run(run).state == RunState.RUNNING
    assert len(processes.trials(run)) < 40


def test_a_worker_told_twice_gives_back_what_it_has(
    processes: Processes, eventually: Eventually
) -> None:
    worker = processes.worker("hurried")
    run = processes.submit(matrix_of(LONG))
    eventually(lambda: processes.trials(run), "a trial is stored")

    worker.terminate()
    eventually(lambda: processes.worker_row("hurried") is None, "it says that it drains")
    worker.terminate()
    assert worker.wait(60) == 0

    with processes.database.session() as session:
        states = Counter(session.exec(select(Claim.state).where(Claim.run_id == run)).all())
    # The claim under which the commit was found out, and that of the trials.
    assert states == {ClaimState.DONE: 1, ClaimState.CANCELLED: 1}
    assert processes.run(run).setbacks == 0


def test_a_cancelled_runs_trials_are_stopped_and_kept(
    processes: Processes, eventually: Eventually
) -> None:
    processes.service()
    processes.worker("only")
    run = processes.submit(matrix_of({**LONG, "trials": MANY}))
    eventually(lambda: processes.trials(run), "a trial is stored")

    stopped = processes.start("cancel", str(run))
    assert stopped.wait(60) == 0, processes.logs()

    def released() -> bool:
        with processes.database.session() as session:
            states = session.exec(select(Claim.state).where(Claim.run_id == run)).all()
        return ClaimState.LIVE not in states

    eventually(released, "the worker lets go")
    assert processes.run(run).state == RunState.CANCELLED
    assert 0 < len(processes.trials(run)) < MANY


KILLED_AFTER_STORING = """
import os, signal
from service.database import Database
from service.github import webhook
stored = webhook._take_in
async def killed(*arguments, **more):
    await stored(*arguments, **more)
    os.kill(os.getpid(), signal.SIGKILL)
webhook._take_in = killed
"""


def test_a_service_killed_between_storing_and_answering_loses_and_repeats_no_delivery(
    processes: Processes, demo_head: str
) -> None:
    """One function of the service's process is exchanged for the kill; the rest is real."""
    body = delivery(demo_head)
    headers = headers_of("pull_request", body, "11111111-2222-3333-4444-555555555555")
    killed = processes.service(code=KILLED_AFTER_STORING)
    with pytest.raises(httpx.TransportError):
        processes.post("/webhooks/github", body, headers)
    assert killed.wait(60) == -signal.SIGKILL

    processes.service()
    again = processes.post("/webhooks/github", body, headers)

    assert again.status_code == 200
    with processes.database.session() as session:
        assert len(session.exec(select(Delivery)).all()) == 1
        (run,) = session.exec(select(Run)).all()
    processes.worker("only")
    assert processes.ends(run.id).state == RunState.COMPLETE


def test_a_killed_postgresql_loses_no_trial(
    environment: dict[str, str], port: int, tmp_path: Path, eventually: Eventually
) -> None:
    with EmbeddedPostgres(tmp_path / "database") as server:
        schema.upgrade(server.url)
        database = Database(server.url)
        processes = Processes(
            database, {**environment, "DATABASE_URL": server.url}, port, tmp_path, eventually
        )
        try:
            processes.service()
            processes.worker("only")
            run = processes.submit(matrix_of(LONG))
            eventually(lambda: len(processes.trials(run)) >= 5, "some trials are stored")
            before = {trial.id for trial in processes.trials(run)}

            os.kill(_postmaster(server.url), signal.SIGKILL)
            eventually(lambda: _answers(server.url), "PostgreSQL is back")
            ended = processes.ends(run)

            assert ended.state == RunState.COMPLETE, processes.logs()
            processes.counted_once(run)
            assert before <= {trial.id for trial in processes.trials(run)}
        finally:
            processes.kill_all()
            database.close()


def _postmaster(url: str) -> int:
    with psycopg.connect(libpq(url)) as connection:
        backend = connection.info.backend_pid
        parent = psutil.Process(backend).parent()
    assert parent is not None
    return parent.pid


def _answers(url: str) -> bool:
    try:
        with psycopg.connect(libpq(url), connect_timeout=2) as connection:
            connection.execute("SELECT 1")
    except psycopg.OperationalError:
        return False
    return True
