"""Which sandbox a command or a job asks for, and with which images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runner.errors import InputError
from runner.run import Plan
from runner.sandbox.base import Sandbox
from runner.sandbox.process import ProcessSandbox
from runner.sandbox.process_build import ProcessBuilds
from runner.sandbox.workshop import BuildSandbox

NAMES = ("process", "docker")
TRIAL_IMAGE = "RACEWATCH_TRIAL_IMAGE"
BUILD_IMAGE = "RACEWATCH_BUILD_IMAGE"


@dataclass(frozen=True)
class Choice:
    """Where builds and trials of a subject run.

    image, build_image: what docker's containers of trials and builds are made of, empty for the
    subject's own. trusted: whether a build may write to the compiler cache that others read. run,
    attempt: put on containers, so that one can be told whose it is.
    """

    subject: str
    name: str = "process"
    image: str = ""
    build_image: str = ""
    trusted: bool = False
    run: str = ""
    attempt: str = ""

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise InputError(f"--sandbox: unknown {self.name!r}; known: {', '.join(NAMES)}")

    def require(self, *, builds: bool = True, trials: bool = True) -> None:
        """Raise InfrastructureError where what it takes is not here: before anything is built."""
        if self.name == "process":
            return
        # Imported here and below, for it takes longer than all the rest of most jobs' imports.
        from runner.sandbox import docker, docker_build

        if builds:
            docker_build.require(self.build_image or docker_build.default_image(self.subject))
        if trials:
            docker.require(self._image())

    def reap(self) -> int:
        """Remove the containers that runners which are gone have left; how many there were."""
        if self.name == "process":
            return 0
        from runner.sandbox.docker_engine import talk
        from runner.sandbox.docker_owner import remove_leftovers

        with talk() as client:
            return remove_leftovers(client)

    def warnings(self) -> list[str]:
        """What of this host's container engine lets code out of its containers, as is known."""
        if self.name == "process":
            return []
        from runner.sandbox import docker_versions
        from runner.sandbox.docker_engine import talk

        with talk() as client:
            found = docker_versions.versions(client, gpu=self.subject != "demo")
        return docker_versions.warnings(found)

    def builds(self, home: Path, jobs: int) -> BuildSandbox:
        """Where its builds run. home: a folder that the engine reaches."""
        if self.name == "process":
            return ProcessBuilds()
        from runner.sandbox.docker_build import DockerBuilds, default_image

        return DockerBuilds.start(
            home,
            jobs=jobs,
            image=self.build_image or default_image(self.subject),
            trusted=self.trusted,
            run=self.run,
            attempt=self.attempt,
        )

    def pinned(self) -> Choice:
        """The same with the id of the image of trials, which stays what it is when a tag moves."""
        if self.name == "process":
            return self
        from runner.sandbox.docker import image_id

        return replace(self, image=image_id(self._image()))

    def recorded(self) -> dict[str, str]:
        """What a run's result says of the choice, and its trials can read."""
        return {TRIAL_IMAGE: self._image()} if self.name == "docker" else {}

    def trials(
        self, plan: Plan, python: str, environment: Mapping[str, str], home: Path
    ) -> Sandbox:
        """Where the trials of a plan run. python: for those of the `process` sandbox."""
        if self.name == "process":
            return ProcessSandbox(plan.folder, python, environment)
        from runner.sandbox.docker import DockerSandbox

        return DockerSandbox.open(
            plan.folder,
            run=self.run or plan.run,
            device=plan.device,
            parallel=plan.parallel,
            image=self._image(),
            attempt=self.attempt or plan.run,
            environment=environment,
            home=home,
        )

    def ask_trials(self, line: Sequence[str], home: Path) -> str | None:
        """What a program of the image of trials prints."""
        from runner.sandbox.docker_build import DockerBuilds

        return DockerBuilds.start(home, jobs=1, image=self._image()).ask(line)

    def _image(self) -> str:
        from runner.sandbox.docker import default_image

        return self.image or default_image(self.subject)
