"""Bisections: started, cancelled, listed, and looked at while they go on."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar
from uuid import UUID, uuid5

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from sqlalchemy import func
from sqlmodel import Session, col, select

from runner import result
from runner.bisect.bisection import Stage
from runner.bisect.decision import Probe
from runner.bisect.events import Seen
from runner.bisect.posterior import Tally
from runner.bisect.settings import Observe
from runner.bisect.verdict import SideRate, Verdict, VerdictKind
from runner.bisect.verification import Check, CheckKind, CheckState
from runner.bisect.verification import Side as CheckSide
from runner.errors import InputError
from runner.matrix import Matrix
from runner.statistics.comparison import interval
from runner.statistics.counts import Counts
from service import bisection
from service.api.access import Caller, MayRun, reader
from service.api.commits import CommitOut
from service.api.counted import CellOut, Share
from service.api.cursor import Cursor, Page, at_moment, at_number, moment_of, next_of, number_of
from service.api.documentation import API, Said, errors, paged
from service.api.errors import missing, refused
from service.api.export import ROWS_AT_ONCE, FormatParameter, csv_response, wants_csv
from service.api.order import (
    PULL,
    SHA,
    IdempotencyKey,
    MatrixChoice,
    alone,
    chosen_matrix,
    is_name,
    on_branch,
    served_queue,
)
from service.api.parameters import Device, Filters, Limit, Ref, RunId, Subject, Text
from service.bisection import BisectionRequest
from service.database import Database
from service.reading import bisections
from service.reading.bisections import (
    NEWEST_FIRST,
    WITHOUT_RANGE,
    BisectionLine,
    BisectionPage,
    ObservationLine,
    RunningProbe,
    Searched,
    Suspect,
    older_than,
)
from service.rows import moment_of as date_of
from service.settings import ServiceSettings, Tracked
from service.tables import Bisection, BisectionState, Pull, RunState

reading = APIRouter(prefix=API, tags=["bisections"], dependencies=[Depends(reader)])
router = APIRouter(prefix=API, tags=["bisections"])
_BISECTIONS_OF_KEYS = UUID("0f3c9a54-4f9e-5d0b-9a66-6a3f2d1c8e57")
"""Namespace of the ids of bisections that were started under a key."""
YEAR_S = 31_536_000.0
BisectionId = RunId
Item = TypeVar("Item")


# What is said


def _number(value: Any) -> Any:
    """JSON has one kind of numbers: there, 7200 is one with a fraction too."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


