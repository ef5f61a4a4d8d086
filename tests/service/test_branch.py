"""A branch's places: counted from the root, rewritten where the branch was."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event, text
from sqlmodel import col, select

from runner.result import Commit
from service.branch import record_branch
from service.database import Database
from service.tables import BranchCommit
from service.tables import Commit as Kept


def commits(letters: str) -> list[Commit]:
    """A history, the root first: a commit for each letter."""
    return [
        Commit(
            sha=f"{ord(letter):040x}",
            ref="main",
            title=f"Change {letter}",
            author="Ada",
            date="2026-11-30T12:00:00+00:00",
        )
        for letter in letters
    ]


def record(db: Database, letters: str, branch: str = "main", subject: str = "te") -> int:
    with db.session() as session:
        return record_branch(session, subject, branch, commits(letters))


def places(db: Database, branch: str = "main", subject: str = "te") -> str:
    """The letters of a branch's commits in the order of their places, which are 0, 1, 2, ..."""
    with db.session() as session:
        found = session.exec(
            select(BranchCommit.position, Kept.sha)
            .join(Kept, col(Kept.id) == col(BranchCommit.commit_id))
            .where(BranchCommit.subject == subject, BranchCommit.branch == branch)
            .order_by(col(BranchCommit.position))
        ).all()
    assert [position for position, _ in found] == list(range(len(found)))
    return "".join(chr(int(sha, 16)) for _, sha in found)


def test_the_root_is_at_zero(db: Database) -> None:
    assert record(db, "abc") == 3

    assert places(db) == "abc"


def test_only_what_is_new_is_written(db: Database) -> None:
    record(db, "abc")

    assert record(db, "abc") == 0
    assert record(db, "abcde") == 2

    assert places(db) == "abcde"


@pytest.mark.parametrize("after", ["abx", "abxyz", "ab", "xyz", "a", "xabc", ""])
def test_a_rewritten_branch_is_as_it_is_now(db: Database, after: str) -> None:
    record(db, "abcd")

    record(db, after)

    assert places(db) == after


def test_a_commit_that_a_branch_lost_is_still_known(db: Database) -> None:
    record(db, "abc")

    record(db, "ax")

    with db.session() as session:
        assert len(session.exec(select(Kept)).all()) == 4


def test_branches_and_subjects_have_places_of_their_own(db: Database) -> None:
    record(db, "abcd")
    record(db, "abx", branch="release_v2")
    record(db, "a", subject="demo")

    record(db, "abcde")

    assert places(db) == "abcde"
    assert places(db, "release_v2") == "abx"
    assert places(db, subject="demo") == "a"


def test_a_commit_is_described_once_something_is_known_of_it(db: Database) -> None:
    with db.session() as session:
        session.add(Kept(subject="te", sha=commits("a")[0].sha, ref="pull/12"))

    record(db, "ab")

    with db.session() as session:
        kept = session.exec(select(Kept).where(Kept.sha == commits("a")[0].sha)).one()
        assert (kept.title, kept.author, kept.ref) == ("Change a", "Ada", "pull/12")
        assert kept.date is not None


def test_a_title_that_is_no_text_is_kept_as_far_as_it_is(db: Database) -> None:
    # As git's output is read: bytes that are no UTF-8 become lone surrogates.
    odd = Commit("f" * 40, "main", b"caf\xe9".decode("utf-8", "surrogateescape"), "Ada", "")

    with db.session() as session:
        record_branch(session, "te", "main", [odd])

    with db.session() as session:
        assert session.exec(select(Kept.title)).one() == "caf\ufffd"


def test_five_thousand_commits_take_few_statements(db: Database) -> None:
    history = [Commit(f"{n:040x}", "main", f"Change {n}", "Ada", "") for n in range(5000)]
    asked: list[str] = []
    event.listen(db.engine, "before_cursor_execute", lambda *what: asked.append(what[2]))

    with db.session() as session:
        record_branch(session, "te", "main", history)
    with db.session() as session:
        record_branch(session, "te", "main", [*history, *commits("x")])

    assert len(asked) < 20, "one by one it would be five thousand at least"
    with db.session() as session:
        assert len(session.exec(select(BranchCommit)).all()) == 5001


def test_two_at_a_time_take_turns(db: Database) -> None:
    with ThreadPoolExecutor(1) as other:
        with db.session() as session:
            record_branch(session, "te", "main", commits("abc"))
            second = other.submit(record, db, "abcd")
            _until_someone_waits(db)

        assert second.result(60) == 1

    assert places(db) == "abcd"


def _until_someone_waits(db: Database) -> None:
    deadline = time.monotonic() + 60
    with db.engine.connect() as connection:
        waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        while not connection.execute(waiting).scalar():
            assert time.monotonic() < deadline, "nobody waits for a lock"


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    histories=st.lists(
        st.permutations("abcdef").flatmap(
            lambda order: st.integers(0, 6).map(lambda n: "".join(order)[:n])
        ),
        max_size=5,
    )
)
def test_whatever_was_kept_before_the_last_word_counts(db: Database, histories: list[str]) -> None:
    for history in [*histories, "abc"]:
        record(db, history)
        assert places(db) == history
