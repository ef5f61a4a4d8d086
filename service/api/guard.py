"""What surrounds every request: headers that keep browsers safe, limits, and a last answer."""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.errors import crashed
from service.problems import problem

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'self'",
        "img-src 'self' data:",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
"""Everything comes from this service, and no script or style stands in a page itself."""
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
"""Of every response that does not say otherwise itself."""


class SafeHeaders:
    """Adds HEADERS to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, with_headers)


class Head:
    """Answers HEAD as GET without the body: monitors ask so. Not on paths whose body never ends."""

    def __init__(self, app: ASGIApp, but: tuple[str, ...]) -> None:
        self._app = app
        self._but = but

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            scope["type"] != "http"
            or scope["method"] != "HEAD"
            or scope["path"].startswith(self._but)
        ):
            await self._app(scope, receive, send)
            return

        async def without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        await self._app({**scope, "method": "GET"}, receive, without_body)


class BodyLimit:
    """Takes no larger body than `most` bytes, but on paths whose endpoint says so itself."""

    def __init__(self, app: ASGIApp, most: int, but: tuple[str, ...]) -> None:
        self._app = app
        self._most = most
        self._but = but

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(self._but):
            await self._app(scope, receive, send)
            return
        sentence = f"the body is larger than {self._most} bytes"
        said = Headers(scope=scope).get("content-length", "")
        if said.isascii() and said.isdigit() and int(said[:20]) > self._most:
            await problem(413, detail=sentence)(scope, receive, send)
            return
        taken = 0

        async def limited() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._most:
                raise HTTPException(413, sentence)
            return message

        await self._app(scope, limited, send)


class Guard:
    """Answers an error that nobody caught: 500 without a word of it, all of it in the log.

    One that comes after the response began can only break it off, so it goes on to the server.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            if started:
                raise
            response = crashed(scope["method"], scope["path"], error)
            await response(scope, receive, send)
