"""The trend of one cell: its points, its changes, and what changed around it."""

from __future__ import annotations

import pytest
from sqlmodel import select

from service import rows
from service.database import Database
from service.reading import badge, trend
from service.reading.environments import environment_name
from service.reading.rate import Mark
from service.reading.trend import TrendFilter, TrendPage
from service.tables import Build, Cell, Run
from tests.service.reading.showcase import Showcase
from tests.service.reading.test_changes import DEVICE, OTHER, measured

Shown = tuple[Database, Showcase]


def read(shown: Shown, name: str = "stock, background", **asked: object) -> TrendPage:
    database, made = shown
    with database.session() as session:
        wanted = TrendFilter(made.cells[name], **asked)  # type: ignore[arg-type]
        found = trend.read(session, wanted)
    assert found is not None
    return found


def test_points_are_what_each_build_counted_oldest_first(shown: Shown) -> None:
    found = read(shown, subject="te")
    assert [point.commit.position for point in found.points] == [0, 2, 3, 4, 6, 8, 9, 10, 11]
    race = found.points[3]
    assert (race.rate.k, race.rate.n, race.shared) == (10, 10, 1)
    assert found.latest is not None
    assert found.latest.commit.position == 11


def test_what_changed_around_it_is_told_where_it_did(shown: Shown) -> None:
    found = read(shown, subject="te")
    changed = {point.commit.position: point.changed for point in found.points if point.changed}
    assert changed == {2: "driver 570.86.15 to 580.159.04"}


def test_its_changes_have_their_commits(shown: Shown) -> None:
    found = read(shown, subject="te")
    fall, rise = found.changes
    assert (rise.commit.sha, rise.change.rises) == (shown[1].shas["race"], True)
    assert [commit.position for commit in rise.suspects] == [4]
    assert (rise.count, rise.more_suspects) == (1, 0)
    assert fall.commit.sha == shown[1].shas["fix"]
    assert read(shown, "stock, alone", subject="te").changes == ()


def test_commits_that_do_not_build_are_among_it(shown: Shown) -> None:
    ((commit, build),) = read(shown, subject="te").unbuilt
    assert commit.position == 7
    with shown[0].session() as session:
        assert session.get_one(Build, build).outcome == "build_error"


def test_one_environment_alone(shown: Shown) -> None:
    everything = read(shown, subject="te")
    old = everything.choices.environments[-1]
    found = read(shown, subject="te", environment=old.id)
    assert [point.commit.position for point in found.points] == [0]
    assert found.changes == ()


def test_emulated_trials_are_a_trend_of_their_own(shown: Shown) -> None:
    found = read(shown, subject="demo")
    assert found.emulated
    assert {point.environment.emulated for point in found.points} == {True}
    assert not read(shown, subject="te").emulated


def test_it_ends_with_the_command_that_runs_the_newest_again(shown: Shown) -> None:
    command = read(shown, subject="te").command
    assert command is not None
    assert f"--ref {shown[1].shas['head']} " in command.line
    assert "--cell 'stock, background'" in command.line


def test_long_branches_have_pages(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trend, "POINTS", 3)
    with db.session() as session:
        for position in range(8):
            measured(session, position, f"k{position}", 0, 5)
        session.add(Run(subject="te", matrix_name="m", queue="sm90"))
        session.flush()
        cell = session.exec(select(Cell.id)).one() or 0
        first = trend.read(session, TrendFilter(cell, "te"))
        assert first is not None
        assert [point.commit.position for point in first.points] == [5, 6, 7]
        second = trend.read(session, TrendFilter(cell, "te", before=first.older))
        assert second is not None
        assert [point.commit.position for point in second.points] == [2, 3, 4]


def test_what_is_other_is_told_in_words(db: Database) -> None:
    with db.session() as session:
        old = environment_name(rows.environment_row(session, OTHER, "cu13", "2"))
        new = environment_name(rows.environment_row(session, DEVICE, "cu13", "3"))
    assert new.other_than(old) == "driver 570 to 580, harness 2 to 3"
    assert old.other_than(old) == ""


def test_a_badge_is_of_the_newest_measured_commit(shown: Shown) -> None:
    database, made = shown
    with database.session() as session:
        found = badge.read(session, "te", "main", "", made.cells["stock, background, hold 20 ms"])
        usual = badge.read(session, "te", "main", "sm90", None)
        assert badge.read(session, "te", "nowhere", "", None) is None
        assert badge.read(session, "te", "main", "sm80", None) is None
        assert badge.read(session, "other", "main", "", None) is None
        assert badge.read(session, "te", "main", "", 99_999) is None
    assert found is not None
    assert found.rate is not None
    assert (found.sha, found.rate.k, found.rate.n) == (made.shas["fix"], 0, 6)
    assert usual is not None
    assert usual.cell.full == "norm-act-gemm: stock, background"
    assert usual.rate is not None
    assert usual.rate.mark is Mark.UNDERSAMPLED
