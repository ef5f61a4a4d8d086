"""Builds: found by what enters them, made once, and whole or not there; failures are results."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runner import git
from runner.build import Builds, Recipe, failed_build, git_base, git_build
from runner.errors import BuildError, InfrastructureError, StoreError
from runner.outcome import Outcome
from runner.result import Commit
from runner.run import BuildId
from runner.store import Store
from runner.variants.names import BuildKind

STOCK = BuildId(BuildKind.STOCK)
INSTRUMENTED = BuildId(BuildKind.INSTRUMENTED)


class Maker:
    """A recipe whose compiler copies the tree, and counts how often it was called."""

    def __init__(self, error: BaseException | None = None, log: str = "compiled\n") -> None:
        self.made = 0
        self.error = error
        self.log = log

    def recipe(self, **parts: str) -> Recipe:
        return Recipe({"tree": "1", **parts}, self.export, "csrc", self.compile)

    def export(self, tree: Path) -> None:
        (tree / "csrc").mkdir(parents=True)
        (tree / "csrc" / "extension.cpp").write_text("int nothing;\n")

    def compile(self, tree: Path, out: Path, log: Path) -> None:
        self.made += 1
        log.write_text(self.log)
        (out / "half").write_text("written before anything fails")
        if self.error:
            raise self.error
        (out / "library.so").write_bytes((tree / "csrc" / "extension.cpp").read_bytes())


@pytest.fixture
def builds(tmp_path: Path) -> Builds:
    return Builds(tmp_path / "builds", Store(tmp_path / "store"))


def left_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if not path.name.endswith(".lock")]


def test_what_went_in_once_is_built_once(builds: Builds) -> None:
    maker = Maker()
    first, again = (builds.build(STOCK, maker.recipe()) for _ in range(2))
    assert maker.made == 1
    assert (first.cached, again.cached) == (False, True)
    assert (first.key, first.folder) == (again.key, again.folder)
    assert (Path(first.folder) / "library.so").read_text() == "int nothing;\n"


def test_anything_else_that_goes_in_is_another_build(builds: Builds) -> None:
    maker = Maker()
    keys = {
        builds.build(STOCK, maker.recipe()).key,
        builds.build(STOCK, maker.recipe(toolchain="2")).key,
        builds.build(STOCK, maker.recipe(tree="2")).key,
    }
    assert maker.made == len(keys) == 3


def test_another_host_takes_the_build_from_the_store(tmp_path: Path) -> None:
    maker, store = Maker(), Store(tmp_path / "store")
    here = Builds(tmp_path / "here", store).build(STOCK, maker.recipe())
    there = Builds(tmp_path / "there", store).build(STOCK, maker.recipe())
    assert maker.made == 1
    assert there.cached
    assert there.folder != here.folder
    assert (Path(there.folder) / "library.so").is_file()


def test_two_that_need_one_build_make_it_once(builds: Builds) -> None:
    maker = Maker()
    threads = [
        threading.Thread(target=builds.build, args=(STOCK, maker.recipe())) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert maker.made == 1


def test_the_log_of_a_build_is_kept_with_it(builds: Builds) -> None:
    build = builds.build(STOCK, Maker(log="warning: hm\n").recipe())
    assert (Path(build.folder) / "build.log").read_text() == "warning: hm\n"


def test_a_source_that_does_not_compile_is_a_result_with_its_log(
    builds: Builds, tmp_path: Path
) -> None:
    line = "a.cpp:1:2: error: 'x' was not declared in this scope"
    maker = Maker(BuildError("it failed", first_error=line), f"g++ a.cpp\n{line}\n")
    build = builds.build(STOCK, maker.recipe())
    assert (build.outcome, build.folder) == (Outcome.BUILD_ERROR, "")
    assert build.signature == line
    assert build.log.endswith(f"{line}\n")
    assert Store(tmp_path / "store").log(build.key) == build.log
    assert left_in(tmp_path / "builds") == []


def test_a_host_that_cannot_compile_is_no_result(builds: Builds, tmp_path: Path) -> None:
    maker = Maker(BuildError("it failed"), "cc1plus: fatal error: No space left on device\n")
    with pytest.raises(InfrastructureError, match="the build could not run"):
        builds.build(STOCK, maker.recipe())
    assert left_in(tmp_path / "builds") == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), InfrastructureError("no compiler")])
def test_a_build_that_is_cut_short_leaves_nothing(
    builds: Builds, tmp_path: Path, error: BaseException
) -> None:
    with pytest.raises(type(error)):
        builds.build(STOCK, Maker(error).recipe())
    assert left_in(tmp_path / "builds") == []
    assert builds.build(STOCK, Maker().recipe()).folder


def test_a_folder_that_a_dead_host_left_half_written_is_made_anew(builds: Builds) -> None:
    maker = Maker()
    build = builds.build(STOCK, maker.recipe())
    for path in Path(build.folder).iterdir():
        if path.name.endswith(".json"):
            path.unlink()
    (Path(build.folder) / "library.so").write_text("torn")
    again = builds.build(STOCK, maker.recipe())
    assert (Path(again.folder) / "library.so").read_text() == "int nothing;\n"


def test_a_variant_that_does_not_apply_is_unsupported_and_not_compiled(builds: Builds) -> None:
    maker = Maker()
    build = builds.build(INSTRUMENTED, maker.recipe())
    assert (build.outcome, build.folder, maker.made) == (Outcome.UNSUPPORTED, "", 0)
    assert build.signature == "variant does not apply"
    assert build.reason


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "tiny"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a tiny file system can only be mounted by root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


class BigMaker(Maker):
    def compile(self, tree: Path, out: Path, log: Path) -> None:
        super().compile(tree, out, log)
        # Random enough that no compression makes it fit.
        (out / "library.so").write_bytes(os.urandom(1 << 20))


def test_a_full_build_folder_is_one_sentence_and_stays_empty(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="No space left on device") as caught:
        Builds(tiny, Store(tmp_path / "store")).build(STOCK, BigMaker().recipe())
    assert "\n" not in str(caught.value)
    assert left_in(tiny) == []


def test_a_full_store_is_one_sentence_and_stays_empty(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No space left on device"):
        Builds(tmp_path / "builds", Store(tiny)).build(STOCK, BigMaker().recipe())
    assert left_in(tmp_path / "builds") == []
    assert [path for path in tiny.rglob("*") if path.is_file()] == []


def test_a_failure_without_a_compilers_error_says_what_it_can() -> None:
    build = failed_build("k", BuildError("make: exit status 2"), "nothing to see\n")
    assert (build.outcome, build.reason) == (
        Outcome.BUILD_ERROR,
        "does not build: make: exit status 2",
    )


# Of a repository


@pytest.fixture
def history(demo: Any) -> git.Repository:
    repository: git.Repository = demo._repository
    return repository


def test_a_pull_request_that_is_not_there_is_unsupported(
    history: git.Repository, builds: Builds
) -> None:
    commit = history.resolve("race")
    recipe_of: Callable[[Commit], Recipe] = lambda commit: Maker().recipe()  # noqa: E731
    build = git_build(history, builds, commit, BuildId(BuildKind.STOCK, (99,)), recipe_of)
    assert (build.outcome, build.signature) == (
        Outcome.UNSUPPORTED,
        "pull request does not apply",
    )


def test_a_pull_request_that_conflicts_is_unsupported(
    history: git.Repository, builds: Builds
) -> None:
    recipe_of: Callable[[Commit], Recipe] = lambda commit: Maker().recipe()  # noqa: E731
    pulled = BuildId(BuildKind.STOCK, (7,))
    build = git_build(history, builds, history.resolve("fix"), pulled, recipe_of)
    assert build.outcome is Outcome.UNSUPPORTED
    assert "conflicts in" in build.reason


def test_the_base_of_a_pull_request_is_where_it_left_the_branch(history: git.Repository) -> None:
    base = git_base(history, history.resolve("pull/7"))
    assert base is not None
    assert base.sha == history.resolve("race").sha


def test_the_base_of_a_commit_is_its_first_parent(history: git.Repository) -> None:
    fix = history.resolve("fix")
    base = git_base(history, fix)
    assert base is not None
    assert base.sha == history.resolve("fix^").sha


def test_the_base_of_a_merged_pull_request_is_what_it_was_merged_onto(
    history: git.Repository,
) -> None:
    race = history.resolve("race")
    base = git_base(history, history.merge(race, 7))
    assert base is not None
    assert base.sha == race.sha


def test_the_first_commit_has_no_base(history: git.Repository) -> None:
    root = history.first_parent(history.resolve("main"))[-1]
    assert git_base(history, root) is None
