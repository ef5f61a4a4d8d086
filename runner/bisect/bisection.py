"""A bisection as a value: what was observed makes its state, and the state makes its next steps.

`Bisection.start` takes a range, `observe` one event after another, `next` says what to do now and,
at the end, the verdict. No call has an effect or looks at a clock, so whoever drives it (a command,
a service) stores each event and then folds it; replaying the stored events gives the same state and
the same steps, and a restart loses nothing.

The stages: trials of both ends (and, where they diverge, of their merge base) until they differ;
the search; a check of the suspect by fresh trials of its nearest buildable neighbours; for a merge,
the same inside its second parent; and a check of the head without the culprit. A failed check goes
back to the search, RETRIES times at most, then the verdict is "not sure".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import pairwise

from runner.bisect import policy
from runner.bisect.events import Entered, Event, Observation, Reverted, Seen
from runner.bisect.policy import BATCHES, Costs
from runner.bisect.posterior import Posterior, Tally, mean, posterior
from runner.bisect.prior import prior
from runner.bisect.range import BuildClass, Range
from runner.bisect.verdict import (
    Verdict,
    VerdictKind,
    checked,
    likeliest,
    named,
    side_rate,
    sure,
    suspects,
)
from runner.bisect.verification import Check, CheckKind, CheckState, Higher, Side
from runner.result import Commit

RETRIES = 2
"""Failed checks that go back to the search."""
HICCUPS = 3
"""Infrastructure errors of one build in a row after which it is passed over."""
EXPECTED = Costs(build_s=300.0, trial_s=1.0)
"""What a build and a trial are taken to cost before any was measured."""
_UNLIKELY = 0.5
"""Probability of a suspect below which its check is given up."""


@dataclass(frozen=True)
class Settings:
    """How a bisection is carried out.

    confidence: probability of the suspect at which it is checked, and stated. budget_s: of wall
    time, None for none. builds: that it tries to keep within, all in all; idle builders are used as
    far as that allows, None uses them all. check_error: chance that a check by fresh trials shows
    a difference that is not there. check_trials, end_trials: of each side, after which a check has
    failed, and after which ends count as not separated. batch_s: of trials, at most, at a time.
    costs: what to expect before anything is measured.
    """

    confidence: float = 0.99
    budget_s: float | None = None
    builds: float | None = 8.5
    check_error: float = 0.01
    check_trials: int = 600
    end_trials: int = 1000
    batch_s: float = 60.0
    costs: Costs = EXPECTED

    def __post_init__(self) -> None:
        for name in ("confidence", "check_error"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} must be between 0 and 1, got {getattr(self, name)}")


@dataclass(frozen=True)
class Probe:
    """Trials to run of one commit's build, which is made first where it is not there.

    check: the number of the check that they are for, 0 for the search. Probes of one check take
    turns, trial by trial where that can be had.
    """

    key: str
    commit: Commit
    trials: int
    check: int = 0
    built: bool = False
    seconds: float = 0.0
    bits: float = 0.0


@dataclass(frozen=True)
class RevertWanted:
    """The head without the culprit is wanted: answered by a `Reverted`."""

    culprit: Commit
    head: Commit


@dataclass(frozen=True)
class Decision:
    """What to do now, in a sentence (`text`) and in parts; nothing at all means: wait.

    enter: the class to go on into, whose blamed commit is a merge: answered by an `Entered`.
    """

    text: str
    probes: tuple[Probe, ...] = ()
    enter: int | None = None
    revert: RevertWanted | None = None
    verdict: Verdict | None = None


class Stage(StrEnum):
    """What a bisection is at."""

    SEARCH = "search"
    CHECK = "check"
    ENTER = "enter"
    REVERT = "revert"
    DONE = "done"


@dataclass(frozen=True)
class Spent:
    """What a bisection has cost: builds made (failed ones too), trials, and the seconds of both."""

    builds: int = 0
    trials: int = 0
    build_s: float = 0.0
    trial_s: float = 0.0
    timed: int = 0

    def plus(self, seen: Observation) -> Spent:
        """With one more observation; one that took no time was there before."""
        return Spent(
            self.builds + (seen.build_s > 0),
            self.trials + (seen.n if seen.trial_s > 0 else 0),
            self.build_s + seen.build_s,
            self.trial_s + seen.trial_s,
            self.timed + (seen.n if seen.trial_s > 0 else 0),
        )

    def costs(self, expected: Costs) -> Costs:
        """Seconds per build and trial; what was expected counts as one build and one batch."""
        weight = BATCHES[0]
        return Costs(
            (expected.build_s + self.build_s) / (1 + self.builds),
            (expected.trial_s * weight + self.trial_s) / (weight + self.timed),
            expected.start_s,
        )


@dataclass(frozen=True)
class Level:
    """A range that is searched, and its suspect: the steps into the classes `first` to `end` - 1
    between two neighbours that differ."""

    range: Range
    suspect: tuple[int, int] | None = None


@dataclass(frozen=True)
class Bisection:
    """The state of a bisection; see this module.

    levels: the range, then those inside merges. tallies: trials that count, by key. broken: keys
    that cannot be measured, with the reason. hiccups: infrastructure errors in a row, by key.
    """

    settings: Settings
    higher: Higher
    levels: tuple[Level, ...]
    stage: Stage = Stage.SEARCH
    tallies: Mapping[str, Tally] = field(default_factory=dict)
    broken: Mapping[str, str] = field(default_factory=dict)
    hiccups: Mapping[str, int] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    spent: Spent = Spent()
    verdict: Verdict | None = None

    @classmethod
    def start(
        cls,
        searched: Range,
        higher: Higher,
        settings: Settings | None = None,
        events: Iterable[Event] = (),
    ) -> Bisection:
        """A bisection of a range, with what happened so far."""
        found = cls(settings or Settings(), higher, (Level(searched),))
        for event in events:
            found = found.observe(event)
        return found

    # What it is at

    @property
    def range(self) -> Range:
        """The range that is searched now."""
        return self.levels[-1].range

    @cached_property
    def posterior(self) -> Posterior:
        """Of the range that is searched now."""
        return posterior(prior([each.weight for each in self.range.classes]), self._by_place)

    @cached_property
    def _by_place(self) -> dict[int, Tally]:
        return {
            place: self.tallies[each.key]
            for place, each in enumerate(self.range.classes)
            if each.key in self.tallies
        }

    @cached_property
    def _tested(self) -> list[int]:
        return [place for place, tally in self._by_place.items() if tally.n]

    @cached_property
    def _broken_places(self) -> list[int]:
        return [i for i, each in enumerate(self.range.classes) if each.key in self.broken]

    @property
    def check(self) -> Check | None:
        """The check that is open."""
        last = self.checks[-1] if self.checks else None
        return last if last and last.state is CheckState.OPEN else None

    @property
    def failures(self) -> int:
        """Checks that failed."""
        return sum(each.state is CheckState.FAILED for each in self.checks)

    @property
    def costs(self) -> Costs:
        """Seconds per build and trial, as measured so far."""
        return self.spent.costs(self.settings.costs)

    @property
    def seconds_left(self) -> float:
        """About what it still takes with one builder, checks left out; 0 when done."""
        if self.stage is not Stage.SEARCH:
            return 0.0
        return policy.seconds_left(self.posterior, self.costs)

    # What happened

    def observe(self, event: Event) -> Bisection:
        """The state after one more event; events after the verdict change nothing but the cost."""
        match event:
            case Observation():
                return self._observed(event)._settled()
            case Entered():
                return self._entered(event)._settled()
            case Reverted():
                return self._reverted(event)._settled()

    def _observed(self, seen: Observation) -> Bisection:
        after = replace(self, spent=self.spent.plus(seen))
        if self.stage is Stage.DONE:
            return after
        match seen.seen:
            case Seen.INFRASTRUCTURE:
                count = self.hiccups.get(seen.key, 0) + 1
                after = replace(after, hiccups={**self.hiccups, seen.key: count})
                if count < HICCUPS:
                    return after
                reason = f"could not be measured {count} times in a row: {seen.reason}"
                return replace(after, broken={**self.broken, seen.key: reason})
            case Seen.UNBUILDABLE:
                if self.tallies.get(seen.key, Tally()).n:
                    # It was measured before: what it is now is the host's doing.
                    return after
                return replace(after, broken={**self.broken, seen.key: seen.reason})
        tally = self.tallies.get(seen.key, Tally()).plus(seen.tally)
        broken = {key: why for key, why in self.broken.items() if key != seen.key or not seen.n}
        hiccups = {key: count for key, count in self.hiccups.items() if key != seen.key}
        after = replace(
            after, tallies={**self.tallies, seen.key: tally}, broken=broken, hiccups=hiccups
        )
        check = self.check
        if check is None or seen.check != check.number or not check.has(seen.key):
            return after
        return after._with_check(check.with_trials(seen.key, seen.tally, self.higher))

    def _entered(self, event: Entered) -> Bisection:
        if self.stage is not Stage.ENTER:
            return self
        if event.range is None:
            return replace(self, stage=Stage.REVERT)
        return replace(self, levels=(*self.levels, Level(event.range)), stage=Stage.SEARCH)

    def _reverted(self, event: Reverted) -> Bisection:
        if self.stage is not Stage.REVERT or self.check is not None:
            return self
        wanted = self._revert_wanted()
        step = self._blamed_class()
        head = Side(self._head_key(step.forward), wanted.head)
        without = Side(event.key, event.commit or wanted.head)
        low, high = (without, head) if step.forward else (head, without)
        number = len(self.checks) + 1
        opened = Check(number, CheckKind.REVERT, low, high)
        reason = event.reason
        before = self.checks[-1]
        if event.key and {low.key, high.key} == {before.low.key, before.high.key}:
            reason = "it gives the builds that were just compared"
        if reason or event.commit is None:
            opened = opened.skipped(reason or "there is no commit for it")
        return replace(self, checks=(*self.checks, opened))

    def _with_check(self, check: Check) -> Bisection:
        return replace(self, checks=(*self.checks[:-1], check))

    # What follows from it

    def _settled(self) -> Bisection:
        """The state after all that follows from what was seen by itself."""
        match self.stage:
            case Stage.SEARCH:
                return self._suspected()
            case Stage.CHECK:
                return self._judged_neighbours()
            case Stage.REVERT:
                return self._judged_revert()
        return self

    def _suspected(self) -> Bisection:
        """A check of the suspect, if there is one of which the search is sure enough."""
        if self.posterior.none >= self.settings.confidence:
            return self._given_up("")
        suspect = self._suspect()
        if suspect is None:
            return self
        first, end = suspect
        low, high = self.range.classes[first - 1], self.range.classes[end - 1]
        check = Check(
            len(self.checks) + 1,
            CheckKind.NEIGHBOURS,
            Side(low.key, low.commit),
            Side(high.key, high.commit),
        )
        levels = (*self.levels[:-1], Level(self.range, suspect))
        return replace(self, stage=Stage.CHECK, levels=levels, checks=(*self.checks, check))

    def _suspect(self) -> tuple[int, int] | None:
        """The steps between two tested neighbours that are sure enough to hold the change."""
        for low, high in pairwise(self._tested):
            if self.posterior.mass(low + 1, high + 1) < self.settings.confidence:
                continue
            if all(place in self._broken_places for place in range(low + 1, high)):
                return low + 1, high + 1
        return None

    def _suspect_mass(self) -> float:
        suspect = self.levels[-1].suspect
        return self.posterior.mass(*suspect) if suspect else 0.0

    def _judged_neighbours(self) -> Bisection:
        check = self.check
        assert check is not None
        mass = self._suspect_mass()
        if check.p <= self.settings.check_error and mass >= self.settings.confidence:
            return self._with_check(check.passed())._confirmed()
        gone = [side.key for side in (check.low, check.high) if side.key in self.broken]
        if gone:
            return self._failed(check, self.broken[gone[0]])
        if mass < _UNLIKELY and check.fewest:
            return self._failed(check, f"fresh trials leave it {sure(mass)} likely")
        if check.fewest >= self.settings.check_trials:
            return self._failed(check, f"no difference in {check.fewest} fresh trials of each")
        return self

    def _failed(self, check: Check, reason: str) -> Bisection:
        """Back to the search, or the end of it."""
        back = replace(self._with_check(check.failed(reason)), stage=Stage.SEARCH)
        back = replace(back, levels=(*self.levels[:-1], Level(self.range)))
        if back.failures > RETRIES:
            return back._given_up(f"{back.failures} checks by fresh trials failed, last: {reason}")
        return back._suspected()

    def _confirmed(self) -> Bisection:
        first, end = self.levels[-1].suspect or (0, 0)
        if end - first > 1:
            return self._ended(self._found(VerdictKind.AMONG))
        entered = self.range.classes[first]
        return replace(self, stage=Stage.ENTER if entered.second_parent else Stage.REVERT)

    def _judged_revert(self) -> Bisection:
        last = self.checks[-1]
        if last.kind is not CheckKind.REVERT:
            return self
        if last.state is CheckState.SKIPPED:
            return self._ended(self._found(VerdictKind.CULPRIT))
        if last.state is not CheckState.OPEN:
            return self
        for side in (last.low, last.high):
            if side.key in self.broken:
                skipped = self._with_check(last.skipped(self.broken[side.key]))
                return skipped._ended(skipped._found(VerdictKind.CULPRIT))
        if last.p <= self.settings.check_error:
            passed = self._with_check(last.passed())
            return passed._ended(passed._found(VerdictKind.CULPRIT))
        if last.fewest >= self.settings.check_trials:
            reason = f"reverting it on the head changed nothing in {last.fewest} trials of each"
            # The outermost range is searched again: what was entered was not the whole story.
            return replace(self, levels=self.levels[:1])._failed(last, reason)
        return self

    def _given_up(self, reason: str) -> Bisection:
        """The end of the search of this range: what is known of it, or of the merge it is in."""
        if len(self.levels) > 1:
            outside = replace(self, levels=self.levels[:-1], stage=Stage.REVERT)
            return outside._settled()
        return self._ended(self._unsure(reason))

    def _ended(self, verdict: Verdict) -> Bisection:
        return replace(self, stage=Stage.DONE, verdict=verdict)

    # The verdict

    def _blamed_class(self) -> BuildClass:
        first, _ = self.levels[-1].suspect or (1, 2)
        return self.range.classes[first]

    def _head_key(self, forward: bool) -> str:
        classes = self.levels[0].range.classes
        return classes[-1].key if forward else classes[0].key

    def _revert_wanted(self) -> RevertWanted:
        step = self._blamed_class()
        outermost = self.levels[0].range
        assert step.blamed is not None
        return RevertWanted(step.blamed, outermost.bad if step.forward else outermost.good)

    def _sides(self, first: int, end: int) -> tuple[Tally, Tally]:
        """All trials before and after the steps into the classes `first` to `end` - 1."""
        before, after = Tally(), Tally()
        for place, tally in self._by_place.items():
            if place < first:
                before = before.plus(tally)
            elif place >= end - 1:
                after = after.plus(tally)
        return before, after

    def _found(self, kind: VerdictKind) -> Verdict:
        first, end = self.levels[-1].suspect or (1, len(self.range.classes))
        before, after = self._sides(first, end)
        weights = self.posterior.rates(first, end)
        low, high = side_rate(before, weights[0]), side_rate(after, weights[1])
        commits = suspects(self.range.classes, first, end)
        fixed = not self.range.classes[first].forward
        probability = self.posterior.mass(first, end)
        what = (
            named(commits[0])
            if kind is VerdictKind.CULPRIT
            else f"one of {len(commits)} commits, {named(commits[0])} to {named(commits[-1])}, "
            f"between which nothing builds,"
        )
        rates = f"from {high.text} to {low.text}" if fixed else f"from {low.text} to {high.text}"
        text = (
            f"{what} {'lowered' if fixed else 'raised'} the failure rate {rates}, "
            f"{sure(probability)} sure; {checked(self.checks[-2:])}"
        )
        return Verdict(kind, text, probability, commits, fixed, low, high)

    def _unsure(self, reason: str) -> Verdict:
        size = len(self.range.classes)
        ends = self._by_place.get(0, Tally()), self._by_place.get(size - 1, Tally())
        if self.posterior.none >= max(self.settings.confidence, 0.0) or (
            not reason and self.posterior.none > _UNLIKELY
        ):
            return self._no_change(*ends)
        first, end = likeliest(self.posterior, self.settings.confidence)
        before, after = self._sides(first, end)
        weights = self.posterior.rates(first, end)
        low, high = side_rate(before, weights[0]), side_rate(after, weights[1])
        commits = suspects(self.range.classes, first, end)
        probability = self.posterior.mass(first, end)
        what = (
            named(commits[0])
            if len(commits) == 1
            else f"one of {len(commits)} commits, {named(commits[0])} to {named(commits[-1])}"
        )
        text = (
            f"not sure: {what}, {sure(probability)} likely, between {low.text} and {high.text}"
            f"{': ' if reason else ''}{reason}"
        )
        fixed = not self.range.classes[first].forward
        return Verdict(VerdictKind.NOT_SURE, text, probability, commits, fixed, low, high, reason)

    def _no_change(self, good: Tally, bad: Tally) -> Verdict:
        weights = [each / self.posterior.none for each in self.posterior.rates_at(0)[2]]
        text = (
            f"the ends do not separate: good {self.range.good.sha[:12]} failed {good.text}, "
            f"bad {self.range.bad.sha[:12]} {bad.text}, "
            f"{sure(self.posterior.none)} sure of no change"
        )
        if good.n and bad.n and self.higher(good, bad) <= self.settings.check_error:
            text += "; the good one fails more often: exchange the ends"
        return Verdict(
            VerdictKind.NO_CHANGE,
            text,
            self.posterior.none,
            before=side_rate(good, weights),
            after=side_rate(bad, weights),
        )

    # What to do

    def next(
        self,
        builders: int = 1,
        running: Sequence[Probe] = (),
        cached: Collection[str] = (),
        elapsed_s: float = 0.0,
    ) -> Decision:
        """What to do now.

        builders: that there are, all in all. running: probes that were asked for and have not
        ended. cached: keys whose builds are there, besides those of which there are trials.
        elapsed_s: wall time so far.
        """
        if self.verdict is not None:
            return Decision(self.verdict.text, verdict=self.verdict)
        budget = self.settings.budget_s
        left = None if budget is None else budget - elapsed_s
        if left is not None and left <= 0:
            verdict = self._out_of_budget()
            return Decision(verdict.text, verdict=verdict)
        match self.stage:
            case Stage.ENTER:
                place = (self.levels[-1].suspect or (0, 0))[0]
                merge = self.range.classes[place].blamed
                return Decision(f"going into merge {named(merge)}" if merge else "", enter=place)
            case Stage.REVERT if self.check is None:
                wanted = self._revert_wanted()
                text = f"reverting {named(wanted.culprit)} on {named(wanted.head)}"
                return Decision(text, revert=wanted)
            case Stage.CHECK | Stage.REVERT:
                return self._next_check(running, cached)
        return self._next_search(builders, running, cached, left)

    def _out_of_budget(self) -> Verdict:
        reason = "the budget is spent"
        if self.stage in (Stage.ENTER, Stage.REVERT):
            number = len(self.checks) + 1
            side = Side("", self._revert_wanted().head)
            open_revert = self.check
            skipped = (open_revert or Check(number, CheckKind.REVERT, side, side)).skipped(reason)
            kept = self.checks[:-1] if open_revert else self.checks
            return replace(self, checks=(*kept, skipped))._found(VerdictKind.CULPRIT)
        return self._unsure(reason)

    def _is_built(self, key: str, cached: Collection[str]) -> bool:
        return bool(self.tallies.get(key, Tally()).n) or key in cached

    def _probe(
        self, key: str, commit: Commit, trials: int, cached: Collection[str], check: int = 0,
        bits: float = 0.0,
    ) -> Probe:  # fmt: skip
        built = self._is_built(key, cached)
        seconds = self.costs.batch_s(trials) + (0 if built else self.costs.build_s)
        return Probe(key, commit, trials, check, built, seconds, bits)

    def _next_check(self, running: Sequence[Probe], cached: Collection[str]) -> Decision:
        check = self.check
        assert check is not None
        what = f"check {check.number}: {check.text}"
        if any(probe.check == check.number for probe in running):
            return Decision(what)
        first, end = self.levels[-1].suspect or (1, len(self.range.classes))
        before, after = self.posterior.rates(first, end)
        trials = self._fresh_trials(check, mean(before), mean(after))
        sides = (check.low, check.high)
        return Decision(
            what,
            tuple(
                self._probe(side.key, side.commit, trials, cached, check.number) for side in sides
            ),
        )

    def _fresh_trials(self, check: Check, low: float, high: float) -> int:
        """Trials of each side after which the check probably passes, as far as a batch goes."""
        for trials in BATCHES:
            expected = [
                Tally(round(rate * trials) + side.tally.k, trials + side.tally.n)
                for rate, side in ((low, check.low), (high, check.high))
            ]
            enough = self.higher(expected[1], expected[0]) <= self.settings.check_error
            larger = self.costs.batch_s(2 * trials) > self.settings.batch_s
            if enough or larger:
                return trials
        return BATCHES[-1]

    def _next_search(
        self,
        builders: int,
        running: Sequence[Probe],
        cached: Collection[str],
        left_s: float | None,
    ) -> Decision:
        ends = self._next_ends(running, cached)
        if ends is not None:
            return ends
        classes = self.range.classes
        asked = {probe.key for probe in running}
        if any(probe.built for probe in running):
            return Decision("waiting for trials, which come before the next build")
        costs, limit = self.costs, self.settings.batch_s
        ready = [
            place
            for place, each in enumerate(classes)
            if self._is_built(each.key, cached)
            and each.key not in asked
            and each.key not in self.broken
        ]
        tested = policy.best_tested(self.posterior, ready, costs, limit_s=limit)
        builds = self._builds(builders, running, cached)
        if left_s is not None and costs.build_s > left_s:
            builds = []
        pace = 1 / (costs.build_s + costs.batch_s(BATCHES[0]))
        if builds:
            best = policy.best_batch(
                self.posterior, builds[0], costs, ahead_s=costs.build_s, limit_s=limit
            )
            pace = best.bits_per_s
        under_way = any(not probe.built for probe in running)
        if (
            tested
            and tested.bits > 1e-9
            and (tested.bits_per_s >= pace or not (builds or under_way))
        ):
            each = classes[tested.place]
            probe = self._probe(each.key, each.commit, tested.trials, cached, bits=tested.bits)
            return Decision(f"{tested.trials} trials of {named(each.commit)}", (probe,))
        if builds:
            probes = tuple(
                self._probe(
                    classes[place].key, classes[place].commit, best.trials, cached, bits=best.bits
                )
                for place in builds
            )
            what = ", ".join(named(probe.commit) for probe in probes)
            return Decision(f"building {what}", probes)
        if running:
            return Decision("waiting for builds")
        verdict = self._unsure("nothing is left to learn from")
        return Decision(verdict.text, verdict=verdict)

    def _builds(
        self, builders: int, running: Sequence[Probe], cached: Collection[str]
    ) -> list[int]:
        """The classes to build now."""
        pending = {probe.key for probe in running if not probe.built}
        classes = self.range.classes
        places = {each.key: place for place, each in enumerate(classes)}
        candidates = [
            place
            for place, each in enumerate(classes)
            if not self._is_built(each.key, cached)
            and each.key not in pending
            and each.key not in self.broken
        ]
        known = [place for place, each in enumerate(classes) if self._is_built(each.key, cached)]

        def chance(place: int) -> float:
            return policy.chance_to_build(place, known, self._broken_places)

        return policy.builds_at_once(
            self.posterior,
            candidates,
            [places[key] for key in pending if key in places],
            chance,
            idle=builders - len(pending),
            used=self.spent.builds + len(pending),
            target=self.settings.builds,
        )

    def _next_ends(self, running: Sequence[Probe], cached: Collection[str]) -> Decision | None:
        """Trials of both ends, and of their merge base, until they differ; None once they do."""
        searched, size = self.range, len(self.range.classes)
        ends = [0, size - 1]
        for place in ends:
            each = searched.classes[place]
            if each.key in self.broken:
                verdict = self._not_measured(place)
                return Decision(verdict.text, verdict=verdict)
        tallies = [self._by_place.get(place, Tally()) for place in ends]
        wanted = list(ends)
        if searched.base is not None and searched.classes[searched.base].key not in self.broken:
            wanted.append(searched.base)
        measured = all(self._by_place.get(place, Tally()).n for place in wanted)
        separated = self.posterior.none <= 1 - self.settings.confidence
        if measured and separated:
            return None
        fewest = min(tally.n for tally in tallies)
        if measured and fewest >= self.settings.end_trials:
            if self.posterior.none <= _UNLIKELY:
                return None
            verdict = self._no_change(*tallies)
            return Decision(verdict.text, verdict=verdict)
        if running:
            return Decision("waiting for trials of the ends")
        trials = 32 if fewest < 32 else min(BATCHES[-1], fewest)
        while trials > BATCHES[0] and self.costs.batch_s(trials) > self.settings.batch_s:
            trials //= 2
        probes = tuple(
            self._probe(searched.classes[p].key, searched.classes[p].commit, trials, cached)
            for p in wanted
            if p in ends or not self._by_place.get(p, Tally()).n
        )
        return Decision("trials of the ends, until they differ", probes)

    def _not_measured(self, place: int) -> Verdict:
        each = self.range.classes[place]
        end = "good" if place == 0 else "bad"
        reason = self.broken[each.key]
        text = f"the {end} end {named(each.commit)} cannot be measured: {reason}; name another one"
        return Verdict(VerdictKind.NOT_MEASURED, text, 0.0, (each.commit,), reason=reason)
