"""The outbox: what is to be told to the outside, kept until it is told, each topic in order.

A message is a row, written in the transaction of what it tells of, so neither is lost without the
other. It names what changed; what is said is worked out when it is sent, from what is stored by
then. So it does not matter in which order transactions end, and a message that comes late never
tells something old.

A message stays locked from before it is sent until its end is stored, so two processes never send
it both, and nothing of a topic overtakes. A process that dies in between sends it again: a status
and an edited comment then say the same once more, a comment that was made is found by its marker,
and a notification carries an id by which its receiver knows it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Any

from sqlalchemy import exists, update
from sqlalchemy.orm import aliased
from sqlmodel import Session, col, select
from sqlmodel.sql.expression import SelectOfScalar

from runner.errors import InputError, RacewatchError
from service import notify
from service.database import Database
from service.github import client, comment, status
from service.github.errors import Refused, TryAgain, Unavailable
from service.queue import CONTROL, wake
from service.settings import ServiceSettings
from service.tables import Message, MessageState
from service.tables.columns import now

_LOG = logging.getLogger("racewatch.outbox")
STATUS, COMMENT, WEBHOOK, EMAIL = "status", "comment", "webhook", "email"
GITHUB = "GitHub"
ATTEMPTS = 60
"""Of a message before it counts as failed: with the pauses below a day and a night, more than
GitHub's outages last."""
PAUSE_S, PAUSE_MAX_S = 5.0, 1800.0
"""Before the second attempt, doubled before each further one, and its cap."""
ASKED_MAX_S = 6 * 3600.0
"""Longest wait that another side may ask for."""
BUDGET_S = 40.0
"""Time after which one delivery stops taking new messages: the sweep calls it again."""
_TOLD = "told"

Content = dict[str, Any]


def _as_it_is(session: Session, payload: Mapping[str, Any]) -> Content | None:
    return dict(payload)


@dataclass(frozen=True)
class Sender:
    """How messages of one kind are delivered.

    place: who gets them; while it is unavailable, all messages to it wait. send: tells a content;
    raises Refused, TryAgain or Unavailable. content: what a payload tells as of now, None where
    nothing is left to tell; by default the payload itself.
    """

    place: str
    send: Callable[[Session, Mapping[str, Any]], None]
    content: Callable[[Session, Mapping[str, Any]], Content | None] = _as_it_is


class Delivery(StrEnum):
    """What one look at one message came to."""

    SENT = "sent"
    UNCHANGED = "unchanged"
    """What it tells was told already."""
    REPLACED = "replaced"
    AGAIN = "again"
    FAILED = "failed"


@dataclass(frozen=True)
class Delivered:
    """What became of the messages of one call of `deliver`."""

    sent: int = 0
    unchanged: int = 0
    replaced: int = 0
    again: int = 0
    failed: int = 0


def senders(settings: ServiceSettings) -> dict[str, Sender]:
    """Senders of all kinds that this installation is set up for. Raises InputError."""
    found: dict[str, Sender] = {}
    token = settings.github_token.get_secret_value()
    if token:
        github = client.shared(settings.github_api, token)
        found[STATUS] = Sender(
            GITHUB, partial(status.send, github), partial(status.content, settings)
        )
        found[COMMENT] = Sender(
            GITHUB, partial(comment.send, github), partial(comment.content, settings)
        )
    if notify.has_webhook(settings):
        found[WEBHOOK] = Sender("the notified webhook", partial(notify.post, settings))
    if notify.has_email(settings):
        found[EMAIL] = Sender("the mail server", partial(notify.mail, settings))
    return found


def readiness(settings: ServiceSettings) -> list[str]:
    """What this installation does not tell the outside, and why: a sentence each."""
    found: list[str] = []
    if not settings.github_token.get_secret_value():
        found.append(
            "no GitHub token (RACEWATCH_GITHUB_TOKEN): results are shown here but not sent to "
            "GitHub"
        )
    else:
        try:
            client.shared(settings.github_api, settings.github_token.get_secret_value())
        except InputError as error:
            found.append(f"nothing is sent to GitHub: {error}")
        if not any(tracked.github for tracked in settings.subjects.values()):
            found.append("no tracked subject names its `github` repository: nothing is sent there")
        if not settings.base_url:
            found.append(
                f"no RACEWATCH_BASE_URL: what is sent to GitHub links to {settings.link}, which "
                "only this host can open"
            )
    return found + notify.readiness(settings)


