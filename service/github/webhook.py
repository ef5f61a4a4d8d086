"""`POST /webhooks/github`: takes a delivery in, and stores it with what it causes at one stroke.

GitHub gives an answer ten seconds and never delivers again by itself
(https://docs.github.com/webhooks/using-webhooks/best-practices-for-using-webhooks). So there is
nothing slow here: no git, no request to anyone; and a database that is gone for a moment is waited
for. A delivery that GitHub repeats, because someone asked it to, is known by its id.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

import anyio
import psycopg
from fastapi import APIRouter, Request
from procrastinate.exceptions import ConnectorException
from sqlalchemy import bindparam, exc, update
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, SQLModel, col
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from runner import result
from runner.errors import InputError, RacewatchError
from service.database import Database
from service.github import approval, effects, payloads, signature
from service.github.commands import HELP, Verb, commands_in
from service.github.comment import MARKER
from service.github.payloads import (
    NO_COMMIT,
    IssueCommentEvent,
    Payload,
    Ping,
    PullRequestEvent,
    Push,
)
from service.problems import MEDIA_TYPE, ProblemResponse, problem
from service.settings import ServiceSettings, Tracked
from service.tables import Delivery
from service.tables.columns import now

BODY_BYTES = 25 * 1024 * 1024
"""GitHub delivers no larger ones: https://docs.github.com/webhooks/webhook-events-and-payloads"""
BODY_S = 10.0
"""Until a body must be here; GitHub itself gives up by then."""
SMALL_BYTES = 1024 * 1024
LARGE_BYTES = 2 * BODY_BYTES
"""What all bodies together may take up beyond SMALL_BYTES each, before anyone's signature is
checked: nobody can fill the memory, and ordinary deliveries are always taken."""
PATIENCE_S = 7.0
"""How long a database that is gone is waited for."""
THREADS = 4
"""Deliveries at work at a time. Python runs one thread at a time: with more of them none is done
sooner, and the last one later."""
_PAUSE_S = 0.1
_LENGTH_DIGITS = 18
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")
_EVENT = re.compile(r"[a-z][a-z0-9_]{0,63}")
_LOG = logging.getLogger("racewatch.webhook")

# Made once: putting a statement together takes longer than sending it.
_DELIVERIES = SQLModel.metadata.tables["deliveries"]
_STORE = (
    insert(_DELIVERIES).on_conflict_do_nothing(index_elements=["id"]).returning(col(Delivery.id))
)
_CAUSED_MORE = update(_DELIVERIES).where(col(Delivery.id) == bindparam("delivery"))
_CAUSED = _CAUSED_MORE.values(effect=bindparam("effect"))

router = APIRouter()


@dataclass(frozen=True)
class Delivered:
    """A delivery whose signature is right."""

    id: str
    event: str
    payload: Payload


@dataclass(frozen=True)
class Effect:
    """What a delivery caused, as a sentence. more: what else is kept with its payload."""

    text: str
    more: Mapping[str, Any] = field(default_factory=dict)


class _Space:
    """What bodies take up beyond SMALL_BYTES each while nobody knows yet whose they are."""

    taken = 0

    def __init__(self) -> None:
        self._mine = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _Space.taken -= self._mine

    def fits(self, size: int) -> bool:
        """Whether there is room for a body to grow to that size; if so, it is taken."""
        more = max(0, size - SMALL_BYTES) - self._mine
        if _Space.taken + more > LARGE_BYTES:
            return False
        self._mine += more
        _Space.taken += more
        return True


_threads = anyio.CapacityLimiter(THREADS)
_T = TypeVar("_T")


def _example(detail: str) -> dict[str, Any]:
    return {"content": {MEDIA_TYPE: {"schema": {"type": "object"}}}, "description": detail}