class BisectionIn(Said):
    """Between which commits, and which cell's rate."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"subject": "te", "good": "v2.7", "bad": "v2.9", "cell": "stock, background"},
                {
                    "subject": "te",
                    "good": "release_v2.8",
                    "bad": "main",
                    "matrix": {
                        "name": "held-open",
                        "cells": [{"variant": "stock", "hold_ms": 20, "name": "held"}],
                    },
                    "cell": "held",
                    "queue": "sm90",
                    "confidence": 0.95,
                    "budget_s": 7200,
                },
            ]
        }
    )

    subject: Subject
    good: Ref = Field(
        description="A branch, a tag or a commit of one, where the rate is as it was.",
        examples=["v2.7"],
    )
    bad: Ref = Field(
        description="One where it has changed, for worse or for better. It may be the older one: "
        "then the search is for what fixed it.",
        examples=["main"],
    )
    cell: Text = Field(
        description="The cell, by its name in the matrix.", examples=["stock, background"]
    )
    matrix: MatrixChoice | None = Field(
        default=None,
        description="The name of one that ships, or one of your own; by default the subject's for "
        "pull requests.",
        examples=["issue-3863"],
    )
    queue: Device | None = Field(
        default=None, description="By default the first that the subject is tracked on."
    )
    confidence: Annotated[
        float, Field(gt=0.5, lt=1, allow_inf_nan=False), BeforeValidator(_number)
    ] = Field(default=0.99, description="Probability of the culprit at which it is verified.")
    budget_s: (
        Annotated[float, Field(gt=0, le=YEAR_S, allow_inf_nan=False), BeforeValidator(_number)]
        | None
    ) = Field(
        default=None,
        description="Seconds after which it ends with what it knows; null for no end.",
        examples=[7200],
    )

    observe: Literal["failure", "swallow"] = Field(
        default="failure",
        description="What is counted of a trial: that it failed, or that foreign work went into a "
        "capture window (`swallow`), however it ended. A rare race takes fewer trials so; those "
        "that the detector did not watch count for nothing then.",
    )


class BisectionFilters(Filters):
    """Which bisections."""

    subject: Subject | None = None
    queue: Device | None = None
    state: BisectionState | None = None
    limit: Limit | None = Field(default=None, description="Bisections on a page, 50 by default.")
    cursor: Cursor | None = None
    format: FormatParameter = None


class PartFilters(Filters):
    """How much of a part of a bisection."""

    limit: Limit | None = Field(default=None, description="Rows on a page, 50 by default.")
    cursor: Cursor | None = None
    format: FormatParameter = None


# What is answered


class RateOut(BaseModel):
    """The failure rate on one side of the change."""

    k: int
    n: int
    rate: Share = Field(description="Expected, given all trials.")
    interval: tuple[Share, Share] = Field(
        description="Holds the rate with 95 % probability, whatever decided on the trials."
    )
    text: str = Field(examples=["30.1 % (62 of 206, 24.4 to 36.7 %)"])

    @classmethod
    def of(cls, side: SideRate | None) -> RateOut | None:
        """As the API writes the rate of a side."""
        if side is None:
            return None
        return cls(
            k=side.tally.k,
            n=side.tally.n,
            rate=side.rate,
            interval=(side.low, side.high),
            text=side.text,
        )


class VerdictOut(BaseModel):
    """How it ended. before, after: the rates on the good and on the bad end's side."""

    kind: VerdictKind = Field(examples=["culprit"])
    text: str = Field(description="All of it in one sentence.")
    probability: Share = Field(
        description="That one of `commits` brought the change, or that there is none."
    )
    commits: list[CommitOut] = Field(description="The suspects, one of a culprit.")
    fixed: bool = Field(description="What the bad end lacks, not what it has, made the change.")
    before: RateOut | None
    after: RateOut | None
    reason: str

    @classmethod
    def of(cls, verdict: Verdict) -> VerdictOut:
        """As the API writes a verdict."""
        return cls(
            kind=verdict.kind,
            text=verdict.text,
            probability=verdict.probability,
            commits=[_commit(one) for one in verdict.commits],
            fixed=verdict.fixed,
            before=RateOut.of(verdict.before),
            after=RateOut.of(verdict.after),
            reason=verdict.reason,
        )


class CostOut(BaseModel):
    """What it took so far; trials that were there before cost nothing."""

    builds: int
    trials: int
    build_s: float = Field(description="Seconds of all builds, those that failed too.")
    trial_s: float = Field(description="Seconds that workers held its trials.")


