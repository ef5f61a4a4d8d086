"""Notifications: what is worth one, to a real webhook and through a real mail server."""

from __future__ import annotations

import email
import email.policy
import hashlib
import hmac
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword
from pydantic import SecretStr
from sqlmodel import Session, select

from runner.errors import InputError
from runner.outcome import Outcome
from runner.report import EMULATED
from runner.statistics.kinds import Kind
from runner.statistics.verdict import CellVerdict
from service import notify
from service.database import Database
from service.github.errors import Refused, TryAgain, Unavailable
from service.judged import cells_of
from service.notify import Event, EventKind, MailServer, branch_events, readiness
from service.settings import ServiceSettings
from service.tables import Claim, Origin, Run, RunCell, RunState, Trial, Worker
from tests.service.stories import BASE, CLEAN, FFI13, HEAD, RACY, STOCK, run_of

SETTINGS = ServiceSettings(base_url="https://racewatch.example", database_url="")
NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)
OLDER = "c" * 40


def pushed(session: Session, counts: dict[str, tuple[int, int]], sha: str, **more: Any) -> Run:
    at = NOON + timedelta(hours=[OLDER, BASE, HEAD].index(sha))
    values = {"pull": None, "origin": Origin.PUSH, "ref": "main", "created_at": at, **more}
    return run_of(session, counts, sha, **values)


def events(session: Session, run: Run) -> list[Event]:
    return branch_events(session, SETTINGS, run)


def kinds(session: Session, run: Run) -> list[str]:
    return [str(event.kind) for event in events(session, run)]


# What is worth a notification.


def test_a_branch_that_begins_to_race_regressed(db: Database) -> None:
    with db.session() as session:
        pushed(session, CLEAN, BASE)
        (event,) = events(session, pushed(session, RACY, HEAD, title="Add a stage"))
    assert event.kind is EventKind.REGRESSED
    assert event.title == f"te main regressed at {HEAD[:12]}: {STOCK}"
    assert f"commit {HEAD} Add a stage" in event.text
    assert f"before {BASE} A title" in event.text
    facts = event.as_json()
    assert facts["cells"][0]["now"] == {"k": 100, "n": 100}
    assert facts["cells"][0]["before"] == {"k": 0, "n": 100}
    assert facts["branch"] == "main"
    assert facts["emulated"] is False


def test_a_branch_that_stops_racing_is_fixed(db: Database) -> None:
    with db.session() as session:
        pushed(session, RACY, BASE)
        (event,) = events(session, pushed(session, CLEAN, HEAD))
    assert event.kind is EventKind.FIXED
    assert [cell["name"] for cell in event.as_json()["cells"]] == [STOCK]


def test_a_shown_fall_to_no_failure_is_fixed_before_it_is_clean(db: Database) -> None:
    """10 of 10 and then 0 of 10 is no chance, though 0 of 10 is not below 5 % yet."""
    with db.session() as session:
        pushed(session, {STOCK: (10, 10)}, BASE)
        (event,) = events(session, pushed(session, {STOCK: (0, 10)}, HEAD))
    assert event.kind is EventKind.FIXED
    assert "undersampled" in "\n".join(event.text)


def controlled(session: Session, run: Run, known_bad: str, known_good: str) -> None:
    """Its trials met one device, whose control cells ended so, six of each."""
    of_run = select(RunCell).where(RunCell.run_id == run.id, RunCell.name == STOCK)
    cell = session.exec(of_run).one()
    claim = Claim(run_id=run.id)
    session.add(claim)
    session.flush()
    known = [("", "pass"), *[("known-bad", known_bad)] * 6, *[("known-good", known_good)] * 6]
    for index, (control, outcome) in enumerate(known):
        session.add(
            Trial(
                measurement_id=cell.measurement_id, run_id=run.id, claim_id=claim.id, index=index,
                run_cell_id=None if control else cell.id, device="0", outcome=outcome,
                control=control,
            )
        )  # fmt: skip
    session.flush()


