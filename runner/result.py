"""The stream of events that a run writes, and the result that is its fold.

A run writes one `run` event, then a `trial` event as each trial finishes, then one `end` event,
each a line of JSON. Everything that counts is derived from them here and nowhere else: the
terminal's table, the JSON file, an import. A stream that stops early (a host that died) folds too.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from runner import controls, rates
from runner.controls import DeviceControl
from runner.detector import record
from runner.detector.record import Swallow
from runner.errors import MatrixError, ResultError
from runner.matrix import Cell, Matrix, as_data
from runner.matrix import from_data as matrix_from
from runner.outcome import FAILURES, Outcome
from runner.statistics.control import ControlVerdict

REFERENCE, BASE = "reference: ", "base: "
"""How the names of trials begin that a run adds to those of its cells, one for each program: stock
alone, of the commit itself and of its base. No cell of a matrix has such a name."""
SCHEMA = 1
"""Version of the events and of the result; a reader refuses a newer one."""


@dataclass(frozen=True)
class Device:
    """Where a run's trials execute.

    kind: `cuda` or `emulated`. compute_capability: (major, minor), (0, 0) if unknown.
    driver, jax, te: versions as text, empty if unknown. ids: the devices of the host in use.
    """

    kind: str
    name: str
    compute_capability: tuple[int, int] = (0, 0)
    driver: str = ""
    jax: str = ""
    te: str = ""
    ids: tuple[str, ...] = ()

    @property
    def emulated(self) -> bool:
        """True where no GPU took part."""
        return self.kind == "emulated"


@dataclass(frozen=True)
class Commit:
    """A commit of a subject; a release from the package index has its version as `sha`."""

    sha: str
    ref: str
    title: str = ""
    author: str = ""
    date: str = ""

    @property
    def is_release(self) -> bool:
        """True for a release from the package index, which has no git history."""
        return "." in self.sha


@dataclass(frozen=True)
class RunStarted:
    """The `run` event: what is run, where, and with what.

    base: the commit whose stock outputs parity compares with, where this one is fixed already.
    control: the commit whose stock build the control cells run, None where there are none.
    builds: for each build key of the run, what it is (kind, registered handlers, log, ...).
    harness: version of the trial harness. environment: variables that its trials were given.
    trials_planned: how many `trial` events a whole run has.
    """

    run: str
    subject: str
    commit: Commit
    device: Device
    matrix: Matrix
    parallel: int
    sandbox: str
    toolchain: str
    harness: str
    started: str
    command: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    trial_mode: str = ""
    trials_planned: int = 0
    base: Commit | None = None
    control: Commit | None = None
    builds: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class TrialFinished:
    """The `trial` event: one trial with its raw evidence and the outcome that it supports.

    index: position in the run, from 0; unique in a run, so an import can be repeated.
    digests: SHA-256 of the output bits of the first and the second execution.
    evidence: raw facts as `runner.outcome.Evidence` names them, `output` cut to its last lines.
    times: seconds by stage. handlers: initialize handlers entered, None if the build cannot tell.
    swallow: what the detector saw, None where it was not asked to watch.
    """

    run: str
    index: int
    cell: str
    outcome: Outcome
    signature: str
    reason: str
    seconds: float = 0.0
    device: str = ""
    build: str = ""
    recipe: str = ""
    digests: tuple[str, ...] = ()
    background_updates: int = 0
    handlers: tuple[str, ...] | None = None
    times: Mapping[str, float] = field(default_factory=dict)
    evidence: Mapping[str, Any] = field(default_factory=dict)
    log: str = ""
    swallow: Swallow | None = None

    @property
    def control(self) -> str:
        """What a control trial is known to do, empty for all others."""
        return str(controls.control_of(self.cell) or "")

    @property
    def counted(self) -> bool:
        """True where a rate is taken over it: a failure or a pass."""
        return self.outcome in FAILURES or self.outcome is Outcome.PASS

    @property
    def swallowed(self) -> bool:
        """True where another thread's work was seen to meet a capture window: it went into the
        graph, or was refused because of it."""
        return self.swallow is not None and self.swallow.reached > 0


@dataclass(frozen=True)
class RunEnded:
    """The `end` event. status: `complete`, `interrupted` or `failed`, with a sentence.

    notes: what happened on the way that the counts do not say, such as a device that was lost.
    """

    run: str
    status: str
    reason: str = ""
    finished: str = ""
    seconds: float = 0.0
    notes: tuple[str, ...] = ()


Event = RunStarted | TrialFinished | RunEnded
_NAMES: dict[type[Any], str] = {RunStarted: "run", TrialFinished: "trial", RunEnded: "end"}


def dump(event: Event) -> str:
    """One event as one line of JSON, without its newline."""
    data = asdict(event)
    if isinstance(event, RunStarted):
        data["matrix"] = as_data(event.matrix)
        data["device"]["compute_capability"] = _capability(event.device)
    if isinstance(event, TrialFinished) and event.swallow is None:
        del data["swallow"]  # what is not there need not be understood by an older reader
    if isinstance(event, RunStarted) and event.control is None:
        del data["control"]
    return json.dumps({"event": _NAMES[type(event)], "schema": SCHEMA, **data}, default=str)


def load(line: str) -> Event:
    """The event of one line of JSON. Raises ResultError for anything else."""
    try:
        data = json.loads(line)
    except ValueError:
        raise ResultError(f"not an event of a run: {line[:80]!r}") from None
    return from_data(data, line)


def from_data(data: Any, line: str = "") -> Event:
    """The event of a line's data; `line` is what an error shows. Raises ResultError."""
    line = line or str(data)
    try:
        rest = dict(data)
        name, schema = rest.pop("event"), rest.pop("schema")
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ResultError(f"not an event of a run: {line[:80]!r}") from None
    if isinstance(schema, int) and schema > SCHEMA:
        raise ResultError(f"an event of schema {schema}, newer than {SCHEMA}: update Racewatch")
    try:
        return _LOADERS[name](rest)
    except (AttributeError, KeyError, TypeError, ValueError, MatrixError) as error:
        raise ResultError(f"not an event of a run ({error!r}): {line[:80]!r}") from error