class BisectionOut(BaseModel):
    """A bisection, without what it saw."""

    id: UUID
    subject: str = Field(examples=["te"])
    good: str = Field(examples=["v2.7"])
    bad: str = Field(examples=["v2.9"])
    matrix: str = Field(examples=["issue-3863"])
    cell: str = Field(examples=["stock, background"])
    queue: str = Field(description="Kind of device that its trials need.", examples=["sm90"])
    emulated: bool = Field(description="True where no GPU takes part.")
    toolchain: str
    confidence: float = Field(examples=[0.99])
    budget_s: float | None
    state: BisectionState
    reason: str
    requested_by: str
    observe: Observe = Field(
        description="What it counts of a trial: k of every count are failures, or trials with "
        "foreign work in a capture window."
    )
    cause: UUID | None = Field(
        description="The run whose regression started it by itself; null where somebody did."
    )
    classes: int | None = Field(
        description="Builds that tell its commits apart; null until the range is known."
    )
    cost: CostOut
    verdict: VerdictOut | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @classmethod
    def of(cls, line: BisectionLine) -> BisectionOut:
        """As the API writes a bisection."""
        spent = line.spent
        return cls(
            id=line.id,
            subject=line.subject,
            good=line.good,
            bad=line.bad,
            matrix=line.matrix,
            cell=line.cell,
            queue=line.queue,
            emulated=line.emulated,
            toolchain=line.toolchain,
            confidence=line.confidence,
            budget_s=line.budget_s,
            state=BisectionState(line.state),
            reason=line.reason,
            requested_by=line.requested_by,
            observe=line.observe,
            cause=line.cause,
            classes=line.classes,
            cost=CostOut(
                builds=spent.builds,
                trials=spent.trials,
                build_s=spent.build_s,
                trial_s=spent.trial_s,
            ),
            verdict=VerdictOut.of(line.verdict) if line.verdict else None,
            created_at=line.created_at,
            started_at=line.started_at,
            finished_at=line.finished_at,
        )


class SuspectOut(BaseModel):
    """Commits with one build, and the one by which the range leads to it."""

    place: int = Field(description="From 0, the good end's.")
    commit: CommitOut = Field(
        description="Which may have brought the change; of place 0 the good end itself."
    )
    probability: Share | None = Field(description="That it did. Null at the good end.")
    built: CommitOut = Field(description="Whose build stands for all commits with the same.")
    same_build: list[CommitOut] = Field(description="The others, which change nothing that is run.")
    key: str
    k: int
    n: int
    interval: tuple[Share, Share] = Field(
        description="95 % interval of the build's rate that holds however many trials there are."
    )
    broken: str = Field(description="Why it cannot be measured, empty if that is not so.")
    forward: bool = Field(description="False where the range goes back in time to it.")
    merge: bool
    suspected: bool = Field(description="It is among those that are being checked, or were found.")

    @classmethod
    def of(cls, one: Suspect) -> SuspectOut:
        """As the API writes a class of a range."""
        return cls(
            place=one.place,
            commit=_commit(one.commit),
            probability=one.probability,
            built=_commit(one.built),
            same_build=[_commit(other) for other in one.same],
            key=one.key,
            k=one.tally.k,
            n=one.tally.n,
            interval=(one.low, one.high),
            broken=one.broken,
            forward=one.forward,
            merge=one.merge,
            suspected=one.suspected,
        )


class RangeOut(BaseModel):
    """A range that is or was searched, from the good to the bad end."""

    text: str = Field(examples=["126 commits in 73 classes by build, 2 merges"])
    inside: CommitOut | None = Field(description="The merge that it is in; null of the first.")
    build: str = Field(description="The build that is looked at.", examples=["stock"])
    commits: int
    no_change: Share = Field(description="Probability that the rate does not change in it.")
    first: int = Field(
        description="Place of the first commit of the shortest stretch that holds the change with "
        "the confidence that was asked for, given that there is one."
    )
    last: int = Field(description="Place of its last commit.")
    classes: list[SuspectOut]

    @classmethod
    def of(cls, one: Searched) -> RangeOut:
        """As the API writes a range with its posterior."""
        return cls(
            text=one.range.text,
            inside=_commit(one.inside) if one.inside else None,
            build=one.range.build,
            commits=one.range.commits,
            no_change=one.none,
            first=one.first,
            last=one.last,
            classes=[SuspectOut.of(suspect) for suspect in one.suspects],
        )


