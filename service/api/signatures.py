"""Failures by signature: how often, and first and last seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, Field

from runner.outcome import Outcome
from service.api.access import reader
from service.api.documentation import API, errors
from service.api.export import FormatParameter, csv_response, wants_csv
from service.api.parameters import Device, Filters, Limit, Subject, Text
from service.reading import signatures
from service.reading.signatures import Seen, SignatureFilter, SignatureLine

router = APIRouter(prefix=API, tags=["trials"], dependencies=[Depends(reader)])


class SeenOut(BaseModel):
    """A trial that ended so."""

    trial: int
    at: datetime
    run: str
    sha: str = Field(description="Empty where the run's ref was never resolved.")


class SignatureOut(BaseModel):
    """Trials of a subject on a kind of device that ended alike."""

    subject: str
    queue: str
    outcome: Outcome
    signature: str = Field(examples=["cudaErrorStreamCaptureInvalidated"])
    count: int
    commits: int
    emulated: bool = Field(description="True where no GPU took part.")
    first: SeenOut
    last: SeenOut


class SignaturesOut(BaseModel):
    """The most recently seen first. more: there are others, seen before these."""

    items: list[SignatureOut]
    more: bool


class SignatureFilters(Filters):
    """Which trials."""

    subject: Subject | None = None
    queue: Device | None = None
    outcome: Outcome | Literal["failed", "any"] = Field(
        default="failed", description="`failed` for all failures, `any` for all but passes."
    )
    text: Text | None = Field(
        default=None,
        description="Words that the signature has, in any case.",
        examples=["cuEventRecord invalidated"],
    )
    limit: Limit = 100
    format: FormatParameter = None


CSV_COLUMNS = (
    "subject", "queue", "outcome", "signature", "count", "commits", "emulated", "first_trial",
    "first_at", "first_sha", "last_trial", "last_at", "last_sha",
)  # fmt: skip


@router.get(
    "/signatures",
    operation_id="listSignatures",
    summary="Failures by signature",
    response_model=SignaturesOut,
    responses={
        **errors(),
        200: {
            "content": {
                "text/csv": {"schema": {"type": "string"}, "example": ",".join(CSV_COLUMNS)}
            }
        },
    },
)
def list_signatures(
    request: Request, response: Response, asked: Annotated[SignatureFilters, Query()]
) -> Any:
    """Failures that are alike, whatever commit and cell they were seen at."""
    chosen = SignatureFilter(
        subject=asked.subject or "",
        queue=asked.queue or "",
        outcome="" if asked.outcome == "any" else str(asked.outcome),
    )
    with request.app.state.database.session() as session:
        groups = request.app.state.signatures(session, chosen)
        groups = signatures.with_text(groups, asked.text or "")
        found = signatures.read(session, chosen, groups[: asked.limit])
    if wants_csv(request, asked.format):
        return csv_response("signatures", CSV_COLUMNS, _lines(found.lines))
    response.headers["Vary"] = "Accept"
    return SignaturesOut(
        items=[_out(line) for line in found.lines], more=len(groups) > len(found.lines)
    )


def _out(line: SignatureLine) -> SignatureOut:
    group = line.group
    return SignatureOut(
        subject=group.subject,
        queue=group.queue,
        outcome=Outcome(group.outcome),
        signature=group.signature,
        count=group.trials,
        commits=group.commits,
        emulated=line.emulated,
        first=_seen(line.first),
        last=_seen(line.last),
    )


def _seen(seen: Seen) -> SeenOut:
    return SeenOut(trial=seen.trial, at=seen.at, run=seen.run, sha=seen.sha)


def _lines(lines: Sequence[SignatureLine]) -> Iterator[list[Any]]:
    for line in lines:
        group = line.group
        yield [
            group.subject, group.queue, group.outcome, group.signature, group.trials,
            group.commits, line.emulated, line.first.trial, line.first.at, line.first.sha,
            line.last.trial, line.last.at, line.last.sha,
        ]  # fmt: skip
