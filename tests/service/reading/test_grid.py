"""The grid: which commits and cells it shows, what each says, and how much it asks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC

import pytest
from sqlalchemy import event
from sqlmodel import Session, select

from runner import matrix as matrices
from runner import result
from runner.outcome import Outcome
from runner.run import PreparedBuild
from service import rows
from service.database import Database
from service.reading import grid
from service.reading.grid import LOOSE, Grid, GridCell, GridFilter
from service.reading.rate import Mark
from service.tables import BranchCommit, BuildState, CommitBuild, Measurement, Run, RunState
from tests.service.reading.showcase import Showcase

Shown = tuple[Database, Showcase]


def read(database: Database, **asked: object) -> Grid:
    with database.session() as session:
        return grid.read(session, GridFilter(**asked))  # type: ignore[arg-type]


def cell(found: Grid, sha: str, name: str) -> GridCell:
    """A commit's cell by the column's full name."""
    column = [column.full for column in found.columns].index(name)
    return next(row for row in found.rows if row.sha == sha).cells[column]


STOCK = "norm-act-gemm: stock, background"
ALONE = "norm-act-gemm: stock, alone"


def test_it_begins_with_the_branch_main_newest_first(shown: Shown) -> None:
    database, _ = shown
    found = read(database, subject="te")
    assert found.chosen.branch == "main"
    assert found.chosen.queue == "sm90"
    assert [row.place for row in found.rows] == list(range(11, -1, -1))
    assert found.total == 12


def test_columns_are_grouped_by_program_then_variant(shown: Shown) -> None:
    database, _ = shown
    found = read(database, subject="te")
    assert [(group.name, group.width) for group in found.programs] == [
        ("norm-act-gemm", 6),
        ("softmax-quantize-router", 5),
    ]
    assert [group.name for group in found.variants[:3]] == ["stock", "unregistered", "owned-stream"]
    assert [column.short for column in found.columns[:3]] == [
        "background",
        "background, hold 20 ms",
        "alone",
    ]
    assert not any("reference" in column.full for column in found.columns)


def test_a_race_shows_its_count_its_interval_and_its_outcomes(shown: Shown) -> None:
    database, made = shown
    racing = cell(read(database, subject="te"), made.shas["race"], STOCK)
    assert (racing.mark, racing.text, racing.told.strength) == (Mark.RACES, "10/10", 4)
    assert racing.note == "69.2 to 100 %: 9 capture_error, 1 crash"
    assert racing.measurement is not None


def test_no_failure_is_undersampled_until_the_interval_ends_below_the_bound(shown: Shown) -> None:
    database, made = shown
    found = read(database, subject="te")
    assert cell(found, made.shas["fix"], STOCK).mark is Mark.CLEAN
    few = cell(found, made.shas["fix"], ALONE)
    assert (few.mark, few.text) == (Mark.UNDERSAMPLED, "0/10")
    assert "62 more to be clean" in few.note
    wider = read(database, subject="te", clean_below=0.4)
    assert cell(wider, made.shas["fix"], ALONE).mark is Mark.CLEAN


def test_a_broken_commit_says_so_in_every_cell_and_leads_to_the_log(shown: Shown) -> None:
    database, made = shown
    found = read(database, subject="te")
    broken = next(row for row in found.rows if row.sha == made.shas["broken"])
    assert {one.mark for one in broken.cells} == {Mark.BUILD_ERROR}
    assert all(one.build for one in broken.cells)
    assert "not declared" in broken.cells[0].note


def test_commits_with_one_build_show_its_trials_and_that_they_are_the_same(shown: Shown) -> None:
    database, made = shown
    found = read(database, subject="te")
    first = cell(found, made.shas["race"], STOCK)
    later = cell(found, next(row.sha for row in found.rows if row.place == 5), STOCK)
    assert later.measurement == first.measurement
    assert (first.repeated, later.repeated) == (False, True)


def test_work_going_on_is_marked_and_keeps_what_is_measured(shown: Shown) -> None:
    database, made = shown
    found = read(database, subject="te")
    row = found.rows[0]
    assert (row.sha, row.state, row.run) == (
        made.shas["head"],
        "running",
        str(made.runs["running"]),
    )
    begun = cell(found, made.shas["head"], STOCK)
    assert (begun.text, begun.active) == ("0/2", True)
    assert begun.note.startswith("running, 2 of 6 trials; ")
    waiting = cell(found, made.shas["head"], "norm-act-gemm: owned-stream, background")
    assert (waiting.mark, waiting.run) == (Mark.RUNNING, str(made.runs["running"]))
    assert cell(found, made.shas["head"], "norm-act-gemm: unregistered, background").mark is (
        Mark.NOT_RUN
    )


def test_emulated_trials_are_a_grid_of_their_own(shown: Shown) -> None:
    database, _ = shown
    demo = read(database, subject="demo")
    assert demo.emulated
    assert {one.emulated for one in demo.choices.environments} == {True}
    assert not read(database, subject="te").emulated


def test_it_begins_with_what_is_real(db: Database) -> None:
    with db.session() as session:
        session.add(Run(subject="te", matrix_name="m", queue="sm90"))
        session.flush()
        session.add(Run(subject="demo", matrix_name="m", queue="emulated"))
    found = read(db)
    assert (found.chosen.subject, found.chosen.queue) == ("te", "sm90")
    assert found.choices.subjects == ("demo", "te")


def test_a_queue_that_the_subject_has_not_gives_way_to_one_that_it_has(shown: Shown) -> None:
    database, _ = shown
    found = read(database, subject="demo", queue="sm90", branch="release_v9")
    assert (found.chosen.queue, found.chosen.branch) == ("emulated", "main")
    assert found.choices.notes == (
        "demo has no branch release_v9",
        "no run of demo asked for sm90",
    )


def test_releases_and_heads_of_pull_requests_are_on_no_branch(shown: Shown) -> None:
    database, _ = shown
    found = read(database, subject="te", branch=LOOSE)
    assert [row.ref for row in found.rows] == ["pull/2801", "pull/2800"]
    assert found.rows[0].cells[0].mark is Mark.QUEUED
    assert found.rows[1].cells[0].mark is Mark.AWAITING


def test_each_cell_shows_its_newest_environment_or_the_one_asked_for(shown: Shown) -> None:
    database, _ = shown
    found = read(database, subject="te")
    assert len(found.shown) == 2
    assert "570.86.15" in found.choices.environments[-1].details
    oldest = found.rows[-1].cells[0]
    assert oldest.older
    assert not found.rows[1].cells[0].older
    only = read(database, subject="te", environment=found.choices.environments[-1].id)
    assert [row.place for row in only.rows if any(one.measurement for one in row.cells)] == [0]
    assert not only.rows[-1].cells[0].older


def test_rates_of_two_environments_are_never_added_up(db: Database) -> None:
    device = result.Device("cuda", "NVIDIA H200", (9, 0), "1.0", "0.11")
    newer = result.Device("cuda", "NVIDIA H200", (9, 0), "2.0", "0.11")
    with db.session() as session:
        _measured(session, device, passed=10)
        _measured(session, newer, capture_error=1, passed=1)
    found = read(db, subject="te", queue="sm90")
    assert [one.text for one in found.rows[0].cells] == ["1/2"]


def test_adaptive_trials_stay_out(db: Database) -> None:
    device = result.Device("cuda", "NVIDIA H200", (9, 0), "1.0", "0.11")
    with db.session() as session:
        _measured(session, device, adaptive=True, capture_error=5)
    assert read(db, subject="te", queue="sm90").columns == ()


def _measured(
    session: Session, device: result.Device, adaptive: bool = False, **counts: int
) -> None:
    commit = rows.commit_row(session, "te", result.Commit("a" * 40, "main", "One"))
    environment = rows.environment_row(session, device, "cu13", "2")
    build = rows.build_row(session, "te", PreparedBuild("key"), "")
    known = session.exec(select(CommitBuild)).first()
    if known is None:
        session.add(
            CommitBuild(
                commit_id=commit.id, name="stock", toolchain="cu13", architecture="sm90",
                state=BuildState.DONE, build_id=build.id,
            )
        )  # fmt: skip
        session.add(BranchCommit(subject="te", branch="main", position=0, commit_id=commit.id))
    session.add(
        Run(
            subject="te", commit_id=commit.id, matrix_name="m", queue="sm90",
            environment_id=environment.id, state=RunState.COMPLETE,
        )
    )  # fmt: skip
    row = rows.cell_row(session, matrices.load("quick").cells[0])
    measurement = rows.measurement_row(session, build, row, environment, adaptive)
    for name, count in counts.items():
        setattr(measurement, name, count)
    session.add(measurement)


def test_older_commits_are_on_further_pages(db: Database) -> None:
    with db.session() as session:
        for position in range(250):
            sha = f"{position:040x}"
            commit = rows.commit_row(session, "te", result.Commit(sha, "main", f"n {position}"))
            session.add(
                BranchCommit(subject="te", branch="main", position=position, commit_id=commit.id)
            )
    first = read(db, subject="te")
    assert (first.rows[0].place, first.rows[-1].place) == (249, 150)
    assert (first.newer, first.older) == (None, 150)
    second = read(db, subject="te", before=first.older)
    assert (second.rows[0].place, second.rows[-1].place) == (149, 50)
    assert (second.newer, second.older) == (0, 50)
    last = read(db, subject="te", before=second.older)
    assert (last.rows[0].place, last.rows[-1].place) == (49, 0)
    assert (last.newer, last.older) == (150, None)
    assert last.total == 250


def test_an_empty_database_is_an_empty_grid(db: Database) -> None:
    found = read(db)
    assert (found.rows, found.choices.any_run, found.choices.subjects) == ((), False, ())


@contextmanager
def _statements(database: Database) -> Iterator[list[str]]:
    asked: list[str] = []

    def note(_c: object, _cur: object, statement: str, *_: object) -> None:
        asked.append(statement)

    event.listen(database.engine, "before_cursor_execute", note)
    yield asked
    event.remove(database.engine, "before_cursor_execute", note)


@pytest.mark.parametrize("subject", ["te", "demo"])
def test_it_asks_a_fixed_number_of_questions_and_none_of_trials(shown: Shown, subject: str) -> None:
    database, _ = shown
    with _statements(database) as asked:
        read(database, subject=subject)
    assert len(asked) <= 14
    assert not [statement for statement in asked if "trials" in statement]


def test_every_count_of_a_measurement_reaches_the_note(db: Database) -> None:
    device = result.Device("cuda", "NVIDIA H200", (9, 0), "1.0", "0.11")
    named = {"passed": 1, **{str(o): 1 for o in Outcome if o is not Outcome.PASS}}
    with db.session() as session:
        _measured(session, device, **named)
        assert session.exec(select(Measurement)).one().n == 6
    note = read(db, subject="te").rows[0].cells[0].note
    assert all(f"1 {outcome}" in note for outcome in Outcome)


def places(found: Grid) -> list[int]:
    return [row.place for row in found.rows]


def test_text_is_looked_for_in_titles_authors_and_hashes(shown: Shown) -> None:
    database, made = shown
    assert places(read(database, subject="te", text="typo")) == [5]
    assert places(read(database, subject="te", text="TYPO in")) == [5]
    assert len(places(read(database, subject="te", text="ada maint"))) == 12
    assert places(read(database, subject="te", text=made.shas["fix"][:9])) == [10]
    assert places(read(database, subject="te", text="100%_")) == [], "nothing in it is a wildcard"


def test_a_pull_request_is_found_by_its_number_wherever_it_is(shown: Shown) -> None:
    database, made = shown
    merged = read(database, subject="te", pull=2219)
    assert [row.sha for row in merged.rows] == [made.shas["race"]]
    assert not merged.chosen.on_branch
    assert merged.changes == ()
    assert [row.ref for row in read(database, subject="te", pull=2800).rows] == ["pull/2800"]
    assert read(database, subject="te", pull=221).rows == ()


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        ("crash", [9, 8, 6, 5, 4]),
        ("data_loss", [9, 8, 6, 5, 4]),
        ("failed", [9, 8, 6, 5, 4]),
        ("build_error", [7]),
        ("wrong_output", []),
        ("pass", [11, 10, 9, 8, 6, 5, 4, 3, 2, 0]),
    ],
)
def test_an_outcome_leaves_the_commits_that_have_it(
    shown: Shown, outcome: str, expected: list[int]
) -> None:
    assert places(read(shown[0], subject="te", outcome=outcome)) == expected


def test_days_are_both_included(shown: Shown) -> None:
    database, _ = shown
    everything = read(database, subject="te")
    dates = {row.place: row.date.astimezone(UTC).date() for row in everything.rows if row.date}
    day = dates[5]
    on_it = sorted((place for place, date in dates.items() if date == day), reverse=True)
    assert places(read(database, subject="te", since=day, until=day)) == on_it
    later = sorted((place for place, date in dates.items() if date >= day), reverse=True)
    assert places(read(database, subject="te", since=day)) == later


def test_a_matrix_leaves_its_cells(shown: Shown) -> None:
    database, _ = shown
    quick = read(database, subject="te", matrix="quick")
    assert [column.full for column in quick.columns] == [
        "norm-act-gemm: stock, background",
        "norm-act-gemm: stock, alone",
        "norm-act-gemm: owned-stream, background",
    ]
    assert quick.choices.matrices == ("quick", "issue-3863")
    unknown = read(database, subject="te", matrix="mine")
    assert unknown.choices.notes == ("no run of te on sm90 used matrix mine",)
    assert len(unknown.columns) == 11


def test_filters_and_pages_go_together(db: Database) -> None:
    with db.session() as session:
        for position in range(250):
            commit = rows.commit_row(
                session, "te", result.Commit(f"{position:040x}", "main", f"n {position % 2}")
            )
            session.add(
                BranchCommit(subject="te", branch="main", position=position, commit_id=commit.id)
            )
    first = read(db, subject="te", text="n 1")
    assert (places(first)[0], places(first)[-1], first.older) == (249, 51, 51)
    second = read(db, subject="te", text="n 1", before=first.older)
    assert (places(second)[0], len(second.rows), second.newer, second.older) == (49, 25, 0, None)


def test_many_columns_make_shorter_pages(db: Database) -> None:
    with db.session() as session:
        build = rows.build_row(session, "te", PreparedBuild("key"), "")
        for position in range(150):
            commit = rows.commit_row(session, "te", result.Commit(f"{position:040x}", "main"))
            session.add(
                BranchCommit(subject="te", branch="main", position=position, commit_id=commit.id)
            )
            session.add(
                CommitBuild(
                    commit_id=commit.id, name="stock", toolchain="cu13", architecture="sm90",
                    state=BuildState.DONE, build_id=build.id,
                )
            )  # fmt: skip
        device = result.Device("cuda", "NVIDIA H200", (9, 0), "1.0", "0.11")
        environment = rows.environment_row(session, device, "cu13", "2")
        session.add(Run(subject="te", matrix_name="m", queue="sm90", environment_id=environment.id))
        stock = matrices.load("quick").cells[0]
        for n in range(60):
            cell = rows.cell_row(session, replace(stock, background_period_ms=float(n)))
            rows.measurement_row(session, build, cell, environment).passed = 1
    found = read(db, subject="te")
    assert (len(found.columns), len(found.rows), found.older) == (60, 30, 120)
    assert found.rows[-1].cells[0].repeated, "the commit below is on the next page"


def test_changes_are_marked_in_their_column_and_named_by_commit(shown: Shown) -> None:
    database, made = shown
    found = read(database, subject="te")
    assert cell(found, made.shas["race"], STOCK).change == "rise"
    assert cell(found, made.shas["fix"], STOCK).change == "fall"
    assert cell(found, made.shas["before"], STOCK).change == ""
    fell, rose = found.changes
    assert (fell.sha, fell.rises, rose.sha, rose.rises) == (
        made.shas["fix"], False, made.shas["race"], True,
    )  # fmt: skip
    assert [name.full for name, _ in rose.cells] == [
        "norm-act-gemm: stock, background",
        "norm-act-gemm: stock, background, hold 20 ms",
    ]
    assert (rose.suspects, rose.oldest, rose.newest) == (1, rose.sha, rose.sha)
    assert read(database, subject="te", before=9).changes == (), "the first page has them"
    assert cell(read(database, subject="te", before=9), made.shas["race"], STOCK).change == "rise"


def test_a_cell_s_interval_has_a_picture_that_claims_no_more_than_it(shown: Shown) -> None:
    database, made = shown
    racing = cell(read(database, subject="te"), made.shas["race"], STOCK)
    assert (racing.told.low, racing.told.high) == (13, 20)  # 69.2 to 100 %
    clean = cell(read(database, subject="te"), made.shas["fix"], STOCK)
    assert (clean.told.low, clean.told.high) == (0, 1)  # 0 to 4.5 %
