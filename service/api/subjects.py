"""What is tracked, and the matrices that ship."""

from __future__ import annotations

from functools import cache

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, Field
from sqlalchemy import func
from sqlmodel import col, select

from runner import matrix as matrices
from service.api.access import reader
from service.api.counted import CellOut
from service.api.documentation import API, errors
from service.tables import BranchCommit, Commit, Run

router = APIRouter(prefix=API, tags=["subjects"], dependencies=[Depends(reader)])


class BranchOut(BaseModel):
    """A branch whose history is known. commits: how many there are."""

    name: str = Field(examples=["main"])
    commits: int
    head: str


class SubjectOut(BaseModel):
    """What is tracked, and how; of one that only has results, tracked is false."""

    name: str = Field(examples=["te"])
    tracked: bool
    github: str = Field(examples=["NVIDIA/TransformerEngine"])
    toolchain: str
    queues: list[str] = Field(examples=[["sm90"]])
    push_matrix: str
    pull_matrix: str
    branches: list[BranchOut]


class SubjectsOut(BaseModel):
    """All subjects."""

    items: list[SubjectOut]


class MatrixCellOut(CellOut):
    """A cell of a matrix."""

    name: str = Field(examples=["stock, background"])
    trials: int


class MatrixOut(BaseModel):
    """A matrix, as its file has it."""

    name: str = Field(examples=["issue-3863"])
    title: str
    clean_below: float
    cells: list[MatrixCellOut]


class MatricesOut(BaseModel):
    """All matrices that ship."""

    items: list[MatrixOut]


@router.get(
    "/subjects", operation_id="listSubjects", summary="Subjects and their branches",
    responses=errors(),
)  # fmt: skip
def list_subjects(request: Request) -> SubjectsOut:
    """Those that are tracked, and those of which there are results only."""
    tracked = request.app.state.settings.subjects
    with request.app.state.database.session() as session:
        last = (
            select(
                BranchCommit.subject,
                BranchCommit.branch,
                func.max(BranchCommit.position).label("head"),
                func.count().label("commits"),
            )
            .group_by(col(BranchCommit.subject), col(BranchCommit.branch))
            .subquery()
        )
        branches: dict[str, list[BranchOut]] = {}
        query = (
            select(last.c.subject, last.c.branch, last.c.commits, Commit.sha)
            .join(
                BranchCommit,
                (col(BranchCommit.subject) == last.c.subject)
                & (col(BranchCommit.branch) == last.c.branch)
                & (col(BranchCommit.position) == last.c.head),
            )
            .join(Commit, col(Commit.id) == col(BranchCommit.commit_id))
            .order_by(last.c.subject, last.c.branch)
        )
        for subject, branch, commits, head in session.execute(query):
            found = BranchOut(name=branch, commits=commits, head=head)
            branches.setdefault(subject, []).append(found)
        others = set(session.exec(select(Run.subject).distinct())) | set(branches)
    return SubjectsOut(
        items=[
            _subject(name, tracked.get(name), branches.get(name, []))
            for name in [*tracked, *sorted(others - set(tracked))]
        ]
    )


@router.get(
    "/matrices", operation_id="listMatrices", summary="Matrices that ship", responses=errors()
)
def list_matrices() -> MatricesOut:
    """Each with its cells; a run can bring one of its own instead."""
    return _matrices()


def _subject(name: str, tracked: object, branches: list[BranchOut]) -> SubjectOut:
    return SubjectOut(
        name=name,
        tracked=tracked is not None,
        github=getattr(tracked, "github", ""),
        toolchain=getattr(tracked, "toolchain", ""),
        queues=getattr(tracked, "queues", []),
        push_matrix=getattr(tracked, "push_matrix", ""),
        pull_matrix=getattr(tracked, "pull_matrix", ""),
        branches=branches,
    )


@cache
def _matrices() -> MatricesOut:
    return MatricesOut(
        items=[
            MatrixOut.model_validate(matrices.as_data(matrices.load(name)))
            for name in matrices.available()
        ]
    )