@pytest.mark.parametrize("doubted", ["before", "now"])
def test_what_a_device_that_failed_its_controls_shows_is_worth_none(
    db: Database, doubted: str
) -> None:
    with db.session() as session:
        runs = {"before": pushed(session, CLEAN, BASE), "now": pushed(session, RACY, HEAD)}
        controlled(session, runs["now"], "crash", "pass")
        assert kinds(session, runs["now"]) == ["regressed"]
    with db.session() as session:
        for trial in session.exec(select(Trial).where(Trial.control != "")):
            session.delete(trial)
    with db.session() as session:
        run = session.get_one(Run, runs[doubted].id)
        controlled(session, run, "crash", "crash")
        assert kinds(session, session.get_one(Run, runs["now"].id)) == []


def test_a_fall_on_a_device_that_hides_races_is_no_fix(db: Database) -> None:
    with db.session() as session:
        pushed(session, RACY, BASE)
        run = pushed(session, CLEAN, HEAD)
        controlled(session, run, "pass", "pass")
        assert kinds(session, run) == []


def test_a_base_on_a_device_that_hides_races_shows_no_regression(db: Database) -> None:
    def verdict(session: Session) -> CellVerdict:
        return next(cell.verdict for cell in cells_of(session, head) if cell.name == STOCK)

    with db.session() as session:
        base = pushed(session, CLEAN, BASE)
        head = pushed(session, RACY, HEAD)
        head.base_commit_id = base.commit_id
        controlled(session, head, "crash", "pass")
        assert verdict(session).kind is Kind.REGRESSED
        controlled(session, base, "pass", "pass")
        assert (verdict(session).kind, verdict(session).label) == (Kind.UNPROVEN, "base unproven")


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (RACY, RACY),
        (CLEAN, CLEAN),
        ({STOCK: (0, 100)}, {STOCK: (1, 100)}),  # not shown to be worse
        ({STOCK: (1, 10)}, {STOCK: (0, 10)}),  # not shown to be better
        ({STOCK: (100, 100)}, {STOCK: (30, 100)}),  # better, but it still fails
        (CLEAN, {}),
        ({}, RACY),
        (CLEAN, {**CLEAN, FFI13: (100, 100)}),  # does not ship
    ],
)
def test_what_is_not_shown_or_does_not_ship_is_not_told(
    db: Database, before: dict[str, tuple[int, int]], now: dict[str, tuple[int, int]]
) -> None:
    with db.session() as session:
        pushed(session, before, BASE)
        assert kinds(session, pushed(session, now, HEAD)) == []


def test_it_is_told_at_the_commit_that_brought_it_and_not_again(db: Database) -> None:
    with db.session() as session:
        pushed(session, CLEAN, OLDER)
        assert kinds(session, pushed(session, RACY, BASE)) == ["regressed"]
        assert kinds(session, pushed(session, RACY, HEAD)) == []


def test_a_run_that_ends_late_is_compared_with_what_came_before_it(db: Database) -> None:
    with db.session() as session:
        pushed(session, CLEAN, OLDER)
        late = pushed(session, RACY, BASE)
        pushed(session, CLEAN, HEAD)
        assert kinds(session, late) == ["regressed"]


@pytest.mark.parametrize(
    "changed",
    [
        {"ref": "release_v2.9"},
        {"queue": "emulated"},
        {"state": RunState.CANCELLED},
        {"origin": Origin.MANUAL},
        {"origin": Origin.BACKFILL},
        {"matrix_name": "another"},
    ],
)
def test_only_a_complete_run_of_the_same_branch_is_compared_with(
    db: Database, changed: dict[str, Any]
) -> None:
    with db.session() as session:
        pushed(session, CLEAN, BASE, **changed)
        assert kinds(session, pushed(session, RACY, HEAD)) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"origin": Origin.MANUAL},
        {"origin": Origin.PULL_REQUEST, "pull": 12},
        {"state": RunState.RUNNING},
        {"state": RunState.FAILED},
    ],
)
def test_only_a_branchs_complete_run_is_told_of(db: Database, changed: dict[str, Any]) -> None:
    with db.session() as session:
        pushed(session, CLEAN, BASE)
        assert kinds(session, pushed(session, RACY, HEAD, **changed)) == []


