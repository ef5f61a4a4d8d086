"""Trials per second on one device and on several, side by side, and what the loss of one costs.

Run by hand, on a host with several GPUs from an unpacked bundle or anywhere on the demo:

    python3 benchmarks/devices.py --command 'python3 run.py' --out results
    python3 benchmarks/devices.py --command 'racewatch run --subject demo --ref race' --parallel 1

The third run loses its last device half-way: a parent process of its trials is ended by its id.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any


def run(command: str, label: str, out: Path, extra: list[str], lose: str = "") -> dict[str, Any]:
    """One whole run, timed from outside. `lose`: the device to lose half-way."""
    path = out / f"{label}.json"
    arguments = [*shlex.split(command), "--json", str(path), *extra]
    start = time.monotonic()
    with (
        (out / f"{label}.txt").open("w") as log,
        subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout is not None
        waiting = bool(lose)
        for line in process.stdout:
            log.write(line)
            done, _, planned = line.partition("[")[2].partition("]")[0].partition("/")
            if waiting and done.isdigit() and 2 * int(done) >= int(planned):
                waiting = not end_a_parent(process.pid, lose)
    seconds = time.monotonic() - start
    if process.returncode not in (0, 1):
        sys.exit(f"{label}: exit status {process.returncode}, see {out / label}.txt")
    return {"seconds": seconds, **json.loads(path.read_text())}


def end_a_parent(runner: int, device: str) -> bool:
    """Kill the parent on that device that has trials of the run with the process id `runner`."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):  # it ended meanwhile, or is no process
            parents[int(entry.name)] = int(
                (entry / "stat").read_text().rpartition(")")[2].split()[1]
            )
    trials = Counter(parents.values())
    for process in (one for one, parent in parents.items() if parent == runner and trials[one]):
        command = Path(f"/proc/{process}/cmdline").read_text().split("\0")
        if "runner.trial.parent" not in command:
            continue
        if json.loads(command[command.index("runner.trial.parent") + 1])["device"] == device:
            os.kill(process, signal.SIGKILL)
            print(f"ended parent {process} of device {device}, which had {trials[process]} trials")
            return True
    return False


def describe(result: dict[str, Any]) -> str:
    """Trials, seconds, trials per second, and trials by device."""
    trials = result["trials"]
    devices = dict(sorted(Counter(trial["device"] for trial in trials if trial["device"]).items()))
    rate = len(trials) / result["seconds"]
    return f"{len(trials)} trials in {result['seconds']:.1f} s, {rate:.2f}/s; by device {devices}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--command", required=True)
    parser.add_argument("--devices", default="0,1")
    parser.add_argument("--trials", default="40")
    parser.add_argument("--parallel", default="16", help="trials at a time on each device")
    parser.add_argument("--no-loss", action="store_true", help="leave the third run out")
    parser.add_argument("--out", type=Path, default=Path("devices-results"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    first, last = options.devices.split(",")[0], options.devices.split(",")[-1]
    common = ["--trials", options.trials, "--parallel", options.parallel]
    every = ["--devices", options.devices, *common]

    one = run(options.command, "one-device", options.out, ["--devices", first, *common])
    print(f"one device:      {describe(one)}", flush=True)
    several = run(options.command, "several-devices", options.out, every)
    print(f"several devices: {describe(several)}", flush=True)
    rates = [len(r["trials"]) / r["seconds"] for r in (one, several)]
    print(f"ratio of trials per second: {rates[1] / rates[0]:.2f}")
    for a, b in zip(one["cells"], several["cells"], strict=True):
        same = "same" if (a["k"], a["n"]) == (b["k"], b["n"]) else "DIFFERENT"
        print(f"  {a['name']}: {a['k']}/{a['n']} and {b['k']}/{b['n']}: {same}")

    if options.no_loss:
        return
    lost = run(options.command, "device-lost", options.out, every, lose=last)
    print(f"one lost:        {describe(lost)}")
    indices = [trial["index"] for trial in lost["trials"]]
    print(f"  indices unique: {len(indices) == len(set(indices))}; notes: {lost['notes']}")
    for a, b in zip(several["cells"], lost["cells"], strict=True):
        counted = f"{b['k']}/{b['n']}, {b['counts']['infra_error']} infra_error"
        print(f"  {a['name']}: {counted}: {'whole' if a['n'] == b['n'] else 'TRIALS LOST'}")


if __name__ == "__main__":
    main()
