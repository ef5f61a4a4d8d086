"""A bisection carried out on this machine: every event is on disk before it counts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.bisect.bisection import Bisection, Decision, Probe, Settings
from runner.bisect.events import Entered, Event, Observation, Reverted, from_data, to_data
from runner.bisect.posterior import Tally
from runner.bisect.probe import Prober
from runner.bisect.range import Range, into_merge
from runner.bisect.verdict import Verdict
from runner.bisect.verification import Higher
from runner.errors import BisectionError, InputError, VariantError
from runner.report import plain
from runner.run import BuildId
from runner.statistics.comparison import anytime
from runner.statistics.counts import Counts

if TYPE_CHECKING:  # a node with no git bisects a range that was made elsewhere
    from runner.lineage import Lineage

TURNS = 2
"""Times that the two builds of a check take turns: each costs a start of their parents."""


def higher(one: Tally, other: Tally) -> float:
    """See `runner.bisect.verification.Higher`."""
    return anytime(Counts(one.k, one.n), Counts(other.k, other.n))


@dataclass
class EventLog:
    """The events of one bisection, a line each, after a first line that says what it is of.

    A line that a killed process left torn is dropped; whoever wrote it had not counted it yet.
    """

    path: Path
    events: list[Event] = field(default_factory=list)

    @classmethod
    def open(cls, path: Path, about: dict[str, Any]) -> EventLog:
        """Open one, or begin it. Raises BisectionError where it is of something else."""
        log = cls(path)
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            log._write({"bisection": about})
            return log
        lines = path.read_bytes().split(b"\n")
        whole = b"".join(line + b"\n" for line in lines[:-1])
        if lines[-1]:
            os.truncate(path, len(whole))
        try:
            said = [json.loads(line) for line in lines[:-1]]
        except ValueError as error:
            raise BisectionError(f"{path}: is no record of a bisection: {error}") from error
        if not said or said[0] != {"bisection": json.loads(json.dumps(about))}:
            raise BisectionError(
                f"{path}: is the record of another bisection; remove it, or name another --record"
            )
        log.events = [from_data(one) for one in said[1:]]
        return log

    def append(self, event: Event) -> None:
        """Keep one more event; it is on disk when this returns."""
        self._write(to_data(event))
        self.events.append(event)

    def _write(self, data: dict[str, Any]) -> None:
        line = (json.dumps(data) + "\n").encode()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            if os.write(descriptor, line) != len(line):
                raise InputError(f"{self.path}: cannot be written: the disk is full")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@dataclass(frozen=True)
class Step:
    """Where a bisection stands: its state, what it decided, and the event that came of it."""

    state: Bisection
    decision: Decision
    event: Event | None = None


class Local:
    """Drives one bisection to its verdict; iterate over it for its steps."""

    def __init__(
        self,
        searched: Range,
        log: EventLog,
        prober: Prober,
        higher: Higher,
        settings: Settings,
        lineage: Lineage | None = None,
    ) -> None:
        """lineage: None on a host with no git, where merges are not gone into nor commits
        reverted."""
        self._log = log
        self._prober = prober
        self._lineage = lineage
        self.state = Bisection.start(searched, higher, settings, log.events)

    def __iter__(self) -> Iterator[Step]:
        return self.steps()

    def steps(self) -> Iterator[Step]:
        """Each decision before it is carried out, and again with what came of it."""
        while True:
            decision = self.decide()
            yield Step(self.state, decision)
            if decision.verdict is not None:
                return
            for event in self._carry_out(decision):
                self._log.append(event)
                self.state = self.state.observe(event)
                yield Step(self.state, decision, event)
                if self._is_settled(decision):
                    break

    def _is_settled(self, decision: Decision) -> bool:
        """Whether the check that these probes are for has ended: it needs no further turn."""
        check = decision.probes[0].check if decision.probes else 0
        now_open = self.state.check
        return bool(check) and (now_open is None or now_open.number != check)

    def decide(self) -> Decision:
        """What is to be done now, on one machine with one builder."""
        spent = self.state.spent
        return self.state.next(elapsed_s=spent.build_s + spent.trial_s)

    @property
    def verdict(self) -> Verdict | None:
        """How it ended, None before."""
        return self.state.verdict or self.decide().verdict

    def _carry_out(self, decision: Decision) -> Iterator[Event]:
        if decision.enter is not None:
            yield self._entered(decision.enter)
        elif decision.revert is not None:
            yield self._reverted(decision)
        else:
            for probe, trials in _turns(decision.probes):
                yield self._prober.probe(probe, trials)

    def _entered(self, place: int) -> Entered:
        if self._lineage is None:
            return Entered(None)
        return Entered(into_merge(self._lineage, self.state.range, place))

    def _reverted(self, decision: Decision) -> Reverted:
        wanted = decision.revert
        assert wanted is not None
        if self._lineage is None:
            return Reverted(reason="this host has no git history to revert it in")
        try:
            commit = self._lineage.revert(wanted.culprit, wanted.head)
        except VariantError as error:
            return Reverted(reason=str(error))
        build = BuildId.parse(self.state.range.build)
        return Reverted(commit, self._lineage.keys([commit], build)[0])


def _turns(probes: tuple[Probe, ...]) -> Iterator[tuple[Probe, int]]:
    """The probes to carry out now, each with its trials; those of a check take turns."""
    if not probes:
        raise BisectionError("the bisection waits for nothing that is going on here")
    if not probes[0].check:
        yield from ((probe, probe.trials) for probe in probes)
        return
    for turn in range(TURNS):
        for probe in probes:
            trials = probe.trials * (turn + 1) // TURNS - probe.trials * turn // TURNS
            if trials:
                yield replace(probe, trials=trials), trials


def about(
    subject: str, searched: Range, cell: dict[str, Any], settings: Settings
) -> dict[str, Any]:
    """What tells one bisection's record from another's."""
    return {
        "subject": subject,
        "range": searched.to_data(),
        "cell": cell,
        "settings": asdict(settings),
    }


def told(event: Event, state: Bisection) -> str:
    """What an event says, in one line."""
    match event:
        case Observation():
            commit = next((e.commit for e in state.range.classes if e.key == event.key), None)
            name = f"{commit.sha[:12]} {plain(commit.title[:50])}" if commit else event.key[:12]
            built = f"built in {event.build_s:.0f} s, " if event.build_s else ""
            did = state.settings.observe.did(event.tally)
            what = did if event.n else f"{event.seen}: {event.reason}"
            return f"{name}: {built}{what}"
        case Entered(range=inner):
            why = event.reason or "the merge's own builds are one"
            return f"inside the merge: {inner.text}" if inner else why
        case Reverted():
            return f"reverted: {event.commit.sha[:12]}" if event.commit else event.reason
    raise AssertionError(event)


Show = Callable[[Step], None]
