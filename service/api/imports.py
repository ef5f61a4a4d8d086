"""Results and events of runners that are not connected, taken in."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, Field

from runner.errors import InputError
from service import imports
from service.api.access import MayRun
from service.api.documentation import API, errors
from service.api.errors import refused

router = APIRouter(prefix=API, tags=["runs"])
MAX_BYTES = 16 * 1024 * 1024
"""Of a result or a stream of events; one of 10,000 trials has about that many."""
MEDIA_TYPES = ("application/json", "application/x-ndjson")


class ImportedRun(BaseModel):
    """One run of what was sent."""

    run: UUID
    created: bool = Field(description="False where the service had the run before.")
    new_trials: int = Field(ge=0, description="Trials that it had not.")
    known_trials: int = Field(ge=0, description="Trials that it had.")
    url: str = Field(examples=["/api/v1/runs/6d3f6f0a-6a0e-4f57-9d0b-2f8d1a7a3c11"])


class ImportOut(BaseModel):
    """What was taken in."""

    items: list[ImportedRun]


async def _body(request: Request, _: MayRun) -> str:
    """The body as text, once the token is known to be good. Raises 400, 413, 415."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if kind not in MEDIA_TYPES or encoding != "identity":
        raise refused(
            415,
            f"the body must be {' or '.join(MEDIA_TYPES)}, not compressed, got "
            f"{kind or 'no Content-Type'}" + (f", {encoding}" * (encoding != "identity")),
        )
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BYTES:
            raise refused(
                413, f"the body is larger than {MAX_BYTES >> 20} MiB: give it to `racewatch import`"
            )
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise refused(400, f"the body is not UTF-8: {error.reason} at byte {error.start}") from None


@router.post(
    "/imports",
    operation_id="importResult",
    summary="Import a result or events of the runner",
    status_code=201,
    responses={
        **errors(400, 403, 413, 415),
        200: {"model": ImportOut, "description": "The run was there; what is new was added."},
        201: {
            "headers": {"Location": {"description": "The first run.", "schema": {"type": "string"}}}
        },
    },
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "required": [
                            "run",
                            "subject",
                            "commit",
                            "device",
                            "matrix",
                            "cells",
                            "trials",
                        ],
                        "description": "The result that `racewatch run --json` writes.",
                    }
                },
                "application/x-ndjson": {
                    "schema": {
                        "type": "string",
                        "description": "The events of a run, one a line.",
                    }
                },
            },
        }
    },
)
def import_result(
    request: Request, response: Response, caller: MayRun, text: Annotated[str, Depends(_body)]
) -> ImportOut:
    """The same result again changes nothing; one that has gone on adds its new trials.

    All runs of it are taken in, or none.
    """
    with request.app.state.database.session() as session:
        taken = imports.import_all(session, text, requested_by=caller.name)
    items = [
        ImportedRun(
            run=one.run,
            created=one.created,
            new_trials=one.new_trials,
            known_trials=one.known_trials,
            url=f"{API}/runs/{one.run}",
        )
        for one in taken
    ]
    if not items:
        raise InputError("the body holds no run")
    response.headers["Location"] = items[0].url
    if not any(item.created for item in items):
        response.status_code = 200
    return ImportOut(items=items)
