"""Runs a branch's past: commits that nobody pushed while the service watched."""

from __future__ import annotations

from collections.abc import Sequence

from sqlmodel import Session

from runner.errors import InputError
from runner.matrix import Matrix
from runner.result import Commit
from service.github import effects
from service.settings import Tracked
from service.tables import Origin


def backfill(
    session: Session,
    tracked: Tracked,
    commits: Sequence[Commit],
    matrix: Matrix,
    *,
    every: int = 1,
    queues: Sequence[str] = (),
    by: str = "backfill",
) -> int:
    """Submit a run of each commit, or of every Nth and both ends; how many were submitted.

    commits: in any order, as `Repository.first_parent` gives them. queues: kinds of device, those
    that the subject is tracked on where none is given. A commit that has such a run, waiting or
    complete, gets no other. Raises InputError.
    """
    if every < 1:
        raise InputError(f"backfill: every must be 1 or more, got {every}")
    if not commits:
        raise InputError(
            "backfill: the range holds no commits: all that the second end has, the first has too; "
            "were they turned around?"
        )
    chosen = list(commits[::every])
    if chosen[-1] != commits[-1]:
        chosen.append(commits[-1])
    wanted = tuple(queues or tracked.queues)
    standing = effects.standing_runs(session, tracked, [each.sha for each in chosen], matrix)
    submitted = 0
    for commit in chosen:
        missing = [queue for queue in wanted if (commit.sha, queue) not in standing]
        if missing:
            made = effects.submit_runs(
                session, tracked, commit, matrix, Origin.BACKFILL, missing, by=by
            )
            submitted += len(made)
    return submitted
