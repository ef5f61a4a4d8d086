"""Environments in words, and which of them trials of a queue can have run in."""

from __future__ import annotations

from dataclasses import dataclass

from service.tables import Environment

EMULATED = "emulated"


@dataclass(frozen=True)
class EnvironmentName:
    """An environment in words. details: versions, such as `driver 580.159, JAX 0.11.2, ...`."""

    id: int
    device: str
    emulated: bool
    details: str

    @property
    def full(self) -> str:
        """Device and versions in one line."""
        return f"{self.device}, {self.details}"


def environment_name(environment: Environment) -> EnvironmentName:
    """The words of a stored environment."""
    assert environment.id is not None, "the environment is stored"
    details = [f"driver {environment.driver}"] if environment.driver else []
    details += [f"JAX {environment.jax}"] if environment.jax else []
    details += [f"toolchain {environment.toolchain}", f"harness {environment.harness}"]
    return EnvironmentName(
        environment.id, environment.device_name, environment.emulated, ", ".join(details)
    )


def queue_of(environment: Environment) -> str:
    """The queue whose trials can run in it, such as `sm90`; empty where that is unknown."""
    if environment.emulated:
        return EMULATED
    version = environment.compute_capability.replace(".", "")
    return f"sm{version}" if version else ""
