"""What every sandbox offers a build: a workshop, in which its commands run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class CompilerCache:
    """A ccache folder; a fork's build may read the shared one and never writes it."""

    folder: Path
    read_only: bool = False

    def environment(self) -> dict[str, str]:
        """The variables that ccache reads."""
        variables = {"CCACHE_DIR": str(self.folder.absolute()), "CCACHE_NOHASHDIR": "1"}
        return variables | ({"CCACHE_READONLY": "1"} if self.read_only else {})


@dataclass(frozen=True)
class Workspace:
    """What the commands of one build see, all paths absolute.

    folder: they run in. out: an empty folder, all of this host that they may write. reads: what
    they read of this host. environment: set besides the sandbox's own. path: folders looked
    through before PATH.
    """

    folder: Path
    out: Path
    reads: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    path: tuple[Path, ...] = ()
    cache: CompilerCache | None = None


class Command(Protocol):
    """One command under way."""

    def read(self) -> bytes:
        """What it printed since the last call; empty once it prints no more."""
        ...

    def wait(self) -> int:
        """Its exit status, a signal's number negative.

        Raises InfrastructureError where nobody can say how it ended.
        """
        ...


class Workshop(Protocol):
    """Where the commands of one build run."""

    def start(self, line: Sequence[str]) -> Command:
        """Start a command. Raises InfrastructureError where that cannot be done."""
        ...

    def fetch(self, path: Path) -> None:
        """See to it that a file which the commands left below `out` is there on this host.

        Raises BuildError where they left no such file, InfrastructureError where it cannot be had.
        """
        ...

    def lack(self, status: int, output: str) -> str | None:
        """What the sandbox lacked, where a command failed for that; `output` is what it printed.

        status: as `Command.wait` tells it.
        """
        ...

    def end(self) -> None:
        """End what still runs, and forget what is below `out` and was not fetched."""
        ...


class BuildSandbox(Protocol):
    """Opens workshops, and answers what is in them.

    on_host: its commands use this host's own programs. facts: what a build's result says of it.
    """

    name: str
    on_host: bool
    facts: Mapping[str, str]

    def open(self, workspace: Workspace) -> Workshop:
        """A workshop for one build. Raises InfrastructureError where there can be none."""
        ...

    def ask(self, line: Sequence[str]) -> str | None:
        """What one of its own programs prints, None where it fails or is not there.

        For questions such as a compiler's version: no build's files are there.
        """
        ...

    def which(self, program: str) -> Path | None:
        """Where a program is there, None where it is not."""
        ...

    def cache_of(self, folder: Path) -> CompilerCache | None:
        """The compiler cache kept below `folder`, None where there is no ccache in it."""
        ...
