"""Bisections that start by themselves when a branch's cell turns to regressed."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import col, select

from runner.errors import InputError
from service import bisection
from service.database import Database
from service.finished import tell_changes
from service.settings import ServiceSettings
from service.tables import Bisection, BisectionState, Origin, Run, RunState
from service.tables.columns import now
from tests.service.stories import ALONE, BASE, CLEAN, HEAD, RACY, STOCK, run_of

OLDER, NEWER = "c" * 40, "d" * 40


@pytest.fixture
def settings(tmp_path: Path) -> ServiceSettings:
    """TE's regressions are bisected."""
    return configured(tmp_path, "bisect = true\nbisect_hours = 2")


def configured(folder: Path, lines: str) -> ServiceSettings:
    path = folder / "racewatch.toml"
    path.write_text(f"[subjects.te]\n{lines}\n")
    return ServiceSettings(database_url="", config=path)


class Branch:
    """Runs of a branch, an hour apart."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.hours = -40

    def measured(self, counts: Any, sha: str, **columns: Any) -> Run:
        self.hours += 1
        at = now() + timedelta(hours=self.hours)
        asked = {"pull": None, "origin": Origin.PUSH, "created_at": at, **columns}
        with self.db.session() as session:
            return run_of(session, counts, sha, **asked)


@pytest.fixture
def branch(db: Database) -> Branch:
    return Branch(db)


def started(db: Database) -> list[Bisection]:
    with db.session() as session:
        return list(session.exec(select(Bisection).order_by(col(Bisection.cell_name))))


def test_a_regression_starts_one_between_the_two_commits(
    db: Database, branch: Branch, settings: ServiceSettings
) -> None:
    branch.measured(CLEAN, BASE)
    run = branch.measured(RACY, HEAD)
    tell_changes(db, settings)

    (found,) = started(db)
    assert (found.good, found.bad) == (BASE, HEAD)
    assert (found.cell_name, found.matrix_name, found.queue) == (STOCK, "issue-3863", "sm90")
    assert (found.state, found.budget_s) == (BisectionState.QUEUED, 7200)
    assert (found.cause_id, found.requested_by) == (run.id, "main regressed")
    assert bisection.cell_of(found).name == STOCK


def test_it_is_off_unless_it_is_configured(db: Database, branch: Branch, tmp_path: Path) -> None:
    branch.measured(CLEAN, BASE)
    branch.measured(RACY, HEAD)
    tell_changes(db, configured(tmp_path, "poll_minutes = 5"))
    assert started(db) == []


def test_each_cell_has_its_own(db: Database, branch: Branch, settings: ServiceSettings) -> None:
    branch.measured(CLEAN, BASE)
    branch.measured({**RACY, ALONE: (90, 100)}, HEAD)
    tell_changes(db, settings)
    assert [each.cell_name for each in started(db)] == [ALONE, STOCK]


def test_a_change_starts_one_once_whoever_tells_of_it(
    db: Database, branch: Branch, settings: ServiceSettings
) -> None:
    branch.measured(CLEAN, BASE)
    run = branch.measured(RACY, HEAD)
    again = branch.measured(RACY, HEAD)  # the same commit measured once more
    for _ in range(2):
        threads = [threading.Thread(target=tell_changes, args=(db, settings)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        with db.session() as session:
            for one in (run, again):
                stored = session.get_one(Run, one.id)
                stored.told = ""
                session.add(stored)
    tell_changes(db, settings)
    assert len(started(db)) == 1


def test_what_stays_as_bad_as_it_was_starts_none(
    db: Database, branch: Branch, settings: ServiceSettings
) -> None:
    branch.measured(CLEAN, BASE)
    branch.measured(RACY, HEAD)
    branch.measured(RACY, NEWER)
    tell_changes(db, settings)
    assert [each.bad for each in started(db)] == [HEAD]


def test_a_commit_that_shares_its_build_starts_none_of_its_own(
    db: Database, branch: Branch, settings: ServiceSettings
) -> None:
    branch.measured(CLEAN, BASE)
    branch.measured(RACY, HEAD)
    branch.measured(RACY, NEWER, builds_of=HEAD)  # it touches the docs only
    tell_changes(db, settings)
    assert [each.bad for each in started(db)] == [HEAD]


def test_the_good_end_is_the_last_commit_that_was_measured(
    db: Database, branch: Branch, settings: ServiceSettings
) -> None:
    branch.measured(CLEAN, OLDER)
    branch.measured(None, BASE)  # it does not build, say
    branch.measured(RACY, HEAD)
    tell_changes(db, settings)
    assert [(each.good, each.bad) for each in started(db)] == [(OLDER, HEAD)]


@pytest.mark.parametrize(
    "columns",
    [
        {"pull": 12, "origin": Origin.PULL_REQUEST},
        {"origin": Origin.MANUAL},
        {"state": RunState.RUNNING},
        {"ref": "another"},
    ],
    ids=["a pull request's", "by hand", "not complete", "another branch's"],
)
def test_other_runs_start_none(
    db: Database, branch: Branch, settings: ServiceSettings, columns: dict[str, Any]
) -> None:
    branch.measured(CLEAN, BASE)
    branch.measured(RACY, HEAD, **columns)
    tell_changes(db, settings)
    assert started(db) == []


def test_what_improves_starts_none(db: Database, branch: Branch, settings: ServiceSettings) -> None:
    branch.measured(RACY, BASE)
    branch.measured(CLEAN, HEAD)
    tell_changes(db, settings)
    assert started(db) == []


def test_a_time_that_is_none_is_refused(tmp_path: Path) -> None:
    settings = configured(tmp_path, "bisect = true\nbisect_hours = 0")
    with pytest.raises(InputError, match="bisect_hours"):
        settings.subjects  # noqa: B018
