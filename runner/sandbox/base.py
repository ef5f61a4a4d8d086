"""What every sandbox offers: parents of trials, spoken to in JSON lines."""

from __future__ import annotations

from typing import Any, Protocol

from runner.trial.program import ParentConfig


class ParentHandle(Protocol):
    """A running parent process, as seen from outside its sandbox."""

    def fileno(self) -> int:
        """The descriptor that its events are read from; end of file means that it is gone."""
        ...

    def read(self) -> bytes:
        """Bytes of events that are there now, empty at end of file."""
        ...

    def send(self, command: dict[str, Any]) -> bool:
        """Send one command; False if the parent is gone."""
        ...

    def close(self) -> None:
        """End the parent and everything it started, and wait until they are gone."""
        ...

    def last_words(self) -> str:
        """The end of what the parent itself printed."""
        ...


class Sandbox(Protocol):
    """Starts parents."""

    name: str

    def start(self, config: ParentConfig) -> ParentHandle:
        """Start a parent. Raises InfrastructureError where that cannot be done."""
        ...
