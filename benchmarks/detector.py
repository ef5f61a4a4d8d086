"""What the detector sees and what it costs: the same cells with and without it, side by side.

Run by hand, on a GPU host from an unpacked bundle or anywhere on the demo:

    python3 benchmarks/detector.py --command 'python3 run.py --devices 0' --out results
    python3 benchmarks/detector.py --command 'racewatch run --subject demo --ref race' --parallel 2

Runs with and without the detector take turns, so that a host that drifts meets both alike. First
the cells of the race, several trials at a time, for figures, outputs and rates; then one passing
cell, one trial at a time, for the cost. Exit status 0 where all that is claimed holds.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

STOCK, ALONE, OWNED = "stock, background", "stock, alone", "owned-stream, background"
CELLS = (STOCK, ALONE, "unregistered, background", OWNED, "owned-stream, background, hold 20 ms")
"""Of the matrix issue-3863."""
FAILURES = ("capture_error", "crash", "hang", "data_loss", "wrong_output")
FAIR = 0.01
"""Below this chance of two counts as far apart, their rates are called different."""
Trial = dict[str, Any]
WITH, WITHOUT = "--detect", "--no-detect"


def run(command: str, out: Path, label: str, extra: list[str]) -> dict[str, Any]:
    """One whole run; its result. What could not run is an error, never a row."""
    path = out / f"{label}.json"
    arguments = [*shlex.split(command), "--matrix", "issue-3863", "--no-controls", *extra]
    arguments += ["--json", str(path)]
    with (out / f"{label}.txt").open("w") as log:
        done = subprocess.run(arguments, stdout=log, stderr=subprocess.STDOUT, check=False)
    if done.returncode not in (0, 1):
        text = (out / f"{label}.txt").read_text()
        sys.exit(f"{label}: exit status {done.returncode}\n{text[-3000:]}")
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def counted(results: Iterable[dict[str, Any]], cell: str) -> list[Trial]:
    """The trials of a cell that a rate is taken over."""
    outcomes = (*FAILURES, "pass")
    return [
        trial
        for result in results
        for trial in result["trials"]
        if trial["cell"] == cell and trial["outcome"] in outcomes
    ]


def failed(trials: list[Trial]) -> int:
    return sum(trial["outcome"] in FAILURES for trial in trials)


def reported(trial: Trial) -> bool:
    """True for a trial that came to tell its own result: no signal ended it."""
    return trial["evidence"].get("exit_status") is not None


def nodes_of(trial: Trial) -> int:
    """Graph nodes that other threads' work became."""
    return int(trial["swallow"]["foreign"])


def foreign(trial: Trial) -> int:
    """How often another thread's work met a window: those nodes, and calls that were refused."""
    return nodes_of(trial) + int(trial["swallow"].get("refused", 0))


def fisher(a: int, n: int, b: int, m: int) -> float:
    """Two-sided chance of counts at least as far apart as a of n and b of m, at one rate."""
    whole = math.comb(n + m, a + b)
    at_most = min(n, a + b)
    chances = [
        math.comb(n, i) * math.comb(m, a + b - i) / whole
        for i in range(max(0, a + b - m), at_most + 1)
    ]
    seen = math.comb(n, a) * math.comb(m, b) / whole
    return sum(chance for chance in chances if chance <= seen * (1 + 1e-9))


class Claims:
    """What is claimed, each with what was seen."""

    def __init__(self) -> None:
        self.broken = 0

    def say(self, holds: bool, text: str) -> None:
        self.broken += not holds
        print(f"{'holds ' if holds else 'BROKEN'}  {text}", flush=True)


def tell_figures(claims: Claims, watched: list[dict[str, Any]]) -> None:
    """What went into capture windows, cell by cell, and whose it was."""
    heads = f"{'watched':>7} {'windows':>8} {'own':>6} {'foreign work':>13}  foreign nodes"
    print(f"\n{'cell':<42} {heads}")
    for cell in CELLS:
        trials = counted(watched, cell)
        unseen = Counter(t["swallow"]["reason"] for t in trials if t["swallow"]["reason"])
        for reason, number in unseen.items():
            claims.say(False, f"{cell}: {number} trials were not watched: {reason}")
        seen = [t for t in trials if not t["swallow"]["reason"]]
        if not seen:
            continue
        windows = statistics.mean(t["swallow"]["windows"] for t in seen)
        own = statistics.mean(t["swallow"]["own"] for t in seen)
        nodes = sorted(map(nodes_of, seen))
        with_work = sum(foreign(trial) > 0 for trial in seen)
        print(
            f"{cell:<42} {len(seen):>7} {windows:>8.1f} {own:>6.1f} "
            f"{f'{with_work}/{len(seen)}':>13}  {nodes[0]} to {nodes[-1]}, "
            f"median {statistics.median(nodes):g}"
        )
    calls: Counter[tuple[str, str]] = Counter()
    for result in watched:
        for work in result["swallowed"]:
            calls[work["api"], work["thread"]] += work["count"]
    print("\nswallowed, of all watched trials:")
    for (api, thread), count in calls.most_common(20):
        print(f"  {count:>7}  {api} of {thread or 'others'}")
    first = [
        t["swallow"]["first"][0]["ms"] for t in counted(watched, STOCK) if t["swallow"]["first"]
    ]
    if first:
        print(
            f"a trial's first foreign call: {min(first):.3f} to {max(first):.3f} ms after its "
            f"window was opened, median {statistics.median(first):.3f} ms"
        )
    print()
    for cell in CELLS[1:]:
        seen = counted(watched, cell)
        clean = sum(foreign(t) == 0 for t in seen)
        claims.say(clean == len(seen) > 0, f"{cell}: 0 foreign in {clean} of {len(seen)}")
    stock = counted(watched, STOCK)
    alive = [t for t in stock if reported(t)]
    met = sum(foreign(t) > 0 for t in alive)
    with_nodes = sum(nodes_of(t) > 0 for t in alive)
    claims.say(
        met == len(alive) > 0,
        f"{STOCK}: foreign work in {met} of {len(alive)} trials that lived to report, "
        f"as nodes in {with_nodes} (and in "
        f"{sum(foreign(t) > 0 for t in stock if not reported(t))} of the other "
        f"{len(stock) - len(alive)})",
    )