class ObservationOut(BaseModel):
    """One thing that happened: a probe that ended, a merge that was entered, a revert."""

    number: int
    at: datetime
    event: str = Field(description="`observation`, `entered` or `reverted`.")
    commit: CommitOut | None
    key: str
    seen: Seen | None = Field(description="What came of a probe.")
    k: int
    n: int
    check: int = Field(description="Number of the check that it is for, 0 for the search.")
    build_s: float = Field(description="0 where the build was there.")
    trial_s: float = Field(description="0 of trials that were there before.")
    reason: str
    run: UUID | None = Field(description="Null of trials that were there before.")
    likeliest: CommitOut | None = Field(description="Right after it, while it searched.")
    probability: Share | None = Field(description="Of the likeliest.")

    @classmethod
    def of(cls, one: ObservationLine) -> ObservationOut:
        """As the API writes an observation."""
        return cls(
            number=one.number,
            at=one.at,
            event=one.event,
            commit=_commit(one.commit) if one.commit else None,
            key=one.key,
            seen=one.seen,
            k=one.tally.k,
            n=one.tally.n,
            check=one.check,
            build_s=one.build_s,
            trial_s=one.trial_s,
            reason=one.reason,
            run=one.run,
            likeliest=_commit(one.likeliest) if one.likeliest else None,
            probability=one.probability,
        )


class ProbeOut(BaseModel):
    """Trials of one build."""

    commit: CommitOut
    key: str
    trials: int
    check: int = Field(description="Number of the check that they are for, 0 for the search.")
    built: bool = Field(description="False where the build comes first.")
    expected_s: float
    expected_bits: float = Field(description="What they are expected to tell.")


class RunningOut(ProbeOut):
    """A probe that is under way."""

    run: UUID
    state: RunState
    done: int


class NextOut(BaseModel):
    """What it does next. probes: those that are about to be ordered."""

    text: str = Field(examples=["building 81a6d4f0c2c0 ([JAX] Add FFI initialize stages)"])
    probes: list[ProbeOut]


class SideOut(BaseModel):
    """One of the two builds of a check, and its fresh trials."""

    commit: CommitOut
    k: int
    n: int
    interval: tuple[Share, Share]


class CheckOut(BaseModel):
    """A check of a suspect by fresh trials of two builds."""

    number: int
    kind: CheckKind
    state: CheckState
    low: SideOut = Field(description="Where the rate should be lower.")
    high: SideOut
    p: Share = Field(description='p value of "high\'s rate is not higher", at every look.')
    reason: str

    @classmethod
    def of(cls, check: Check) -> CheckOut:
        """As the API writes a check."""
        return cls(
            number=check.number,
            kind=check.kind,
            state=check.state,
            low=_check_side(check.low),
            high=_check_side(check.high),
            p=min(1.0, check.p),
            reason=check.reason,
        )


class ExpectedOut(BaseModel):
    """What it is expected to take still, one build after the other, its checks left out."""

    build_s: float = Field(description="Seconds of a build, as measured so far.")
    trial_s: float = Field(description="Seconds of a trial.")
    builds: float = Field(description="About so many builds; 0 when the search is over.")
    seconds: float


class BisectionWhole(BisectionOut):
    """A bisection with everything that it knows."""

    variant: CellOut
    stage: Stage | None = Field(description="What it is at; null until its range is known.")
    ranges: list[RangeOut] = Field(
        description="The whole range first, then those inside merges; the last is searched now."
    )
    observations: list[ObservationOut]
    checks: list[CheckOut]
    running: list[RunningOut]
    next: NextOut | None = Field(description="Null once it has ended.")
    elapsed_s: float = Field(
        description="Since its range was known (before that, since it was ordered), until it ended."
    )
    expected: ExpectedOut | None


def _commit(one: result.Commit) -> CommitOut:
    return CommitOut(
        sha=one.sha, ref=one.ref, title=one.title, author=one.author, date=date_of(one.date)
    )


def _check_side(side: CheckSide) -> SideOut:
    k, n = side.tally
    return SideOut(commit=_commit(side.commit), k=k, n=n, interval=_interval(side.tally))


