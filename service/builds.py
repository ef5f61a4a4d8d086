"""Builds of commits: ordered by runs, made under a token, taken over when their worker is lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import literal
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, col, select

from runner.run import BuildId, PreparedBuild
from runner.variants.names import BuildKind
from service import rows
from service.database import clock
from service.events import publish
from service.queue import build_queue, wake
from service.tables import Build, BuildState, Commit, CommitBuild, Run, RunCell, RunState

STOCK = str(BuildId(BuildKind.STOCK))
"""Every run needs it, for the reference that its outputs are compared with."""
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
    wanted = session.exec(
        select(CommitBuild).filter_by(**key).with_for_update(),
        execution_options={"populate_existing": True},
    ).one()
    asked = set(run.facts.get("builds_asked") or ())
    if wanted.id not in asked:
        merges = wanted.state == BuildState.DONE and BuildId.parse(name).pulls
        if wanted.state == BuildState.FAILED or merges:
            wanted.state, wanted.attempts = BuildState.WAITING, 0
            wanted.reason, wanted.finished_at = "", None
            session.add(wanted)
        run.facts = {**run.facts, "builds_asked": sorted({*asked, wanted.id})}
        session.add(run)
    session.flush()
    if wanted.state == BuildState.WAITING:
        _wake(session, wanted)
    return wanted


def _wake(session: Session, wanted: CommitBuild, at: datetime | None = None) -> None:
    """Wake who makes a build that waits, as urgently as the runs that need it are.

    at: not before, nor before a failed attempt's pause is over.
    """
    moments = [moment for moment in (_due(wanted), at) if moment is not None]
    runs = needing(session, wanted)
    if not runs:
        return
    trusted = _trusted(runs)
    wake(
        session, "build", build_queue(_subject(session, wanted), trusted),
        lock=f"build:{wanted.id}", priority=runs[0].priority, at=max(moments, default=None),
        commit_build=wanted.id,
    )  # fmt: skip


def _subject(session: Session, wanted: CommitBuild) -> str:
    return session.get_one(Commit, wanted.commit_id).subject


def _due(wanted: CommitBuild) -> datetime | None:
    """When a build that failed for want of the host is tried again; None for at once."""
    if not wanted.attempts or wanted.finished_at is None:
        return None
    return wanted.finished_at + timedelta(seconds=RETRY_S * 2 ** (wanted.attempts - 1))


def _trusted(runs: Sequence[Run]) -> bool:
    """Whether somebody vouches for the code of a build: one run that is trusted is enough, since
    what merges pull requests is never trusted."""
    return any(run.trusted for run in runs)


@dataclass(frozen=True)
class BuildJob:
    """A build that a worker has taken. token: what storing its end takes. trusted: whether its
    compilers may add to the cache that the builds of others read."""

    id: int
    token: UUID
    subject: str
    name: str
    commit: dict[str, Any]
    architecture: str
    trusted: bool


def take(
    session: Session, commit_build: int, worker: UUID | None, contained: bool = False
) -> BuildJob | None:
    """Take a build that waits; None where it does not, or nobody needs it any more.

    contained: the worker puts code that nobody vouches for into containers. For one that does not,
    such a build is left to others.
    """
    wanted = session.exec(
        select(CommitBuild).where(CommitBuild.id == commit_build).with_for_update()
    ).one_or_none()
    if wanted is None or wanted.state != BuildState.WAITING:
        return None
    runs = needing(session, wanted)
    if not runs:
        return None
    if not contained and not _trusted(runs):
        _wake(session, wanted)
        return None
    wanted.state, wanted.token, wanted.worker_id = BuildState.BUILDING, uuid4(), worker
    if not wanted.attempts:
        wanted.reason = ""  # what it waited for is here; of a failed attempt it stays
    wanted.attempts += 1
    wanted.started_at = wanted.heartbeat_at = clock(session)
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
        trusted=_trusted(runs),
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
    """The open runs that wait for a build, the most urgent first.

    A run that is still to be resolved may turn out to need it, whatever its toolchain.
    """
    of_its_cells = select(RunCell.id).where(RunCell.run_id == Run.id, RunCell.build == wanted.name)
    stock = wanted.name == STOCK
    own = (col(Run.commit_id) == wanted.commit_id) & (literal(stock) | of_its_cells.exists())
    of_its_base = (col(Run.base_commit_id) == wanted.commit_id) & literal(stock)
    control = col(Run.facts)["control"].as_integer() == wanted.commit_id
    of_its_controls = control & literal(stock)
    same = col(Run.facts)["toolchain"].astext == wanted.toolchain
    found = session.exec(
        select(Run)
        .where(
            Run.queue == wanted.architecture,
            own | of_its_base | of_its_controls,
            (col(Run.state) == RunState.QUEUED) | ((col(Run.state) == RunState.BUILDING) & same),
        )
        .order_by(col(Run.priority).desc(), col(Run.created_at), col(Run.id))
    )
    return list(found)


def alive(session: Session, job: BuildJob) -> bool:
    """Say that a build goes on; False where its token is no longer the live one, or no open run
    needs it: then it shall be stopped."""
    wanted = _held(session, job)
    if wanted is None or not needing(session, wanted):
        return False
    wanted.heartbeat_at = clock(session)
    session.add(wanted)
    return True


def postpone(session: Session, commit_build: int, reason: str) -> None:
    """Put off a build that a worker was woken for and cannot make, for that reason.

    No attempt of it is lost.
    """
    wanted = session.exec(
        select(CommitBuild).where(CommitBuild.id == commit_build).with_for_update()
    ).one_or_none()
    if wanted is None or wanted.state != BuildState.WAITING:
        return
    wanted.reason = reason
    session.add(wanted)
    session.flush()
    _wake(session, wanted, clock(session) + timedelta(seconds=RETRY_S))
    publish(session, "build", commit=wanted.commit_id, build=wanted.id)


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
    wanted.reason, wanted.finished_at = "", clock(session)
    session.add(wanted)
    publish(session, "build", commit=wanted.commit_id, build=wanted.id)
    return True


def gave_up(session: Session, job: BuildJob, reason: str, final: bool = False) -> bool:
    """Give a build back: the infrastructure did not manage. It is tried again a few times."""
    wanted = _held(session, job)
    if wanted is None:
        return False
    put_back(session, wanted, reason, final)
    return True


def put_back(session: Session, wanted: CommitBuild, reason: str, final: bool = False) -> None:
    """Let a build, whose row is locked, wait again, or end as failed after so many attempts."""
    wanted.token, wanted.reason = None, reason
    spent = final or wanted.attempts >= ATTEMPTS
    wanted.state = BuildState.FAILED if spent else BuildState.WAITING
    wanted.finished_at = clock(session)
    session.add(wanted)
    session.flush()
    if not spent:
        _wake(session, wanted)
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
    _wake(session, wanted)
    publish(session, "build", commit=wanted.commit_id, build=wanted.id)


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


def settle(session: Session, run: Run, made: Mapping[str, Build]) -> None:
    """Let a run keep to these builds, whatever is made of its commit later: a pull request that a
    build merges may move on, and another run then asks for it anew."""
    run.facts = {**run.facts, "builds": {name: build.id for name, build in made.items()}}
    session.add(run)


def of_run(session: Session, run: Run) -> dict[str, Build]:
    """The builds that a run keeps to, by name."""
    ids: Mapping[str, int] = run.facts.get("builds") or {}
    found = session.exec(select(Build).where(col(Build.id).in_(ids.values())))
    by_id = {build.id: build for build in found}
    return {name: by_id[identity] for name, identity in ids.items()}
