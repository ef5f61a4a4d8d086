"""Pull requests, and approvals of their head commits."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, Field, StringConstraints
from sqlmodel import col, select

from runner.errors import InputError
from service.api.access import MayApprove, reader
from service.api.cursor import Cursor, Page, at_number, next_of, number_of
from service.api.documentation import API, Said, errors, paged
from service.api.errors import missing, refused
from service.api.parameters import INTEGRAL, Filters, Limit, Subject
from service.api.rows import taken
from service.github.approval import approve_commit
from service.tables import Approval, Pull, Run, RunState

reading = APIRouter(prefix=API, tags=["pulls"], dependencies=[Depends(reader)])
router = APIRouter(prefix=API, tags=["pulls"])


class PullRun(BaseModel):
    """The newest run of a pull request's head."""

    id: UUID
    state: RunState


class PullOut(BaseModel):
    """A pull request."""

    subject: str = Field(examples=["te"])
    number: int = Field(examples=[2800])
    title: str
    author: str
    head_sha: str
    head_repository: str
    base_ref: str
    base_repository: str
    merge_base: str
    fork: bool = Field(description="Its head is in another repository than its base.")
    draft: bool
    open: bool
    approved_by: str | None = Field(description="Who approved its head commit, if anyone.")
    run: PullRun | None
    updated_at: datetime


class PullFilters(Filters):
    """Which pull requests."""

    subject: Subject
    state: Annotated[
        str | None, StringConstraints(pattern="^(open|closed)$"), Field(examples=["open"])
    ] = None
    limit: Limit = 50
    cursor: Cursor | None = None


class ApprovalIn(Said):
    """The commit that was read and found good."""

    subject: Subject
    pull: Annotated[int, Field(ge=1, le=999_999_999, examples=[2800]), INTEGRAL]
    sha: Annotated[
        str, StringConstraints(pattern=r"^[0-9A-Fa-f]{7,40}$"), Field(examples=["81a6d4f0c2"])
    ] = Field(description="The head commit, whole or its first 7 digits and more.")


class ApprovalOut(BaseModel):
    """An approval, and the runs that begin because of it."""

    subject: str
    pull: int
    sha: str
    new: bool = Field(description="False where the commit was approved before.")
    runs: list[UUID]


@reading.get(
    "/pulls",
    operation_id="listPulls",
    summary="Pull requests, the newest first",
    responses=paged(errors()),
)
def list_pulls(
    request: Request, response: Response, asked: Annotated[PullFilters, Query()]
) -> Page[PullOut]:
    """Each with who approved its head, and the newest run of it."""
    newest = (
        select(Run.id)
        .where(Run.subject == Pull.subject, Run.pull == Pull.number, Run.head_sha == Pull.head_sha)
        .order_by(col(Run.created_at).desc())
        .limit(1)
        .correlate(Pull)
        .scalar_subquery()
    )
    query = (
        select(Pull, Approval.by, Run)
        .join(
            Approval,
            (col(Approval.subject) == col(Pull.subject)) & (col(Approval.sha) == Pull.head_sha),
            isouter=True,
        )
        .join(Run, col(Run.id) == newest, isouter=True)
        .where(Pull.subject == asked.subject)
        .order_by(col(Pull.number).desc())
        .limit(asked.limit + 1)
    )
    if asked.state is not None:
        query = query.where(col(Pull.open).is_(asked.state == "open"))
    if asked.cursor is not None:
        query = query.where(col(Pull.number) < number_of(asked.cursor))
    with request.app.state.database.session() as session:
        rows = session.exec(query).all()
    page = rows[: asked.limit]
    rest = at_number(page[-1][0].number) if len(rows) > asked.limit else None
    return Page(
        items=[
            PullOut(
                **taken(pull, PullOut, but=("approved_by", "run")),
                approved_by=by,
                run=PullRun(id=run.id, state=run.state) if run else None,
            )
            for pull, by, run in page
        ],
        next=next_of(request, response, rest),
    )


@router.post(
    "/approvals",
    operation_id="approveCommit",
    summary="Approve the head commit of a pull request",
    responses=errors(400, 403, 404, 409, 413, 415),
)
def approve(request: Request, caller: MayApprove, body: ApprovalIn) -> ApprovalOut:
    """Runs of exactly this commit that await approval begin; a later push needs another one."""
    if body.subject not in request.app.state.settings.subjects:
        raise missing("tracked subject", body.subject)
    with request.app.state.database.session() as session:
        try:
            approved = approve_commit(
                session, body.subject, body.pull, body.sha, by=caller.name, via="api"
            )
        except InputError as error:  # what was asked is sound, and not how things stand
            raise refused(409, str(error)) from error
    return ApprovalOut(
        subject=body.subject,
        pull=body.pull,
        sha=approved.sha,
        new=approved.new,
        runs=list(approved.runs),
    )
