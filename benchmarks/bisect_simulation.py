"""Simulated bisections, Racewatch's beside its neighbours': who is right, how sure, at what cost.

    python3 benchmarks/bisect.py --seeds 200 --jobs 2 --out docs/results/bisect-simulation.txt

Every tool meets the same histories: 150 commits with builds of their own, one of which changes the
failure rate (or none does). A build takes 600 s and is kept; a trial takes 1 s, eight of a commit
run at a time. Both ends are built beforehand, since it is their trials that made someone ask. A
tool sees what its trials and builds show and nothing else.

The two points of a rare race are of the same histories, observed as `--observe failure` and as
`--observe swallow` would.

- `racewatch`: `runner.bisect`, with its check of the culprit's two neighbours by fresh trials, and
  with at most K builds at a time. Reverting on the head is left out: there is no tree to revert.
- `git bisect`, r trials of each commit, bad once one fails; one build at a time, as it works. A
  build that fails is skipped, from which git goes on at random nearby. `ahead` is what a patient
  user could do: build the next three steps' commits, all seven, at once.
- `git_bayesect` (package index; import it beside Racewatch, else it is left out) with the same
  confidence; stock, one trial at a time, and batched, several trials of each commit that it picks.
  A build that fails is recorded as its `skip`, though its command line counts it as a failure.

Accuracy: shares of runs that end with the truth. Where nothing between the neighbours of the
culprit builds, the truth is that stretch, and any commit of it that a rival names counts as right.
"""

from __future__ import annotations

import argparse
import heapq
import math
import multiprocessing
import os
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from runner.bisect.bisection import Bisection, Probe, Settings
from runner.bisect.events import Observation, Reverted, Seen
from runner.bisect.policy import Costs
from runner.bisect.posterior import Tally
from runner.bisect.range import BuildClass, Range
from runner.bisect.verdict import VerdictKind
from runner.result import Commit
from runner.statistics.comparison import anytime
from runner.statistics.counts import Counts

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # for arrays of 150, more are no help
try:
    import git_bayesect
except ImportError:
    git_bayesect = None

SIZE = 150
BUILD_S, TRIAL_S, LANES = 600.0, 1.0, 8
CONFIDENCE = 0.99
REPEATS = (1, 4, 10, 16, 40, 64)
BAYESECT_TRIALS = 1500
"""After which git_bayesect is taken not to end."""


@dataclass(frozen=True)
class Point:
    """A kind of history. culprit: False where nothing changes the rate `before`.

    broken: share of commits that do not build, in stretches. misleading: priors that favour a
    fifth of the commits, never the culprit; else they favour it as often as chance has it. like:
    name of the point whose histories these are, empty for histories of its own.
    """

    name: str
    before: float
    after: float
    culprit: bool = True
    broken: float = 0.0
    misleading: bool = False
    like: str = ""


POINTS = (
    Point("0 -> .3", 0.0, 0.3),
    Point("0 -> .1", 0.0, 0.1),
    Point(".05 -> .3", 0.05, 0.3),
    Point(".2 -> .8", 0.2, 0.8),
    Point("no culprit, .05", 0.05, 0.05, culprit=False),
    Point("unbuildable, 0 -> .3", 0.0, 0.3, broken=0.25),
    Point("unbuildable, .05 -> .3", 0.05, 0.3, broken=0.25),
    Point("misleading, 0 -> .3", 0.0, 0.3, misleading=True),
    Point("misleading, .05 -> .3", 0.05, 0.3, misleading=True),
    # One rare race, by its failures and by what captures swallow: of the trials with foreign work
    # after the change one in ten fails.
    Point("rare, failures 0 -> .02", 0.0, 0.02),
    Point("rare, swallows 0 -> .2", 0.0, 0.2, like="rare, failures 0 -> .02"),
)


