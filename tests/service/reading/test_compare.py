"""Two commits, or two variants, against each other."""

from __future__ import annotations

import pytest

from service.database import Database
from service.reading import compare
from service.reading.compare import ComparedRow, CompareFilter, ComparePage, NoSuchCommit
from service.reading.rate import Mark
from service.tables import Run
from tests.service.reading.showcase import Showcase

Shown = tuple[Database, Showcase]


def read(shown: Shown, a: str = "", b: str = "", **asked: object) -> ComparePage:
    database, made = shown
    with database.session() as session:
        wanted = CompareFilter("te", made.shas.get(a, a), made.shas.get(b, b), **asked)  # type: ignore[arg-type]
        return compare.read(session, wanted)


def row(found: ComparePage, name: str) -> ComparedRow:
    (one,) = [row for row in found.rows if row.cell.full == name]
    return one


def test_what_differs_comes_first_with_its_significance(shown: Shown) -> None:
    found = read(shown, "before", "race")
    first, second, *others = found.rows
    assert [first.cell.full, second.cell.full] == [
        "norm-act-gemm: stock, background",
        "norm-act-gemm: stock, background, hold 20 ms",
    ]
    assert (first.mark, first.label, first.direction) == (
        Mark.REGRESSED, "newly failing", "higher",
    )  # fmt: skip
    assert first.p == pytest.approx(1 / 184_756)  # 1 in C(20, 10): all failures at head by lot
    assert first.difference is not None
    assert first.difference[0] > 0.5
    assert not any(row.differs for row in others)
    assert (found.compared, found.counted(Mark.REGRESSED), found.lower) == (11, 2, 0)


def test_the_other_way_round_it_is_lower_or_fixed(shown: Shown) -> None:
    found = read(shown, "race", "fix")
    stock = row(found, "norm-act-gemm: stock, background")
    assert (stock.mark, stock.direction) == (Mark.FIXED, "lower")
    held = row(found, "norm-act-gemm: stock, background, hold 20 ms")
    assert (held.mark, held.direction, held.differs) == (Mark.UNDERSAMPLED, "lower", True)
    assert (found.counted(Mark.FIXED), found.lower) == (1, 1)


def test_equal_rates_have_no_direction(shown: Shown) -> None:
    one = row(read(shown, "before", "race"), "norm-act-gemm: stock, alone")
    assert (one.p, one.direction, one.mark) == (None, "", Mark.UNDERSAMPLED)
    assert one.needed[0] == 62


def test_commits_with_one_build_are_not_compared_with_themselves(shown: Shown) -> None:
    found = read(shown, "race", "same")
    assert all(row.same for row in found.rows)
    assert found.compared == 0
    assert {row.label for row in found.rows} == {"the same build"}


def test_what_could_not_be_run_stands_beside_what_was(shown: Shown) -> None:
    found = read(shown, "race", "broken")
    assert len(found.rows) == 11
    stock = row(found, "norm-act-gemm: stock, background")
    assert stock.a is not None
    assert stock.a.k == 10
    assert stock.b is None
    assert stock.why_b.startswith("build error: ")
    assert stock.label == "not compared"


def test_variants_of_one_commit_are_compared_cell_by_cell(shown: Shown) -> None:
    found = read(shown, "race", "race", base="stock", head="owned-stream")
    compared = [row for row in found.rows if row.difference is not None]
    assert [row.cell.short for row in compared] == ["background", "background, hold 20 ms"]
    assert [row.direction for row in compared] == ["lower", "lower"]
    (parity,) = found.parity
    assert (parity.of, parity.equal) == ("stock and owned-stream", True)


def test_output_bits_of_two_commits_are_compared_in_one_environment(db: Database) -> None:
    from tests.service.reading import showcase

    made = showcase.make(db)
    with db.session() as session:
        for tag, digest in (("race", "d1"), ("fix", "d2"), ("commit 3", "d1")):
            run = session.get_one(Run, made.runs[tag])
            run.parity = {"status": "identical", "digests": {"stock norm-act-gemm": [digest]}}
            session.add(run)
    assert [one.equal for one in read((db, made), "before", "race").parity] == [True]
    assert [one.equal for one in read((db, made), "race", "fix").parity] == [False]
    assert read((db, made), "race", "head").parity == ()


def test_beginnings_of_hashes_do_as_long_as_they_are_clear(shown: Shown) -> None:
    made = shown[1]
    found = read(shown, made.shas["before"][:8], made.shas["race"][:8].upper())
    assert found.a is not None
    assert found.a.sha == made.shas["before"]
    with pytest.raises(NoSuchCommit, match=r"may be one of 30.*: give more of it"):
        read(shown, "30", "race")
    with pytest.raises(NoSuchCommit, match="there is no commit of te that begins with 'ffff'"):
        read(shown, "ffff", "race")


def test_without_commits_it_offers_some(shown: Shown) -> None:
    found = read(shown)
    assert found.rows == ()
    assert found.offered[0].sha == shown[1].shas["head"]
    assert found.queues == ("sm90",)
