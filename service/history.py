"""A branch's history through the queue: `racewatch backfill A..B`."""

from __future__ import annotations

from collections.abc import Sequence

from runner.errors import InputError
from runner.matrix import Matrix
from runner.result import Commit
from service import jobprocess
from service.database import Database
from service.github.backfill import backfill as order
from service.settings import ServiceSettings


def backfill(
    database: Database,
    settings: ServiceSettings,
    subject: str,
    range_: str,
    matrix: Matrix,
    *,
    every: int = 1,
    queues: Sequence[str] = (),
) -> int:
    """Order runs of the first-parent commits after A up to B; how many it were.

    Commits that have such a run already get none. Raises InputError for what is no range, RefError
    where an end names nothing.
    """
    since, separator, ref = range_.partition("..")
    if not separator or not since or not ref or ref.startswith("."):
        raise InputError(f"backfill: must be A..B, such as v2.8..main, got {range_!r}")
    tracked = settings.subject(subject)
    request = {
        "do": "history",
        "subject": subject,
        "repository": tracked.source,
        "toolchain": tracked.toolchain,
        "ref": ref,
        "since": since,
    }
    (answer,) = jobprocess.answers(request, lambda: True, 60.0)
    commits = [Commit(**one) for one in answer["history"]]
    with database.session() as session:
        return order(
            session, tracked, commits, matrix, every=every, queues=queues or tracked.queues
        )
