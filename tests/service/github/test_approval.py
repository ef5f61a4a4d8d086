"""Approvals and commands: a fork's code runs only as the commit that someone with the right meant.

GitHub is played by a stand-in that answers one question: what may this user do?
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlmodel import select

from runner.errors import InputError
from service.database import Database
from service.github import approval, effects, pulls
from service.github.approval import approve_commit
from service.github.errors import Refused, Unavailable
from service.tables import Approval, Delivery, Head, Pull, Run, RunState
from tests.service.github.deliveries import Hook, comment, pull, push, settings_in, sha


@dataclass
class Users:
    """What GitHub would say of each user: `write` of maria, `read` of anyone else."""

    permissions: Mapping[str, str] = field(default_factory=lambda: {"maria": "write"})
    asked: list[tuple[str, str]] = field(default_factory=list)
    failure: Exception | None = None

    def permission(self, repository: str, user: str) -> str:
        self.asked.append((repository, user))
        if self.failure:
            raise self.failure
        return self.permissions.get(user, "read")


@pytest.fixture
def users() -> Users:
    return Users()


@pytest.fixture
def hook(db: Database, tmp_path: Path) -> Hook:
    return Hook(db, settings_in(tmp_path))


@pytest.fixture
def fork(hook: Hook) -> Hook:
    """A repository with an open pull request of a fork, head a."""
    hook.deliver("pull_request", pull("opened", sha("a")))
    return hook


def ask(hook: Hook, body: str, *, by: str = "maria", at: datetime | None = None) -> str:
    """Deliver a comment; the delivery's id."""
    answer = hook.deliver("issue_comment", comment(body, by=by, at=at))
    assert answer.status_code == 202
    identity: str = answer.json()["delivery"]
    return identity


def carry_out(hook: Hook, users: Users | None, delivery: str) -> str:
    with hook.database.session() as session:
        return approval.carry_out(session, hook.settings, users, delivery)


def say(
    hook: Hook, users: Users | None, body: str, *, by: str = "maria", at: datetime | None = None
) -> str:
    """Comment, and let the command be carried out; what came of it."""
    return carry_out(hook, users, ask(hook, body, by=by, at=at))


def approved(hook: Hook) -> list[str]:
    with hook.database.session() as session:
        return list(session.exec(select(Approval.sha)))


def new_head(hook: Hook, head: str, minute: int = 1) -> None:
    hook.deliver("pull_request", pull("synchronize", head, minute=minute))


class TestWhoMay:
    @pytest.mark.parametrize("permission", ["admin", "maintain", "write"])
    def test_with_write_permission(self, fork: Hook, users: Users, permission: str) -> None:
        users.permissions = {"maria": permission}

        say(fork, users, f"/racewatch approve {sha('a')}")

        assert approved(fork) == [sha("a")]
        assert users.asked == [("NVIDIA/TransformerEngine", "maria")]

    @pytest.mark.parametrize("permission", ["read", "triage", "none", "", "Write"])
    @pytest.mark.parametrize(
        "command", [f"approve {sha('a')}", "run", "run quick", "cancel", "fly"]
    )
    def test_nobody_else_whatever_the_payload_calls_them(
        self, fork: Hook, users: Users, permission: str, command: str
    ) -> None:
        users.permissions = {"mallory": permission}

        told = say(fork, users, f"/racewatch {command}", by="mallory")

        assert told.startswith("refused: mallory has ")
        assert approved(fork) == []
        assert {run.state for run in fork.runs()} == {RunState.AWAITING_APPROVAL}

    def test_without_a_token_nobody_can_be_asked_about(self, fork: Hook) -> None:
        told = say(fork, None, f"/racewatch approve {sha('a')}")

        assert told.startswith("refused: no GitHub token")
        assert "approve through the API" in told
        assert approved(fork) == []

    def test_a_token_that_may_not_ask_refuses(self, fork: Hook, users: Users) -> None:
        users.failure = Refused("GitHub answered 403 to GET ...", 403)

        told = say(fork, users, f"/racewatch approve {sha('a')}")

        assert "GitHub answered 403" in told
        assert approved(fork) == []


