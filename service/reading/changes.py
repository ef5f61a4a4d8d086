"""Where the failure rates of a branch changed, cell by cell, and between which commits.

A build's trials are counted once, at the oldest commit that has it: commits that share a build
share its trials and tell nothing new. Environments are never mixed, each has a sequence of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from sqlalchemy import text
from sqlmodel import Session, col, select

from runner.statistics.changepoints import change_points
from runner.statistics.counts import Counts
from service.reading.cells import cell_name
from service.reading.doubted import NONE, Doubts
from service.tables import Cell

COMMITS = 5_000
"""Newest commits of a branch that are looked at."""


class Of(StrEnum):
    """Which of a cell's two rates."""

    FAILURE = "failure"
    SWALLOW = "swallow"
    """Of trials with foreign work in a capture window, over those that were watched."""


class Scope(NamedTuple):
    """A branch on one kind of device. environments: ids of those that count."""

    subject: str
    branch: str
    queue: str
    environments: tuple[int, ...]
    of: Of = Of.FAILURE


class Series(NamedTuple):
    """What a cell counted along a branch in one environment, oldest first.

    positions: of the commits on the branch. failed, trials: of each.
    """

    cell: int
    environment: int
    positions: tuple[int, ...]
    failed: tuple[int, ...]
    trials: tuple[int, ...]


@dataclass(frozen=True)
class Change:
    """One change of a cell's rate. position: of the likeliest first commit with the new rate.

    low, high: positions that hold that commit with 95 %, both included. p: chance, at most, that
    a branch without a change shows one like it anywhere.
    """

    cell: int
    environment: int
    position: int
    low: int
    high: int
    rises: bool
    before: Counts
    after: Counts
    p: float


Find = Callable[[Session, Scope], tuple[Change, ...]]
"""Finds all changes of a scope, or has kept them."""

_SERIES = text(
    """
    SELECT cell_id, environment_id, name, array_agg(position ORDER BY position),
           array_agg(k ORDER BY position), array_agg(n ORDER BY position)
    FROM (
        SELECT m.cell_id, m.environment_id, cb.name, min(bc.position) AS position, f.k, f.n
        FROM branch_commits bc
        JOIN commit_builds cb ON cb.commit_id = bc.commit_id AND cb.architecture = :queue
        JOIN measurements m ON m.build_id = cb.build_id,
        LATERAL (SELECT m.capture_error + m.crash + m.hang + m.data_loss + m.wrong_output)
            AS failures (k),
        LATERAL (SELECT CASE WHEN :swallow THEN m.swallowed ELSE failures.k END,
                        CASE WHEN :swallow THEN m.watched ELSE failures.k + m.passed END)
            AS f (k, n)
        WHERE bc.subject = :subject AND bc.branch = :branch
          AND bc.position > (
              SELECT max(position) FROM branch_commits
              WHERE subject = :subject AND branch = :branch
          ) - :commits
          AND m.environment_id = ANY(:environments) AND NOT m.adaptive
          AND (CAST(:cell AS integer) IS NULL OR m.cell_id = :cell)
          AND m.id <> ALL(:doubted)
        GROUP BY m.id, cb.name, f.k, f.n
    ) AS counted
    WHERE n > 0
    GROUP BY cell_id, environment_id, name
    """
)


def series(
    session: Session, scope: Scope, cell: int | None = None, doubts: Collection[int] = ()
) -> tuple[Series, ...]:
    """What each cell counted in each environment; cell: only this one. doubts: measurements that
    are left out."""
    found = (
        session.connection()
        .execute(
            _SERIES,
            {
                "subject": scope.subject,
                "branch": scope.branch,
                "queue": scope.queue,
                "environments": list(scope.environments),
                "cell": cell,
                "commits": COMMITS,
                "swallow": scope.of is Of.SWALLOW,
                "doubted": list(doubts),
            },
        )
        .all()
    )
    builds = _builds(session, {row[0] for row in found})
    # One build may have two names at a commit; a cell's trials are those of the name that it needs.
    return tuple(
        Series(row[0], row[1], tuple(row[3]), tuple(row[4]), tuple(row[5]))
        for row in found
        if builds.get(row[0]) == row[2]
    )


def _builds(session: Session, cells: Iterable[int]) -> dict[int, str]:
    """The build that each cell needs; references are left out, they count for no rate."""
    found = session.exec(
        select(Cell).where(col(Cell.id).in_(list(cells)), col(Cell.reference).is_(False))
    )
    return {name.id: name.build for name in map(cell_name, found)}


def find(
    session: Session,
    scope: Scope,
    doubts: Callable[[Session, None], Doubts] = lambda session, _: NONE,
) -> tuple[Change, ...]:
    """All changes along the branch, the newest first.

    doubts: finds the measurements whose device failed its control cells: what they show is no
    change of the branch's.
    """
    if not scope.branch or not scope.environments:
        return ()
    believed = series(session, scope, doubts=doubts(session, None))
    return ordered(change for one in believed for change in changes_of(one))


def ordered(changes: Iterable[Change]) -> tuple[Change, ...]:
    """The newest first; of those at one commit the surest."""
    return tuple(sorted(changes, key=lambda one: (-one.position, not one.rises, one.p, one.cell)))


@lru_cache(maxsize=4_096)
def changes_of(one: Series) -> tuple[Change, ...]:
    """The changes of one sequence. Cached: of a branch's many sequences few change at a time."""
    if len(one.positions) < 2:
        return ()
    first = one.positions[0]
    counts = [Counts()] * (one.positions[-1] - first + 1)
    for position, k, n in zip(one.positions, one.failed, one.trials, strict=True):
        counts[position - first] = Counts(k, n)
    return tuple(
        Change(
            cell=one.cell,
            environment=one.environment,
            position=point.index + first,
            low=point.low + first,
            high=point.high + first,
            rises=point.rises,
            before=point.before,
            after=point.after,
            p=point.p,
        )
        for point in change_points(counts)
    )


def grouped(changes: Sequence[Change]) -> tuple[tuple[Change, ...], ...]:
    """Changes that came with one commit and in one direction, together."""
    groups: dict[tuple[int, bool], list[Change]] = {}
    for change in changes:
        groups.setdefault((change.position, change.rises), []).append(change)
    return tuple(map(tuple, groups.values()))
