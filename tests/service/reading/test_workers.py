"""Workers, queues and pull requests as pages show them."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from sqlalchemy import text
from sqlmodel import Session, select

from runner import matrix as matrices
from runner import result
from runner.run import PreparedBuild
from runner.statistics.control import Proof
from service import rows
from service.database import Database
from service.queue import wake
from service.reading import pulls, workers
from service.reading.pulls import PullFilter
from service.tables import Approval, Cell, Claim, Measurement, Pull, Run, Trial, Worker, WorkerState
from service.tables.columns import now
from tests.service.reading.showcase import Showcase

Shown = tuple[Database, Showcase]
ISSUE = matrices.load("issue-3863")


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


BAD, GOOD = "stock, background", "stock, alone"


def _two_workers(
    session: Session, other: tuple[int, int], own: tuple[int, int], infra: int = 0
) -> tuple[UUID, UUID]:
    """Trials of one known-bad and one known-good cell: (k, n) of the first by another worker and by
    the one that is looked at; the second always passes."""
    device = result.Device("cuda", "NVIDIA H200", (9, 0), "580")
    commit = rows.commit_row(session, "te", result.Commit("a" * 40, "main"))
    environment = rows.environment_row(session, device, "cu13", "2")
    build = rows.build_row(session, "te", PreparedBuild("key"), "")
    run = Run(subject="te", commit_id=commit.id, matrix_name="m", queue="sm90")
    people = [Worker(name=name, host="h", pid=1, version="0.1") for name in ("other", "own")]
    session.add_all([run, *people])
    session.flush()
    claims = [Claim(run_id=run.id, worker_id=worker.id) for worker in people]
    session.add_all(claims)
    session.flush()
    index = 0
    for name, counts in ((BAD, (other, own)), (GOOD, ((0, 30), (0, 30)))):
        cell = rows.cell_row(session, next(c for c in ISSUE.cells if c.name == name))
        measurement = rows.measurement_row(session, build, cell, environment)
        session.flush()
        for claim, (k, n) in zip(claims, counts, strict=True):
            endings = ["crash"] * k + ["pass"] * (n - k)
            if claim is claims[1]:
                endings += ["infra_error"] * infra
            for ending in endings:
                index += 1
                trial = Trial(
                    measurement_id=measurement.id, run_id=run.id, claim_id=claim.id, index=index,
                    worker_id=claim.worker_id, outcome=ending,
                )  # fmt: skip
                session.add(trial)
            measurement.crash += k
            measurement.passed += n - k
        session.add(measurement)
    session.flush()
    return people[0].id, people[1].id


def test_a_worker_on_which_what_always_fails_elsewhere_passes_is_flagged(db: Database) -> None:
    with db.session() as session:
        other, own = _two_workers(session, other=(40, 40), own=(2, 40))
    with db.session() as session:
        found = workers.controls(session)
        page = workers.read(session, 30.0, "0.1", found)
    assert found[own].verdict.proof is Proof.UNPROVEN
    assert found[own].known_bad.text == "2 of 40"
    assert found[other].verdict.proof is Proof.UNKNOWN, "what the odd one passes is not known-bad"
    flags = {worker.name: worker.flags for worker in page.workers}
    assert flags == {
        "own": ("its passes prove nothing: known-bad cells pass on it",),
        "other": (),
    }


def test_a_worker_alone_is_proven_by_the_control_cells_of_its_runs(db: Database) -> None:
    with db.session() as session:
        _, own = _two_workers(session, other=(0, 0), own=(6, 6))
        cells = dict(session.exec(select(Measurement.id, Cell.background).join(Cell)).all())
        for trial in session.exec(select(Trial).where(Trial.worker_id == own)):
            trial.control = "known-bad" if cells[trial.measurement_id] else "known-good"
            session.add(trial)
    with db.session() as session:
        found = workers.controls(session)[own]
    assert found.verdict.proof is Proof.PROVEN
    assert (found.known_bad.text, found.known_good.text) == ("6 of 6", "0 of 30")


def test_a_worker_that_tells_good_from_bad_is_proven(db: Database) -> None:
    with db.session() as session:
        _, own = _two_workers(session, other=(40, 40), own=(30, 30))
        found = workers.controls(session)
    assert found[own].verdict.proof is Proof.PROVEN
    assert (found[own].known_bad.text, found[own].known_good.text) == ("30 of 30", "0 of 30")


def test_few_trials_of_others_make_no_control(db: Database) -> None:
    with db.session() as session:
        _, own = _two_workers(session, other=(5, 5), own=(0, 40))
        found = workers.controls(session)
    assert found[own].known_bad.n == 0
    assert found[own].verdict.proof is not Proof.UNPROVEN


def test_many_infra_errors_and_another_version_are_flagged(db: Database) -> None:
    with db.session() as session:
        _, own = _two_workers(session, other=(40, 40), own=(30, 30), infra=10)
        page = workers.read(session, 30.0, "0.2", workers.controls(session))
    (worker,) = [one for one in page.workers if one.id == own]
    assert worker.flags == (
        "runs Racewatch 0.1, the service 0.2",
        "20 of its 80 last trials were infra errors",
    )


def test_old_trials_say_nothing_of_today(db: Database) -> None:
    with db.session() as session:
        _two_workers(session, other=(40, 40), own=(2, 40))
        session.connection().execute(
            text("UPDATE claims SET heartbeat_at = now() - interval '2 days'")
        )
        assert workers.controls(session) == {}
