"""A worker registers, finds out commits, builds, tries, and says what it cannot do; through outages
of its database, and with real jobs in processes of their own on the demo subject."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy.exc import OperationalError
from sqlmodel import col, select

from runner import matrix as matrices
from runner.errors import InputError, RacewatchError
from runner.run import PreparedBuild
from service import advance, bisection, builds, jobprocess
from service import worker as working
from service.database import Database
from service.settings import ServiceSettings
from service.submit import RunRequest, cancel, submit
from service.tables import (
    Bisection,
    BisectionState,
    BuildState,
    Claim,
    ClaimState,
    CommitBuild,
    Environment,
    RunState,
    Worker,
    WorkerState,
)
from service.worker import WorkerOptions, WorkerProcess
from tests.conftest import Eventually
from tests.service import flow
from tests.service.consumer import shut

DEMO = WorkerOptions(name="w", subjects=("demo",), parallel=4)
CELL = {"name": "alone", "variant": "stock", "background": False, "trials": 4}
MANY = {**CELL, "name": "many", "trials": 60}
"""More than are over before a test has done something to them."""
Start = Callable[..., WorkerProcess]


@pytest.fixture(autouse=True)
def environment(home: Path, compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process's jobs find."""
    monkeypatch.setenv("RACEWATCH_HOME", str(home))
    monkeypatch.setenv("CXX", compiler)


@pytest.fixture
def start(db: Database) -> Iterator[Start]:
    """Makes workers, registers them, and closes them at the end."""
    made: list[WorkerProcess] = []

    def begin(options: WorkerOptions = DEMO, **more: float) -> WorkerProcess:
        settings = ServiceSettings(heartbeat_s=0.1, database_url="", **more)
        worker = WorkerProcess(settings, db, options)
        worker.register()
        made.append(worker)
        return worker

    yield begin
    for worker in made:
        worker.close()


@dataclass(frozen=True)
class Made:
    """A commit of the demo and its stock build, as jobs tell of them."""

    sha: str
    stock: PreparedBuild


