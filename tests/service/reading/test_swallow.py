"""The second rate: trials with another thread's work in a capture window."""

from __future__ import annotations

import pytest

from runner.statistics.counts import Counts
from runner.statistics.verdict import judge_cell
from service.database import Database
from service.reading import commits, compare, grid, runs, swallowed, trend, trials
from service.reading.changes import Of
from service.reading.compare import CompareFilter
from service.reading.grid import CLEAN_BELOW, GridFilter
from service.reading.rate import NO_COUNTS, Mark, Watch, mark_of_swallow, rate_of
from service.reading.trend import TrendFilter
from service.reading.trials import TrialFilter
from tests.service.reading.showcase import Showcase

Shown = tuple[Database, Showcase]
STOCK = "stock, background"
HELD = "softmax ffi13, background, hold 20 ms"
UNWATCHED = "softmax stock, background"


def test_it_is_judged_as_failures_are_and_has_words_of_its_own() -> None:
    passes = (10, *NO_COUNTS[1:])
    found = rate_of(passes, CLEAN_BELOW, watch=Watch(8, 3, 3))
    assert (found.k, found.n, found.mark) == (0, 10, Mark.UNDERSAMPLED)
    assert found.swallow is not None
    assert (found.swallow.k, found.swallow.n, found.swallow.passes) == (3, 8, 3)
    assert (found.swallow.mark, found.swallow.label) == (Mark.SWALLOWS, "swallows")
    assert (found.swallow.low, found.swallow.high) == judge_cell(
        Counts(3, 8), None, CLEAN_BELOW
    ).interval
    clean = rate_of(passes, CLEAN_BELOW, watch=Watch(80, 0, 0)).swallow
    assert clean is not None
    assert (clean.mark, clean.label) == (Mark.CLEAN, "clean below 5 %")


def test_there_is_none_without_a_watched_trial() -> None:
    assert rate_of((10, *NO_COUNTS[1:]), CLEAN_BELOW).swallow is None


@pytest.mark.parametrize(
    ("base", "head", "label"),
    [
        (Counts(0, 40), Counts(20, 40), "newly swallowing"),
        (Counts(5, 40), Counts(38, 40), "worse"),
        (Counts(40, 40), Counts(40, 40), "no worse, the base already swallows"),
    ],
)
def test_against_a_base_it_never_speaks_of_failing(base: Counts, head: Counts, label: str) -> None:
    assert mark_of_swallow(judge_cell(head, base, CLEAN_BELOW))[1] == label


def test_a_run_has_both_rates_and_who_was_swallowed(shown: Shown) -> None:
    database, made = shown
    with database.session() as session:
        found = runs.read(session, made.runs["race"])
    assert found is not None
    assert found.watched
    rows = {row.name: row.rate for row in found.rows}
    held = rows[HELD].swallow
    assert held is not None
    assert (held.k, held.n, held.passes) == (4, 6, 2), "two passed with foreign work"
    assert rows[UNWATCHED].swallow is None
    launches, copies = found.swallowed
    assert (launches.api, launches.thread) == ("cuLaunchKernelEx", "background")
    assert (copies.count, copies.trials) == (3 * 20, 20)
    assert launches.trials == sum(rate.swallow.k for rate in rows.values() if rate.swallow)


def test_a_run_that_nobody_watched_says_nothing_of_it(shown: Shown) -> None:
    database, made = shown
    with database.session() as session:
        found = runs.read(session, made.runs["emulated"])
        assert swallowed.of_run(session, made.runs["emulated"]) == ()
    assert found is not None
    assert not found.watched


def of_swallow(shown: Shown, name: str) -> trend.TrendPage:
    database, made = shown
    with database.session() as session:
        asked = TrendFilter(made.cells[name], subject="te", of=Of.SWALLOW)
        found = trend.read(session, asked)
    assert found is not None
    return found


def test_its_trend_has_its_own_points_and_changes(shown: Shown) -> None:
    found = of_swallow(shown, STOCK)
    assert [point.commit.position for point in found.points] == [0, 2, 3, 4, 6, 8, 9, 10, 11]
    race = found.points[3]
    assert (race.shown.k, race.shown.n, race.shown.mark) == (10, 10, Mark.SWALLOWS)
    fall, rise = found.changes
    assert (rise.commit.sha, rise.change.before.text) == (shown[1].shas["race"], "0 of 20")
    assert not fall.change.rises
    held = of_swallow(shown, HELD)
    assert [(point.shown.k, point.rate.k) for point in held.points[:4]] == [
        (3, 0), (3, 0), (3, 0), (4, 2),
    ], "the one rate is there before the other"  # fmt: skip


