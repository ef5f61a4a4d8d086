"""How a container gets one GPU and no other: by CDI where the engine knows it, else by its UUID."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from docker.types import DeviceRequest

CDI_KIND = "nvidia.com/gpu"


def gpu_request(info: Mapping[str, Any], gpu: str) -> DeviceRequest:
    """A request for a GPU by its UUID, as the engine that says `info` of itself takes it.

    An engine that has found CDI's description of the device (Docker 28.2 and newer tell) is given
    that name: then no hook of the NVIDIA runtime runs in the container's setup.
    """
    name = f"{CDI_KIND}={gpu}"
    found = {device.get("ID") for device in info.get("DiscoveredDevices") or []}
    if name in found:
        return DeviceRequest(driver="cdi", device_ids=[name])
    return DeviceRequest(device_ids=[gpu], capabilities=[["gpu", "compute", "utility"]])
