"""Bisections of the demo's race made rare: twenty of each kind, real builds and real trials.

    python3 benchmarks/bisect_demo.py --runs 20 --out docs/results/bisection/demo-rare.txt

Half of each kind look for what broke it, half for what fixed it, each by `racewatch bisect` with a
record of its own. Builds are made once and kept, so from the second bisection on they cost nothing;
a bisection knows nothing of that and asks for as few as ever. `EMULATION_RATE` makes the race rare,
by when the other thread's updates come; `EMULATION_FAULT` lets the device lose one now and then
whatever the commit; with `EMULATION_BACKGROUND=refresh` most of what a capture swallows is written
again, so that trials pass with foreign work, and EMULATION_ONCE of it is not. Exit status 0 where
all kinds were right as often as is claimed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CELL = "stock, background"
LEAST = 0.95
"""Share of bisections that have to be right."""


@dataclass(frozen=True)
class Kind:
    """One way to make the race rare, and what is observed of it."""

    name: str
    environment: Mapping[str, str]
    observe: str = "failure"


REFRESH = {"EMULATION_BACKGROUND": "refresh", "EMULATION_RATE": "0.25", "EMULATION_ONCE": "0.2"}
KINDS = (
    Kind("rare", {"EMULATION_RATE": "0.08"}),
    Kind("background", {"EMULATION_RATE": "0.2", "EMULATION_FAULT": "0.05"}),
    Kind("rarer, by failure", REFRESH),
    Kind("rarer, by swallow", REFRESH, "swallow"),
)
BROKEN, FIXED = ("before~7", "fix~1", "race"), ("main", "race", "fix")
"""Good end, bad end, and the tag of the commit to be found."""


@dataclass(frozen=True)
class Found:
    """How one bisection ended. builds: commits whose build it asked for, the ends among them."""

    right: bool
    wrong: bool
    probability: float
    builds: int
    trials: int
    seconds: float
    before: tuple[int, int]
    after: tuple[int, int]


def racewatch(*arguments: str, environment: Mapping[str, str], within: Path, result: Path) -> str:
    """What the command prints; anything but an end with a verdict in `result` is an error."""
    done = subprocess.run(
        [sys.executable, "-m", "service.cli", *arguments],
        env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
        cwd=within,
        capture_output=True,
        text=True,
        check=False,
    )
    if not result.is_file():
        sys.exit(f"racewatch {' '.join(arguments)}: exit status {done.returncode}\n{done.stderr}")
    return done.stdout


def bisect(kind: Kind, number: int, titles: Mapping[str, str], parallel: str) -> Found:
    """One bisection, of what broke it or of what fixed it."""
    good, bad, tag = BROKEN if number % 2 == 0 else FIXED
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        record, result = folder / "record.jsonl", folder / "result.json"
        said = racewatch(
            "bisect", "--subject", "demo", "--cell", CELL, "--good", good, "--bad", bad,
            "--observe", kind.observe, "--record", str(record), "--json", result.name,
            *(("--parallel", parallel) if parallel else ()),
            environment=kind.environment, within=folder, result=result,
        )  # fmt: skip
        found: dict[str, Any] = json.loads(result.read_text())
        events = [json.loads(line) for line in record.read_text().splitlines()[1:]]
    verdict = found["verdict"]
    named = [commit["title"] for commit in verdict["commits"]]
    sure = verdict["kind"] in ("culprit", "one of several", "no change")
    right = verdict["kind"] == "culprit" and named == [titles[tag]]
    if not right:
        print(said, flush=True)
    sides = [tuple((verdict[side] or {"tally": (0, 0)})["tally"]) for side in ("before", "after")]
    return Found(
        right,
        sure and not right,
        verdict["probability"],
        len({event["key"] for event in events if event.get("n")}),
        found["spent"]["trials"],
        time.monotonic() - began,
        *sides,
    )


def tell(kind: Kind, runs: list[Found]) -> str:
    """One kind's line of the table."""
    rates = []
    for sides in ([run.before for run in runs], [run.after for run in runs]):
        k, n = (sum(column) for column in zip(*sides, strict=True))
        rates.append(f"{100 * k / max(1, n):.1f} %")
    right, wrong = sum(run.right for run in runs), sum(run.wrong for run in runs)
    builds, trials = [run.builds for run in runs], [run.trials for run in runs]
    return (
        f"{kind.name:<20}{' -> '.join(rates):>18}{f'{right} of {len(runs)}':>10}{wrong:>7}"
        f"{statistics.median(builds):>8.0f} ({max(builds)})"
        f"{statistics.median(trials):>8.0f} ({max(trials)})"
        f"{statistics.median(run.seconds for run in runs):>8.0f} s"
    )


def main() -> None:
    """Bisect and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20, help="bisections of each kind")
    parser.add_argument("--kinds", default="", help="only those whose name has this in it")
    parser.add_argument("--parallel", default="", help="trials at a time (default: by the cores)")
    parser.add_argument("--out", type=Path, help="where the table goes besides the terminal")
    asked = parser.parse_args()
    titles = {commit.tag: commit.subject for commit in HISTORY if commit.tag}
    lines = [
        f"{'race':<20}{'rate measured':>18}{'right':>10}{'wrong':>7}{'builds':>12}{'trials':>14}"
        f"{'time':>10}",
        "wrong: named something else, and was sure. builds (with the ends), trials, time: median "
        "(most)",
    ]
    broken = False
    for kind in KINDS:
        if asked.kinds not in kind.name:
            continue
        runs = []
        for number in range(asked.runs):
            runs.append(bisect(kind, number, titles, asked.parallel))
            print(f"{kind.name} {number + 1}: {runs[-1]}", flush=True)
        lines.append(tell(kind, runs))
        broken |= sum(run.right for run in runs) < LEAST * len(runs)
        if asked.out:
            asked.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    # This folder goes, or the standard library's `bisect` would be the file of that name here.
    sys.path[0] = str(ROOT)
    from runner.emulation.history import HISTORY

    main()
