"""What opening a GPU costs a process, alone and with many at once, on one GPU and on several.

Run by hand on a GPU host; `--jax` needs JAX there:

    python3 benchmarks/contexts.py
    CUDA_DEVICE_MAX_CONNECTIONS=1 python3 benchmarks/contexts.py --jax

Each row forks processes that open the device and end, K at a time, and divides the time by their
number: what stays the same on two GPUs is what the host does one after the other.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import time
from collections.abc import Callable


def init() -> None:
    """Load the driver and initialise it."""
    if status := ctypes.CDLL("libcuda.so.1").cuInit(0):
        raise SystemExit(f"cuInit: error {status}")


def context() -> None:
    """The same, and a context on the first device that is visible."""
    init()
    handle = ctypes.c_void_p()
    if status := ctypes.CDLL("libcuda.so.1").cuDevicePrimaryCtxRetain(ctypes.byref(handle), 0):
        raise SystemExit(f"cuDevicePrimaryCtxRetain: error {status}")


def jax_device() -> None:
    """JAX's own client and a first transfer; the parent has imported JAX."""
    import jax

    jax.block_until_ready(jax.device_put(1.0))


def seconds_each(
    open_device: Callable[[], None], processes: int, k: int, devices: list[str]
) -> float:
    """Seconds per process when `processes` of them open their device, `k` at a time."""
    begun = time.monotonic()
    running = 0
    for n in range(processes):
        if running == k:
            _reap()
            running -= 1
        if os.fork() == 0:
            os.environ["CUDA_VISIBLE_DEVICES"] = devices[n % len(devices)]
            status = 1
            try:
                open_device()
                status = 0
            finally:
                os._exit(status)
        running += 1
    for _ in range(running):
        _reap()
    return (time.monotonic() - begun) / processes


def _reap() -> None:
    _, status = os.wait()
    if status:
        raise SystemExit(f"a process could not open its device: status {status}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", default="0", help="GPU indices, such as 0,1")
    parser.add_argument("--parallel", type=int, default=16, help="processes at a time on each")
    parser.add_argument("--jax", action="store_true", help="open JAX's device instead")
    options = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cuda")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    openings: list[Callable[[], None]] = [init, context]
    if options.jax:
        import jax  # noqa: F401, imported before the forks as a trial's parent does

        openings = [jax_device]
    devices = options.devices.split(",")
    connections = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "default")
    for opening in openings:
        for some in (devices[:1], devices) if len(devices) > 1 else (devices,):
            k = options.parallel * len(some)
            each = seconds_each(opening, 2 * k, k, some)
            print(
                f"{opening.__name__:<12} connections {connections}, devices {some}, {k} at a time:"
            )
            print(f"  {each:.3f} s each", flush=True)


if __name__ == "__main__":
    main()
