"""Commits through git: refs that resolve or are refused, exact exports, merges that reproduce."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from runner import git
from runner.errors import InfrastructureError, RefError, SubjectError, VariantError
from runner.git import Repository, open_commit, open_repository
from runner.result import Commit

IDENTITY = {
    f"GIT_{role}_{field}": value
    for role in ("AUTHOR", "COMMITTER")
    for field, value in (
        ("NAME", "Ada"),
        ("EMAIL", "ada@example.org"),
        ("DATE", "2026-01-02T03:04:05+00:00"),
    )
}


@dataclass(frozen=True)
class Work:
    """A repository with a work tree, to make commits in."""

    folder: Path

    def git(self, *arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", self.folder, *arguments],
            env={**os.environ, **IDENTITY},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()

    def commit(self, title: str, files: Mapping[str, str]) -> str:
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", title)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def work(tmp_path: Path) -> Work:
    folder = tmp_path / "work"
    folder.mkdir()
    work = Work(folder)
    work.git("init", "--quiet", "--initial-branch=main")
    work.commit("First", {"README": "one\n", "src/kernel.cpp": "a\nb\nc\nd\ne\n"})
    return work


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def repository(work: Work, cache: Path) -> Repository:
    return open_repository(str(work.folder), cache)


def test_a_branch_a_tag_a_hash_and_a_short_hash_resolve_to_one_commit(
    work: Work, repository: Repository
) -> None:
    sha = work.commit("Second", {"README": "two\n"})
    work.git("tag", "-a", "v1", "-m", "release")

    for ref in ("main", "v1", "HEAD", sha, sha[:8]):
        commit = repository.resolve(ref)
        assert (commit.sha, commit.ref) == (sha, ref)


def test_a_commit_has_its_title_author_and_date(work: Work, repository: Repository) -> None:
    work.commit("Fix the race\n\nBody", {"README": "two\n"})

    commit = repository.resolve("main")

    assert commit.title == "Fix the race"
    assert commit.author == "Ada"
    assert commit.date == "2026-01-02T03:04:05+00:00"


def test_a_pull_request_resolves_to_its_head(work: Work, repository: Repository) -> None:
    sha = work.commit("Proposed", {"README": "pull\n"})
    work.git("update-ref", "refs/pull/7/head", sha)

    for ref in ("pull/7", "refs/pull/7/head"):
        commit = repository.resolve(ref)
        assert (commit.sha, commit.ref) == (sha, "pull/7")


def test_an_unknown_ref_suggests_close_ones(work: Work, repository: Repository) -> None:
    work.git("tag", "v2.10")

    with pytest.raises(RefError, match=r"ref 'v2\.1' names nothing in .*did you mean v2\.10"):
        repository.resolve("v2.1")


def test_an_unknown_pull_request_is_one_sentence(repository: Repository) -> None:
    with pytest.raises(RefError, match=r"pull request 12: .* has no refs/pull/12/head"):
        repository.resolve("pull/12")


def test_an_ambiguous_hash_says_so(work: Work, repository: Repository) -> None:
    hashes = [work.git("rev-parse", "HEAD")]
    while len({sha[:4] for sha in hashes}) == len(hashes):
        tree, parent = work.git("rev-parse", "HEAD^{tree}"), hashes[-1]
        hashes.append(work.git("commit-tree", tree, "-p", parent, "-m", "x"))

    with pytest.raises(RefError, match=r"the hash is ambiguous \(\d+ objects begin so\)"):
        repository.resolve(hashes[-1][:4])


@pytest.mark.parametrize("ref", ["", "-x", "--upload-pack=touch", "a b", "main:README", "a\nb"])
def test_what_cannot_be_a_ref_is_refused_before_git_sees_it(
    repository: Repository, ref: str
) -> None:
    with pytest.raises(RefError, match="cannot name a commit"):
        repository.resolve(ref)


def test_a_tag_of_a_file_is_no_commit(work: Work, repository: Repository) -> None:
    work.git("tag", "blob", "HEAD:README")

    with pytest.raises(RefError, match="'blob' names nothing"):
        repository.resolve("blob")


def test_a_folder_that_is_no_repository_is_one_sentence(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "plain").mkdir()

    with pytest.raises(SubjectError, match=r"repository .*/plain: not a git repository"):
        open_repository(str(tmp_path / "plain"), cache)


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(SubjectError, match="there is no such folder"):
        open_repository(str(tmp_path / "gone"), cache)


def test_a_url_that_cannot_be_fetched_leaves_no_mirror(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(InfrastructureError, match="cannot be fetched"):
        open_repository(f"ssh+nothing://{tmp_path}/gone.git", cache)

    assert not [path for path in (cache / "git").iterdir() if path.suffix != ".lock"]


def test_a_url_is_mirrored_once_and_brought_up_to_date(work: Work, cache: Path) -> None:
    url = f"file://localhost{work.folder}"
    first = open_repository(url, cache)
    sha = work.commit("Later", {"README": "later\n"})
    work.git("tag", "later")
    work.git("update-ref", "refs/pull/3/head", sha)

    again = open_repository(url, cache)

    assert first.mirror
    assert again.git_dir == first.git_dir
    assert [again.resolve(ref).sha for ref in ("main", "later", "pull/3")] == [sha] * 3


def test_a_known_hash_needs_no_network(work: Work, cache: Path) -> None:
    mirror = open_repository(f"file://localhost{work.folder}", cache)
    sha = work.git("rev-parse", "HEAD")
    work.folder.rename(work.folder.with_name("moved"))

    assert mirror.resolve(sha).sha == sha
    with pytest.raises(InfrastructureError, match="cannot be fetched"):
        mirror.resolve("main")


def test_a_commit_that_the_server_gives_no_one_is_not_there(
    work: Work, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = open_repository(f"file://localhost{work.folder}", cache)
    gone = Commit("e" * 40, "main", "Gone")
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "protocol.version")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "0")  # its servers refuse hashes in words of their own
    with pytest.raises(RefError, match="commit eeeeeeeeeeee is not in"):
        mirror.fetch_commit(gone)


def test_a_server_that_falls_silent_is_not_waited_for_for_ever(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git, "SILENT_S", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/repository.git"
        with pytest.raises(InfrastructureError, match="cannot be fetched"):
            open_repository(url, cache)


def test_one_pinned_commit_is_fetched_alone(work: Work, cache: Path) -> None:
    pinned = work.commit("Pinned", {"README": "pinned\n"})
    work.commit("Newer", {"README": "newer\n"})

    source = open_commit(f"file://localhost{work.folder}", pinned, cache)

    assert source.text(pinned, "README") == "pinned\n"
    assert [each.title for each in source.first_parent(source.resolve(pinned))] == ["Pinned"]


def test_an_export_holds_the_tracked_files_and_nothing_else(
    work: Work, repository: Repository, tmp_path: Path
) -> None:
    (work.folder / "tool").write_text("#!/bin/sh\n")
    (work.folder / "tool").chmod(0o755)
    (work.folder / "link").symlink_to("src/kernel.cpp")
    sha = work.commit(
        "More", {".gitignore": "*.o\n", "ä ö": "\n", ".gitattributes": "src export-ignore\n"}
    )
    (work.folder / "untracked.txt").write_text("no")
    (work.folder / "built.o").write_text("no")

    repository.export(sha, tmp_path / "out")

    out = tmp_path / "out"
    files = sorted(str(path.relative_to(out)) for path in out.rglob("*") if not path.is_dir())
    assert files == work.git(
        "-c", "core.quotePath=false", "ls-tree", "-r", "--name-only", sha
    ).split("\n")
    assert os.access(out / "tool", os.X_OK)
    assert not os.access(out / "README", os.X_OK)
    assert os.readlink(out / "link") == "src/kernel.cpp"


def test_an_export_of_some_folders_leaves_out_the_rest(
    repository: Repository, tmp_path: Path
) -> None:
    repository.export(repository.resolve("main").sha, tmp_path / "out", ["src"])

    assert [path.name for path in (tmp_path / "out").iterdir()] == ["src"]


@pytest.mark.parametrize("target", ["/etc/passwd", "../../outside"])
def test_a_link_that_leads_out_is_refused_and_nothing_is_left(
    work: Work, repository: Repository, tmp_path: Path, target: str
) -> None:
    (work.folder / "src" / "link").symlink_to(target)
    sha = work.commit("Link", {})

    with pytest.raises(SubjectError, match=r"link src/link leads outside of it"):
        repository.export(sha, tmp_path / "deep" / "out")

    assert list((tmp_path / "deep").iterdir()) == []


def test_a_link_that_leads_out_by_way_of_another_is_refused(
    work: Work, repository: Repository, tmp_path: Path
) -> None:
    (work.folder / "here").symlink_to(".")
    (work.folder / "out").symlink_to("here/here/here/../../../../secret")
    (work.folder / "innocent").symlink_to("here/README")
    (tmp_path / "secret").write_text("of the host")
    sha = work.commit("Links", {})

    with pytest.raises(SubjectError, match=r"link out leads outside of it"):
        repository.export(sha, tmp_path / "out")

    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "a/../../evil"])
def test_a_tree_that_no_git_writes_is_refused(
    work: Work, repository: Repository, tmp_path: Path, name: str
) -> None:
    blob = work.git("rev-parse", "HEAD:README")
    tree = f"100644 {name}\0".encode() + bytes.fromhex(blob)
    made = ["git", "-C", str(work.folder), "hash-object", "--literally", "-t", "tree", "-w"]
    written = subprocess.run([*made, "--stdin"], input=tree, check=True, capture_output=True)
    sha = work.git("commit-tree", written.stdout.decode().strip(), "-m", "hostile")

    with pytest.raises(SubjectError, match=r"would lie outside of it"):
        repository.export(sha, tmp_path / "deep" / "out")

    assert list((tmp_path / "deep").iterdir()) == []


def test_a_commit_that_would_fill_the_disk_is_refused_before_it_is_written(
    work: Work, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git, "EXPORT_BYTES", 1000)
    sha = work.commit("Large", {"large": "0" * 1001})

    with pytest.raises(SubjectError, match=r"it is not built"):
        repository.export(sha, tmp_path / "out")
    repository.export(sha, tmp_path / "part", ["src"])

    assert [path.name for path in (tmp_path / "part").iterdir()] == ["src"]


def test_one_file_can_be_exported(work: Work, repository: Repository, tmp_path: Path) -> None:
    repository.export(repository.resolve("main").sha, tmp_path / "out", ["README"])

    assert [path.name for path in (tmp_path / "out").iterdir()] == ["README"]


def test_tree_hashes_are_gits_and_absent_paths_have_none(
    work: Work, repository: Repository
) -> None:
    sha = work.git("rev-parse", "HEAD")

    hashes = repository.tree_hashes(sha, ["src", "src/kernel.cpp", "no/such"])

    assert hashes == {
        "src": work.git("rev-parse", "HEAD:src"),
        "src/kernel.cpp": work.git("rev-parse", "HEAD:src/kernel.cpp"),
    }


def test_the_files_below_a_folder_are_listed_with_their_hashes(
    work: Work, repository: Repository
) -> None:
    sha = work.commit("More", {"src/deep/two.cpp": "2\n", "src.txt": "beside\n"})

    assert sorted(repository.blobs(sha, "src")) == ["src/deep/two.cpp", "src/kernel.cpp"]


def test_a_submodule_is_listed_with_the_commit_it_pins(work: Work, repository: Repository) -> None:
    pinned = "57e3cfb47a2d9e0d46eb6335c3dc411498efa198"
    (work.folder / ".gitmodules").write_text(
        '[submodule "a.b"]\n\tpath = 3rdparty/ab\n\turl = https://example.org/ab.git\n'
        '[submodule "gone"]\n\tpath = 3rdparty/gone\n\turl = https://example.org/gone.git\n'
    )
    work.git("update-index", "--add", "--cacheinfo", f"160000,{pinned},3rdparty/ab")
    work.git("add", ".gitmodules")
    work.git("commit", "--quiet", "-m", "Submodule")

    (found,) = repository.submodules(repository.resolve("main").sha)

    assert (found.path, found.url, found.sha) == (
        "3rdparty/ab",
        "https://example.org/ab.git",
        pinned,
    )


def test_first_parents_leave_out_what_a_merge_brought(work: Work, repository: Repository) -> None:
    first = repository.resolve("main")
    work.git("checkout", "--quiet", "-b", "side")
    work.commit("On the side", {"side": "1\n"})
    work.git("checkout", "--quiet", "main")
    work.commit("On main", {"main": "1\n"})
    work.git("merge", "--quiet", "--no-ff", "-m", "Merge side", "side")

    listed = repository.first_parent(repository.resolve("main"))
    since = repository.first_parent(repository.resolve("main"), since=first)

    assert [commit.title for commit in listed] == ["Merge side", "On main", "First"]
    assert [commit.title for commit in since] == ["Merge side", "On main"]


@pytest.mark.parametrize("sign", ["\u2028", "\x85", "\x0b", "\x0c", "\x1c", "\r"])
def test_a_title_may_hold_what_else_ends_a_line(
    work: Work, repository: Repository, sign: str
) -> None:
    sha = work.commit(f"One{sign}two", {"README": "two\n"})
    newest, first = repository.first_parent(repository.resolve("main"))
    assert (newest.sha, newest.title, first.title) == (sha, f"One{sign}two", "First")


def propose(work: Work, number: int, files: Mapping[str, str]) -> str:
    """A pull request that branches off here; main stays where it is."""
    work.git("checkout", "--quiet", "-b", f"proposal-{number}")
    sha = work.commit(f"Proposal {number}", files)
    work.git("update-ref", f"refs/pull/{number}/head", sha)
    work.git("checkout", "--quiet", "main")
    work.git("branch", "--quiet", "-D", f"proposal-{number}")
    return sha


@pytest.mark.parametrize("scheme", ["", "file://localhost"])
def test_a_commit_of_a_proposal_is_on_no_branch_until_it_is_taken_in(
    work: Work, cache: Path, scheme: str
) -> None:
    first = work.git("rev-parse", "HEAD")
    proposed = propose(work, 4, {"new": "file\n"})
    work.commit("Meanwhile", {"README": "two\n"})
    repository = open_repository(f"{scheme}{work.folder}", cache)
    assert repository.resolve("pull/4").sha == proposed

    assert repository.is_on_branch(first)
    assert not repository.is_on_branch(proposed)
    work.git("merge", "--quiet", "--no-edit", proposed)
    assert repository.is_on_branch(proposed)


def snapshot(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_a_merge_holds_both_sides_and_names_its_parents(
    work: Work, repository: Repository, tmp_path: Path
) -> None:
    head = propose(work, 5, {"src/kernel.cpp": "a\nb\nc\nd\nE\n"})
    base = work.commit("Main moves on", {"src/kernel.cpp": "A\nb\nc\nd\ne\n"})

    merged = repository.merge(repository.resolve("main"), 5)

    assert repository.text(merged.sha, "src/kernel.cpp") == "A\nb\nc\nd\nE\n"
    assert merged.title == f"Merge pull/5 ({head[:12]}) onto {base[:12]}"
    repository.export(merged.sha, tmp_path / "out")
    assert (tmp_path / "out" / "src" / "kernel.cpp").read_text() == "A\nb\nc\nd\nE\n"


def test_a_merges_hash_does_not_depend_on_who_merges_or_where(
    work: Work, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    propose(work, 5, {"new": "1\n"})
    work.commit("Main moves on", {"README": "two\n"})
    first = repository.merge(repository.resolve("main"), 5)
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Someone else")
    monkeypatch.setenv("TZ", "Pacific/Auckland")

    other = open_repository(f"file://localhost{work.folder}", tmp_path / "other cache")

    assert other.merge(other.resolve("main"), 5).sha == first.sha


def test_merging_does_not_touch_the_repository(
    work: Work, repository: Repository, cache: Path
) -> None:
    propose(work, 5, {"new": "1\n"})
    work.commit("Main moves on", {"README": "two\n"})
    before = snapshot(work.folder)

    merged = repository.merge(repository.resolve("main"), 5)

    assert snapshot(work.folder) == before
    assert open_repository(str(work.folder), cache).resolve(merged.sha).title == merged.title


def test_two_pull_requests_merge_one_after_the_other(work: Work, repository: Repository) -> None:
    propose(work, 5, {"five": "5\n"})
    propose(work, 6, {"six": "6\n"})
    work.commit("Main moves on", {"README": "two\n"})

    merged = repository.resolve("main")
    for pull in (5, 6):
        merged = repository.merge(merged, pull)

    assert {"five", "six", "README"} <= repository.tree_hashes(
        merged.sha, ["five", "six", "README"]
    ).keys()


def test_a_conflict_is_the_variants_reason(work: Work, repository: Repository) -> None:
    propose(work, 5, {"README": "theirs\n"})
    work.commit("Main moves on", {"README": "ours\n"})

    with pytest.raises(
        VariantError, match=r"pull/5 does not merge onto \w{12}: conflicts in README$"
    ):
        repository.merge(repository.resolve("main"), 5)


def test_a_pull_request_without_common_history_is_the_variants_reason(
    work: Work, repository: Repository
) -> None:
    work.git("checkout", "--quiet", "--orphan", "alien")
    sha = work.commit("Alien", {"alien": "1\n"})
    work.git("update-ref", "refs/pull/9/head", sha)
    work.git("checkout", "--quiet", "main")

    with pytest.raises(VariantError, match="unrelated histories"):
        repository.merge(repository.resolve("main"), 9)


def test_a_pull_request_that_is_in_already_changes_nothing(
    work: Work, repository: Repository
) -> None:
    sha = work.git("rev-parse", "HEAD")
    work.git("update-ref", "refs/pull/5/head", sha)
    work.commit("Main moves on", {"README": "two\n"})
    base = repository.resolve("main")

    assert repository.merge(base, 5) == base


def test_the_merge_base_of_two_lines_is_where_they_parted(
    work: Work, repository: Repository
) -> None:
    parted = work.git("rev-parse", "HEAD")
    work.git("checkout", "--quiet", "-b", "release")
    work.commit("On the release", {"release": "1\n"})
    work.git("checkout", "--quiet", "main")
    work.commit("On main", {"main": "1\n"})

    base = repository.merge_base(repository.resolve("main"), repository.resolve("release"))

    assert base is not None
    assert base.sha == parted


def test_a_git_hooks_environment_does_not_lead_elsewhere(
    work: Work, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_OBJECT_DIRECTORY", str(tmp_path / "elsewhere" / "objects"))

    assert repository.resolve("main").title == "First"


def test_a_host_without_git_is_one_sentence(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(InfrastructureError, match="no git: install it"):
        open_repository(str(tmp_path), cache)


def test_steps_have_their_parents_and_paths_oldest_first(
    work: Work, repository: Repository
) -> None:
    first = work.git("rev-parse", "HEAD")
    work.commit("Two\x01files", {"b.txt": "1\n", "a dir/ä.txt": "2\n"})
    work.git("checkout", "--quiet", "-b", "side")
    work.commit("Aside", {"side.txt": "1\n"})
    work.git("checkout", "--quiet", "main")
    work.commit("Nothing", {})
    work.git("merge", "--quiet", "--no-ff", "-m", "Merge side", "side")

    steps = repository.steps(repository.resolve("main"), repository.resolve(first))

    assert [step.commit.title for step in steps] == ["Two\x01files", "Nothing", "Merge side"]
    assert [step.paths for step in steps] == [("a dir/ä.txt", "b.txt"), (), ("side.txt",)]
    assert [len(step.parents) for step in steps] == [1, 1, 2]
    assert steps[2].parents[1] == work.git("rev-parse", "side")


def test_there_are_no_steps_from_a_commit_to_itself(repository: Repository) -> None:
    head = repository.resolve("main")
    assert repository.steps(head, head) == []


def test_trees_and_texts_of_many_commits_are_those_of_each(
    work: Work, repository: Repository
) -> None:
    shas = [work.git("rev-parse", "HEAD"), work.commit("Two", {"src/b.txt": "b\n", "V": "2\n"})]
    paths = ["src", "V", "nowhere", "README"]

    assert repository.tree_hashes_of(shas, paths) == [
        repository.tree_hashes(sha, paths) for sha in shas
    ]
    assert repository.tree_hashes_of(shas, []) == [{}, {}]
    assert repository.texts_of(shas, "V") == [None, "2\n"]
    assert repository.texts_of([], "V") == []


def test_a_revert_takes_one_commit_out_of_the_head(work: Work, repository: Repository) -> None:
    culprit = work.commit("Break it", {"bad.txt": "bad\n", "README": "two\n"})
    head = work.commit("Go on", {"other.txt": "more\n"})

    reverted = repository.revert(repository.resolve(culprit), repository.resolve(head))

    assert repository.text(reverted.sha, "bad.txt") is None
    assert repository.text(reverted.sha, "README") == "one\n"
    assert repository.text(reverted.sha, "other.txt") == "more\n"
    assert repository.first_parent(reverted)[1].sha == head
    assert "Break it" in reverted.title
    again = repository.revert(repository.resolve(culprit), repository.resolve(head))
    assert again.sha == reverted.sha


@pytest.mark.parametrize("scheme", ["", "file://localhost"])
def test_a_revert_is_made_again_where_it_is_not_there(
    work: Work, repository: Repository, tmp_path: Path, scheme: str
) -> None:
    culprit = work.commit("Break it", {"bad.txt": "bad\n"})
    head = work.commit("Go on", {"other.txt": "more\n"})
    reverted = repository.revert(repository.resolve(culprit), repository.resolve(head))

    elsewhere = open_repository(f"{scheme}{work.folder}", tmp_path / "elsewhere")
    elsewhere.fetch_commit(reverted)

    assert elsewhere.text(reverted.sha, "bad.txt") is None


def test_reverting_a_merge_takes_out_what_its_branch_brought(
    work: Work, repository: Repository
) -> None:
    work.git("checkout", "--quiet", "-b", "side")
    work.commit("Aside", {"side.txt": "1\n"})
    work.git("checkout", "--quiet", "main")
    work.commit("Main", {"main.txt": "1\n"})
    work.git("merge", "--quiet", "--no-ff", "-m", "Merge side", "side")
    merge = repository.resolve("main")
    head = repository.resolve(work.commit("Go on", {"other.txt": "1\n"}))

    reverted = repository.revert(merge, head)

    assert repository.text(reverted.sha, "side.txt") is None
    assert repository.text(reverted.sha, "main.txt") == "1\n"


def test_a_revert_that_conflicts_is_one_sentence(work: Work, repository: Repository) -> None:
    culprit = work.commit("Break it", {"README": "two\n"})
    head = work.commit("Build on it", {"README": "two and a half\n"})
    with pytest.raises(VariantError, match=r"does not revert cleanly on .*: conflicts in README"):
        repository.revert(repository.resolve(culprit), repository.resolve(head))


def test_what_is_gone_or_elsewhere_cannot_be_reverted(work: Work, repository: Repository) -> None:
    first = repository.resolve(work.git("rev-parse", "HEAD"))
    culprit = repository.resolve(work.commit("Break it", {"bad.txt": "bad\n"}))
    head = repository.resolve(work.git("rev-parse", "HEAD"))
    work.git("revert", "--no-edit", "HEAD")
    undone = repository.resolve("main")

    with pytest.raises(VariantError, match=r"nothing of .* is left in"):
        repository.revert(culprit, undone)
    with pytest.raises(VariantError, match="is not in the history of"):
        repository.revert(culprit, first)
    with pytest.raises(VariantError, match="is the first commit"):
        repository.revert(first, head)
