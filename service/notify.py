"""Notifications beyond GitHub: a webhook of yours, signed as GitHub signs its own, and email.

They tell that a watched branch regressed, that it was fixed, and that a worker was lost.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import smtplib
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import formatdate, parseaddr
from enum import StrEnum
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import NAMESPACE_URL, UUID, uuid5

import httpx
from sqlmodel import Session, col, select

from runner.errors import InputError
from runner.report import EMULATED
from runner.statistics.comparison import ERROR, compare
from runner.statistics.control import Proof
from runner.statistics.counts import Counts
from runner.statistics.kinds import Kind
from service import judged
from service.github.errors import Refused, TryAgain, Unavailable
from service.github.markdown import plain
from service.judged import JudgedCell
from service.settings import ServiceSettings
from service.tables import Commit, Origin, Run, RunState, Worker

SIGNATURE_HEADER = "X-Racewatch-Signature-256"
EVENT_HEADER = "X-Racewatch-Event"
ID_HEADER = "X-Racewatch-Delivery"
TIMEOUT_S = 10.0
CELLS = 50
"""Cells that one notification names."""
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_PORTS = {"smtp": 25, "smtps": 465}
_SUBMISSION = 587  # RFC 6409: where one logs in


class EventKind(StrEnum):
    """What is told of."""

    REGRESSED = "regressed"
    FIXED = "fixed"
    WORKER_LOST = "worker_lost"


@dataclass(frozen=True)
class Event:
    """Something that happened, told once to each place.

    id: the same for the same event, whoever finds it and however often; receivers know a repeated
    delivery by it. title: one line. text: the whole, a line each. facts: the same for programs.
    """

    kind: EventKind
    id: UUID
    title: str
    text: tuple[str, ...]
    link: str
    facts: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """What the webhook's body holds."""
        return {
            "event": str(self.kind),
            "id": str(self.id),
            "title": self.title,
            "text": "\n".join(self.text),
            "link": self.link,
            **self.facts,
        }


def branch_events(session: Session, settings: ServiceSettings, run: Run) -> list[Event]:
    """What a complete run says of a watched branch, against the branch's complete run before it.

    A cell regressed where its rate is shown to be higher, and is fixed where it fails no more and
    its rate is shown to be lower, either with an error of at most 1 %. A run of which both are true
    gives two events.
    """
    if run.origin != Origin.PUSH or run.state != RunState.COMPLETE:
        return []
    earlier = _run_before(session, run)
    if earlier is None:
        return []
    cells = [c for c in judged.cells_against(session, run, earlier) if c.ships]
    worse = [cell for cell in cells if cell.verdict.kind is Kind.REGRESSED]
    better = [cell for cell in cells if _is_fixed(cell, run.clean_below)]
    found = ((EventKind.REGRESSED, worse), (EventKind.FIXED, better))
    return [
        _branch_event(session, settings, kind, run, earlier, changed)
        for kind, changed in found
        if changed
    ]


def _run_before(session: Session, run: Run) -> Run | None:
    return session.exec(
        select(Run)
        .where(
            Run.subject == run.subject,
            Run.ref == run.ref,
            Run.matrix_name == run.matrix_name,
            Run.queue == run.queue,
            Run.origin == Origin.PUSH,
            Run.state == RunState.COMPLETE,
            Run.id != run.id,
            Run.commit_id != run.commit_id,
            Run.created_at < run.created_at,
        )
        .order_by(col(Run.created_at).desc())
        .limit(1)
    ).first()


def _is_fixed(cell: JudgedCell, clean_below: float) -> bool:
    if cell.head.k or cell.base is None or not cell.base.k:
        return False
    if cell.control is not None and cell.control.proof is Proof.UNPROVEN:
        return False
    return compare(cell.head, cell.base, clean_below, cell.verdict.adaptive).p_lower < ERROR


def _branch_event(
    session: Session,
    settings: ServiceSettings,
    kind: EventKind,
    run: Run,
    earlier: Run,
    cells: Sequence[JudgedCell],
) -> Event:
    commit, before = _commit(session, run), _commit(session, earlier)
    emulated = run.queue == "emulated"
    link = f"{settings.link}/runs/{run.id}"
    named = plain(cells[0].name, 80) + (f" and {len(cells) - 1} more" if len(cells) > 1 else "")
    loud = "EMULATED " if emulated else ""
    title = f"{loud}{run.subject} {plain(run.ref, 80)} {kind} at {commit['sha'][:12]}: {named}"
    lines = [f"{EMULATED}."] if emulated else []
    lines += [
        f"{run.subject}, branch {plain(run.ref)}, matrix {plain(run.matrix_name)}, {run.queue}",
        f"commit {commit['sha']} {plain(commit['title'])}".rstrip(),
        f"before {before['sha']} {plain(before['title'])}".rstrip(),
        "",
        *(f"{plain(cell.name, 80)}: {cell.verdict.text}" for cell in cells[:CELLS]),
    ]
    lines += [f"and {len(cells) - CELLS} more cells"] if len(cells) > CELLS else []
    return Event(
        kind=kind,
        id=uuid5(NAMESPACE_URL, f"racewatch:{kind}:{run.id}"),
        title=title,
        text=(*lines, "", link),
        link=link,
        facts={
            "subject": run.subject,
            "branch": run.ref,
            "matrix": run.matrix_name,
            "queue": run.queue,
            "emulated": emulated,
            "run": str(run.id),
            "commit": commit,
            "before": {"run": str(earlier.id), **before},
            "cells": [_cell_facts(cell) for cell in cells],
        },
    )


