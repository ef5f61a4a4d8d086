"""The subject `te`: TransformerEngine from a git remote or mirror, or a release by its version."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from filelock import FileLock
from packaging.version import Version

from runner import device, fatbin, git, te_core, te_extension, te_site, te_source, toolchain
from runner.build import Builds, Recipe, failed_build, git_base, git_build
from runner.build_command import CompilerCache
from runner.detector import library as detector_library
from runner.detector.record import Detector
from runner.device import HostDevices
from runner.errors import BuildError, InfrastructureError, SubjectError
from runner.lineage import SUSPECTS, GitLineage
from runner.matrix import Program
from runner.matrix import Recipe as Precision
from runner.node_packages import node_packages
from runner.outcome import Outcome
from runner.result import Commit, Device
from runner.run import BuildId, PreparedBuild
from runner.store import Store
from runner.subject import Options, Request
from runner.toolchain import ToolchainEnv
from runner.trial import te

UPSTREAM = "https://github.com/NVIDIA/TransformerEngine.git"
GIT_CSRC = "transformer_engine/jax/csrc"
GIT_INPUTS = (
    "transformer_engine/__init__.py",
    "transformer_engine/common",
    "transformer_engine/jax",
)
"""What of a commit enters its build: the core's headers, the extension and the Python code."""
SUBMODULES = "3rdparty"
_INTERPRETER = """
import importlib.metadata, sys
print("%d.%d" % sys.version_info[:2])
try:
    print(importlib.metadata.version("jaxlib"))
except importlib.metadata.PackageNotFoundError:
    pass
"""
CONTROL_VERSION = "2.20.2"
"""The release that TE issue 3863 reports: its stock fails with a background thread in every trial
(53 of 53 on an H200), and alone in none."""
VERSION_FILE = "build_tools/VERSION.txt"


