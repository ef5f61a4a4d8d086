"""Builds are made once, under a token, as often as the host is at fault, and for who needs them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

import pytest
from sqlmodel import Session, select

from runner import matrix as matrices
from runner.run import PreparedBuild
from service import builds, claims
from service.builds import BuildJob
from service.database import Database
from service.submit import cancel
from service.tables import Build, BuildState, CommitBuild, Origin, RunState
from tests.service import flow
from tests.service.flow import MATRIX, ONE_CELL, PARENT

MADE = PreparedBuild("a key", folder="somewhere")
PULL = matrices.from_data({"name": "p", "cells": [{"variant": "pr-12", "name": "merged"}]})


def ordered(db: Database, **more: object) -> UUID:
    """A run with one build to make."""
    run = flow.order(db, matrix=ONE_CELL, **more)
    flow.resolve(db, run)
    return run


def row(db: Database, name: str = "stock") -> CommitBuild:
    with db.session() as session:
        return session.exec(select(CommitBuild).where(CommitBuild.name == name)).one()


def take(db: Database, contained: bool = False) -> BuildJob | None:
    with db.session() as session:
        wanted = session.exec(select(CommitBuild.id).where(CommitBuild.name == "stock")).one()
        assert wanted is not None
        return builds.take(session, wanted, None, contained)


def taken(db: Database) -> BuildJob:
    job = take(db)
    assert job is not None
    return job


def apply(db: Database, work: Callable[[Session], object]) -> object:
    with db.session() as session:
        return work(session)


def test_two_runs_of_a_commit_share_its_builds_and_their_job(db: Database) -> None:
    ordered(db)
    ordered(db)
    assert len(flow.waiting(db)) == 1
    assert len(flow.jobs(db, "build")) == 1


def test_the_most_urgent_run_gives_a_build_its_priority(db: Database) -> None:
    ordered(db, origin=Origin.BACKFILL)
    assert [job.priority for job in flow.jobs(db, "build")] == [10]
    ordered(db, origin=Origin.PULL_REQUEST, pull=7)
    assert [job.priority for job in flow.jobs(db, "build")] == [40]


def test_a_build_is_taken_once(db: Database) -> None:
    ordered(db)
    job = taken(db)
    assert (job.name, job.commit["sha"], job.architecture) == ("stock", flow.HEAD, "emulated")
    assert take(db) is None
    assert (row(db).state, row(db).token, row(db).attempts) == (BuildState.BUILDING, job.token, 1)


def test_a_build_that_nobody_needs_any_more_is_not_taken(db: Database) -> None:
    run = ordered(db)
    apply(db, lambda s: cancel(s, run, "not needed"))
    assert take(db) is None
    assert row(db).state == BuildState.WAITING


def test_a_build_that_is_made_is_stored_under_its_key(db: Database) -> None:
    ordered(db)
    job = taken(db)
    assert apply(db, lambda s: builds.done(s, job, MADE))
    assert (row(db).state, row(db).token) == (BuildState.DONE, None)
    with db.session() as session:
        assert session.get_one(Build, row(db).build_id).key == "a key"


def test_an_attempt_that_lost_its_token_writes_nothing(db: Database) -> None:
    ordered(db)
    late = taken(db)
    with db.session() as session:
        builds.put_back(session, session.get_one(CommitBuild, late.id), "its worker was lost")
    for writes in (
        lambda s: builds.done(s, late, PreparedBuild("late")),
        lambda s: builds.gave_up(s, late, "late", final=True),
        lambda s: builds.stopped(s, late),
        lambda s: builds.alive(s, late),
    ):
        assert not apply(db, writes)
    assert row(db).state == BuildState.WAITING
    newer = taken(db)
    assert not apply(db, lambda s: builds.done(s, late, PreparedBuild("late")))
    assert row(db).token == newer.token
    with db.session() as session:
        assert session.exec(select(Build)).all() == []


def test_a_build_goes_on_as_long_as_one_run_needs_it(db: Database) -> None:
    first, second = ordered(db), ordered(db)
    job = taken(db)
    apply(db, lambda s: cancel(s, first, "not needed"))
    assert apply(db, lambda s: builds.alive(s, job))
    apply(db, lambda s: cancel(s, second, "not needed"))
    assert not apply(db, lambda s: builds.alive(s, job))


def test_a_run_whose_trials_began_needs_no_further_build_of_its_commit(db: Database) -> None:
    running = flow.started(db, ONE_CELL)
    whole = flow.order(db, matrix=MATRIX)
    flow.resolve(db, whole)
    (wanted,) = flow.waiting(db)
    with db.session() as session:
        job = builds.take(session, wanted, None)
        assert job is not None
    apply(db, lambda s: cancel(s, whole, "not needed"))
    assert not apply(db, lambda s: builds.alive(s, job))
    assert flow.row(db, running).state == RunState.RUNNING


def test_a_base_needs_its_stock_build_for_who_is_compared_with_it(db: Database) -> None:
    run = flow.order(db)
    flow.resolve(db, run, base=PARENT)
    fixed = PreparedBuild("fixed", folder="somewhere", owned_stream_needed=False)
    flow.build(db, made={"stock": fixed})
    with db.session() as session:
        wanted = session.get_one(CommitBuild, flow.waiting(db, PARENT)[0])
        assert wanted.name == "stock"
        assert [one.id for one in builds.needing(session, wanted)] == [run]


def test_a_build_that_says_it_lives_is_seen_by_the_databases_clock(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host's clock, an hour behind here, is the only thing that is no real one."""
    slow = flow.moment(db) - timedelta(hours=1)
    for module in ("submit", "advance", "tables.columns"):
        monkeypatch.setattr(f"service.{module}.now", lambda: slow)
    ordered(db)
    job = taken(db)
    began = row(db).heartbeat_at
    assert began is not None
    assert flow.moment(db) - began < timedelta(minutes=1)
    flow.silent(db, "commit_builds")
    assert apply(db, lambda s: builds.alive(s, job))
    spoken = row(db).heartbeat_at
    assert spoken is not None
    assert flow.moment(db) - spoken < timedelta(minutes=1)


