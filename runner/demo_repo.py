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
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".demo-", dir=path.parent) as scratch:
            repository = Path(scratch) / "repository"
            _git("init", "--quiet", "--template=", "--initial-branch=main", str(repository))
            _git("fast-import", "--quiet", within=repository, stdin=import_stream())
            _git("reset", "--quiet", "--hard", "main", within=repository)
            os.replace(repository, path)
    except OSError as error:
        raise InfrastructureError(
            f"the demo subject's repository cannot be written to {path}: {error}"
        ) from error


def import_stream() -> bytes:
    """The whole history in the format that `git fast-import` reads."""
    stream = _Stream()
    main: list[_Point] = []
    tags: dict[str, _Point] = {}
    for entry in HISTORY:
        parents = main[-1:]
        if isinstance(entry, Merge):
            parents.append(_branch(stream, "merged", main[-1 - entry.since], entry.branch))
            edits = tuple(edit for commit in entry.branch for edit in commit.edits)
            entry = Commit(entry.subject, edits)
        files = dict(main[-1].files) if main else _base_tree()
        main.append(stream.commit("main", entry, files, parents))
        if entry.tag:
            tags[entry.tag] = main[-1]
    pull = _branch(stream, "pull", tags[PULL_BASE], PULL)
    for name, point in tags.items():
        stream.reset(f"refs/tags/{name}", point)
    stream.reset(PULL_REF, pull)
    # Commits need a branch to be imported on; these two have had their day.
    stream.delete("refs/heads/merged")
    stream.delete("refs/heads/pull")
    return bytes(stream.data)


def _branch(stream: _Stream, name: str, base: _Point, commits: tuple[Commit, ...]) -> _Point:
    tip = base
    for commit in commits:
        tip = stream.commit(name, commit, dict(tip.files), [tip])
    return tip


def _base_tree() -> dict[str, str]:
    paths = sorted(path for path in TREE.rglob("*") if path.is_file())
    return {path.relative_to(TREE).as_posix(): path.read_text(encoding="utf-8") for path in paths}


@dataclass(frozen=True)
class _Point:
    """A commit in the stream: its mark there and the files it has."""

    mark: int
    files: dict[str, str]


@dataclass
class _Stream:
    """A fast-import stream under construction; marks count commits from 1."""

    data: bytearray = field(default_factory=bytearray)
    mark: int = 0

    def commit(
        self, branch: str, commit: Commit, files: dict[str, str], parents: list[_Point]
    ) -> _Point:
        """Apply the commit's edits to `files` and add it."""
        for edit in commit.edits:
            edit.apply(files)
        self.mark += 1
        when = f"{_START + self.mark * _STEP} +0000"
        message = commit.subject + (f"\n\n{commit.body}" if commit.body else "") + "\n"
        self._line(f"commit refs/heads/{branch}")
        self._line(f"mark :{self.mark}")
        self._line(f"author {_AUTHOR} {when}")
        self._line(f"committer {_AUTHOR} {when}")
        self._data(message)
        for keyword, parent in zip(("from", "merge"), parents, strict=False):
            self._line(f"{keyword} :{parent.mark}")
        self._line("deleteall")
        for path, text in sorted(files.items()):
            self._line(f"M 100644 inline {path}")
            self._data(text)
        return _Point(self.mark, files)

    def reset(self, ref: str, point: _Point) -> None:
        """Point `ref` at a commit."""
        self._line(f"reset {ref}")
        self._line(f"from :{point.mark}")
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


def _git(*arguments: str, within: Path | None = None, stdin: bytes = b"") -> None:
    # Nothing of the user's: a configured hook, signature or object format would change the hashes.
    environment = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
    environment |= {
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_DEFAULT_HASH": "sha1",
        "LC_ALL": "C",
    }
    done = subprocess.run(
        ["git", *arguments],
        cwd=within,
        input=stdin,
        env=environment,
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        reason = done.stderr.decode(errors="replace").strip().splitlines()
        raise InfrastructureError(
            f"git {arguments[0]} failed while generating the demo subject: "
            f"{reason[0] if reason else f'exit status {done.returncode}'}"
        )
