"""Starting and cancelling runs: what is asked for, and whether the token's holder may have it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from typing import Annotated, Any
from uuid import UUID, uuid5

from fastapi import APIRouter, Header, Request, Response
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
)
from sqlalchemy import func, text
from sqlmodel import Session, col, select

from runner import matrix as matrices
from runner import result
from runner.errors import InputError
from runner.matrix import MAX_HOLD_MS, MAX_PERIOD_MS, MAX_TRIALS, Matrix, Program, Recipe
from service.api.access import Caller, MayRun
from service.api.documentation import API, Said, errors
from service.api.errors import missing, refused
from service.api.parameters import (
    INTEGRAL,
    VARIANT,
    CleanBelow,
    Device,
    Ref,
    RunId,
    ShaPrefix,
    Subject,
    Text,
)
from service.api.runs import RunWhole, whole
from service.database import Database
from service.github import pulls
from service.settings import ServiceSettings, Tracked
from service.submit import RunRequest, cancel, submit
from service.tables import BranchCommit, Commit, Head, Pull, Run, Worker, WorkerState
from service.tokens import Scope

router = APIRouter(prefix=API, tags=["runs"])
_RUNS_OF_KEYS = UUID("6d3f6f0a-6a0e-5f57-9d0b-2f8d1a7a3c11")
"""Namespace of the ids of runs that were started under a key."""
PULL = re.compile(r"(?:refs/)?pull/([1-9][0-9]{0,8})(?:/head)?")
"""How a pull request is named as a ref."""
SHA = re.compile(r"[0-9a-f]{7,40}")
"""What may be a commit's hash, or the beginning of one."""
CELLS = 200
"""Cells of a matrix that a request may bring."""


class CellIn(Said):
    """A cell of a matrix, as its file has it."""

    variant: Annotated[
        str,
        StringConstraints(max_length=200, pattern=VARIANT),
    ] = Field(examples=["stock"])
    name: (
        Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 .,_+/-]{0,79}$")] | None
    ) = Field(default=None, description="Made of the other values by default.")
    program: Annotated[Program, Field(strict=False)] = Program.NORM_ACT_GEMM
    background: bool = True
    background_period_ms: float = Field(default=0.0, ge=0, le=MAX_PERIOD_MS)
    hold_ms: float = Field(default=0.0, ge=0, le=MAX_HOLD_MS)
    recipe: Annotated[Recipe, Field(strict=False)] = Recipe.AUTO
    trials: Annotated[int, Field(ge=1, le=MAX_TRIALS), INTEGRAL] = 10


class MatrixIn(Said):
    """A matrix of one's own, as its file has it."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,79}$")] = Field(
        examples=["my-matrix"]
    )
    title: Annotated[str, StringConstraints(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")] = ""
    clean_below: CleanBelow = 0.05
    detect: bool = Field(
        default=False, description="Whether the detector watches its trials, where it can."
    )
    controls: Annotated[int, Field(ge=0, le=MAX_TRIALS), INTEGRAL] = Field(
        default=0, description="Trials of each control cell on each device."
    )
    cells: list[CellIn] = Field(min_length=1, max_length=CELLS)


def _known(name: str) -> str:
    """A matrix that ships: a name is never taken for a file's of this host."""
    if name not in matrices.available():
        raise ValueError(f"must be one of {', '.join(matrices.available())}, or a matrix itself")
    return name


MatrixName = Annotated[
    Text, Field(json_schema_extra={"enum": list(matrices.available())}), AfterValidator(_known)
]


def _kind_of_matrix(value: Any) -> str:
    return "~name" if isinstance(value, str) else "~own"


MatrixChoice = Annotated[
    Annotated[MatrixName, Tag("~name")] | Annotated[MatrixIn, Tag("~own")],
    Discriminator(_kind_of_matrix),
]
"""By what it is, so that an error tells of the one that is meant. (A `~` marks what errors do not
name.)"""


class RunIn(Said):
    """What to run: a ref or a release, through a matrix, on a kind of device."""

    # Either of the two is needed, which JSON Schema says so.
    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [{"required": ["ref"]}, {"required": ["version"]}],
            "examples": [
                {"subject": "te", "ref": "main", "matrix": "issue-3863", "queue": "sm90"},
                {"subject": "te", "version": "2.9.0", "trials": 72, "sequential": True},
                {
                    "subject": "te",
                    "ref": "release_v2.9",
                    "matrix": {
                        "name": "held-open",
                        "cells": [{"variant": "stock", "hold_ms": 20, "trials": 40}],
                    },
                },
            ],
        }
    )

    subject: Subject
    ref: Ref = Field(
        default="", description="A branch, a tag, a commit or `pull/N`; or give version."
    )
    version: ShaPrefix = Field(
        default="", description="A release from the package index.", examples=["2.9.0"]
    )
    matrix: MatrixChoice | None = Field(
        default=None,
        description="The name of one that ships, or one of your own; by default the subject's.",
        examples=["quick"],
    )
    queue: Device | None = Field(
        default=None, description="By default the first that the subject is tracked on."
    )
    trials: Annotated[int, Field(ge=1, le=MAX_TRIALS), INTEGRAL] | None = Field(
        default=None, description="Of each cell, in place of the matrix's."
    )
    sequential: bool = Field(default=False, description="Cells stop as soon as they are decided.")