def _load_run(data: dict[str, Any]) -> RunStarted:
    device = dict(data["device"])
    major, _, minor = device["compute_capability"].partition(".")
    device["compute_capability"] = (int(major or 0), int(minor or 0))
    device["ids"] = tuple(device["ids"])
    return RunStarted(
        **{
            **data,
            "commit": Commit(**data["commit"]),
            "base": Commit(**data["base"]) if data.get("base") else None,
            "control": Commit(**data["control"]) if data.get("control") else None,
            "device": Device(**device),
            "matrix": matrix_from(data["matrix"]),
        }
    )


def _load_trial(data: dict[str, Any]) -> TrialFinished:
    handlers, swallow = data["handlers"], data.get("swallow")
    return TrialFinished(
        **{
            **data,
            "outcome": Outcome(data["outcome"]),
            "digests": tuple(data["digests"]),
            "handlers": None if handlers is None else tuple(handlers),
            "swallow": None if swallow is None else record.from_data(swallow),
        }
    )


_LOADERS: dict[str, Callable[[dict[str, Any]], Event]] = {
    "run": _load_run,
    "trial": _load_trial,
    "end": lambda data: RunEnded(**{**data, "notes": tuple(data["notes"])}),
}


@dataclass
class Fold:
    """The events of one run, taken in one by one, and what they add up to."""

    started: RunStarted | None = None
    ended: RunEnded | None = None
    trials: dict[int, TrialFinished] = field(default_factory=dict)

    def add(self, event: Event) -> None:
        """Take in one event; a trial index that is already there is not counted again."""
        if isinstance(event, RunStarted):
            self.started = event
        elif isinstance(event, RunEnded):
            self.ended = event
        else:
            self.trials.setdefault(event.index, event)

    def of_cell(self, cell: Cell) -> list[TrialFinished]:
        """The cell's finished trials, by index."""
        return [t for _, t in sorted(self.trials.items()) if t.cell == cell.name]

    def cells(self) -> Iterator[CellResult]:
        """Each cell of the matrix with its counts, in the matrix's order."""
        if self.started is None:
            return
        proofs = {device: one.verdict for device, one in self.controls.items()}
        for cell in self.started.matrix.cells:
            trials = self.of_cell(cell)
            met = {trial.device for trial in trials if trial.counted}
            control = controls.worst(proofs[device] for device in sorted(met & set(proofs)))
            yield CellResult(cell, trials, self.started.matrix.clean_below, control)

    @property
    def controls(self) -> dict[str, DeviceControl]:
        """What the control cells showed, by device."""
        return controls.tally(
            (trial.device, trial.control, trial.outcome, 1)
            for trial in self.trials.values()
            if trial.control
        )

    @property
    def parity(self) -> Parity:
        """The issue's own check on this run's outputs."""
        base = self.started.base if self.started else None
        if base is not None:
            return Parity.with_base(base, self._alone(), self._added(BASE))
        return Parity.of(list(self.cells()))

    def _alone(self) -> list[tuple[str, TrialFinished]]:
        """Trials of stock alone, each with its program."""
        reference = [cell for cell in self.cells() if cell.cell.is_reference]
        trials = [(str(cell.cell.program), trial) for cell in reference for trial in cell.trials]
        return trials + self._added(REFERENCE)

    def _added(self, prefix: str) -> list[tuple[str, TrialFinished]]:
        """Trials that the run added under names with that prefix, each with its program."""
        return [
            (trial.cell.removeprefix(prefix), trial)
            for trial in self.trials.values()
            if trial.cell.startswith(prefix)
        ]

    @property
    def swallowed(self) -> list[SwallowedWork]:
        """Whose work went into capture windows in the cells' trials, the most first."""
        calls: Counter[tuple[str, str]] = Counter()
        trials: Counter[tuple[str, str]] = Counter()
        for cell in self.cells():
            for trial in cell.watched:
                assert trial.swallow is not None
                for one in trial.swallow.calls:
                    calls[one.api, one.thread] += one.count
                    trials[one.api, one.thread] += 1
        ranked = sorted(calls.items(), key=lambda item: (-item[1], item[0]))
        return [SwallowedWork(*who, count, trials[who]) for who, count in ranked]

    @property
    def exit_code(self) -> int:
        """0: as a fixed TE should be; 1: the race is there; 3: what ships could not all run."""
        shipped = [cell for cell in self.cells() if cell.cell.variant.ships]
        told = [cell for cell in shipped if cell.n and not cell.doubted]
        if any(cell.k for cell in told):
            return 1
        unsupported = {Outcome.UNSUPPORTED}
        measured = all(cell in told or set(cell.counts) == unsupported for cell in shipped)
        return 0 if measured and told else 3

    def as_json(self) -> dict[str, Any]:
        """The result: subject, commit, device, matrix, cells, parity, trials."""
        if self.started is None:
            raise ValueError("a result needs its run event")
        started = self.started
        device = asdict(started.device)
        device["compute_capability"] = _capability(started.device)
        return {
            "schema": SCHEMA,
            "run": started.run,
            "subject": started.subject,
            "emulated": started.device.emulated,
            "commit": asdict(started.commit),
            "base": asdict(started.base) if started.base else None,
            "control": asdict(started.control) if started.control else None,
            "device": device,
            "matrix": started.matrix.name,
            "title": started.matrix.title,
            "clean_below": started.matrix.clean_below,
            "detect": started.matrix.detect,
            "control_trials": started.matrix.controls,
            "parallel": started.parallel,
            "sandbox": started.sandbox,
            "toolchain": started.toolchain,
            "harness": started.harness,
            "trial_mode": started.trial_mode,
            "command": started.command,
            "environment": dict(started.environment),
            "started": started.started,
            "status": self.ended.status if self.ended else "interrupted",
            "reason": self.ended.reason if self.ended else "the stream of events stops early",
            "finished": self.ended.finished if self.ended else "",
            "seconds": self.ended.seconds if self.ended else None,
            "notes": list(self.ended.notes) if self.ended else [],
            "trials_planned": started.trials_planned,
            "builds": {key: dict(build) for key, build in started.builds.items()},
            "cells": [cell.as_json() for cell in self.cells()],
            "parity": asdict(self.parity),
            "swallowed": [asdict(work) for work in self.swallowed],
            "controls": [one.as_json() for one in self.controls.values()],
            "exit_code": self.exit_code,
            "trials": [asdict(trial) for _, trial in sorted(self.trials.items())],
        }


