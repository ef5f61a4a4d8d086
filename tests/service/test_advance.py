"""A run moves on as far as its rows allow, however often it is looked at, and always ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from sqlmodel import select

from runner import matrix as matrices
from runner.outcome import Outcome
from runner.run import PreparedBuild
from service import advance, builds, claims
from service.database import Database
from service.submit import cancel
from service.tables import ClaimState, Origin, Run, RunState, Worker, WorkerState
from tests.service import flow
from tests.service.flow import ALONE, HEAD, MATRIX, ONE_CELL, OWNED, PARENT, RACY

FIXED = PreparedBuild("fixed", folder="somewhere", owned_stream_needed=False)
BROKEN = PreparedBuild(
    "broken", outcome=Outcome.BUILD_ERROR, signature="no such file", reason="does not build"
)
OTHER = "c" * 40


def bases(db: Database, sha: str = PARENT) -> list[Run]:
    """All runs of a commit."""
    with db.session() as session:
        return list(session.exec(select(Run).where(Run.head_sha == sha)))


# Its commit


def test_an_ordered_run_wakes_who_finds_out_its_commit(db: Database) -> None:
    run = flow.order(db)
    (job,) = flow.jobs(db)
    assert (job.task, job.queue, job.lock) == ("prepare", "git-demo", f"prepare:{run}")


def test_while_somebody_finds_out_its_commit_nobody_else_is_woken(db: Database) -> None:
    run = flow.order(db)
    flow.fetched(db)
    with db.session() as session:
        assert claims.hold(session, run, None) is not None
    flow.step(db, run)
    assert flow.jobs(db) == []
    with db.session() as session:
        assert claims.hold(session, run, None) is None


def test_a_known_commit_orders_its_builds(db: Database) -> None:
    run = flow.order(db, origin=Origin.BACKFILL)
    flow.fetched(db)
    flow.resolve(db, run, base=PARENT)
    stored = flow.row(db, run)
    assert (stored.state, stored.facts["toolchain"]) == (RunState.BUILDING, flow.TOOLCHAIN)
    assert stored.base_commit_id is not None
    assert [(job.task, job.queue, job.priority) for job in flow.jobs(db)] == [
        ("build", "build-demo", 10)
    ] * 2


def test_what_a_lost_worker_finds_out_late_changes_nothing(db: Database) -> None:
    run = flow.order(db)
    with db.session() as session:
        lost = claims.hold(session, run, None)
        assert lost is not None
    flow.release(db, lost, ClaimState.LOST, "its worker was lost")
    with db.session() as session:
        advance.prepared(session, run, lost, flow.answer("f" * 40))
    with db.session() as session:
        advance.not_prepared(session, run, lost, "no such ref")
    assert (flow.row(db, run).state, flow.row(db, run).head_sha) == (RunState.QUEUED, HEAD)


def test_a_ref_that_names_nothing_fails_the_run(db: Database) -> None:
    run = flow.order(db)
    with db.session() as session:
        claim = claims.hold(session, run, None)
        assert claim is not None
    with db.session() as session:
        advance.not_prepared(session, run, claim, "ref 'gone' names nothing")
    ended = flow.row(db, run)
    assert (ended.state, ended.reason) == (RunState.FAILED, "ref 'gone' names nothing")
    assert ended.finished_at is not None


def test_a_commit_that_cannot_be_found_out_is_tried_with_growing_pauses_then_given_up(
    db: Database,
) -> None:
    run = flow.order(db)
    pauses = []
    for _ in range(advance.LOOKS):
        flow.fetched(db)
        with db.session() as session:
            claim = claims.hold(session, run, None)
            assert claim is not None
        flow.release(db, claim, ClaimState.LOST, "its worker was lost")
        pauses += [job.later for job in flow.jobs(db)]
    assert pauses == pytest.approx([10, 20, 40, 80, 160, 320, 600], abs=5)
    ended = flow.row(db, run)
    assert ended.state == RunState.FAILED
    assert ended.reason == (
        "given up: its commit was not found out in 8 attempts: its worker was lost"
    )


# Its base


def test_a_pull_requests_run_orders_one_run_of_its_base(db: Database) -> None:
    run = flow.order(db, origin=Origin.PULL_REQUEST, pull=7, ref="pull/7")
    flow.resolve(db, run, base=PARENT)
    (base,) = bases(db)
    assert flow.row(db, run).base_run_id == base.id
    assert (base.pull, base.priority, base.matrix) == (None, 40, flow.row(db, run).matrix)


def test_the_run_of_a_base_orders_none_of_its_own_base(db: Database) -> None:
    run = flow.order(db, origin=Origin.PULL_REQUEST, pull=7, ref="pull/7")
    flow.resolve(db, run, base=PARENT)
    (base,) = bases(db)
    flow.resolve(db, base.id, base=OTHER)
    assert bases(db, OTHER) == []


def test_any_other_run_orders_none(db: Database) -> None:
    flow.resolve(db, flow.order(db, origin=Origin.PUSH), base=PARENT)
    assert bases(db) == []


def test_a_base_that_is_being_run_is_not_run_twice(db: Database) -> None:
    going_on = flow.order(db, PARENT)
    run = flow.order(db, origin=Origin.PULL_REQUEST, pull=7)
    flow.resolve(db, run, base=PARENT)
    assert flow.row(db, run).base_run_id == going_on


def test_a_base_that_was_run_here_is_not_run_again(db: Database) -> None:
    who = flow.worker(db)
    known = flow.started(db, ONE_CELL, PARENT)
    flow.complete(db, known, who)
    run = flow.order(db, matrix=ONE_CELL, origin=Origin.PULL_REQUEST, pull=7)
    flow.resolve(db, run, base=PARENT)
    assert flow.row(db, run).base_run_id == known


@pytest.mark.parametrize(
    "other",
    [
        {"toolchain": "another"},
        {"matrix": ONE_CELL},
        {"matrix": MATRIX.with_trials(2)},
        {"sequential": True},
    ],
    ids=["toolchain", "cells", "trials", "sequential"],
)
def test_a_run_of_the_base_that_cannot_be_compared_is_none(
    db: Database, other: dict[str, Any]
) -> None:
    flow.order(db, PARENT, **other)
    run = flow.order(db, origin=Origin.PULL_REQUEST, pull=7)
    flow.resolve(db, run, base=PARENT)
    assert len(bases(db)) == 2


def test_a_base_that_was_run_with_a_driver_that_is_gone_is_run_again(db: Database) -> None:
    old = flow.worker(db, "old")
    flow.complete(db, flow.started(db, ONE_CELL, PARENT), old)
    with db.session() as session:
        session.get_one(Worker, old).state = WorkerState.STOPPED
    flow.worker(db, "new", flow.OTHER_DRIVER)
    run = flow.order(db, matrix=ONE_CELL, origin=Origin.PULL_REQUEST, pull=7)
    flow.resolve(db, run, base=PARENT)
    assert len(bases(db)) == 2


# Its builds


def test_a_run_waits_for_all_its_builds(db: Database) -> None:
    run = flow.order(db)
    flow.resolve(db, run)
    first, second = flow.waiting(db)
    for wanted, state in ((first, RunState.BUILDING), (second, RunState.RUNNING)):
        with db.session() as session:
            job = builds.take(session, wanted, None)
            assert job is not None
        flow.finish(db, job, PreparedBuild(f"key {wanted}", folder="somewhere"))
        assert flow.row(db, run).state == state


def test_a_build_that_cannot_be_made_fails_the_run(db: Database) -> None:
    run = flow.order(db)
    flow.resolve(db, run)
    with db.session() as session:
        job = builds.take(session, flow.waiting(db)[0], None)
        assert job is not None
        builds.gave_up(session, job, "no compiler: set CXX", final=True)
    flow.step(db, run)
    ended = flow.row(db, run)
    assert (ended.state, ended.reason) == (
        RunState.FAILED,
        "build stock could not be made: no compiler: set CXX",
    )


def test_a_commit_that_does_not_build_is_a_complete_run_that_says_so(db: Database) -> None:
    run = flow.order(db)
    flow.resolve(db, run)
    flow.build(db, made={"stock": BROKEN, "instrumented": BROKEN})
    assert flow.row(db, run).state == RunState.COMPLETE
    for cell in flow.cells(db, run).values():
        assert (cell.outcome, cell.signature, cell.decided) == (
            "build_error",
            "no such file",
            "does not build",
        )


def test_cells_of_a_build_that_works_are_run_though_another_does_not(db: Database) -> None:
    who = flow.worker(db)
    run = flow.order(db)
    flow.resolve(db, run)
    flow.build(db, made={"instrumented": BROKEN})
    flow.complete(db, run, who)
    assert flow.row(db, run).state == RunState.COMPLETE
    assert set(flow.counts(db, run)) == {RACY, ALONE}


def test_a_fixed_commit_waits_for_its_bases_build_to_compare_with(db: Database) -> None:
    who = flow.worker(db)
    run = flow.order(db)
    flow.resolve(db, run, base=PARENT)
    flow.build(db, made={"stock": FIXED, "instrumented": replace(FIXED, key="fixed too")})
    assert flow.row(db, run).state == RunState.BUILDING
    flow.build(db, PARENT)
    assert flow.row(db, run).state == RunState.RUNNING
    owned = flow.cells(db, run)[OWNED]
    assert (owned.outcome, owned.signature) == ("unsupported", "not needed")
    batch = flow.taken(db, run, who)
    assert batch.base is not None
    assert batch.base["sha"] == PARENT


def test_a_fixed_commit_goes_on_without_a_base_that_cannot_be_built(db: Database) -> None:
    who = flow.worker(db)
    run = flow.order(db)
    flow.resolve(db, run, base=PARENT)
    flow.build(db, made={"stock": FIXED, "instrumented": replace(FIXED, key="fixed too")})
    with db.session() as session:
        job = builds.take(session, flow.waiting(db, PARENT)[0], None)
        assert job is not None
        builds.gave_up(session, job, "no compiler", final=True)
    flow.step(db, run)
    assert flow.taken(db, run, who).base is None


def test_commits_of_one_content_share_trials_so_the_second_is_complete_at_once(
    db: Database,
) -> None:
    who = flow.worker(db)
    first = flow.order(db)
    flow.resolve(db, first)
    flow.build(db, of="content")
    flow.complete(db, first, who)
    second = flow.order(db, OTHER)
    flow.resolve(db, second)
    flow.build(db, OTHER, of="content")
    assert flow.row(db, second).state == RunState.COMPLETE
    assert flow.counts(db, second) == flow.counts(db, first)
    assert {cell.recorded for cell in flow.cells(db, second).values()} == {0}


# Its trials


def test_as_many_workers_are_woken_as_there_are_trials_and_workers(db: Database) -> None:
    for name in ("one", "two", "three"):
        flow.worker(db, name)
    run = flow.started(db)
    locks = [job.lock for job in flow.jobs(db, "trials")]
    assert locks == [f"trials:{run}:{n}" for n in range(3)]
    flow.started(db, ONE_CELL.with_trials(2), sha=OTHER)
    assert len(flow.jobs(db, "trials")) == 5


def test_looking_again_changes_nothing(db: Database) -> None:
    flow.worker(db)
    run = flow.order(db)
    for move in (lambda: None, lambda: flow.resolve(db, run), lambda: flow.build(db)):
        move()
        flow.step(db, run)
        before = (flow.jobs(db), flow.row(db, run))
        flow.step(db, run)
        assert (flow.jobs(db), flow.row(db, run)) == before


def test_a_run_is_complete_once_every_cell_has_its_trials(db: Database) -> None:
    who = flow.worker(db)
    run = flow.started(db)
    flow.complete(db, run, who)
    ended = flow.row(db, run)
    assert (ended.state, ended.reason) == (RunState.COMPLETE, "")
    assert ended.parity is not None
    assert flow.counts(db, run) == {name: {"pass": 4} for name in (RACY, ALONE, OWNED)}


def test_a_run_is_not_complete_while_somebody_holds_trials_of_it(db: Database) -> None:
    who = flow.worker(db, parallel=12)
    run = flow.started(db)
    batch = flow.taken(db, run, who)
    flow.recording(db, batch, who).store_all()
    flow.step(db, run)
    assert flow.row(db, run).state == RunState.RUNNING
    flow.release(db, batch.claim)
    assert flow.row(db, run).state == RunState.COMPLETE


def test_attempts_that_settle_nothing_pause_the_run_then_end_it(db: Database) -> None:
    who = flow.worker(db)
    run = flow.started(db, ONE_CELL)
    pauses = []
    for _ in range(advance.SETBACKS):
        flow.fetched(db)
        batch = flow.taken(db, run, who)
        flow.release(db, batch.claim, ClaimState.LOST, "its worker was lost")
        pauses += [job.later for job in flow.jobs(db)]
    assert pauses == pytest.approx([10, 20], abs=5)
    ended = flow.row(db, run)
    assert ended.state == RunState.FAILED
    assert ended.reason == ("given up: 3 attempts in a row settled no trial: its worker was lost")


def test_infrastructure_errors_settle_nothing_and_end_the_run_in_the_end(db: Database) -> None:
    who = flow.worker(db)
    run = flow.started(db, ONE_CELL)
    for _ in range(advance.SETBACKS):
        flow.carry_out(db, run, who, Outcome.INFRA_ERROR)
    ended = flow.row(db, run)
    assert (ended.state, ended.reason) == (
        RunState.FAILED,
        "given up: 3 attempts in a row settled no trial: its trials settled nothing",
    )


def test_one_settled_trial_is_a_fresh_start(db: Database) -> None:
    who = flow.worker(db)
    run = flow.started(db, ONE_CELL)
    for _ in range(advance.SETBACKS - 1):
        flow.release(db, flow.taken(db, run, who).claim, ClaimState.LOST, "lost")
    batch = flow.taken(db, run, who)
    flow.recording(db, batch, who).store(RACY, Outcome.CRASH)
    flow.release(db, batch.claim, ClaimState.LOST, "lost")
    stored = flow.row(db, run)
    assert (stored.state, stored.setbacks, stored.reason) == (RunState.RUNNING, 0, "")


def test_after_a_fresh_start_nobody_waits_for_the_end_of_an_older_pause(db: Database) -> None:
    first, second = flow.worker(db, "first"), flow.worker(db, "second")
    run = flow.started(db)
    kept = flow.taken(db, run, first)
    lost = flow.taken(db, run, second)
    flow.fetched(db)
    flow.release(db, lost.claim, ClaimState.LOST, "lost")
    assert {round(job.later) > 0 for job in flow.jobs(db, "trials")} == {True}
    flow.recording(db, kept, first).store_all()
    flow.release(db, kept.claim)
    assert {job.later for job in flow.jobs(db, "trials")} == {0}


def test_a_sequential_run_stops_cells_that_are_decided(db: Database) -> None:
    who = flow.worker(db)
    run = flow.started(db, ONE_CELL.with_trials(1000), sequential=True)
    batch = flow.taken(db, run, who)
    flow.recording(db, batch, who).store_all(Outcome.CAPTURE_ERROR)
    flow.release(db, batch.claim)
    assert flow.row(db, run).state == RunState.COMPLETE
    cell = flow.cells(db, run)[RACY]
    assert cell.decided
    assert flow.counts(db, run)[RACY]["capture_error"] < 1000


def test_a_cancelled_run_does_not_move_on_whatever_a_session_saw_before(db: Database) -> None:
    run = flow.started(db, ONE_CELL)
    with db.session() as session:
        assert session.get_one(Run, run).state == RunState.RUNNING
        with db.session() as another:
            assert cancel(another, run, "not needed")
        advance.advance(session, run)
    ended = flow.row(db, run)
    assert (ended.state, ended.reason) == (RunState.CANCELLED, "not needed")


def test_a_run_that_ended_keeps_its_reason_when_a_claim_of_it_is_lost(db: Database) -> None:
    run = flow.started(db, ONE_CELL)
    batch = flow.taken(db, run, flow.worker(db))
    with db.session() as session:
        cancel(session, run, "not needed")
    flow.release(db, batch.claim, ClaimState.LOST, "its worker was lost")
    assert flow.row(db, run).reason == "not needed"


# Where it runs


def environments(db: Database, *workers: UUID) -> list[int | None]:
    """What these workers' trials run in."""
    with db.session() as session:
        return [session.get_one(Worker, one).environment_id for one in workers]


