"""Environments in words, and which of them trials of a queue can have run in."""

from __future__ import annotations

from dataclasses import dataclass

from service.tables import Environment

EMULATED = "emulated"


@dataclass(frozen=True)
class EnvironmentName:
    """An environment in words. details: versions, such as `driver 580.159, JAX 0.11.2, ...`.

    parts: each of them by name.
    """

    id: int
    device: str
    emulated: bool
    details: str
    parts: tuple[tuple[str, str], ...] = ()

    @property
    def full(self) -> str:
        """Device and versions in one line."""
        return f"{self.device}, {self.details}"

    def other_than(self, before: EnvironmentName) -> str:
        """What is other here than it was before, such as `driver 570.86 to 580.159`."""
        old = dict(before.parts)
        return ", ".join(
            f"{name} {old.get(name) or 'none'} to {value or 'none'}"
            for name, value in self.parts
            if old.get(name) != value
        )


def environment_name(environment: Environment) -> EnvironmentName:
    """The words of a stored environment."""
    assert environment.id is not None, "the environment is stored"
    parts = (
        ("device", environment.device_name),
        ("driver", environment.driver),
        ("JAX", environment.jax),
        ("toolchain", environment.toolchain),
        ("harness", environment.harness),
    )
    details = ", ".join(f"{name} {value}" for name, value in parts[1:] if value)
    return EnvironmentName(
        environment.id, environment.device_name, environment.emulated, details, parts
    )


def queue_of(environment: Environment) -> str:
    """The queue whose trials can run in it, such as `sm90`; empty where that is unknown."""
    if environment.emulated:
        return EMULATED
    version = environment.compute_capability.replace(".", "")
    return f"sm{version}" if version else ""
