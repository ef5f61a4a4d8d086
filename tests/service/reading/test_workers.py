"""Workers, queues and pull requests as pages show them."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import text

from service.database import Database
from service.queue import wake
from service.reading import pulls, workers
from service.reading.pulls import PullFilter
from service.tables import Approval, Pull, Worker, WorkerState
from service.tables.columns import now
from tests.service.reading.showcase import Showcase

Shown = tuple[Database, Showcase]


def test_a_worker_shows_its_device_what_it_holds_and_whether_it_is_silent(shown: Shown) -> None:
    database, made = shown
    with database.session() as session:
        page = workers.read(session, lost_after_s=120.0)
    by_name = {worker.name: worker for worker in page.workers}
    busy = by_name["gpu-host-7"]
    assert busy.device == "NVIDIA H200"
    assert busy.device_details == "2 devices, driver 580.159.04, JAX 0.11.2"
    (held,) = busy.held
    assert (held.run, held.trials, held.recorded) == (made.runs["running"], 15, 4)
    assert not busy.late
    assert by_name["gpu-host-3"].late
    assert by_name["build-host-1"].device == ""


def test_live_workers_come_first_and_those_long_gone_not_at_all(db: Database) -> None:
    ages = {
        "stopped today": (WorkerState.STOPPED, timedelta(hours=1)),
        "lost today": (WorkerState.LOST, timedelta(hours=1)),
        "stopped last year": (WorkerState.STOPPED, timedelta(days=300)),
        "live": (WorkerState.LIVE, timedelta()),
    }
    with db.session() as session:
        for name, (state, age) in ages.items():
            session.add(Worker(name=name, host="h", pid=1, state=state, heartbeat_at=now() - age))
    with db.session() as session:
        page = workers.read(session, 30.0)
    assert [worker.name for worker in page.workers] == ["live", "lost today", "stopped today"]


def test_queues_tell_what_waits_what_is_done_and_who_takes_from_them(db: Database) -> None:
    with db.session() as session:
        session.add(Worker(name="w", host="h", pid=1, queues=["trial-sm90", "build-te"]))
        for n in range(3):
            wake(session, "trials", "trial-sm90", lock=f"l{n}", run=f"run-{n}", priority=n)
        later = now() + timedelta(hours=1)
        wake(session, "sweep", "control", lock="later", at=later)
        session.connection().execute(
            text("UPDATE procrastinate_jobs SET status = 'doing' WHERE priority = 2")
        )
    with db.session() as session:
        page = workers.read(session, 30.0)
    queues = {queue.name: queue for queue in page.queues}
    trials = queues["trial-sm90"]
    assert (trials.waiting, trials.doing, trials.workers) == (2, 1, 1)
    assert trials.oldest is not None
    assert (queues["build-te"].waiting, queues["build-te"].workers) == (0, 1)
    assert (queues["control"].later, queues["control"].waiting, queues["control"].workers) == (
        1,
        0,
        0,
    )
    assert [(job.state, job.run) for job in page.jobs[:3]] == [
        ("doing", "run-2"),
        ("waiting", "run-1"),
        ("waiting", "run-0"),
    ]


def test_pull_requests_show_the_runs_of_their_head_and_who_waits(shown: Shown) -> None:
    database, made = shown
    with database.session() as session:
        page = pulls.read(session, PullFilter())
    by_number = {pull.number: pull for pull in page.pulls}
    fork = by_number[2800]
    assert fork.awaiting_approval
    assert fork.fork
    assert [run.id for run in fork.runs] == [made.runs["awaiting"]]
    assert not by_number[2801].awaiting_approval
    assert by_number[2801].draft


def test_an_approval_is_of_one_head_and_runs_of_older_heads_are_not_shown(db: Database) -> None:
    with db.session() as session:
        session.add(Pull(subject="te", number=1, head_sha="b" * 40, author="x"))
        session.add(Approval(subject="te", pull=1, sha="a" * 40, by="old", via="comment"))
    with db.session() as session:
        (pull,) = pulls.read(session, PullFilter()).pulls
    assert (pull.approved_by, pull.runs) == ("", ())
    with db.session() as session:
        session.add(Approval(subject="te", pull=1, sha="b" * 40, by="ada", via="comment"))
    with db.session() as session:
        (pull,) = pulls.read(session, PullFilter()).pulls
    assert pull.approved_by == "ada"


def test_closed_pull_requests_are_listed_on_demand(db: Database) -> None:
    with db.session() as session:
        session.add(Pull(subject="te", number=1, head_sha="a" * 40, open=False))
        session.add(Pull(subject="te", number=2, head_sha="b" * 40))
    with db.session() as session:
        assert [pull.number for pull in pulls.read(session, PullFilter()).pulls] == [2]
        closed = pulls.read(session, PullFilter(state="closed")).pulls
        assert [pull.number for pull in closed] == [1]
        assert len(pulls.read(session, PullFilter(state="")).pulls) == 2