def test_a_run_goes_on_where_it_began_and_only_workers_there_are_woken(db: Database) -> None:
    here, there = flow.worker(db, "here", parallel=1), flow.worker(db, "there", flow.OTHER_DRIVER)
    environment, _ = environments(db, here, there)
    run = flow.started(db)
    assert {job.queue for job in flow.jobs(db, "trials")} == {"trial-emulated"}
    flow.fetched(db)
    flow.carry_out(db, run, here)
    assert [job.queue for job in flow.jobs(db, "trials")] == [f"environment-{environment}"]
    assert flow.take(db, run, there) is None
    assert flow.row(db, run).environment_id == environment


def test_a_run_whose_kind_of_worker_left_begins_anew_with_another(db: Database) -> None:
    here, there = flow.worker(db, "here", parallel=1), flow.worker(db, "there", flow.OTHER_DRIVER)
    run = flow.started(db)
    flow.carry_out(db, run, here)
    with db.session() as session:
        session.get_one(Worker, here).state = WorkerState.LOST
    flow.step(db, run)
    assert {job.queue for job in flow.jobs(db, "trials")} == {"trial-emulated"}
    while (batch := flow.take(db, run, there)) is not None:
        flow.recording(db, batch, there, flow.OTHER_DRIVER).store_all()
        flow.release(db, batch.claim)
    ended = flow.row(db, run)
    assert ended.state == RunState.COMPLETE
    assert [ended.environment_id] == environments(db, there)
    assert flow.counts(db, run) == {name: {"pass": 4} for name in (RACY, ALONE, OWNED)}


