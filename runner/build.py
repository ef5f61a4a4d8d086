"""Builds of a commit: found by the key of their content, made once, failures kept as results."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from runner.errors import BuildError, InfrastructureError, RefError, VariantError
from runner.git import Repository
from runner.outcome import Evidence, Outcome, classify
from runner.result import Commit
from runner.run import BuildId, PreparedBuild
from runner.store import Store, build_key
from runner.variants import Applied, BuildKind, apply

MANIFEST = "racewatch-build.json"
_VARIANTS = Path(__file__).parent / "variants"


@dataclass(frozen=True)
class Recipe:
    """How one build is made.

    parts: everything that enters it, by name (tree hashes, toolchain, ...): the content key.
    export: writes the commit's tree into a new folder. csrc: where its C++ is, below that folder.
    compile: makes the build in an empty folder from the (transformed) tree, writing to a log file.
    facts: what its result says of where it was made.
    """

    parts: Mapping[str, str]
    export: Callable[[Path], object]
    csrc: str
    compile: Callable[[Path, Path, Path], None]
    facts: Mapping[str, str] = field(default_factory=dict)


def content_key(parts: Mapping[str, str], build_id: BuildId) -> str:
    """The key of a build from what enters it: a recipe's parts and the transforms."""
    return build_key({**parts, "kind": str(build_id.kind), **_transform(build_id.kind)})


class Builds:
    """Builds on this host: a folder of unpacked ones over a store that hosts may share."""

    def __init__(self, folder: Path, store: Store) -> None:
        self._folder = folder
        self._store = store

    def build(self, build_id: BuildId, recipe: Recipe) -> PreparedBuild:
        """The build, from the folder, the store or the compiler.

        A source that does not compile and a transform that does not apply give a build with an
        outcome and no folder. Raises InfrastructureError and StoreError where the host is at fault.
        """
        key = content_key(recipe.parts, build_id)
        folder = self._folder / key
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{folder}.lock"):
                if not (folder / MANIFEST).is_file():
                    shutil.rmtree(folder, ignore_errors=True)
                    if self._store.get(key, folder) is None:
                        return self._make(key, folder, build_id, recipe)
                return replace(_load(key, folder), cached=True)
        except OSError as error:
            raise InfrastructureError(
                f"build folder {self._folder}: {error.strerror or error}"
            ) from error

    def _make(self, key: str, folder: Path, build_id: BuildId, recipe: Recipe) -> PreparedBuild:
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=".building-", dir=self._folder) as scratch:
            tree, out, log = Path(scratch) / "tree", Path(scratch) / "out", Path(scratch) / "log"
            out.mkdir()
            recipe.export(tree)
            try:
                applied = apply(build_id.kind, tree / recipe.csrc)
            except VariantError as error:
                return PreparedBuild(
                    key, outcome=Outcome.UNSUPPORTED, signature="variant does not apply",
                    reason=str(error),
                )  # fmt: skip
            try:
                recipe.compile(tree, out, log)
            except BuildError as error:
                text = log.read_text(errors="replace") if log.is_file() else error.log
                failed = failed_build(key, error, text, time.monotonic() - started)
                self._store.put_log(key, text)
                return failed
            made = PreparedBuild(
                key=key,
                seconds=round(time.monotonic() - started, 3),
                initialize=_handlers(applied),
                owned_stream_needed=applied.owned_stream_needed is not False,
                facts={
                    "changed": applied.changed,
                    "gained": applied.gained,
                    "present": applied.present,
                    "absent": applied.absent,
                    **recipe.facts,
                },
            )
            if log.is_file():
                shutil.copyfile(log, out / "build.log")
            manifest = asdict(made)
            (out / MANIFEST).write_text(json.dumps(manifest))
            self._store.put(key, out, manifest)
            os.replace(out, folder)
        return _load(key, folder)


def git_build(
    repository: Repository,
    builds: Builds,
    commit: Commit,
    build_id: BuildId,
    recipe_of: Callable[[Commit], Recipe],
) -> PreparedBuild:
    """The build of a commit of a repository, its pull requests merged first.

    A pull request that is not there or that conflicts makes the variant unsupported.
    """
    repository.fetch_commit(commit)
    try:
        commit = repository.merge(commit, *build_id.pulls)
    except (RefError, VariantError) as error:
        return PreparedBuild(
            "", outcome=Outcome.UNSUPPORTED, signature="pull request does not apply",
            reason=str(error),
        )  # fmt: skip
    return builds.build(build_id, recipe_of(commit))


def git_base(repository: Repository, commit: Commit) -> Commit | None:
    """A pull request's merge base with the default branch, else the first parent, if there is one.

    A pull request that is merged already is its own merge base: its first parent counts there.
    """
    if commit.ref.startswith("pull/"):
        branch = _default_branch(repository)
        base = repository.merge_base(commit, branch) if branch else None
        if base is not None and base.sha != commit.sha:
            return base
    history = repository.first_parent(commit)
    return history[1] if len(history) > 1 else None


def _default_branch(repository: Repository) -> Commit | None:
    # A mirror does not keep which branch its remote's HEAD names, and a clone's own HEAD is
    # whatever was checked out.
    for name in ("main", "master", "HEAD"):
        try:
            return repository.resolve(name)
        except RefError:
            continue
    return None


def failed_build(key: str, error: BuildError, log: str, seconds: float = 0.0) -> PreparedBuild:
    """A commit that does not build; what the log shows to be the host's fault is the host's."""
    verdict = classify(Evidence(kind="build", exit_status=1, output=log, error=str(error)))
    if verdict.outcome is Outcome.INFRA_ERROR:
        raise InfrastructureError(f"the build could not run: {verdict.reason}") from error
    return PreparedBuild(
        key,
        outcome=Outcome.BUILD_ERROR,
        signature=error.first_error or verdict.signature,
        reason=f"does not build: {error.first_error or error}",
        log=log,
        seconds=round(seconds, 3),
    )


def _load(key: str, folder: Path) -> PreparedBuild:
    data: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
    initialize = data["initialize"]
    return PreparedBuild(
        **{
            **data,
            "key": key,
            "folder": str(folder),
            "initialize": None if initialize is None else tuple(initialize),
        }
    )


def _handlers(applied: Applied) -> tuple[str, ...]:
    """Handlers that have an initialize stage, by the name of what they initialize."""
    names = (stage.handler.removesuffix("Handler") for stage in applied.stages)
    return tuple(name.removesuffix("Initialize") for name in names)


def _transform(kind: BuildKind) -> dict[str, str]:
    """The identity of the transforms: a build made by other ones is another build."""
    if kind is BuildKind.STOCK:
        return {}
    digest = hashlib.sha256()
    for path in sorted(_VARIANTS.iterdir()):
        if path.is_file() and path.suffix in {".py", ".h"}:
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return {"transform": digest.hexdigest()}