def _interval(tally: Tally) -> tuple[float, float]:
    return interval(Counts(tally.k, tally.n), adaptive=True) if tally.n else (0.0, 1.0)


def _probe(probe: Probe) -> dict[str, Any]:
    return {
        "commit": _commit(probe.commit),
        "key": probe.key,
        "trials": probe.trials,
        "check": probe.check,
        "built": probe.built,
        "expected_s": probe.seconds,
        "expected_bits": probe.bits,
    }


def _running(one: RunningProbe) -> RunningOut:
    return RunningOut(**_probe(one.probe), run=one.run, state=RunState(one.state), done=one.done)


# Reading


CSV_COLUMNS = (
    "id", "subject", "good", "bad", "matrix", "cell", "queue", "emulated", "toolchain",
    "confidence", "budget_s", "state", "reason", "requested_by", "observe", "cause", "classes",
    "builds", "trials",
    "build_s", "trial_s", "verdict", "probability", "culprit", "text", "created_at", "started_at",
    "finished_at",
)  # fmt: skip
OBSERVATION_COLUMNS = (
    "number", "at", "event", "sha", "title", "key", "seen", "k", "n", "check", "build_s",
    "trial_s", "reason", "run", "likeliest", "probability",
)  # fmt: skip
POSTERIOR_COLUMNS = (
    "place", "sha", "title", "author", "date", "probability", "key", "built", "same_build", "k",
    "n", "interval_low", "interval_high", "broken", "forward", "merge", "suspected",
)  # fmt: skip


@reading.get(
    "/bisections",
    operation_id="listBisections",
    summary="Bisections, newest first",
    response_model=Page[BisectionOut],
    responses=paged(errors(), CSV_COLUMNS),
)
def list_bisections(
    request: Request, response: Response, asked: Annotated[BisectionFilters, Query()]
) -> Any:
    """All filters have to fit."""
    database: Database = request.app.state.database
    after = None if asked.cursor is None else moment_of(asked.cursor)
    if wants_csv(request, asked.format):
        return csv_response("bisections", CSV_COLUMNS, _csv(database, asked, after))
    limit = asked.limit or 50
    with database.session() as session:
        lines = _read(session, asked, after, limit + 1)
    last = lines[limit - 1] if len(lines) > limit else None
    rest = at_moment(last.created_at, last.id) if last else None
    response.headers["Vary"] = "Accept"
    items = [BisectionOut.of(line) for line in lines[:limit]]
    return Page(items=items, next=next_of(request, response, rest))


@reading.get(
    "/bisections/{bisection_id}",
    operation_id="getBisection",
    summary="A bisection with its posterior, observations and verdict",
    responses=errors(404),
)
def get_bisection(request: Request, bisection_id: BisectionId) -> BisectionWhole:
    """As of now: while it goes on, each observation changes the probabilities."""
    with request.app.state.database.session() as session:
        return whole(session, bisection_id)


@reading.get(
    "/bisections/{bisection_id}/observations",
    operation_id="listObservations",
    summary="What a bisection saw, in order",
    response_model=Page[ObservationOut],
    responses=paged(errors(404), OBSERVATION_COLUMNS),
)
def list_observations(
    request: Request,
    response: Response,
    bisection_id: BisectionId,
    asked: Annotated[PartFilters, Query()],
) -> Any:
    """Its state is what follows from these."""
    with request.app.state.database.session() as session:
        seen = [ObservationOut.of(one) for one in _page(session, bisection_id).observations]
    if wants_csv(request, asked.format):
        rows = (_observation_row(one) for one in seen[: asked.limit])
        return csv_response("observations", OBSERVATION_COLUMNS, rows)
    return _part(request, response, seen, asked)