class TestOnce:
    def test_an_outage_leaves_it_for_later(self, fork: Hook, users: Users) -> None:
        delivery = ask(fork, f"/racewatch approve {sha('a')}")
        users.failure = Unavailable("GitHub answered 503 to GET ...")
        with pytest.raises(Unavailable):
            carry_out(fork, users, delivery)
        assert approved(fork) == []

        users.failure = None
        carry_out(fork, users, delivery)

        assert approved(fork) == [sha("a")]

    def test_a_second_time_tells_what_came_of_the_first(self, fork: Hook, users: Users) -> None:
        delivery = ask(fork, "/racewatch cancel")
        told = carry_out(fork, users, delivery)
        fork.deliver("pull_request", pull("reopened", sha("a"), minute=5))

        assert carry_out(fork, users, delivery) == told

        assert len(fork.runs(RunState.AWAITING_APPROVAL)) == 2
        assert len(users.asked) == 1

    def test_two_at_a_time_do_it_once(self, fork: Hook) -> None:
        delivery = ask(fork, "/racewatch cancel\n/racewatch run quick")
        both = threading.Barrier(2, timeout=30)

        class Together(Users):
            def permission(self, repository: str, user: str) -> str:
                both.wait()
                return super().permission(repository, user)

        users = Together()
        with ThreadPoolExecutor(2) as threads:
            told = list(threads.map(lambda _: carry_out(fork, users, delivery), range(2)))

        assert len(users.asked) == 2
        assert told[0] == told[1]
        # A second time would have cancelled what the first had ordered.
        assert sorted((run.matrix_name, str(run.state)) for run in fork.runs()) == [
            ("after-fix", "cancelled"),
            ("after-fix", "cancelled"),
            ("quick", "queued"),
            ("quick", "queued"),
        ]

    def test_a_lost_job_is_deferred_again(self, fork: Hook, users: Users) -> None:
        delivery = ask(fork, "/racewatch cancel")
        done = ask(fork, "/racewatch run")
        carry_out(fork, users, done)
        _forget_jobs(fork.database)

        with fork.database.session() as session:
            assert approval.wake_undecided(session) == 1

        assert fork.jobs("check_command") == [{"delivery": delivery}]

    def test_what_waits_already_is_not_deferred_again(self, fork: Hook) -> None:
        ask(fork, "/racewatch cancel")

        with fork.database.session() as session:
            assert approval.wake_undecided(session) == 0

        assert len(fork.jobs("check_command")) == 1

    def test_a_delivery_that_commands_nothing_is_left_alone(self, fork: Hook, users: Users) -> None:
        (opened,) = fork.deliveries()

        assert carry_out(fork, users, opened.id) == opened.effect
        assert "not known" in carry_out(fork, users, "never-delivered")
        assert users.asked == []

    def test_a_repository_that_is_tracked_no_more(self, fork: Hook, users: Users) -> None:
        delivery = ask(fork, "/racewatch cancel")
        fork.settings.subjects["te"].github = "someone/else"

        assert "not tracked any more" in carry_out(fork, users, delivery)

    def test_what_came_of_it_is_kept(self, fork: Hook, users: Users) -> None:
        delivery = ask(fork, "/racewatch cancel")
        with fork.database.session() as session:
            assert "being looked at" in session.get_one(Delivery, delivery).effect

        told = carry_out(fork, users, delivery)

        with fork.database.session() as session:
            kept = session.get_one(Delivery, delivery)
            assert kept.effect == told == "2 runs of pull request 12 cancelled"
            assert kept.payload["decided"] is True


def _forget_jobs(database: Database) -> None:
    with database.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM procrastinate_jobs")


