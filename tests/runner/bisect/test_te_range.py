"""The range from v2.7 to v2.9 in a mirror of TransformerEngine's history, named by the environment.

RACEWATCH_TE_MIRROR is a git URL or folder of it; without one these are skipped. Nothing is built.
"""

from __future__ import annotations

import os

import pytest

from runner.bisect.range import Range, between
from runner.lineage import GitLineage
from runner.run import BuildId
from runner.subject import Folders, Options
from runner.subjects import open_subject

MIRROR = os.environ.get("RACEWATCH_TE_MIRROR", "")
STOCK = BuildId.parse("stock")
COMMITS = 126
"""Commits after the merge base of v2.7 with main, up to that of v2.9."""

pytestmark = pytest.mark.skipif(not MIRROR, reason="RACEWATCH_TE_MIRROR names no mirror of TE")


@pytest.fixture(scope="module")
def lineage(tmp_path_factory: pytest.TempPathFactory) -> GitLineage:
    folder = tmp_path_factory.mktemp("home")
    return open_subject("te", Options(Folders(folder, str(folder / "store")), MIRROR)).lineage()


def base_to_base(lineage: GitLineage) -> Range:
    main = lineage.resolve("main")
    good, bad = (lineage.merge_base(lineage.resolve(tag), main) for tag in ("v2.7", "v2.9"))
    assert good is not None
    assert bad is not None
    return between(lineage, good, bad, STOCK)


def test_from_merge_base_to_merge_base_it_is_70_classes(lineage: GitLineage) -> None:
    searched = base_to_base(lineage)
    assert searched.commits == COMMITS + 1  # the good end is one of a class too
    assert len(searched.classes) == 70
    assert searched.base is None


@pytest.mark.parametrize(
    ("folder", "classes"), [("transformer_engine/jax", 38), ("transformer_engine/jax/csrc", 14)]
)
def test_so_many_classes_by_a_part_of_it(lineage: GitLineage, folder: str, classes: int) -> None:
    repository = lineage.repository
    part = GitLineage(
        repository,
        lambda commits: repository.tree_hashes_of([commit.sha for commit in commits], [folder]),
        lineage.suspects,
    )
    assert len(base_to_base(part).classes) == classes


def test_the_tags_themselves_diverge_and_their_merge_base_is_tested_first(
    lineage: GitLineage,
) -> None:
    searched = between(lineage, lineage.resolve("v2.7"), lineage.resolve("v2.9"), STOCK)
    assert searched.base is not None
    held = searched.classes[searched.base]
    assert base_to_base(lineage).good.sha in {commit.sha for commit in held.commits}
    assert searched.classes[0].commit.sha == lineage.resolve("v2.7").sha