@dataclass
class World:
    """One history, what has been built of it so far, and the clock of the tool that bisects it."""

    point: Point
    seed: int
    culprit: int | None = None
    broken: dict[int, str] = field(default_factory=dict)
    weights: tuple[float, ...] = ()
    built: set[int] = field(default_factory=lambda: {0, SIZE - 1})
    builds: int = 0
    trials: int = 0
    now: float = 0.0
    streams: dict[int, random.Random] = field(default_factory=dict)

    @classmethod
    def of(cls, point: Point, seed: int) -> World:
        chance = random.Random(f"{point.like or point.name} {seed}")
        culprit = chance.randrange(1, SIZE) if point.culprit else None
        broken: dict[int, str] = {}
        while len(broken) < point.broken * SIZE:
            start, length = chance.randrange(1, SIZE - 1), chance.randrange(4, 13)
            for place in range(start, min(start + length, SIZE - 1)):
                broken.setdefault(place, f"error {start}")
        weights = [1.0] * SIZE
        if point.misleading:
            for place in chance.sample([p for p in range(1, SIZE) if p != culprit], SIZE // 5):
                weights[place] = 8.0
        return cls(point, seed, culprit, broken, tuple(weights))

    @property
    def truth(self) -> frozenset[int]:
        """The commits that nobody can tell apart from the culprit; empty where there is none."""
        if self.culprit is None:
            return frozenset()
        first = last = self.culprit
        while first - 1 in self.broken:
            first -= 1
        while last in self.broken:
            last += 1
        return frozenset(range(first, last + 1))

    def fails(self, place: int) -> bool:
        """One trial. Trials of a commit come from a stream of their own, alike for every tool."""
        stream = self.streams.setdefault(place, random.Random(f"{self.seed} {place}"))
        after = self.culprit is not None and place >= self.culprit
        self.trials += 1
        return stream.random() < (self.point.after if after else self.point.before)

    def failures(self, place: int, trials: int) -> int:
        return sum(self.fails(place) for _ in range(trials))

    def build(self, *places: int) -> float:
        """Build what is not there, all at once; the seconds that it takes."""
        missing = {place for place in places if place not in self.built}
        self.builds += len(missing)
        self.built |= missing
        return BUILD_S if missing else 0.0


@dataclass(frozen=True)
class Ended:
    """How a bisection ended.

    right: with the truth. named: it named something, surely as far as it can tell. claimed: how
    sure it said it was, None where it does not say. looks: along the way, the probability of its
    likeliest commit and whether that was the culprit.
    """

    right: bool
    named: bool
    claimed: float | None
    builds: int
    trials: int
    wall_s: float
    checks_failed: int = 0
    looks: tuple[tuple[float, bool], ...] = ()


def wave_s(trials: int) -> float:
    """Of trials of one commit, LANES at a time."""
    return math.ceil(trials / LANES) * TRIAL_S


def higher(one: Tally, other: Tally) -> float:
    """See `runner.bisect.verification.Higher`."""
    return anytime(Counts(*one), Counts(*other))


def racewatch(world: World, builders: int, spare: float | None) -> Ended:
    """Racewatch's own, its probes carried out as a fleet would: builds side by side, trials in turn
    on one device."""
    commits = [Commit(f"{place:040d}", "", str(place)) for place in range(SIZE)]
    classes = [
        BuildClass(str(place), (commit,), commit if place else None, weight=world.weights[place])
        for place, commit in enumerate(commits)
    ]
    costs = Costs(BUILD_S, TRIAL_S / LANES)
    settings = Settings(confidence=CONFIDENCE, spare=spare, costs=costs)
    searched = Range(commits[0], commits[-1], "stock", tuple(classes))
    bisection = Bisection.start(searched, higher, settings)
    cached = {"0", str(SIZE - 1)}
    device_free = 0.0
    ready: list[tuple[float, int, Observation]] = []
    running: dict[int, Probe] = {}
    looks: list[tuple[float, bool]] = []
    number = 0
    while (decision := bisection.next(builders, (*running.values(),), cached)).verdict is None:
        if decision.revert is not None:
            bisection = bisection.observe(Reverted(reason="there is no tree"))
            continue
        for probe in decision.probes:
            place = int(probe.key)
            build_s = world.build(place)
            if place in world.broken:
                error = world.broken[place]
                seen = Observation(probe.key, Seen.UNBUILDABLE, build_s=build_s, reason=error)
                end = world.now + build_s
            else:
                start = max(device_free, world.now + build_s)
                end = device_free = start + wave_s(probe.trials)
                seen = Observation(
                    probe.key,
                    k=world.failures(place, probe.trials),
                    n=probe.trials,
                    check=probe.check,
                    build_s=build_s,
                    trial_s=wave_s(probe.trials),
                )
            number += 1
            running[number] = probe
            heapq.heappush(ready, (end, number, seen))
        world.now, ended, seen = heapq.heappop(ready)
        del running[ended]
        bisection = bisection.observe(seen)
        steps = bisection.posterior.steps
        best = max(range(1, SIZE), key=steps.__getitem__)
        looks.append((steps[best], best == world.culprit))
    verdict = decision.verdict
    named = {int(commit.title) for commit in verdict.commits}
    sure = verdict.kind in (VerdictKind.CULPRIT, VerdictKind.AMONG, VerdictKind.NO_CHANGE)
    if verdict.kind is VerdictKind.NO_CHANGE:
        right = world.culprit is None
    else:
        right = sure and world.culprit in named and named <= world.truth
    return Ended(
        right,
        sure,
        verdict.probability if sure else None,
        world.builds,
        world.trials,
        world.now,
        bisection.failures,
        tuple(looks),
    )


def git_bisect(world: World, repeats: int, ahead: int = 1) -> Ended:
    """`git bisect run` with `repeats` trials of a commit; `ahead` steps' commits built at once."""
    chance = random.Random(f"skip {world.seed}")
    good, bad = 0, SIZE - 1
    skipped: set[int] = set()
    while candidates := [place for place in range(good + 1, bad) if place not in skipped]:
        place = _middle(good, bad, candidates, skipped, chance)
        if place not in world.built:
            wanted = [p for p in _next_steps(good, bad, ahead) if p not in skipped]
            world.now += world.build(place, *(wanted if ahead > 1 else ()))
        if place in world.broken:
            skipped.add(place)
            continue
        failed, ran = False, 0
        while ran < repeats and not failed:
            wave = min(LANES, repeats - ran)
            failed = world.failures(place, wave) > 0
            ran += wave
            world.now += TRIAL_S
        good, bad = (good, place) if failed else (place, bad)
    named = set(range(good + 1, bad + 1))
    right = world.culprit in named and named <= world.truth
    return Ended(right, True, None, world.builds, world.trials, world.now)


def _middle(
    good: int, bad: int, candidates: list[int], skipped: set[int], chance: random.Random
) -> int:
    middle = (good + bad) // 2
    if middle not in skipped:
        return middle
    # git sorts by distance from the middle and skips a random share of the list.
    by_distance = sorted(candidates, key=lambda place: abs(place - middle))
    return by_distance[int(len(by_distance) * chance.random() ** 1.5)]


def _next_steps(good: int, bad: int, ahead: int) -> Iterator[int]:
    middle = (good + bad) // 2
    if ahead and middle > good:
        yield middle
        yield from _next_steps(good, middle, ahead - 1)
        yield from _next_steps(middle, bad, ahead - 1)


def bayesect(world: World, batch: int) -> Ended:
    """git_bayesect's own loop, with `batch` trials of each commit that it selects."""
    assert git_bayesect is not None
    bisector = git_bayesect.Bisector([*reversed(world.weights)])
    skipped: set[int] = set()
    while world.trials < BAYESECT_TRIALS and bisector.distribution.max() < CONFIDENCE:
        place = SIZE - 1 - int(bisector.select())
        if place in skipped:  # it selects a skipped commit again and again
            place = min(set(range(SIZE)) - skipped, key=lambda p: (abs(p - place), p))
        index = SIZE - 1 - place
        world.now += world.build(place)
        if place in world.broken:
            bisector.record(index, None)
            skipped.add(place)
            continue
        for _ in range(batch):
            bisector.record(index, world.fails(place))
        world.now += wave_s(batch)
    best = SIZE - 1 - int(bisector.distribution.argmax())
    probability = float(bisector.distribution.max())
    named = probability >= CONFIDENCE and best > 0
    # The oldest commit as culprit is as near as it comes to "no change".
    right = (best == 0) if world.culprit is None else named and best in world.truth
    right = right and probability >= CONFIDENCE
    claimed = probability if probability >= CONFIDENCE else None
    return Ended(right, named, claimed, world.builds, world.trials, world.now)


Tool = Callable[[World], Ended]


def tools(eager: int) -> dict[str, Tool]:
    """What is compared, by the name in the table."""
    found: dict[str, Tool] = {
        "racewatch": lambda world: racewatch(world, eager, Settings().spare),
        "racewatch, one builder": lambda world: racewatch(world, 1, Settings().spare),
        "racewatch, all builders": lambda world: racewatch(world, eager, None),
    }
    for repeats in REPEATS:
        found[f"git bisect, r = {repeats}"] = lambda w, r=repeats: git_bisect(w, r)
    for repeats in REPEATS[2:]:
        found[f"git bisect ahead, r = {repeats}"] = lambda w, r=repeats: git_bisect(w, r, 3)
    if git_bayesect is not None:
        found["git_bayesect, stock"] = lambda world: bayesect(world, 1)
        for batch in (8, 32):
            found[f"git_bayesect, batches of {batch}"] = lambda w, b=batch: bayesect(w, b)
    return found


def simulate(job: tuple[str, int, int]) -> tuple[str, str, Ended]:
    name, point, seed = job
    return name, POINTS[point].name, tools(LANES)[name](World.of(POINTS[point], seed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=200, help="histories of each kind")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--points", default="", help="only those whose name has this in it")
    parser.add_argument("--tools", default="", help="only those whose name begins so")
    parser.add_argument("--out", type=Path, help="where the tables go besides the terminal")
    asked = parser.parse_args()
    names = [name for name in tools(LANES) if name.startswith(asked.tools)]
    points = [i for i, point in enumerate(POINTS) if asked.points in point.name]
    jobs = [(n, p, s) for p in points for n in names for s in range(asked.seeds)]
    started = time.monotonic()
    found: Found = defaultdict(list)
    with multiprocessing.Pool(asked.jobs) as pool:
        for name, point, ended in pool.imap(simulate, jobs, chunksize=8):
            found[point, name].append(ended)
    text = "\n".join(report(found, asked.seeds, time.monotonic() - started))
    if asked.out:
        asked.out.write_text(text + "\n", encoding="utf-8")
    print(text)
    if git_bayesect is None:
        print("git_bayesect is not installed here and was left out", file=sys.stderr)


Found = dict[tuple[str, str], list[Ended]]


def report(found: Found, seeds: int, seconds: float) -> Iterator[str]:
    """The tables."""
    yield (
        f"{seeds} histories of {SIZE} commits of each kind; build {BUILD_S:.0f} s, trial "
        f"{TRIAL_S:.0f} s, {LANES} at a time, up to {LANES} builds at a time, "
        f"confidence {CONFIDENCE}; simulated in {seconds:.0f} s"
    )
    yield "right: ended with the truth. wrong: named something else, and was sure where it says."
    yield "claimed: how sure it said it was, mean. builds, trials, wall s: median (90 % within)."
    for point in dict.fromkeys(point for point, _ in found):
        yield f"\n{point:32}{'right':>7}{'wrong':>8}{'claimed':>9}{'builds':>12}{'trials':>8}" + (
            f"{'wall s':>16}"
        )
        for (of, name), runs in found.items():
            if of == point:
                yield _row(name, runs)
        yield from _beaten(found, point)
    yield from _calibration(found)


def _row(name: str, runs: list[Ended]) -> str:
    claimed = [run.claimed for run in runs if run.claimed is not None]
    said = f"{statistics.mean(claimed):.4f}" if claimed else "-"
    builds, walls = [run.builds for run in runs], [run.wall_s for run in runs]
    return (
        f"{name:32}{_share(run.right for run in runs):>7.1%}{_wrong(runs):>8.1%}{said:>9}"
        f"{statistics.median(builds):>6.0f} ({_most(builds):>3.0f})"
        f"{statistics.median(run.trials for run in runs):>8.0f}"
        f"{statistics.median(walls):>8.0f} ({_most(walls):>5.0f})"
    )


def _share(values: Iterable[bool]) -> float:
    return statistics.mean(map(float, values))


def _wrong(runs: list[Ended]) -> float:
    return _share(run.named and not run.right for run in runs)


def _most(values: list[float] | list[int]) -> float:
    """What nine of ten are within."""
    return sorted(values)[math.ceil(0.9 * len(values)) - 1]


def _beaten(found: Found, point: str) -> Iterator[str]:
    """Who is on the front with Racewatch, and its time as a share of git_bayesect's."""
    own = found.get((point, "racewatch"))
    if own is None:
        return
    wall, right = statistics.median(r.wall_s for r in own), _share(r.right for r in own)
    shares = []
    better, ties = [], []
    for (of, name), runs in found.items():
        if of != point or name.startswith("racewatch"):
            continue
        theirs = statistics.median(r.wall_s for r in runs)
        if name.startswith("git_bayesect"):
            shares.append(f"{wall / theirs:.2f} of {name}")
            continue
        accuracy = _share(r.right for r in runs)
        if theirs < wall and accuracy > right:
            better.append(name)
        elif accuracy >= right - 0.005:
            ties.append(f"{name.removeprefix('git bisect')} ({theirs / wall:.2f} of its time)")
    yield f"faster and more accurate than racewatch: {', '.join(better) or 'nobody'}"
    yield f"as accurate: git bisect{';'.join(ties) if ties else ' nowhere'}"
    if shares:
        yield f"its time: {', '.join(shares)}"


def _calibration(found: Found) -> Iterator[str]:
    """How often the likeliest commit was the culprit, by the probability that was given to it."""
    looks = [
        look
        for (point, name), runs in found.items()
        if name.startswith("racewatch") and not point.startswith("no culprit")
        for run in runs
        for look in run.looks
    ]
    yield "\nracewatch along the way: probability of its likeliest commit, how often it was that"
    for low, high in pairwise((0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.99, 0.999, 1.01)):
        inside = [look for look in looks if low <= look[0] < high]
        if inside:
            said = statistics.mean(probability for probability, _ in inside)
            yield f"  {said:.4f} said, {_share(right for _, right in inside):.4f} right, " + (
                f"{len(inside)} looks"
            )
    claims = [
        run
        for (_, name), runs in found.items()
        if name.startswith("racewatch")
        for run in runs
        if run.claimed is not None
    ]
    if claims:
        yield (
            f"verdicts: {statistics.mean(run.claimed or 0.0 for run in claims):.5f} claimed, "
            f"{_share(run.right for run in claims):.5f} right, of {len(claims)}; "
            f"checks that failed: {sum(run.checks_failed for run in claims)}"
        )


if __name__ == "__main__":
    main()