def test_a_host_at_fault_is_given_more_attempts_with_growing_pauses_then_no_more(
    db: Database,
) -> None:
    run = ordered(db)
    pauses = []
    for _ in range(builds.ATTEMPTS):
        flow.fetched(db)
        job = taken(db)
        assert apply(db, lambda s, job=job: builds.gave_up(s, job, "the disk is full"))
        flow.step(db, run)
        pauses += [job.later for job in flow.jobs(db, "build")]
    assert pauses == pytest.approx([15, 30, 60], abs=7)
    assert (row(db).state, row(db).reason) == (BuildState.FAILED, "the disk is full")
    assert flow.row(db, run).reason == "build stock could not be made: the disk is full"


def test_a_build_that_kills_its_worker_each_time_is_given_up(db: Database) -> None:
    run = ordered(db)
    for _ in range(builds.ATTEMPTS):
        job = taken(db)
        with db.session() as session:
            builds.put_back(session, session.get_one(CommitBuild, job.id), "its worker was lost")
    flow.step(db, run)
    ended = flow.row(db, run)
    assert (ended.state, ended.reason) == (
        RunState.FAILED,
        "build stock could not be made: its worker was lost",
    )


def test_the_pause_after_a_failed_attempt_holds_for_every_run_that_needs_it(db: Database) -> None:
    ordered(db)
    flow.fetched(db)
    job = taken(db)
    apply(db, lambda s: builds.gave_up(s, job, "the disk is full"))
    ordered(db, origin=Origin.PULL_REQUEST, pull=7)
    (job,) = flow.jobs(db, "build")
    assert job.priority == 40
    assert job.later == pytest.approx(15, abs=7)


def test_what_can_never_be_made_is_tried_once(db: Database) -> None:
    ordered(db)
    job = taken(db)
    apply(db, lambda s: builds.gave_up(s, job, "no such toolchain", final=True))
    assert row(db).state == BuildState.FAILED


def test_a_stopped_build_costs_no_attempt_and_goes_to_others_at_once(db: Database) -> None:
    ordered(db)
    flow.fetched(db)
    job = taken(db)
    apply(db, lambda s: builds.stopped(s, job))
    assert (row(db).state, row(db).attempts) == (BuildState.WAITING, 0)
    assert [job.later for job in flow.jobs(db, "build")] == [0]


def test_a_new_run_has_a_failed_build_tried_anew_and_an_old_one_has_not(db: Database) -> None:
    old = ordered(db)
    job = taken(db)
    apply(db, lambda s: builds.gave_up(s, job, "no such toolchain", final=True))
    flow.step(db, old)
    assert row(db).state == BuildState.FAILED
    assert flow.row(db, old).state == RunState.FAILED
    ordered(db)
    assert (row(db).state, row(db).attempts) == (BuildState.WAITING, 0)


def test_what_merges_a_pull_request_is_made_anew_for_each_run(db: Database) -> None:
    flow.started(db, PULL)
    flow.resolve(db, flow.order(db, matrix=PULL))
    assert row(db, "pr-12+stock").state == BuildState.WAITING
    assert row(db, "stock").state == BuildState.DONE


def test_a_trusted_run_vouches_for_a_build_that_a_forks_run_needs_too(db: Database) -> None:
    ordered(db, trusted=False)
    assert [job.queue for job in flow.jobs(db, "build")] == ["forks-build-demo"]
    assert take(db) is None
    ordered(db)
    assert [job.queue for job in flow.jobs(db, "build")] == ["build-demo"]
    assert take(db) is not None


def test_a_job_in_the_wrong_queue_is_passed_on(db: Database) -> None:
    ordered(db, trusted=False)
    vouching = ordered(db)
    flow.fetched(db)
    apply(db, lambda s: cancel(s, vouching, "not needed"))
    assert take(db) is None
    assert [job.queue for job in flow.jobs(db, "build")] == ["forks-build-demo"]
    assert take(db, contained=True) is not None


def test_a_run_keeps_its_builds(db: Database) -> None:
    run = flow.started(db)
    with db.session() as session:
        kept = builds.of_run(session, claims.locked(session, run))  # type: ignore[arg-type]
        assert {name: build.key for name, build in kept.items()} == {
            name: f"{name} of {flow.HEAD}" for name in ("stock", "instrumented")
        }
