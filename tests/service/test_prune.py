"""Retention: what goes, what stays, and that no number changes by it."""

from __future__ import annotations

import os
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text
from sqlmodel import SQLModel, col, func, select

from runner.errors import InputError
from runner.outcome import Outcome
from service import prune as pruning
from service.database import Database
from service.prune import KEPT_PER_SIGNATURE, Pruned, prune, prune_all, prune_folders
from service.queue import wake
from service.recording import Finished, record_trials
from service.settings import ServiceSettings
from service.tables import (
    Delivery,
    Message,
    MessageState,
    Trial,
    TrialEvidence,
    Worker,
    WorkerState,
)
from tests.service import seeds

NOW = seeds.NOON
OLD = NOW - timedelta(days=40)
LOG = "".join(map(chr, Random(1).choices(range(33, 123), k=4000)))
"""It does not get much smaller by compression."""


def record(
    db: Database, outcomes: list[Outcome], at: datetime = OLD, seed: seeds.Seeded | None = None,
    **changed: Any,
) -> seeds.Seeded:  # fmt: skip
    """Trials of these outcomes, stored in that order."""
    with db.session() as session:
        seed = seed or seeds.running(session)
        cell = seeds.MATRIX.cells[0].name
        first = session.exec(select(func.count()).select_from(Trial)).one()
        record_trials(
            session,
            [
                Finished(
                    seed.claim, seed.run, seed.cells[cell], seed.measurements[cell],
                    seeds.trial(first + n, outcome, **changed), LOG, None,
                    at + timedelta(seconds=n),
                )
                for n, outcome in enumerate(outcomes)
            ],
        )  # fmt: skip
    return seed


def left(db: Database) -> Counter[str]:
    """Trials that have their evidence, by outcome."""
    with db.session() as session:
        found = session.exec(
            select(Trial.outcome).join(TrialEvidence, col(TrialEvidence.trial_id) == col(Trial.id))
        )
        return Counter(found)


def everything_else(db: Database) -> dict[str, list[str]]:
    """All rows of all tables but that of the evidence."""
    with db.session() as session:
        return {
            table.name: sorted(
                session.connection().execute(text(f"SELECT t::text FROM {table.name} t")).scalars()
            )
            for table in SQLModel.metadata.sorted_tables
            if table.name != "trial_evidence"
        }


def test_old_evidence_goes_and_no_number_with_it(db: Database) -> None:
    seed = record(db, [Outcome.PASS] * 5 + [Outcome.CRASH] * 2)
    record(db, [Outcome.PASS] * 3, NOW - timedelta(days=5), seed)
    before = everything_else(db)
    pruned = prune(db, evidence_days=30, now=NOW)
    assert (pruned.passes, pruned.failures) == (5, 0)
    assert left(db) == {"pass": 3, "crash": 2}
    assert everything_else(db) == before


def test_the_newest_failures_of_each_signature_stay(db: Database) -> None:
    more = KEPT_PER_SIGNATURE + 7
    seed = record(db, [Outcome.CRASH] * more, signature="SIGSEGV")
    record(db, [Outcome.HANG] * 2, seed=seed, signature="hang in execute")
    record(db, [Outcome.INFRA_ERROR] * 1, seed=seed, signature="out of memory")
    pruned = prune(db, evidence_days=30, now=NOW)
    assert (pruned.passes, pruned.failures) == (0, 7)
    assert left(db) == {"crash": KEPT_PER_SIGNATURE, "hang": 2, "infra_error": 1}
    with db.session() as session:
        kept = session.exec(
            select(Trial.index)
            .join(TrialEvidence, col(TrialEvidence.trial_id) == col(Trial.id))
            .where(Trial.outcome == "crash")
        ).all()
    assert sorted(kept) == list(range(7, more))


def test_another_subjects_failures_push_none_out(db: Database) -> None:
    record(db, [Outcome.CRASH] * 3, OLD - timedelta(days=9), signature="SIGSEGV")
    with db.session() as session:
        demo = seeds.running(session, subject="demo")
    record(db, [Outcome.CRASH] * KEPT_PER_SIGNATURE, seed=demo, signature="SIGSEGV")
    assert prune(db, evidence_days=30, now=NOW).failures == 0


def test_many_windows_are_walked(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "BATCH", 7)
    record(db, [Outcome.PASS, Outcome.PASS, Outcome.CRASH] * 20)
    pruned = prune(db, evidence_days=30, now=NOW)
    assert (pruned.passes, pruned.failures) == (40, 0)
    assert left(db) == {"crash": 20}


