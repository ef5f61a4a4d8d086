"""Generates the demo subject's git repository; its hashes are the same everywhere and always."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from runner.emulation.history import (
    HISTORY,
    PULL,
    PULL_BASE,
    PULL_NUMBER,
    Commit,
    Edit,
    Merge,
)
from runner.errors import InfrastructureError, InputError

TREE = Path(__file__).parent / "emulation" / "demo_tree"
TAGS = ("before", "race", "broken", "fix")
PULL_REF = f"refs/pull/{PULL_NUMBER}/head"
_AUTHOR = "Demo Author <demo@example.invalid>"
_START = 1_790_000_000  # 2026-09-21
_STEP = 7_200  # seconds between commits


def create(path: Path) -> None:
    """Create the repository at `path`, with main checked out.

    Raises InputError where something is in the way, InfrastructureError where git is missing or
    fails; then nothing is left at `path`.
    """
    if path.exists():
        raise InputError(f"{path} exists already; give a path that does not, or remove it")
    if shutil.which("git") is None:
        raise InfrastructureError("no git on PATH; install git to generate the demo subject")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".demo-", dir=path.parent) as scratch:
        repository = Path(scratch) / "repository"
        _git("init", "--quiet", "--template=", "--initial-branch=main", str(repository))
        _git("-C", str(repository), "fast-import", "--quiet", stdin=import_stream())
        _git("-C", str(repository), "reset", "--quiet", "--hard", "main")
        os.replace(repository, path)


def import_stream() -> bytes:
    """The whole history in the format that `git fast-import` reads."""
    stream = _Stream()
    files = _base_tree()
    mainline = [stream.commit("main", HISTORY[0], files, parents=())]
    trees = [dict(files)]
    tags = {}
    for entry in HISTORY[1:]:
        tip = mainline[-1]
        if isinstance(entry, Merge):
            fork = len(mainline) - entry.since
            side, side_files = mainline[fork], dict(trees[fork])
            for commit in entry.branch:
                side = stream.commit("softmax-checks", commit, side_files, parents=(side,))
            files.update(_edited(entry.branch, files))
            merged = Commit(entry.subject, tag=entry.tag)
            mark = stream.commit("main", merged, files, parents=(tip, side))
        else:
            mark = stream.commit("main", entry, files, parents=(tip,))
        mainline.append(mark)
        trees.append(dict(files))
        if entry.tag:
            tags[entry.tag] = (mark, dict(files))
    pull, pull_files = tags[PULL_BASE]
    for commit in PULL:
        pull = stream.commit("pull", commit, pull_files, parents=(pull,))
    for name, (mark, _) in tags.items():
        stream.reset(f"refs/tags/{name}", mark)
    stream.reset(PULL_REF, pull)
    # The branches' own names were only needed to import them.
    for name in ("softmax-checks", "pull"):
        stream.delete(f"refs/heads/{name}")
    return bytes(stream.data)


def _base_tree() -> dict[str, str]:
    paths = sorted(path for path in TREE.rglob("*") if path.is_file())
    return {path.relative_to(TREE).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def _edited(commits: tuple[Commit, ...], files: dict[str, str]) -> dict[str, str]:
    edited = dict(files)
    for commit in commits:
        _apply(commit.edits, edited)
    return edited


def _apply(edits: tuple[Edit, ...], files: dict[str, str]) -> None:
    for edit in edits:
        edit.apply(files)


@dataclass
class _Stream:
    """A fast-import stream under construction; marks count commits from 1."""

    data: bytearray = field(default_factory=bytearray)
    mark: int = 0

    def commit(
        self, branch: str, commit: Commit, files: dict[str, str], parents: tuple[int, ...]
    ) -> int:
        """Apply the commit's edits to `files` and add it; returns its mark."""
        _apply(commit.edits, files)
        self.mark += 1
        when = f"{_START + self.mark * _STEP} +0000"
        message = commit.subject + (f"\n\n{commit.body}" if commit.body else "") + "\n"
        self._line(f"commit refs/heads/{branch}")
        self._line(f"mark :{self.mark}")
        self._line(f"author {_AUTHOR} {when}")
        self._line(f"committer {_AUTHOR} {when}")
        self._data(message)
        for keyword, parent in zip(("from", "merge"), parents, strict=False):
            self._line(f"{keyword} :{parent}")
        self._line("deleteall")
        for path, text in sorted(files.items()):
            self._line(f"M 100644 inline {path}")
            self._data(text)
        return self.mark

    def reset(self, ref: str, mark: int) -> None:
        """Point `ref` at a commit."""
        self._line(f"reset {ref}")
        self._line(f"from :{mark}")
        self._line("")

    def delete(self, ref: str) -> None:
        """Take `ref` away again."""
        self._line(f"reset {ref}")
        self._line(f"from {'0' * 40}")
        self._line("")

    def _line(self, text: str) -> None:
        self.data += f"{text}\n".encode()

    def _data(self, text: str) -> None:
        raw = text.encode()
        self.data += b"data %d\n%s\n" % (len(raw), raw)


def _git(*arguments: str, stdin: bytes = b"") -> None:
    # Nothing of the user's: a configured hook, signature or object format would change the hashes.
    environment = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
    environment |= {
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_DEFAULT_HASH": "sha1",
        "LC_ALL": "C",
    }
    done = subprocess.run(
        ["git", *arguments], input=stdin, env=environment, capture_output=True, check=False
    )
    if done.returncode != 0:
        reason = done.stderr.decode(errors="replace").strip().splitlines()
        raise InfrastructureError(
            f"git {arguments[0]} failed while generating the demo subject: "
            f"{reason[0] if reason else f'exit status {done.returncode}'}"
        )