def tell_equality(
    claims: Claims, watched: list[dict[str, Any]], unwatched: list[dict[str, Any]]
) -> None:
    """Outputs and rates with the detector and without."""
    print(f"\n{'cell':<42} {'with':>8} {'without':>8}  outcomes with | without")
    for cell in CELLS:
        one, other = counted(watched, cell), counted(unwatched, cell)
        outcomes = [
            ", ".join(f"{n} {o}" for o, n in sorted(Counter(t["outcome"] for t in each).items()))
            for each in (one, other)
        ]
        counts = [f"{failed(each)}/{len(each)}" for each in (one, other)]
        print(f"{cell:<42} {counts[0]:>8} {counts[1]:>8}  {' | '.join(outcomes)}")
    print()
    for cell in CELLS:
        one, other = counted(watched, cell), counted(unwatched, cell)
        chance = fisher(failed(one), len(one), failed(other), len(other))
        claims.say(chance > FAIR, f"{cell}: one failure rate with and without (p = {chance:.3g})")
    passed = [
        {d for cell in (ALONE, OWNED) for t in counted(each, cell) for d in t["digests"]}
        for each in (watched, unwatched)
    ]
    same = passed[0] == passed[1] and len(passed[0]) == 1
    claims.say(same, f"outputs: {len(passed[0] | passed[1])} SHA-256 with and without the detector")


def tell_cost(claims: Claims, pairs: list[tuple[list[Trial], list[Trial]]], most: float) -> None:
    """The time of passing trials, one at a time, with the detector and without."""
    with_it = [t for one, _ in pairs for t in one]
    without = [t for _, other in pairs for t in other]
    print("\nmean seconds by stage, one trial at a time:")
    print(f"{'until':<16} {'with':>8} {'without':>8}")
    for stage in without[0]["times"]:
        means = [statistics.mean(t["times"][stage] for t in each) for each in (with_it, without)]
        print(f"{stage:<16} {means[0]:>8.4f} {means[1]:>8.4f}")
    seconds = [[float(t["seconds"]) for t in each] for each in (with_it, without)]
    means = [statistics.mean(each) for each in seconds]
    error = math.sqrt(sum(statistics.variance(each) / len(each) for each in seconds))
    low, middle, high = (
        100 * (means[0] - means[1] + sign * 1.96 * error) / means[1] for sign in (-1, 0, 1)
    )
    medians = [statistics.median(each) for each in seconds]
    print(f"{'whole trial':<16} {means[0]:>8.4f} {means[1]:>8.4f}")
    print(f"{'its median':<16} {medians[0]:>8.4f} {medians[1]:>8.4f}\n")
    claims.say(
        middle < most,
        f"cost: {middle:+.1f} % ({low:+.1f} to {high:+.1f} %) of {means[1]:.3f} s, over "
        f"{len(with_it)} trials with and {len(without)} without; median "
        f"{100 * (medians[0] / medians[1] - 1):+.1f} %; to be under {most:g} %",
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--command", required=True)
    parser.add_argument("--trials", type=int, default=30, help="of each cell, with and without")
    parser.add_argument("--rounds", type=int, default=2, help="runs that the trials come from")
    parser.add_argument("--parallel", default="8", help="trials at a time, for the figures")
    parser.add_argument("--cost-cell", default=OWNED, help="a passing cell")
    parser.add_argument("--cost-trials", type=int, default=40, help="with, and as many without")
    parser.add_argument("--cost-rounds", type=int, default=2)
    parser.add_argument("--most", type=float, default=5.0, help="percent of a trial's time")
    parser.add_argument("--out", type=Path, default=Path("detector-results"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    claims = Claims()

    results: dict[str, list[dict[str, Any]]] = {WITH: [], WITHOUT: []}
    cells = [part for cell in CELLS for part in ("--cell", cell)]
    trials = str(math.ceil(options.trials / options.rounds))
    for n in range(options.rounds):
        for how in (WITH, WITHOUT) if n % 2 == 0 else (WITHOUT, WITH):
            extra = [*cells, "--trials", trials, "--parallel", options.parallel, how]
            results[how].append(run(options.command, options.out, f"race{how}-{n}", extra))
    tell_figures(claims, results[WITH])
    tell_equality(claims, results[WITH], results[WITHOUT])

    pairs = []
    trials = str(math.ceil(options.cost_trials / options.cost_rounds))
    for n in range(options.cost_rounds):
        timed: dict[str, list[Trial]] = {}
        for how in (WITH, WITHOUT) if n % 2 == 0 else (WITHOUT, WITH):
            extra = ["--cell", options.cost_cell, "--trials", trials, "--parallel", "1", how]
            result = run(options.command, options.out, f"cost{how}-{n}", extra)
            timed[how] = [t for t in counted([result], options.cost_cell) if not failed([t])]
        pairs.append((timed[WITH], timed[WITHOUT]))
    tell_cost(claims, pairs, options.most)
    sys.exit(1 if claims.broken else 0)


if __name__ == "__main__":
    main()