def test_nobody_else_begins_anew_while_a_worker_that_drains_ends_its_batch(db: Database) -> None:
    here, there = flow.worker(db, "here", parallel=1), flow.worker(db, "there", flow.OTHER_DRIVER)
    run = flow.started(db, ONE_CELL.with_trials(12))
    held = flow.taken(db, run, here)
    with db.session() as session:
        session.get_one(Worker, here).state = WorkerState.DRAINING
    flow.fetched(db)
    flow.step(db, run)
    assert flow.jobs(db, "trials") == []
    assert flow.take(db, run, there) is None
    flow.recording(db, held, here).store_all()
    flow.release(db, held.claim)
    assert [job.queue for job in flow.jobs(db, "trials")] == ["trial-emulated"]


# Who is missing


def test_a_run_says_which_worker_is_missing(db: Database) -> None:
    run = flow.order(db, matrix=ONE_CELL)
    flow.step(db, run)
    missing = "no worker takes {}: start a `racewatch worker`{} for it"
    assert flow.row(db, run).reason == missing.format("git-demo", "")
    flow.worker(db, "builds", device=None)
    flow.step(db, run)
    assert flow.row(db, run).reason == ""
    flow.resolve(db, run)
    flow.build(db)
    assert flow.row(db, run).reason == missing.format("trial-emulated", "")
    flow.worker(db, "tries")
    flow.step(db, run)
    assert flow.row(db, run).reason == ""