def enqueue(
    session: Session,
    kind: str,
    topic: str,
    payload: Mapping[str, Any],
    settings: ServiceSettings,
) -> Message | None:
    """Keep a message in this session's transaction, and wake who sends it.

    It replaces messages of its topic that still wait. payload: plain JSON, which names what
    changed; the same change again is the same payload. None where there is nothing to do: this
    installation does not send that kind, or a message of the topic told of the same change and
    has not failed.
    """
    if not _is_sent(kind, settings):
        return None
    known = select(Message.id).where(
        Message.topic == topic,
        Message.state != MessageState.FAILED,
        col(Message.payload).contains(dict(payload)),
    )
    if session.exec(known.limit(1)).first() is not None:
        return None
    message = Message(kind=kind, topic=topic, payload=dict(payload))
    session.add(message)
    session.flush()
    _replace(session, _waiting_of(topic).where(col(Message.id) < message.id))
    _wake(session, message)
    return message


def _is_sent(kind: str, settings: ServiceSettings) -> bool:
    match kind:
        case "webhook":
            return notify.has_webhook(settings)
        case "email":
            return notify.has_email(settings)
    return bool(settings.github_token.get_secret_value())


def _asked(message: Message) -> dict[str, Any]:
    return {key: value for key, value in message.payload.items() if key != _TOLD}


def _wake(session: Session, message: Message, at: datetime | None = None) -> None:
    # A lock for each attempt: under one for all, a job that waits already, and begins before this
    # transaction ends, would be the only one, and would not see the message.
    lock = f"deliver:{message.id}:{message.attempts}"
    wake(session, "deliver", CONTROL, lock=lock, at=at)


def _waiting_of(topic: str) -> SelectOfScalar[Any]:
    return select(Message.id).where(Message.topic == topic, Message.state == MessageState.WAITING)


def _replace(session: Session, which: SelectOfScalar[Any]) -> None:
    """Give up waiting messages, but not one that is being sent: nobody waits for another side."""
    locked = which.with_for_update(skip_locked=True)
    session.connection().execute(
        update(Message)
        .where(col(Message.id).in_(locked.scalar_subquery()))
        .values(state=MessageState.REPLACED)
        .execution_options(synchronize_session=False)
    )


def deliver(
    database: Database,
    senders: Mapping[str, Sender],
    clock: Callable[[], datetime] = now,
    budget_s: float = BUDGET_S,
) -> Delivered:
    """Send what waits and is due, one message a transaction, and say what became of it.

    Safe to call from several processes at once. A kind without a sender goes on waiting.
    clock: what time it is.
    """
    counts: Counter[Delivery] = Counter()
    until = time.monotonic() + budget_s
    while True:
        with database.session() as session:
            message = _next(session, senders, clock())
            if message is None:
                break
            if time.monotonic() >= until:
                _wake(session, message)
                break
            counts[_deliver(session, senders, message, clock)] += 1
    return Delivered(**{str(kind): count for kind, count in counts.items()})


def _next(session: Session, kinds: Iterable[str], moment: datetime) -> Message | None:
    """The next message that is due, locked; none whose topic has an older one that is due too.

    An older one that is not here to be taken is being sent. Those that failed before come last, so
    that one which never arrives keeps back no other.
    """
    older = aliased(Message)
    overtakes = exists().where(
        col(older.topic) == Message.topic,
        col(older.state) == MessageState.WAITING,
        col(older.next_attempt_at) <= moment,
        col(older.id) < Message.id,
    )
    return session.exec(
        select(Message)
        .where(
            Message.state == MessageState.WAITING,
            col(Message.kind).in_(list(kinds)),
            Message.next_attempt_at <= moment,
            ~overtakes,
        )
        .order_by(col(Message.attempts), col(Message.next_attempt_at), col(Message.id))
        .limit(1)
        .with_for_update(skip_locked=True)
    ).first()


