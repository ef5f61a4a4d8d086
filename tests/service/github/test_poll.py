"""The poll: what git lists does what deliveries would have done, once, and nothing is lost."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from sqlmodel import select

from runner.errors import InfrastructureError, InputError
from service.database import Database
from service.github.effects import watched_branches
from service.github.poll import ls_remote, poll
from service.settings import Tracked
from service.tables import Head, Origin, Pull, Run, RunState
from service.tables.columns import now
from tests.service.github.deliveries import Hook, pull, push, settings_in, sha

IDENTITY = {
    f"GIT_{role}_{field}": value
    for role in ("AUTHOR", "COMMITTER")
    for field, value in (("NAME", "Ada"), ("EMAIL", "ada@example.org"))
}


@dataclass
class Upstream:
    """A git repository that others push to."""

    folder: Path

    def git(self, *arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", self.folder, *arguments],
            env={**os.environ, **IDENTITY},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()

    def commit(self, title: str) -> str:
        self.git("commit", "--quiet", "--allow-empty", "-m", title)
        return self.git("rev-parse", "HEAD")

    def pull(self, number: int, title: str) -> str:
        """A commit that is pushed to a pull request, new or not."""
        main = self.git("rev-parse", "main")
        made = self.git("commit-tree", "main^{tree}", "-p", main, "-m", title)
        self.git("update-ref", f"refs/pull/{number}/head", made)
        self.git("update-ref", f"refs/pull/{number}/merge", made)
        return made


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    folder = tmp_path / "upstream"
    folder.mkdir()
    made = Upstream(folder)
    made.git("init", "--quiet", "--initial-branch=main")
    made.commit("First")
    return made


@pytest.fixture
def hook(db: Database, tmp_path: Path, upstream: Upstream) -> Hook:
    return Hook(db, settings_in(tmp_path, str(upstream.folder)))


def look(hook: Hook) -> list[str]:
    return poll(hook.database, hook.settings, "te")


def heads(hook: Hook) -> dict[str, str]:
    with hook.database.session() as session:
        return dict(session.exec(select(Head.ref, Head.sha)).all())


def forget_runs(hook: Hook) -> None:
    """What was run so far is of no interest to the test."""
    with hook.database.engine.begin() as connection:
        connection.exec_driver_sql("TRUNCATE runs, run_cells CASCADE")


class TestTheFirstLook:
    def test_runs_watched_branches_and_no_old_pull_request(
        self, hook: Hook, upstream: Upstream
    ) -> None:
        main = upstream.git("rev-parse", "main")
        upstream.git("branch", "release_v2.9")
        upstream.git("branch", "feature")
        upstream.git("tag", "v2.8")
        for number in range(1, 40):
            upstream.pull(number, f"Old {number}")

        look(hook)

        runs = {(run.ref, run.queue) for run in hook.runs()}
        assert {ref for ref, _ in runs} <= {"main", "release_v2.9"}
        assert {queue for _, queue in runs} == {"sm90", "sm100"}
        assert {run.head_sha for run in hook.runs()} == {main}
        assert len(hook.runs()) == 2  # both branches are at one commit

    def test_learns_every_head(self, hook: Hook, upstream: Upstream) -> None:
        first = upstream.git("rev-parse", "main")
        upstream.git("branch", "feature")
        upstream.git("tag", "v2.8")
        theirs = upstream.pull(12, "Theirs")

        look(hook)

        assert heads(hook) == {
            "HEAD": first,
            "main": first,
            "feature": first,
            "tags/v2.8": first,
            "pull/12": theirs,
        }

    def test_is_the_first_even_after_a_delivery(self, hook: Hook, upstream: Upstream) -> None:
        upstream.pull(3, "Old")
        hook.deliver("pull_request", pull("opened", upstream.pull(12, "New"), fork=False))
        forget_runs(hook)

        look(hook)

        assert {run.ref for run in hook.runs()} == {"main"}

    def test_of_an_empty_repository(self, hook: Hook, upstream: Upstream) -> None:
        upstream.git("update-ref", "-d", "HEAD")

        assert look(hook) == []

        assert heads(hook) == {"HEAD": ""}
        main = upstream.commit("First after all")
        look(hook)
        assert {run.head_sha for run in hook.runs()} == {main}


class TestWhatMoved:
    @pytest.fixture(autouse=True)
    def known(self, hook: Hook, upstream: Upstream) -> None:
        """Everything that was there before was seen once."""
        upstream.git("branch", "feature")
        upstream.pull(12, "Before")
        look(hook)
        forget_runs(hook)

    def test_nothing_did(self, hook: Hook) -> None:
        before = heads(hook)

        assert look(hook) == []

        assert hook.runs() == []
        assert heads(hook) == before

    def test_a_watched_branch_is_run_like_a_push(self, hook: Hook, upstream: Upstream) -> None:
        upstream.commit("Second")
        third = upstream.commit("Third")

        (told,) = look(hook)

        assert told == f"main at {third[:12]}, quick: 2 runs ordered"
        for run in hook.runs():
            assert (run.origin, run.head_sha, run.ref) == (Origin.PUSH, third, "main")
            assert (run.state, run.trusted) == (RunState.QUEUED, True)
        assert len(hook.jobs("prepare")) == 4  # two of the first look
        assert look(hook) == []

    def test_another_branch_is_only_noted(self, hook: Hook, upstream: Upstream) -> None:
        upstream.git("checkout", "--quiet", "feature")
        second = upstream.commit("Second")

        assert look(hook) == []

        assert hook.runs() == []
        assert heads(hook)["feature"] == second

    def test_a_new_release_branch_is_run(self, hook: Hook, upstream: Upstream) -> None:
        upstream.git("checkout", "--quiet", "-b", "release_v3.0")
        made = upstream.commit("Release")

        look(hook)

        assert {(run.ref, run.head_sha) for run in hook.runs()} == {("release_v3.0", made)}

    def test_an_annotated_tag_is_run_as_its_commit(self, hook: Hook, upstream: Upstream) -> None:
        commit = upstream.git("rev-parse", "main")
        upstream.git("tag", "-a", "v2.9", "-m", "Release")
        upstream.git("tag", "nightly")

        look(hook)

        assert {(run.ref, run.head_sha) for run in hook.runs()} == {("tags/v2.9", commit)}
        assert heads(hook)["tags/v2.9"] == commit
        assert look(hook) == []

    def test_a_new_pull_request_awaits_approval(self, hook: Hook, upstream: Upstream) -> None:
        head = upstream.pull(13, "New")
        jobs = hook.jobs("prepare")

        (told,) = look(hook)

        assert told == f"pull/13 at {head[:12]}, after-fix: 2 runs await approval"
        for run in hook.runs():
            assert (run.origin, run.pull, run.head_sha) == (Origin.PULL_REQUEST, 13, head)
            assert (run.state, run.trusted) == (RunState.AWAITING_APPROVAL, False)
        assert hook.jobs("prepare") == jobs

    def test_a_moved_one_cancels_the_older_run(self, hook: Hook, upstream: Upstream) -> None:
        older = upstream.pull(13, "New")
        look(hook)
        newer = upstream.pull(13, "Newer")

        look(hook)

        assert {run.head_sha for run in hook.runs(RunState.CANCELLED)} == {older}
        assert {run.head_sha for run in hook.runs(RunState.AWAITING_APPROVAL)} == {newer}

    def test_one_that_is_known_to_be_no_forks_is_run(self, hook: Hook, upstream: Upstream) -> None:
        head = upstream.pull(13, "New")
        hook.deliver("pull_request", pull("opened", head, number=13, fork=False))
        newer = upstream.pull(13, "Its delivery was missed")

        look(hook)

        assert {(run.head_sha, run.trusted) for run in hook.runs(RunState.QUEUED)} == {
            (newer, True)
        }

    def test_a_forks_draft_is_only_noted(self, hook: Hook, upstream: Upstream) -> None:
        hook.deliver("pull_request", pull("opened", sha("a"), number=13, draft=True))
        newer = upstream.pull(13, "Newer")

        look(hook)

        assert hook.runs() == []
        with hook.database.session() as session:
            assert session.get_one(Pull, ("te", 13)).head_sha == newer

    def test_a_closed_one_that_moves_is_open_again(self, hook: Hook, upstream: Upstream) -> None:
        head = upstream.pull(13, "New")
        hook.deliver("pull_request", pull("closed", head, number=13, state="closed"))
        assert look(hook) == []
        assert hook.runs() == []

        upstream.pull(13, "Reopened with more")
        look(hook)

        assert len(hook.runs(RunState.AWAITING_APPROVAL)) == 2

    def test_what_a_delivery_said_is_known(self, hook: Hook, upstream: Upstream) -> None:
        hook.deliver("push", push(upstream.commit("Second")))
        hook.deliver("pull_request", pull("opened", upstream.pull(13, "New"), number=13))
        before = hook.runs()

        assert look(hook) == []

        assert hook.runs() == before

    def test_what_a_poll_said_is_known_to_a_delivery(self, hook: Hook, upstream: Upstream) -> None:
        second = upstream.commit("Second")
        theirs = upstream.pull(13, "New")
        look(hook)
        before = {run.id for run in hook.runs()}

        assert "nothing new" in hook.effect("push", push(second))
        assert "nothing new" in hook.effect("pull_request", pull("opened", theirs, number=13))

        assert {run.id for run in hook.runs()} == before

    def test_a_deleted_ref_is_dropped(self, hook: Hook, upstream: Upstream) -> None:
        upstream.git("branch", "-D", "feature")

        look(hook)

        assert "feature" not in heads(hook)
        assert {"HEAD", "main", "pull/12"} == heads(hook).keys()

    def test_pull_requests_that_are_not_tracked_are_only_noted(
        self, hook: Hook, upstream: Upstream
    ) -> None:
        hook.settings.subjects["te"].pulls = False
        upstream.pull(13, "New")
        look(hook)
        hook.settings.subjects["te"].pulls = True

        assert look(hook) == []

        assert hook.runs() == []

    def test_what_is_only_named_like_a_pull_request_is_none(
        self, hook: Hook, upstream: Upstream
    ) -> None:
        theirs = heads(hook)["pull/12"]
        upstream.git("branch", "pull/12")
        upstream.git("branch", "refs/pull/99/head")
        for number in ("0012", "0", "99999999999"):
            upstream.git("update-ref", f"refs/pull/{number}/head", "main")

        assert look(hook) == []

        assert heads(hook)["pull/12"] == theirs
        assert "pull/99" not in heads(hook)


class TestWhileGitIsAsked:
    """A listing is old by the time it is used: what was delivered meanwhile is newer."""

    @pytest.fixture(autouse=True)
    def known(self, hook: Hook, upstream: Upstream) -> None:
        upstream.pull(12, "Before")
        look(hook)
        forget_runs(hook)

    def look_while(self, hook: Hook, happens: Callable[[], object]) -> list[str]:
        def list_refs(source: str) -> Mapping[str, str]:
            refs = ls_remote(source)
            happens()
            return refs

        return poll(hook.database, hook.settings, "te", list_refs)

    def test_a_pull_request_does_not_go_back(self, hook: Hook, upstream: Upstream) -> None:
        def happens() -> None:
            hook.deliver("pull_request", pull("synchronize", sha("b"), fork=False, minute=1))

        upstream.pull(12, "Older than what is delivered")

        assert self.look_while(hook, happens) == []

        assert heads(hook)["pull/12"] == sha("b")
        assert {run.head_sha for run in hook.runs(RunState.QUEUED)} == {sha("b")}
        with hook.database.session() as session:
            assert session.get_one(Pull, ("te", 12)).head_sha == sha("b")

    def test_a_branch_does_not_go_back(self, hook: Hook, upstream: Upstream) -> None:
        upstream.commit("Older than what is delivered")

        told = self.look_while(hook, lambda: hook.deliver("push", push(sha("b"))))

        assert told == []
        assert heads(hook)["main"] == sha("b")
        assert {run.head_sha for run in hook.runs()} == {sha("b")}

    def test_a_branch_that_came_meanwhile_stays(self, hook: Hook) -> None:
        self.look_while(hook, lambda: hook.deliver("push", push(sha("b"), "refs/heads/release_v9")))

        assert heads(hook)["release_v9"] == sha("b")

    def test_the_next_look_sees_what_is_true(self, hook: Hook, upstream: Upstream) -> None:
        self.look_while(hook, lambda: hook.deliver("push", push(sha("b"))))

        look(hook)

        assert heads(hook)["main"] == upstream.git("rev-parse", "main")

    def test_two_looks_at_a_time_do_it_once(self, hook: Hook, upstream: Upstream) -> None:
        upstream.commit("Second")
        upstream.pull(13, "New")

        self.look_while(hook, lambda: look(hook))

        assert len(hook.runs()) == 4


class TestFailures:
    def test_of_git_change_nothing(self, hook: Hook, upstream: Upstream, tmp_path: Path) -> None:
        look(hook)
        before = heads(hook)
        upstream.folder.rename(tmp_path / "elsewhere")

        with pytest.raises(InfrastructureError, match=r"upstream: its refs cannot be listed: .+"):
            look(hook)

        assert heads(hook) == before

    def test_a_repository_that_lost_everything_is_not_believed(
        self, hook: Hook, upstream: Upstream
    ) -> None:
        look(hook)
        before = heads(hook)
        upstream.git("update-ref", "-d", "refs/heads/main")

        with pytest.raises(InfrastructureError, match="has no refs at all, but had 1"):
            look(hook)

        assert heads(hook) == before

    def test_half_a_poll_is_none(self, hook: Hook, upstream: Upstream) -> None:
        look(hook)
        before = heads(hook)
        upstream.commit("Second")
        upstream.pull(13, "New")
        hook.settings.subjects["te"].pull_matrix = "no-such-matrix"
        runs = hook.runs()

        with pytest.raises(InputError, match="no-such-matrix"):
            look(hook)

        assert (heads(hook), hook.runs()) == (before, runs)
        hook.settings.subjects["te"].pull_matrix = "quick"
        assert len(look(hook)) == 2

    def test_a_subject_that_is_not_tracked(self, hook: Hook) -> None:
        with pytest.raises(InputError, match="unknown subject"):
            poll(hook.database, hook.settings, "nope")

    def test_a_subject_without_a_repository_has_nothing_to_look_at(
        self, db: Database, tmp_path: Path
    ) -> None:
        settings = settings_in(tmp_path, more="\n[subjects.demo]\nqueues = ['emulated']\n")

        assert poll(db, settings, "demo") == []

    def test_a_branch_may_have_an_end_of_line_of_others_in_its_name(
        self, upstream: Upstream
    ) -> None:
        name = "one\u2028" + "d" * 40
        upstream.git("branch", name)

        found = ls_remote(str(upstream.folder))

        main = upstream.git("rev-parse", "main")
        assert found == {"HEAD": main, "refs/heads/main": main, f"refs/heads/{name}": main}

    def test_a_source_is_never_an_option(self, tmp_path: Path) -> None:
        with pytest.raises(InfrastructureError):
            ls_remote(f"--upload-pack=touch {tmp_path}/done")

        assert not (tmp_path / "done").exists()


def test_a_whole_repository_is_learnt_quickly(hook: Hook) -> None:
    refs = {f"refs/pull/{n}/head": f"{n:040x}" for n in range(1, 4001)}
    refs |= {"HEAD": sha("a"), "refs/heads/main": sha("a")}

    poll(hook.database, hook.settings, "te", lambda source: refs)

    assert len(heads(hook)) == 4002
    with hook.database.session() as session:
        assert {run.ref for run in session.exec(select(Run))} == {"main"}


def test_branches_that_a_pattern_names_are_known_once_they_were_seen(db: Database) -> None:
    tracked = Tracked(name="te", branches=["main", "release_v*"])
    with db.session() as session:
        assert watched_branches(session, tracked) == ["main"]
        for n, ref in enumerate(
            ("release_v2.9", "main", "fix/release_v1", "tags/release_v3", "pull/7", "release_v2.10")
        ):
            seen = now() - timedelta(hours=10 - n)
            session.add(Head(subject="te", ref=ref, sha="a" * 40, seen_at=seen))
        session.add(Head(subject="demo", ref="release_v9", sha="a" * 40))
    with db.session() as session:
        assert watched_branches(session, tracked) == ["main", "release_v2.10", "release_v2.9"]