def test_a_forks_code_waits_for_a_worker_with_containers(db: Database) -> None:
    plain = flow.worker(db, "plain")
    run = flow.order(db, trusted=False)
    flow.resolve(db, run)
    assert "--sandbox docker" in flow.row(db, run).reason
    assert {job.queue for job in flow.jobs(db, "build")} == {"forks-build-demo"}
    with db.session() as session:
        assert builds.take(session, flow.waiting(db)[0], plain) is None
    flow.build(db)
    assert {job.queue for job in flow.jobs(db, "trials")} == {"forks-trial-emulated"}
    assert flow.take(db, run, plain) is None
    flow.worker(db, "contained", contained=True)
    flow.step(db, run)
    assert flow.row(db, run).reason == ""


def test_nobody_is_woken_for_a_build_that_is_being_made(db: Database) -> None:
    run = flow.order(db, matrix=ONE_CELL)
    flow.resolve(db, run)
    with db.session() as session:
        assert builds.take(session, flow.waiting(db)[0], None) is not None
    flow.fetched(db)
    flow.step(db, run)
    assert flow.jobs(db) == []


def test_a_matrix_that_merges_pull_requests_keeps_the_builds_it_began_with(db: Database) -> None:
    who = flow.worker(db)
    merging = matrices.from_data(
        {"name": "merging", "cells": [{"variant": "pr-12", "trials": 4, "name": "merged"}]}
    )
    first = flow.started(db, merging)
    second = flow.order(db, HEAD, merging)
    flow.resolve(db, second)
    assert len(flow.waiting(db)) == 1
    batch = flow.taken(db, first, who)
    assert batch.keys["pr-12+stock"] == f"pr-12+stock of {HEAD}"


@pytest.mark.parametrize(
    ("variant", "trusted", "base_trusted"),
    [("pr-12", False, False), ("pr-12", True, True), ("stock", False, True)],
)
def test_a_base_that_merges_what_nobody_vouches_for_is_not_trusted_either(
    db: Database, variant: str, trusted: bool, base_trusted: bool
) -> None:
    matrix = matrices.from_data({"name": "m", "cells": [{"name": "c", "variant": variant}]})
    run = flow.order(
        db, matrix=matrix, pull=5, ref="pull/5", origin=Origin.PULL_REQUEST, trusted=trusted
    )
    flow.resolve(db, run, base=flow.PARENT)
    base = flow.row(db, run).base_run_id
    assert base is not None
    assert flow.row(db, base).trusted is base_trusted
