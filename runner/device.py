"""The devices of this host, asked without opening one: nvidia-smi for GPUs, or emulated ones."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.errors import InfrastructureError, InputError
from runner.result import Device

_QUERY = ("index", "name", "compute_cap", "driver_version", "memory.total")


@dataclass(frozen=True)
class HostDevices:
    """Devices of one kind in this host; memory_gib is the smallest one's."""

    device: Device
    memory_gib: float


def gpus() -> list[tuple[str, ...]]:
    """One row for each GPU: index, name, compute capability, driver, memory in MiB.

    Raises InfrastructureError where the driver does not answer or there is no GPU.
    """
    return _asked(_QUERY)


def _asked(query: Sequence[str]) -> list[tuple[str, ...]]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        raise InfrastructureError(
            "no GPU here: nvidia-smi is not installed; run where an NVIDIA driver is, make a "
            "bundle for such a host with `racewatch bundle`, or use --subject demo"
        )
    command = [tool, f"--query-gpu={','.join(query)}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired as error:
        raise InfrastructureError("nvidia-smi does not answer: is the driver healthy?") from error
    rows = [
        tuple(field.strip() for field in line.split(","))
        for line in answer.stdout.splitlines()
        if line.count(",") == len(query) - 1
    ]
    if answer.returncode or not rows:
        text = (answer.stderr or answer.stdout).strip().splitlines()
        raise InfrastructureError(f"no GPU here: nvidia-smi says: {' '.join(text) or 'nothing'}")
    return rows


def uuids() -> dict[str, str]:
    """The UUID of each GPU by its index, which a container's engine may count differently.

    Raises InfrastructureError where the driver does not answer or there is no GPU.
    """
    return {row[0]: row[1] for row in _asked(("index", "uuid"))}


def cuda(wanted: Sequence[str] = ()) -> HostDevices:
    """The GPUs with these indices, or all: they must be of one kind, since a run is on one kind."""
    rows = {row[0]: row for row in gpus()}
    for index in wanted:
        if index not in rows:
            raise InputError(f"--devices: no GPU {index!r} here; there are {', '.join(rows)}")
    chosen = [rows[index] for index in wanted or rows]
    kinds = sorted({(row[1], row[2]) for row in chosen})
    if len(kinds) > 1:
        names = ", ".join(f"{name} ({capability})" for name, capability in kinds)
        raise InputError(f"--devices: a run is on one kind of device, got {names}; name some")
    _, name, capability, driver, _ = chosen[0]
    major, _, minor = capability.partition(".")
    device = Device(
        kind="cuda",
        name=name,
        compute_capability=(int(major), int(minor or 0)),
        driver=driver,
        ids=tuple(row[0] for row in chosen),
    )
    return HostDevices(device, min(float(row[4]) for row in chosen) / 1024)


def emulated(wanted: Sequence[str] = ()) -> HostDevices:
    """Emulated devices with these ids, or one."""
    for index in wanted:
        if not re.fullmatch("[0-9]{1,4}", index):
            raise InputError(
                f"--devices: emulated devices are numbers from 0 to 9999, got {index!r}"
            )
    device = Device(kind="emulated", name="emulated device", ids=tuple(wanted) or ("0",))
    return HostDevices(device, 0.0)


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0))


def jobs() -> int:
    """Compilers to run at a time: one a core, as far as memory goes at 3 GiB each.

    TE's attention.cpp takes 2.5 GB at -O3.
    """
    return max(1, min(cores(), available_memory() // (3 * 2**30)))


def available_memory() -> int:
    """Memory that processes can still take here: the kernel's count, or the container's limit."""
    meminfo = Path("/proc/meminfo").read_text(encoding="ascii")
    line = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo, re.MULTILINE)
    available = int(line[1]) * 1024 if line else 3 * 2**30
    limit = _number(Path("/sys/fs/cgroup/memory.max"))
    used = _number(Path("/sys/fs/cgroup/memory.current"))
    return available if limit is None or used is None else min(available, limit - used)


def _number(path: Path) -> int | None:
    """A control group's figure; None where it has no limit or there are no such files."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
