"""The OpenAPI document: which errors an operation answers, and what all operations share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, ConfigDict, Field

from service.problems import MEDIA_TYPE, phrase

API = "/api/v1"
Responses = dict[int | str, dict[str, Any]]

DESCRIPTION = """\
Failure rates of race trials by commit: what was run, what it showed, and how sure that is.

- Reading is open unless the service is private; writing takes `Authorization: Bearer <token>`.
- Errors are `application/problem+json` (RFC 9457); `detail` is one sentence.
- Lists come in pages: follow `next`, or the `Link` header, until it is gone.
- Lists of runs, cells, trials and bisections come as CSV too: `?format=csv` or `Accept: text/csv`.
"""
TAGS = [
    {"name": "runs", "description": "A commit through a matrix on one kind of device."},
    {"name": "trials", "description": "One fresh process each, with its evidence and its log."},
    {"name": "bisections", "description": "Which commit changed a cell's rate, and how sure."},
    {"name": "commits", "description": "Commits along a branch, and their cells."},
    {"name": "subjects", "description": "What is tracked, and with which matrices."},
    {"name": "pulls", "description": "Pull requests, and approvals of their head commits."},
    {"name": "workers", "description": "Workers, and the jobs that wait for them."},
    {"name": "health", "description": "For supervisors and Prometheus."},
]
_REASONS = {
    400: "The request is malformed.",
    401: "A token is needed, or the one that was sent is unknown.",
    403: "The token lacks the scope.",
    404: "There is no such thing.",
    409: "The state that it is in does not allow it.",
    413: "The body is too large.",
    415: "The body is of another media type than this takes.",
    422: "What was said is well-formed and not valid.",
    500: "The service failed at it.",
    503: "The database does not answer.",
}


class Said(BaseModel):
    """A body of a request: an unknown key is refused, and no value is turned into another type."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Problem(BaseModel):
    """An error, as RFC 9457 has it."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(examples=["about:blank"])
    title: str = Field(examples=["Unprocessable Content"])
    status: int = Field(ge=400, le=599, examples=[422])
    detail: str = Field(
        description="One sentence.",
        examples=["query parameter limit: must be less than or equal to 200, got 500"],
    )
    errors: list[str] = Field(default=[], description="Of a request with several, each.")


def errors(*statuses: int) -> Responses:
    """The `responses` of an operation that may answer these errors, beside what any may."""
    return {
        status: {
            "description": _REASONS[status],
            "content": {
                MEDIA_TYPE: {
                    "schema": {"$ref": "#/components/schemas/Problem"},
                    "example": _example(status),
                }
            },
        }
        for status in sorted({*statuses, 401, 422, 500, 503})
    }


def _example(status: int) -> dict[str, Any]:
    return {
        "type": "about:blank",
        "title": phrase(status),
        "status": status,
        "detail": _REASONS[status],
    }


def paged(responses: Responses, csv_columns: Sequence[str] = ()) -> Responses:
    """The `responses` of a list in pages, which comes as CSV as well if its columns are given."""
    link = {
        "description": 'The next page, if there is one: `<...>; rel="next"`.',
        "schema": {"type": "string"},
    }
    page: dict[str, Any] = {"headers": {"Link": link}}
    if csv_columns:
        text = {"schema": {"type": "string"}, "example": ",".join(csv_columns)}
        page["content"] = {"text/csv": text}
    return {**responses, 200: page}


def describe(app: FastAPI, private: bool) -> Callable[[], dict[str, Any]]:
    """The function that makes the application's OpenAPI document, once."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app, private)
        return app.openapi_schema

    return openapi


def _document(app: FastAPI, private: bool) -> dict[str, Any]:
    document = get_openapi(
        title="Racewatch",
        version=version("racewatch"),
        openapi_version="3.1.0",
        description=DESCRIPTION,
        routes=app.routes,
        tags=TAGS,
        servers=[{"url": "/"}],
    )
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas["Problem"] = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    if private:
        for path, operations in document["paths"].items():
            if path.startswith(API) and "get" in operations:
                operations["get"]["security"] = [{"token": []}]
    return document