@dataclass(frozen=True)
class SwallowedWork:
    """What one thread's calls of one API lost to capture windows.

    count: graph nodes that they became, or calls that were refused. trials: in how many trials.
    """

    api: str
    thread: str
    count: int
    trials: int


@dataclass(frozen=True)
class SwallowRate:
    """Trials with foreign work in a capture window: k of the n that count and were watched.

    passes: those of the k that passed all the same.
    """

    k: int
    n: int
    passes: int

    @property
    def rate(self) -> float:
        """k/n."""
        return self.k / self.n

    @property
    def interval(self) -> tuple[float, float]:
        """Exact 95 % interval of the rate."""
        return rates.interval(self.k, self.n)

    def as_json(self) -> dict[str, Any]:
        """As a row of the result has it."""
        interval = list(self.interval)
        return {**asdict(self), "rate": self.rate, "interval": interval}


@dataclass(frozen=True)
class CellResult:
    """One cell's finished trials and everything that follows from them.

    control: what the devices that it met can prove, None where they had no control cells.
    """

    cell: Cell
    trials: list[TrialFinished]
    clean_below: float
    control: ControlVerdict | None = None

    @cached_property
    def counts(self) -> Counter[Outcome]:
        """Trials by outcome."""
        return Counter(trial.outcome for trial in self.trials)

    @property
    def k(self) -> int:
        """Failures."""
        return sum(count for outcome, count in self.counts.items() if outcome in FAILURES)

    @property
    def n(self) -> int:
        """Trials that a rate is taken over: failures and passes."""
        return self.k + self.counts[Outcome.PASS]

    @property
    def rate(self) -> float | None:
        """k/n, None without a trial."""
        return self.k / self.n if self.n else None

    @property
    def interval(self) -> tuple[float, float]:
        """Exact 95 % interval of the failure rate."""
        return rates.interval(self.k, self.n)

    @property
    def judgement(self) -> rates.Judgement:
        """The cell's verdict; where nothing counted, the reason that its trials gave."""
        if self.n or not self.trials:
            judged = rates.judge(self.k, self.n, self.clean_below)
            clean = judged.verdict is rates.Verdict.CLEAN
            if self.control is not None and self.doubted and (self.k or clean):
                return rates.Judgement(rates.Verdict.UNPROVEN, self.control.text)
            return judged
        last = self.trials[-1]
        return rates.Judgement(rates.Verdict.NOT_MEASURED, f"{last.outcome}: {last.reason}")

    @property
    def doubted(self) -> bool:
        """True where control cells show that a device which it met hides such failures as it has
        none of, or makes such as it has."""
        control = self.control
        return control is not None and (control.fails_alone if self.k else control.hides)

    @property
    def watched(self) -> list[TrialFinished]:
        """Trials that count and whose capture windows the detector saw."""
        return [t for t in self.trials if t.counted and t.swallow is not None and t.swallow.watched]

    @property
    def swallow(self) -> SwallowRate | None:
        """How many trials had foreign work in a window; None where none was watched."""
        watched = self.watched
        if not watched:
            return None
        with_work = [trial for trial in watched if trial.swallowed]
        passes = sum(trial.outcome is Outcome.PASS for trial in with_work)
        return SwallowRate(len(with_work), len(watched), passes)

    @property
    def recipes(self) -> tuple[str, ...]:
        """The recipes that ran."""
        return tuple(sorted({trial.recipe for trial in self.trials if trial.recipe}))

    def as_json(self) -> dict[str, Any]:
        """The cell's row of the result."""
        low, high = self.interval
        judgement = self.judgement
        return {
            "name": self.cell.name,
            "variant": self.cell.variant.text,
            "program": str(self.cell.program),
            "background": self.cell.background,
            "background_period_ms": self.cell.background_period_ms,
            "hold_ms": self.cell.hold_ms,
            "recipe": self.recipes[0] if len(self.recipes) == 1 else str(self.cell.recipe),
            "ordered_recipe": str(self.cell.recipe),
            "trials": self.cell.trials,
            "counts": {str(outcome): self.counts[outcome] for outcome in Outcome},
            "n": self.n,
            "k": self.k,
            "rate": self.rate,
            "interval": [low, high],
            "verdict": str(judgement.verdict),
            "verdict_text": judgement.text,
            "trials_needed": judgement.trials_needed,
            "swallow": self.swallow.as_json() if self.swallow else None,
            "signatures": dict(
                Counter(t.signature for t in self.trials if t.outcome is not Outcome.PASS)
            ),
        }