@reading.get(
    "/bisections/{bisection_id}/posterior",
    operation_id="listSuspects",
    summary="How likely each commit brought the change",
    response_model=Page[SuspectOut],
    responses=paged(errors(404), POSTERIOR_COLUMNS),
)
def list_suspects(
    request: Request,
    response: Response,
    bisection_id: BisectionId,
    asked: Annotated[PartFilters, Query()],
) -> Any:
    """Of the range that is searched now, or was last, from the good to the bad end."""
    with request.app.state.database.session() as session:
        searched = _page(session, bisection_id).searched
    suspects = [SuspectOut.of(one) for one in searched[-1].suspects] if searched else []
    if wants_csv(request, asked.format):
        rows = (_suspect_row(one) for one in suspects[: asked.limit])
        return csv_response("posterior", POSTERIOR_COLUMNS, rows)
    return _part(request, response, suspects, asked)


def whole(session: Session, identity: UUID) -> BisectionWhole:
    """The bisection with everything that it knows. Raises 404."""
    found = _page(session, identity)
    following, costs = found.next, found.costs
    return BisectionWhole(
        **BisectionOut.of(found.line).model_dump(),
        variant=CellOut(
            variant=found.cell.variant.text,
            program=found.cell.program,
            background=found.cell.background,
            background_period_ms=found.cell.background_period_ms,
            hold_ms=found.cell.hold_ms,
            recipe=found.cell.recipe,
        ),
        stage=found.stage,
        ranges=[RangeOut.of(one) for one in found.searched],
        observations=[ObservationOut.of(one) for one in found.observations],
        checks=[CheckOut.of(check) for check in found.checks],
        running=[_running(one) for one in found.running],
        next=NextOut(
            text=following.text,
            probes=[ProbeOut(**_probe(one)) for one in following.probes],
        )
        if following
        else None,
        elapsed_s=found.elapsed_s,
        expected=ExpectedOut(
            build_s=costs.build_s,
            trial_s=costs.trial_s,
            builds=found.bits,
            seconds=found.seconds_left,
        )
        if costs
        else None,
    )


def _page(session: Session, identity: UUID) -> BisectionPage:
    found = bisections.read(session, identity)
    if found is None:
        raise missing("bisection", str(identity))
    return found


def _read(
    session: Session, asked: BisectionFilters, after: tuple[datetime, UUID] | None, limit: int
) -> tuple[BisectionLine, ...]:
    query = select(Bisection).order_by(*NEWEST_FIRST).limit(limit).options(WITHOUT_RANGE)
    for column, value in (
        (Bisection.subject, asked.subject),
        (Bisection.queue, asked.queue),
        (Bisection.state, asked.state),
    ):
        if value is not None:
            query = query.where(col(column) == value)
    if after is not None:
        query = query.where(older_than(*after))
    return bisections.read_lines(session, session.exec(query).all())


def _part(
    request: Request, response: Response, items: list[Item], asked: PartFilters
) -> Page[Item]:
    """Some of what is there, as a page."""
    start = 0 if asked.cursor is None else number_of(asked.cursor)
    end = start + (asked.limit or 50)
    rest = at_number(end) if end < len(items) else None
    response.headers["Vary"] = "Accept"
    return Page(items=items[start:end], next=next_of(request, response, rest))


def _csv(
    database: Database, asked: BisectionFilters, after: tuple[datetime, UUID] | None
) -> Iterator[list[Any]]:
    """Row by row, read a number at a time, each in a short transaction of its own."""
    left = asked.limit
    while left is None or left > 0:
        size = ROWS_AT_ONCE if left is None else min(left, ROWS_AT_ONCE)
        with database.session() as session:
            lines = _read(session, asked, after, size)
        yield from map(_csv_row, lines)
        if len(lines) < size:
            return
        left = None if left is None else left - size
        after = (lines[-1].created_at, lines[-1].id)


