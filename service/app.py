"""The service as one ASGI application: API, webhook, pages, health and metrics."""

from __future__ import annotations

import logging

from fastapi import APIRouter, Depends, FastAPI, Request
from pydantic import BaseModel, Field
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response

from runner.errors import InfrastructureError, InputError
from service import api, pages, schema
from service.api.access import reader
from service.api.documentation import API, describe, errors
from service.api.errors import install, unavailable
from service.api.guard import BodyLimit, Guard, Head, SafeHeaders
from service.database import Database
from service.github import webhook
from service.metrics import CONTENT_TYPE, Metrics, RequestTimes
from service.settings import ServiceSettings

log = logging.getLogger(__name__)
MAX_BODY = 1024 * 1024
"""Bytes of a body, where an endpoint does not say otherwise itself."""
UNLIMITED = ("/webhooks/", f"{API}/imports")
"""Paths whose endpoints limit their bodies themselves."""
ENDLESS = ("/events",)
"""Paths whose answers go on for as long as someone listens."""
_COMPRESSED_FROM = 1_000
_COMPRESS_LEVEL = 4
"""A tenth larger than at 9, in a third of the time: a grid must be out quickly."""


class Alive(BaseModel):
    """The answer of a process that is alive, or ready."""

    status: str = Field(examples=["ok"])


health = APIRouter(tags=["health"])


@health.get("/healthz", operation_id="getHealth", summary="Whether the process is alive")
def healthz() -> Alive:
    """Asks nothing of the database."""
    return Alive(status="ok")


@health.get(
    "/readyz",
    operation_id="getReadiness",
    summary="Whether the service can do its work",
    responses={503: errors(503)[503]},
    response_model=Alive,
)
def readyz(request: Request) -> Alive | Response:
    """The database answers and has the schema that this version needs."""
    try:
        schema.require(request.app.state.database.url)
    except (InputError, InfrastructureError) as error:
        # Which host, user and database is for the log: whoever asks here needs no token.
        log.warning("not ready: %s", error)
        if isinstance(error, InfrastructureError):
            return unavailable("the database does not answer")
        return unavailable("the database has another schema: run `racewatch db upgrade`")
    return Alive(status="ok")


@health.get(
    "/metrics",
    operation_id="getMetrics",
    summary="Metrics in Prometheus' text format",
    dependencies=[Depends(reader)],
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
        401: errors(401)[401],
    },
)
def metrics(request: Request) -> Response:
    """What the database knows is at most some seconds old."""
    return Response(request.app.state.metrics.text(), headers={"Content-Type": CONTENT_TYPE})


def create_app(settings: ServiceSettings, database: Database) -> FastAPI:
    """The application on a database whose schema is in place.

    `app.state` has `settings`, `database` and `metrics` for whatever answers a request.
    """
    measured = Metrics(database)
    app = FastAPI(
        title="Racewatch",
        docs_url=None,  # its page would load scripts from elsewhere
        redoc_url=None,
        openapi_url=f"{API}/openapi.json",
        redirect_slashes=False,
        middleware=[
            Middleware(Head, but=ENDLESS),
            Middleware(Guard),
            Middleware(BodyLimit, most=MAX_BODY, but=UNLIMITED),
        ],
    )
    app.state.settings = settings
    app.state.database = database
    app.state.metrics = measured
    install(app)
    for router in (*api.ROUTERS, webhook.router, health):
        app.include_router(router)
    pages.install(app)  # whose errors are pages: around the guard, and before any compression
    app.add_middleware(GZipMiddleware, minimum_size=_COMPRESSED_FROM, compresslevel=_COMPRESS_LEVEL)
    app.add_middleware(SafeHeaders)
    app.add_middleware(RequestTimes, metrics=measured)
    app.openapi = describe(app, settings.private)  # type: ignore[method-assign]
    return app