@dataclass(frozen=True)
class Parity:
    """Whether stock (alone) and owned-stream gave the same bits, on both executions.

    At a commit that is fixed already, owned-stream is what ships: there its stock is compared with
    its base's. status: `identical`, `different` or `not measured`. digests: SHA-256 by variant and
    program. between: what is compared.
    """

    status: str
    reason: str
    digests: Mapping[str, list[str]] = field(default_factory=dict)
    between: str = "stock and owned-stream"

    @classmethod
    def of(cls, cells: list[CellResult]) -> Parity:
        """The parity of a run's cells: every finished output of stock alone and of owned-stream."""
        return cls.between_variants(
            _of_cells(cells, lambda cell: cell.is_reference),
            _of_cells(cells, lambda cell: cell.variant.text == "owned-stream"),
        )

    @classmethod
    def between_variants(
        cls, alone: list[tuple[str, TrialFinished]], owned: list[tuple[str, TrialFinished]]
    ) -> Parity:
        """The parity of stock's trials alone with owned-stream's, each with its program."""
        return cls._compare(
            ("stock", _digests(alone)),
            ("owned-stream", _digests(owned)),
            cls.between,
            "no program has outputs of both stock (alone) and owned-stream",
        )

    @classmethod
    def with_base(
        cls,
        base: Commit,
        stock: list[tuple[str, TrialFinished]],
        of_base: list[tuple[str, TrialFinished]],
    ) -> Parity:
        """The parity of a fixed commit with its base: trials of stock alone, with their program."""
        return cls._compare(
            ("stock", _digests(stock)),
            ("base", _digests(of_base)),
            f"stock and its base {base.sha[:12]}",
            "no program has outputs of both; the base gave "
            + (", ".join(sorted({f"{t.outcome}: {t.reason}" for _, t in of_base})) or "no trial"),
        )

    @classmethod
    def _compare(
        cls,
        one: tuple[str, dict[str, set[str]]],
        other: tuple[str, dict[str, set[str]]],
        between: str,
        lacking: str,
    ) -> Parity:
        programs = sorted(set(one[1]) & set(other[1]))
        if not programs:
            return cls("not measured", lacking, between=between)
        digests = {
            f"{name} {program}": sorted(found[program])
            for program in programs
            for name, found in (one, other)
        }
        if all(len(one[1][p] | other[1][p]) == 1 for p in programs):
            reason = "one SHA-256 over the bits of both executions"
            return cls("identical", reason, digests, between)
        return cls("different", "the output bits are not all the same", digests, between)


def _of_cells(
    cells: list[CellResult], chosen: Callable[[Cell], bool]
) -> list[tuple[str, TrialFinished]]:
    return [(str(c.cell.program), trial) for c in cells if chosen(c.cell) for trial in c.trials]


def _digests(trials: list[tuple[str, TrialFinished]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for program, trial in trials:
        if trial.outcome in (Outcome.PASS, Outcome.WRONG_OUTPUT) and trial.digests:
            found.setdefault(f"{program}, {trial.recipe}", set()).update(trial.digests)
    return found


def _capability(device: Device) -> str:
    major, minor = device.compute_capability
    return f"{major}.{minor}" if major else ""


def fold(events: Iterable[Event]) -> Fold:
    """All events of one run as one fold."""
    state = Fold()
    for event in events:
        state.add(event)
    return state