@router.post(
    "/webhooks/github",
    summary="Take a delivery of GitHub's webhook",
    tags=["webhook"],
    status_code=202,
    responses={
        200: {"description": "A ping, or a delivery that is known already and causes nothing."},
        202: {"description": "Stored, with what it causes."},
        400: _example("No delivery: a header is missing, or the body is not valid."),
        401: _example("The signature is missing or wrong; nothing is stored."),
        408: _example("The body did not arrive in time."),
        413: _example("The body is larger than 25 MB."),
        415: _example("The webhook's content type is not application/json."),
        500: _example("The configuration is not valid; deliver again once it is."),
        503: _example("No secret is configured, or the database is gone; deliver again."),
    },
    openapi_extra={
        "parameters": [
            {"name": name, "in": "header", "required": True, "schema": {"type": "string"}}
            for name in (signature.HEADER, "X-GitHub-Delivery", "X-GitHub-Event")
        ],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"type": "object"}}},
        },
    },
)
async def receive(request: Request) -> Response:
    """Verify, store, and order what follows: runs, cancellations, the look at a command."""
    settings: ServiceSettings = request.app.state.settings
    database: Database = request.app.state.database
    secret = settings.webhook_secret.get_secret_value()
    if not secret:
        return problem(
            503, detail="no webhook is configured: set RACEWATCH_WEBHOOK_SECRET to its secret"
        )
    with _Space() as space:
        try:
            async with asyncio.timeout(BODY_S):
                body = await _body(request, space)
        except TimeoutError:
            return _closing(problem(408, detail=f"the body was not here after {BODY_S:g} s"))
        except ClientDisconnect:
            return problem(400, detail="the connection ended before the body did")
        if isinstance(body, ProblemResponse):
            return _closing(body)
        delivered = await _in_thread(_read, request.headers, body, secret)
        del body
    if isinstance(delivered, ProblemResponse):
        return delivered
    return await _take_in(database, settings, delivered)


async def _body(request: Request, space: _Space) -> bytearray | ProblemResponse:
    """The raw body; what the sender says of its length is believed only where it is too much."""
    too_large = f"the body is too large: at most {BODY_BYTES} bytes are taken"
    said = request.headers.get("content-length", "")
    if said.isdecimal() and (len(said) > _LENGTH_DIGITS or int(said) > BODY_BYTES):
        return problem(413, detail=too_large)
    body = bytearray()
    async for chunk in request.stream():
        size = len(body) + len(chunk)
        if size > BODY_BYTES:
            return problem(413, detail=too_large)
        if not space.fits(size):
            return problem(
                503,
                detail="too many large deliveries at a time: deliver again",
                headers={"Retry-After": "10"},
            )
        body += chunk
    return body


async def _in_thread(work: Callable[..., _T], *arguments: Any) -> _T:
    return await anyio.to_thread.run_sync(work, *arguments, limiter=_threads)


def _closing(response: Response) -> Response:
    """Says that the rest of the request is not read."""
    response.headers["Connection"] = "close"
    return response


def _read(headers: Mapping[str, str], body: bytearray, secret: str) -> Delivered | ProblemResponse:
    """The delivery in a request. Nothing of it is looked at before its signature."""
    refused = signature.refusal(secret, body, headers.get(signature.HEADER))
    if refused:
        return problem(401, detail=refused)
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        return problem(
            415,
            detail=f"the body is {kind or 'of no named type'}: choose application/json as the "
            "content type of the webhook at GitHub",
        )
    identity, event = headers.get("x-github-delivery", ""), headers.get("x-github-event", "")
    if not _ID.fullmatch(identity):
        return problem(400, detail="X-GitHub-Delivery must hold the delivery's id")
    if not _EVENT.fullmatch(event):
        return problem(400, detail="X-GitHub-Event must hold the event's name")
    try:
        return Delivered(identity, event, payloads.parse(event, body))
    except InputError as error:
        return problem(400, detail=str(error))