def test_a_shared_build_changes_nothing(db: Database) -> None:
    with db.session() as session:
        pushed(session, RACY, BASE)
        assert kinds(session, pushed(session, RACY, HEAD, builds_of=BASE)) == []


def test_a_broken_build_is_no_regression(db: Database) -> None:
    broken = {STOCK: (Outcome.BUILD_ERROR, "error", "why")}
    with db.session() as session:
        pushed(session, CLEAN, BASE)
        assert kinds(session, pushed(session, CLEAN, HEAD, broken=broken)) == []


def test_emulated_is_said_in_subject_and_text(db: Database) -> None:
    with db.session() as session:
        pushed(session, CLEAN, BASE, queue="emulated")
        (event,) = events(session, pushed(session, RACY, HEAD, queue="emulated"))
    assert event.title.startswith("EMULATED ")
    assert event.text[0] == f"{EMULATED}."
    assert event.as_json()["emulated"] is True


def test_the_same_event_has_the_same_id_whoever_finds_it(db: Database) -> None:
    with db.session() as session:
        pushed(session, CLEAN, BASE)
        run = pushed(session, RACY, HEAD)
        first, second = events(session, run) + events(session, run)
    assert first.id == second.id


def worker() -> Worker:
    return Worker(name="gpu-1", host="node7", pid=42, queues=["trial-sm90"], heartbeat_at=NOON)


def test_a_lost_worker_is_told_with_what_it_took() -> None:
    event = notify.worker_lost(SETTINGS, worker())
    assert event.kind is EventKind.WORKER_LOST
    assert event.title == "worker gpu-1 on node7 is lost"
    assert "2026-07-01T12:00:00+00:00" in event.text[0]
    assert event.as_json()["worker"]["queues"] == ["trial-sm90"]


def test_a_worker_that_is_lost_again_is_another_event() -> None:
    first, later = worker(), worker()
    later.id, later.heartbeat_at = first.id, NOON + timedelta(hours=1)
    ids = {notify.worker_lost(SETTINGS, one).id for one in (first, first, later)}
    assert len(ids) == 2


# To a webhook.

EVENT = {
    "event": "regressed",
    "id": "6f1b0a1e-0000-5000-8000-000000000000",
    "title": "te main regressed: stöck",
    "text": "two\nlines",
    "link": "https://racewatch.example/runs/1",
}


class Hook:
    """A webhook's receiver: a real HTTP server that keeps what it got and answers as told."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[tuple[int, dict[str, str]]] = []

    @contextmanager
    def serving(self) -> Iterator[str]:
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                hook.got.append(({k.lower(): v for k, v in self.headers.items()}, body))
                status, headers = hook.answers.pop(0) if hook.answers else (204, {})
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing on the terminal."""

        server = HTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/hook?key=url-secret"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


@pytest.fixture
def hook() -> Hook:
    return Hook()


@pytest.fixture
def hooked(hook: Hook) -> Iterator[ServiceSettings]:
    with hook.serving() as url:
        yield SETTINGS.model_copy(
            update={"notify_url": url, "notify_secret": SecretStr("the secret")}
        )


def post(db: Database, settings: ServiceSettings) -> None:
    with db.session() as session:
        notify.post(settings, session, EVENT)


def test_the_webhook_gets_the_event_signed_over_the_bytes_it_gets(
    db: Database, hook: Hook, hooked: ServiceSettings
) -> None:
    post(db, hooked)
    ((headers, body),) = hook.got
    expected = hmac.new(b"the secret", body, hashlib.sha256).hexdigest()
    assert headers["x-racewatch-signature-256"] == f"sha256={expected}"
    assert headers["x-racewatch-event"] == "regressed"
    assert headers["x-racewatch-delivery"] == EVENT["id"]
    assert headers["content-type"] == "application/json"
    assert json.loads(body) == EVENT


