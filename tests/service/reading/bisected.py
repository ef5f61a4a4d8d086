"""Bisections in every state that pages and the API show, moved on as the service moves them.

No worker takes part: what a probe would have shown is stored as its event, as the service does once
the probe's run has ended.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from uuid import UUID

from sqlmodel import Session, func, select

from runner import matrix as matrices
from runner.bisect.decision import Probe
from runner.bisect.events import Observation, Seen, to_data
from runner.bisect.range import BuildClass, Range
from runner.bisect.settings import Observe
from runner.result import Commit
from service import bisection, rows
from service.bisection import BisectionRequest
from service.database import Database
from service.tables import (
    Bisection,
    BisectionEvent,
    BranchCommit,
    Run,
    RunState,
    Worker,
)
from service.tables.columns import now

CELL = "stock, background"
STEPS = 400
"""Events after which something is wrong."""


def sha(subject: str, number: int) -> str:
    """The hash of a made-up commit."""
    return hashlib.sha1(f"{subject} {number}".encode()).hexdigest()


def commit(subject: str, number: int, title: str) -> Commit:
    """A made-up commit."""
    moment = now() - timedelta(hours=5 * (200 - number))
    return Commit(sha(subject, number), "main", title, "Ada Maintainer", moment.isoformat())


_TITLES = (
    "[JAX] Support head dimension 256 in fused attention (#2190)",
    "[C] Tune the layernorm kernels for Hopper (#2194)",
    "[Common] Sort the tile sizes by how often they win (#2207)",
    "[JAX] Check shapes before tracing (#2212)",
    "[JAX] Rename NormForwardFFI (#2214)",
    "[JAX] Repair the build (#2215)",
    "[JAX] Add FFI initialize stages for custom calls (#2219)",
    "[JAX] Capture on the compute stream of the device that the program was compiled for, whatever "
    "the stream that the caller passes (#2240)",
    "[JAX] Quantize gradients in one pass (#2250)",
    "[C] Use one workspace for all GEMMs (#2256)",
)


def path(subject: str, classes: int, merge: int | None = None, first: int = 0) -> Range:
    """A range of so many classes, every third with a commit that only touches the docs.

    merge: the class that a merge leads into.
    """
    made: list[BuildClass] = []
    number = first
    for place in range(classes):
        number += 1
        title = _TITLES[place % len(_TITLES)]
        own = commit(subject, number, title)
        same: tuple[Commit, ...] = ()
        if place % 3 == 1:
            number += 1
            same = (commit(subject, number, "[Docs] Fix a typo"),)
        if place == merge:
            own = replace(own, title="Merge branch 'ffi-initialize' into main")
        made.append(
            BuildClass(
                key=f"{subject}-{first}-{place}",
                commits=(own, *same),
                blamed=own if place else None,
                second_parent=sha(subject, 999) if place == merge else "",
                weight=4.0 if "[JAX]" in title else 1.0,
            )
        )
    return Range(made[0].commit, made[-1].commits[-1], "stock", tuple(made))


@dataclass(frozen=True)
class Truth:
    """What trials will show. culprit: keys from there on have the rate `after`.

    broken: keys that do not build, with the error. hiccup: a key whose first probe meets a host
    that is out of memory.
    """

    before: float
    after: float
    bad: frozenset[str]
    broken: Mapping[str, str]
    hiccup: str = ""
    build_s: float = 74.6
    trial_s: float = 0.21

    @classmethod
    def of(
        cls, searched: Range, culprit: int, before: float, after: float,
        broken: Sequence[int] = (), hiccup: int | None = None,
    ) -> Truth:  # fmt: skip
        """Where the class `culprit` brings the change."""
        keys = [each.key for each in searched.classes]
        error = "error: 'NormForwardFFl' was not declared in this scope"
        return cls(
            before, after, frozenset(keys[culprit:]), {keys[place]: error for place in broken},
            keys[hiccup] if hiccup is not None else "",
        )  # fmt: skip

    def shows(self, probe: Probe, again: bool) -> Observation:
        """What a probe sees: as many failures as expected, rounded."""
        build_s = 0.0 if probe.built or again else self.build_s
        seen = Observation(probe.key, check=probe.check, build_s=build_s)
        if probe.key in self.broken:
            return replace(seen, seen=Seen.UNBUILDABLE, reason=self.broken[probe.key])
        if probe.key == self.hiccup and not again:
            reason = "cudaErrorMemoryAllocation: the device is full"
            return replace(seen, seen=Seen.INFRASTRUCTURE, build_s=0.0, reason=reason)
        rate = self.after if probe.key in self.bad else self.before
        return replace(
            seen, k=round(rate * probe.trials), n=probe.trials, trial_s=self.trial_s * probe.trials
        )


class Bisections:
    """Orders bisections and moves them on, in one session."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def order(
        self, subject: str, queue: str, good: str, bad: str, budget_s: float | None = None,
        by: str = "ada", identity: UUID | None = None, observe: Observe = Observe.FAILURE,
    ) -> UUID:  # fmt: skip
        """One that waits for its range."""
        return bisection.order(
            self.session,
            BisectionRequest(
                subject=subject,
                good=good,
                bad=bad,
                matrix=matrices.load("issue-3863"),
                cell=CELL,
                queue=queue,
                budget_s=budget_s,
                requested_by=by,
                id=identity,
                observe=observe,
            ),
        ).id

    def ranged(self, identity: UUID, searched: Range) -> None:
        """A worker has found its range, whose commits are known to be on the branch."""
        row = self.session.get_one(Bisection, identity)
        for each in searched.classes:
            for one in each.commits:
                self._on_branch(row.subject, one)
        bisection.ranged(self.session, identity, {"range": searched.to_data()})

    def _on_branch(self, subject: str, one: Commit) -> None:
        stored = rows.commit_id(self.session, subject, one)
        there = select(BranchCommit).where(BranchCommit.commit_id == stored)
        if self.session.exec(there).first() is None:
            place = select(func.coalesce(func.max(BranchCommit.position), -1) + 1).where(
                BranchCommit.subject == subject, BranchCommit.branch == "main"
            )
            self.session.add(
                BranchCommit(
                    subject=subject,
                    branch="main",
                    position=self.session.exec(place).one(),
                    commit_id=stored,
                )
            )
            self.session.flush()

    def open_probes(self, identity: UUID) -> list[Run]:
        """Runs of it that have not ended."""
        row = self.session.get_one(Bisection, identity)
        return bisection.probes(self.session, row, open_only=True)

    def answer(self, identity: UUID, run: Run, truth: Truth) -> None:
        """A probe has ended, and is observed."""
        row = self.session.get_one(Bisection, identity)
        happened = bisection.events(self.session, row)
        probe = bisection.probe_of(run)
        again = any(isinstance(one, Observation) and one.key == probe.key for one in happened)
        run.state, run.finished_at = RunState.COMPLETE, now()
        self.session.add(run)
        seen = truth.shows(probe, again)
        self.session.add(
            BisectionEvent(
                bisection_id=identity, number=len(happened), data=to_data(seen), run_id=run.id
            )
        )
        self.session.flush()
        bisection.advance(self.session, identity)

    def go(
        self, identity: UUID, truth: Truth, most: int = STEPS, inner: Range | None = None
    ) -> int:
        """Answer probes and questions to git until it ends, or after so many; how many there were.

        inner: the range inside its merge.
        """
        for count in range(most):
            row = self.session.get_one(Bisection, identity)
            if row.state not in bisection.OPEN:
                return count
            running = self.open_probes(identity)
            wanted = bisection.decision(self.session, row)
            if running:
                self.answer(identity, running[0], truth)
            elif wanted.enter is not None:
                answer = {"range": inner.to_data() if inner else None}
                bisection.entered(self.session, identity, answer)
            elif wanted.revert is not None:
                culprit, head = wanted.revert.culprit, wanted.revert.head
                title = f'Revert "{culprit.title}"'
                made = commit(row.subject, 998, title)
                made = replace(made, ref=f"{head.sha[:12]}-{culprit.sha[:12]}")
                answer = {"commit": made.__dict__, "key": f"{row.subject}-reverted"}
                bisection.reverted(self.session, identity, answer)
            else:
                bisection.advance(self.session, identity)
        return most


