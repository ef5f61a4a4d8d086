"""The subject `demo`: a generated repository in TE's shape that runs on any CPU, emulated."""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from filelock import FileLock

from runner import demo_build, demo_repo, device, git
from runner.build import Builds, Recipe, git_base, git_build
from runner.detector.record import Detector
from runner.device import HostDevices
from runner.errors import InfrastructureError, RefError, SubjectError
from runner.lineage import SUSPECTS, GitLineage
from runner.matrix import Program
from runner.matrix import Recipe as Precision
from runner.result import Commit, Device
from runner.run import BuildId, PreparedBuild
from runner.sandbox.workshop import BuildSandbox
from runner.store import Store
from runner.subject import Options, Request
from runner.trial import demo

CSRC = "transformer_engine/jax/csrc"
INPUTS = ("transformer_engine/common", CSRC, "build_tools")
"""What of a commit enters its build; the rest (docs, tests) shares one."""
CONTROL_REF = "race"


class DemoSubject:
    """See `runner.subject.Subject`."""

    name = "demo"
    toolchain_name = "host compiler"

    def __init__(self, options: Options) -> None:
        self._options = options
        cache = options.folders.cache
        self._builds = Builds(cache / "builds", Store(options.folders.store))
        source = options.repository or str(_repository(cache))
        self._repository = git.open_repository(source, cache)

    def resolve(self, request: Request) -> Commit:
        """See Subject; the demo has commits only, no releases."""
        if request.version:
            raise RefError(
                f"--version {request.version}: the demo has no releases, name a commit with --ref "
                f"(tags: {', '.join(demo_repo.TAGS)})"
            )
        return self._repository.merge(self._resolved(request.ref), *request.pulls)

    def _resolved(self, ref: str) -> Commit:
        commit = self._repository.resolve(ref)
        if self._repository.text(commit.sha, f"{CSRC}/extensions.h") is None:
            raise SubjectError(
                f"{self._repository.source} at {ref} is not the demo subject: it has no "
                f"{CSRC}/extensions.h"
            )
        return commit

    def base_of(self, commit: Commit) -> Commit | None:
        """See Subject."""
        return git_base(self._repository, commit)

    def control(self) -> Commit:
        """See Subject."""
        return self.resolve(Request(ref=CONTROL_REF))

    def history(self, head: Commit, since: Commit | None = None) -> list[Commit]:
        """See Subject."""
        return self._repository.first_parent(head, since=since)

    def lineage(self) -> GitLineage:
        """See Subject."""
        return GitLineage(self._repository, self._parts, SUSPECTS)

    def build(self, commit: Commit, build_id: BuildId) -> PreparedBuild:
        """See Subject."""
        return git_build(self._repository, self._builds, commit, build_id, self._recipe)

    def _recipe(self, commit: Commit) -> Recipe:
        def compile_tree(tree: Path, out: Path, log: Path) -> None:
            demo_build.compile_extension(
                tree,
                out,
                log=log,
                jobs=self._options.jobs,
                sandbox=self._options.sandbox,
                emulation=self._kept_emulation(),
            )

        return Recipe(
            parts=self._parts([commit])[0],
            # Nothing that does not enter the key: what lies beside is on the include path.
            export=lambda tree: self._repository.export(commit.sha, tree, INPUTS),
            csrc=CSRC,
            compile=compile_tree,
            facts=self._options.sandbox.facts,
        )

    def _kept_emulation(self) -> Path | None:
        """Where the compiled emulation is kept: what containers write is for nobody else."""
        if not self._options.sandbox.on_host:
            return None
        compiler = demo_build.find_compiler(self._options.sandbox)
        identity = [compiler, _compiler_identity(self._options.sandbox)]
        digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
        return self._options.folders.cache / "demo" / f"emulation-{digest[:32]}.o"

    def _parts(self, commits: Sequence[Commit]) -> list[Mapping[str, str]]:
        """What enters the build of each commit, besides the transforms."""
        identity = {"subject": self.name, **_compiler_identity(self._options.sandbox)}
        trees = self._repository.tree_hashes_of([commit.sha for commit in commits], INPUTS)
        return [identity | tree for tree in trees]

    def devices(self, wanted: Sequence[str]) -> HostDevices:
        """See Subject."""
        return device.emulated(wanted)

    def trial_python(self) -> str:
        """See Subject; any interpreter will do."""
        return sys.executable

    def trial_packages(self) -> tuple[str, ...]:
        """See Subject."""
        return ()

    def trial_environment(self, device: Device) -> dict[str, str]:
        """See Subject."""
        return {"EMULATION_DEVICES": str(max(map(int, device.ids)) + 1)}

    def detector(self) -> Detector:
        """See Subject; the emulated runtime tells by itself."""
        return Detector()

    def expected_handlers(
        self, program: Program, recipe: Precision, compute_capability: tuple[int, int]
    ) -> tuple[str, ...]:
        """See Subject."""
        return demo.expected_handlers(program, recipe, compute_capability)


def _history_identity() -> str:
    return hashlib.sha256(demo_repo.import_stream()).hexdigest()[:16]


def _compiler_identity(sandbox: BuildSandbox) -> dict[str, str]:
    """The compiler and the emulation, which is linked into every build."""
    compiler = demo_build.find_compiler(sandbox)
    version = sandbox.ask([*compiler, "--version"])
    if not version or not version.strip():
        raise InfrastructureError(
            f"{shlex.join(compiler)} does not tell its version: set CXX to a C++ compiler"
        )
    digest = hashlib.sha256(Path(demo_build.__file__).read_bytes())
    for path in demo_build.emulation_sources():
        digest.update(path.read_bytes())
    return {"compiler": version.splitlines()[0], "emulation": digest.hexdigest()}


def _repository(cache: Path) -> Path:
    """The generated repository, made once per cache folder and per content."""
    folder = cache / "demo" / _history_identity()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            demo_repo.create(folder)
    return folder
