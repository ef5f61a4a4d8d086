"""Builds of commits: ordered by runs, made under a token, taken over when their worker is lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, col, select

from runner.run import BuildId, PreparedBuild
from service import rows
from service.events import publish
from service.queue import build_queue, wake
from service.tables import (
    OPEN_STATES,
    Build,
    BuildState,
    Commit,
    CommitBuild,
    Run,
    RunCell,
)
from service.tables.columns import now

ATTEMPTS = 4
"""Of a build, before what the infrastructure does to it counts as final."""
RETRY_S = 15
"""Before the second attempt; twice as long before each further one."""


def order(session: Session, run: Run, commit_id: int, name: str) -> CommitBuild:
    """The row of a build that a run needs, and a job that makes it where it is still to be made.

    A build with pull requests merged is looked at anew: their heads may have moved.
    """
    key = {
        "commit_id": commit_id,
        "name": name,
        "toolchain": run.facts.get("toolchain", ""),
        "architecture": run.queue,
    }
    statement = insert(CommitBuild).values(**key, state=BuildState.WAITING, attempts=0, reason="")
    session.connection().execute(statement.on_conflict_do_nothing(index_elements=list(key)))
    wanted = session.exec(select(CommitBuild).filter_by(**key).with_for_update()).one()
    asked_before = str(run.id) in (run.facts.get("builds_asked") or [])
    if wanted.state == BuildState.FAILED and not asked_before:
        wanted.state, wanted.attempts, wanted.reason = BuildState.WAITING, 0, ""
        session.add(wanted)
    if wanted.state == BuildState.DONE and BuildId.parse(name).pulls and not asked_before:
        wanted.state, wanted.attempts = BuildState.WAITING, 0
        session.add(wanted)
    session.flush()
    if wanted.state == BuildState.WAITING:
        _wake(session, run.subject, wanted, run.priority)
    return wanted


def _wake(
    session: Session, subject: str, wanted: CommitBuild, priority: int, after_s: float = 0.0
) -> None:
    at = now() + timedelta(seconds=after_s) if after_s else None
    wake(
        session, "build", build_queue(subject),
        lock=f"build:{wanted.id}", priority=priority, at=at, commit_build=wanted.id,
    )  # fmt: skip


@dataclass(frozen=True)
class BuildJob:
    """A build that a worker has taken. token: what storing its end takes."""

    id: int
    token: UUID
    subject: str
    name: str
    commit: dict[str, Any]
    architecture: str
    trusted: bool


def take(session: Session, commit_build: int, worker: UUID | None) -> BuildJob | None:
    """Take a build that waits; None where it does not, or nobody needs it any more."""
    wanted = session.exec(
        select(CommitBuild).where(CommitBuild.id == commit_build).with_for_update()
    ).one_or_none()
    if wanted is None or wanted.state != BuildState.WAITING:
        return None
    runs = needing(session, wanted)
    if not runs:
        return None
    wanted.state, wanted.token, wanted.worker_id = BuildState.BUILDING, uuid4(), worker
    wanted.attempts += 1
    wanted.started_at = wanted.heartbeat_at = now()
    wanted.finished_at = None
    session.add(wanted)
    commit = session.get_one(Commit, wanted.commit_id)
    publish(session, "build", commit=commit.id, build=wanted.id)
    assert wanted.id is not None
    assert wanted.token is not None
    return BuildJob(
        id=wanted.id,
        token=wanted.token,
        subject=commit.subject,
        name=wanted.name,
        commit=as_result(commit, next((r.ref for r in runs if r.commit_id == commit.id), "")),
        architecture=wanted.architecture,
        trusted=all(run.trusted for run in runs),
    )


def as_result(commit: Commit, ref: str = "") -> dict[str, Any]:
    """A commit as `runner.result.Commit` has it, as plain data."""
    return {
        "sha": commit.sha,
        "ref": ref or commit.ref or commit.sha,
        "title": commit.title,
        "author": commit.author,
        "date": commit.date.isoformat() if commit.date else "",
    }


def needing(session: Session, wanted: CommitBuild) -> list[Run]:
    """The open runs that need a build, the most urgent first."""
    of_commit = select(Run).where(
        col(Run.state).in_(OPEN_STATES),
        (col(Run.commit_id) == wanted.commit_id) | (col(Run.base_commit_id) == wanted.commit_id),
        Run.queue == wanted.architecture,
    )
    return list(session.exec(of_commit.order_by(col(Run.priority).desc(), col(Run.created_at))))


def alive(session: Session, job: BuildJob) -> bool:
    """Say that a build goes on; False where its token is no longer the live one, or no open run
    needs it: then it shall be stopped."""
    wanted = _held(session, job)
    if wanted is None or not needing(session, wanted):
        return False
    wanted.heartbeat_at = now()
    session.add(wanted)
    return True


def _held(session: Session, job: BuildJob) -> CommitBuild | None:
    return session.exec(
        select(CommitBuild)
        .where(CommitBuild.id == job.id, CommitBuild.token == job.token)
        .with_for_update()
    ).one_or_none()


def done(session: Session, job: BuildJob, build: PreparedBuild) -> bool:
    """Store what became of a build; False where another attempt has taken it over meanwhile."""
    wanted = _held(session, job)
    if wanted is None:
        return False
    row = rows.build_row(session, job.subject, build, f"{job.commit['sha']} {job.name}")
    wanted.state, wanted.build_id, wanted.token = BuildState.DONE, row.id, None
    wanted.reason, wanted.finished_at = "", now()
    session.add(wanted)
    publish(session, "build", commit=wanted.commit_id, build=wanted.id)
    return True


def gave_up(session: Session, job: BuildJob, reason: str, final: bool = False) -> bool:
    """Give a build back: the infrastructure did not manage. It is tried again a few times."""
    wanted = _held(session, job)
    if wanted is None:
        return False
    put_back(session, job.subject, wanted, reason, final)
    return True


def put_back(
    session: Session, subject: str, wanted: CommitBuild, reason: str, final: bool = False
) -> None:
    """Let a build wait again, or end as failed once it was tried often enough."""
    wanted.token, wanted.reason = None, reason
    spent = final or wanted.attempts >= ATTEMPTS
    wanted.state = BuildState.FAILED if spent else BuildState.WAITING
    wanted.finished_at = now()
    session.add(wanted)
    session.flush()
    if not spent:
        runs = needing(session, wanted)
        after = RETRY_S * 2 ** max(0, wanted.attempts - 1)
        if runs:
            _wake(session, subject, wanted, runs[0].priority, after)
    publish(session, "build", commit=wanted.commit_id, build=wanted.id)


def stopped(session: Session, job: BuildJob) -> None:
    """A build that nobody needs any more, or whose worker stops: no attempt of it is lost."""
    wanted = _held(session, job)
    if wanted is None:
        return
    wanted.state, wanted.token = BuildState.WAITING, None
    wanted.attempts = max(0, wanted.attempts - 1)
    session.add(wanted)
    session.flush()
    for run in needing(session, wanted)[:1]:
        _wake(session, job.subject, wanted, run.priority)


def of_commit(session: Session, run: Run, commit_id: int) -> Mapping[str, CommitBuild]:
    """The builds of a commit that this run may use, by name."""
    found = session.exec(
        select(CommitBuild).where(
            CommitBuild.commit_id == commit_id,
            CommitBuild.toolchain == run.facts.get("toolchain", ""),
            CommitBuild.architecture == run.queue,
        )
    )
    return {row.name: row for row in found}


def made(session: Session, builds: Mapping[str, CommitBuild]) -> dict[str, Build]:
    """The builds behind those rows that are done, by name."""
    ids = {row.build_id for row in builds.values() if row.build_id is not None}
    by_id = {b.id: b for b in session.exec(select(Build).where(col(Build.id).in_(ids)))}
    return {
        name: by_id[row.build_id]
        for name, row in builds.items()
        if row.state == BuildState.DONE and row.build_id in by_id
    }


def names(session: Session, run: Run) -> list[str]:
    """The builds that a run's cells and their references need."""
    wanted = set(session.exec(select(RunCell.build).where(RunCell.run_id == run.id)))
    return sorted(wanted | {"stock"})
