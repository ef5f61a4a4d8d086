"""Retention: drops what is old and large, and never a number that a page shows.

Runs, trials, counts and deliveries stay for good; their logs, evidence and payloads do not. All of
it in small transactions, so that nobody waits for a lock.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.sql.elements import TextClause
from sqlmodel import Session

from runner.errors import InputError
from service.database import Database
from service.github import approval
from service.settings import ServiceSettings

KEPT_PER_SIGNATURE = 20
"""Failing trials, the newest of each signature and subject, whose evidence is kept for good."""
JOBS_KEPT = timedelta(days=7)
"""For the queue's finished jobs: their rows, not they, tell what happened."""
BATCH = 1000


@dataclass(frozen=True)
class Pruned:
    """What was dropped.

    passes, failures: trials whose evidence and log went. deliveries: those whose payload went.
    bytes_left: of evidence and logs. too_large: whether that is more than was allowed, for the rest
    is the newest of each signature. problems: sentences on what could not be removed.
    """

    passes: int = 0
    failures: int = 0
    deliveries: int = 0
    messages: int = 0
    jobs: int = 0
    workers: int = 0
    folders: int = 0
    bytes_left: int = 0
    too_large: bool = False
    problems: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [
            f"dropped the logs and evidence of {self.passes} passes and {self.failures} failures, "
            f"the payloads of {self.deliveries} deliveries, {self.messages} sent messages, "
            f"{self.jobs} finished jobs, {self.workers} workers and {self.folders} folders of runs",
            f"{self.bytes_left / 2**20:.1f} MiB of logs and evidence are left",
        ]
        if self.too_large:
            lines[1] += (
                f", more than asked for: the newest {KEPT_PER_SIGNATURE} failures of each "
                "signature are always kept"
            )
        return "\n".join([*lines, *self.problems])


@dataclass(frozen=True)
class PrunedFolders:
    """How many folders were removed, and sentences on those that could not be."""

    removed: int = 0
    problems: tuple[str, ...] = ()


def prune_all(
    database: Database,
    settings: ServiceSettings,
    days: float,
    max_gib: float | None,
    now: datetime,
) -> Pruned:
    """Prune the database and this host's folders of runs. Raises InputError."""
    limit = None if max_gib is None else int(max_gib * 2**30)
    pruned = prune(database, evidence_days=days, max_bytes=limit, now=now)
    folders = prune_folders(settings.home / "runs", now - timedelta(days=days))
    return Pruned(**{**vars(pruned), "folders": folders.removed, "problems": folders.problems})


def prune(
    database: Database, *, evidence_days: float, max_bytes: int | None = None, now: datetime
) -> Pruned:
    """Drop what is older than evidence_days, then evidence until no more than max_bytes are left.

    Passes go first, the oldest first. The newest few failures of each signature always stay. Raises
    InputError for a limit that is none.
    """
    if not 0 < evidence_days < 100_000:
        raise InputError(f"days to keep evidence: must be more than 0, got {evidence_days:g}")
    if max_bytes is not None and max_bytes < 0:
        raise InputError(f"size of evidence: must not be negative, got {max_bytes} bytes")
    before = now - timedelta(days=evidence_days)
    passes, failures = _drop_old_evidence(database, before)
    left = _evidence_bytes(database)
    if max_bytes is not None and left > max_bytes:
        more_passes, left = _drop_passes(database, left, max_bytes)
        more_failures, left = _drop_failures(database, left, max_bytes)
        passes, failures = passes + more_passes, failures + more_failures
    jobs_before = max(before, now - JOBS_KEPT)
    return Pruned(
        passes=passes,
        failures=failures,
        deliveries=_until_none(
            database, _EMPTY_DELIVERIES, before, given_up=now - approval.GIVEN_UP_AFTER
        ),
        messages=_until_none(database, _DROP_MESSAGES, before),
        jobs=_until_none(database, _DROP_JOBS, jobs_before),
        workers=_until_none(database, _DROP_WORKERS, before),
        bytes_left=left,
        too_large=max_bytes is not None and left > max_bytes,
    )