@pytest.mark.parametrize("status", [500, 502, 408, 429])
def test_a_webhook_that_may_recover_is_tried_again(
    db: Database, hook: Hook, hooked: ServiceSettings, status: int
) -> None:
    hook.answers = [(status, {"retry-after": "120"})]
    with pytest.raises(TryAgain, match=str(status)) as raised:
        post(db, hooked)
    assert raised.value.after_s == 120


@pytest.mark.parametrize("status", [301, 400, 401, 404, 410])
def test_a_webhook_that_refuses_is_not(
    db: Database, hook: Hook, hooked: ServiceSettings, status: int
) -> None:
    hook.answers = [(status, {"location": "http://127.0.0.1:1/"})]
    with pytest.raises(Refused, match=str(status)):
        post(db, hooked)
    assert len(hook.got) == 1


def test_a_webhook_that_is_not_there_is_tried_again_and_its_url_not_shown(db: Database) -> None:
    with Hook().serving() as url:
        gone = SETTINGS.model_copy(update={"notify_url": url, "notify_secret": SecretStr("s")})
    with pytest.raises(Unavailable) as raised:
        post(db, gone)
    assert "url-secret" not in str(raised.value)


# By email.


class Postman:
    """What the mail server does with mails: keeps them, or refuses as told."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.envelopes: list[Envelope] = []
        self.answer = "250 OK"
        self.recipient_answer = "250 OK"

    async def handle_RCPT(
        self, server: SMTP, session: Any, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if self.recipient_answer.startswith("250"):
            envelope.rcpt_tos.append(address)
        return self.recipient_answer

    async def handle_DATA(self, server: SMTP, session: Any, envelope: Envelope) -> str:
        if self.answer.startswith("250"):
            assert isinstance(envelope.content, bytes)
            self.envelopes.append(envelope)
            self.mails.append(
                email.message_from_bytes(envelope.content, policy=email.policy.default)
            )
        return self.answer


@contextmanager
def mail_server(postman: Postman, **options: Any) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    controller = Controller(postman, hostname="127.0.0.1", port=port, **options)
    controller.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        controller.stop()


def mail(db: Database, smtp_url: str, to: str = "team@corp.example, ops@corp.example") -> None:
    settings = SETTINGS.model_copy(update={"smtp_url": smtp_url, "notify_email": to})
    with db.session() as session:
        notify.mail(settings, session, EVENT)


@pytest.fixture
def postman() -> Postman:
    return Postman()


def test_a_mail_arrives_with_subject_text_and_the_events_id(db: Database, postman: Postman) -> None:
    with mail_server(postman) as place:
        mail(db, f"smtp://{place}")
    (arrived,) = postman.mails
    assert arrived["subject"] == "[racewatch] te main regressed: stöck"
    assert arrived["to"] == "team@corp.example, ops@corp.example"
    assert arrived["message-id"] == f"<{EVENT['id']}@racewatch>"
    assert arrived["auto-submitted"] == "auto-generated"
    assert arrived.get_content().splitlines() == ["two", "lines"]
    assert postman.envelopes[0].rcpt_tos == ["team@corp.example", "ops@corp.example"]


def test_a_mail_server_gets_the_login_of_the_url(db: Database, postman: Postman) -> None:
    def login(server: Any, session: Any, envelope: Any, mechanism: str, given: Any) -> AuthResult:
        assert isinstance(given, LoginPassword)
        right = (given.login, given.password) == (b"bot@corp.example", b"p@ss")
        return AuthResult(success=right, handled=False)

    options = {"authenticator": login, "auth_require_tls": False, "auth_required": True}
    with mail_server(postman, **options) as place:
        mail(db, f"smtp://bot%40corp.example:p%40ss@{place}")
        assert postman.mails[0]["from"] == "bot@corp.example"
        with pytest.raises(Refused, match="535") as raised:
            mail(db, f"smtp://bot%40corp.example:wrong-password@{place}")
    assert "wrong-password" not in str(raised.value)


@pytest.mark.parametrize(
    ("answer", "error"),
    [("451 try later", TryAgain), ("552 too big", Refused), ("421 closing", TryAgain)],
)
def test_a_mail_server_says_whether_to_try_again(
    db: Database, postman: Postman, answer: str, error: type[Exception]
) -> None:
    postman.answer = answer
    with mail_server(postman) as place, pytest.raises(error, match=answer[:3]):
        mail(db, f"smtp://{place}")


@pytest.mark.parametrize(
    ("answer", "error"), [("450 greylisted", TryAgain), ("550 no such user", Refused)]
)
def test_so_it_does_for_recipients(
    db: Database, postman: Postman, answer: str, error: type[Exception]
) -> None:
    postman.recipient_answer = answer
    with mail_server(postman) as place, pytest.raises(error, match=answer[:3]):
        mail(db, f"smtp://{place}")


def test_a_mail_server_that_is_not_there_is_tried_again(db: Database, postman: Postman) -> None:
    with mail_server(postman) as place:
        pass
    with pytest.raises(Unavailable, match="cannot be reached"):
        mail(db, f"smtp://{place}")


def test_a_password_is_sent_to_no_other_host_in_the_clear(
    db: Database, postman: Postman, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server here is a local one without TLS; only that it counts as local is taken away."""
    monkeypatch.setattr(notify, "_LOCAL", frozenset())
    with mail_server(postman) as place, pytest.raises(Refused, match="offers no TLS"):
        mail(db, f"smtp://bot:secret@{place}")
    assert postman.mails == []


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("smtp://h", MailServer("smtp", "h", 25, "", "")),
        ("smtp://u:p@h", MailServer("smtp", "h", 587, "u", "p")),
        ("smtps://u:p%3A@h", MailServer("smtps", "h", 465, "u", "p:")),
        ("smtp://u@h:2525", MailServer("smtp", "h", 2525, "u", "")),
    ],
)
def test_a_mail_server_by_its_url(url: str, server: MailServer) -> None:
    assert MailServer.of(url) == server


