"""What the grid says of a change that somebody bisected."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlmodel import Session, select

from runner import result
from runner.bisect.verdict import Verdict, VerdictKind
from service.bisection import verdict_data
from service.database import Database
from service.pages import view
from service.reading import grid
from service.reading.grid import Grid, GridFilter
from service.tables import Bisection, BisectionState, Cell, Run, RunCell, RunState
from tests.service.reading.showcase import Showcase

Shown = tuple[Database, Showcase]


@contextmanager
def bisected(shown: Shown, *shas: str, fixed: bool = False, **other: Any) -> Iterator[Grid]:
    """The grid with a bisection of `stock, background` that ended so, which then is gone again."""
    database, _ = shown
    with database.session() as session:
        cell = next(
            one
            for one in session.exec(select(Cell).where(Cell.variant == "stock"))
            if one.background and not one.hold_ms and one.program == "norm-act-gemm"
        )
        commits = tuple(result.Commit(sha=sha, ref="main", title=f"Title {sha}") for sha in shas)
        kind = VerdictKind.CULPRIT if len(shas) == 1 else VerdictKind.AMONG
        verdict = Verdict(kind, "found", 0.995, commits, fixed)
        row = Bisection(
            **{
                "subject": "te", "good": "a", "bad": "b", "matrix_name": "m", "cell_name": "c",
                "queue": "sm90", "state": BisectionState.DONE, "verdict": verdict_data(verdict),
                **other,
            }
        )  # fmt: skip
        session.add(row)
        session.flush()
        run = Run(
            subject="te", matrix_name="m", queue="sm90", state=RunState.COMPLETE,
            bisection_id=row.id, told=RunState.COMPLETE,
        )  # fmt: skip
        session.add(run)
        session.flush()
        assert cell.id is not None
        session.add(
            RunCell(run_id=run.id, position=0, name="c", cell_id=cell.id, build="stock", wanted=8)
        )
        session.flush()
        yield read(session)
        session.rollback()


def read(session: Session) -> Grid:
    return grid.read(session, GridFilter(subject="te"))


def test_a_change_names_the_commit_that_a_bisection_found(shown: Shown) -> None:
    sha = shown[1].shas["race"]
    with bisected(shown, sha) as found:
        fell, rose = found.changes
        assert rose.bisected is not None
        assert (rose.bisected.sha, rose.bisected.commits) == (sha, 1)
        assert (rose.bisected.title, rose.bisected.probability) == (f"Title {sha}", 0.995)
        assert fell.bisected is None, "the rate fell there, and rose with the culprit"
        said = view.macro("grid_parts.html", "change_list")(found.chosen, found.changes)
        assert f'<a href="/bisections/{rose.bisected.id}">Bisected</a>, 99.50 % sure: ' in said
        assert said.count("Bisected") == 1


def test_what_fixed_it_is_said_where_the_rate_fell(shown: Shown) -> None:
    with bisected(shown, shown[1].shas["fix"], fixed=True) as found:
        fell, rose = found.changes
        assert fell.bisected is not None
        assert rose.bisected is None


def test_commits_that_cannot_be_told_apart_are_counted(shown: Shown) -> None:
    shas = shown[1].shas
    with bisected(shown, shas["before"], shas["race"]) as found:
        named = found.changes[1].bisected
        assert named is not None
        assert (named.commits, named.sha) == (2, shas["before"])


@pytest.mark.parametrize(
    "other",
    [
        {"state": BisectionState.RUNNING},
        {"state": BisectionState.CANCELLED},
        {"queue": "sm100"},
        {"subject": "demo"},
        {"observe": "swallow"},
    ],
    ids=str,
)
def test_other_bisections_say_nothing_of_it(shown: Shown, other: dict[str, Any]) -> None:
    with bisected(shown, shown[1].shas["race"], **other) as found:
        assert [one.bisected for one in found.changes] == [None, None]


def test_a_culprit_beyond_the_change_s_commits_says_nothing_of_it(shown: Shown) -> None:
    with bisected(shown, shown[1].shas["before"]) as found:
        assert [one.bisected for one in found.changes] == [None, None]
    with bisected(shown, "0" * 40) as found:
        assert [one.bisected for one in found.changes] == [None, None]
