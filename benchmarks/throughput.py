"""Trials per minute: a fresh interpreter for each, one after the other, against forks K at a time.

Run by hand, on a GPU host from an unpacked bundle or anywhere on the demo:

    python3 benchmarks/throughput.py --command 'python3 run.py'
    python3 benchmarks/throughput.py --command 'racewatch run --subject demo --ref race'

Every row is a whole run of the same command, timed from outside, its start-up included. The second
table compares the failure rate of a racing cell at each K with that at one at a time.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Measured:
    """One run: seconds of wall time, its trials, and failures among those that count."""

    label: str
    seconds: float
    trials: int
    k: int
    n: int

    @property
    def per_minute(self) -> float:
        """Trials per minute of wall time."""
        return 60 * self.trials / self.seconds


def measure(command: str, label: str, cell: str, trials: int, extra: list[str]) -> Measured:
    """Run one cell and time it; what could not run is an error, never a fast row."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        arguments = ["--cell", cell, "--trials", str(trials), "--json", str(out), *extra]
        start = time.monotonic()
        done = subprocess.run(
            [*shlex.split(command), *arguments], capture_output=True, text=True, check=False
        )
        seconds = time.monotonic() - start
        if done.returncode not in (0, 1):
            sys.exit(f"{label}: exit status {done.returncode}\n{done.stdout}\n{done.stderr}")
        result = json.loads(out.read_text())
    row = next(row for row in result["cells"] if row["name"] == cell)
    if row["n"] != trials:
        sys.exit(f"{label}: {row['n']} of {trials} trials counted: {row['counts']}")
    return Measured(label, seconds, len(result["trials"]), row["k"], row["n"])


def main() -> None:
    """Measure and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--command", required=True)
    parser.add_argument("--passing", default="owned-stream, background", help="a cell that passes")
    parser.add_argument("--racing", default="stock, background", help="a cell that fails")
    parser.add_argument("--fresh-trials", type=int, default=8)
    parser.add_argument("--trials-per-slot", type=int, default=16, help="trials are this x K")
    parser.add_argument("--racing-trials", type=int, default=24)
    parser.add_argument("--parallel", default="1,4,8,16", help="the K to try")
    options = parser.parse_args()
    ks = [int(k) for k in options.parallel.split(",")]

    alone = ["--parallel", "1"]
    rows = [
        measure(
            options.command,
            "fresh interpreter, one after the other",
            options.passing,
            options.fresh_trials,
            [*alone, "--fresh", "--cold"],
        ),
        measure(
            options.command,
            "the same with a compilation cache",
            options.passing,
            options.fresh_trials,
            [*alone, "--fresh"],
        ),
    ]
    for k in ks:
        label = f"forked, {k} at a time"
        extra = ["--parallel", str(k)]
        trials = options.trials_per_slot * k
        rows.append(measure(options.command, label, options.passing, trials, extra))
    print(f"{options.passing}:")
    print(f"{'':<40} {'trials':>6} {'seconds':>8} {'s/trial':>8} {'/minute':>8} {'ratio':>6}")
    for row in rows:
        print(
            f"{row.label:<40} {row.trials:>6} {row.seconds:>8.1f} {row.seconds / row.trials:>8.2f} "
            f"{row.per_minute:>8.1f} {row.per_minute / rows[0].per_minute:>6.1f}"
        )
    print(f"\n{options.racing}: failures by trials at a time")
    for k in sorted({1, max(ks)}):
        extra = ["--parallel", str(k)]
        row = measure(options.command, str(k), options.racing, options.racing_trials, extra)
        print(f"{k:>3} at a time: {row.k}/{row.n} failed, {row.seconds:.1f} s")


if __name__ == "__main__":
    main()