@pytest.fixture(scope="session")
def made(home: Path, compiler: str) -> Made:
    """Made once: most tests are about something else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RACEWATCH_HOME", str(home))
        patch.setenv("CXX", compiler)
        ask = {"subject": "demo", "ref": "race", "build": "stock"}
        (found,) = jobprocess.answers({"do": "resolve", **ask}, lambda: True, 60.0)
        request = {"do": "build", "commit": found["commit"], **ask}
        (answer,) = jobprocess.answers(request, lambda: True, 60.0)
    return Made(found["commit"]["sha"], working._prepared_build(answer["build"]))


def order(db: Database, *cells: dict[str, object], ref: str = "race") -> UUID:
    """A run of a ref of the demo."""
    matrix = matrices.from_data({"name": "m", "cells": list(cells or [CELL])})
    with db.session() as session:
        return submit(session, RunRequest("demo", matrix, "emulated", ref=ref)).id


def built(db: Database, made: Made, *cells: dict[str, object]) -> UUID:
    """A run whose commit is known and whose build is made."""
    matrix = matrices.from_data({"name": "m", "cells": list(cells or [CELL])})
    run = flow.order(db, made.sha, matrix)
    flow.resolve(db, run)
    flow.build(db, made.sha, {"stock": made.stock})
    flow.fetched(db)
    return run


def row(db: Database, worker: WorkerProcess) -> Worker:
    with db.session() as session:
        return session.get_one(Worker, worker.id)


def claim_of(db: Database, run: UUID) -> Claim:
    """The newest claim of a run."""
    with db.session() as session:
        newest = select(Claim).where(Claim.run_id == run).order_by(col(Claim.created_at).desc())
        return session.exec(newest.limit(1)).one()


# Its row


def test_a_worker_says_who_it_is_and_what_it_takes(db: Database, start: Start) -> None:
    worker = start(WorkerOptions(name="w", subjects=("demo",), devices=("0", "1"), parallel=3))
    stored = row(db, worker)
    assert (stored.name, stored.state, stored.parallel) == ("w", WorkerState.LIVE, 6)
    assert stored.device["ids"] == ["0", "1"]
    with db.session() as session:
        environment = session.get_one(Environment, stored.environment_id)
        assert (environment.device_kind, environment.toolchain) == ("emulated", "host compiler")
    assert worker.lanes == [
        ["git-demo"],
        ["build-demo"],
        ["trial-emulated", f"environment-{environment.id}"],
    ]
    assert stored.queues == worker.queues


@pytest.mark.parametrize(
    ("more", "queues"),
    [
        ({"trials": False}, ["git-demo", "build-demo"]),
        ({"build": False}, ["trial-emulated", "environment-1"]),
    ],
)
def test_a_worker_takes_only_what_it_was_told_to(
    db: Database, start: Start, more: dict[str, bool], queues: list[str]
) -> None:
    assert start(WorkerOptions(subjects=("demo",), **more)).queues == queues


def test_a_worker_that_can_do_nothing_says_why(db: Database) -> None:
    settings = ServiceSettings(database_url="")
    options = WorkerOptions(subjects=("demo",), build=False, devices=("x",))
    with pytest.raises(RacewatchError, match="x"):
        WorkerProcess(settings, db, options).register()
    unknown = WorkerProcess(settings, db, WorkerOptions(subjects=("nothing",)))
    with pytest.raises(InputError, match="unknown subject 'nothing'; tracked: te, demo"):
        unknown.register()


def test_a_worker_is_heard_until_it_ends(
    db: Database, start: Start, eventually: Eventually
) -> None:
    worker = start()
    flow.silent(db, "workers")
    silent = row(db, worker).heartbeat_at
    eventually(lambda: row(db, worker).heartbeat_at > silent, "it is heard")
    worker.drain()
    assert row(db, worker).state == WorkerState.DRAINING
    worker.close()
    assert row(db, worker).state == WorkerState.STOPPED


def test_a_worker_that_was_taken_for_lost_is_what_it_was(
    db: Database, start: Start, eventually: Eventually
) -> None:
    worker = start()
    for state in (WorkerState.LIVE, WorkerState.DRAINING):
        if state is WorkerState.DRAINING:
            worker.drain()
        with db.session() as session:
            session.get_one(Worker, worker.id).state = WorkerState.LOST
        eventually(lambda state=state: row(db, worker).state == state, "it says so")  # type: ignore[misc]


def test_a_workers_heart_survives_an_outage(
    db: Database,
    start: Start,
    postgres: str,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = start()
    with shut(postgres, db):
        eventually(lambda: "no heartbeat" in caplog.text, "it notices")
    flow.silent(db, "workers")
    silent = row(db, worker).heartbeat_at
    eventually(lambda: row(db, worker).heartbeat_at > silent, "it is heard again")


def test_a_worker_ends_though_nobody_hears_it(
    db: Database, start: Start, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working, "LAST_WORD_S", 0.3)
    worker = start()
    with shut(postgres, db):
        worker.drain()
        worker.close()


# Its work


def test_a_run_goes_from_its_ref_to_its_end(
    db: Database, start: Start, eventually: Eventually
) -> None:
    worker = start()
    run = order(db)
    worker.prepare(run)
    for wanted in flow.waiting(db, flow.row(db, run).head_sha):
        worker.build(wanted)
    worker.trials(run)
    ended = flow.row(db, run)
    assert (ended.state, ended.facts["sandbox"]) == (RunState.COMPLETE, "process")
    assert flow.counts(db, run) == {"alone": {"pass": 4}}
    eventually(lambda: row(db, worker).doing == "", "it says that it does nothing")


def test_a_ref_that_is_gone_fails_its_run(db: Database, start: Start) -> None:
    run = order(db, ref="no-such-branch")
    start().prepare(run)
    ended = flow.row(db, run)
    assert ended.state == RunState.FAILED
    assert "no-such-branch" in ended.reason


def test_a_host_without_a_compiler_gives_a_build_back_with_the_reason(
    db: Database, start: Start, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = start()
    run = flow.order(db, made.sha)
    flow.resolve(db, run)
    monkeypatch.setenv("CXX", "/no/such/compiler")
    worker.build(flow.waiting(db, made.sha)[0])
    with db.session() as session:
        wanted = session.exec(select(CommitBuild).where(CommitBuild.name == "stock")).one()
    assert (wanted.state, wanted.attempts) == (BuildState.WAITING, 1)
    assert "/no/such/compiler" in wanted.reason


def test_a_repository_that_is_away_is_looked_at_again_later(
    db: Database, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = start()
    run = order(db)
    flow.fetched(db)
    monkeypatch.setenv("RACEWATCH_HOME", "/proc/no/home")
    worker.prepare(run)
    stored = flow.row(db, run)
    assert (stored.state, stored.setbacks) == (RunState.QUEUED, 1)
    assert "/proc/no" in stored.reason
    assert [job.later > 0 for job in flow.jobs(db, "prepare")] == [True]


@pytest.fixture
def silent(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkerProcess:
    """A worker whose git gets no answer."""
    monkeypatch.setattr(working, "LOOK_S", 1.0)
    monkeypatch.setenv("RACEWATCH_HOME", str(tmp_path))
    monkeypatch.setenv("GIT_SSH_COMMAND", "sleep 600;")
    worker = start()
    worker.settings.subject("demo").repository = "ssh://nobody.invalid/demo.git"
    return worker


def test_git_that_never_answers_is_not_waited_for(db: Database, silent: WorkerProcess) -> None:
    run = order(db)
    silent.prepare(run)
    stored = flow.row(db, run)
    assert (stored.state, stored.setbacks) == (RunState.QUEUED, 1)
    assert stored.reason == "git gave no answer in 1 s"


def bisected(db: Database) -> UUID:
    """A bisection between two refs of the demo, whose job is taken."""
    matrix = matrices.from_data({"name": "m", "cells": [CELL]})
    with db.session() as session:
        request = bisection.BisectionRequest("demo", "race", "fix", matrix, "alone", "emulated")
        identity = bisection.order(session, request).id
    flow.fetched(db)
    return identity


def test_a_bisection_waits_for_a_repository_that_is_away_and_says_so(
    db: Database, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = start()
    identity = bisected(db)
    monkeypatch.setenv("RACEWATCH_HOME", "/proc/no/home")
    worker.bisect(identity, "range", 0)
    with db.session() as session:
        bisection.advance(session, identity)  # as the sweep does
        stored = session.get_one(Bisection, identity)
    assert (stored.state, stored.setbacks) == (BisectionState.QUEUED, 1)
    assert "/proc/no" in stored.reason
    assert [job.later > 0 for job in flow.jobs(db, "bisect")] == [True]


def test_a_bisection_does_not_wait_for_git_that_never_answers(
    db: Database, silent: WorkerProcess
) -> None:
    identity = bisected(db)
    silent.bisect(identity, "range", 0)
    with db.session() as session:
        stored = session.get_one(Bisection, identity)
    assert (stored.setbacks, stored.reason) == (1, "git gave no answer in 1 s")


def test_a_cancelled_bisections_look_at_git_ends_soon(
    db: Database,
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Eventually,
) -> None:
    monkeypatch.setenv("RACEWATCH_HOME", str(tmp_path))
    monkeypatch.setenv("GIT_SSH_COMMAND", "sleep 600;")
    worker = start()
    worker.settings.subject("demo").repository = "ssh://nobody.invalid/demo.git"
    identity = bisected(db)
    look = threading.Thread(target=worker.bisect, args=(identity, "range", 0))
    look.start()
    eventually(lambda: row(db, worker).doing.startswith("reading"), "it looks")
    with db.session() as session:
        bisection.cancel(session, identity, "cancelled")
    look.join(30)
    assert not look.is_alive()


def test_what_nobody_foresaw_is_a_reason_too(
    db: Database,
    start: Start,
    made: Made,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A fault in the worker itself, put there for the test."""
    worker = start()
    run = built(db, made)
    monkeypatch.setattr(working, "_log_of", lambda folder, event: 1 / 0)
    worker.trials(run)
    claim = claim_of(db, run)
    assert (claim.state, flow.row(db, run).setbacks) == (ClaimState.DONE, 1)
    assert claim.reason.startswith("a fault of Racewatch itself, see the worker's log: ZeroDiv")
    assert "ZeroDivisionError" in caplog.text


