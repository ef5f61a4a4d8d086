"""What a bisection takes as an observation, from what is stored."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from sqlmodel import Session, col, select

from runner import matrix as matrices
from runner.bisect.events import Observation, Seen
from runner.bisect.range import BuildClass, Range
from runner.bisect.settings import Observe
from runner.outcome import Outcome
from runner.result import Commit
from service import bisection, rows
from service.bisection import BisectionRequest
from service.database import Database
from service.github import pulls
from service.queue import trial_queue
from service.settings import ServiceSettings
from service.tables import (
    Bisection,
    BisectionState,
    Claim,
    Measurement,
    Origin,
    Pull,
    Run,
    RunCell,
    RunState,
    Trial,
    Worker,
)
from service.tables.columns import now
from service.worker import WorkerOptions, WorkerProcess
from tests.service import flow
from tests.service.reading.bisected import Bisections, Truth, path
from tests.service.stories import BASE, CLEAN, H200, HEAD, MATRIX, RACY, STOCK, run_of

GOOD, BAD = Commit(BASE, "main", "Good"), Commit(HEAD, "main", "Bad")
SEARCHED = Range(
    GOOD, BAD, "stock", (BuildClass("good", (GOOD,)), BuildClass("bad", (BAD,), blamed=BAD))
)


def ordered(session: Session, observe: Observe) -> UUID:
    """A bisection between the two, whose range is known."""
    request = BisectionRequest(
        subject="te", good=BASE, bad=HEAD, matrix=MATRIX, cell=STOCK, queue="sm90", observe=observe
    )
    identity = bisection.order(session, request).id
    bisection.ranged(session, identity, {"range": SEARCHED.to_data()})
    return identity


def seen(session: Session, identity: UUID) -> list[Any]:
    return bisection.events(session, session.get_one(Bisection, identity))


@pytest.mark.parametrize(
    ("observe", "counts"),
    [
        (Observe.FAILURE, {"good": (0, 100), "bad": (100, 100)}),
        (Observe.SWALLOW, {"bad": (7, 60)}),  # nobody watched the good end's trials
    ],
)
def test_trials_of_the_same_builds_are_observations_for_nothing(
    db: Database, observe: Observe, counts: dict[str, tuple[int, int]]
) -> None:
    with db.session() as session:
        run_of(session, CLEAN, BASE, pull=None, origin=Origin.PUSH)
        run = run_of(session, RACY, HEAD, pull=None, origin=Origin.PUSH)
        cell = session.exec(
            select(RunCell).where(RunCell.run_id == run.id, RunCell.name == STOCK)
        ).one()
        measurement = session.get_one(Measurement, cell.measurement_id)
        measurement.watched, measurement.swallowed = 60, 7
        session.add(measurement)
        session.flush()
        identity = ordered(session, observe)
        found = {one.key: (one.k, one.n) for one in seen(session, identity)}
        state = bisection.state_of(session.get_one(Bisection, identity), seen(session, identity))
    assert found == counts
    assert state is not None
    assert state.settings.observe is observe
    assert state.spent.trials == 0


def test_trials_where_no_probe_can_run_are_no_observations(db: Database) -> None:
    """A driver that was replaced, say, or a toolchain."""
    with db.session() as session:
        for letters, sha in ((CLEAN, BASE), (RACY, HEAD)):
            run_of(session, letters, sha, pull=None, origin=Origin.PUSH)
        worker = Worker(name="w", host="here", pid=1, queues=[trial_queue("sm90")])
        session.add(worker)
        here = session.exec(select(Measurement.environment_id)).first()
        worker.environment_id = here
        session.flush()
        assert len(seen(session, ordered(session, Observe.FAILURE))) == 2
        other = rows.environment_row(session, replace(H200, driver="700.1"), "another", "2")
        worker.environment_id = other.id
        session.flush()
        assert seen(session, ordered(session, Observe.FAILURE)) == []


@pytest.mark.parametrize(
    ("foreign", "observed"),
    [
        ((0, 3, None, 9), Observation("bad", k=2, n=3)),
        (
            (None, None, None, None),
            Observation("bad", Seen.INFRASTRUCTURE, reason="no trial was watched by the detector"),
        ),
    ],
    ids=["some were watched", "none was"],
)
def test_swallows_are_counted_over_trials_that_were_watched(
    db: Database, foreign: tuple[int | None, ...], observed: Observation
) -> None:
    with db.session() as session:
        identity = ordered(session, Observe.SWALLOW)
        row = session.get_one(Bisection, identity)
        probe = next(
            run for run in bisection.probes(session, row) if bisection.probe_of(run).key == "bad"
        )
        assert matrices.from_data(probe.matrix).detect
        _end(session, probe, foreign)
        bisection.advance(session, identity)
        (found,) = seen(session, identity)
    assert (found.key, found.seen, found.k, found.n, found.reason) == (
        observed.key, observed.seen, observed.k, observed.n, observed.reason,
    )  # fmt: skip


def _end(session: Session, run: Run, foreign: tuple[int | None, ...]) -> None:
    """End a probe with so many passes, and one trial that the device could not run."""
    cell = session.exec(select(RunCell).where(RunCell.run_id == run.id)).one()
    claim = Claim(run_id=run.id)
    like = run_of(session, CLEAN, "e" * 40, pull=None, origin=Origin.PUSH)
    there = session.exec(
        select(RunCell.measurement_id).where(
            RunCell.run_id == like.id, col(RunCell.measurement_id).is_not(None)
        )
    ).first()
    session.add(claim)
    session.flush()
    for index, nodes in enumerate((*foreign, 5)):
        outcome = Outcome.PASS if index < len(foreign) else Outcome.INFRA_ERROR
        session.add(
            Trial(
                measurement_id=there, run_id=run.id, run_cell_id=cell.id, claim_id=claim.id,
                index=index, outcome=str(outcome), foreign_nodes=nodes,
            )
        )  # fmt: skip
    run.state, run.finished_at = RunState.COMPLETE, now()
    session.add(run)
    session.flush()


def verified(session: Session) -> tuple[Bisections, UUID]:
    """One whose culprit was checked, and is to be reverted on the head."""
    them = Bisections(session)
    searched = path("te", 6)
    identity = them.order("te", "sm90", "v2.7", "v2.9")
    them.ranged(identity, searched)
    truth = Truth.of(searched, 3, 0.0, 0.5)
    row = session.get_one(Bisection, identity)
    while bisection.decision(session, row).revert is None:
        them.go(identity, truth, most=1)
    return them, identity


def test_a_range_that_no_host_can_read_ends_with_the_reason(db: Database) -> None:
    with db.session() as session:
        identity = Bisections(session).order("te", "sm90", "v2.7", "v2.9")
        for _ in range(bisection.LOOKS):
            assert session.get_one(Bisection, identity).state == BisectionState.QUEUED
            bisection.held_up(session, identity, "range", "the repository cannot be fetched: gone")
        row = session.get_one(Bisection, identity)
    assert row.state == BisectionState.FAILED
    assert row.reason == (
        f"given up: git told nothing in {bisection.LOOKS} attempts: the repository cannot be "
        "fetched: gone"
    )


def test_a_culprit_stands_though_no_host_can_revert_it(db: Database) -> None:
    with db.session() as session:
        _, identity = verified(session)
        for _ in range(bisection.LOOKS):
            bisection.held_up(session, identity, "revert", "git version 2.34 cannot merge")
        row = session.get_one(Bisection, identity)
    assert (row.state, row.reason) == (BisectionState.DONE, "")
    assert row.verdict is not None
    assert row.verdict["kind"] == "culprit"
    assert "not reverted on the head: git version 2.34 cannot merge" in row.verdict["text"]


def test_a_culprit_stands_though_its_commit_is_gone_meanwhile(db: Database) -> None:
    with db.session() as session:
        _, identity = verified(session)
        bisection.refused(session, identity, "revert", "ref 'v2.9' names nothing")
        row = session.get_one(Bisection, identity)
    assert row.verdict is not None
    assert "not reverted on the head: ref 'v2.9' names nothing" in row.verdict["text"]


def test_what_git_tells_in_the_end_ends_the_setbacks(db: Database) -> None:
    with db.session() as session:
        them = Bisections(session)
        identity = them.order("te", "sm90", "v2.7", "v2.9")
        bisection.held_up(session, identity, "range", "the repository cannot be fetched: gone")
        them.ranged(identity, path("te", 6))
        row = session.get_one(Bisection, identity)
    assert (row.state, row.setbacks, row.reason) == (BisectionState.RUNNING, 0, "")


@pytest.mark.parametrize(
    ("known", "trusted"), [({"fork": False}, True), ({"fork": True}, False), (None, False)]
)
def test_what_merges_a_forks_pull_request_runs_in_containers_only(
    db: Database, known: dict[str, object] | None, trusted: bool
) -> None:
    merging = {"name": "merged", "variant": "pr-12", "trials": 8}
    matrix = matrices.from_data({"name": "m", "cells": [merging]})
    with db.session() as session:
        if known is not None:
            values = pulls.unknown_pull(subject="te", number=12, head_sha="f" * 40)
            session.add(Pull(**(values | known)))
            session.flush()
        request = BisectionRequest("te", BASE, HEAD, matrix, "merged", "sm90")
        identity = bisection.order(session, request).id
        merged = replace(SEARCHED, build="pr-12+stock")
        bisection.ranged(session, identity, {"range": merged.to_data()})
        probes = bisection.probes(session, session.get_one(Bisection, identity))
        assert [run.trusted for run in probes] == [trusted] * 2


def test_a_job_for_what_is_known_by_now_wakes_who_finds_out_the_next(db: Database) -> None:
    with db.session() as session:
        _, identity = verified(session)
    flow.fetched(db)
    options = WorkerOptions(subjects=("te",))
    worker = WorkerProcess(ServiceSettings(database_url=""), db, options)
    worker.bisect(identity, "range", 0)
    assert [job.lock for job in flow.jobs(db, "bisect")] == [f"bisect:{identity}"]
