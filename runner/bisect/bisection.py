"""The state of a bisection as a value: the fold of what happened, in the order it was stored.

`Bisection.start` takes a range, `observe` one event after another, `next` says what to do now.
Nothing here has an effect or looks at a clock, so whoever drives it (a command, a service) stores
each event and then folds it; replaying the stored events gives the same state and the same next
steps, and a restart loses nothing.

The stages: the search (first of all trials of both ends and, where they diverge, of their merge
base, until they differ); a check of the suspect by fresh trials of its nearest neighbours that
build; for a merge, the same inside its second parent; and a check of the head without the culprit.
A failed check goes back to the search, RETRIES times at most; then the verdict is "not sure".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import pairwise

from runner.bisect import policy
from runner.bisect.decision import Decision, Probe
from runner.bisect.events import Entered, Event, Observation, Reverted, Seen
from runner.bisect.policy import BATCHES, Costs
from runner.bisect.posterior import NO_TRIALS, Posterior, Tally, posterior
from runner.bisect.prior import Prior, prior
from runner.bisect.range import BuildClass, Range
from runner.bisect.settings import Settings
from runner.bisect.verdict import Evidence, Verdict, sure
from runner.bisect.verification import Check, CheckKind, CheckState, Higher, Side, contradicted
from runner.result import Commit

RETRIES = 2
"""Failed checks that go back to the search."""
HICCUPS = 3
"""Infrastructure errors of one class in a row, after which it is passed over."""
FITTED = 4
"""Batches from which on their starts are told apart from their trials."""
HELD = 4.0 * BATCHES[0] ** 2
"""Weight of the guess that starting a batch takes no time, as a spread of trials squared."""
LEAST_TRIAL = 0.1
"""Share of a batch's time that its trials take at least."""
UNLIKELY = 0.5
"""Probability of a suspect below which its check is given up; of no change, above which the ends
count as not separated once they had all their trials."""


class Stage(StrEnum):
    """What a bisection is at."""

    SEARCH = "search"
    CHECK = "check"
    ENTER = "enter"
    REVERT = "revert"
    DONE = "done"


@dataclass(frozen=True)
class Spent:
    """What a bisection has cost: builds made (failed ones too), trials run, and their seconds."""

    builds: int = 0
    trials: int = 0
    build_s: float = 0.0
    trial_s: float = 0.0

    def plus(self, seen: Observation) -> Spent:
        """With one more observation; what took no time was there before."""
        return Spent(
            self.builds + (seen.build_s > 0),
            self.trials + (seen.n if seen.trial_s > 0 else 0),
            self.build_s + seen.build_s,
            self.trial_s + seen.trial_s,
        )

    def costs(self, expected: Costs, pace: Pace) -> Costs:
        """Seconds per build, trial and start of a batch; what was expected counts as one build and
        one batch."""
        batch = BATCHES[0]
        build_s = (expected.build_s + self.build_s) / (1 + self.builds)
        trial_s = (expected.trial_s * batch + self.trial_s) / (batch + self.trials)
        if pace.batches < FITTED:
            return Costs(build_s, trial_s, expected.start_s)
        start_s = pace.start_s
        mean = pace.trials / pace.batches
        return Costs(build_s, max(trial_s - start_s / mean, trial_s * LEAST_TRIAL), start_s)


@dataclass(frozen=True)
class Pace:
    """Sums over the batches of trials that ran: they tell what starting one takes, apart from each
    trial. squares: of the trials of each. products: of each one's trials and seconds."""

    batches: int = 0
    trials: int = 0
    seconds: float = 0.0
    squares: int = 0
    products: float = 0.0

    def plus(self, seen: Observation) -> Pace:
        """With one more batch; trials that were there before took nothing."""
        n, s = seen.n, seen.trial_s
        if not n or s <= 0:
            return self
        return Pace(
            self.batches + 1,
            self.trials + n,
            self.seconds + s,
            self.squares + n * n,
            self.products + n * s,
        )

    @property
    def start_s(self) -> float:
        """Seconds before the first trial of a batch: where the line through all batches begins,
        held towards 0 as long as they are few or of one size."""
        mean_n, mean_s = self.trials / self.batches, self.seconds / self.batches
        spread = self.squares - self.trials * mean_n
        together = self.products - self.seconds * mean_n
        slope = (together + HELD * mean_s / mean_n) / (spread + HELD)
        return min(max(0.0, mean_s - slope * mean_n), mean_s * (1 - LEAST_TRIAL))


