"""Changes along a branch: whose trials count, once and apart."""

from __future__ import annotations

from sqlmodel import Session, select

from runner import matrix as matrices
from runner import result
from runner.run import PreparedBuild
from runner.statistics.control import judge_control
from runner.statistics.counts import Counts
from service import rows
from service.database import Database
from service.reading import changes
from service.reading.changes import Change, Scope
from service.tables import BranchCommit, BuildState, CommitBuild, Measurement
from tests.service.reading.showcase import Showcase

STOCK = matrices.load("issue-3863").cells[0]
DEVICE = result.Device("cuda", "NVIDIA H200", (9, 0), "580", "0.11")
OTHER = result.Device("cuda", "NVIDIA H200", (9, 0), "570", "0.11")


def measured(
    session: Session,
    position: int,
    key: str,
    k: int,
    n: int,
    device: result.Device = DEVICE,
    adaptive: bool = False,
) -> None:
    """A commit at that place of `main`, and what its build counted in the first cell."""
    commit = rows.commit_row(
        session, "te", result.Commit(f"{position:040x}", "main", f"{position}")
    )
    assert commit.id is not None
    session.merge(BranchCommit(subject="te", branch="main", position=position, commit_id=commit.id))
    build = rows.build_row(session, "te", PreparedBuild(key), "")
    session.add(
        CommitBuild(
            commit_id=commit.id, name="stock", toolchain="cu13", architecture="sm90",
            state=BuildState.DONE, build_id=build.id,
        )
    )  # fmt: skip
    environment = rows.environment_row(session, device, "cu13", "2")
    cell = rows.cell_row(session, STOCK)
    found = rows.measurement_row(session, build, cell, environment, adaptive)
    found.passed, found.crash = n - k, k
    session.add(found)
    session.flush()


def scope(*environments: int) -> Scope:
    return Scope("te", "main", "sm90", environments)


def found(database: Database, *environments: int) -> tuple[Change, ...]:
    with database.session() as session:
        return changes.find(session, scope(*environments))


def test_a_race_is_found_where_it_came_and_where_it_went(
    shown: tuple[Database, Showcase],
) -> None:
    database, made = shown
    with database.session() as session:
        all_of_it = changes.find(session, scope(*range(1, 10)))
    stock = [one for one in all_of_it if one.cell == made.cells["stock, background"]]
    assert [(one.position, one.rises) for one in stock] == [(10, False), (4, True)]
    fall, rise = stock
    assert (rise.low, rise.high) == (4, 4)
    assert (rise.before.text, rise.after.text) == ("0 of 20", "40 of 40")
    assert rise.p < 0.0001
    assert fall.before == rise.after, "the trials between the two are one stretch"


def test_commits_that_share_a_build_tell_nothing_twice(db: Database) -> None:
    with db.session() as session:
        measured(session, 0, "a", 0, 10)
        measured(session, 1, "b", 10, 10)
        for position in range(2, 6):
            measured(session, position, "b", 10, 10)
    with db.session() as session:
        (one,) = changes.series(session, scope(1))
    assert (one.positions, one.failed, one.trials) == ((0, 1), (0, 10), (10, 10))


def test_two_environments_are_two_sequences(db: Database) -> None:
    with db.session() as session:
        for position in range(4):
            measured(session, position, f"old {position}", 0, 20, OTHER)
        for position in range(4, 8):
            measured(session, position, f"new {position}", 20, 20)
    with db.session() as session:
        assert len(changes.series(session, scope(*range(50)))) == 2
    assert found(db, *range(50)) == (), "another driver is no change of the commits"


def test_what_was_not_measured_between_is_suspect_too(db: Database) -> None:
    with db.session() as session:
        for position in (0, 1, 2, 9, 10, 11):
            measured(session, position, f"k{position}", 0 if position < 5 else 20, 20)
    (change,) = found(db, 1)
    assert (change.low, change.position, change.high) == (3, 9, 9)


def test_adaptive_trials_and_unknown_places_say_nothing(db: Database) -> None:
    with db.session() as session:
        for position in range(6):
            measured(session, position, f"k{position}", 20 * (position > 2), 20, adaptive=True)
    assert found(db, 1) == ()
    assert found(db) == ()
    with db.session() as session:
        assert changes.find(session, Scope("te", "", "sm90", (1,))) == ()


def test_what_a_doubted_device_shows_is_no_change(db: Database) -> None:
    with db.session() as session:
        for position in range(6):
            measured(session, position, f"build {position}", 40 if position == 3 else 0, 40)
    verdict = judge_control(Counts(6, 6), Counts(1, 6))
    with db.session() as session:
        fails_alone = session.exec(select(Measurement.id).where(Measurement.crash == 40)).one()
        assert len(changes.find(session, scope(1))) == 2
        assert changes.find(session, scope(1), lambda *_: {fails_alone: verdict}) == ()


def test_changes_of_one_commit_stand_together() -> None:
    def one(cell: int, position: int, rises: bool) -> Change:
        return Change(cell, 1, position, position, position, rises, Counts(), Counts(), 0.01)

    groups = changes.grouped([one(1, 9, True), one(2, 9, True), one(3, 9, False), one(1, 4, True)])
    assert [[change.cell for change in group] for group in groups] == [[1, 2], [3], [1]]