class TestApprove:
    def test_exactly_this_head_begins(self, fork: Hook, users: Users) -> None:
        told = say(fork, users, f"/racewatch approve {sha('a')}")

        assert told == f"{sha('a')} is approved; 2 runs ordered"
        for run in fork.runs():
            assert (run.state, run.trusted) == (RunState.QUEUED, False)
            assert "maria" in run.reason
        assert len(fork.jobs("prepare")) == 2
        with fork.database.session() as session:
            kept = session.exec(select(Approval)).one()
            assert (kept.pull, kept.by, kept.via) == (12, "maria", "comment")

    @pytest.mark.parametrize("given", [sha("a")[:7], sha("a")[:12], sha("a").upper()])
    def test_it_may_be_abbreviated(self, fork: Hook, users: Users, given: str) -> None:
        say(fork, users, f"/racewatch approve {given}")

        assert approved(fork) == [sha("a")]

    @pytest.mark.parametrize(
        "given", ["", "a" * 6, "b" * 40, "a" * 41, "main", "HEAD", "%" * 7, "a" * 39 + "b", "é" * 7]
    )
    def test_nothing_else_is_approved(self, fork: Hook, users: Users, given: str) -> None:
        told = say(fork, users, f"/racewatch approve {given}")

        assert told.startswith("refused: ")
        assert approved(fork) == []
        assert {run.state for run in fork.runs()} == {RunState.AWAITING_APPROVAL}

    def test_an_older_head_is_not(self, fork: Hook, users: Users) -> None:
        new_head(fork, sha("b"))

        told = say(fork, users, f"/racewatch approve {sha('a')}")

        assert f"is not the head of pull request 12, which is {sha('b')}" in told
        assert approved(fork) == []
        assert fork.jobs("prepare") == []

    def test_the_next_push_needs_another(self, fork: Hook, users: Users) -> None:
        say(fork, users, f"/racewatch approve {sha('a')}")

        new_head(fork, sha("b"))

        assert fork.states()["b", "sm90"] == RunState.AWAITING_APPROVAL
        assert fork.states()["a", "sm90"] == RunState.CANCELLED
        assert len(fork.jobs("prepare")) == 2

    def test_a_push_before_it_is_carried_out_undoes_it(self, fork: Hook, users: Users) -> None:
        delivery = ask(fork, f"/racewatch approve {sha('a')}")
        new_head(fork, sha("b"))

        assert carry_out(fork, users, delivery).startswith("refused: ")

        assert approved(fork) == []

    def test_an_abbreviation_is_of_the_head_that_was_there(self, fork: Hook, users: Users) -> None:
        # A hash that begins alike is made in minutes.
        delivery = ask(fork, "/racewatch approve " + "a" * 7)
        new_head(fork, "a" * 7 + "b" * 33)

        assert "the head moved" in carry_out(fork, users, delivery)

        assert approved(fork) == []

    @pytest.mark.parametrize("draft", [False, True])
    def test_an_abbreviation_of_two_heads_is_none(
        self, hook: Hook, users: Users, draft: bool
    ) -> None:
        hook.deliver("pull_request", pull("opened", sha("a"), draft=draft))
        hook.deliver("pull_request", pull("synchronize", "a" * 7 + "b" * 33, draft=draft, minute=1))

        told = say(hook, users, "/racewatch approve " + "a" * 7)

        assert "more than one head" in told
        assert approved(hook) == []
        say(hook, users, "/racewatch approve " + "a" * 7 + "b" * 33)
        assert approved(hook) == ["a" * 7 + "b" * 33]

    def test_a_closed_pull_request_is_not(self, fork: Hook, users: Users) -> None:
        fork.deliver("pull_request", pull("closed", sha("a"), state="closed", minute=1))

        assert "is closed" in say(fork, users, f"/racewatch approve {sha('a')}")

    def test_an_unknown_one_is_not(self, hook: Hook, users: Users) -> None:
        assert "not known" in say(hook, users, f"/racewatch approve {sha('a')}")

    def test_it_is_approved_before_its_run_is_there(self, hook: Hook, users: Users) -> None:
        hook.deliver("pull_request", pull("opened", sha("a"), draft=True))
        say(hook, users, f"/racewatch approve {sha('a')}")
        assert hook.runs() == []

        hook.deliver("pull_request", pull("ready_for_review", sha("a"), minute=1))

        assert {run.state for run in hook.runs()} == {RunState.QUEUED}

    def test_through_the_api(self, fork: Hook) -> None:
        with fork.database.session() as session:
            done = approve_commit(session, "te", 12, sha("a"), "token ci", "api")

        assert (done.sha, done.new, len(done.runs)) == (sha("a"), True, 2)
        with fork.database.session() as session:
            again = approve_commit(session, "te", 12, sha("a"), "token ci", "api")
        assert (again.new, again.runs) == (False, ())
        assert len(fork.jobs("prepare")) == 2

    def test_through_the_api_is_only_the_head(self, fork: Hook) -> None:
        with (
            pytest.raises(InputError, match="is not the head"),
            fork.database.session() as session,
        ):
            approve_commit(session, "te", 12, sha("b"), "token ci", "api")

    def test_another_pull_requests_run_is_left_waiting(self, fork: Hook, users: Users) -> None:
        fork.deliver("pull_request", pull("opened", sha("b"), number=13))

        say(fork, users, f"/racewatch approve {sha('a')}")

        assert fork.states()["b", "sm90"] == RunState.AWAITING_APPROVAL

    def test_no_run_is_missed_that_is_ordered_meanwhile(self, hook: Hook) -> None:
        hook.deliver("pull_request", pull("opened", sha("a"), draft=True))
        asked = threading.Event()

        def deliver() -> None:
            asked.wait(30)
            hook.deliver("pull_request", pull("ready_for_review", sha("a"), minute=1))

        other = threading.Thread(target=deliver)
        other.start()
        with hook.database.session() as session:
            approve_commit(session, "te", 12, sha("a"), "maria", "api")
            asked.set()
            _until_it_waits(hook.database)
        other.join()

        assert {run.state for run in hook.runs()} == {RunState.QUEUED}


