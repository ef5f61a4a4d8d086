"""Bisections as pages and the API read them: lists, posteriors, what each observation changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from sqlalchemy import event
from sqlmodel import select

from runner.bisect.bisection import Spent, Stage
from runner.bisect.events import Observation, Seen
from runner.bisect.posterior import Tally
from runner.bisect.verdict import VerdictKind
from service import bisection
from service.database import Database
from service.reading import bisections
from service.reading.bisections import BisectionFilter, BisectionPage
from service.reading.rate import Mark
from service.tables import Bisection, BisectionEvent, Run
from tests.service.reading import bisected, showcase
from tests.service.reading.bisected import Bisections, Made, Truth


@pytest.fixture(scope="module")
def bisecting(postgres: str, template: str) -> Iterator[tuple[Database, Made]]:
    """One of each kind, which these tests leave as it is."""
    with showcase.database(postgres, template) as database:
        yield database, bisected.make(database)


def page(bisecting: tuple[Database, Made], name: str) -> BisectionPage:
    database, made = bisecting
    with database.session() as session:
        found = bisections.read(session, made.ids[name])
    assert found is not None
    return found


def test_a_bisection_that_is_not_there(db: Database) -> None:
    with db.session() as session:
        assert bisections.read(session, bisected.UUID(int=0)) is None
        nothing = bisections.read_list(session, BisectionFilter())
    assert (nothing.bisections, nothing.older, nothing.subjects) == ((), None, ())


def test_one_that_waits_for_its_range_knows_what_it_does(
    bisecting: tuple[Database, Made],
) -> None:
    found = page(bisecting, "queued")
    assert (found.range, found.searched, found.stage) == (None, (), None)
    assert found.next is not None
    assert found.next.text == "working out the range"
    assert (found.costs, found.bits, found.spent) == (None, 0.0, Spent())


def test_the_posterior_is_that_of_the_service_s_own_state(
    bisecting: tuple[Database, Made],
) -> None:
    database, made = bisecting
    found = page(bisecting, "searching")
    with database.session() as session:
        row = session.get_one(Bisection, made.ids["searching"])
        state = bisection.state_of(row, bisection.events(session, row))
    assert state is not None
    (searched,) = found.searched
    assert searched.none == state.posterior.none
    assert tuple(one.probability for one in searched.suspects[1:]) == state.posterior.steps[1:]
    assert found.spent == state.spent
    assert found.bits == state.posterior.entropy > 0
    assert found.seconds_left == state.seconds_left > 0


def test_the_stretch_that_holds_the_change_is_as_sure_as_was_asked(
    bisecting: tuple[Database, Made],
) -> None:
    (searched,) = page(bisecting, "searching").searched
    inside = searched.suspects[searched.first : searched.last + 1]
    held = sum(one.probability or 0.0 for one in inside)
    assert held >= 0.99 * (1 - searched.none)
    assert len(inside) < len(searched.suspects) / 2
    assert searched.likeliest in inside


def test_a_class_is_blamed_on_the_commit_that_leads_into_it(
    bisecting: tuple[Database, Made],
) -> None:
    (searched,) = page(bisecting, "found").searched
    culprit = searched.suspects[41]
    assert culprit.suspected
    assert culprit.commit.sha == bisecting[1].culprit
    assert sum(one.suspected for one in searched.suspects) == 1
    assert searched.suspects[0].probability is None
    assert [len(one.same) for one in searched.suspects[:6]] == [0, 1, 0, 0, 1, 0]


def test_trials_of_a_build_have_an_interval_that_allows_for_looking_at_any_time(
    bisecting: tuple[Database, Made],
) -> None:
    (searched,) = page(bisecting, "found").searched
    measured = [one for one in searched.suspects if one.tally.n]
    assert len(measured) >= 5
    for one in measured:
        assert one.rate is not None
        assert one.low <= one.rate <= one.high
    clean = next(one for one in measured if not one.tally.k)
    # Clopper-Pearson's ends earlier: it counts on a number of trials that was fixed before.
    assert clean.high > 1 - 0.025 ** (1 / clean.tally.n)
    unmeasured = next(one for one in searched.suspects if not one.tally.n)
    assert (unmeasured.rate, unmeasured.low, unmeasured.high) == (None, 0.0, 1.0)


def test_builds_that_cannot_be_measured_say_why(bisecting: tuple[Database, Made]) -> None:
    (searched,) = page(bisecting, "found").searched
    broken = {one.place: one.broken for one in searched.suspects if one.broken}
    assert set(broken) <= {35, 36, 37}
    assert broken
    assert all("was not declared" in reason for reason in broken.values())


def test_what_was_seen_comes_in_order_and_adds_up(bisecting: tuple[Database, Made]) -> None:
    found = page(bisecting, "found")
    assert [one.number for one in found.observations] == list(range(len(found.observations)))
    assert sum(one.tally.n for one in found.observations) == found.spent.trials
    assert sum(one.build_s > 0 for one in found.observations) == found.spent.builds
    assert sum(one.trial_s for one in found.observations) == pytest.approx(found.spent.trial_s)
    assert found.reused == 0
    last = [one for one in found.observations if one.likeliest is not None][-1]
    first = found.observations[0]
    assert first.probability is not None
    assert last.probability is not None
    assert first.probability < 0.1 < last.probability
    assert all(one.commit is not None for one in found.observations)


def test_the_head_without_the_culprit_is_nobody_else_s(bisecting: tuple[Database, Made]) -> None:
    found = page(bisecting, "found")
    (reverted,) = [one for one in found.observations if one.event == "reverted"]
    assert reverted.commit is not None
    assert found.made == {reverted.commit.sha}
    assert reverted.commit.sha in found.known, "its probe stored it"
    assert bisecting[1].culprit in found.known


def test_inside_a_merge_there_is_a_range_of_its_own(bisecting: tuple[Database, Made]) -> None:
    found = page(bisecting, "merge")
    outer, inner = found.searched
    assert inner.inside == outer.suspects[5].commit
    assert [one.suspected for one in outer.suspects].index(True) == 5
    for each in found.searched:
        total = each.none + sum(one.probability or 0.0 for one in each.suspects)
        assert total == pytest.approx(1)
    (entered,) = [one for one in found.observations if one.event == "entered"]
    assert entered.reason == "7 commits in 5 classes by build"
    assert found.line.emulated


def test_a_verdict_comes_back_from_its_row_as_it_was(bisecting: tuple[Database, Made]) -> None:
    database, made = bisecting
    found = page(bisecting, "found")
    verdict = found.verdict
    assert verdict is not None
    with database.session() as session:
        row = session.get_one(Bisection, made.ids["found"])
        state = bisection.state_of(row, bisection.events(session, row))
    assert state is not None
    assert verdict == state.verdict
    assert (verdict.kind, found.stage) == (VerdictKind.CULPRIT, Stage.DONE)
    assert (found.line.mark, found.line.label) == (Mark.REGRESSED, "culprit")
    fix = replace(found.line, verdict=replace(verdict, fixed=True))
    assert (fix.mark, fix.label) == (Mark.FIXED, "fix")
    several = replace(verdict, kind=VerdictKind.AMONG, commits=verdict.commits * 3)
    assert replace(found.line, verdict=several).label == "one of 3 commits"
    unsure = replace(found.line, verdict=replace(verdict, kind=VerdictKind.NOT_SURE))
    assert (unsure.mark, unsure.label) == (Mark.UNDERSAMPLED, "not sure")


def test_trials_that_were_there_before_cost_nothing(db: Database) -> None:
    with db.session() as session:
        them = Bisections(session)
        identity = them.order("te", "sm90", "v2.7", "main")
        searched = bisected.path("te", 7)
        them.ranged(identity, searched)
        row = session.get_one(Bisection, identity)
        known = Observation(searched.classes[3].key, k=0, n=40)
        session.add(bisection._event_row(row, 0, known))
        session.flush()
        found = bisections.read(session, identity)
        listed = bisections.read_list(session, BisectionFilter()).bisections
    assert found is not None
    assert (found.reused, found.spent) == (40, Spent())
    assert found.observations[0].run is None
    assert found.observations[0].seen is Seen.TRIALS
    assert found.searched[0].suspects[3].tally == Tally(0, 40)
    assert listed[0].spent == Spent()


def test_the_list_says_what_each_cost_and_came_to(bisecting: tuple[Database, Made]) -> None:
    database, made = bisecting
    with database.session() as session:
        listed = bisections.read_list(session, BisectionFilter())
    by_id = {one.id: one for one in listed.bisections}
    assert set(by_id) == set(made.ids.values())
    for name in made.ids:
        assert by_id[made.ids[name]] == page(bisecting, name).line
    assert by_id[made.ids["found"]].classes == 73
    assert by_id[made.ids["queued"]].classes is None
    assert listed.subjects == ("demo", "te")
    assert listed.queues == ("emulated", "sm90")


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        (BisectionFilter(state="running"), {"searching", "checking"}),
        (BisectionFilter(subject="demo", state="done"), {"merge", "no change"}),
        (BisectionFilter(queue="emulated"), {"merge", "no change", "queued"}),
        (BisectionFilter(subject="te", queue="emulated"), set()),
    ],
)
def test_the_list_can_be_filtered(
    bisecting: tuple[Database, Made], asked: BisectionFilter, names: set[str]
) -> None:
    database, made = bisecting
    with database.session() as session:
        listed = bisections.read_list(session, asked).bisections
    assert {one.id for one in listed} == {made.ids[name] for name in names}


def test_the_list_goes_on_where_it_ended(
    bisecting: tuple[Database, Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bisections, "BISECTIONS", 3)
    database, made = bisecting
    seen = []
    asked = BisectionFilter()
    with database.session() as session:
        while True:
            listed = bisections.read_list(session, asked)
            seen += [one.id for one in listed.bisections]
            if listed.older is None:
                break
            asked = BisectionFilter(before=listed.older)
    assert len(seen) == len(set(seen)) == len(made.ids)


def test_a_list_loads_no_range(bisecting: tuple[Database, Made]) -> None:
    database, _ = bisecting
    asked: list[str] = []
    with database.session() as session:
        connection = session.connection()
        event.listen(
            connection,
            "before_cursor_execute",
            lambda _c, _k, statement, *_rest: asked.append(statement),
        )
        bisections.read_list(session, BisectionFilter())
    assert 3 <= len(asked) <= 5, "however many are listed"
    assert not any("bisections.searched," in statement for statement in asked)


def test_reading_changes_nothing(db: Database) -> None:
    with db.session() as session:
        them = Bisections(session)
        identity = them.order("te", "sm90", "v2.7", "main")
        searched = bisected.path("te", 7)
        them.ranged(identity, searched)
        them.go(identity, Truth.of(searched, 3, 0.0, 1.0), most=3)
    with db.session() as session:
        events = len(session.exec(select(BisectionEvent)).all())
        runs = len(session.exec(select(Run)).all())
        bisections.read(session, identity)
        assert not session.dirty
        assert len(session.exec(select(BisectionEvent)).all()) == events == 3
        assert len(session.exec(select(Run)).all()) == runs