def test_a_cell_that_was_never_watched_has_no_such_trend(shown: Shown) -> None:
    found = of_swallow(shown, UNWATCHED)
    assert (found.points, found.watched, found.changes) == ((), False, ())
    database, made = shown
    with database.session() as session:
        failures = trend.read(session, TrendFilter(made.cells[UNWATCHED], subject="te"))
    assert failures is not None
    assert failures.points
    assert not failures.watched


def test_a_commit_tells_which_of_the_rates_it_changed(shown: Shown) -> None:
    database, made = shown
    with database.session() as session:
        found = commits.read(session, "te", made.shas["race"], CLEAN_BELOW)
    assert found is not None
    changed = {(one.of, one.cell.id) for one in found.changes}
    stock = made.cells[STOCK]
    assert {(Of.FAILURE, stock), (Of.SWALLOW, stock)} <= changed
    assert found.measured[0].watched


def test_two_variants_are_compared_in_both_rates(shown: Shown) -> None:
    database, made = shown
    race = made.shas["race"]
    with database.session() as session:
        found = compare.read(session, CompareFilter("te", race, race, "stock", "owned-stream"))
    first = found.rows[0].swallow
    assert first is not None
    assert first.a is not None
    assert first.b is not None
    assert ((first.a.k, first.a.n), (first.b.k, first.b.n)) == ((10, 10), (0, 10))
    assert (first.direction, first.mark) == ("lower", Mark.UNDERSAMPLED)
    alone = next(row for row in found.watched if row.cell.short == "alone")
    assert alone.swallow is not None
    assert (alone.swallow.b, alone.swallow.label) == (None, "not compared")


def test_one_build_is_compared_with_itself_in_neither(shown: Shown) -> None:
    database, made = shown
    with database.session() as session:
        asked = CompareFilter("te", made.shas["race"], made.shas["same"])
        found = compare.read(session, asked)
    assert {row.swallow.label for row in found.watched if row.swallow} == {"the same build"}


def test_the_grid_marks_what_passes_and_swallows_and_nothing_else(shown: Shown) -> None:
    database, made = shown
    with database.session() as session:
        found = grid.read(session, GridFilter(subject="te"))
    marked = {
        (row.sha, column.id)
        for row in found.rows
        for column, cell in zip(found.columns, row.cells, strict=True)
        if cell.told.swallows
    }
    held = made.cells[HELD]
    assert {cell for _, cell in marked} == {held}
    assert (made.shas["before"], held) in marked
    assert (made.shas["race"], held) not in marked, "that it fails is told already"
    row = next(one for one in found.rows if one.sha == made.shas["before"])
    cell = row.cells[[column.id for column in found.columns].index(held)]
    assert "foreign work in 3 of 6" in cell.note


def swallowing_pass(shown: Shown) -> int:
    """A trial that passed with foreign work."""
    database, made = shown
    with database.session() as session:
        run = runs.read(session, made.runs["race"])
        assert run is not None
        measurement = next(row.measurement for row in run.rows if row.name == HELD)
        assert measurement is not None
        asked = TrialFilter("swallow")
        found = trials.read_measurement(session, measurement, asked, CLEAN_BELOW)
    assert found is not None
    assert len(found.trials) == 4, "only those with foreign work"
    assert all(trial.foreign for trial in found.trials)
    return next(trial.id for trial in found.trials if trial.outcome == "pass")


def test_a_trial_tells_what_its_windows_took_in(shown: Shown) -> None:
    database, _ = shown
    identity = swallowing_pass(shown)
    with database.session() as session:
        found = trials.read(session, identity)
    assert found is not None
    assert found.swallow is not None
    assert found.foreign == found.swallow.foreign == sum(one.count for one in found.swallow.calls)
    assert (found.swallow.windows, found.swallow.own) == (6, 18)
    assert found.swallow.first[0].api == "cuLaunchKernelEx"
    assert not any(name == "swallow" for name, _ in found.facts), "it is not told twice"
