"""What a bisection does next, given its state, what is under way, and the time spent."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from runner.bisect import policy
from runner.bisect.bisection import UNLIKELY, Bisection, Stage
from runner.bisect.decision import Decision, Probe, RevertWanted
from runner.bisect.policy import BATCHES, Choice
from runner.bisect.posterior import NO_TRIALS, Tally, mean
from runner.bisect.verdict import named
from runner.bisect.verification import Check
from runner.result import Commit

FIRST_TRIALS = 16
"""Of each end, to begin with."""
_NOTHING = 1e-9


def decide(
    bisection: Bisection,
    builders: int = 1,
    running: Sequence[Probe] = (),
    cached: Collection[str] = (),
    elapsed_s: float = 0.0,
) -> Decision:
    """What to do now; nothing but the verdict once there is one.

    builders: that there are, all in all. running: probes that were asked for and have not ended.
    cached: keys whose builds are there, besides those of which there are trials. elapsed_s: wall
    time so far.
    """
    if bisection.verdict is not None:
        return Decision(bisection.verdict.text, verdict=bisection.verdict)
    budget = bisection.settings.budget_s
    if budget is not None and elapsed_s >= budget:
        return decide(bisection.stopped(f"the budget of {budget:.0f} s is spent"))
    left = float("inf") if budget is None else budget - elapsed_s
    step = _Next(bisection, builders, tuple(running), frozenset(cached), left)
    match bisection.stage:
        case Stage.ENTER:
            merge = bisection.suspected.blamed
            text = f"going into merge {named(merge)}" if merge else ""
            return Decision(text, enter=bisection.suspect[0])
        case Stage.REVERT if bisection.check is None:
            culprit, head = bisection.to_revert
            text = f"reverting {named(culprit)} on {named(head)}"
            return Decision(text, revert=RevertWanted(culprit, head))
        case Stage.CHECK | Stage.REVERT:
            return step.of_check()
    return step.of_ends() or step.of_search()


@dataclass(frozen=True)
class _Next:
    """The next step of a state, given what is under way."""

    state: Bisection
    builders: int
    running: tuple[Probe, ...]
    cached: frozenset[str]
    left_s: float

    def of_check(self) -> Decision:
        """Fresh trials of both sides of a check."""
        check = self.state.check
        assert check is not None
        text = f"check {check.number}, {check.told(self.state.settings.observe.did)}"
        if any(probe.check == check.number for probe in self.running):
            return Decision(text)
        trials = self._fresh_trials(check)
        return Decision(
            text,
            tuple(
                self._probe(side.key, side.commit, trials, check=check.number)
                for side in (check.low, check.high)
            ),
        )

    def _fresh_trials(self, check: Check) -> int:
        """Trials of each side after which the check probably passes, as far as a batch goes."""
        state = self.state
        before, after = state.posterior.rates(*state.suspect)
        low, high = mean(before), mean(after)
        for trials in BATCHES:
            expected_low = Tally(round(low * trials), trials).plus(check.low.tally)
            expected_high = Tally(round(high * trials), trials).plus(check.high.tally)
            enough = state.higher(expected_high, expected_low) <= state.settings.check_error
            if enough or state.costs.batch_s(2 * trials) > state.settings.batch_s:
                return trials
        return BATCHES[-1]

    def of_ends(self) -> Decision | None:
        """Trials of both ends, and of their merge base; None once the ends differ."""
        state, classes = self.state, self.state.range.classes
        ends = (0, len(classes) - 1)
        wanted = [*ends, *([state.range.base] if state.range.base is not None else [])]
        for place in ends:
            reason = state.broken.get(classes[place].key)
            if reason is not None:
                return self._without_search(reason)
        unmeasured = [
            place
            for place in wanted
            if place not in state.by_place and classes[place].key not in state.broken
        ]
        fewest = min(state.by_place.get(place, NO_TRIALS).n for place in ends)
        if not unmeasured:
            if state.posterior.none <= 1 - state.settings.confidence:
                return None
            if fewest >= state.settings.end_trials:
                if state.posterior.none <= UNLIKELY:
                    return None
                return self._without_search(f"no difference in {fewest} trials of each end")
        if self.running:
            return Decision("waiting for trials of the ends")
        trials = self._fitting(max(FIRST_TRIALS, min(BATCHES[-1], fewest)))
        return Decision(
            "trials of the ends, until they differ",
            tuple(
                self._probe(classes[place].key, classes[place].commit, trials)
                for place in wanted
                if place in ends or place in unmeasured
            ),
        )

    def _fitting(self, trials: int) -> int:
        """As many trials, or fewer, as fit into a batch."""
        while trials > BATCHES[0] and self.state.costs.batch_s(trials) > self._longest_s:
            trials //= 2
        return trials

    def of_search(self) -> Decision:
        """Trials of what is built, or builds, whichever tells more per second."""
        if any(probe.built for probe in self.running):
            return Decision("waiting for trials, on which the next build depends")
        state, classes = self.state, self.state.range.classes
        tested = self._best_tested()
        builds = self._builds()
        under_way = bool(self.running)
        pace = 1 / (state.costs.build_s + state.costs.batch_s(FIRST_TRIALS))
        if builds:
            best = self._batch(builds[0], state.costs.build_s)
            pace = best.bits_per_s
        if tested and (tested.bits_per_s >= pace or not (builds or under_way)):
            each = classes[tested.place]
            probe = self._probe(each.key, each.commit, tested.trials, bits=tested.bits)
            return Decision(f"{tested.trials} trials of {named(each.commit)}", (probe,))
        if builds:
            # Of several, a first look at each: which of them are worth more shows then.
            looks = [self._batch(p, state.costs.build_s if len(builds) == 1 else 0) for p in builds]
            probes = tuple(
                self._probe(
                    classes[look.place].key,
                    classes[look.place].commit,
                    look.trials,
                    bits=look.bits,
                )
                for look in looks
            )
            what = ", ".join(named(probe.commit) for probe in probes)
            return Decision(f"building {what}", probes)
        if under_way:
            return Decision("waiting for builds")
        if state.costs.build_s > self.left_s:
            return self._without_search("the budget leaves no time for another build")
        return self._without_search("nothing is left to learn from")

    def _without_search(self, reason: str) -> Decision:
        """What there is to do, or to say, once the search of this range cannot go on."""
        return decide(self.state.given_up(reason), self.builders, self.running, self.cached)

    def _best_tested(self) -> Choice | None:
        """The batch of a class that is built which tells most per second."""
        asked = {probe.key for probe in self.running}
        ready = [
            place
            for place, each in enumerate(self.state.range.classes)
            if self._is_built(each.key)
            and each.key not in asked
            and each.key not in self.state.broken
        ]
        best = policy.best_tested(
            self.state.posterior, ready, self.state.costs, limit_s=self._longest_s
        )
        return best if best and best.bits > _NOTHING else None

    def _batch(self, place: int, ahead_s: float) -> Choice:
        return policy.best_batch(
            self.state.posterior,
            place,
            self.state.costs,
            ahead_s=ahead_s,
            limit_s=self._longest_s,
        )

    def _builds(self) -> list[int]:
        """The classes to build now."""
        state, classes = self.state, self.state.range.classes
        if state.costs.build_s > self.left_s:
            return []
        pending = {probe.key for probe in self.running if not probe.built}
        candidates = [
            place
            for place, each in enumerate(classes)
            if not self._is_built(each.key)
            and each.key not in pending
            and state.chance_to_build(place) >= policy.HOPELESS
        ]
        inside = {each.key for each in classes[1:-1]}
        spare = state.settings.spare
        return policy.builds_at_once(
            state.posterior,
            candidates,
            [place for place, each in enumerate(classes) if each.key in pending],
            state.chance_to_build,
            idle=self.builders - len(pending),
            used=len((state.made | pending) & inside),
            target=None if spare is None else policy.bits(state.prior) + spare,
        )

    @property
    def _longest_s(self) -> float:
        """Of a batch."""
        return min(self.state.settings.batch_s, max(1.0, self.left_s))

    def _is_built(self, key: str) -> bool:
        return bool(self.state.tallies.get(key, NO_TRIALS).n) or key in self.cached

    def _probe(
        self, key: str, commit: Commit, trials: int, *, check: int = 0, bits: float = 0.0
    ) -> Probe:
        built = self._is_built(key)
        costs = self.state.costs
        seconds = costs.batch_s(trials) + (0 if built else costs.build_s)
        return Probe(key, commit, trials, check, built, seconds, bits)
