"""A subject's git repository: resolves refs, reads trees, exports commits, merges pull requests."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from filelock import FileLock

from runner.errors import InfrastructureError, RefError, SubjectError, VariantError
from runner.result import Commit

_FULL_SHA = re.compile(r"[0-9a-f]{40}")
_ABBREVIATED_SHA = re.compile(r"[0-9a-f]{4,39}")
_PULL = re.compile(r"(?:refs/)?pull/([1-9][0-9]*)(?:/head)?")
_UNSAFE = re.compile(r"^-|[\s\x00-\x1f\x7f:?*\[\\]")
_LOG_FORMAT = "%H%x00%s%x00%an%x00%cI"
_STEP = re.compile("\x01(?=[0-9a-f]{40}\0)")
_REVERT = re.compile(r'Revert ".*" \(([0-9a-f]{12})\) on ([0-9a-f]{12})')
_MERGE_TREE_VERSION = (2, 38)
SILENT_S = 300
"""Seconds after which a server that sends nothing is given up; who fetches keeps all others out."""
EXPORT_BYTES = 2**30
"""How large what is built of a commit may be: ten times TE with its submodules."""
_CONFLICTS_NAMED = 3
_ELSEWHERE = frozenset(
    f"GIT_{name}"
    for name in (
        "DIR",
        "WORK_TREE",
        "INDEX_FILE",
        "OBJECT_DIRECTORY",
        "ALTERNATE_OBJECT_DIRECTORIES",
        "COMMON_DIR",
        "NAMESPACE",
        "PREFIX",
    )
)
# The merge commit's hash must follow from its parents alone, whoever makes it and when.
_MERGER = {
    f"GIT_{role}_{field}": value
    for role in ("AUTHOR", "COMMITTER")
    for field, value in (("NAME", "Racewatch"), ("EMAIL", "racewatch@localhost"))
}
_PLAIN_MERGE = (
    *("-c", "merge.renames=true"),
    *("-c", "merge.directoryRenames=conflict"),
    *("-c", "merge.renormalize=false"),
    *("-c", "i18n.commitEncoding=UTF-8"),
)


@dataclass(frozen=True)
class Submodule:
    """A submodule as a commit pins it."""

    path: str
    url: str
    sha: str


@dataclass(frozen=True)
class Step:
    """A commit as one step of a first-parent history.

    parents: their hashes, the one that the step comes from first. paths: of the files in which it
    differs from that one, sorted.
    """

    commit: Commit
    parents: tuple[str, ...]
    paths: tuple[str, ...]


@dataclass(frozen=True)
class Repository:
    """A repository to read; what merging makes is written to `scratch`, never to `git_dir`.

    source: the URL or folder it was opened as. mirror: `git_dir` is a cache that is fetched into.
    """

    source: str
    git_dir: Path
    scratch: Path
    mirror: bool

    def resolve(self, ref: str) -> Commit:
        """The commit that a branch, a tag, a hash or `pull/N` names. Raises RefError."""
        if not ref or _UNSAFE.search(ref):
            raise RefError(f"ref {ref!r} cannot name a commit: give a branch, a tag or a hash")
        pull = _PULL.fullmatch(ref)
        name = f"refs/pull/{pull[1]}/head" if pull else ref
        # A hash that is here stays what it is: no need to ask the network.
        sha = self._find(name) if _FULL_SHA.fullmatch(ref) else None
        if sha is None:
            if self.mirror:
                self._fetch(name if pull else None)
            sha = self._find(name)
        if sha is not None:
            return self._commit(sha, f"pull/{pull[1]}" if pull else ref)
        if pull:
            raise RefError(f"pull request {pull[1]}: {self.source} has no {name}")
        raise RefError(f"ref {ref!r} names nothing in {self.source}: {self._advice(ref)}")

    def fetch_commit(self, commit: Commit) -> None:
        """Have a commit here that another host found out, or made as a revert. Raises RefError."""
        for wanted in (None, commit.sha) if self.mirror else ():
            if self._find(commit.sha) is not None or self._reverted_again(commit):
                return
            self._fetch(wanted)  # of its branch or tag; a pull request's head is on neither
        if self._find(commit.sha) is None and not self._reverted_again(commit):
            raise RefError(
                f"commit {commit.sha[:12]} is not in {self.source}: was it removed there since?"
            )

    def _reverted_again(self, commit: Commit) -> bool:
        """Whether it is a revert that its title tells how to make, and that is here now."""
        told = _REVERT.fullmatch(commit.title)
        if told is None:
            return False
        try:
            culprit, head = (self.resolve(sha) for sha in told.groups())
            return self.revert(culprit, head).sha == commit.sha
        except (RefError, VariantError):
            return False

    def merge(self, base: Commit, *pulls: int) -> Commit:
        """The heads of `pulls` merged onto `base` in turn, as a commit whose hash is reproducible.

        Raises RefError where there is no such pull request, VariantError where one conflicts.
        """
        for pull in pulls:
            base = self.merge_commit(base, self.resolve(f"pull/{pull}"))
        return base

    def merge_commit(self, base: Commit, head: Commit) -> Commit:
        """`head` merged onto `base`; `base` itself where it holds `head` already."""
        if self._succeeds("merge-base", "--is-ancestor", head.sha, base.sha):
            return base
        refused = f"{head.ref} does not merge onto {base.sha[:12]}"
        tree = self._merged_tree(base.sha, head.sha, refused)
        title = f"Merge {head.ref} ({head.sha[:12]}) onto {base.sha[:12]}"
        sha = self._make_commit(tree, (base.sha, head.sha), title)
        return self._commit(sha, f"{base.ref}+{head.ref}")

    def revert(self, culprit: Commit, head: Commit) -> Commit:
        """`head` without what `culprit` (or, a merge, its second parent) brought, as a commit on
        `head` whose hash is reproducible.

        Raises VariantError where it does not revert cleanly, or where nothing is left to revert.
        """
        if not self._succeeds("merge-base", "--is-ancestor", culprit.sha, head.sha):
            raise VariantError(f"{culprit.sha[:12]} is not in the history of {head.sha[:12]}")
        undone = self._find(f"{culprit.sha}^1")
        if undone is None:
            raise VariantError(f"{culprit.sha[:12]} is the first commit: nothing is before it")
        # Culprit's parent's tree as a child of culprit: merging that is reverting, and the base of
        # the merge is culprit without naming it, which takes a git newer than merging does.
        before = self._find_tree(undone)
        opposite = self._make_commit(before, (culprit.sha,), f"Undo {culprit.sha}")
        refused = f"{culprit.sha[:12]} does not revert cleanly on {head.sha[:12]}"
        tree = self._merged_tree(head.sha, opposite, refused)
        if tree == self._find_tree(head.sha):
            raise VariantError(
                f"nothing of {culprit.sha[:12]} is left in {head.sha[:12]} to be reverted"
            )
        title = f'Revert "{culprit.title}" ({culprit.sha[:12]}) on {head.sha[:12]}'
        sha = self._make_commit(tree, (head.sha,), title)
        return self._commit(sha, f"{head.ref}-{culprit.sha[:12]}")

    def _merged_tree(self, base: str, head: str, refused: str) -> str:
        """The tree of a merge; raises VariantError, which begins with `refused`."""
        _require_merge_tree()
        merged = self._git(
            *_PLAIN_MERGE, "merge-tree", "--write-tree", "--name-only", "-z", base, head,
            check=False,
        )  # fmt: skip
        tree, _, rest = merged.stdout.partition("\0")
        if merged.returncode == 1:
            files = rest.partition("\0\0")[0].split("\0")
            named = ", ".join(files[:_CONFLICTS_NAMED])
            more = f" and {len(files) - _CONFLICTS_NAMED} more" * (len(files) > _CONFLICTS_NAMED)
            raise VariantError(f"{refused}: conflicts in {named}{more}")
        if merged.returncode != 0:
            raise VariantError(f"{refused}: {_reason(merged.stderr)}")
        return tree

    def _make_commit(self, tree: str, parents: Sequence[str], title: str) -> str:
        """A commit whose hash follows from what is given alone."""
        times = self._git("show", "-s", "--format=%ct", *parents).stdout.split()
        date = f"{max(map(int, times))} +0000"
        linked = [argument for parent in parents for argument in ("-p", parent)]
        return self._git(
            *_PLAIN_MERGE,
            *("commit-tree", tree, *linked, "-m", title),
            environment={**_MERGER, "GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date},
        ).stdout.strip()

    def merge_base(self, one: Commit, other: Commit) -> Commit | None:
        """The newest commit that both have in their history; None where there is none."""
        found = self._git("merge-base", one.sha, other.sha, check=False).stdout.strip()
        return self._commit(found, found) if found else None

    def is_on_branch(self, sha: str) -> bool:
        """Whether a branch or a tag has a commit; a fork's, which no one took in, none has."""
        if self._is_held(sha) or not self.mirror:
            return self._is_held(sha)
        self._fetch(None)
        return self._is_held(sha)

    def _is_held(self, sha: str) -> bool:
        held = ("refs/heads", "refs/tags", "refs/remotes/origin")
        found = self._git("for-each-ref", "--count=1", f"--contains={sha}", *held)
        return bool(found.stdout.strip())

    def first_parent(self, head: Commit, *, since: Commit | None = None) -> list[Commit]:
        """Commits of the first-parent history, newest first, without those that `since` has."""
        limits = [f"^{since.sha}"] if since else []
        listed = self._git(
            "log", "--first-parent", f"--format={_LOG_FORMAT}", head.sha, *limits
        ).stdout
        # A title may hold other signs that end a line elsewhere.
        return [_parse_commit(line, "") for line in listed.split("\n")[:-1]]

    def steps(self, head: Commit, since: Commit) -> list[Step]:
        """First-parent history up to `head`, oldest first, without what `since` has."""
        listed = self._git(
            *("log", "-z", "--reverse", "--first-parent", "--diff-merges=first-parent"),
            *("--name-only", "--no-renames", "--no-ext-diff"),
            f"--format=%x01{_LOG_FORMAT}%x00%P%x00",
            *(head.sha, f"^{since.sha}"),
        ).stdout
        return [_parse_step(part) for part in _STEP.split(listed)[1:]]

    def tags(self) -> list[str]:
        """Names of all tags."""
        return self._git("tag", "--list").stdout.split()

    def tree_hashes(self, sha: str, paths: Sequence[str]) -> dict[str, str]:
        """Object hash of each path in a commit (a submodule's is the commit it pins).

        A path that the commit lacks has no entry.
        """
        # -t, or a folder is passed over where a path inside it is asked for too.
        listed = self._git("ls-tree", "-t", "-z", "--full-tree", sha, "--", *paths).stdout
        return {path: entry for _, entry, path in _entries(listed) if path in paths}

    def tree_hashes_of(self, shas: Sequence[str], paths: Sequence[str]) -> list[dict[str, str]]:
        """`tree_hashes` of many commits at once; of files and folders, not of submodules."""
        if not paths:
            return [{} for _ in shas]
        asked = "".join(f"{sha}:{path}\n" for sha in shas for path in paths)
        said = self._git("cat-file", "--batch-check=%(objectname)", text=asked).stdout.splitlines()
        found = iter(said)
        return [
            {path: name for path in paths if _FULL_SHA.fullmatch(name := next(found))} for _ in shas
        ]

    def texts_of(self, shas: Sequence[str], path: str) -> list[str | None]:
        """`text` of many commits at once."""
        names = [found.get(path) for found in self.tree_hashes_of(shas, [path])]
        wanted = sorted({name for name in names if name})
        contents = dict(zip(wanted, self._contents(wanted), strict=True))
        return [
            contents[name].decode("utf-8", "surrogateescape") if name else None for name in names
        ]

    def blobs(self, sha: str, folder: str) -> dict[str, str]:
        """Object hash of every file below a folder of a commit, submodules included."""
        listed = self._git("ls-tree", "-r", "-z", "--full-tree", sha, "--", f"{folder}/").stdout
        return {path: entry for _, entry, path in _entries(listed)}

    def text(self, sha: str, path: str) -> str | None:
        """A file's text in a commit, None where the commit has no such file."""
        shown = self._git("cat-file", "blob", f"{sha}:{path}", check=False)
        return shown.stdout if shown.returncode == 0 else None

    def submodules(self, sha: str) -> list[Submodule]:
        """The submodules that a commit pins."""
        listed = self._git(
            "config", "--blob", f"{sha}:.gitmodules", "-z", "--get-regexp", r"\.(path|url)$",
            check=False,
        )  # fmt: skip
        fields: dict[str, dict[str, str]] = {}
        for setting in listed.stdout.split("\0")[:-1]:
            key, _, value = setting.partition("\n")
            name, _, field = key.rpartition(".")
            fields.setdefault(name, {})[field] = value
        named = [each for each in fields.values() if {"path", "url"} <= each.keys()]
        pins = self.tree_hashes(sha, [each["path"] for each in named]) if named else {}
        return [
            Submodule(each["path"], each["url"], pins[each["path"]])
            for each in named
            if each["path"] in pins
        ]

    def export(self, sha: str, target: Path, paths: Sequence[str] = ()) -> None:
        """Write a commit's tracked files, or those below `paths`, into the new folder `target`.

        Submodules are left out. The folder appears only when it is complete.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            self._write_files(sha, scratch, paths)
            scratch.chmod(0o755)
            os.replace(scratch, target)
        except OSError as error:
            raise InfrastructureError(
                f"commit {sha[:12]} cannot be written to {target}: {error.strerror or error}"
            ) from error
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _write_files(self, sha: str, folder: Path, paths: Sequence[str]) -> None:
        below = ["--", *paths] if paths else []
        listed = self._git("ls-tree", "-r", "-z", "--full-tree", sha, *below).stdout
        entries = [entry for entry in _entries(listed) if entry[0] != "160000"]
        self._require_size(sha, [entry for _, entry, _ in entries])
        # Links last: nothing is ever written through a link that the commit itself brought.
        entries.sort(key=lambda entry: stat.S_ISLNK(int(entry[0], 8)))
        contents = self._contents([entry for _, entry, _ in entries])
        for (mode, _, path), content in zip(entries, contents, strict=True):
            if path.startswith("/") or ".." in path.split("/"):  # no git writes such a tree
                raise SubjectError(f"the commit's file {path!r} would lie outside of it")
            place = folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            if stat.S_ISLNK(int(mode, 8)):
                _write_link(folder, place, content)
            else:
                place.write_bytes(content)
                place.chmod(0o755 if int(mode, 8) & 0o100 else 0o644)
        for mode, _, path in entries:
            if stat.S_ISLNK(int(mode, 8)):
                _require_inside(folder, folder / path)

    def _require_size(self, sha: str, objects: Sequence[str]) -> None:
        """Raise SubjectError where a commit's files would fill the disk: a few bytes of a pack may
        stand for any number of them."""
        asked = "".join(f"{name}\n" for name in objects)
        sizes = self._git("cat-file", "--batch-check=%(objectsize)", text=asked).stdout.split()
        size = sum(int(each) for each in sizes if each.isdigit())
        if size > EXPORT_BYTES:
            raise SubjectError(
                f"commit {sha[:12]} has {size / 2**30:.1f} GiB in what a build takes of it, more "
                f"than {EXPORT_BYTES / 2**30:g} GiB: it is not built"
            )

    def _contents(self, objects: Sequence[str]) -> Iterator[bytes]:
        """What each object holds, in order."""
        with tempfile.TemporaryFile() as request:
            request.write("".join(f"{name}\n" for name in objects).encode())
            request.seek(0)
            process = subprocess.Popen(
                self._command("cat-file", "--batch"),
                env=self._environment({}),
                stdin=request,
                stdout=subprocess.PIPE,
            )
        with process:
            assert process.stdout is not None
            for name in objects:
                header = process.stdout.readline().split()
                if len(header) != 3:
                    raise InfrastructureError(
                        f"{self.source} lacks object {name}: it is a partial copy, fetch it whole"
                    )
                yield process.stdout.read(int(header[2]))
                process.stdout.read(1)

    def _find(self, name: str) -> str | None:
        answer = self._git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", check=False)
        return answer.stdout.strip() or None

    def _find_tree(self, sha: str) -> str:
        return self._git("rev-parse", "--verify", f"{sha}^{{tree}}").stdout.strip()

    def _commit(self, sha: str, ref: str) -> Commit:
        return _parse_commit(self._git("log", "-1", f"--format={_LOG_FORMAT}", sha).stdout, ref)

    def _advice(self, ref: str) -> str:
        if _ABBREVIATED_SHA.fullmatch(ref):
            candidates = self._git("rev-parse", f"--disambiguate={ref}").stdout.split()
            if len(candidates) > 1:
                return (
                    f"the hash is ambiguous ({len(candidates)} objects begin so), give more of it"
                )
        names = self._git(
            "for-each-ref",
            "--format=%(refname:lstrip=2)",
            "refs/heads",
            "refs/tags",
            "refs/remotes",
        ).stdout.split()
        close = difflib.get_close_matches(ref, names, n=3)
        hint = f" (did you mean {' or '.join(close)}?)" if close else ""
        return f"give a branch, a tag, a hash or pull/N{hint}"

    def _fetch(self, extra: str | None) -> None:
        """Bring the mirror up to date; with `extra`, only that one ref or hash."""
        refspecs = [extra if _FULL_SHA.fullmatch(extra) else f"+{extra}:{extra}"] if extra else []
        with FileLock(f"{self.git_dir}.lock"):
            fetched = _run(["git", f"--git-dir={self.git_dir}", "fetch", "--quiet", "origin",
                            *refspecs])  # fmt: skip
        lacking = ("couldn't find remote ref", "not our ref", "unadvertised object")
        missing = extra is not None and any(said in fetched.stderr for said in lacking)
        if fetched.returncode != 0 and not missing:
            raise InfrastructureError(f"{self.source} cannot be fetched: {_reason(fetched.stderr)}")

    def _command(self, *arguments: str) -> list[str]:
        return ["git", f"--git-dir={self.git_dir}", *arguments]

    def _environment(self, extra: Mapping[str, str]) -> dict[str, str]:
        """New objects go to the scratch folder, so that a read-only repository can be merged in."""
        return {
            **_own_environment(),
            "GIT_OBJECT_DIRECTORY": str(self.scratch),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(self.git_dir / "objects"),
            **extra,
        }

    def _git(
        self,
        *arguments: str,
        check: bool = True,
        environment: Mapping[str, str] | None = None,
        text: str = "",
    ) -> subprocess.CompletedProcess[str]:
        done = _run(self._command(*arguments), self._environment(environment or {}), text)
        if check and done.returncode != 0:
            raise InfrastructureError(
                f"git {arguments[0]} failed in {self.source}: {_reason(done.stderr)}"
            )
        return done

    def _succeeds(self, *arguments: str) -> bool:
        return self._git(*arguments, check=False).returncode == 0


def open_repository(source: str, cache: Path) -> Repository:
    """Open a folder as it is, read-only, or a URL through a bare mirror in the cache folder."""
    _require_git()
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    root = cache.absolute() / "git"
    local = _local_folder(source)
    if local is not None:
        git_dir = _git_dir_of(local)
        digest = hashlib.sha256(str(git_dir).encode()).hexdigest()[:16]
    else:
        name = re.sub(r"[^A-Za-z0-9]+", "-", source.rstrip("/").rsplit("/", 1)[-1]).strip("-")
        git_dir = root / f"{name}-{digest}.git"
        _make_mirror(source, git_dir)
    scratch = root / f"merged-{digest}"
    (scratch / "pack").mkdir(parents=True, exist_ok=True)
    return Repository(source, git_dir, scratch, mirror=local is None)


def open_commit(url: str, sha: str, cache: Path) -> Repository:
    """A repository that holds one commit of `url`, and no more of it than that commit.

    Raises InfrastructureError where it cannot be fetched.
    """
    _require_git()
    if _local_folder(url) is not None:
        return open_repository(url, cache)
    git_dir = cache.absolute() / "git" / f"commit-{sha}.git"
    scratch = git_dir.with_name(f"merged-{sha}")
    (scratch / "pack").mkdir(parents=True, exist_ok=True)
    _make_git_dir(
        url,
        git_dir,
        [["remote", "add", "origin", url], ["fetch", "--quiet", "--depth=1", "origin", sha]],
    )
    return Repository(url, git_dir, scratch, mirror=False)


def _local_folder(source: str) -> Path | None:
    """The folder that a source names; None for a URL or git's short form `host:path`."""
    path = Path(source.removeprefix("file://")).expanduser()
    if path.exists() or not re.match(r"[A-Za-z][A-Za-z0-9+.-]*://|[^/]+:", source):
        return path
    return None