def _deliver(
    session: Session,
    senders: Mapping[str, Sender],
    message: Message,
    clock: Callable[[], datetime],
) -> Delivery:
    sender = senders[message.kind]
    newer = _waiting_of(message.topic).where(col(Message.id) > message.id).limit(1)
    if session.exec(newer).first() is not None:
        message.state = MessageState.REPLACED
        session.add(message)
        return Delivery.REPLACED
    try:
        # A savepoint: what a bug does to the transaction must not keep the message from being
        # counted, or it would come first for ever.
        with session.begin_nested():
            outcome, told = _tell(session, sender, message)
    except Refused as error:
        return _failed(session, message, str(error), clock())
    except TryAgain as error:
        return _again(session, senders, message, error, clock())
    except RacewatchError as error:
        # A setting that is not valid: whoever mends it finds the message still there.
        return _again(session, senders, message, TryAgain(str(error)), clock())
    except Exception as error:
        _LOG.exception("message %s about %s could not be told", message.id, message.topic)
        reason = TryAgain(f"could not be told, see the log: {type(error).__name__}")
        return _again(session, senders, message, reason, clock())
    message.state, message.last_error, message.sent_at = MessageState.SENT, "", clock()
    message.attempts += outcome is Delivery.SENT
    if told is None:
        message.state, message.last_error = MessageState.REPLACED, "nothing was left to tell"
        message.sent_at = None
    else:
        message.payload = {**_asked(message), _TOLD: told}
    session.add(message)
    session.flush()
    _replace(session, _waiting_of(message.topic).where(col(Message.id) < message.id))
    return outcome


def _tell(session: Session, sender: Sender, message: Message) -> tuple[Delivery, str | None]:
    """Send what the message tells by now, and a digest of it; nothing that was told before."""
    content = sender.content(session, _asked(message))
    if content is None:
        return Delivery.REPLACED, None
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    if _told_last(session, message.topic) == digest:
        return Delivery.UNCHANGED, digest
    sender.send(session, content)
    return Delivery.SENT, digest


def _told_last(session: Session, topic: str) -> str | None:
    """Digest of what the other side holds of a topic; None where that is not sure.

    It is not once an attempt failed since: what it told may have arrived and its answer been lost.
    """
    last = session.exec(
        select(Message)
        .where(Message.topic == topic, Message.state == MessageState.SENT)
        .order_by(col(Message.sent_at).desc(), col(Message.id).desc())
        .limit(1)
    ).first()
    if last is None:
        return None
    attempted = select(Message.id).where(
        Message.topic == topic,
        Message.state != MessageState.SENT,
        Message.attempts > 0,
        col(Message.next_attempt_at) >= last.sent_at,
    )
    if session.exec(attempted.limit(1)).first() is not None:
        return None
    told = last.payload.get(_TOLD)
    return told if isinstance(told, str) else None


def _failed(session: Session, message: Message, reason: str, moment: datetime) -> Delivery:
    _LOG.warning("message %s about %s failed: %s", message.id, message.topic, reason)
    message.state, message.last_error = MessageState.FAILED, reason
    message.attempts += 1
    message.next_attempt_at = moment
    session.add(message)
    return Delivery.FAILED


def _again(
    session: Session,
    senders: Mapping[str, Sender],
    message: Message,
    error: TryAgain,
    moment: datetime,
) -> Delivery:
    if message.attempts + 1 >= ATTEMPTS:
        reason = f"given up after {ATTEMPTS} attempts: {error}"
        return _failed(session, message, reason, moment)
    at = moment + timedelta(seconds=pause_s(message.attempts, error.after_s))
    message.attempts += 1
    message.last_error, message.next_attempt_at = str(error), at
    session.add(message)
    session.flush()
    if isinstance(error, Unavailable):
        place = senders[message.kind].place
        _postpone(session, [k for k, s in senders.items() if s.place == place], at)
    _wake(session, message, at)
    return Delivery.AGAIN


def pause_s(attempts: int, asked_s: float | None = None) -> float:
    """Seconds until the next attempt, after `attempts` earlier failures and the one just now.

    asked_s: what the other side asks for; it is never tried sooner.
    """
    pause = min(PAUSE_MAX_S, PAUSE_S * 2.0 ** min(attempts, 32))
    return max(pause, min(asked_s or 0.0, ASKED_MAX_S))


def _postpone(session: Session, kinds: list[str], at: datetime) -> None:
    """Let all that waits for a place wait until then, without counting an attempt."""
    waiting = (
        select(Message.id)
        .where(
            Message.state == MessageState.WAITING,
            col(Message.kind).in_(kinds),
            Message.next_attempt_at < at,
        )
        .with_for_update(skip_locked=True)
    )
    session.connection().execute(
        update(Message)
        .where(col(Message.id).in_(waiting.scalar_subquery()))
        .values(next_attempt_at=at)
        .execution_options(synchronize_session=False)
    )