@pytest.mark.parametrize("url", ["", "mail.example", "http://u:secret@h", "smtp://u:secret@h:x"])
def test_what_is_no_mail_server_is_named_without_its_password(url: str) -> None:
    with pytest.raises(InputError, match="RACEWATCH_SMTP_URL") as raised:
        MailServer.of(url)
    assert "secret" not in str(raised.value)


# What is set up by half.


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, []),
        ({"notify_url": "http://h"}, ["RACEWATCH_NOTIFY_URL without"]),
        ({"smtp_url": "smtp://h"}, ["RACEWATCH_SMTP_URL without"]),
        ({"notify_email": "a@b.example"}, ["RACEWATCH_NOTIFY_EMAIL without"]),
        ({"notify_url": "h", "notify_secret": SecretStr("s")}, ["RACEWATCH_NOTIFY_URL: must be"]),
        ({"smtp_url": "h", "notify_email": "a@b.example"}, ["RACEWATCH_SMTP_URL: must be"]),
        ({"smtp_url": "smtp://h", "notify_email": "a"}, ["RACEWATCH_NOTIFY_EMAIL: must be"]),
        (
            {"smtp_url": "smtp://h", "notify_email": "a@b.example\nBcc: c@d.example"},
            ["RACEWATCH_NOTIFY_EMAIL: must be"],
        ),
        (
            {
                "notify_url": "https://h/x",
                "notify_secret": SecretStr("s"),
                "smtp_url": "smtp://h",
                "notify_email": "A <a@b.example>",
            },
            [],
        ),
    ],
)
def test_readiness_says_what_is_set_up_by_half(given: dict[str, Any], said: list[str]) -> None:
    found = readiness(SETTINGS.model_copy(update=given))
    assert len(found) == len(said)
    for sentence, begins in zip(found, said, strict=True):
        assert sentence.startswith(begins)
