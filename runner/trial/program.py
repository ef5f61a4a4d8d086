"""The interface between a trial and what it first-executes, the same for TE and for the demo."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class DeviceFacts:
    """What the program's own runtime says of the device it opened.

    platform: `cuda`, `emulated`, `cpu`, ... compute_capability: (major, minor).
    """

    platform: str
    name: str = ""
    compute_capability: tuple[int, int] = (0, 0)
    driver: str = ""


class Program(Protocol):
    """One process's way to run one program; methods are called in this order."""

    def open_device(self) -> DeviceFacts:
        """Open the device; the first call that may touch it."""
        ...

    def compile(self, program: str, recipe: str) -> str:
        """Make a fresh program ready for its first execution; returns the recipe it uses."""
        ...

    def start_background(self, period_ms: float) -> None:
        """Start the thread that updates the resident buffer; returns after its first round."""
        ...

    def execute(self) -> bytes:
        """Execute the program (called twice) and return its output's bytes."""
        ...

    def stop_background(self, timeout_s: float) -> bool:
        """Ask the background thread to stop; True if it ended in time (or never ran)."""
        ...

    def background_updates(self) -> int:
        """Updates the background thread has made so far: its sign of life."""
        ...

    def background_error(self) -> str:
        """The text of the exception that ended the background thread, empty if none did."""
        ...

    def compare_resident(self) -> int:
        """Rows of the resident buffer that do not hold their last update."""
        ...


@dataclass(frozen=True)
class TrialSpec:
    """What one trial is told, as sent to the parent process (all paths as the sandbox sees them).

    environment: set in the child before anything else. log: file for the program's own output.
    trace: file where an instrumented build appends the initialize handlers that are entered.
    executions: how often the program is executed. swallow: file where a detector records what
    capture windows take in, empty where none watches.
    """

    index: int
    program: str
    recipe: str
    background: bool
    background_period_ms: float
    environment: Mapping[str, str] = field(default_factory=dict)
    log: str = ""
    trace: str = ""
    executions: int = 2
    swallow: str = ""


@dataclass(frozen=True)
class ParentConfig:
    """What a parent process is started with: one build, one registration mode, one device.

    python_path: put before sys.path; fallback_path: put after it (a node's own packages win).
    detector: library that the device's driver is to load in trials that are watched.
    """

    subject: str
    build_dir: str
    registration: str
    device: str
    python_path: tuple[str, ...] = ()
    fallback_path: tuple[str, ...] = ()
    fresh: bool = False
    detector: str = ""

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> ParentConfig:
        """From its JSON form."""
        known = dict(data)
        known["python_path"] = tuple(known.get("python_path", ()))
        known["fallback_path"] = tuple(known.get("fallback_path", ()))
        return cls(**known)


class Harness(Protocol):
    """What a subject's module (`runner.trial.te`, `.demo`) gives the parent and the child."""

    def prepare(self, config: ParentConfig) -> Mapping[str, str]:
        """Import everything heavy, touching no device; returns versions by package."""
        ...

    def open_program(self, config: ParentConfig) -> Program:
        """A new program in this process."""
        ...
