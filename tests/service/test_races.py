"""Several workers, a sweep and somebody who cancels, all at once: nobody blocks another for good,
every run ends, and every trial is counted once."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from sqlmodel import func, select

from runner.outcome import Outcome
from runner.run import PreparedBuild
from service import advance, builds, claims
from service.claims import ClaimLost
from service.database import Database
from service.settings import ServiceSettings
from service.submit import cancel
from service.sweep import sweep
from service.tables import ENDED_STATES, Claim, ClaimState, Measurement, Origin, RunState, Trial
from tests.service import flow
from tests.service.flow import HEAD, MATRIX, ONE_CELL, PARENT

SETTINGS = ServiceSettings(worker_lost_s=0.4, database_url="")
SOON = timedelta(hours=1)
OUTCOMES = (Outcome.PASS, Outcome.CRASH, Outcome.INFRA_ERROR)


@dataclass
class Crowd:
    """Threads that each do something over and over until all runs have ended."""

    db: Database
    runs: list[UUID]
    errors: list[BaseException] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def start(self, *works: Callable[[], None]) -> list[threading.Thread]:
        """A thread for each."""
        threads = [threading.Thread(target=self._repeat, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        return threads

    def _repeat(self, work: Callable[[], None]) -> None:
        try:
            while not self.over.is_set():
                work()
        except BaseException as error:
            self.errors.append(error)
            self.over.set()

    def all_ended(self) -> bool:
        """Whether nothing is left to do."""
        return flow.states(self.db, self.runs) <= {str(state) for state in ENDED_STATES}


@dataclass
class Someone:
    """A worker that does whatever is there, and now and then leaves it half done."""

    db: Database
    runs: list[UUID]
    id: UUID
    chance: random.Random

    def work(self) -> None:
        """One step."""
        run = self.chance.choice(self.runs)
        self.chance.choice((self.find_out, self.build, self.build, self.trials))(run)

    def forgets(self) -> bool:
        """As if it was killed here."""
        return self.chance.random() < 0.1

    def find_out(self, run: UUID) -> None:
        with self.db.session() as session:
            claim = claims.hold(session, run, self.id)
        if claim is None or self.forgets():
            return
        row = flow.row(self.db, run)
        base = PARENT if row.head_sha == HEAD else ""
        with self.db.session() as session:
            advance.prepared(session, run, claim, flow.answer(row.head_sha, base, row.ref))

    def build(self, run: UUID) -> None:
        waiting = flow.waiting(self.db, flow.row(self.db, run).head_sha)
        if not waiting:
            return
        with self.db.session() as session:
            job = builds.take(session, self.chance.choice(waiting), self.id)
        if job is None or self.forgets():
            return
        with self.db.session() as session:
            if not builds.alive(session, job) or self.forgets():
                builds.stopped(session, job)
                return
        fixed = job.name == "instrumented" and job.commit["sha"] == HEAD
        key = f"{job.name} of {job.commit['sha']}"
        made = PreparedBuild(key, folder="somewhere", owned_stream_needed=not fixed)
        with self.db.session() as session:
            builds.done(session, job, made)
        for other in self.runs:
            flow.step(self.db, other)

    def trials(self, run: UUID) -> None:
        batch = flow.take(self.db, run, self.id, 1.0)
        if batch is not None:
            with suppress(ClaimLost):
                self._carry_out(batch)
        flow.step(self.db, run)

    def _carry_out(self, batch: claims.Batch) -> None:
        recording = flow.recording(self.db, batch, self.id)
        for cell in batch.matrix.cells:
            for _ in range(cell.trials):
                if self.forgets():
                    return
                recording.store(cell.name, self.chance.choices(OUTCOMES, (6, 3, 1))[0])
        with self.db.session() as session:
            claims.release(session, batch.claim, ClaimState.DONE)


def test_a_crowd_ends_every_run_and_counts_every_trial_once(db: Database) -> None:
    workers = [flow.worker(db, f"{n}", parallel=2) for n in range(3)]
    runs = [
        flow.order(db, HEAD, MATRIX.with_trials(6), origin=Origin.PUSH),
        flow.order(db, HEAD, ONE_CELL.with_trials(9)),
        flow.order(db, PARENT, MATRIX.with_trials(5), origin=Origin.BACKFILL),
        flow.order(db, PARENT, ONE_CELL.with_trials(7)),
    ]
    crowd = Crowd(db, runs)
    people = [Someone(db, runs, worker, random.Random(seed)) for seed, worker in enumerate(workers)]

    def look() -> None:
        flow.silent(db, "workers", since=-SOON)  # they live, whatever they forget
        sweep(db, SETTINGS)
        time.sleep(0.1)

    def cancels() -> None:
        time.sleep(1.0)
        with db.session() as session:
            cancel(session, runs[-1], "not needed")

    threads = crowd.start(*(one.work for one in people), look, cancels)
    deadline = time.monotonic() + 60
    while not crowd.over.is_set() and not crowd.all_ended():
        assert time.monotonic() < deadline, [flow.row(db, run) for run in runs]
        time.sleep(0.05)
    crowd.over.set()
    for thread in threads:
        thread.join(60)
    assert crowd.errors == []
    _counted_once(db, runs)


def _counted_once(db: Database, runs: list[UUID]) -> None:
    with db.session() as session:
        for measurement in session.exec(select(Measurement)):
            stored = select(func.count()).where(Trial.measurement_id == measurement.id)
            assert sum(measurement.counts.values()) == session.exec(stored).one()
        live = session.exec(select(Claim).where(Claim.state == ClaimState.LIVE)).all()
        assert {claim.run_id for claim in live} <= {runs[-1]}
    for run in runs:
        row = flow.row(db, run)
        if row.state == RunState.COMPLETE:
            for cell in flow.cells(db, run).values():
                counted = flow.counts(db, run).get(cell.name, {})
                settled = counted.get("pass", 0) + counted.get("crash", 0)
                assert cell.outcome or settled >= cell.wanted
        else:
            assert row.state == RunState.CANCELLED or row.reason.startswith(("given up", "build"))
