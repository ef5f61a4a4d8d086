"""The demo subject's repository is the same everywhere and has every kind of commit."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from runner import demo_repo
from runner.demo_repo import PULL_REF, TAGS, create
from runner.emulation.history import Replace
from runner.errors import InfrastructureError, InputError
from runner.variants import ffi13, stream

REFS = {
    "refs/heads/main": "066c0ccdeb618db310e5ecb169f4f61fb3685d8d",
    "refs/pull/7/head": "4672f163eb6be4ed54a813766ab487fb25e0c6f6",
    "refs/tags/before": "a59ab254fdd464bb93904fae8c178ce998899db2",
    "refs/tags/broken": "e7e7c9fdfb8b3b3d94f9f8d009282dfbe1187625",
    "refs/tags/fix": "c923f7a235acf821d55c1f3855e66483391d344f",
    "refs/tags/race": "48dc1f1847beb4f39f743f260bd66b4f6c0e5136",
}
CSRC = "transformer_engine/jax/csrc"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demo") / "repository"
    create(path)
    return path


def git(repository: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(repository), *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def refs(repository: Path) -> dict[str, str]:
    lines = git(repository, "for-each-ref", "--format=%(refname) %(objectname)").splitlines()
    return dict(line.split() for line in lines)


def mainline(repository: Path) -> list[str]:
    return git(repository, "rev-list", "--first-parent", "--reverse", "main").split()


def changed(repository: Path, commit: str) -> list[str]:
    return git(repository, "diff", "--name-only", f"{commit}^", commit).splitlines()


def csrc_of(repository: Path, ref: str) -> dict[str, str]:
    paths = git(repository, "ls-tree", "-r", "--name-only", f"{ref}:{CSRC}").splitlines()
    return {path: git(repository, "show", f"{ref}:{CSRC}/{path}") + "\n" for path in paths}


def test_hashes_are_fixed(repository: Path) -> None:
    assert refs(repository) == REFS


def test_the_user_s_configuration_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    config.write_text(
        "[user]\n name = Somebody\n email = else@example.invalid\n"
        "[init]\n defaultBranch = trunk\n[core]\n autocrlf = true\n[commit]\n gpgsign = true\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_AUTHOR_DATE", "2001-01-01T00:00:00")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    create(tmp_path / "repository")
    monkeypatch.undo()
    assert refs(tmp_path / "repository") == REFS


def test_main_is_checked_out_and_clean(repository: Path) -> None:
    assert git(repository, "symbolic-ref", "--short", "HEAD") == "main"
    assert git(repository, "status", "--porcelain") == ""
    assert (repository / CSRC / "extensions/ffi.h").is_file()


def test_the_repository_is_whole(repository: Path) -> None:
    git(repository, "fsck", "--strict")


def test_main_has_at_least_24_commits_on_first_parent_history(repository: Path) -> None:
    assert len(mainline(repository)) >= 24


def test_there_is_one_merge_of_a_branch_with_commits_of_its_own(repository: Path) -> None:
    (merge,) = git(repository, "rev-list", "--merges", "main").split()
    assert merge in mainline(repository)
    side = git(repository, "rev-list", f"{merge}^1..{merge}^2").split()
    assert 2 <= len(side) <= 3
    assert git(repository, "rev-list", f"{merge}^2..{merge}^1").split() != []


def test_tags_are_on_main_in_the_order_of_the_story(repository: Path) -> None:
    commits = mainline(repository)
    at = [commits.index(git(repository, "rev-parse", tag)) for tag in TAGS]
    assert at == sorted(at)
    assert at[1] == at[0] + 1


def test_the_race_comes_with_the_capture_and_four_initialize_stages(repository: Path) -> None:
    assert not any("cudaStreamBeginCapture" in t for t in csrc_of(repository, "before").values())
    functions = {one.function for one in stream.stages(stream.parse(csrc_of(repository, "race")))}
    names = ("ActLu", "DActLuDBiasQuantize", "NormForward", "NormBackward")
    assert functions == {f"{name}InitializeFFI" for name in names}


def test_the_race_captures_on_xla_s_stream_and_the_fix_does_not(repository: Path) -> None:
    needed = {
        ref: stream.instrument(csrc_of(repository, ref)).owned_stream_needed
        for ref in ("race", "fix^", "fix", "main", "refs/pull/7/head")
    }
    assert needed == {
        "race": True,
        "fix^": True,
        "fix": False,
        "main": False,
        "refs/pull/7/head": False,
    }


@pytest.mark.parametrize("ref", ["race", "fix", "main"])
def test_ffi13_adds_exactly_thirteen_stages(repository: Path, ref: str) -> None:
    assert sorted(ffi13.widen(csrc_of(repository, ref)).gained) == sorted(ffi13.HANDLERS)


def test_several_commits_touch_only_the_documentation(repository: Path) -> None:
    commits = mainline(repository)[1:]
    docs = [c for c in commits if all(p.startswith("docs/") for p in changed(repository, c))]
    assert len(docs) >= 5


def test_several_commits_change_the_extension_and_leave_its_captures_alone(
    repository: Path,
) -> None:
    tagged = {git(repository, "rev-parse", tag) for tag in TAGS}
    harmless = [
        commit
        for commit in mainline(repository)[1:]
        if commit not in tagged
        and any(path.startswith(CSRC) for path in changed(repository, commit))
    ]
    assert len(harmless) >= 6


def test_the_pull_request_starts_at_the_race_and_merges_onto_it(repository: Path) -> None:
    assert git(repository, "merge-base", PULL_REF, "main") == git(repository, "rev-parse", "race")


def test_the_pull_request_merges_onto_a_later_racing_commit(
    repository: Path, tmp_path: Path
) -> None:
    clone = tmp_path / "clone"
    git(repository, "worktree", "add", "--detach", str(clone), "fix^")
    try:
        git(clone, "-c", "user.name=a", "-c", "user.email=a@b.invalid", "merge", "-q", PULL_REF)
    finally:
        git(repository, "worktree", "remove", "--force", str(clone))


def test_what_is_in_the_way_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(InputError, match="mine exists already"):
        create(tmp_path / "mine")
    assert list((tmp_path / "mine").iterdir()) == []


def test_no_git_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InfrastructureError, match="no git on PATH"):
        create(tmp_path / "repository")
    assert list(tmp_path.iterdir()) == []


def test_a_failing_git_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shutil.which("git")
    assert real is not None
    fake = tmp_path / "bin" / "git"
    fake.parent.mkdir()
    fake.write_text(
        f'#!/bin/sh\n[ "$1" = fast-import ] && {{ echo "fatal: no space" >&2; exit 128; }}\n'
        f'exec {real} "$@"\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(InfrastructureError, match="git fast-import failed while generating"):
        create(tmp_path / "out" / "repository")
    assert list((tmp_path / "out").iterdir()) == []


def test_an_edit_whose_place_is_gone_or_not_unique_is_refused() -> None:
    files = {"a": "x x"}
    with pytest.raises(ValueError, match="2 places"):
        Replace("a", "x", "y").apply(files)
    with pytest.raises(ValueError, match="0 places"):
        Replace("a", "z", "y").apply(files)


def test_the_import_stream_is_the_same_each_time() -> None:
    assert demo_repo.import_stream() == demo_repo.import_stream()