def _until_it_waits(database: Database) -> None:
    deadline = datetime.now(UTC) + timedelta(seconds=60)
    with database.engine.connect() as connection:
        while not connection.exec_driver_sql(
            "SELECT count(*) FROM pg_locks WHERE NOT granted"
        ).scalar():
            assert datetime.now(UTC) < deadline, "the delivery never waited"


class TestRun:
    def test_of_a_fork_it_approves_the_head_that_was_there(self, fork: Hook, users: Users) -> None:
        told = say(fork, users, "/racewatch run")

        assert told.startswith(f"{sha('a')} is approved; 2 runs ordered; ")
        assert approved(fork) == [sha("a")]
        assert {(run.state, run.trusted) for run in fork.runs()} == {(RunState.QUEUED, False)}

    def test_a_push_before_it_is_carried_out_refuses_it(self, fork: Hook, users: Users) -> None:
        delivery = ask(fork, "/racewatch run")
        new_head(fork, sha("b"))

        told = carry_out(fork, users, delivery)

        assert told.startswith(f"refused: the head moved from {sha('a')} to {sha('b')}")
        assert approved(fork) == []
        assert fork.jobs("prepare") == []

    def test_a_push_just_before_the_comment_must_be_named(self, fork: Hook, users: Users) -> None:
        # Its author may have read the head before, and pressed the button a moment too late.
        told = say(fork, users, "/racewatch run", at=datetime.now(UTC) + timedelta(seconds=30))

        assert f"say /racewatch approve {sha('a')}" in told
        assert approved(fork) == []
        assert fork.jobs("prepare") == []

    def test_one_that_is_approved_needs_no_pause(self, fork: Hook, users: Users) -> None:
        say(fork, users, f"/racewatch approve {sha('a')}")

        say(fork, users, "/racewatch run quick", at=datetime.now(UTC))

        assert {run.matrix_name for run in fork.runs(RunState.QUEUED)} == {"after-fix", "quick"}

    def test_another_matrix(self, fork: Hook, users: Users) -> None:
        told = say(fork, users, "/racewatch run quick")

        assert told.endswith(f"pull/12 at {sha('a')[:12]}, quick: 2 runs ordered")
        assert {run.matrix_name for run in fork.runs(RunState.QUEUED)} == {"after-fix", "quick"}

    @pytest.mark.parametrize("name", ["nope", "../quick", "/etc/passwd", "quick.toml", "own.toml"])
    def test_only_a_matrix_that_is_known_by_name(
        self, fork: Hook, users: Users, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "own.toml").write_text('[[cells]]\nvariant = "pr-666"\n')
        monkeypatch.chdir(tmp_path)

        told = say(fork, users, f"/racewatch run {name}")

        assert told.startswith("refused: no matrix ")
        assert approved(fork) == []

    def test_a_draft_is_run_when_asked_for(self, hook: Hook, users: Users) -> None:
        hook.deliver("pull_request", pull("opened", sha("a"), draft=True))

        say(hook, users, "/racewatch run")

        assert {run.state for run in hook.runs()} == {RunState.QUEUED}

    def test_one_of_the_own_repository_needs_no_approval(self, hook: Hook, users: Users) -> None:
        hook.deliver("pull_request", pull("opened", sha("a"), fork=False, draft=True))

        say(hook, users, "/racewatch run", at=datetime.now(UTC))

        assert {(run.state, run.trusted) for run in hook.runs()} == {(RunState.QUEUED, True)}
        assert approved(hook) == []

    def test_a_run_that_is_complete_is_not_repeated(self, hook: Hook, users: Users) -> None:
        hook.deliver("pull_request", pull("opened", sha("a"), fork=False))
        with hook.database.session() as session:
            for run in session.exec(select(Run)):
                run.state = RunState.COMPLETE

        assert "nothing new" in say(hook, users, "/racewatch run")

        assert len(hook.runs()) == 2

    def test_a_closed_pull_request_is_not_run(self, fork: Hook, users: Users) -> None:
        fork.deliver("pull_request", pull("closed", sha("a"), state="closed", minute=1))

        assert "is closed" in say(fork, users, "/racewatch run")
        assert approved(fork) == []

    def test_one_that_only_a_poll_has_seen_counts_as_a_forks(
        self, hook: Hook, users: Users
    ) -> None:
        with hook.database.session() as session:
            effects.saw(session, "te", "pull/12", sha("a"))

        say(hook, users, "/racewatch run")

        assert approved(hook) == [sha("a")]
        assert {(run.state, run.trusted) for run in hook.runs()} == {(RunState.QUEUED, False)}

    def test_an_unknown_one_is_refused(self, hook: Hook, users: Users) -> None:
        assert "not known here yet" in say(hook, users, "/racewatch run")
        assert hook.runs() == []

    def test_one_that_became_known_only_afterwards_is_refused(
        self, hook: Hook, users: Users
    ) -> None:
        delivery = ask(hook, "/racewatch run")
        hook.deliver("pull_request", pull("opened", sha("a")))

        assert "not known here yet" in carry_out(hook, users, delivery)
        assert approved(hook) == []