class TeSubject:
    """See `runner.subject.Subject`."""

    name = "te"

    def __init__(self, options: Options) -> None:
        self._options = options
        self._cache = options.folders.cache
        self._toolchain = toolchain.load(options.toolchain or toolchain.DEFAULT)
        self.toolchain_name = self._toolchain.name
        self._store = Store(options.folders.store)
        self._builds = Builds(self._cache / "builds", self._store)
        self._repository: git.Repository | None = None
        self._env: ToolchainEnv | None = None
        self._architecture = options.architecture

    def resolve(self, request: Request) -> Commit:
        """See Subject. A release's sdist is fetched now, so that an unknown version is found."""
        if request.version:
            te_source.fetch_sdist(request.version, self._cache)
            return Commit(sha=request.version, ref=request.version, title="release")
        commit = self._git().resolve(request.ref)
        if self._git().text(commit.sha, f"{GIT_CSRC}/extensions.h") is None:
            raise SubjectError(
                f"{self._git().source} at {request.ref} is no TransformerEngine: it has no "
                f"{GIT_CSRC}/extensions.h"
            )
        ref = "+".join([commit.ref, *(f"pull/{pull}" for pull in request.pulls)])
        return replace(self._git().merge(commit, *request.pulls), ref=ref)

    def _git(self) -> git.Repository:
        if self._repository is None:
            source = self._options.repository or UPSTREAM
            self._repository = git.open_repository(source, self._cache)
        return self._repository

    def _environment(self) -> ToolchainEnv:
        if self._env is None:
            self._env = toolchain.prepare(self._toolchain, self._cache, self._options.sandbox)
        return self._env

    def base_of(self, commit: Commit) -> Commit | None:
        """See Subject."""
        return None if commit.is_release else git_base(self._git(), commit)

    def control(self) -> Commit:
        """See Subject."""
        return self.resolve(Request(version=CONTROL_VERSION))

    def history(self, head: Commit, since: Commit | None = None) -> list[Commit]:
        """See Subject."""
        return [] if head.is_release else self._git().first_parent(head, since=since)

    def lineage(self) -> GitLineage:
        """See Subject."""
        return GitLineage(self._git(), self._inputs, SUSPECTS)

    def build(self, commit: Commit, build_id: BuildId) -> PreparedBuild:
        """See Subject."""
        if commit.is_release:
            return self._build_release(commit, build_id)
        built = git_build(self._git(), self._builds, commit, build_id, self._git_recipe)
        if not built.folder:
            return built
        try:
            core = self._core(self._git().merge(commit, *build_id.pulls))
        except BuildError as error:
            return failed_build(built.key, error, error.log)
        return self._on_core(built, core.library, core.key)

    def _core(self, commit: Commit) -> te_core.Core:
        """A released core where the commit's core sources are that release's, else from source."""
        cores = te_core.Cores(
            self._git(),
            self._toolchain,
            self._cache,
            self._store,
            self._options.jobs,
            self._compiler_cache(),
            self._options.sandbox,
        )
        return cores.released(commit.sha) or cores.build(
            commit.sha, self._environment(), self._needed_architecture()
        )

    def _compiler_cache(self) -> CompilerCache | None:
        return self._options.sandbox.cache_of(self._cache)

    def _build_release(self, commit: Commit, build_id: BuildId) -> PreparedBuild:
        if build_id.pulls:
            return PreparedBuild(
                "", outcome=Outcome.UNSUPPORTED, signature="pull request does not apply",
                reason=f"release {commit.sha} has no git history to merge a pull request onto: "
                "name a commit with --ref",
            )  # fmt: skip
        sdist = te_source.fetch_sdist(commit.sha, self._cache)
        wheel = te_source.fetch_core_wheel(commit.sha, self._toolchain.cuda_major, self._cache)

        def compile_tree(tree: Path, out: Path, log: Path) -> None:
            te_site.write_python(wheel / "transformer_engine", commit.sha, out)
            self._compile(tree, out, log)

        recipe = Recipe(
            parts={"subject": self.name, "release": commit.sha, **self._identity()},
            export=lambda tree: shutil.copytree(sdist, tree, symlinks=True),
            csrc="csrc",
            compile=compile_tree,
            facts=self._options.sandbox.facts,
        )
        built = self._builds.build(build_id, recipe)
        if not built.folder:
            return built
        core = te_core.core_in(wheel, commit.sha, self._toolchain.cuda_major)
        return self._on_core(built, core.library, core.key)

    def _git_recipe(self, commit: Commit) -> Recipe:
        repository = self._git()
        parts = self._git_parts([commit])[0]

        def compile_tree(tree: Path, out: Path, log: Path) -> None:
            te_site.write_python(tree / "transformer_engine", parts["version"], out)
            self._compile(tree, out, log)

        return Recipe(
            parts=parts,
            # Nothing that does not enter the key: what lies beside is on the include path.
            export=lambda tree: repository.export(commit.sha, tree, GIT_INPUTS),
            csrc=GIT_CSRC,
            compile=compile_tree,
            facts=self._options.sandbox.facts,
        )

    def _git_parts(self, commits: Sequence[Commit]) -> list[Mapping[str, str]]:
        """What enters the extension's build of each commit, besides the transforms."""
        shas = [commit.sha for commit in commits]
        identity = {"subject": self.name, **self._identity()}
        versions = self._git().texts_of(shas, VERSION_FILE)
        trees = self._git().tree_hashes_of(shas, GIT_INPUTS)
        return [
            identity | {"version": (version or "0").strip()} | tree
            for version, tree in zip(versions, trees, strict=True)
        ]

    def _inputs(self, commits: Sequence[Commit]) -> list[Mapping[str, str]]:
        """The same with the submodules, which enter the core that the extension is put on."""
        shas = [commit.sha for commit in commits]
        pins = self._git().tree_hashes_of(shas, [SUBMODULES])
        return [{**own, **pin} for own, pin in zip(self._git_parts(commits), pins, strict=True)]

    def _compile(self, tree: Path, out: Path, log: Path) -> None:
        te_extension.compile_extension(
            tree,
            self._environment(),
            out,
            log=log,
            jobs=self._options.jobs,
            cache=self._compiler_cache(),
            sandbox=self._options.sandbox,
        )

    def _identity(self) -> dict[str, str]:
        identity = {f"toolchain {k}": v for k, v in self._toolchain.extension_identity().items()}
        return {"layout": te_site.LAYOUT, **identity}

    def _on_core(self, built: PreparedBuild, library: Path, core_key: str) -> PreparedBuild:
        """The build as a run takes it, on a core with the device code of one architecture."""
        architecture = self._needed_architecture()
        core = self._cache / "trimmed-cores" / f"{core_key}-sm{architecture}" / te_site.CORE_LIBRARY
        with FileLock(f"{_made(core.parent.parent)}/{core.parent.name}.lock"):
            if not core.is_file():
                fatbin.keep_architecture(library, core, architecture)
            digest = hashlib.sha256(f"{built.key} {core.parent.name}".encode()).hexdigest()
            site = te_site.assemble(Path(built.folder), core, self._cache / "sites" / digest)
        facts = {**built.facts, "core": core.parent.name}
        return replace(built, key=digest, folder=str(site), facts=facts)

    def _needed_architecture(self) -> str:
        if not self._architecture:
            major, minor = self.devices(()).device.compute_capability
            self._architecture = f"{major}{minor}"
        return self._architecture

    def devices(self, wanted: Sequence[str]) -> HostDevices:
        """See Subject."""
        return device.cuda(wanted)

    def trial_python(self) -> str:
        """See Subject: RACEWATCH_PYTHON, or this process's own, where it fits the toolchain."""
        python = os.environ.get("RACEWATCH_PYTHON") or sys.executable
        wanted = self._toolchain
        needs = f"trials need Python {wanted.python} with JAX {wanted.headers['jaxlib']} or newer"
        way_out = "set RACEWATCH_PYTHON to such an interpreter, or choose another --toolchain"
        try:
            said = subprocess.run(
                [python, "-c", _INTERPRETER], capture_output=True, text=True, timeout=60, check=True
            ).stdout.split()
        except (OSError, subprocess.SubprocessError) as error:
            raise InfrastructureError(f"{needs}, {python} does not run: {way_out}") from error
        version, jaxlib = said[0], said[1] if len(said) > 1 else ""
        if version != wanted.python:
            raise InfrastructureError(f"{needs}, {python} is Python {version}: {way_out}")
        if not jaxlib:
            raise InfrastructureError(f"{needs}, {python} has no jaxlib: {way_out}")
        if Version(jaxlib) < Version(wanted.headers["jaxlib"]):
            raise InfrastructureError(f"{needs}, {python} has jaxlib {jaxlib}: {way_out}")
        return python

    def trial_packages(self) -> tuple[str, ...]:
        """See Subject: what TE imports besides JAX, as a bundle carries it."""
        return (str(self.node_packages()),)

    def trial_environment(self, device: Device) -> dict[str, str]:
        """See Subject."""
        return te.environment()

    def node_packages(self) -> Path:
        """A folder of the Python packages that TE imports, for a node that lacks them."""
        return node_packages(self._toolchain.python, self._cache)

    def detector(self) -> Detector:
        """See Subject."""
        return detector_library.prepare(self._toolchain, self._cache, self._options.sandbox)

    def expected_handlers(
        self, program: Program, recipe: Precision, compute_capability: tuple[int, int]
    ) -> tuple[str, ...]:
        """See Subject."""
        return te.expected_handlers(program, recipe, compute_capability)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


__all__ = ["UPSTREAM", "TeSubject"]