def _csv_row(one: BisectionLine) -> list[Any]:
    spent, verdict = one.spent, one.verdict
    found = verdict is not None and verdict.kind is VerdictKind.CULPRIT
    return [
        one.id, one.subject, one.good, one.bad, one.matrix, one.cell, one.queue, one.emulated,
        one.toolchain, one.confidence, one.budget_s, one.state, one.reason, one.requested_by,
        str(one.observe), one.cause, one.classes, spent.builds, spent.trials, spent.build_s,
        spent.trial_s,
        verdict and str(verdict.kind), verdict and verdict.probability,
        verdict.commits[0].sha if verdict and found else None, verdict and verdict.text,
        one.created_at, one.started_at, one.finished_at,
    ]  # fmt: skip


def _observation_row(one: ObservationOut) -> list[Any]:
    return [
        one.number, one.at, one.event, one.commit and one.commit.sha,
        one.commit and one.commit.title, one.key, one.seen and str(one.seen), one.k, one.n,
        one.check, one.build_s, one.trial_s, one.reason, one.run,
        one.likeliest and one.likeliest.sha, one.probability,
    ]  # fmt: skip


def _suspect_row(one: SuspectOut) -> list[Any]:
    return [
        one.place, one.commit.sha, one.commit.title, one.commit.author, one.commit.date,
        one.probability, one.key, one.built.sha, " ".join(other.sha for other in one.same_build),
        one.k, one.n, *one.interval, one.broken, one.forward, one.merge, one.suspected,
    ]  # fmt: skip


# Starting and cancelling


@router.post(
    "/bisections",
    operation_id="startBisection",
    summary="Start a bisection",
    status_code=201,
    responses={
        **errors(400, 403, 404, 409, 413, 415),
        200: {
            "model": BisectionWhole,
            "description": "The key was used before: this is its bisection.",
        },
        201: {
            "headers": {
                "Location": {"description": "The bisection.", "schema": {"type": "string"}},
            }
        },
    },
)
def start_bisection(
    request: Request,
    response: Response,
    caller: MayRun,
    body: BisectionIn,
    idempotency_key: IdempotencyKey = None,
) -> BisectionWhole:
    """A worker works out the range, so ends that have nothing to bisect between end it as failed.

    All commits between are built and run as the repository's own, so both ends have to be on a
    branch or a tag of it, or be the head of a pull request that is no fork's. Of a commit by its
    hash that this service does not know yet, the worker finds that out.
    """
    settings: ServiceSettings = request.app.state.settings
    database: Database = request.app.state.database
    if body.subject not in settings.subjects:
        raise missing("tracked subject", body.subject)
    tracked = settings.subject(body.subject)
    matrix = chosen_matrix(body.matrix, tracked.pull_matrix)
    with database.session() as session:
        identity = None
        if idempotency_key is not None:
            identity = uuid5(_BISECTIONS_OF_KEYS, f"{caller.token_id}:{idempotency_key}")
            if _was_started(session, identity, body, matrix):
                response.status_code = 200
                response.headers["Location"] = f"{API}/bisections/{identity}"
                return whole(session, identity)
        wanted = _request(session, tracked, caller, body, matrix, identity)
        row = bisection.order(session, wanted)
        response.headers["Location"] = f"{API}/bisections/{row.id}"
        return whole(session, row.id)


@router.post(
    "/bisections/{bisection_id}/cancel",
    operation_id="cancelBisection",
    summary="Cancel a bisection",
    responses=errors(403, 404, 409),
)
def cancel_bisection(request: Request, caller: MayRun, bisection_id: BisectionId) -> BisectionWhole:
    """Its probes end with it. What it saw stays, and counts for the next one."""
    with request.app.state.database.session() as session:
        if not bisection.cancel(session, bisection_id, f"cancelled by {caller.name}"):
            row = session.get(Bisection, bisection_id)
            if row is None:
                raise missing("bisection", str(bisection_id))
            raise refused(409, f"bisection {bisection_id} has ended already: it is {row.state}")
        return whole(session, bisection_id)


