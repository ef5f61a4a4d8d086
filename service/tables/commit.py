"""Commits of a subject, where branches hold them, refs as last seen, and pull requests."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Index
from sqlmodel import Field, SQLModel, UniqueConstraint

from service.tables.columns import moment


class Commit(SQLModel, table=True):
    """One commit; a release from the package index has its version as `sha`.

    ref: how it was asked for first, such as `main` or `pull/12`.
    """

    __tablename__ = "commits"
    __table_args__ = (UniqueConstraint("subject", "sha"),)

    id: int | None = Field(default=None, primary_key=True)
    subject: str
    sha: str
    ref: str = ""
    title: str = ""
    author: str = ""
    date: datetime | None = moment()


class BranchCommit(SQLModel, table=True):
    """A commit's place on a branch's first-parent history: 0 is the root, the head the highest."""

    __tablename__ = "branch_commits"
    __table_args__ = (Index("branch_commits_by_commit", "commit_id"),)

    subject: str = Field(primary_key=True)
    branch: str = Field(primary_key=True)
    position: int = Field(primary_key=True)
    commit_id: int = Field(foreign_key="commits.id")


class Head(SQLModel, table=True):
    """What a ref (`main`, `tags/v2.9`, `pull/12`) named when it was last seen."""

    __tablename__ = "heads"

    subject: str = Field(primary_key=True)
    ref: str = Field(primary_key=True)
    sha: str
    seen_at: datetime = moment(default_now=True)


class Pull(SQLModel, table=True):
    """A pull request. fork: its head is in another repository than its base.

    merge_base: of head and base branch, as far as it is known.
    """

    __tablename__ = "pulls"

    subject: str = Field(primary_key=True)
    number: int = Field(primary_key=True)
    title: str = ""
    author: str = ""
    head_sha: str
    head_repository: str = ""
    base_ref: str = ""
    base_repository: str = ""
    merge_base: str = ""
    fork: bool = True
    draft: bool = False
    open: bool = True
    updated_at: datetime = moment(default_now=True)
