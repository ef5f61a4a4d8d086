"""Commits: along a branch, and as other answers name them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, Field
from sqlalchemy import func
from sqlmodel import Session, col, select

from service.api.access import reader
from service.api.cursor import Cursor, Page, at_number, next_of, number_of
from service.api.documentation import API, errors, paged
from service.api.errors import missing, refused
from service.api.parameters import Filters, Limit, Ref, Subject
from service.api.rows import taken
from service.settings import ServiceSettings
from service.tables import BranchCommit, Commit

router = APIRouter(prefix=API, tags=["commits"], dependencies=[Depends(reader)])
AMBIGUOUS = 5
"""Candidates that are named where a hash is too short."""


class CommitOut(BaseModel):
    """A commit; of a release, its version is the sha."""

    sha: str = Field(examples=["81a6d4f0c2c0f6a9d1f0b7b6f3a5f8b1c9d2e3f4"])
    ref: str = Field(description="How it was asked for first.", examples=["main"])
    title: str
    author: str
    date: datetime | None

    @classmethod
    def of(cls, row: Commit) -> CommitOut:
        """As the API writes a commit."""
        return cls(**taken(row, cls))


class PlacedCommit(CommitOut):
    """A commit with its place on a branch: 0 is the root, the head is the highest."""

    position: int


class CommitFilters(Filters):
    """Which commits."""

    subject: Subject
    branch: Ref | None = Field(default=None, description="By default the first that is tracked.")
    limit: Limit = 50
    cursor: Cursor | None = None


@router.get(
    "/commits",
    operation_id="listCommits",
    summary="Commits of a branch, newest first",
    responses=paged(errors(404)),
)
def list_commits(
    request: Request, response: Response, asked: Annotated[CommitFilters, Query()]
) -> Page[PlacedCommit]:
    """The first-parent history of a branch, as far as the service knows it."""
    with request.app.state.database.session() as session:
        branch = branch_of(session, request.app.state.settings, asked.subject, asked.branch)
        query = (
            select(BranchCommit.position, Commit)
            .join(Commit, col(Commit.id) == col(BranchCommit.commit_id))
            .where(BranchCommit.subject == asked.subject, BranchCommit.branch == branch)
            .order_by(col(BranchCommit.position).desc())
            .limit(asked.limit + 1)
        )
        if asked.cursor is not None:
            query = query.where(col(BranchCommit.position) < number_of(asked.cursor))
        rows = session.exec(query).all()
    page = rows[: asked.limit]
    rest = at_number(page[-1][0]) if len(rows) > asked.limit else None
    return Page(
        items=[
            PlacedCommit(**CommitOut.of(commit).model_dump(), position=position)
            for position, commit in page
        ],
        next=next_of(request, response, rest),
    )


def branch_of(session: Session, settings: ServiceSettings, subject: str, branch: str | None) -> str:
    """The branch that is meant. Raises 404 where the service knows no commit of it."""
    known = session.exec(
        select(BranchCommit.branch).where(BranchCommit.subject == subject).distinct()
    ).all()
    if branch is None:
        tracked = settings.subjects[subject].branches if subject in settings.subjects else []
        branch = next((name for name in (*tracked, "main", *sorted(known)) if name in known), None)
        if branch is None:
            raise refused(404, f"no branch of subject {subject!r} is known")
    if branch not in known:
        names = ", ".join(sorted(known)) or "none"
        raise refused(404, f"branch {branch!r} of subject {subject!r} is not known; known: {names}")
    return branch


def commit_of(session: Session, subject: str, sha: str) -> Commit:
    """The one commit whose hash begins so. Raises 404, or 409 where several do."""
    found = session.exec(
        select(Commit)
        .where(Commit.subject == subject, func.starts_with(Commit.sha, sha))
        .order_by((col(Commit.sha) == sha).desc(), col(Commit.sha))
        .limit(AMBIGUOUS)
    ).all()
    if not found:
        raise missing(f"commit of {subject}", sha)
    if len(found) > 1 and found[0].sha != sha:
        names = ", ".join(commit.sha[:12] for commit in found)
        raise refused(409, f"commit {sha!r} is ambiguous, give more of it: {names}")
    return found[0]


def place_of(session: Session, subject: str, branch: str, sha: str) -> int:
    """Where a commit stands on a branch. Raises 404, 409."""
    commit = commit_of(session, subject, sha)
    position = session.exec(
        select(BranchCommit.position).where(
            BranchCommit.subject == subject,
            BranchCommit.branch == branch,
            BranchCommit.commit_id == commit.id,
        )
    ).first()
    if position is None:
        raise refused(404, f"commit {commit.sha[:12]} is not on branch {branch!r}")
    return position