def _git_dir_of(folder: Path) -> Path:
    if not folder.is_dir():
        raise SubjectError(f"repository {folder}: there is no such folder")
    answer = _run(["git", "-C", str(folder), "rev-parse", "--git-common-dir"])
    if answer.returncode != 0:
        raise SubjectError(f"repository {folder}: {_reason(answer.stderr)}")
    return (folder / answer.stdout.strip()).resolve()


def _make_mirror(url: str, git_dir: Path) -> None:
    _make_git_dir(
        url,
        git_dir,
        [
            ["remote", "add", "origin", url],
            ["config", "remote.origin.fetch", "+refs/heads/*:refs/heads/*"],
            ["config", "--add", "remote.origin.fetch", "+refs/tags/*:refs/tags/*"],
            ["config", "remote.origin.prune", "true"],
            ["fetch", "--quiet", "--no-auto-gc", "origin"],
        ],
    )


def _make_git_dir(url: str, git_dir: Path, steps: Sequence[Sequence[str]]) -> None:
    """Make a bare repository once, by steps run in it; it appears only when they all succeeded."""
    git_dir.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{git_dir}.lock"):
        if git_dir.is_dir():
            return
        with tempfile.TemporaryDirectory(prefix=f".{git_dir.name}-", dir=git_dir.parent) as scratch:
            fresh = Path(scratch) / "bare"
            commands = [["init", "--quiet", "--bare", str(fresh)]]
            commands += [[f"--git-dir={fresh}", *step] for step in steps]
            for command in commands:
                done = _run(["git", *command])
                if done.returncode != 0:
                    raise InfrastructureError(
                        f"{url} cannot be fetched: {_reason(done.stderr)}; where this host has a "
                        "copy, point git at it with url.<copy>.insteadOf"
                    )
            os.replace(fresh, git_dir)


