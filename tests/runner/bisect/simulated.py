"""Bisections of made-up ranges: the truth is known, trials are drawn, nothing is built."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from runner.bisect.bisection import Bisection, Probe
from runner.bisect.decision import Decision
from runner.bisect.events import Entered, Event, Observation, Reverted, Seen
from runner.bisect.posterior import Tally
from runner.bisect.range import BuildClass, Range
from runner.bisect.settings import Settings
from runner.result import Commit
from runner.statistics.comparison import anytime
from runner.statistics.counts import Counts

BUILD_S, TRIAL_S = 600.0, 0.125


def higher(one: Tally, other: Tally) -> float:
    """See `runner.bisect.verification.Higher`."""
    return anytime(Counts(*one), Counts(*other))


def commit(place: int | str) -> Commit:
    return Commit(f"{place:0>40}", str(place), f"Commit {place}")


def line(
    size: int, *, forward: bool = True, merges: Mapping[int, str] | None = None, prefix: str = ""
) -> Range:
    """A range of classes with one commit each; their keys are their places."""
    commits = [commit(f"{prefix}{place}") for place in range(size)]
    classes = [
        BuildClass(
            key=f"{prefix}{place}",
            commits=(commits[place],),
            # Going back in time it is the newer one whose absence leads on.
            blamed=(commits[place] if forward else commits[place - 1]) if place else None,
            forward=forward,
            second_parent=(merges or {}).get(place, ""),
        )
        for place in range(size)
    ]
    return Range(commits[0], commits[-1], "stock", tuple(classes))


@dataclass
class Truth:
    """Rates by key. after: keys of the bad side. broken: keys that do not build, with the error.
    hiccups: keys whose next probes meet a failing host, and how many. inside: what a merge holds.
    reverted: what reverting on the head gives, with its rate."""

    before: float
    after: float
    bad: frozenset[str]
    broken: Mapping[str, str] = field(default_factory=dict)
    hiccups: dict[str, int] = field(default_factory=dict)
    inside: Range | None = None
    reverted: tuple[Reverted, float] = (Reverted(reason="no tree here"), 0.0)
    seed: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    @classmethod
    def of(cls, searched: Range, culprit: int | None, before: float, after: float) -> Truth:
        """The step into the class `culprit` changes the rate; none does where it is None."""
        keys = [each.key for each in searched.classes]
        return cls(before, after, frozenset(keys[culprit:] if culprit is not None else ()))

    def event(self, probe: Probe) -> Observation:
        """What comes of a probe."""
        build_s = 0.0 if probe.built else BUILD_S
        if self.hiccups.get(probe.key, 0):
            self.hiccups[probe.key] -= 1
            return Observation(
                probe.key, Seen.INFRASTRUCTURE, check=probe.check, reason="no device"
            )
        if probe.key in self.broken:
            return Observation(
                probe.key, Seen.UNBUILDABLE, build_s=build_s, reason=self.broken[probe.key]
            )
        rate = self.after if probe.key in self.bad else self.before
        if probe.key == self.reverted[0].key:
            rate = self.reverted[1]
        k = sum(self.chance.random() < rate for _ in range(probe.trials))
        return Observation(
            probe.key,
            k=k,
            n=probe.trials,
            check=probe.check,
            build_s=build_s,
            trial_s=probe.trials * TRIAL_S,
        )


@dataclass
class Carried:
    """A bisection carried out: every decision, every event, and how it ended."""

    state: Bisection
    events: list[Event]
    decisions: list[Decision]

    @property
    def verdict(self):  # type: ignore[no-untyped-def]
        found = self.decisions[-1].verdict
        assert found is not None
        return found


def carry_out(
    searched: Range, truth: Truth, settings: Settings | None = None, builders: int = 1
) -> Carried:
    """Until the verdict; probes asked for together come back together, in their order."""
    state = Bisection.start(searched, higher, settings)
    events: list[Event] = []
    decisions: list[Decision] = []
    while True:
        spent = state.spent
        decisions.append(state.next(builders, elapsed_s=spent.build_s + spent.trial_s))
        decision = decisions[-1]
        if decision.verdict is not None:
            return Carried(state, events, decisions)
        happened: list[Event]
        if decision.enter is not None:
            happened = [Entered(truth.inside)]
        elif decision.revert is not None:
            happened = [truth.reverted[0]]
        else:
            happened = [truth.event(probe) for probe in decision.probes]
        assert happened, f"it waits for nothing: {decision.text}"
        assert len(events) < 2000, "it does not end"
        for event in happened:
            events.append(event)
            state = state.observe(event)