def _key(value: Any) -> Any:
    if isinstance(value, str) and not value.strip():
        raise ValueError("must not be empty")
    return value


IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="The same key, token and body again give the same run, not another one.",
    ),
    BeforeValidator(_key),
]


@router.post(
    "/runs",
    operation_id="startRun",
    summary="Start a run",
    status_code=201,
    responses={
        **errors(400, 403, 404, 409, 413, 415),
        200: {"model": RunWhole, "description": "The key was used before: this is its run."},
        201: {
            "headers": {
                "Location": {"description": "The run.", "schema": {"type": "string"}},
            }
        },
    },
)
def start_run(
    request: Request,
    response: Response,
    caller: MayRun,
    body: RunIn,
    idempotency_key: IdempotencyKey = None,
) -> RunWhole:
    """The ref is resolved by a worker, so a run of one that names nothing ends as failed.

    A pull request is run at the head that is known here; of a fork it awaits an approval of that
    commit.
    """
    settings: ServiceSettings = request.app.state.settings
    database: Database = request.app.state.database
    said = hashlib.sha256(body.model_dump_json().encode()).hexdigest()
    with database.session() as session:
        identity = None
        if idempotency_key is not None:
            identity = uuid5(_RUNS_OF_KEYS, f"{caller.token_id}:{idempotency_key}")
            before = _before(session, identity, said)
            if before is not None:
                response.status_code = 200
                response.headers["Location"] = f"{API}/runs/{before.id}"
                return whole(session, before.id)
        wanted = _request(session, settings, caller, body)
        facts = {**wanted.facts, "request": said}
        run = submit(session, replace(wanted, facts=facts, id=identity))
        response.headers["Location"] = f"{API}/runs/{run.id}"
        return whole(session, run.id)


@router.post(
    "/runs/{run_id}/cancel",
    operation_id="cancelRun",
    summary="Cancel a run",
    responses=errors(403, 404, 409),
)
def cancel_run(request: Request, caller: MayRun, run_id: RunId) -> RunWhole:
    """Workers see it at their next look. What its trials showed so far stays."""
    with request.app.state.database.session() as session:
        if not cancel(session, run_id, f"cancelled by {caller.name}"):
            run = session.get(Run, run_id)
            if run is None:
                raise missing("run", str(run_id))
            raise refused(409, f"run {run_id} has ended already: it is {run.state}")
        return whole(session, run_id)


def alone(session: Session, identity: UUID) -> None:
    """Wait until no other transaction is about what has this id."""
    session.connection().execute(
        text("SELECT pg_advisory_xact_lock(:key)"), {"key": identity.int >> 65}
    )


def _before(session: Session, identity: UUID, said: str) -> Run | None:
    """The run that was started under that key. Raises 422 where something else was asked for then.

    The lock makes a request that comes twice at once wait for its own first.
    """
    alone(session, identity)
    run = session.get(Run, identity)
    if run is not None and run.facts.get("request") != said:
        raise refused(
            422, "this Idempotency-Key was used for another request before: take a new one"
        )
    return run


def _request(
    session: Session, settings: ServiceSettings, caller: Caller, body: RunIn
) -> RunRequest:
    if bool(body.ref) == bool(body.version):
        raise InputError("body: give either ref or version")
    if body.subject not in settings.subjects:
        raise missing("tracked subject", body.subject)
    tracked = settings.subject(body.subject)
    matrix = chosen_matrix(body.matrix, tracked.push_matrix).with_trials(body.trials)
    wanted = RunRequest(
        subject=tracked.name,
        matrix=matrix,
        queue=served_queue(session, tracked, body.queue),
        version=body.version,
        toolchain=tracked.toolchain,
        requested_by=caller.name,
        sequential=body.sequential,
        facts={"repository": tracked.source} if tracked.source else {},
    )
    if body.ref:
        wanted = _of_ref(session, tracked, caller, body.ref, wanted)
    for number in {n for cell in matrix.cells for n in cell.variant.pulls}:
        wanted = _with_pull(session, tracked, caller, number, wanted)
    return wanted


