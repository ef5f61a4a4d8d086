"""Errors as pages, for browsers: the problem that the service answered, in its own words."""

from __future__ import annotations

import json
from http import HTTPStatus

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.pages.view import page
from service.problems import MEDIA_TYPE

_NO_PAGES = ("/api/", "/webhooks/", "/static/", "/events", "/metrics", "/healthz", "/readyz")
_NEXT = {
    HTTPStatus.UNAUTHORIZED: "Reload and give a token as the password; the user name may be empty.",
    HTTPStatus.NOT_FOUND: "It may have been pruned, or its address mistyped.",
    HTTPStatus.SERVICE_UNAVAILABLE: "Reload in a moment.",
}


class ErrorPages:
    """Turns problem+json into a page where a browser opens an address that is not the API's."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _is_page(scope):
            await self._app(scope, receive, send)
            return
        begun: Message | None = None
        body = bytearray()

        async def watched(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start" and _is_problem(message):
                begun = message
                return
            if begun is None:
                await send(message)
                return
            body.extend(message.get("body", b""))
            if not message.get("more_body"):
                await _send_page(scope, begun, bytes(body), send)

        await self._app(scope, receive, watched)


def _is_page(scope: Scope) -> bool:
    path: str = scope["path"]
    accepted = Headers(scope=scope).get("accept", "")
    return (
        scope["method"] != "HEAD"  # which has no body to show
        and "text/html" in accepted
        and not path.startswith(_NO_PAGES)
    )


def _is_problem(message: Message) -> bool:
    return Headers(raw=message["headers"]).get("content-type", "").startswith(MEDIA_TYPE)


async def _send_page(scope: Scope, begun: Message, body: bytes, send: Send) -> None:
    problem = json.loads(body)
    status = begun["status"]
    response = page(
        Request(scope),
        "error.html",
        status,
        status=status,
        title=problem["title"],
        detail=problem["detail"],
        advice=_NEXT.get(status, ""),
    )
    headers = MutableHeaders(raw=begun["headers"])
    for name, value in response.headers.items():
        headers[name] = value
    del headers["content-encoding"]
    await send({**begun, "headers": headers.raw})
    await send({"type": "http.response.body", "body": response.body})