def _commit(session: Session, run: Run) -> dict[str, str]:
    commit = session.get(Commit, run.commit_id)
    return {"sha": commit.sha, "title": commit.title} if commit else {"sha": "", "title": ""}


def _cell_facts(cell: JudgedCell) -> dict[str, Any]:
    return {
        "name": cell.name,
        "verdict": str(cell.verdict.kind),
        "text": cell.verdict.text,
        "interval": list(cell.verdict.interval),
        "now": _counts(cell.head),
        "before": _counts(cell.base or Counts()),
    }


def _counts(counts: Counts) -> dict[str, int]:
    return {"k": counts.k, "n": counts.n}


def worker_lost(settings: ServiceSettings, worker: Worker) -> Event:
    """A worker has said nothing for long; what it had in hand goes to others."""
    since = worker.heartbeat_at.isoformat(timespec="seconds")
    name = f"{plain(worker.name, 80)} on {plain(worker.host, 80)}"
    link = f"{settings.link}/workers"
    return Event(
        kind=EventKind.WORKER_LOST,
        id=uuid5(NAMESPACE_URL, f"racewatch:worker_lost:{worker.id}:{since}"),
        title=f"worker {name} is lost",
        text=(
            f"Worker {name} (process {worker.pid}) has said nothing since {since}. What it had in "
            "hand goes to other workers.",
            f"It took {', '.join(worker.queues) or 'nothing'}.",
            "",
            link,
        ),
        link=link,
        facts={
            "worker": {
                "id": str(worker.id),
                "name": worker.name,
                "host": worker.host,
                "pid": worker.pid,
                "queues": list(worker.queues),
                "heartbeat_at": since,
            }
        },
    )


def has_webhook(settings: ServiceSettings) -> bool:
    """Whether notifications go to a webhook: it has a URL, and a secret to sign with."""
    return bool(settings.notify_url and settings.notify_secret.get_secret_value())


def has_email(settings: ServiceSettings) -> bool:
    """Whether notifications go out as email."""
    return bool(settings.smtp_url and settings.notify_email)


def readiness(settings: ServiceSettings) -> list[str]:
    """What is set up by half or wrongly, so that it does nothing: a sentence each."""
    found: list[str] = []
    if settings.notify_url and not settings.notify_secret.get_secret_value():
        found.append(
            "RACEWATCH_NOTIFY_URL without RACEWATCH_NOTIFY_SECRET: nothing is sent there, for "
            "nobody could tell it from a forgery"
        )
    if settings.smtp_url and not settings.notify_email:
        found.append("RACEWATCH_SMTP_URL without RACEWATCH_NOTIFY_EMAIL: no email is sent")
    if settings.notify_email and not settings.smtp_url:
        found.append("RACEWATCH_NOTIFY_EMAIL without RACEWATCH_SMTP_URL: no email is sent")
    checks: list[Callable[[], object]] = []
    if has_webhook(settings):
        checks.append(lambda: _host(settings.notify_url))
    if has_email(settings):
        checks.append(lambda: _recipients(settings))
        checks.append(lambda: MailServer.of(settings.smtp_url))
    for check in checks:
        try:
            check()
        except InputError as error:
            found.append(str(error))
    return found


def signature(secret: str, body: bytes) -> str:
    """The signature header's value of a body, made as GitHub makes its own."""
    return f"sha256={hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}"


def post(settings: ServiceSettings, session: Session, event: Mapping[str, Any]) -> None:
    """Send an event to the webhook. Raises InputError, Refused, TryAgain, Unavailable.

    Errors name the host alone: the rest of such a URL may be a secret.
    """
    host = _host(settings.notify_url)
    body = json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "racewatch",
        EVENT_HEADER: str(event["event"]),
        ID_HEADER: str(event["id"]),
        SIGNATURE_HEADER: signature(settings.notify_secret.get_secret_value(), body),
    }
    try:
        response = httpx.post(settings.notify_url, content=body, headers=headers, timeout=TIMEOUT_S)
    except httpx.TimeoutException as error:
        raise Unavailable(f"{host} did not answer within {TIMEOUT_S:g} s") from error
    except (httpx.RequestError, httpx.InvalidURL) as error:
        raise Unavailable(f"{host} cannot be reached: {type(error).__name__}") from error
    if response.is_success:
        return
    sentence = f"{host} answered {response.status_code}"
    after = response.headers.get("retry-after", "")
    if response.status_code in {408, 429} or response.status_code >= 500:
        raise TryAgain(sentence, float(after) if after.isdecimal() else None)
    raise Refused(sentence, response.status_code)


