"""What bisections say of where a branch's rates changed: which commit it was, and how sure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from uuid import UUID

from sqlmodel import Session, col, select

from runner.bisect.settings import Observe
from runner.bisect.verdict import VerdictKind
from service.reading.bisections import verdict_of
from service.tables import (
    Bisection,
    BisectionState,
    BranchCommit,
    Commit,
    Run,
    RunCell,
)

_NAMES = (VerdictKind.CULPRIT, VerdictKind.AMONG)
LATEST = 50
"""Bisections that are looked at, the newest."""


@dataclass(frozen=True)
class Bisected:
    """A bisection that ended with commits which brought a change.

    commits: how many. sha, title: of the first one. cells: ids of what was tried. positions: of
    those commits on the branch. rises: whether the rate rose with them.
    """

    id: UUID
    sha: str
    title: str
    commits: int
    probability: float
    cells: frozenset[int]
    positions: tuple[int, ...]
    rises: bool


def found(
    session: Session, subject: str, branch: str, queue: str, cells: Collection[int]
) -> tuple[Bisected, ...]:
    """What was found for the failure rates of these cells on a branch, the newest first."""
    if not cells:
        return ()
    latest = (
        select(Bisection.id, Bisection.verdict)
        .where(
            Bisection.subject == subject,
            Bisection.queue == queue,
            Bisection.state == BisectionState.DONE,
            Bisection.observe == Observe.FAILURE,
        )
        .order_by(col(Bisection.created_at).desc(), col(Bisection.id))
        .limit(LATEST)
    )
    named = {
        bisection: verdict
        for bisection, data in session.exec(latest)
        if (verdict := verdict_of(data)) is not None and verdict.kind in _NAMES
    }
    if not named:
        return ()
    probes = (
        select(Run.bisection_id, RunCell.cell_id)
        .join(RunCell, col(RunCell.run_id) == col(Run.id))
        .where(col(Run.bisection_id).in_(named), col(RunCell.cell_id).in_(cells))
        .distinct()
    )
    tried: dict[UUID, set[int]] = {}
    for bisection, cell in session.exec(probes):
        assert bisection is not None
        tried.setdefault(bisection, set()).add(cell)
    places = _places(
        session,
        subject,
        branch,
        {commit.sha for bisection in tried for commit in named[bisection].commits},
    )
    return tuple(
        Bisected(
            id=bisection,
            sha=verdict.commits[0].sha,
            title=verdict.commits[0].title,
            commits=len(verdict.commits),
            probability=verdict.probability,
            cells=frozenset(tried[bisection]),
            positions=tuple(places[one.sha] for one in verdict.commits if one.sha in places),
            rises=not verdict.fixed,
        )
        for bisection, verdict in named.items()
        if bisection in tried
    )


def of_change(
    every: Iterable[Bisected], cells: Collection[int], low: int, high: int, rises: bool
) -> Bisected | None:
    """The newest that found what changed these cells' rates between two positions, included."""
    return next(
        (
            one
            for one in every
            if one.rises == rises
            and not one.cells.isdisjoint(cells)
            and any(low <= position <= high for position in one.positions)
        ),
        None,
    )


def _places(session: Session, subject: str, branch: str, shas: Collection[str]) -> dict[str, int]:
    if not shas:
        return {}
    query = (
        select(Commit.sha, BranchCommit.position)
        .join(BranchCommit, col(BranchCommit.commit_id) == col(Commit.id))
        .where(
            BranchCommit.subject == subject,
            BranchCommit.branch == branch,
            col(Commit.sha).in_(shas),
        )
    )
    return dict(session.exec(query).all())