def prune_folders(folder: Path, older_than: datetime) -> PrunedFolders:
    """Remove the folders of runs (or of their claims) in which nothing has changed since then.

    Only folders that are named by a UUID, as the runner names them. One that is not to be removed
    does not keep the others.
    """
    removed = 0
    problems = []
    for entry in sorted(folder.iterdir()) if folder.is_dir() else []:
        if not _is_uuid(entry.name) or entry.is_symlink() or not entry.is_dir():
            continue
        try:
            if any(moment >= older_than.timestamp() for moment in _changes(entry)):
                continue
            shutil.rmtree(entry)
        except FileNotFoundError:
            continue  # another process prunes too
        except OSError as error:
            problems.append(f"{error.filename or entry}: cannot be removed: {error.strerror}")
        else:
            removed += 1
    return PrunedFolders(removed, tuple(problems))


def _changes(folder: Path) -> Iterator[float]:
    """When the folder and all in it changed last, in seconds since 1970."""
    yield folder.stat().st_mtime
    for path in folder.rglob("*"):
        yield path.lstat().st_mtime


def _is_uuid(name: str) -> bool:
    try:
        return str(UUID(name)) == name
    except ValueError:
        return False


# Evidence


def _drop_old_evidence(database: Database, before: datetime) -> tuple[int, int]:
    """How many passes and how many failures lost theirs, in one walk by id."""
    passes = failures = 0
    last = 0
    kept = _kept(database)
    while True:
        with database.session() as session:
            end = _scalar(session, _WINDOW, last=last, batch=BATCH)
            if end is None:
                return passes, failures
            outcomes = session.connection().execute(
                _DROP_OLD, {"last": last, "end": end, "before": before, "kept": kept}
            )
            for passed, count in outcomes:
                passes, failures = (
                    (passes + count, failures) if passed else (passes, failures + count)
                )
        last = end


def _drop_passes(database: Database, size: int, limit: int) -> tuple[int, int]:
    return _drop_until(database, size, limit, lambda session: _rows(session, _PASSES))


def _drop_failures(database: Database, size: int, limit: int) -> tuple[int, int]:
    kept = _kept(database)
    return _drop_until(database, size, limit, lambda session: _rows(session, _FAILURES, kept=kept))


def _drop_until(
    database: Database,
    size: int,
    limit: int,
    oldest: Callable[[Session], list[tuple[int, int]]],
) -> tuple[int, int]:
    """Drop the oldest, given by id and size, while the size is over the limit; how many went, and
    the size that is left."""
    dropped = 0
    while size > limit:
        with database.session() as session:
            doomed = []
            for trial_id, its_size in oldest(session):
                if size <= limit:
                    break
                doomed.append(trial_id)
                size -= its_size
            if not doomed:
                break
            session.connection().execute(_DROP, {"doomed": doomed})
            dropped += len(doomed)
    return dropped, size


def _kept(database: Database) -> list[int]:
    with database.session() as session:
        return [row[0] for row in _rows(session, _KEPT, most=KEPT_PER_SIGNATURE)]


def _evidence_bytes(database: Database) -> int:
    with database.session() as session:
        return _scalar(session, _SIZE) or 0


def _rows(session: Session, statement: TextClause, **values: object) -> list[tuple[int, int]]:
    return [tuple(row) for row in session.connection().execute(statement, values)]


def _scalar(session: Session, statement: TextClause, **values: object) -> int | None:
    found: int | None = session.connection().execute(statement, values).scalar()
    return found


def _until_none(
    database: Database, statement: TextClause, before: datetime, **values: object
) -> int:
    """Run it, a batch at a time, until it changes no row; how many rows it changed."""
    changed = 0
    while True:
        with database.session() as session:
            asked = {"before": before, "batch": BATCH, **values}
            batch = session.connection().execute(statement, asked)
            count = batch.rowcount
        changed += count
        if count < BATCH:
            return changed


_BYTES = "pg_column_size(e.evidence) + pg_column_size(e.log)"
"""As stored: compressed, and read from the row itself without fetching the text."""

_SIZE = text(f"SELECT coalesce(sum({_BYTES}), 0)::bigint FROM trial_evidence e")

