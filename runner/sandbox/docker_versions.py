"""Which versions of the container engine, of runc and of NVIDIA's toolkit are safe enough.

`docs/deploy.md` lists the same table for who sets a host up.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import docker

ENGINE, RUNC, TOOLKIT = "Docker Engine", "runc", "NVIDIA Container Toolkit"


@dataclass(frozen=True)
class Minimum:
    """The least version of a component that untrusted code may meet.

    fixed: the first good release of each series that was mended; what is newer is good. why: what
    an older one lets code do. source: where that is written.
    """

    component: str
    fixed: tuple[str, ...]
    why: str
    source: str

    def allows(self, version: str) -> bool:
        """Whether a version is one of the good ones."""
        numbers = _numbers(version)
        good = sorted(_numbers(text) for text in self.fixed)
        same_series = [least for least in good if least[:2] == numbers[:2]]
        return numbers >= (same_series[0] if same_series else good[-1])


MINIMUM = (
    Minimum(
        ENGINE,
        ("25.0.0",),
        "its seccomp profile lets containers use io_uring, which kernel exploits build on",
        "moby/moby pull request 46762",
    ),
    Minimum(
        RUNC,
        ("1.2.8", "1.3.3", "1.4.0"),
        "a container can write to the host's /proc and take the host over (CVE-2025-31133, "
        "CVE-2025-52565, CVE-2025-52881)",
        "opencontainers/runc advisories GHSA-9493-h29p-rfm2, GHSA-qw9x-cqr3-wc7r, "
        "GHSA-cgrx-mc8f-2prm",
    ),
    Minimum(
        TOOLKIT,
        ("1.19.1",),
        "a race in what it does as root lets a container run code on the host (CVE-2026-24260); "
        "before 1.17.8 its hooks also load what a container names (CVE-2025-23266, CVE-2025-23267)",
        "NVIDIA's security bulletins 5850 and 5659",
    ),
)
"""What is asked of a host that runs commits nobody trusts."""


def versions(client: docker.DockerClient, gpu: bool) -> dict[str, str]:
    """The versions that this host says it has, by component; empty where it does not tell.

    gpu: whether GPUs are used, so that NVIDIA's toolkit counts.
    """
    said: Mapping[str, Any] = client.version()
    parts = {part["Name"]: str(part["Version"]) for part in said.get("Components") or []}
    found = {ENGINE: str(said.get("Version", "")), RUNC: parts.get("runc", "")}
    return found | ({TOOLKIT: _toolkit()} if gpu else {})


def warnings(found: Mapping[str, str]) -> list[str]:
    """A sentence for each version that is too old, or that nobody knows."""
    return [
        sentence
        for least in MINIMUM
        if least.component in found
        and (sentence := _warning(least, found[least.component])) is not None
    ]


def _warning(least: Minimum, version: str) -> str | None:
    wanted = " or ".join(least.fixed)
    if not _numbers(version):
        return (
            f"{least.component}: its version cannot be read here; see to it that it is {wanted} or "
            f"newer, since before {least.why}"
        )
    if least.allows(version):
        return None
    return (
        f"{least.component} {version} is older than {wanted}: {least.why}. Update it, unless your "
        "distribution has mended its own package, before this host runs a fork's code"
    )


def _toolkit() -> str:
    """What nvidia-ctk says of itself, where this process has it: a container's has not."""
    tool = shutil.which("nvidia-ctk")
    if tool is None:
        return ""
    said = subprocess.run([tool, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"version (\d+\.\d+\.\d+\S*)", said)
    return found[1] if found else ""


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers of a release; a distribution's additions (`+ds1`, `-1ubuntu2`) do not count."""
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version)
    return tuple(int(part or 0) for part in found.groups()) if found else ()