def _was_started(session: Session, identity: UUID, body: BisectionIn, matrix: Matrix) -> bool:
    """Whether this was asked for under that key. Raises 422 where something else was.

    A request that comes twice at once waits for its own first.
    """
    alone(session, identity)
    row = session.get(Bisection, identity)
    if row is None:
        return False
    same = (
        row.subject == body.subject
        and _is_end(row.good, body.good)
        and _is_end(row.bad, body.bad)
        and (row.matrix_name, row.cell_name) == (matrix.name, body.cell)
        and bisection.cell_of(row) in matrix.cells
        and body.queue in (None, row.queue)
        and (row.confidence, row.budget_s) == (body.confidence, body.budget_s)
        and row.observe == body.observe
    )
    if not same:
        raise refused(
            422, "this Idempotency-Key was used for another request before: take a new one"
        )
    return True


def _is_end(stored: str, asked: str) -> bool:
    """Whether an end is what was asked for; of a hash, its beginning may have been given."""
    return stored == asked or (SHA.fullmatch(asked) is not None and stored.startswith(asked))


def _request(
    session: Session,
    tracked: Tracked,
    caller: Caller,
    body: BisectionIn,
    matrix: Matrix,
    identity: UUID | None,
) -> BisectionRequest:
    if body.good == body.bad:
        raise InputError(f"body: good and bad are both {body.good!r}: nothing to bisect")
    (cell,) = matrix.only((body.cell,)).cells
    for number in cell.variant.pulls:
        _no_forks_pull(session, tracked, number, f"cell {cell.name!r} merges")
    return BisectionRequest(
        subject=tracked.name,
        good=_end(session, tracked, "good", body.good),
        bad=_end(session, tracked, "bad", body.bad),
        matrix=matrix,
        cell=cell.name,
        queue=served_queue(session, tracked, body.queue),
        toolchain=tracked.toolchain,
        confidence=body.confidence,
        budget_s=body.budget_s,
        observe=Observe(body.observe),
        requested_by=caller.name,
        id=identity,
    )


def _end(session: Session, tracked: Tracked, name: str, ref: str) -> str:
    """An end such that no fork's code runs: a bisection's commits are nobody's to approve."""
    pull = PULL.fullmatch(ref)
    if pull:
        _no_forks_pull(session, tracked, int(pull[1]), f"{name} is")
        return f"pull/{pull[1]}"
    if ref.startswith(("refs/", "pull/", "origin/")) or ref.endswith("_HEAD"):
        raise InputError(f"body, {name}: give a branch, a tag, a commit or pull/N, got {ref!r}")
    if not SHA.fullmatch(ref) or is_name(session, tracked, ref):
        return ref
    sha = on_branch(session, tracked, ref) or _own_head(session, tracked, ref)
    if sha is not None:
        return sha
    if _is_forks(session, tracked, ref):
        raise refused(
            409,
            f"{name}: commit {ref} is a fork's: a bisection runs the repository's own commits only",
        )
    return ref  # a worker looks whether a branch has it


def _own_head(session: Session, tracked: Tracked, ref: str) -> str | None:
    """The head of a pull request of the repository's own branches."""
    found = select(Pull.head_sha).where(
        Pull.subject == tracked.name, ~col(Pull.fork), col(Pull.head_sha).startswith(ref)
    )
    return session.exec(found.limit(1)).first()


def _is_forks(session: Session, tracked: Tracked, ref: str) -> bool:
    """Whether it is the head of a fork's pull request."""
    found = select(Pull.number).where(
        Pull.subject == tracked.name, col(Pull.fork), func.starts_with(Pull.head_sha, ref)
    )
    return session.exec(found.limit(1)).first() is not None


def _no_forks_pull(session: Session, tracked: Tracked, number: int, what: str) -> None:
    known = session.get(Pull, (tracked.name, number))
    if known is None or known.fork:
        why = "is not known here" if known is None else "is a fork's"
        raise refused(
            409,
            f"{what} pull request {number}, which {why}: a bisection runs the repository's own "
            f"commits only",
        )
