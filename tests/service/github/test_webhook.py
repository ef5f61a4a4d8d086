"""The webhook: who is believed, what is stored, and what a delivery causes - once."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from pydantic import SecretStr
from sqlalchemy import text
from sqlmodel import select

from service import submit
from service.database import Database
from service.github import effects, webhook
from service.github.comment import MARKER
from service.tables import Approval, Commit, Head, Origin, Pull, Run, RunState
from tests.service.github.deliveries import (
    SECRET,
    Hook,
    app_of,
    comment,
    headers_of,
    pull,
    push,
    repository,
    settings_in,
    sha,
    signed,
    user,
)

BODY = json.dumps(push(sha("a"))).encode()


@pytest.fixture
def hook(db: Database, tmp_path: Path) -> Hook:
    return Hook(db, settings_in(tmp_path))


def refused(answer: httpx.Response, status: int) -> str:
    """The sentence of a refusal in the form of RFC 9457."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == status
    detail: str = answer.json()["detail"]
    return detail


def end(hook: Hook, state: RunState) -> None:
    """End every run that has not ended, as if it had been carried out."""
    with hook.database.session() as session:
        for run in session.exec(select(Run)):
            run.state = state
            session.add(run)


class TestWhoIsBelieved:
    def signatures() -> list[Any]:  # type: ignore[misc]
        sha1 = hmac.new(SECRET.encode(), BODY, hashlib.sha1).hexdigest()
        written_again = json.dumps(json.loads(BODY), separators=(",", ":")).encode()
        return [
            pytest.param({}, id="missing"),
            pytest.param({"X-Hub-Signature": f"sha1={sha1}"}, id="sha1-only"),
            pytest.param({"X-Hub-Signature-256": f"sha1={sha1}"}, id="sha1-in-place"),
            pytest.param({"X-Hub-Signature-256": signed(BODY, "guessed")}, id="wrong-secret"),
            pytest.param({"X-Hub-Signature-256": signed(BODY, "")}, id="empty-secret"),
            pytest.param({"X-Hub-Signature-256": signed(BODY + b" ")}, id="of-another-body"),
            pytest.param({"X-Hub-Signature-256": signed(written_again)}, id="re-serialised"),
            pytest.param({"X-Hub-Signature-256": signed(BODY)[:-1]}, id="cut-short"),
            pytest.param({"X-Hub-Signature-256": "sha256=\u00e9".encode("latin-1")}, id="latin"),
        ]

    @pytest.mark.parametrize("signature", signatures())
    def test_others_store_nothing(self, hook: Hook, signature: dict[str, str]) -> None:
        headers = headers_of("push", BODY)
        del headers["X-Hub-Signature-256"]

        detail = refused(hook.post(BODY, headers | signature), 401)

        assert "X-Hub-Signature-256" in detail
        assert (hook.deliveries(), hook.runs()) == ([], [])

    def test_a_body_that_was_parsed_and_written_again_is_another(self, hook: Hook) -> None:
        again = json.dumps(json.loads(BODY), indent=1).encode()

        refused(hook.post(again, headers_of("push", BODY)), 401)

        assert hook.deliveries() == []

    def test_without_a_secret_nobody_is(self, hook: Hook) -> None:
        hook.settings.webhook_secret = SecretStr("")

        detail = refused(
            hook.post(BODY, headers_of("push", BODY) | {"X-Hub-Signature-256": signed(BODY, "")}),
            503,
        )

        assert "set RACEWATCH_WEBHOOK_SECRET" in detail
        assert hook.deliveries() == []