@dataclass(frozen=True)
class Level:
    """A range that is searched, and its suspect: the steps into the classes `first` to `end` - 1,
    between two neighbours that differ."""

    range: Range
    suspect: tuple[int, int] | None = None


@dataclass(frozen=True)
class Bisection:
    """The state of a bisection; see this module.

    levels: the range, then those inside merges. tallies: trials that count, by key.
    broken: keys that cannot be measured, with the reason. lost: those of them for the host's fault.
    hiccups: infrastructure errors in a row, by key. made: keys that were built for it.
    """

    settings: Settings
    higher: Higher
    levels: tuple[Level, ...]
    stage: Stage = Stage.SEARCH
    tallies: Mapping[str, Tally] = field(default_factory=dict)
    broken: Mapping[str, str] = field(default_factory=dict)
    hiccups: Mapping[str, int] = field(default_factory=dict)
    lost: frozenset[str] = frozenset()
    made: frozenset[str] = frozenset()
    checks: tuple[Check, ...] = ()
    spent: Spent = Spent()
    pace: Pace = Pace()
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
        state = cls(settings or Settings(), higher, (Level(searched),))
        for event in events:
            state = state.observe(event)
        return state

    # What it is at

    @property
    def range(self) -> Range:
        """The range that is searched now."""
        return self.levels[-1].range

    @property
    def suspect(self) -> tuple[int, int]:
        """The steps that are checked now, as `first` and `end` of the classes they lead into."""
        suspect = self.levels[-1].suspect
        if suspect is None:
            raise ValueError(f"stage {self.stage}: nothing is suspected")
        return suspect

    @property
    def suspected(self) -> BuildClass:
        """The first class that a suspected step leads into."""
        return self.range.classes[self.suspect[0]]

    @cached_property
    def prior(self) -> Prior:
        """Of the range that is searched now."""
        return prior([each.weight for each in self.range.classes])

    @cached_property
    def posterior(self) -> Posterior:
        """Of the range that is searched now."""
        return posterior(self.prior, self.by_place)

    @cached_property
    def by_place(self) -> dict[int, Tally]:
        """Trials of the classes that have any, in the path's order."""
        return {
            place: self.tallies[each.key]
            for place, each in enumerate(self.range.classes)
            if self.tallies.get(each.key, NO_TRIALS).n
        }

    @cached_property
    def broken_places(self) -> dict[int, str]:
        """Classes that do not build, with the error."""
        return {
            place: self.broken[each.key]
            for place, each in enumerate(self.range.classes)
            if each.key in self.broken and each.key not in self.lost
        }

    def chance_to_build(self, place: int) -> float:
        """The chance that a class builds and runs, as far as trials and failed builds tell."""
        if self.range.classes[place].key in self.broken:
            return 0.0
        return policy.chance_to_build(place, self.by_place, self.broken_places)

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
        """Seconds per build, trial and start of a batch, as measured so far."""
        return self.spent.costs(self.settings.costs, self.pace)

    @property
    def to_revert(self) -> tuple[Commit, Commit]:
        """The suspected commit, and the head to take it out of: the newest end that has it."""
        outermost, culprit = self.levels[0].range, self.suspected.blamed
        if culprit is None:
            raise ValueError("the first class has no step into it")
        return culprit, outermost.bad if self.suspected.forward else outermost.good

    # What happened

    def observe(self, event: Event) -> Bisection:
        """The state after one more event. After the verdict only the cost still changes."""
        match event:
            case Observation():
                return self._observed(event)._settled()
            case Entered() if self.stage is Stage.ENTER:
                return self._entered(event)._settled()
            case Reverted() if self.stage is Stage.REVERT and self.check is None:
                return self._reverted(event)._settled()
            case Reverted() if self.stage is Stage.SEARCH and len(self.levels) > 1:
                # The search inside the merge could not go on, so the merge itself was reverted.
                return self.given_up("").observe(event)
        return self

    def next(
        self,
        builders: int = 1,
        running: Sequence[Probe] = (),
        cached: Collection[str] = (),
        elapsed_s: float = 0.0,
    ) -> Decision:
        """What to do now; see `runner.bisect.steps.decide`."""
        from runner.bisect.steps import decide  # a step is a function of this state

        return decide(self, builders, running, cached, elapsed_s)

    @property
    def seconds_left(self) -> float:
        """About what the search still takes with one builder, checks left out: a build tells about
        one bit. 0 once the search is over."""
        if self.stage is not Stage.SEARCH:
            return 0.0
        costs = self.costs
        return self.posterior.entropy * (costs.build_s + costs.batch_s(BATCHES[2]))

    def _observed(self, seen: Observation) -> Bisection:
        made = self.made | {seen.key} if seen.build_s > 0 else self.made
        pace = self.pace.plus(seen)
        state = replace(self, spent=self.spent.plus(seen), pace=pace, made=made)
        if self.stage is Stage.DONE:
            return state
        known = self.tallies.get(seen.key, NO_TRIALS)
        if seen.seen is Seen.UNBUILDABLE and not known.n:
            return replace(state, broken={**self.broken, seen.key: seen.reason or "unknown"})
        if seen.seen is not Seen.TRIALS:
            # What does not build any more, though it was measured, is the host's doing as well.
            return state._with_hiccup(seen)
        if not seen.n:
            return state
        state = replace(
            state,
            tallies={**self.tallies, seen.key: known.plus(seen.tally)},
            broken={key: why for key, why in self.broken.items() if key != seen.key},
            lost=self.lost - {seen.key},
            hiccups={key: n for key, n in self.hiccups.items() if key != seen.key},
        )
        check = self.check
        if check is None or seen.check != check.number or seen.key not in check.keys:
            return state
        return state._with_check(check.with_trials(seen.key, seen.tally, self.higher))

    def _with_hiccup(self, seen: Observation) -> Bisection:
        count = self.hiccups.get(seen.key, 0) + 1
        state = replace(self, hiccups={**self.hiccups, seen.key: count})
        if count < HICCUPS:
            return state
        reason = f"the host failed {count} times in a row: {seen.reason}"
        broken = {**self.broken, seen.key: reason}
        return replace(state, broken=broken, lost=self.lost | {seen.key})

    def _entered(self, event: Entered) -> Bisection:
        if event.range is None:
            return replace(self, stage=Stage.REVERT)
        return replace(self, levels=(*self.levels, Level(event.range)), stage=Stage.SEARCH)

    def _reverted(self, event: Reverted) -> Bisection:
        _, head = self.to_revert
        ends = self.levels[0].range.classes
        with_it = Side((ends[-1] if self.suspected.forward else ends[0]).key, head)
        without = Side(event.key, event.commit or head)
        low, high = (without, with_it) if self.suspected.forward else (with_it, without)
        check = Check(len(self.checks) + 1, CheckKind.REVERT, low, high)
        reason = event.reason or ("" if event.commit else "there is no commit for it")
        if not reason and {*check.keys} == {*self.checks[-1].keys}:
            reason = "its builds are those that were just compared"
        if reason:
            check = check.ended(CheckState.SKIPPED, reason)
        return replace(self, checks=(*self.checks, check))

    def _with_check(self, check: Check) -> Bisection:
        return replace(self, checks=(*self.checks[:-1], check))

    # What follows from it

    def _settled(self) -> Bisection:
        """The state with all that follows by itself from what was seen."""
        match self.stage:
            case Stage.SEARCH:
                return self._searched()
            case Stage.CHECK:
                return self._judged_neighbours()
            case Stage.REVERT:
                return self._judged_revert()
        return self

    def _searched(self) -> Bisection:
        """With a check of the suspect, if there is one of which the search is sure enough."""
        if self.posterior.none >= self.settings.confidence:
            return self.given_up("")
        suspect = self._sure_suspect()
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
        return replace(
            self,
            stage=Stage.CHECK,
            levels=(*self.levels[:-1], Level(self.range, suspect)),
            checks=(*self.checks, check),
        )

    def _sure_suspect(self) -> tuple[int, int] | None:
        """The steps between two neighbours that hold the change as surely as asked.

        Neighbours are measured classes with nothing between them that might still be measured.
        """
        for low, high in pairwise(self.by_place):
            if self.posterior.mass(low + 1, high + 1) < self.settings.confidence:
                continue
            if all(self.chance_to_build(p) < policy.HOPELESS for p in range(low + 1, high)):
                return low + 1, high + 1
        return None

    def _judged_neighbours(self) -> Bisection:
        check, settings = self.check, self.settings
        assert check is not None
        mass = self.posterior.mass(*self.suspect)
        if mass >= settings.confidence and self._sure_suspect() != self.suspect:
            # A build that was still under way came out and tells more.
            closed = check.ended(CheckState.SKIPPED, "closer neighbours were measured since")
            return replace(self._with_check(closed), stage=Stage.SEARCH)._searched()
        if check.p <= settings.check_error and mass >= settings.confidence:
            return self._with_check(check.ended(CheckState.PASSED))._confirmed()
        for key in check.keys:
            if key in self.broken:
                return self._failed(check, self.broken[key])
        if check.fewest and mass < UNLIKELY:
            return self._failed(check, f"fresh trials leave it {sure(mass)} likely")
        if check.fewest >= settings.check_trials:
            return self._failed(check, f"no difference in {check.fewest} fresh trials of each")
        return self

    def _confirmed(self) -> Bisection:
        first, end = self.suspect
        if end - first > 1:
            return self._ended(self._evidence.found(first, end))
        return replace(self, stage=Stage.ENTER if self.suspected.second_parent else Stage.REVERT)

    def _judged_revert(self) -> Bisection:
        check = self.checks[-1]
        if check.kind is not CheckKind.REVERT or check.state is CheckState.FAILED:
            return self
        if check.state is CheckState.OPEN:
            gone = [self.broken[key] for key in check.keys if key in self.broken]
            if gone:
                check = check.ended(CheckState.SKIPPED, gone[0])
            elif check.p <= self.settings.check_error:
                check = check.ended(CheckState.PASSED)
            elif check.fewest >= self.settings.check_trials or (
                check.fewest
                and contradicted(
                    check, *self.posterior.rates(*self.suspect), self.settings.check_error
                )
            ):
                # Back to the whole range: what was entered was not the whole story.
                outside = replace(self, levels=self.levels[:1])
                return outside._failed(
                    check, f"reverting it on the head made no difference in {check.fewest} trials"
                )
            else:
                return self
        return self._with_check(check)._ended_found()

    def _failed(self, check: Check, reason: str) -> Bisection:
        """Back to the search, or the end of it."""
        state = replace(
            self._with_check(check.ended(CheckState.FAILED, reason)),
            stage=Stage.SEARCH,
            levels=(*self.levels[:-1], Level(self.range)),
        )
        if state.failures > RETRIES:
            return state.given_up(f"{state.failures} checks failed, the last one since {reason}")
        return state._searched()

    def given_up(self, reason: str) -> Bisection:
        """The state where the search of the present range cannot go on: with a verdict or, inside
        a merge, on the merge itself."""
        if len(self.levels) > 1:
            return replace(self, levels=self.levels[:-1], stage=Stage.REVERT)._settled()
        classes = self.range.classes
        for place in (0, len(classes) - 1):
            why = self.broken.get(classes[place].key)
            if why is not None:
                return self._ended(self._evidence.not_measured(place, why))
        if self.posterior.none > UNLIKELY:
            return self._ended(self._evidence.no_change(self.higher, self.settings.check_error))
        return self._ended(self._evidence.unsure(reason, self.settings.confidence))

    def stopped(self, reason: str) -> Bisection:
        """The state with the verdict as far as it came: the budget is spent, or it is cancelled.

        What was checked stands.
        """
        if self.stage is Stage.DONE:
            return self
        if len(self.levels) > 1 and self.stage in (Stage.SEARCH, Stage.CHECK):
            return replace(self, levels=self.levels[:-1], stage=Stage.ENTER).stopped(reason)
        if self.stage in (Stage.ENTER, Stage.REVERT):
            _, head = self.to_revert
            side = Side("", head)
            check = self.check or Check(len(self.checks) + 1, CheckKind.REVERT, side, side)
            kept = self.checks[:-1] if self.check else self.checks
            ended = (*kept, check.ended(CheckState.SKIPPED, reason))
            return replace(self, checks=ended)._ended_found()
        state = self
        if self.check is not None:
            state = self._with_check(self.check.ended(CheckState.SKIPPED, reason))
        return state._ended(state._evidence.unsure(reason, self.settings.confidence))

    def _ended_found(self) -> Bisection:
        return self._ended(self._evidence.found(*self.suspect))

    def _ended(self, verdict: Verdict) -> Bisection:
        return replace(self, stage=Stage.DONE, verdict=verdict)

    @property
    def _evidence(self) -> Evidence:
        observe = self.settings.observe
        return Evidence(self.range, self.posterior, self.by_place, self.checks, observe)


__all__ = [
    "Bisection",
    "Decision",
    "Level",
    "Pace",
    "Probe",
    "Settings",
    "Spent",
    "Stage",
]
