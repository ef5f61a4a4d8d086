"""How errors are answered: every one as problem+json, with one sentence in `detail`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnectionInTime
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from runner.errors import InfrastructureError, InputError
from service.api.parameters import FORMS
from service.problems import problem

log = logging.getLogger(__name__)
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
SHOWN = 80
"""Characters of a value that an error repeats."""


def install(app: FastAPI) -> None:
    """Let the application answer its errors as problems."""
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(InputError, _input)
    app.add_exception_handler(InfrastructureError, _infrastructure)
    app.add_exception_handler(DBAPIError, _database)
    app.add_exception_handler(NoConnectionInTime, _busy)


def refused(status: int, detail: str, headers: Mapping[str, str] | None = None) -> HTTPException:
    """An error to raise from an endpoint."""
    return HTTPException(status, detail, dict(headers or {}))


def missing(what: str, value: object) -> HTTPException:
    """404 for something that is named and not there."""
    return refused(404, f"there is no {what} {_shown(value)}")


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    detail = str(error.detail)
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = _allowed(request)
        headers = {**{k: v for k, v in headers.items() if k.lower() != "allow"}, "Allow": allowed}
        detail = f"{request.method} is not allowed on {_path(request)}; allowed: {allowed}"
    elif error.status_code == HTTPStatus.NOT_FOUND and detail == HTTPStatus(404).phrase:
        detail = f"there is nothing at {_path(request)}"
    elif error.status_code == HTTPStatus.BAD_REQUEST and "parsing the body" in detail:
        detail = "the body is not valid JSON in UTF-8, or it is nested too deeply"
    return problem(error.status_code, detail=detail, headers=headers)


async def _validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = error.errors()
    if any(e["type"] == "json_invalid" for e in errors):
        where = errors[0]["loc"][-1]
        why = errors[0].get("ctx", {}).get("error", "")
        return problem(400, detail=f"the body is not valid JSON: {why} at character {where}")
    if _not_json(request, errors):
        given = request.headers.get("content-type", "")
        return problem(
            415,
            detail="the body must be JSON, sent as Content-Type: application/json, got "
            + _shown(given),
        )
    told = [_sentence(e) for e in errors]
    more = f" (and {len(told) - 1} more, see errors)" if len(told) > 1 else ""
    return problem(422, detail=told[0] + more, errors=told)


async def _input(_: Request, error: Exception) -> Response:
    return problem(422, detail=str(error))


async def _infrastructure(_: Request, error: Exception) -> Response:
    log.warning("answered 503: %s", error)
    return problem(503, detail=str(error), headers={"Retry-After": "10"})


async def _database(request: Request, error: Exception) -> Response:
    if isinstance(error, OperationalError):
        log.warning("answered 503, the database does not: %s", error)
        return unavailable("the database does not answer; try again")
    return crashed(request.method, request.url.path, error)


async def _busy(_: Request, error: Exception) -> Response:
    log.warning("answered 503: %s", error)
    return unavailable("the service is at its limit of database connections; try again")


def unavailable(detail: str) -> Response:
    """503, to be tried again."""
    return problem(503, detail=detail, headers={"Retry-After": "10"})


def crashed(method: str, path: str, error: BaseException) -> Response:
    """500 for an error that nobody expected: the log has all of it, the answer nothing."""
    log.error("%s %s failed", method, path, exc_info=error)
    return problem(500, detail="the service failed at this; its log says why, the answer not")


def _path(request: Request) -> str:
    path = request.url.path
    return path if len(path) <= 2 * SHOWN else f"{path[: 2 * SHOWN]}..."


def _allowed(request: Request) -> str:
    """Methods that the path takes, over all routes that have it."""
    found: list[str] = []
    for method in METHODS:
        if method == "HEAD" and "GET" in found and not request.url.path.startswith("/events"):
            found.append(method)  # which is answered as GET is
            continue
        for route in request.app.router.routes:
            scope = {**request.scope, "method": method, "fastapi": {}}
            if route.matches(scope)[0] is Match.FULL:
                found.append(method)
                break
    return ", ".join(found)


def _not_json(request: Request, errors: Sequence[Any]) -> bool:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    is_json = kind == "application/json" or (
        kind.startswith("application/") and kind.endswith("+json")
    )
    return not is_json and any(
        tuple(e["loc"]) == ("body",) and e["type"] != "missing" for e in errors
    )


_SAID = {
    "missing": "is required",
    "extra_forbidden": "is not known",
    "string_unicode": "must be text in UTF-8",
}


def _sentence(error: Mapping[str, Any]) -> str:
    place, *rest = error["loc"]
    name = ".".join(str(part) for part in rest if not str(part).startswith("~"))
    where = {
        "query": f"query parameter {name}",
        "path": f"path parameter {name}",
        "header": f"header {name}",
        "body": f"body, {name}" if name else "body",
    }.get(str(place), f"{place} {name}".strip())
    kind = error["type"]
    if kind == "missing":
        return f"{where}: is required"
    message = _SAID.get(kind)
    if message is None:
        message = error["msg"].removeprefix("Value error, ").removeprefix("Input ")
        message = message.replace("should ", "must ").removeprefix("String ")
        message = message[:1].lower() + message[1:]
    if kind == "string_pattern_mismatch":
        pattern = error["ctx"]["pattern"]
        message = f"must be {FORMS[pattern]}" if pattern in FORMS else f"must match {pattern}"
    return f"{where}: {message}, got {_shown(error.get('input'))}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