async def _take_in(database: Database, settings: ServiceSettings, delivered: Delivered) -> Response:
    """Store the delivery; a transaction that the database undid is tried again."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return await _in_thread(take_in, database, settings, delivered)
        except RacewatchError as error:
            _LOG.error("delivery %s cannot be taken: %s", delivered.id, error)
            return problem(500, detail=f"{error}; deliver again once that is put right")
        except (exc.DBAPIError, exc.TimeoutError, ConnectorException) as error:
            if not _passes(error):
                raise
            if time.monotonic() >= deadline:
                _LOG.error("delivery %s is lost: %s", delivered.id, error)
                return problem(
                    503,
                    detail="the database does not answer: deliver again",
                    headers={"Retry-After": "30"},
                )
        await asyncio.sleep(_PAUSE_S)


def _passes(error: Exception) -> bool:
    """Whether it may go well another time: a lost connection, a full pool, a deadlock."""
    if isinstance(error, ConnectorException):
        return isinstance(error.__cause__, psycopg.OperationalError)
    return isinstance(error, exc.OperationalError | exc.InterfaceError | exc.TimeoutError)


def take_in(database: Database, settings: ServiceSettings, delivered: Delivered) -> Response:
    """Store a delivery with what it causes, in one transaction; one that is known causes nothing.

    Of two at the same time the second waits for the first one's end.
    """
    payload = delivered.payload
    repository = payload.repository.full_name if payload.repository else ""
    stored = payloads.as_stored(payload)
    with database.session() as session:
        values = {
            "id": delivered.id,
            "event": delivered.event,
            "action": getattr(payload, "action", None) or "",
            "repository": repository,
            "payload": stored,
            "effect": "",
            "received_at": now(),
        }
        if session.connection().execute(_STORE, values).first() is None:
            return _answer(200, delivered, "nothing: this delivery is already known")
        effect = _effect(session, settings, delivered, repository)
        caused = {"delivery": delivered.id, "effect": effect.text}
        if effect.more:
            more = {"payload": {**stored, **effect.more}}
            session.connection().execute(_CAUSED_MORE, {**caused, **more})
        else:
            session.connection().execute(_CAUSED, caused)
    return _answer(200 if isinstance(payload, Ping) else 202, delivered, effect.text)


def _answer(status: int, delivered: Delivered, effect: str) -> Response:
    return JSONResponse({"delivery": delivered.id, "effect": effect}, status_code=status)


def _effect(
    session: Session, settings: ServiceSettings, delivered: Delivered, repository: str
) -> Effect:
    payload = delivered.payload
    if isinstance(payload, Ping):
        return Effect("nothing: the webhook works")
    tracked = settings.by_github(repository) if repository else None
    if tracked is None:
        return Effect(f"nothing: {repository or 'the repository'} is not tracked")
    if isinstance(payload, Push):
        return Effect(_push(session, tracked, payload))
    if isinstance(payload, PullRequestEvent):
        return Effect(_pull_request(session, tracked, payload))
    if isinstance(payload, IssueCommentEvent):
        return _comment(session, tracked, payload, delivered.id)
    return Effect(f"nothing: {delivered.event} is of no interest here")


def _push(session: Session, tracked: Tracked, push: Push) -> str:
    name = effects.head_name(push.ref)
    if name is None or not effects.is_watched(tracked, name):
        return f"nothing: {push.ref} is not watched"
    if push.deleted or push.after == NO_COMMIT:
        return f"nothing: {push.ref} was deleted"
    head = push.head_commit
    if head is None and name.startswith(effects.TAGS):
        # `after` may be the tag itself: only git knows its commit, and the next poll asks it.
        return f"nothing yet: the commit of {push.ref} is not told, the next poll finds it"
    commit = result.Commit(sha=head.id if head else push.after, ref=name)
    if head:
        commit = result.Commit(commit.sha, name, head.title, head.author.name, head.timestamp)
    effects.saw(session, tracked.name, name, commit.sha)
    return effects.ref_moved(session, tracked, commit, push.sender.login if push.sender else "")


def _pull_request(session: Session, tracked: Tracked, event: PullRequestEvent) -> str:
    if not tracked.pulls:
        return "nothing: pull requests are not tracked"
    by = event.sender.login if event.sender else ""
    if event.action in {"opened", "synchronize", "reopened", "ready_for_review"}:
        return effects.pull_told(session, tracked, event.pull_request, by)
    if event.action == "closed":
        return effects.pull_closed(session, tracked, event.pull_request, by)
    if event.action in {"edited", "converted_to_draft"}:
        return effects.pull_described(session, tracked, event.pull_request)
    return f"nothing: {event.action} is of no interest here"


def _comment(session: Session, tracked: Tracked, event: IssueCommentEvent, delivery: str) -> Effect:
    author = event.comment.user
    if event.action != "created":
        # What was edited later is not what others may have read and answered.
        return Effect(f"nothing: a comment {event.action} commands nothing")
    if event.issue.pull_request is None or not tracked.pulls:
        return Effect("nothing: it is not on a pull request that is tracked")
    if author is None or author.is_bot or (event.sender is not None and event.sender.is_bot):
        return Effect("nothing: its author is no person")
    body = event.comment.body or ""
    if body.startswith(MARKER):
        # By someone who may write, since Racewatch has their token: it takes no orders from itself.
        return Effect("nothing: it is Racewatch's own comment")
    commands = commands_in(body)
    if not commands:
        return Effect("nothing: it has no command")
    if all(command.verb is Verb.HELP and not command.problem for command in commands):
        return Effect(f"nothing but help: {HELP}")
    more = approval.ask(
        session, tracked, delivery, event.issue.number, author.login, commands,
        event.comment.created_at,
    )  # fmt: skip
    return Effect(f"whether {author.login} may command that is being looked at", more)
