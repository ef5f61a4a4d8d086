"""Backfill: a branch's past is run in the gaps that it has, and nothing twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlmodel import select

from runner import matrix as matrices
from runner.demo_repo import create
from runner.errors import InputError
from runner.git import open_repository
from runner.result import Commit
from service.database import Database
from service.github.backfill import backfill
from service.tables import Commit as Kept
from service.tables import Origin, Run, RunState
from tests.service.github.deliveries import Hook, push, settings_in

QUICK = matrices.load("quick")


@pytest.fixture
def hook(db: Database, tmp_path: Path) -> Hook:
    return Hook(db, settings_in(tmp_path))


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> list[Commit]:
    """The demo's commits after `before` up to main, newest first."""
    folder = tmp_path_factory.mktemp("demo")
    create(folder / "repository")
    repository = open_repository(str(folder / "repository"), folder / "cache")
    before, main = repository.resolve("before"), repository.resolve("main")
    return repository.first_parent(main, since=before)


def order(hook: Hook, commits: list[Commit], every: int = 1, queues: tuple[str, ...] = ()) -> int:
    with hook.database.session() as session:
        tracked = hook.settings.subject("te")
        return backfill(session, tracked, commits, QUICK, every=every, queues=queues)


def shas(hook: Hook) -> set[str]:
    return {run.head_sha for run in hook.runs()}


def test_every_commit_is_run_on_every_queue(hook: Hook, history: list[Commit]) -> None:
    assert order(hook, history) == 2 * len(history)

    assert {(run.head_sha, run.queue) for run in hook.runs()} == {
        (commit.sha, queue) for commit in history for queue in ("sm90", "sm100")
    }
    for run in hook.runs():
        assert (run.origin, run.priority, run.state) == (Origin.BACKFILL, 10, RunState.QUEUED)
        assert run.matrix_name == "quick"
    assert len(hook.jobs("prepare")) == 2 * len(history)


def test_every_third_and_both_ends(hook: Hook, history: list[Commit]) -> None:
    commits = history[:8]

    assert order(hook, commits, every=3, queues=("sm90",)) == 4

    assert shas(hook) == {commits[n].sha for n in (0, 3, 6, 7)}


def test_a_step_longer_than_the_range_leaves_its_ends(hook: Hook, history: list[Commit]) -> None:
    order(hook, history, every=1000, queues=("sm90",))

    assert shas(hook) == {history[0].sha, history[-1].sha}


def test_a_second_time_fills_only_the_gaps(hook: Hook, history: list[Commit]) -> None:
    order(hook, history, every=2, queues=("sm90",))
    coarse = shas(hook)

    assert order(hook, history, queues=("sm90",)) == len(history) - len(coarse)
    assert order(hook, history, queues=("sm90",)) == 0

    assert len(hook.runs()) == len(history)


@pytest.mark.parametrize(
    ("state", "again"),
    [
        (RunState.COMPLETE, 0),
        (RunState.RUNNING, 0),
        (RunState.FAILED, 1),
        (RunState.CANCELLED, 1),
    ],
)
def test_what_ended_without_an_answer_is_run_again(
    hook: Hook, history: list[Commit], state: RunState, again: int
) -> None:
    commits = history[:1]
    order(hook, commits, queues=("sm90",))
    with hook.database.session() as session:
        session.exec(select(Run)).one().state = state

    assert order(hook, commits, queues=("sm90",)) == again


def test_what_a_push_ran_is_not_run_again(hook: Hook, history: list[Commit]) -> None:
    hook.deliver("push", push(history[0].sha))

    assert order(hook, history[:2], queues=("sm90",)) == 1


def test_the_commits_are_kept_as_git_describes_them(hook: Hook, history: list[Commit]) -> None:
    order(hook, history[:1], queues=("sm90",))

    with hook.database.session() as session:
        kept = session.exec(select(Kept)).one()
        assert (kept.sha, kept.title) == (history[0].sha, history[0].title)
        assert kept.date is not None


def test_no_commits_say_what_may_be_wrong(hook: Hook) -> None:
    with pytest.raises(InputError, match="turned around"):
        order(hook, [])


def test_a_step_of_nothing_is_refused(hook: Hook, history: list[Commit]) -> None:
    with pytest.raises(InputError, match="must be 1 or more, got 0"):
        order(hook, history, every=0)
