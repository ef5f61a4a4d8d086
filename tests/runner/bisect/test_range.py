"""Ranges: paths of commits, merged by build, whatever the history's shape."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.bisect.range import Range, between, into_merge
from runner.errors import BisectionError
from runner.git import Step
from runner.result import Commit
from runner.run import BuildId

STOCK = BuildId.parse("stock")


def commit(name: str) -> Commit:
    return Commit(name, name, f"Commit {name}")


@dataclass(frozen=True)
class Branches:
    """Lines of commits that leave a trunk; the key of a commit is what follows its dash.

    lines: by name, each with where it leaves the trunk. trunk: oldest first.
    """

    trunk: Sequence[str]
    lines: dict[str, tuple[int, Sequence[str]]]
    merges: dict[str, str]

    def _history(self, head: str) -> list[str]:
        if head in self.trunk:
            return [*self.trunk[: self.trunk.index(head) + 1]]
        for start, names in self.lines.values():
            if head in names:
                return [*self.trunk[: start + 1], *names[: names.index(head) + 1]]
        raise KeyError(head)

    def resolve(self, ref: str) -> Commit:
        if ref.endswith("^1"):
            return commit(self._history(ref.removesuffix("^1"))[-2])
        return commit(ref)

    def merge_base(self, one: Commit, other: Commit) -> Commit | None:
        theirs = self._history(other.sha)
        both = [name for name in self._history(one.sha) if name in theirs]
        return commit(both[-1]) if both else None

    def steps(self, head: Commit, since: Commit) -> list[Step]:
        known = self._history(since.sha)
        names = [name for name in self._history(head.sha) if name not in known]
        return [
            Step(commit(name), ("parent", *self.merges.get(name, "").split()), ("file",))
            for name in names
        ]

    def keys(self, commits: Sequence[Commit], build_id: BuildId) -> list[str]:
        return [each.sha.split("-")[1] for each in commits]

    def weight(self, paths: Sequence[str]) -> float:
        return 1.0

    def revert(self, culprit: Commit, head: Commit) -> Commit:
        raise NotImplementedError


def trunk(*names: str) -> Branches:
    return Branches(names, {}, {})


def blamed(searched: Range) -> list[str]:
    return [each.blamed.sha for each in searched.classes if each.blamed]


def test_commits_with_one_build_are_one_class() -> None:
    searched = between(
        trunk("a-1", "b-1", "c-2", "d-2", "e-3"), commit("a-1"), commit("e-3"), STOCK
    )
    assert [each.key for each in searched.classes] == ["1", "2", "3"]
    assert blamed(searched) == ["c-2", "e-3"]
    assert searched.commits == 5


def test_a_build_that_comes_back_takes_out_what_lies_between() -> None:
    searched = between(
        trunk("a-1", "b-2", "c-3", "d-2", "e-4"), commit("a-1"), commit("e-4"), STOCK
    )
    assert [each.key for each in searched.classes] == ["1", "2", "4"]
    assert [one.sha for one in searched.classes[1].commits] == ["b-2", "d-2"]
    assert [one.sha for one in searched.undone] == ["c-3"]
    assert "1 undone" in searched.text


def test_a_change_that_was_reverted_and_made_again_is_blamed_on_the_second() -> None:
    searched = between(trunk("a-1", "b-2", "c-1", "d-2"), commit("a-1"), commit("d-2"), STOCK)
    assert blamed(searched) == ["d-2"]


def test_where_the_bad_end_is_older_the_path_goes_back() -> None:
    history = trunk("a-1", "b-2", "c-3")
    searched = between(history, commit("c-3"), commit("a-1"), STOCK)
    assert [each.key for each in searched.classes] == ["3", "2", "1"]
    assert blamed(searched) == ["c-3", "b-2"]
    assert not any(each.forward for each in searched.classes[1:])


def test_diverged_ends_meet_at_their_merge_base() -> None:
    history = Branches(("a-1", "b-2", "c-3", "d-4"), {"release": (1, ("r-5", "s-6"))}, {})
    searched = between(history, commit("s-6"), commit("d-4"), STOCK)
    assert [each.key for each in searched.classes] == ["6", "5", "2", "3", "4"]
    assert blamed(searched) == ["s-6", "r-5", "c-3", "d-4"]
    assert [each.forward for each in searched.classes[1:]] == [False, False, True, True]
    assert searched.base == 2
    assert "b-2 is tested first" in searched.text


def test_a_cherry_pick_on_both_sides_is_no_difference() -> None:
    history = Branches(("a-1", "b-2", "c-3"), {"release": (0, ("r-2", "s-9"))}, {})
    searched = between(history, commit("s-9"), commit("c-3"), STOCK)
    assert [each.key for each in searched.classes] == ["9", "2", "3"]
    assert [one.sha for one in searched.undone] == ["a-1"]


def test_merges_are_noted() -> None:
    history = Branches(("a-1", "b-2", "m-3"), {}, {"m-3": "tip"})
    searched = between(history, commit("a-1"), commit("m-3"), STOCK)
    assert searched.merges == (2,)
    assert searched.classes[2].second_parent == "tip"


def test_inside_a_merge_is_its_branch_and_then_the_merge() -> None:
    history = Branches(("a-1", "b-2", "m-9"), {"branch": (0, ("x-5", "y-6"))}, {"m-9": "y-6"})
    searched = between(history, commit("a-1"), commit("m-9"), STOCK)
    inside = into_merge(history, searched, 2)
    assert inside is not None
    assert [each.key for each in inside.classes] == ["1", "5", "6", "9"]
    assert blamed(inside) == ["x-5", "y-6", "m-9"]


def test_inside_a_merge_the_way_back_is_turned_round() -> None:
    history = Branches(("a-1", "b-2", "m-9"), {"branch": (0, ("x-5", "y-6"))}, {"m-9": "y-6"})
    searched = between(history, commit("m-9"), commit("a-1"), STOCK)
    inside = into_merge(history, searched, 1)
    assert inside is not None
    assert [each.key for each in inside.classes] == ["9", "6", "5", "1"]
    assert blamed(inside) == ["m-9", "y-6", "x-5"]


def test_a_branch_without_a_build_of_its_own_is_not_gone_into() -> None:
    history = Branches(("a-1", "b-2", "m-9"), {"branch": (0, ("x-1",))}, {"m-9": "x-1"})
    searched = between(history, commit("a-1"), commit("m-9"), STOCK)
    assert into_merge(history, searched, 2) is None


@pytest.mark.parametrize(
    ("good", "bad", "sentence"),
    [
        ("a-1", "a-1", "both ends are a-1: nothing to bisect"),
        ("a-1", "b-1", "have the same build stock"),
        ("2.20.2", "b-1", r"release 2.20.2 has no git history to bisect: name its tag"),
    ],
)
def test_ends_with_nothing_between_are_one_sentence(good: str, bad: str, sentence: str) -> None:
    with pytest.raises(BisectionError, match=sentence):
        between(trunk("a-1", "b-1"), commit(good), commit(bad), STOCK)


def test_unrelated_histories_are_one_sentence() -> None:
    @dataclass(frozen=True)
    class Unrelated(Branches):
        def merge_base(self, one: Commit, other: Commit) -> Commit | None:
            return None

    with pytest.raises(BisectionError, match="no history in common"):
        between(Unrelated((), {}, {}), commit("a1"), commit("b2"), STOCK)


@given(st.lists(st.sampled_from("12345"), min_size=2, max_size=25))
def test_every_class_is_there_once_and_every_commit_somewhere(keys: list[str]) -> None:
    names = [f"c{i}-{key}" for i, key in enumerate(keys)]
    good, bad = commit(names[0]), commit(names[-1])
    if keys[0] == keys[-1]:
        with pytest.raises(BisectionError):
            between(trunk(*names), good, bad, STOCK)
        return
    searched = between(trunk(*names), good, bad, STOCK)
    found = [each.key for each in searched.classes]
    assert len(set(found)) == len(found)
    assert (found[0], found[-1]) == (keys[0], keys[-1])
    held = [one.sha for each in searched.classes for one in each.commits]
    assert sorted([*held, *(one.sha for one in searched.undone)]) == sorted(names)
    # Each blamed commit is where the path last came into its class.
    for each in searched.classes[1:]:
        assert each.blamed is not None
        place = names.index(each.blamed.sha)
        assert keys[place] == each.key
        assert keys[place - 1] == searched.classes[found.index(each.key) - 1].key


def test_a_range_survives_json() -> None:
    history = Branches(
        ("a-1", "b-2", "c-3", "d-4"), {"release": (1, ("r-5", "s-6"))}, {"d-4": "tip"}
    )
    searched = between(history, commit("s-6"), commit("d-4"), STOCK)
    assert Range.from_data(json.loads(json.dumps(searched.to_data()))) == searched


def test_what_is_no_range_is_refused() -> None:
    with pytest.raises(BisectionError, match="range of a bisection: cannot be read"):
        Range.from_data({"good": "a"})