class TestCancel:
    def test_it_ends_the_pull_requests_runs_and_no_others(self, fork: Hook, users: Users) -> None:
        say(fork, users, "/racewatch run")
        fork.deliver("pull_request", pull("opened", sha("b"), number=13))
        fork.deliver("push", push(sha("c")))

        say(fork, users, "/racewatch cancel")

        states = fork.states()
        assert states["a", "sm90"] == states["a", "sm100"] == RunState.CANCELLED
        assert states["b", "sm90"] == RunState.AWAITING_APPROVAL
        assert states["c", "sm90"] == RunState.QUEUED
        assert {run.reason for run in fork.runs(RunState.CANCELLED)} == {"cancelled by maria"}

    def test_several_commands_are_carried_out_in_order(self, fork: Hook, users: Users) -> None:
        told = say(fork, users, "/racewatch cancel\n/racewatch fly\n/racewatch run quick")

        assert [part.partition(" ")[0] for part in told.split("; ")][:1] == ["2"]
        assert "unknown command 'fly'" in told
        assert {run.matrix_name for run in fork.runs(RunState.QUEUED)} == {"quick"}


class TestNeedsApproval:
    def test_of_a_fork_until_it_is_approved(self, fork: Hook) -> None:
        with fork.database.session() as session:
            assert pulls.needs_approval(session, "te", 12, sha("a"))
            approve_commit(session, "te", 12, sha("a"), "maria", "api")
            assert not pulls.needs_approval(session, "te", 12, sha("a"))
            assert pulls.needs_approval(session, "te", 12, sha("b"))

    def test_of_what_is_unknown(self, hook: Hook) -> None:
        with hook.database.session() as session:
            assert pulls.needs_approval(session, "te", 12, sha("a"))

    def test_not_of_the_own_repository(self, hook: Hook) -> None:
        hook.deliver("pull_request", pull("opened", sha("a"), fork=False))

        with hook.database.session() as session:
            assert not pulls.needs_approval(session, "te", 12, sha("a"))


def test_a_pull_request_that_turns_out_to_be_no_forks_begins(hook: Hook) -> None:
    with hook.database.session() as session:
        tracked = hook.settings.subject("te")
        effects.pull_seen(session, tracked, 12, sha("a"), datetime.now(UTC))
        assert session.get_one(Pull, ("te", 12)).fork
        assert session.get_one(Head, ("te", "pull/12")).sha == sha("a")
    assert {run.state for run in hook.runs()} == {RunState.AWAITING_APPROVAL}

    hook.deliver("pull_request", pull("opened", sha("a"), fork=False))

    assert {(run.state, run.trusted) for run in hook.runs()} == {(RunState.QUEUED, True)}
    assert len(hook.runs()) == 2
