"""Trials are claimed by one worker each, stored under a live claim only, and counted once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlmodel import col, func, select

from runner import controls, result
from runner.errors import InfrastructureError
from runner.outcome import Outcome
from service import claims
from service.claims import ClaimLost
from service.database import Database
from service.submit import cancel
from service.tables import (
    Cell,
    Claim,
    ClaimCell,
    ClaimState,
    Measurement,
    RunState,
    Trial,
    Worker,
    WorkerState,
)
from tests.service import flow
from tests.service.flow import ALONE, MATRIX, ONE_CELL, OWNED, RACY


def sizes(batch: claims.Batch) -> dict[str, int]:
    """Trials of a batch by cell."""
    return {cell.name: cell.trials for cell in batch.matrix.cells}


def claim(db: Database, identity: object) -> Claim:
    with db.session() as session:
        return session.get_one(Claim, identity)


# Taking


def test_a_share_is_of_every_cell_alike(db: Database) -> None:
    one, _ = flow.worker(db, "one"), flow.worker(db, "two")
    run = flow.started(db)
    assert sizes(flow.taken(db, run, one)) == {RACY: 2, ALONE: 2, OWNED: 2}


def test_what_is_claimed_is_not_claimed_again(db: Database) -> None:
    one, two = flow.worker(db, "one"), flow.worker(db, "two")
    run = flow.started(db)
    first, second = sizes(flow.taken(db, run, one)), sizes(flow.taken(db, run, two))
    assert Counter(first) + Counter(second) == {RACY: 4, ALONE: 4, OWNED: 4}
    assert flow.take(db, run, one) is None


def test_a_share_is_at_least_what_the_worker_runs_at_a_time(db: Database) -> None:
    for name in "abcdef":
        flow.worker(db, name)
    wide = flow.worker(db, "wide", parallel=8)
    run = flow.started(db)
    assert sum(sizes(flow.taken(db, run, wide)).values()) == 8


def test_a_batch_is_as_long_as_asked_for_by_the_pace_so_far(db: Database) -> None:
    who = flow.worker(db, parallel=1)
    run = flow.started(db, MATRIX.with_trials(100))
    first = flow.taken(db, run, who)
    assert sum(sizes(first).values()) == claims.FIRST_BATCH
    recording = flow.recording(db, first, who)
    recording.store_all()
    for _ in range(4):  # they take time too, which says nothing of how slow this run's trials are
        recording.store(f"{controls.PREFIX}{controls.Control.KNOWN_BAD}", Outcome.CRASH)
    flow.release(db, first.claim)
    with db.session() as session:  # as if its 12 trials had taken 6 seconds
        row = session.get_one(Claim, first.claim)
        assert row.finished_at is not None
        row.created_at = row.finished_at - timedelta(seconds=6)
        session.add(row)
    assert sum(sizes(flow.taken(db, run, who, batch_s=10)).values()) == 20


def test_only_a_run_whose_trials_are_due_is_taken(db: Database) -> None:
    who = flow.worker(db)
    run = flow.order(db)
    assert flow.take(db, run, who) is None
    flow.resolve(db, run)
    assert flow.take(db, run, who) is None
    flow.build(db)
    with db.session() as session:
        cancel(session, run, "not needed")
    assert flow.take(db, run, who) is None
    assert flow.take(db, uuid4(), who) is None


def test_only_the_share_of_those_who_take_part_counts(db: Database) -> None:
    here = flow.worker(db, "here")
    flow.worker(db, "there", flow.OTHER_DRIVER)
    flow.worker(db, "drains", state=WorkerState.DRAINING)
    flow.worker(db, "builds", device=None)
    run = flow.started(db)
    assert sum(sizes(flow.taken(db, run, here)).values()) == 12


def test_a_forks_trials_are_left_to_workers_with_containers(db: Database) -> None:
    who = flow.worker(db, contained=True)
    run = flow.started(db, ONE_CELL, trusted=False)
    assert flow.take(db, run, who) is None
    with db.session() as session:
        worker = session.get_one(Worker, who)
        assert claims.take(session, run, worker, 60.0, contained=True) is not None


def test_a_batch_names_builds_and_where_its_commit_is_found(db: Database) -> None:
    who = flow.worker(db)
    run = flow.started(db)
    batch = flow.taken(db, run, who)
    assert batch.keys == {name: f"{name} of {flow.HEAD}" for name in ("stock", "instrumented")}
    assert (batch.commit["sha"], batch.commit["ref"], batch.base) == (flow.HEAD, flow.HEAD, None)
    pull = flow.started(db, ref="pull/7", pull=7)
    assert flow.taken(db, pull, who).commit["ref"] == "pull/7"


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(st.sampled_from(["take", "store", "lose", "end"]), st.integers(0, 2)),
        min_size=4,
        max_size=16,
    )
)
def test_never_more_is_held_than_is_lacking(db: Database, steps: list[tuple[str, int]]) -> None:
    workers = [flow.worker(db, f"{n}", parallel=1) for n in range(3)]
    run = flow.started(db, MATRIX, sha=uuid4().hex)
    held: dict[int, flow.Recording] = {}
    for what, n in steps:
        if what == "take" and n not in held:
            if (batch := flow.take(db, run, workers[n], 1.0)) is not None:
                held[n] = flow.recording(db, batch, workers[n])
        elif n in held and what == "store":
            for cell in held[n].batch.matrix.cells[:2]:
                held[n].store(cell.name)
        elif n in held:
            state = ClaimState.LOST if what == "lose" else ClaimState.DONE
            flow.release(db, held.pop(n).batch.claim, state, "lost")
        _check(db, run)
    for n, recording in held.items():
        flow.release(db, recording.batch.claim)
        _check(db, run)
        assert n in range(3)


def _check(db: Database, run: object) -> None:
    with db.session() as session:
        row = claims.locked(session, run)  # type: ignore[arg-type]
        assert row is not None
        if row.state != RunState.RUNNING:
            return
        for one in claims.remaining(session, row):
            assert 0 <= one.unclaimed <= one.trials <= one.cell.wanted


# Storing


def test_a_trial_is_stored_counted_and_noted_in_its_claim(db: Database) -> None:
    who = flow.worker(db)
    run = flow.started(db, ONE_CELL)
    batch = flow.taken(db, run, who)
    recording = flow.recording(db, batch, who)
    assert recording.store(RACY, Outcome.HANG)
    assert flow.counts(db, run) == {RACY: {"hang": 1}}
    assert flow.cells(db, run)[RACY].recorded == 1
    with db.session() as session:
        trial = session.exec(select(Trial)).one()
        assert (trial.worker_id, trial.claim_id, trial.outcome) == (who, batch.claim, "hang")
        assert session.exec(select(ClaimCell.recorded)).one() == 1


def test_the_same_trial_again_counts_nothing(db: Database) -> None:
    who = flow.worker(db)
    run = flow.started(db, ONE_CELL)
    recording = flow.recording(db, flow.taken(db, run, who), who)
    assert recording.store(RACY)
    recording.index -= 1
    assert not recording.store(RACY)
    assert flow.counts(db, run) == {RACY: {"pass": 1}}
    with db.session() as session:
        assert session.exec(select(ClaimCell.recorded)).one() == 1


@pytest.mark.parametrize("state", [ClaimState.LOST, ClaimState.DONE, ClaimState.CANCELLED])
def test_under_a_claim_that_ended_nothing_is_stored(db: Database, state: ClaimState) -> None:
    who = flow.worker(db)
    run = flow.started(db, ONE_CELL)
    recording = flow.recording(db, flow.taken(db, run, who), who)
    flow.release(db, recording.batch.claim, state, "its worker was lost")
    with pytest.raises(ClaimLost, match=f"the claim is {state}: its worker was lost"):
        recording.store(RACY)
    with pytest.raises(ClaimLost):
        flow.recording(db, recording.batch, who)
    assert flow.counts(db, run) == {RACY: {}}


def test_an_infrastructure_error_is_counted_and_settles_nothing(db: Database) -> None:
    who = flow.worker(db)
    run = flow.started(db, ONE_CELL)
    batch = flow.taken(db, run, who)
    flow.recording(db, batch, who).store_all(Outcome.INFRA_ERROR)
    flow.release(db, batch.claim)
    assert flow.counts(db, run) == {RACY: {"infra_error": 4}}
    assert sizes(flow.taken(db, run, who)) == {RACY: 4}


def test_what_a_device_cannot_run_is_settled(db: Database) -> None:
    who = flow.worker(db)
    run = flow.started(db, ONE_CELL)
    flow.complete(db, run, who, Outcome.UNSUPPORTED)
    assert flow.row(db, run).state == RunState.COMPLETE
    assert flow.counts(db, run) == {RACY: {"unsupported": 4}}


def test_a_reference_counts_for_no_cell(db: Database) -> None:
    who = flow.worker(db)
    run = flow.started(db, ONE_CELL)
    recording = flow.recording(db, flow.taken(db, run, who), who)
    recording.store(f"{result.REFERENCE}norm-act-gemm", digests=("d",), recipe="bf16")
    recording.store(f"{result.BASE}norm-act-gemm", digests=("d",), recipe="bf16")
    assert flow.counts(db, run) == {RACY: {}}
    with db.session() as session:
        (reference,) = session.exec(select(Cell).where(col(Cell.reference))).all()
        measured = session.exec(select(Measurement).where(Measurement.cell_id == reference.id))
        assert [m.n for m in measured] == [2]
        assert session.exec(select(func.count()).where(col(Trial.run_cell_id).is_(None))).one() == 2


def test_a_build_that_nobody_ordered_is_the_hosts_fault(db: Database) -> None:
    who = flow.worker(db)
    run = flow.started(db, ONE_CELL)
    recording = flow.recording(db, flow.taken(db, run, who), who)
    with pytest.raises(InfrastructureError, match="another, which nobody ordered: hosts that"):
        recording.store(f"{result.BASE}norm-act-gemm", build="another")


def test_trials_count_where_they_ran_though_their_run_has_gone_elsewhere(db: Database) -> None:
    here = flow.worker(db, "here", parallel=1)
    run = flow.started(db, ONE_CELL)
    old = flow.recording(db, flow.taken(db, run, here), here)
    with db.session() as session:  # another environment takes the run over meanwhile
        row = claims.locked(session, run)
        assert row is not None
        other = claims.rows.environment_row(session, flow.OTHER_DRIVER, flow.TOOLCHAIN, "2")
        claims.bind(session, row, other)
    old.store(RACY, Outcome.CRASH)
    assert flow.counts(db, run) == {RACY: {}}
    with db.session() as session:
        found = session.exec(select(Measurement).where(Measurement.crash == 1)).one()
        assert found.environment_id == session.get_one(Worker, here).environment_id


def test_a_worker_that_learns_its_versions_late_binds_the_run_to_them(db: Database) -> None:
    who = flow.worker(db)
    run = flow.started(db, ONE_CELL)
    recording = flow.recording(db, flow.taken(db, run, who), who, flow.OTHER_DRIVER)
    recording.store_all()
    flow.release(db, recording.batch.claim)
    ended = flow.row(db, run)
    assert ended.state == RunState.COMPLETE
    with db.session() as session:
        other = claims.rows.environment_row(session, flow.OTHER_DRIVER, flow.TOOLCHAIN, "2")
        assert ended.environment_id == other.id


def test_a_batch_that_could_import_nothing_leaves_its_run_where_it_is(db: Database) -> None:
    """Its versions are not known then, and no environment of its own."""
    gpu = replace(flow.EMULATED, kind="cuda", jax="0.11.2")
    who = flow.worker(db, device=gpu)
    run = flow.started(db, ONE_CELL)
    bound = flow.row(db, run).environment_id
    recording = flow.recording(db, flow.taken(db, run, who), who, replace(gpu, jax=""))
    recording.store(RACY, Outcome.INFRA_ERROR)
    assert flow.row(db, run).environment_id == bound
    assert flow.counts(db, run) == {RACY: {"infra_error": 1}}


def test_adaptive_trials_are_counted_apart(db: Database) -> None:
    who = flow.worker(db)
    flow.complete(db, flow.started(db, ONE_CELL), who)
    sequential = flow.started(db, ONE_CELL, sequential=True)
    assert flow.counts(db, sequential) == {RACY: {}}
    flow.carry_out(db, sequential, who)
    assert flow.counts(db, sequential) == {RACY: {"pass": 4}}


# Living and ending


def test_a_held_claim_says_so_by_the_databases_clock(db: Database) -> None:
    batch = flow.taken(db, flow.started(db, ONE_CELL), flow.worker(db))
    flow.silent(db, "claims")
    with db.session() as session:
        assert claims.alive(session, batch.claim)
    assert flow.moment(db) - claim(db, batch.claim).heartbeat_at < timedelta(minutes=1)


def test_a_claim_of_a_cancelled_run_is_not_to_go_on(db: Database) -> None:
    run = flow.started(db, ONE_CELL)
    batch = flow.taken(db, run, flow.worker(db))
    with db.session() as session:
        cancel(session, run, "not needed")
    with db.session() as session:
        assert not claims.alive(session, batch.claim)


def test_a_claim_ends_once(db: Database) -> None:
    batch = flow.taken(db, flow.started(db, ONE_CELL), flow.worker(db))
    with db.session() as session:
        assert claims.release(session, batch.claim, ClaimState.LOST, "lost")
    with db.session() as session:
        assert not claims.release(session, batch.claim, ClaimState.DONE)
        assert not claims.alive(session, batch.claim)
    assert (claim(db, batch.claim).state, claim(db, batch.claim).reason) == (
        ClaimState.LOST,
        "lost",
    )


def test_what_a_worker_gives_back_is_no_setback(db: Database) -> None:
    run = flow.started(db, ONE_CELL)
    batch = flow.taken(db, run, flow.worker(db))
    flow.release(db, batch.claim, ClaimState.CANCELLED, "the worker stops")
    assert (flow.row(db, run).setbacks, flow.row(db, run).reason) == (0, "")


def test_notes_of_a_batch_are_kept_with_the_run_once(db: Database) -> None:
    run = flow.started(db)
    who = flow.worker(db, parallel=1)
    for _ in range(2):
        batch = flow.taken(db, run, who)
        with db.session() as session:
            claims.release(session, batch.claim, ClaimState.CANCELLED, notes=["device 1 is gone"])
    assert flow.row(db, run).notes == ["device 1 is gone"]
