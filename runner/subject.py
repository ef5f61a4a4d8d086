"""What is tracked: where its commits come from, how one is built, and where its trials run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from runner.detector.record import Detector
from runner.device import HostDevices, jobs
from runner.lineage import Lineage
from runner.matrix import Program, Recipe
from runner.result import Commit, Device
from runner.run import BuildId, PreparedBuild
from runner.sandbox.process_build import ProcessBuilds
from runner.sandbox.workshop import BuildSandbox


@dataclass(frozen=True)
class Request:
    """What the user names: a ref or pull request, pulls to merge, or a release's version."""

    ref: str = ""
    version: str = ""
    pulls: tuple[int, ...] = ()


@dataclass(frozen=True)
class Folders:
    """Where a subject keeps what it fetches and builds; store may be any fsspec URL."""

    cache: Path
    store: str


class Subject(Protocol):
    """One tracked project."""

    name: str
    toolchain_name: str

    def resolve(self, request: Request) -> Commit:
        """The commit that a request names. Raises RefError."""
        ...

    def base_of(self, commit: Commit) -> Commit | None:
        """What a commit came from: a pull request's merge base with the default branch, else the
        first parent; None for a release and for a root."""
        ...

    def control(self) -> Commit:
        """The pinned commit whose stock build the control cells run: it is known to race.

        Raises RefError or InfrastructureError where it cannot be had.
        """
        ...

    def history(self, head: Commit, since: Commit | None = None) -> list[Commit]:
        """First-parent commits up to `head`, newest first, without those that `since` has.

        Empty for a release.
        """
        ...

    def lineage(self) -> Lineage:
        """Its history as a bisection asks for it."""
        ...

    def build(self, commit: Commit, build_id: BuildId) -> PreparedBuild:
        """Build it, or take it from the store.

        A commit that does not build, and a variant that does not apply, are results: the build
        then has an outcome and no folder. Raises InfrastructureError where this host cannot build.
        """
        ...

    def devices(self, wanted: Sequence[str]) -> HostDevices:
        """The devices of this host that its trials run on."""
        ...

    def trial_python(self) -> str:
        """The interpreter that its trials run with on this host. Raises InfrastructureError."""
        ...

    def trial_packages(self) -> tuple[str, ...]:
        """Folders of packages for its trials, used where the interpreter lacks them."""
        ...

    def trial_environment(self, device: Device) -> dict[str, str]:
        """What its trials' environment holds besides, on that device."""
        ...

    def detector(self) -> Detector:
        """What watches its trials' capture windows on this host, or why nothing can."""
        ...

    def expected_handlers(
        self, program: Program, recipe: Recipe, compute_capability: tuple[int, int]
    ) -> tuple[str, ...]:
        """The initialize handlers that the program enters, where the commit has them."""
        ...


@dataclass(frozen=True)
class Options:
    """How a subject is opened.

    repository: a git URL or a folder, empty for the subject's own. architecture: of the GPU that
    is built for, such as `90`; empty for this host's. jobs: compilers at a time. sandbox: where
    compilers run.
    """

    folders: Folders
    repository: str = ""
    toolchain: str = ""
    architecture: str = ""
    jobs: int = field(default_factory=jobs)
    sandbox: BuildSandbox = field(default_factory=ProcessBuilds)