def test_over_its_size_the_oldest_passes_go_first(db: Database) -> None:
    young = NOW - timedelta(days=1)
    seed = record(db, [Outcome.CRASH] * 30, young, signature="SIGSEGV")
    record(db, [Outcome.PASS] * 30, young, seed)
    whole = prune(db, evidence_days=30, now=NOW)
    assert (whole.passes, whole.failures, whole.too_large) == (0, 0, False)
    assert whole.bytes_left > 60 * 1000
    pruned = prune(db, evidence_days=30, max_bytes=whole.bytes_left * 3 // 4, now=NOW)
    assert (pruned.passes, pruned.failures) == (15, 0)
    assert pruned.bytes_left <= whole.bytes_left * 3 // 4
    with db.session() as session:
        passes = session.exec(
            select(Trial.index)
            .join(TrialEvidence, col(TrialEvidence.trial_id) == col(Trial.id))
            .where(Trial.outcome == "pass")
        ).all()
    assert sorted(passes) == list(range(45, 60))


def test_what_must_stay_stays_even_over_the_size(db: Database) -> None:
    seed = record(db, [Outcome.CRASH] * 30, signature="SIGSEGV")
    record(db, [Outcome.PASS] * 3, seed=seed)
    pruned = prune(db, evidence_days=60, max_bytes=0, now=NOW)
    assert (pruned.passes, pruned.failures) == (3, 10)
    assert left(db) == {"crash": KEPT_PER_SIGNATURE}
    assert pruned.too_large
    assert "more than asked for: the newest 20 failures" in str(pruned)
    again = prune(db, evidence_days=60, max_bytes=0, now=NOW)
    assert (again.passes, again.failures, again.bytes_left) == (0, 0, pruned.bytes_left)


def test_a_command_that_nobody_could_decide_yet_is_kept(db: Database) -> None:
    undecided = {"asked": {}, "decided": False}
    with db.session() as session:
        for days, identity in ((2, "waits"), (5, "given up")):
            received = NOW - timedelta(days=days)
            session.add(
                Delivery(
                    id=identity, event="issue_comment", payload=undecided, received_at=received
                )
            )
    assert prune(db, evidence_days=1, now=NOW).deliveries == 1
    with db.session() as session:
        assert session.get_one(Delivery, "waits").payload == undecided
        assert session.get_one(Delivery, "given up").payload == {}


def test_old_deliveries_keep_their_row_and_lose_their_payload(db: Database) -> None:
    with db.session() as session:
        for name, at in (("old", OLD), ("new", NOW)):
            session.add(
                Delivery(id=name, event="push", payload={"ref": "x"}, effect="ran", received_at=at)
            )
    assert prune(db, evidence_days=30, now=NOW).deliveries == 1
    with db.session() as session:
        assert session.get_one(Delivery, "old").payload == {}
        assert session.get_one(Delivery, "old").effect == "ran"
        assert session.get_one(Delivery, "new").payload == {"ref": "x"}
    assert prune(db, evidence_days=30, now=NOW).deliveries == 0


def test_sent_messages_go_but_for_the_last_of_their_topic(db: Database) -> None:
    wanted = [
        ("a", MessageState.SENT, OLD),
        ("a", MessageState.REPLACED, OLD),
        ("a", MessageState.FAILED, OLD),
        ("a", MessageState.WAITING, OLD),
        ("a", MessageState.SENT, OLD),
        ("b", MessageState.SENT, NOW),
        ("b", MessageState.SENT, NOW),
    ]
    with db.session() as session:
        for topic, state, at in wanted:
            session.add(Message(kind="status", topic=topic, state=state, created_at=at))
            session.flush()
    assert prune(db, evidence_days=30, now=NOW).messages == 2
    with db.session() as session:
        states = session.exec(select(Message.topic, Message.state).order_by(col(Message.id))).all()
    assert states == [
        ("a", "failed"),
        ("a", "waiting"),
        ("a", "sent"),
        ("b", "sent"),
        ("b", "sent"),
    ]


def test_finished_jobs_go_after_a_week_and_others_stay(db: Database) -> None:
    with db.session() as session:
        for n in range(6):
            wake(session, "advance", "control", lock=f"advance:{n}", run=str(n))
        for status, jobs, days in [
            ("failed", (1, 2), 8), ("succeeded", (3,), 8), ("failed", (4,), 6), ("doing", (5,), 8),
        ]:  # fmt: skip
            values = {"status": status, "jobs": list(jobs), "at": NOW - timedelta(days=days)}
            connection = session.connection()
            job = "UPDATE procrastinate_jobs SET status = CAST(:status AS procrastinate_job_status)"
            connection.execute(text(f"{job} WHERE id = ANY(:jobs)"), values)
            event = "UPDATE procrastinate_events SET at = :at WHERE job_id = ANY(:jobs)"
            connection.execute(text(event), values)
    assert prune(db, evidence_days=30, now=NOW).jobs == 3
    with db.session() as session:
        rest = session.connection().execute(text("SELECT id FROM procrastinate_jobs ORDER BY id"))
        assert list(rest.scalars()) == [4, 5, 6]


def test_workers_that_left_no_trace_go(db: Database) -> None:
    seed = record(db, [Outcome.PASS])
    with db.session() as session:
        for name, state, at in [
            ("traced", WorkerState.LOST, OLD),
            ("stopped", WorkerState.STOPPED, OLD),
            ("live", WorkerState.LIVE, OLD),
            ("recent", WorkerState.LOST, NOW),
        ]:
            session.add(Worker(name=name, host="h", pid=1, state=state, heartbeat_at=at))
        session.flush()
        traced = session.exec(select(Worker).where(Worker.name == "traced")).one()
        trial = session.exec(select(Trial).where(Trial.run_id == seed.run)).one()
        trial.worker_id = traced.id
        session.add(trial)
    assert prune(db, evidence_days=30, now=NOW).workers == 1
    with db.session() as session:
        assert set(session.exec(select(Worker.name))) == {"traced", "live", "recent"}


@pytest.mark.parametrize("days", [0.0, -1.0, float("nan")])
def test_days_must_be_some(db: Database, days: float) -> None:
    with pytest.raises(InputError, match="days to keep evidence: must be more than 0"):
        prune(db, evidence_days=days, now=NOW)


def test_a_size_is_not_negative(db: Database) -> None:
    with pytest.raises(InputError, match="size of evidence: must not be negative"):
        prune(db, evidence_days=1, max_bytes=-1, now=NOW)


# Folders


def folder_of(root: Path, at: datetime, name: str = "") -> Path:
    made = root / (name or str(uuid4()))
    (made / "jax-cache").mkdir(parents=True)
    (made / "trial-00000.log").write_text("log")
    for path in (made / "trial-00000.log", made / "jax-cache", made):
        os.utime(path, (at.timestamp(), at.timestamp()))
    return made


def test_old_folders_of_runs_go(tmp_path: Path) -> None:
    old, new = folder_of(tmp_path, OLD), folder_of(tmp_path, NOW)
    assert prune_folders(tmp_path, NOW - timedelta(days=30)).removed == 1
    assert (old.exists(), new.exists()) == (False, True)


def test_a_folder_in_which_something_is_new_stays(tmp_path: Path) -> None:
    old = folder_of(tmp_path, OLD)
    os.utime(old / "trial-00000.log", (NOW.timestamp(), NOW.timestamp()))
    assert prune_folders(tmp_path, NOW - timedelta(days=30)).removed == 0
    assert old.exists()


def test_only_folders_of_runs_go(tmp_path: Path) -> None:
    other = folder_of(tmp_path, OLD, "my-notes")
    target = folder_of(tmp_path / "elsewhere", OLD)
    link = tmp_path / str(uuid4())
    link.symlink_to(target)
    file = tmp_path / str(uuid4())
    file.touch()
    assert prune_folders(tmp_path, NOW - timedelta(days=30)).removed == 0
    assert all(path.exists() for path in (other, target, link, file))


def test_a_folder_that_is_not_there_has_nothing_to_prune(tmp_path: Path) -> None:
    assert prune_folders(tmp_path / "none", NOW).removed == 0


def test_a_folder_that_cannot_be_removed_is_named_and_keeps_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Root may remove anything, so the refusal is made up.
    first, second = sorted([folder_of(tmp_path, OLD), folder_of(tmp_path, OLD)])
    remove = pruning.shutil.rmtree

    def refuse(path: Path) -> None:
        if path == first:
            raise PermissionError(13, "Permission denied", os.fspath(path))
        remove(path)

    monkeypatch.setattr(pruning.shutil, "rmtree", refuse)
    pruned = prune_folders(tmp_path, NOW - timedelta(days=30))
    assert pruned.removed == 1
    assert pruned.problems == (f"{first}: cannot be removed: Permission denied",)
    assert (first.exists(), second.exists()) == (True, False)


def test_all_of_it_at_once_says_what_went(db: Database, tmp_path: Path) -> None:
    record(db, [Outcome.PASS] * 3)
    folder_of(tmp_path / "runs", OLD)
    said = str(prune_all(db, ServiceSettings(home=tmp_path), 30, 1.0, NOW))
    assert said.startswith(
        "dropped the logs and evidence of 3 passes and 0 failures, the payloads of 0 deliveries, "
        "0 sent messages, 0 finished jobs, 0 workers and 1 folders of runs\n"
        "0.0 MiB of logs and evidence are left"
    )


def test_with_nothing_to_do_nothing_is_done(db: Database) -> None:
    assert prune(db, evidence_days=30, now=NOW) == Pruned()