def _own_environment() -> dict[str, str]:
    """The user's environment without what would point git at another repository (as in a hook)."""
    kept = {name: value for name, value in os.environ.items() if name not in _ELSEWHERE}
    return {
        "GIT_HTTP_LOW_SPEED_LIMIT": "1",
        "GIT_HTTP_LOW_SPEED_TIME": str(SILENT_S),
        **kept,
        "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
    }


def _run(
    command: Sequence[str], environment: Mapping[str, str] | None = None, text: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run git with `text` as its standard input."""
    done = subprocess.run(
        command,
        env=environment or _own_environment(),
        input=text.encode("utf-8", "surrogateescape"),
        capture_output=True,
        check=False,
    )
    # Not as a text stream's, which would take a carriage return for the end of a line.
    said = (each.decode("utf-8", "surrogateescape") for each in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, *said)


def _require_git() -> None:
    if shutil.which("git") is None:
        raise InfrastructureError("no git: install it (package git), commits are read with it")


def _require_merge_tree() -> None:
    answer = _run(["git", "--version"]).stdout
    numbers = tuple(int(part) for part in re.findall(r"\d+", answer)[:2])
    if numbers < _MERGE_TREE_VERSION:
        raise InfrastructureError(
            f"{answer.strip()} cannot merge without a work tree: install git 2.38 or newer"
        )


def _reason(stderr: str) -> str:
    """What git complained about first, without its prefix."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("fatal:", "error:"))] or lines
    return re.sub(r"^(fatal|error): ", "", errors[0]).strip() if errors else "git said nothing"


def _parse_commit(line: str, ref: str) -> Commit:
    sha, title, author, date = line.rstrip("\n").split("\0")
    return Commit(sha=sha, ref=ref or sha, title=title, author=author, date=date)


def _parse_step(part: str) -> Step:
    sha, title, author, date, parents, *rest = part.split("\0")
    # The names begin on a line of their own where there are any.
    paths = [name.removeprefix("\n") for name in rest]
    commit = Commit(sha=sha, ref=sha, title=title, author=author, date=date)
    return Step(commit, tuple(parents.split()), tuple(sorted(path for path in paths if path)))


def _entries(listed: str) -> Iterator[tuple[str, str, str]]:
    """(mode, object, path) of each entry of `ls-tree -z`."""
    for entry in listed.split("\0")[:-1]:
        facts, _, path = entry.partition("\t")
        mode, _, name = facts.split(" ")
        yield mode, name, path


def _write_link(folder: Path, place: Path, content: bytes) -> None:
    """A link of the commit's own, refused where it leads out of the exported folder."""
    target = os.fsdecode(content)
    path = PurePosixPath(os.path.normpath(place.parent.relative_to(folder) / target))
    if os.path.isabs(target) or ".." in path.parts[:1]:
        raise _leads_out(folder, place, target)
    place.symlink_to(target)


def _require_inside(folder: Path, place: Path) -> None:
    """Refuse a link that leads out by way of others: behind a link, `..` is not its parent."""
    if not Path(os.path.realpath(place)).is_relative_to(os.path.realpath(folder)):
        raise _leads_out(folder, place, os.readlink(place))


def _leads_out(folder: Path, place: Path, target: str) -> SubjectError:
    return SubjectError(
        f"the commit's link {place.relative_to(folder)} leads outside of it, to {target!r}"
    )