def chosen_matrix(choice: str | MatrixIn | None, default: str) -> Matrix:
    """The matrix that is meant. Raises MatrixError."""
    if isinstance(choice, MatrixIn):
        return matrices.from_data(choice.model_dump(mode="json", exclude_none=True))
    return matrices.load(choice or default)


def served_queue(session: Session, tracked: Tracked, asked: str | None) -> str:
    """A queue that somebody serves, or is meant to: trials in any other would wait for ever."""
    known = set(tracked.queues)
    if asked is None and tracked.queues:
        return tracked.queues[0]
    for queues in session.exec(select(Worker.queues).where(Worker.state != WorkerState.STOPPED)):
        known |= {name.removeprefix("trial-") for name in queues if name.startswith("trial-")}
    if asked not in known:
        raise refused(
            409,
            f"queue: {tracked.name} is tracked on {', '.join(tracked.queues) or 'none'}, and "
            f"no worker takes {asked!r}; there are {', '.join(sorted(known)) or 'none'}",
        )
    return asked


def _of_ref(
    session: Session, tracked: Tracked, caller: Caller, ref: str, wanted: RunRequest
) -> RunRequest:
    """The request for a ref, such that no fork's code runs that nobody approved."""
    pull = PULL.fullmatch(ref)
    if pull:
        return _of_pull(session, tracked, int(pull[1]), wanted)
    if ref.startswith(("refs/", "pull/", "origin/")) or ref.endswith("_HEAD"):
        raise InputError(f"body, ref: give a branch, a tag, a commit or pull/N, got {ref!r}")
    if not SHA.fullmatch(ref) or is_name(session, tracked, ref):
        return replace(wanted, ref=ref)
    sha = on_branch(session, tracked, ref)
    if sha is not None:
        return replace(wanted, ref=sha)
    head = session.exec(
        select(Pull.number).where(
            Pull.subject == tracked.name, func.starts_with(Pull.head_sha, ref), col(Pull.open)
        )
    ).first()
    if head is not None:
        return _of_pull(session, tracked, head, wanted)
    # Its history tells nothing of whose it is: a fork's commits can be had by their hash.
    if not caller.may(Scope.APPROVE):
        raise refused(
            403,
            f"commit {ref} is on no branch or tag that is known here, and token {caller.name} "
            "lacks the scope approve, which vouches for it",
        )
    return replace(wanted, ref=ref, trusted=False)


def _of_pull(session: Session, tracked: Tracked, number: int, wanted: RunRequest) -> RunRequest:
    known = pulls.locked_pull(session, tracked.name, number)
    if known is None:
        raise refused(
            409, f"pull request {number} of {tracked.name} is not known here (yet): try again later"
        )
    if not known.open:
        raise refused(
            409, f"pull request {number} of {tracked.name} is closed: reopen it to run it"
        )
    return replace(
        wanted,
        commit=result.Commit(sha=known.head_sha, ref=f"pull/{number}"),
        pull=number,
        trusted=not known.fork,
        awaiting_approval=pulls.needs_approval(session, tracked.name, number, known.head_sha),
    )


def _with_pull(
    session: Session, tracked: Tracked, caller: Caller, number: int, wanted: RunRequest
) -> RunRequest:
    """The request for a matrix that merges a pull request, at whatever its head is by then."""
    known = session.get(Pull, (tracked.name, number))
    if known is not None and not known.fork:
        return wanted
    if not caller.may(Scope.APPROVE):
        raise refused(
            403,
            f"the matrix merges pull request {number}, which may be a fork's, and token "
            f"{caller.name} lacks the scope approve, which vouches for it",
        )
    return replace(wanted, trusted=False)


def is_name(session: Session, tracked: Tracked, ref: str) -> bool:
    """Whether what looks like a hash is a branch's or a tag's name."""
    found = select(Head.ref).where(
        Head.subject == tracked.name, col(Head.ref).in_((ref, f"tags/{ref}"))
    )
    return session.exec(found.limit(1)).first() is not None


def on_branch(session: Session, tracked: Tracked, sha: str) -> str | None:
    """The whole hash of a commit that is known to be on a branch or a tag of the repository."""
    placed = (
        select(Commit.sha)
        .join(BranchCommit, col(BranchCommit.commit_id) == col(Commit.id))
        .where(Commit.subject == tracked.name, func.starts_with(Commit.sha, sha))
    )
    named = select(Head.sha).where(
        Head.subject == tracked.name,
        func.starts_with(Head.sha, sha),
        ~col(Head.ref).startswith("pull/"),
    )
    found = {*session.exec(placed.limit(2)), *session.exec(named.limit(2))}
    if len(found) > 1:
        raise refused(409, f"commit {sha!r} is ambiguous, give more of it")
    return next(iter(found), None)