def _host(url: str) -> str:
    wrong = InputError("RACEWATCH_NOTIFY_URL: must be an http:// or https:// URL")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise wrong from None
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise wrong
    return f"{parts.scheme}://{parts.hostname}"


@dataclass(frozen=True)
class MailServer:
    """Where mail is handed in: an `smtp://` or `smtps://` URL, taken apart."""

    scheme: str
    host: str
    port: int
    user: str
    password: str

    @classmethod
    def of(cls, url: str) -> MailServer:
        """The server of that URL. Raises InputError, which does not show it, nor its password."""
        wrong = InputError("RACEWATCH_SMTP_URL: must be like smtp://user:password@host:587")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise wrong from None
        if parts.scheme not in _PORTS or not parts.hostname:
            raise wrong
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        if port is None:
            logs_in = parts.scheme == "smtp" and user
            port = _SUBMISSION if logs_in else _PORTS[parts.scheme]
        return cls(parts.scheme, parts.hostname, port, user, password)


def mail(settings: ServiceSettings, session: Session, event: Mapping[str, Any]) -> None:
    """Send an event as email. Raises InputError, Refused, TryAgain, Unavailable."""
    server = MailServer.of(settings.smtp_url)
    message = message_of(settings, server, event)
    try:
        connection = _connected(server)
        try:
            refused = connection.send_message(message)
        finally:
            _hang_up(connection)
    except smtplib.SMTPRecipientsRefused as error:
        code, said = next(iter(error.recipients.values()))
        raise _answered(server, code, said) from error
    except smtplib.SMTPResponseException as error:
        raise _answered(server, error.smtp_code, error.smtp_error) from error
    except smtplib.SMTPServerDisconnected as error:
        raise Unavailable(f"mail server {server.host} hung up: {error}") from error
    except smtplib.SMTPException as error:
        raise Refused(f"mail server {server.host} cannot take it: {error}") from error
    except OSError as error:
        raise Unavailable(f"mail server {server.host} cannot be reached: {error}") from error
    if refused:
        # Some got it: sending to all again would give those a second one.
        raise Refused(f"mail server {server.host} refused {', '.join(sorted(refused))}")


def message_of(
    settings: ServiceSettings, server: MailServer, event: Mapping[str, Any]
) -> EmailMessage:
    """The mail that tells of an event. Its Message-ID is the event's, so that a second is known."""
    recipients = _recipients(settings)
    message = EmailMessage()
    message["Subject"] = f"[racewatch] {plain(str(event['title']))}"
    message["From"] = server.user if "@" in server.user else recipients[0]
    message["To"] = ", ".join(recipients)
    message["Date"] = formatdate(localtime=False)
    message["Message-ID"] = f"<{event['id']}@racewatch>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(str(event["text"]) + "\n")
    return message


def _recipients(settings: ServiceSettings) -> list[str]:
    addresses = [address.strip() for address in settings.notify_email.split(",")]
    if not all("@" in parseaddr(address)[1] and address.isprintable() for address in addresses):
        raise InputError(
            "RACEWATCH_NOTIFY_EMAIL: must be addresses, with commas between, got "
            f"{settings.notify_email!r}"
        )
    return addresses


def _connected(server: MailServer) -> smtplib.SMTP:
    """A connection that is ready to send: over TLS where the server offers it.

    A password goes to no other host in the clear.
    """
    context = ssl.create_default_context()
    if server.scheme == "smtps":
        connection: smtplib.SMTP = smtplib.SMTP_SSL(
            server.host, server.port, timeout=TIMEOUT_S, context=context
        )
    else:
        connection = smtplib.SMTP(server.host, server.port, timeout=TIMEOUT_S)
    try:
        connection.ehlo_or_helo_if_needed()
        encrypted = server.scheme == "smtps"
        if not encrypted and server.host not in _LOCAL and connection.has_extn("starttls"):
            connection.starttls(context=context)
            encrypted = True
        if server.user:
            if not encrypted and server.host not in _LOCAL:
                raise Refused(
                    f"mail server {server.host} offers no TLS, so the password is not sent to it"
                )
            connection.login(server.user, server.password)
    except BaseException:
        connection.close()
        raise
    return connection


def _hang_up(connection: smtplib.SMTP) -> None:
    """Say goodbye. The mail is taken by then, or an error is on its way: a bad goodbye is none."""
    with suppress(smtplib.SMTPException, OSError):
        connection.quit()
    connection.close()


def _answered(server: MailServer, code: int, said: bytes | str) -> Refused | TryAgain:
    text = said.decode(errors="replace") if isinstance(said, bytes) else said
    sentence = f"mail server {server.host} answered {code}: {plain(text)}"
    return TryAgain(sentence) if 400 <= code < 500 else Refused(sentence)