class TestWhatIsNoDelivery:
    def test_a_body_that_says_it_is_too_large(self, hook: Hook) -> None:
        headers = headers_of("push", BODY) | {"Content-Length": str(webhook.BODY_BYTES + 1)}

        assert "at most" in refused(hook.post(BODY, headers), 413)
        assert hook.deliveries() == []

    def test_a_body_that_says_what_no_number_is_for(self, hook: Hook) -> None:
        headers = headers_of("push", BODY) | {"Content-Length": "9" * 5000}

        refused(hook.post(BODY, headers), 413)

    def test_a_body_that_is_too_large_whatever_it_says(self, hook: Hook) -> None:
        sent = 0

        async def endless() -> AsyncIterator[bytes]:
            nonlocal sent
            while sent < 4 * webhook.BODY_BYTES:
                sent += 1 << 20
                yield b" " * (1 << 20)

        headers = headers_of("push", BODY) | {"Content-Length": "2"}

        assert "too large" in refused(hook.post(endless(), headers), 413)
        assert sent <= webhook.BODY_BYTES + (1 << 20)
        assert hook.deliveries() == []
        assert webhook._Space.taken == 0

    def test_the_largest_body_is_taken(self, hook: Hook) -> None:
        start = json.dumps(push(sha("a")))[:-1] + ', "padding": "'
        body = (start + "x" * (webhook.BODY_BYTES - len(start) - 2) + '"}').encode()
        assert len(body) == webhook.BODY_BYTES

        assert hook.post(body, headers_of("push", body)).status_code == 202

    def test_large_bodies_at_a_time_take_bounded_memory(
        self, hook: Hook, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(webhook, "SMALL_BYTES", len(BODY))
        monkeypatch.setattr(webhook, "LARGE_BYTES", 100)
        large = BODY + b" " * 101

        answer = hook.post(large, headers_of("push", large))

        assert "deliver again" in refused(answer, 503)
        assert hook.deliver("push", push(sha("a"))).status_code == 202
        assert webhook._Space.taken == 0

    def test_a_body_that_never_ends(self, hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(webhook, "BODY_S", 0.05)

        async def slow() -> AsyncIterator[bytes]:
            yield b"{"
            await asyncio.sleep(60)

        refused(hook.post(slow(), headers_of("push", BODY)), 408)

    @pytest.mark.parametrize("body", [b"", b"{", b"payload=%7B%7D", b"\xff", b"[" * 100_000])
    def test_malformed_json(self, hook: Hook, body: bytes) -> None:
        assert "JSON" in refused(hook.post(body, headers_of("push", body)), 400)
        assert hook.deliveries() == []

    def test_a_payload_without_what_is_needed(self, hook: Hook) -> None:
        payload = push(sha("a"))
        del payload["after"]

        detail = refused(hook.deliver("push", payload), 400)

        assert detail == "push delivery, after: field required"
        assert hook.deliveries() == []

    @pytest.mark.parametrize("header", ["X-GitHub-Delivery", "X-GitHub-Event"])
    @pytest.mark.parametrize("value", [None, "", "x\u00e9y".encode("latin-1"), "a b", "x" * 65])
    def test_a_header_that_is_missing_or_malformed(
        self, hook: Hook, header: str, value: str | None
    ) -> None:
        headers = headers_of("push", BODY)
        del headers[header]
        if value is not None:
            headers[header] = value

        assert header in refused(hook.post(BODY, headers), 400)
        assert hook.deliveries() == []

    @pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", None])
    def test_another_content_type(self, hook: Hook, kind: str | None) -> None:
        headers = headers_of("push", BODY)
        del headers["Content-Type"]
        if kind:
            headers["Content-Type"] = kind

        assert "application/json" in refused(hook.post(BODY, headers), 415)
        assert hook.deliveries() == []

    def test_a_content_type_with_a_charset_is_taken(self, hook: Hook) -> None:
        headers = headers_of("push", BODY) | {"Content-Type": "Application/JSON; charset=utf-8"}

        assert hook.post(BODY, headers).status_code == 202


class TestDeliveries:
    def test_a_ping_is_answered(self, hook: Hook) -> None:
        answer = hook.deliver("ping", {"zen": "Speak like a human.", "repository": repository()})

        assert answer.status_code == 200
        (stored,) = hook.deliveries()
        assert (stored.event, stored.effect) == ("ping", "nothing: the webhook works")
        assert hook.runs() == []

    def test_what_is_stored_of_one(self, hook: Hook) -> None:
        answer = hook.deliver("push", push(sha("a")), "0b989ba4-242f-11e5-81e1-c7b6966d2516")

        (stored,) = hook.deliveries()
        assert answer.json() == {"delivery": stored.id, "effect": stored.effect}
        assert stored.id == "0b989ba4-242f-11e5-81e1-c7b6966d2516"
        assert (stored.event, stored.repository) == ("push", "NVIDIA/TransformerEngine")
        assert stored.payload["after"] == sha("a")
        assert "pusher" not in stored.payload  # with a mail address that nobody needs

    def test_a_replay_causes_nothing(self, hook: Hook) -> None:
        hook.deliver("push", push(sha("a")), "one")
        end(hook, RunState.CANCELLED)
        before = (hook.runs(), hook.jobs("prepare"), hook.deliveries())

        answer = hook.deliver("push", push(sha("a")), "one")

        assert answer.status_code == 200
        assert "already known" in answer.json()["effect"]
        assert (hook.runs(), hook.jobs("prepare"), hook.deliveries()) == before

    def test_an_id_is_known_whatever_comes_with_it(self, hook: Hook) -> None:
        hook.deliver("push", push(sha("a")), "one")

        assert hook.deliver("push", push(sha("b")), "one").status_code == 200

        assert {run.head_sha for run in hook.runs()} == {sha("a")}

    def test_the_same_at_the_same_time_causes_one_effect(self, hook: Hook) -> None:
        body = json.dumps(pull("opened", sha("a"), fork=False)).encode()
        headers = headers_of("pull_request", body, "one")

        statuses = hook.post_at_once([(body, headers)] * 8)

        assert sorted(statuses) == [200] * 7 + [202]
        assert len(hook.deliveries()) == 1
        assert sorted(run.queue for run in hook.runs()) == ["sm100", "sm90"]
        assert len(hook.jobs("prepare")) == 2

    def test_different_ones_of_one_head_at_the_same_time_cause_one_run_per_queue(
        self, hook: Hook
    ) -> None:
        body = json.dumps(pull("opened", sha("a"), fork=False)).encode()

        statuses = hook.post_at_once([(body, headers_of("pull_request", body)) for _ in range(8)])

        assert statuses == [202] * 8
        assert sorted(run.queue for run in hook.runs()) == ["sm100", "sm90"]

    def test_many_different_ones_at_the_same_time_all_arrive(self, hook: Hook) -> None:
        bodies = [
            json.dumps(pull("opened", f"{n:040x}", number=n, fork=n % 2 == 0)).encode()
            for n in range(1, 31)
        ]

        statuses = hook.post_at_once([(b, headers_of("pull_request", b)) for b in bodies])

        assert statuses == [202] * 30
        assert len(hook.runs()) == 60

    def test_an_unknown_event_is_stored_and_ignored(self, hook: Hook) -> None:
        assert hook.effect("star", {"action": "created", "repository": repository()}) == (
            "nothing: star is of no interest here"
        )
        (stored,) = hook.deliveries()
        assert (stored.event, stored.action) == ("star", "created")

    def test_an_event_of_no_repository(self, hook: Hook) -> None:
        assert "is not tracked" in hook.effect("organization", {"action": "member_added"})

    def test_an_unknown_repository_is_stored_and_ignored(self, hook: Hook) -> None:
        assert hook.effect("push", push(sha("a"), full_name="someone/else")) == (
            "nothing: someone/else is not tracked"
        )
        assert len(hook.deliveries()) == 1
        assert hook.runs() == []

    def test_a_repository_is_known_in_any_case(self, hook: Hook) -> None:
        hook.deliver("push", push(sha("a"), full_name="nvidia/transformerENGINE"))

        assert len(hook.runs()) == 2

    def test_an_undone_transaction_stores_nothing(
        self, hook: Hook, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hook.settings.subjects["te"].queues = ["sm90", "\x00"]  # which PostgreSQL refuses

        with pytest.raises(Exception, match="NUL"):
            hook.deliver("push", push(sha("a")), "one")

        assert (hook.deliveries(), hook.runs(), hook.jobs("prepare")) == ([], [], [])

    def test_a_configuration_that_is_not_valid_takes_nothing(self, hook: Hook) -> None:
        hook.settings.subjects["te"].push_matrix = "no-such-matrix"

        detail = refused(hook.deliver("push", push(sha("a")), "one"), 500)

        assert "matrix 'no-such-matrix'" in detail
        assert hook.deliveries() == []
        hook.settings.subjects["te"].push_matrix = "quick"
        assert hook.deliver("push", push(sha("a")), "one").status_code == 202


class TestADatabaseThatFails:
    def test_a_deadlock_is_tried_again(self, hook: Hook) -> None:
        # Two transactions that each hold what the other wants: PostgreSQL undoes one of them.
        hook.deliver("pull_request", pull("opened", sha("a")))
        with hook.database.session() as session:
            session.connection().execute(text("SET LOCAL deadlock_timeout = '10s'"))
            session.connection().execute(text("LOCK TABLE heads"))
            answers: list[int] = []

            def deliver() -> None:
                payload = pull("synchronize", sha("b"), minute=1)
                answers.append(hook.deliver("pull_request", payload).status_code)

            other = threading.Thread(target=deliver)
            other.start()
            _until_someone_waits(hook.database)
            session.connection().execute(text("SELECT * FROM pulls FOR UPDATE"))
        other.join()

        assert answers == [202]
        assert hook.states()["b", "sm90"] == RunState.AWAITING_APPROVAL

    def test_a_lost_connection_is_replaced(self, hook: Hook) -> None:
        with _killed_once(hook.database):
            answer = hook.deliver("push", push(sha("a")))

        assert answer.status_code == 202
        assert len(hook.deliveries()) == 1
        assert len(hook.runs()) == 2

    def test_one_that_is_gone_says_deliver_again(
        self, hook: Hook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(webhook, "PATIENCE_S", 0.3)
        hook.database = Database(f"postgresql://racewatch@/x?host={tmp_path}")

        answer = hook.deliver("push", push(sha("a")))

        assert "deliver again" in refused(answer, 503)
        assert answer.headers["retry-after"] == "30"


@contextmanager
def _killed_once(database: Database) -> Iterator[None]:
    """The server ends the connection of the first delivery, after it was stored."""
    killed = threading.Event()

    def submit_and_die(session: Any, request: Any, queues: Any) -> list[UUID]:
        runs = submit.submit_each(session, request, queues)
        if not killed.is_set():
            killed.set()
            pid = session.connection().exec_driver_sql("SELECT pg_backend_pid()").scalar()
            with database.engine.connect() as other:
                other.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
        return runs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(effects, "submit_each", submit_and_die)
        yield
    assert killed.is_set()


def _until_someone_waits(database: Database) -> None:
    deadline = time.monotonic() + 60
    with database.engine.connect() as connection:
        waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        while not connection.execute(waiting).scalar():
            assert time.monotonic() < deadline, "nobody waits for a lock"


class TestPushes:
    def test_a_watched_branch_is_run_on_every_queue(self, hook: Hook) -> None:
        effect = hook.effect("push", push(sha("a")))

        assert effect == f"main at {sha('a')[:12]}, quick: 2 runs ordered"
        runs = hook.runs()
        assert sorted(run.queue for run in runs) == ["sm100", "sm90"]
        for run in runs:
            assert (run.origin, run.state, run.trusted) == (Origin.PUSH, RunState.QUEUED, True)
            assert (run.matrix_name, run.ref, run.head_sha) == ("quick", "main", sha("a"))
            assert (run.requested_by, run.pull) == ("ada", None)
        assert {job["run"] for job in hook.jobs("prepare")} == {str(run.id) for run in runs}

    def test_its_commit_and_head_are_kept(self, hook: Hook) -> None:
        hook.deliver("push", push(sha("a")))

        with hook.database.session() as session:
            commit = session.exec(select(Commit)).one()
            assert (commit.sha, commit.title, commit.author) == (sha("a"), "Change 1", "Ada")
            assert commit.date is not None
            head = session.exec(select(Head)).one()
            assert (head.ref, head.sha) == ("main", sha("a"))

    def test_only_its_last_commit_is_run(self, hook: Hook) -> None:
        hook.deliver("push", push(sha("a"), commits=5))

        assert {run.head_sha for run in hook.runs()} == {sha("a")}

    @pytest.mark.parametrize(
        ("ref", "watched"),
        [
            ("refs/heads/main", True),
            ("refs/heads/release_v2.9", True),
            ("refs/heads/Main", False),
            ("refs/heads/fix/main", False),
            ("refs/heads/pull/12", False),
            ("refs/heads/tags/v1", False),
            ("refs/tags/v2.9", True),
            ("refs/tags/nightly", False),
            ("refs/tags/main", False),
            ("refs/pull/12/head", False),
            ("refs/pull/main/head", False),
            ("refs/notes/main", False),
            ("main", False),
            ("", False),
        ],
    )
    def test_which_refs_are_watched(self, hook: Hook, ref: str, watched: bool) -> None:
        hook.deliver("push", push(sha("a"), ref))

        assert bool(hook.runs()) is watched

    @pytest.mark.parametrize(
        "gone", [{"deleted": True, "head_commit": None}, {"head_commit": None}]
    )
    def test_a_deleted_branch_is_not(self, hook: Hook, gone: dict[str, Any]) -> None:
        effect = hook.effect("push", push(sha("0"), **gone))

        assert effect == "nothing: refs/heads/main was deleted"
        assert hook.runs() == []

    def test_a_new_branch_is(self, hook: Hook) -> None:
        hook.deliver("push", push(sha("a"), before=sha("0"), created=True))

        assert len(hook.runs()) == 2

    def test_an_annotated_tag_is_the_commit_that_it_names(self, hook: Hook) -> None:
        payload = push(sha("a"), "refs/tags/v2.9")
        payload["after"] = sha("f")  # the tag itself

        hook.deliver("push", payload)

        assert {(run.head_sha, run.ref) for run in hook.runs()} == {(sha("a"), "tags/v2.9")}

    def test_a_tag_whose_commit_is_not_told_is_left_to_the_poll(self, hook: Hook) -> None:
        assert "next poll" in hook.effect(
            "push", push(sha("f"), "refs/tags/v2.9", head_commit=None)
        )
        assert hook.runs() == []

    def test_a_commit_is_run_once(self, hook: Hook) -> None:
        hook.deliver("push", push(sha("a")))
        end(hook, RunState.COMPLETE)

        assert "nothing new" in hook.effect("push", push(sha("a"), "refs/heads/release_v2"))

        assert len(hook.runs()) == 2

    def test_what_could_not_run_is_run_again(self, hook: Hook) -> None:
        hook.deliver("push", push(sha("a")))
        end(hook, RunState.FAILED)

        hook.deliver("push", push(sha("a")))

        assert len(hook.runs(RunState.QUEUED)) == 2

    def test_a_matrix_that_has_changed_is_another(self, hook: Hook, tmp_path: Path) -> None:
        matrix = tmp_path / "own.toml"
        hook.settings.subjects["te"].push_matrix = str(matrix)
        matrix.write_text('[[cells]]\nvariant = "ffi13"\ntrials = 3\n')
        hook.deliver("push", push(sha("a")))
        matrix.write_text('[[cells]]\nvariant = "ffi13"\ntrials = 12\n')

        hook.deliver("push", push(sha("a")))

        assert [run.matrix["cells"][0]["trials"] for run in hook.runs()] == [3, 3, 12, 12]

    def test_a_matrix_that_merges_pull_requests_is_not_trusted(
        self, hook: Hook, tmp_path: Path
    ) -> None:
        matrix = tmp_path / "merged.toml"
        matrix.write_text('[[cells]]\nvariant = "pr-2800"\n')
        hook.settings.subjects["te"].push_matrix = str(matrix)

        hook.deliver("push", push(sha("a")))

        assert [run.trusted for run in hook.runs()] == [False, False]


class TestPullRequests:
    def test_one_of_the_repositorys_own_branches_is_run(self, hook: Hook) -> None:
        effect = hook.effect("pull_request", pull("opened", sha("a"), fork=False))

        assert effect == f"pull/12 at {sha('a')[:12]}, after-fix: 2 runs ordered"
        for run in hook.runs():
            assert (run.origin, run.state) == (Origin.PULL_REQUEST, RunState.QUEUED)
            assert (run.pull, run.ref, run.head_sha) == (12, "pull/12", sha("a"))
            assert (run.matrix_name, run.trusted) == ("after-fix", True)

    def test_it_is_kept_as_github_describes_it(self, hook: Hook) -> None:
        hook.deliver("pull_request", pull("opened", sha("a"), base_ref="release_v2.9"))

        with hook.database.session() as session:
            kept = session.exec(select(Pull)).one()
            assert (kept.number, kept.head_sha, kept.base_ref) == (12, sha("a"), "release_v2.9")
            assert (kept.title, kept.author) == ("Capture on a stream of our own", "mallory")
            assert kept.head_repository == "mallory/TransformerEngine"
            assert (kept.fork, kept.draft, kept.open) == (True, False, True)
            assert session.get_one(Head, ("te", "pull/12")).sha == sha("a")

    def test_a_base_that_is_not_watched_makes_no_difference(self, hook: Hook) -> None:
        hook.deliver("pull_request", pull("opened", sha("a"), fork=False, base_ref="feature"))

        assert len(hook.runs()) == 2

    @pytest.mark.parametrize("head_repository", [None, repository("mallory/TransformerEngine")])
    def test_a_fork_awaits_approval(self, hook: Hook, head_repository: dict[str, Any]) -> None:
        payload = pull("opened", sha("a"), head_repository=head_repository)

        effect = hook.effect("pull_request", payload)

        assert effect.endswith("2 runs await approval")
        assert {run.state for run in hook.runs()} == {RunState.AWAITING_APPROVAL}
        assert {run.trusted for run in hook.runs()} == {False}
        assert hook.jobs("prepare") == []

    @pytest.mark.parametrize("action", ["opened", "synchronize", "reopened", "ready_for_review"])
    def test_no_action_runs_a_fork_that_nobody_approved(self, hook: Hook, action: str) -> None:
        hook.deliver("pull_request", pull(action, sha("a")))

        assert {run.state for run in hook.runs()} == {RunState.AWAITING_APPROVAL}
        assert hook.jobs("prepare") == []

    def test_an_approved_head_runs_at_once_and_stays_untrusted(self, hook: Hook) -> None:
        with hook.database.session() as session:
            session.add(Approval(subject="te", pull=12, sha=sha("a"), by="maria", via="api"))

        hook.deliver("pull_request", pull("opened", sha("a")))

        assert {(run.state, run.trusted) for run in hook.runs()} == {(RunState.QUEUED, False)}

    def test_a_push_after_an_approval_awaits_another(self, hook: Hook) -> None:
        with hook.database.session() as session:
            session.add(Approval(subject="te", pull=12, sha=sha("a"), by="maria", via="api"))
        hook.deliver("pull_request", pull("opened", sha("a")))
        jobs = hook.jobs("prepare")

        hook.deliver("pull_request", pull("synchronize", sha("b"), minute=1))

        assert hook.states()["b", "sm90"] == RunState.AWAITING_APPROVAL
        assert hook.states()["a", "sm90"] == RunState.CANCELLED
        assert hook.jobs("prepare") == jobs

    def test_an_approval_is_of_no_other_subject(self, hook: Hook) -> None:
        with hook.database.session() as session:
            session.add(Approval(subject="demo", pull=12, sha=sha("a"), by="maria", via="api"))

        hook.deliver("pull_request", pull("opened", sha("a")))

        assert {run.state for run in hook.runs()} == {RunState.AWAITING_APPROVAL}

    def test_a_newer_push_cancels_the_older_run(self, hook: Hook) -> None:
        hook.deliver("pull_request", pull("opened", sha("a"), fork=False))

        effect = hook.effect("pull_request", pull("synchronize", sha("b"), fork=False, minute=1))

        assert effect.endswith("2 runs ordered; 2 runs of older heads cancelled")
        assert {(run.head_sha, run.reason) for run in hook.runs(RunState.CANCELLED)} == {
            (sha("a"), f"superseded by {sha('b')}")
        }
        assert {run.head_sha for run in hook.runs(RunState.QUEUED)} == {sha("b")}

    def test_it_cancels_no_other_pull_requests_run(self, hook: Hook) -> None:
        hook.deliver("pull_request", pull("opened", sha("a"), fork=False, number=11))
        hook.deliver("pull_request", pull("opened", sha("b"), fork=False))
        hook.deliver("push", push(sha("c")))

        hook.deliver("pull_request", pull("synchronize", sha("d"), fork=False, minute=1))

        assert {run.head_sha for run in hook.runs(RunState.CANCELLED)} == {sha("b")}

    def test_a_complete_run_stays_complete(self, hook: Hook) -> None:
        hook.deliver("pull_request", pull("opened", sha("a"), fork=False))
        end(hook, RunState.COMPLETE)

        hook.deliver("pull_request", pull("synchronize", sha("b"), fork=False, minute=1))

        assert hook.states()["a", "sm90"] == RunState.COMPLETE

    def test_an_older_delivery_that_arrives_later_changes_nothing(self, hook: Hook) -> None:
        hook.deliver("pull_request", pull("synchronize", sha("b"), fork=False, minute=2))

        effect = hook.effect("pull_request", pull("opened", sha("a"), fork=False, minute=1))

        assert effect == "nothing: pull request 12 is known as it was later"
        assert hook.states() == {("b", "sm90"): "queued", ("b", "sm100"): "queued"}

    def test_an_opening_that_arrives_after_the_closing_runs_nothing(self, hook: Hook) -> None:
        hook.deliver("pull_request", pull("closed", sha("a"), fork=False, state="closed", minute=2))

        hook.deliver("pull_request", pull("opened", sha("a"), fork=False, minute=1))

        assert hook.runs() == []

    @pytest.mark.parametrize("state", [RunState.QUEUED, RunState.RUNNING, RunState.COMPLETE])
    def test_a_head_that_is_run_already_is_not_run_again(self, hook: Hook, state: RunState) -> None:
        hook.deliver("pull_request", pull("opened", sha("a"), fork=False))
        end(hook, state)

        effect = hook.effect("pull_request", pull("reopened", sha("a"), fork=False, minute=1))

        assert "nothing new" in effect
        assert len(hook.runs()) == 2

    def test_only_the_queue_that_lacks_it_is_ordered(self, hook: Hook) -> None:
        hook.settings.subjects["te"].queues = ["sm90"]
        hook.deliver("pull_request", pull("opened", sha("a"), fork=False))
        hook.settings.subjects["te"].queues = ["sm90", "sm100"]

        hook.deliver("pull_request", pull("reopened", sha("a"), fork=False, minute=1))

        assert [run.queue for run in hook.runs()] == ["sm90", "sm100"]

    def test_closing_cancels_and_reopening_runs_again(self, hook: Hook) -> None:
        hook.deliver("pull_request", pull("opened", sha("a")))

        effect = hook.effect("pull_request", pull("closed", sha("a"), state="closed", minute=1))

        assert effect == "pull request 12 is closed; 2 runs cancelled"
        assert {run.state for run in hook.runs()} == {RunState.CANCELLED}
        with hook.database.session() as session:
            assert not session.exec(select(Pull)).one().open
        hook.deliver("pull_request", pull("reopened", sha("a"), minute=2))
        assert len(hook.runs(RunState.AWAITING_APPROVAL)) == 2

    def test_a_draft_is_run_once_it_is_ready_for_review(self, hook: Hook) -> None:
        assert "draft" in hook.effect("pull_request", pull("opened", sha("a"), draft=True))
        hook.deliver("pull_request", pull("synchronize", sha("b"), draft=True, minute=1))
        assert hook.runs() == []

        hook.deliver("pull_request", pull("ready_for_review", sha("b"), minute=2))

        assert {run.head_sha for run in hook.runs()} == {sha("b")}

    def test_a_push_to_a_draft_cancels_what_was_asked_for(self, hook: Hook) -> None:
        hook.deliver("pull_request", pull("opened", sha("a"), fork=False))
        hook.deliver("pull_request", pull("converted_to_draft", sha("a"), draft=True, minute=1))
        assert len(hook.runs(RunState.QUEUED)) == 2

        hook.deliver("pull_request", pull("synchronize", sha("b"), draft=True, minute=2))

        assert {run.state for run in hook.runs()} == {RunState.CANCELLED}

    def test_other_actions_run_nothing(self, hook: Hook) -> None:
        for action in ("labeled", "assigned", "review_requested", "edited", "auto_merge_enabled"):
            hook.deliver("pull_request", pull(action, sha("a"), fork=False))

        assert hook.runs() == []
        assert len(hook.deliveries()) == 5

    def test_a_changed_base_is_kept(self, hook: Hook) -> None:
        hook.deliver("pull_request", pull("opened", sha("a")))

        hook.deliver("pull_request", pull("edited", sha("a"), base_ref="release_v3", minute=1))

        with hook.database.session() as session:
            assert session.exec(select(Pull)).one().base_ref == "release_v3"

    def test_a_new_head_has_no_merge_base_yet(self, hook: Hook) -> None:
        hook.deliver("pull_request", pull("opened", sha("a")))
        with hook.database.session() as session:
            session.exec(select(Pull)).one().merge_base = sha("9")

        hook.deliver("pull_request", pull("edited", sha("a"), minute=1))
        with hook.database.session() as session:
            assert session.exec(select(Pull)).one().merge_base == sha("9")

        hook.deliver("pull_request", pull("synchronize", sha("b"), minute=2))
        with hook.database.session() as session:
            assert session.exec(select(Pull)).one().merge_base == ""

    def test_where_they_are_not_tracked_nothing_happens(self, hook: Hook) -> None:
        hook.settings.subjects["te"].pulls = False

        assert "not tracked" in hook.effect("pull_request", pull("opened", sha("a"), fork=False))
        assert hook.runs() == []


class TestComments:
    @pytest.mark.parametrize(
        ("payload", "why"),
        [
            (comment("/racewatch run", action="edited"), "edited commands nothing"),
            (comment("/racewatch run", action="deleted"), "deleted commands nothing"),
            (comment("/racewatch run", on_pull=False), "not on a pull request"),
            (comment("/racewatch run", kind="Bot"), "no person"),
            (comment("please /racewatch run"), "no command"),
            (comment("> /racewatch run"), "no command"),
            (comment("/racewatchrun"), "no command"),
            (comment(f"{MARKER}\n/racewatch run"), "own comment"),
        ],
    )
    def test_what_commands_nothing(self, hook: Hook, payload: dict[str, Any], why: str) -> None:
        effect = hook.effect("issue_comment", payload)

        assert effect.startswith("nothing: ")
        assert why in effect
        assert hook.jobs("check_command") == []

    def test_a_command_of_nobody_is_none(self, hook: Hook) -> None:
        payload = comment("/racewatch run")
        payload["comment"]["user"] = None

        assert "no person" in hook.effect("issue_comment", payload)

    def test_one_that_another_app_sent_is_none(self, hook: Hook) -> None:
        payload = comment("/racewatch run") | {"sender": user("some-app", "Bot")}

        assert "no person" in hook.effect("issue_comment", payload)

    def test_a_command_only_wakes_who_looks_at_it(self, hook: Hook) -> None:
        hook.deliver("pull_request", pull("opened", sha("a")))

        answer = hook.deliver("issue_comment", comment("/racewatch run"), "the-comment")

        assert answer.status_code == 202
        assert hook.jobs("check_command") == [{"delivery": "the-comment"}]
        assert {run.state for run in hook.runs()} == {RunState.AWAITING_APPROVAL}

    def test_help_needs_nobodys_permission(self, hook: Hook) -> None:
        assert "/racewatch approve <sha>" in hook.effect("issue_comment", comment("/racewatch"))
        assert hook.jobs("check_command") == []


def test_the_schema_describes_it(hook: Hook) -> None:
    operation = app_of(hook.database, hook.settings).openapi()["paths"]["/webhooks/github"]["post"]

    assert {"200", "202", "400", "401", "408", "413", "415", "503"} <= operation["responses"].keys()
    assert "application/json" in operation["requestBody"]["content"]