def test_a_cancelled_runs_trials_end_soon_and_stay(
    db: Database, start: Start, made: Made, eventually: Eventually
) -> None:
    worker = start()
    run = built(db, made, MANY)
    working_on = threading.Thread(target=worker.trials, args=(run,))
    working_on.start()
    eventually(lambda: flow.counts(db, run).get("many"), "a trial is stored")
    with db.session() as session:
        cancel(session, run, "not needed")
    working_on.join(30)
    assert not working_on.is_alive()
    assert claim_of(db, run).state == ClaimState.CANCELLED
    assert 0 < sum(flow.counts(db, run)["many"].values()) < 60
    assert (flow.row(db, run).state, flow.row(db, run).reason) == (RunState.CANCELLED, "not needed")


def test_a_worker_that_shall_end_at_once_gives_back_what_it_has(
    db: Database, start: Start, made: Made, eventually: Eventually
) -> None:
    worker = start()
    run = built(db, made, MANY)
    flow.fetched(db)
    working_on = threading.Thread(target=worker.trials, args=(run,))
    working_on.start()
    eventually(lambda: flow.counts(db, run).get("many"), "a trial is stored")
    eventually(lambda: "trials of" in row(db, worker).doing, "it says what it does")
    worker.stopping.set()
    working_on.join(30)
    assert claim_of(db, run).state == ClaimState.CANCELLED
    assert flow.row(db, run).setbacks == 0
    assert len(flow.jobs(db, "trials")) == 1