_WINDOW = text(
    """
    SELECT max(trial_id) FROM (
        SELECT trial_id FROM trial_evidence WHERE trial_id > :last ORDER BY trial_id LIMIT :batch
    ) AS next
    """
)

_DROP_OLD = text(
    """
    WITH dropped AS (
        DELETE FROM trial_evidence e USING trials t
        WHERE e.trial_id > :last AND e.trial_id <= :end AND t.id = e.trial_id
            AND t.finished_at < :before AND e.trial_id <> ALL(:kept)
        RETURNING t.outcome = 'pass' AS passed
    )
    SELECT passed, count(*) FROM dropped GROUP BY passed
    """
)

# Kept apart by subject, so that the emulated ones of a demo push out none of a GPU's.
_KEPT = text(
    """
    SELECT id, 0 FROM (
        SELECT t.id, row_number() OVER (
            PARTITION BY r.subject, t.signature ORDER BY t.finished_at DESC, t.id DESC
        ) AS place
        FROM trials t JOIN trial_evidence e ON e.trial_id = t.id JOIN runs r ON r.id = t.run_id
        WHERE t.outcome <> 'pass'
    ) AS failing
    WHERE place <= :most
    """
)

_PASSES = text(
    f"""
    SELECT e.trial_id, {_BYTES} FROM trial_evidence e JOIN trials t ON t.id = e.trial_id
    WHERE t.outcome = 'pass' ORDER BY e.trial_id LIMIT {BATCH}
    """
)

_FAILURES = text(
    f"""
    SELECT e.trial_id, {_BYTES} FROM trial_evidence e JOIN trials t ON t.id = e.trial_id
    WHERE t.outcome <> 'pass' AND e.trial_id <> ALL(:kept) ORDER BY e.trial_id LIMIT {BATCH}
    """
)

_DROP = text("DELETE FROM trial_evidence WHERE trial_id = ANY(:doomed)")

# The rest

# A command that is still to be decided (GitHub is away, say) is in its delivery's payload.
_EMPTY_DELIVERIES = text(
    """
    UPDATE deliveries SET payload = '{}' WHERE id IN (
        SELECT id FROM deliveries WHERE received_at < :before AND payload <> '{}'
            AND (payload ->> 'decided' IS DISTINCT FROM 'false' OR received_at < :given_up)
        ORDER BY received_at LIMIT :batch FOR UPDATE SKIP LOCKED
    )
    """
)

# The newest of a topic stays: by it one knows what was said last.
_DROP_MESSAGES = text(
    """
    DELETE FROM outbox WHERE id IN (
        SELECT id FROM outbox o WHERE state IN ('sent', 'replaced') AND created_at < :before
            AND EXISTS (SELECT 1 FROM outbox newer WHERE newer.topic = o.topic AND newer.id > o.id)
        ORDER BY id LIMIT :batch FOR UPDATE SKIP LOCKED
    )
    """
)

_DROP_JOBS = text(
    """
    DELETE FROM procrastinate_jobs WHERE id IN (
        SELECT id FROM procrastinate_jobs j
        WHERE status IN ('succeeded', 'failed', 'cancelled', 'aborted') AND NOT EXISTS (
            SELECT 1 FROM procrastinate_events e WHERE e.job_id = j.id AND e.at >= :before
        )
        ORDER BY id LIMIT :batch FOR UPDATE SKIP LOCKED
    )
    """
)

_DROP_WORKERS = text(
    """
    DELETE FROM workers WHERE id IN (
        SELECT id FROM workers w
        WHERE state IN ('stopped', 'lost') AND heartbeat_at < :before
            AND NOT EXISTS (SELECT 1 FROM claims c WHERE c.worker_id = w.id)
            AND NOT EXISTS (SELECT 1 FROM trials t WHERE t.worker_id = w.id)
            AND NOT EXISTS (SELECT 1 FROM commit_builds b WHERE b.worker_id = w.id)
        ORDER BY heartbeat_at LIMIT :batch FOR UPDATE SKIP LOCKED
    )
    """
)
