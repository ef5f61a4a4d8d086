"""Histories for bisection: keys that are those of the builds, weights, and what merges bring."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from runner.bisect.range import between, into_merge
from runner.demo_subject import DemoSubject
from runner.errors import BisectionError
from runner.lineage import SUSPECTS, GitLineage
from runner.run import BuildId
from runner.subject import Folders, Options, Request
from runner.te_subject import TeSubject
from tests.runner.conftest import Build
from tests.runner.test_git import Work, cache, repository, work  # noqa: F401

STOCK = BuildId.parse("stock")


def test_a_key_is_that_of_the_build(demo: DemoSubject, build: Build) -> None:
    commit = demo.resolve(Request("race"))
    for kind in ("stock", "instrumented"):
        (key,) = demo.lineage().keys([commit], BuildId.parse(kind))
        assert key == build("race", kind).key


def test_keys_of_many_are_those_of_each(demo: DemoSubject) -> None:
    history = demo.history(demo.resolve(Request("main")))
    lineage = demo.lineage()
    together = lineage.keys(history, STOCK)
    assert together == [lineage.keys([commit], STOCK)[0] for commit in history]
    assert len(set(together)) < len(history)


def test_a_commit_that_a_pull_request_does_not_merge_onto_stands_alone(
    demo: DemoSubject,
) -> None:
    history = demo.history(demo.resolve(Request("main")))
    keys = demo.lineage().keys(history, BuildId.parse("pr-7+stock"))
    alone = [key for key in keys if key.startswith("no merge onto")]
    assert 0 < len(alone) < len(history)
    assert len(set(alone)) == len(alone)


def test_the_demo_from_race_to_main_leaves_out_docs_and_what_was_taken_back(
    demo: DemoSubject,
) -> None:
    good, bad = demo.resolve(Request("main")), demo.resolve(Request("race"))
    searched = between(demo.lineage(), good, bad, STOCK)
    assert (searched.commits, len(searched.classes)) == (18, 11)
    assert [one.title for one in searched.undone] == [
        "[JAX] Let the quantizer count what it saturates"
    ]
    (merge,) = searched.merges
    inside = into_merge(demo.lineage(), searched, merge)
    assert inside is not None
    assert "[JAX] Refuse a softmax with no scale" in {
        each.blamed.title for each in inside.classes if each.blamed
    }


@pytest.mark.parametrize(
    ("paths", "weight"),
    [
        (["docs/index.rst"], 0.5),
        (["transformer_engine/jax/csrc/extensions/ffi.h", "docs/index.rst"], 4.0),
        (["transformer_engine/jax/flax/module.py"], 2.0),
        (["transformer_engine/jaxlike/module.py"], 0.5),
        ([], 0.5),
    ],
)
def test_a_step_weighs_as_much_as_its_heaviest_path(
    repository: object,  # noqa: F811
    paths: list[str],
    weight: float,
) -> None:
    lineage = GitLineage(repository, lambda commits: [{} for _ in commits], SUSPECTS)  # type: ignore[arg-type]
    assert lineage.weight(paths) == weight


MIRROR = os.environ.get("RACEWATCH_TE_MIRROR", "")


@pytest.mark.skipif(not MIRROR, reason="RACEWATCH_TE_MIRROR names no mirror of TE's history")
def test_te_from_v2_7_to_v2_9_is_reduced_in_seconds(tmp_path: Path) -> None:
    subject = TeSubject(Options(Folders(tmp_path, str(tmp_path / "store")), repository=MIRROR))
    lineage = subject.lineage()
    main = lineage.resolve("main")
    ends = [lineage.merge_base(lineage.resolve(tag), main) for tag in ("v2.7", "v2.9")]
    started = time.monotonic()
    assert ends[0] is not None
    assert ends[1] is not None
    searched = between(lineage, ends[0], ends[1], STOCK)
    assert time.monotonic() - started < 10
    assert (searched.commits, len(searched.classes)) == (127, 70)
    diverged = between(lineage, lineage.resolve("v2.7"), lineage.resolve("v2.9"), STOCK)
    assert diverged.base is not None
    assert ends[0] in diverged.classes[diverged.base].commits


def test_histories_with_nothing_in_common_are_one_sentence(
    work: Work,  # noqa: F811
    repository: object,  # noqa: F811
) -> None:
    work.git("checkout", "--quiet", "--orphan", "elsewhere")
    other = work.commit("Another beginning", {"README": "other\n"})
    lineage = GitLineage(repository, lambda commits: [{} for _ in commits], SUSPECTS)  # type: ignore[arg-type]
    good, bad = lineage.resolve("main"), lineage.resolve("elsewhere")
    with pytest.raises(BisectionError) as raised:
        between(lineage, good, bad, STOCK)
    assert str(raised.value) == (
        f"{good.sha[:12]} and {other[:12]} have no history in common: nothing to bisect"
    )
