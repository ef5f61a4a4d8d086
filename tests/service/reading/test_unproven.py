"""Where control cells of a device say that verdicts mean nothing there."""

from __future__ import annotations

from runner.statistics.control import Proof
from service.database import Database
from service.reading import commits, compare, doubted, grid, runs, signatures, trend
from service.reading.compare import CompareFilter
from service.reading.grid import GridFilter
from service.reading.rate import Mark
from service.reading.runs import RunFilter, RunLine, RunPage
from service.reading.signatures import SignatureFilter
from service.reading.trend import TrendFilter
from tests.service.reading.showcase import Showcase

Shown = tuple[Database, Showcase]


def page(shown: Shown, name: str) -> RunPage:
    database, made = shown
    with database.session() as session:
        found = runs.read(session, made.runs[name])
    assert found is not None
    return found


def line(shown: Shown, name: str) -> RunLine:
    database, made = shown
    with database.session() as session:
        found = runs.read_list(session, RunFilter(subject="te"))
    return next(one for one in found.runs if one.id == made.runs[name])


def test_races_on_a_device_whose_known_good_cell_fails_are_unproven(shown: Shown) -> None:
    rows = {row.name: row for row in page(shown, "doubted").rows}
    stock = rows["stock, background"]
    assert (stock.mark, stock.label, stock.unproven) == (
        Mark.UNPROVEN, "unproven on this device", True,
    )  # fmt: skip
    assert (stock.rate.mark, stock.rate.k, stock.rate.n) == (Mark.UNPROVEN, 10, 10)
    assert "otherwise races: 10 of 10 failed" in stock.detail
    assert rows["stock, alone"].mark is Mark.UNDERSAMPLED, "what is open stays open"


def test_on_a_proven_device_verdicts_stand(shown: Shown) -> None:
    found = page(shown, "race")
    assert found.rows[0].mark is Mark.RACES
    (control,) = found.controls
    assert (control.verdict.proof, control.control.known_bad.text) == (Proof.PROVEN, "6 of 6")
    assert found.control_sha == shown[1].shas["race"]
    assert page(shown, "fix").controls == ()


def test_they_are_unproven_on_every_page(shown: Shown) -> None:
    database, made = shown
    stock, doubted_sha = made.cells["stock, background"], made.shas["doubted"]
    with database.session() as session:
        doubts = doubted.find(session)
        found = grid.read(session, GridFilter(subject="te"), doubts=doubts)
        points = trend.read(session, TrendFilter(stock, subject="te"), doubts=doubts)
        commit = commits.read(session, "te", doubted_sha, 0.05, doubts=doubts)
        asked = CompareFilter("te", made.shas["before"], doubted_sha)
        compared = compare.read(session, asked, doubts)
    column = [one.id for one in found.columns].index(stock)
    cells = {row.sha: row.cells[column].told for row in found.rows}
    assert (cells[doubted_sha].mark, cells[doubted_sha].strength) == (Mark.UNPROVEN, 0)
    assert cells[doubted_sha].text == "10/10"
    assert "unproven on this device, 69.2 to 100 %" in cells[doubted_sha].note
    assert cells[made.shas["race"]].mark is Mark.RACES, "its device was proven"
    assert points is not None
    assert [point.rate.mark for point in points.points if point.commit.sha == doubted_sha] == [
        Mark.UNPROVEN
    ]
    assert commit is not None
    assert commit.measured[0].cells[0].rate.label == "unproven on this device"
    assert compared.rows[0].mark is Mark.UNPROVEN
    assert compared.counted(Mark.REGRESSED) == 0


def test_where_every_device_is_believed_nothing_is_in_doubt(db: Database) -> None:
    with db.session() as session:
        assert doubted.find(session) == {}


def test_a_list_of_runs_counts_them_apart(shown: Shown) -> None:
    assert dict(line(shown, "doubted").marks) == {Mark.UNDERSAMPLED: 7, Mark.UNPROVEN: 4}
    assert dict(line(shown, "race").marks) == {Mark.RACES: 4, Mark.UNDERSAMPLED: 7}


def test_control_trials_are_no_failures_of_a_commit(shown: Shown) -> None:
    database, made = shown
    assert sum(one.count for one in page(shown, "race").failures) == 18 + 1
    with database.session() as session:
        groups = signatures.find(session, SignatureFilter("te", "sm90"))
        columns = grid.read(session, GridFilter(subject="te")).columns
    invalidated = next(one for one in groups if one.outcome == "capture_error")
    assert invalidated.trials == 4 * (9 + 4 + 1), "those of the cells alone"
    assert len(columns) == len(made.cells)