@dataclass(frozen=True)
class Made:
    """Ids of bisections by what they are at, and the hash of the culprit of those that found it."""

    ids: Mapping[str, UUID]
    culprit: str


def make(database: Database) -> Made:
    """One of each kind; two builders are at work."""
    with database.session() as session:
        for name in ("build-1", "build-2"):
            session.add(
                Worker(name=name, host=name, pid=1, queues=["build-te", "trial-sm90", "build-demo"])
            )
        session.flush()
        return _make(Bisections(session))


def _make(them: Bisections) -> Made:
    ids: dict[str, UUID] = {}
    long = path("te", 73)
    truth = Truth.of(long, 41, 0.0, 0.3, broken=(35, 36, 37), hiccup=54)

    ids["found"] = them.order("te", "sm90", "v2.7", "v2.9")
    them.ranged(ids["found"], long)
    them.go(ids["found"], truth)

    ids["searching"] = them.order("te", "sm90", "v2.7", "v2.9", budget_s=7_200.0)
    them.ranged(ids["searching"], long)
    them.go(ids["searching"], truth, most=8)

    ids["checking"] = them.order("te", "sm90", "v2.7", "main")
    them.ranged(ids["checking"], long)
    for _ in range(STEPS):
        row = them.session.get_one(Bisection, ids["checking"])
        state = bisection.state_of(row, bisection.events(them.session, row))
        if state is not None and state.check is not None:
            break
        them.go(ids["checking"], truth, most=1)

    short = path("demo", 9, merge=5)
    inner = path("demo", 5, first=500)
    inner = replace(inner, classes=(
        replace(inner.classes[0], key=short.classes[4].key, commits=short.classes[4].commits),
        *inner.classes[1:-1],
        replace(inner.classes[-1], key=short.classes[5].key, commits=short.classes[5].commits,
                blamed=short.classes[5].blamed),
    ))  # fmt: skip
    inside = Truth.of(short, 5, 0.05, 0.4)
    inside = replace(inside, bad=inside.bad | {one.key for one in inner.classes[2:]})
    ids["merge"] = them.order("demo", "emulated", "before", "main")
    them.ranged(ids["merge"], short)
    them.go(ids["merge"], inside, inner=inner)

    ids["no change"] = them.order("demo", "emulated", "before", "after")
    them.ranged(ids["no change"], path("demo", 6, first=100))
    them.go(ids["no change"], Truth(0.0, 0.0, frozenset(), {}))

    ids["cancelled"] = them.order("te", "sm90", "v2.8", "main")
    them.ranged(ids["cancelled"], long)
    them.go(ids["cancelled"], truth, most=3)
    bisection.cancel(them.session, ids["cancelled"], "cancelled by ada")

    ids["failed"] = them.order("te", "sm90", "v2.8", "nowhere")
    bisection.fail(them.session, ids["failed"], "ref 'nowhere' names nothing in the repository")

    ids["queued"] = them.order("demo", "emulated", "race", "fix", by="<script>alert(1)</script>")
    return Made(ids, long.classes[41].commit.sha)