def test_a_lost_claims_trials_are_not_stored_and_its_job_ends(
    db: Database, start: Start, made: Made, eventually: Eventually
) -> None:
    worker = start()
    run = built(db, made, MANY)
    working_on = threading.Thread(target=worker.trials, args=(run,))
    working_on.start()
    eventually(lambda: flow.counts(db, run).get("many"), "a trial is stored")
    flow.release(db, claim_of(db, run).id, ClaimState.LOST, "its worker was lost")
    stored = sum(flow.counts(db, run)["many"].values())
    working_on.join(30)
    assert not working_on.is_alive()
    assert sum(flow.counts(db, run)["many"].values()) == stored


# Outages


def test_trials_that_end_during_an_outage_are_stored_after_it(
    db: Database,
    start: Start,
    made: Made,
    postgres: str,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = start()
    run = built(db, made, {**MANY, "trials": 12})
    working_on = threading.Thread(target=worker.trials, args=(run,))
    working_on.start()
    eventually(lambda: flow.counts(db, run).get("many"), "a trial is stored")
    with shut(postgres, db):
        eventually(lambda: "trying again" in caplog.text, "a trial cannot be stored")
    working_on.join(60)
    assert flow.row(db, run).state == RunState.COMPLETE
    counted = flow.counts(db, run)["many"]
    assert sum(counted.values()) == 12


def test_an_outage_that_never_ends_costs_what_was_in_hand_and_no_more(
    db: Database,
    start: Start,
    made: Made,
    postgres: str,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Eventually,
) -> None:
    monkeypatch.setattr(working, "OUTAGE_S", 0.5)
    worker = start()
    run = built(db, made, MANY)
    raised: list[BaseException] = []

    def work() -> None:
        try:
            worker.trials(run)
        except OperationalError as error:
            raised.append(error)

    working_on = threading.Thread(target=work)
    working_on.start()
    eventually(lambda: flow.counts(db, run).get("many"), "a trial is stored")
    with shut(postgres, db):
        working_on.join(60)
        assert not working_on.is_alive()
    assert raised
    stored = sum(flow.counts(db, run)["many"].values())
    flow.release(db, claim_of(db, run).id, ClaimState.LOST, "its worker was lost")
    batch = flow.taken(db, run, worker.id)
    assert batch.matrix.cells[0].trials <= 60 - stored


def test_a_question_that_the_database_refuses_is_no_outage(db: Database, start: Start) -> None:
    def refused(session: object) -> None:
        with db.session() as own:
            own.connection().exec_driver_sql("SELECT 1 / 0")

    with pytest.raises(Exception, match="division by zero"):
        start()._patiently(refused)


# What it learns


def test_a_worker_that_finds_other_versions_than_it_said_takes_up_runs_there(
    db: Database, start: Start, made: Made
) -> None:
    worker = start()
    with db.session() as session:  # as if it had described itself otherwise
        environment = session.get_one(Environment, row(db, worker).environment_id)
        environment.driver, environment.digest = "another", "another"
        session.add(environment)
    run = built(db, made)
    before = worker.trial_lane
    worker.trials(run)
    stored = row(db, worker)
    assert stored.environment_id != environment.id
    assert worker.trial_lane is before
    assert before == ["trial-emulated", f"environment-{stored.environment_id}"]
    assert stored.queues == worker.queues
    assert flow.row(db, run).state == RunState.COMPLETE


def test_a_plain_worker_leaves_a_forks_code_alone(db: Database, start: Start) -> None:
    worker = start()
    flow.resolve(db, flow.order(db, matrix=flow.ONE_CELL, trusted=False))
    flow.fetched(db)
    worker.build(*flow.waiting(db))
    assert len(flow.waiting(db)) == 1
    assert [job.queue for job in flow.jobs(db, "build")] == ["forks-build-demo"]


def test_a_build_that_shall_end_at_once_goes_to_others(
    db: Database, start: Start, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = start()
    flow.resolve(db, flow.order(db, made.sha, flow.ONE_CELL))
    flow.fetched(db)
    (wanted,) = flow.waiting(db, made.sha)
    worker.stopping.set()
    worker.build(wanted)
    with db.session() as session:
        assert session.get_one(CommitBuild, wanted).attempts == 0
    assert [job.later for job in flow.jobs(db, "build")] == [0]


# An engine that is away


@pytest.fixture
def without_engine(db: Database, monkeypatch: pytest.MonkeyPatch) -> WorkerProcess:
    """A worker with containers whose engine does not answer."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    options = WorkerOptions(subjects=("demo",), sandbox="docker")
    return WorkerProcess(ServiceSettings(database_url=""), db, options)


def waiting_build(db: Database) -> CommitBuild:
    with db.session() as session:
        return session.exec(select(CommitBuild)).one()


def test_a_build_waits_for_an_engine_and_loses_no_attempt(
    db: Database, made: Made, without_engine: WorkerProcess
) -> None:
    run = flow.order(db, made.sha, matrices.from_data({"name": "m", "cells": [CELL]}))
    flow.resolve(db, run)
    for _ in range(2 * builds.ATTEMPTS):
        flow.fetched(db)
        without_engine.build(waiting_build(db).id or 0)
        (job,) = flow.jobs(db, "build")
        assert job.later == pytest.approx(builds.RETRY_S, abs=5)
    waiting = waiting_build(db)
    assert (waiting.state, waiting.attempts) == (BuildState.WAITING, 0)
    assert waiting.reason.startswith("no Docker engine answers at unix:///nowhere/docker.sock")


def test_trials_wait_for_an_engine_and_the_run_says_so_until_they_are_taken(
    db: Database, made: Made, without_engine: WorkerProcess
) -> None:
    run = built(db, made)
    for _ in range(2 * advance.SETBACKS):
        flow.fetched(db)
        without_engine.trials(run)
        (job,) = flow.jobs(db, "trials")
        assert job.later == pytest.approx(advance.PAUSE_S, abs=5)
    waits = flow.row(db, run)
    assert (waits.state, waits.setbacks) == (RunState.RUNNING, 0)
    assert waits.reason.startswith("no Docker engine answers at unix:///nowhere/docker.sock")
    flow.taken(db, run, flow.worker(db))
    assert flow.row(db, run).reason == ""


def test_who_has_no_engine_says_nothing_of_a_run_that_others_go_on_with(
    db: Database, made: Made, without_engine: WorkerProcess
) -> None:
    run = built(db, made)
    flow.taken(db, run, flow.worker(db))
    without_engine.trials(run)
    assert flow.row(db, run).reason == ""


def test_a_build_that_waited_for_an_engine_says_so_no_more_once_it_is_made(
    db: Database, made: Made, without_engine: WorkerProcess
) -> None:
    run = flow.order(db, made.sha, matrices.from_data({"name": "m", "cells": [CELL]}))
    flow.resolve(db, run)
    without_engine.build(waiting_build(db).id or 0)
    with db.session() as session:
        assert builds.take(session, waiting_build(db).id or 0, None, contained=True)
    assert (waiting_build(db).state, waiting_build(db).reason) == (BuildState.BUILDING, "")


def test_a_run_that_waited_for_an_engine_says_when_its_worker_is_gone(
    db: Database, made: Made, without_engine: WorkerProcess
) -> None:
    run = built(db, made)
    without_engine.trials(run)
    flow.step(db, run)
    assert flow.row(db, run).reason == (
        "no worker takes trial-emulated: start a `racewatch worker` for it"
    )


def test_an_engine_that_is_away_brings_no_attempt_forward(
    db: Database, made: Made, without_engine: WorkerProcess
) -> None:
    run = built(db, made)
    for _ in range(advance.SETBACKS - 1):
        flow.release(db, flow.taken(db, run, flow.worker(db)).claim, reason="cut off")
    flow.fetched(db)
    without_engine.trials(run)
    (job,) = flow.jobs(db, "trials")
    assert job.later == pytest.approx(2 * advance.PAUSE_S, abs=5)
