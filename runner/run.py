"""One run: a matrix of race trials of one commit on one kind of device, as a stream of events."""

from __future__ import annotations

import os
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Container, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from runner import controls
from runner.controls import Control, DeviceControl
from runner.detector.record import Detector, Swallow
from runner.matrix import Cell, Matrix, Program, Recipe, resolve_recipe
from runner.outcome import Classification, Outcome
from runner.result import (
    BASE,
    REFERENCE,
    Commit,
    Device,
    Event,
    Fold,
    RunEnded,
    RunStarted,
    TrialFinished,
)
from runner.sandbox.base import Sandbox
from runner.statistics.control import Proof
from runner.trial.program import ParentConfig, TrialSpec
from runner.trial.supervise import Assignment, Deadlines, Finished, Lane, Supervisor
from runner.variants.names import BuildKind

HARNESS = "2"
"""Version of what a trial does; results are shared only at an equal version."""
HOPELESS = 3
"""Infrastructure errors in a row after which a device is taken out, and a run gives up where it is
the last one and no trial counted before."""
LOG_LINES = 60
VERSION_CHARACTERS = 100
REFERENCE_EXECUTIONS = 6
"""How often a reference executes: what differs now and then must not pass for what is fixed."""
CAPTURES = 16
"""At least as many captures as an execution of any program makes, each held open in turn."""


@dataclass(frozen=True)
class BuildId:
    """A build of a commit: its kind, on the commit with those pull requests merged."""

    kind: BuildKind
    pulls: tuple[int, ...] = ()

    @classmethod
    def of(cls, cell: Cell) -> BuildId:
        """The build that a cell needs."""
        return cls(cell.variant.build_kind(cell.hold_ms), cell.variant.pulls)

    @classmethod
    def parse(cls, text: str) -> BuildId:
        """The build that `str` of it names. Raises ValueError for any other text."""
        *pulls, kind = text.split("+")
        return cls(BuildKind(kind), tuple(int(pull.removeprefix("pr-")) for pull in pulls))

    def __str__(self) -> str:
        return "+".join([*(f"pr-{n}" for n in self.pulls), str(self.kind)])


@dataclass(frozen=True)
class PreparedBuild:
    """A build as a run takes it: a folder, or the outcome and reason why there is none.

    initialize: names of the handlers with an initialize stage, None if that was not looked at.
    owned_stream_needed: False where the commit captures on a stream of its own already.
    """

    key: str
    folder: str = ""
    outcome: Outcome | None = None
    signature: str = ""
    reason: str = ""
    log: str = ""
    seconds: float = 0.0
    cached: bool = False
    initialize: tuple[str, ...] | None = None
    owned_stream_needed: bool = True
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Base:
    """Another commit with its stock build: the one that a fixed commit came from, which parity
    compares with, or the pinned one of the control cells."""

    commit: Commit
    build: PreparedBuild


@dataclass(frozen=True)
class Plan:
    """Everything that a run needs to know before its first trial.

    base: where the commit needs no owned-stream, what its outputs are compared with instead.
    detector: what watches the trials' capture windows, None where nothing shall.
    control: what the control cells run, of which the matrix says how many trials; None for none.
    notes: what is known of the run beforehand, a sentence each.
    """

    subject: str
    commit: Commit
    matrix: Matrix
    builds: Mapping[BuildId, PreparedBuild]
    device: Device
    parallel: int
    toolchain: str
    folder: Path
    expected_handlers: Callable[[Program, Recipe, tuple[int, int]], tuple[str, ...]]
    command: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    fallback_path: tuple[str, ...] = ()
    deadlines: Deadlines = field(default_factory=Deadlines)
    fresh: bool = False
    base: Base | None = None
    detector: Detector | None = None
    control: Base | None = None
    notes: tuple[str, ...] = ()
    harness: str = HARNESS
    run: str = field(default_factory=lambda: str(uuid.uuid4()))


def builds_of(matrix: Matrix) -> list[BuildId]:
    """The builds that a matrix needs, stock first."""
    wanted = {BuildId.of(cell) for cell in matrix.cells}
    wanted |= {BuildId.of(_reference(cell)) for cell in matrix.cells}
    return sorted(wanted, key=lambda b: (b.pulls, list(BuildKind).index(b.kind)))


def _reference(cell: Cell) -> Cell:
    """The cell whose output `cell` must reproduce: stock, alone, not held."""
    stock = type(cell.variant).parse("stock")
    return replace(
        cell, name=f"{REFERENCE}{cell.program}", variant=stock, background=False, hold_ms=0.0
    )


def needs_base(builds: Mapping[BuildId, PreparedBuild]) -> bool:
    """Whether a commit's own builds show that it captures on a stream of its own already."""
    return any(
        build.folder and not build.owned_stream_needed and not build_id.pulls
        for build_id, build in builds.items()
    )


class Run:
    """Carries out a plan, once; iterate over it for its events."""

    def __init__(self, plan: Plan, sandbox: Sandbox) -> None:
        self.plan = plan
        self.fold = Fold()
        self._sandbox = sandbox
        self._queue: deque[Assignment] = deque()
        self._cells: dict[int, Cell] = {}
        self._attempts: dict[int, int] = {}
        self._next_index = 0
        self._references: dict[tuple[Program, str], str | None] = {}
        self._versions: dict[str, str] = {}
        self._fresh_reasons: set[str] = set()
        self._supervisor: Supervisor | None = None
        self._streaks: Counter[str] = Counter()
        self._pins: dict[int, str] = {}
        self._controls: dict[str, DeviceControl] = {}
        self._said: list[str] = list(plan.notes)
        self._began = time.monotonic()

    def __iter__(self) -> Iterator[Event]:
        return self.events()

    def events(self) -> Generator[Event, None, None]:
        """Every event. Closing this generator ends all trials; `stopped` then completes them."""
        with closing(self._trials()) as events:
            for event in events:
                yield self._note(event)
        yield self._note(self._end(*self._verdict()))

    def stopped(self, status: str, reason: str) -> Iterator[Event]:
        """The events that complete the stream of a run that did not reach its own end."""
        if self.fold.started is None:
            yield self._note(self._started())
        yield self._note(self._end(status, reason))

    def _note(self, event: Event) -> Event:
        self.fold.add(event)
        return event

    def _end(self, status: str, reason: str) -> RunEnded:
        return RunEnded(
            run=self.plan.run,
            status=status,
            reason=reason,
            finished=_now(),
            seconds=round(time.monotonic() - self._began, 3),
            notes=self._notes(),
        )

    def _notes(self) -> tuple[str, ...]:
        started = self.fold.started
        late = self._fresh_reasons if started and started.trial_mode == "fork" else set()
        fresh = tuple(f"some trials had a fresh interpreter: {reason}" for reason in sorted(late))
        lanes = self._supervisor.notes if self._supervisor else ()
        return (*lanes, *fresh, *self._unwatched(), *self._uncompared(), *self._said)

    def _uncompared(self) -> Iterator[str]:
        """Which programs' passes say nothing of their outputs: nothing told what these must be."""
        passed = Counter(
            (self._cells[trial.index].program, trial.recipe)
            for trial in self.fold.trials.values()
            if trial.outcome is Outcome.PASS
            and not trial.control
            and not trial.cell.startswith(BASE)
        )
        for (program, recipe), number in passed.items():
            if (program, recipe) not in self._references:
                yield (
                    f"{program} ({recipe}): no trial of stock alone passed, so the outputs of "
                    f"{number} trials that passed were compared with nothing"
                )

    def _unwatched(self) -> Iterator[str]:
        """Why trials that count were not watched, where they were to be."""
        counted = [t for t in self.fold.trials.values() if t.swallow is not None and t.counted]
        reasons = Counter(t.swallow.reason for t in counted if t.swallow and t.swallow.reason)
        for reason, number in reasons.most_common():
            yield f"{number} of {len(counted)} trials not watched by the detector: {reason}"

    def _trials(self) -> Generator[Event, None, None]:
        supervisor = self._supervisor = Supervisor(self._lanes())
        try:
            self._queue.extend(self._first_assignments())
            rest = controls.spread(
                [self._assign(cell, device=device) for device, cell in self._control_cells()],
                [self._assign(cell) for cell in self._rest()],
            )
            supervisor.warm([*self._queue, *rest])
            for finished in supervisor.run(self._queue):
                trial = self._take(finished)
                yield from self._announce()
                yield trial
            yield from self._announce()
            self._queue.extend(rest)
            if self._hopeless(supervisor.retired):
                return
            for finished in supervisor.run(self._queue):
                yield self._take(finished)
                if self._hopeless(supervisor.retired):
                    return
        finally:
            supervisor.close()

    def _announce(self) -> Iterator[Event]:
        """The run event, once a parent has said which versions it imported."""
        if self.fold.started is None:
            yield self._started()
            yield from self._without_trials()

    # What is run, in which order

    def _first_assignments(self) -> list[Assignment]:
        """One reference trial for each program and recipe, before anything is compared with it."""
        taken: set[tuple[Program, Recipe]] = set()
        first = []
        for cell in sorted(self.plan.matrix.cells, key=lambda c: not c.is_reference):
            key = (cell.program, cell.recipe)
            if key in taken or not self._build(_reference(cell)).folder:
                continue
            taken.add(key)
            # A matrix that has the reference cell itself spends one of its trials on it.
            first.append(self._assign(cell if cell.is_reference else _reference(cell)))
            if self.plan.base is not None and self.plan.base.build.folder:
                of_base = replace(_reference(cell), name=f"{BASE}{cell.program}")
                first.append(self._assign(of_base))
        return first

    def _rest(self) -> Iterator[Cell]:
        """Cells trial by trial, interleaved so that a drifting device meets all of them alike."""
        spent = Counter(cell.name for cell in self._cells.values())
        rounds = max((cell.trials for cell in self.plan.matrix.cells), default=0)
        for n in range(rounds):
            for cell in self.plan.matrix.cells:
                if spent[cell.name] <= n < cell.trials and self._why_not(cell) is None:
                    yield cell

    def _control_cells(self) -> Iterator[tuple[str, Cell]]:
        """The trials that prove each device, in turn."""
        control = self.plan.control
        if control is None or not control.build.folder:
            return
        for _ in range(self.plan.matrix.controls):
            for device in self._devices:
                for known in Control:
                    yield device, controls.cell(known)

    @property
    def _devices(self) -> tuple[str, ...]:
        return self.plan.device.ids or ("0",)

    def _assign(self, cell: Cell, attempt: int = 1, device: str = "") -> Assignment:
        index = self._next_index
        self._next_index += 1
        self._cells[index], self._attempts[index] = cell, attempt
        self._pins[index] = device
        build = self._build(cell)
        stem = self.plan.folder / f"trial-{index:05d}"
        instrumented = BuildId.of(cell).kind is not BuildKind.STOCK
        control = controls.control_of(cell.name)
        spec = TrialSpec(
            index=index,
            program=str(cell.program),
            recipe=str(cell.recipe),
            background=cell.background,
            background_period_ms=cell.background_period_ms,
            environment=cell.variant.environment(cell.hold_ms),
            log=f"{stem}.log",
            trace=f"{stem}.handlers" if instrumented else "",
            executions=REFERENCE_EXECUTIONS if cell.is_reference and not control else 2,
            swallow=f"{stem}.swallow" if self._watches else "",
        )
        silent = CAPTURES * cell.hold_ms / 1000
        return Assignment(spec, build.folder, cell.variant.registration, silent, device)

    @property
    def _watches(self) -> bool:
        return self.plan.detector is not None and not self.plan.detector.reason

    def _build(self, cell: Cell) -> PreparedBuild:
        if self.plan.base is not None and cell.name.startswith(BASE):
            return self.plan.base.build
        if self.plan.control is not None and controls.control_of(cell.name):
            return self.plan.control.build
        return self.plan.builds[BuildId.of(cell)]

    def _lanes(self) -> list[Lane]:
        plan = self.plan

        def config_for(assignment: Assignment, device: str) -> ParentConfig:
            return ParentConfig(
                subject=plan.subject,
                build_dir=assignment.build_dir,
                registration=assignment.registration,
                device=device,
                fallback_path=plan.fallback_path,
                fresh=plan.fresh,
                detector=plan.detector.library if plan.detector else "",
            )

        return [
            Lane(
                device, plan.parallel, self._sandbox, config_for, plan.deadlines,
                self._note_versions,
            )
            for device in self._devices
        ]  # fmt: skip

    def _note_versions(self, versions: Mapping[str, str]) -> None:
        """Keep those that a run tells; a trial may name any others, as often as it likes."""
        told = (name for name in ("jax", "te") if name in versions)
        self._versions.update({name: versions[name][:VERSION_CHARACTERS] for name in told})

    # What is said of it

    def _started(self) -> RunStarted:
        plan = self.plan
        planned = sum(
            cell.trials if self._why_not(cell) is None else 1 for cell in plan.matrix.cells
        )
        added = (REFERENCE, BASE, controls.PREFIX)
        extra = sum(
            cell.name.startswith(added) and self._attempts[index] == 1
            for index, cell in self._cells.items()
        )
        device = replace(
            plan.device,
            jax=self._versions.get("jax", plan.device.jax),
            te=self._versions.get("te", plan.device.te),
        )
        reasons = "; ".join(sorted(self._fresh_reasons))
        mode = f"fresh interpreter: {reasons}" if reasons else "fork"
        return RunStarted(
            run=plan.run,
            subject=plan.subject,
            commit=plan.commit,
            device=device,
            matrix=plan.matrix,
            parallel=plan.parallel,
            sandbox=self._sandbox.name,
            toolchain=plan.toolchain,
            harness=plan.harness,
            started=_now(),
            command=plan.command,
            environment=plan.environment,
            trial_mode=mode,
            trials_planned=planned + extra,
            base=plan.base.commit if plan.base else None,
            control=plan.control.commit if plan.control else None,
            builds={
                str(build_id): {k: v for k, v in asdict(build).items() if k != "folder"}
                for build_id, build in plan.builds.items()
            },
        )

    def _why_not(self, cell: Cell) -> Classification | None:
        """Why a cell has no trials: no build, or nothing for the variant to change."""
        build = self._build(cell)
        if build.outcome is not None:
            return Classification(build.outcome, build.signature, build.reason)
        if cell.variant.owned_stream and not build.owned_stream_needed:
            reason = "not needed: this commit captures on a stream of its own already"
            return Classification(Outcome.UNSUPPORTED, "not needed", reason)
        return None

    def _without_trials(self) -> Iterator[TrialFinished]:
        """One event for each cell that cannot run, so that it is counted and says why."""
        for cell in self.plan.matrix.cells:
            why = self._why_not(cell)
            if why is None:
                continue
            index = self._next_index
            self._next_index += 1
            build = self._build(cell)
            evidence = {"kind": "build", "output": _last_lines(build.log)}
            yield TrialFinished(
                self.plan.run, index, cell.name, why.outcome, why.signature, why.reason,
                build=build.key, evidence=evidence,
            )  # fmt: skip

    def _judge(self, finished: Finished) -> TrialFinished:
        plan = self.plan
        spec = finished.assignment.spec
        cell = self._cells[spec.index]
        build = self._build(cell)
        result = finished.result
        if finished.fresh_reason:
            self._fresh_reasons.add(finished.fresh_reason)
        recipe = result.get("recipe") or ""
        digests = tuple(result.get("digests", ()))
        instrumented = BuildId.of(cell).kind is not BuildKind.STOCK
        control = controls.control_of(cell.name)
        of_another = cell.name.startswith(BASE) or control is not None
        # Another commit's bits may differ: parity says so, and it is no failure of either.
        reference = None if of_another else self._references.get((cell.program, recipe))
        evidence = replace(
            finished.evidence,
            expected_platform=plan.device.kind,
            missing_handlers=self._missing(cell, build, recipe, finished) if instrumented else (),
            digest=_worst(digests, reference),
            reference_digest=reference,
        )
        verdict = finished.judge(evidence)
        if cell.is_reference and not of_another:
            self._note_reference(cell, recipe, digests, verdict)
        shown = asdict(evidence)
        shown["output"] = _last_lines(evidence.output)
        shown["device"] = finished.facts
        shown["background_error"] = result.get("background_error", "")
        return TrialFinished(
            run=plan.run,
            index=spec.index,
            cell=cell.name,
            outcome=verdict.outcome,
            signature=verdict.signature,
            reason=verdict.reason,
            seconds=finished.seconds,
            device=finished.device,
            build=build.key,
            recipe=recipe,
            digests=digests,
            background_updates=int(result.get("updates", 0)),
            handlers=finished.handlers if instrumented else None,
            times=result.get("times", {}),
            evidence=shown,
            log=os.path.basename(spec.log),
            swallow=self._swallow(finished),
        )

    def _swallow(self, finished: Finished) -> Swallow | None:
        detector = self.plan.detector
        if detector is not None and detector.reason:
            return Swallow(reason=detector.reason)
        return finished.swallow

    def _note_reference(
        self, cell: Cell, recipe: str, digests: tuple[str, ...], verdict: Classification
    ) -> None:
        """The first clean reference of a program and recipe fixes what its bits must be.

        A program whose own executions differ has no such bits, and its outputs are not compared.
        """
        key = (cell.program, recipe)
        if verdict.outcome is not Outcome.PASS or key in self._references:
            return
        self._references[key] = digests[0] if len(set(digests)) == 1 else None
        if len(set(digests)) > 1:
            self._said.append(
                f"{cell.program} ({recipe}): {len(set(digests))} different outputs in "
                f"{len(digests)} executions of one trial, so its outputs were not compared"
            )

    def _missing(
        self, cell: Cell, build: PreparedBuild, recipe: str, finished: Finished
    ) -> tuple[str, ...]:
        """Handlers that the program must enter and this build has, but that were not entered."""
        if build.initialize is None or not recipe:
            return ()
        capability = tuple(finished.facts.get("compute_capability", (0, 0)))
        expected = self.plan.expected_handlers(
            cell.program, Recipe(recipe), (capability[0], capability[1])
        )
        entered = {
            name.removesuffix("FFI").removesuffix("Initialize") for name in finished.handlers
        }
        if not set(build.initialize) & set(expected):
            return tuple(expected)
        return tuple(h for h in expected if h in build.initialize and h not in entered)

    def _take(self, finished: Finished) -> TrialFinished:
        event = self._judge(finished)
        self._replace(finished, event)
        self._watch(event)
        return event

    def _watch(self, event: TrialFinished) -> None:
        """Take out a device that gives nothing but infrastructure errors, or that fails its control
        cells, where others remain."""
        if event.control:
            known = self._controls.get(event.device, DeviceControl(event.device))
            known = known.with_trials(event.control, event.outcome)
            self._controls[event.device] = known
            verdict = known.verdict
            if verdict.proof is Proof.UNPROVEN and self._supervisor is not None:
                self._supervisor.retire(event.device, verdict.text)
        infra = event.outcome is Outcome.INFRA_ERROR
        streak = self._streaks[event.device] = self._streaks[event.device] + 1 if infra else 0
        if streak >= HOPELESS and self._supervisor is not None:
            reason = f"{streak} infrastructure errors in a row ({event.signature})"
            self._supervisor.retire(event.device, reason)

    def _replace(self, finished: Finished, event: TrialFinished) -> None:
        """Give a trial that infrastructure cost a second chance, as a new trial of its cell."""
        index = finished.assignment.spec.index
        if event.outcome is Outcome.INFRA_ERROR and self._attempts[index] == 1:
            self._queue.append(self._assign(self._cells[index], 2, self._pins[index]))

    def _hopeless(self, retired: Container[str] = ()) -> bool:
        """True when the first trials all met the infrastructure and none counted; what devices that
        were taken out met says nothing of those that remain."""
        infra = 0
        # Asked after every trial: the first one that counted ends the look through all of them.
        for trial in self.fold.trials.values():
            if trial.evidence.get("kind") == "build" or trial.control:
                continue
            if trial.outcome is not Outcome.INFRA_ERROR:
                return False
            infra += trial.device not in retired
        return infra >= min(HOPELESS, max(1, len(self._cells)))

    def _verdict(self) -> tuple[str, str]:
        if self._hopeless():
            infra = next(t for t in self.fold.trials.values() if t.outcome is Outcome.INFRA_ERROR)
            return "failed", f"could not run: {infra.reason} ({infra.signature})"
        return "complete", ""


def _worst(digests: tuple[str, ...], reference: str | None) -> str | None:
    """The digest that differs from the reference if one does, else the first."""
    for digest in digests:
        if reference is not None and digest != reference:
            return digest
    return digests[0] if digests else None


def _last_lines(text: str) -> str:
    return "\n".join(text.splitlines()[-LOG_LINES:])[-6000:]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def default_parallel(device: Device, memory_gib: float, cores: int) -> int:
    """Trials at a time on one device.

    A trial on CUDA holds a context, a few buffers and the libraries' workspaces (about 2 GiB in
    all) and is bound by the host while it creates its context, so cores and memory limit it; past
    16 there was nothing to gain on an H200. An emulated trial is two busy threads.

    memory_gib: of one device. cores: of the host, which its devices share.
    """
    share = max(1, cores // max(1, len(device.ids)))
    return share if device.emulated else max(1, min(16, share, int(memory_gib // 2)))


__all__ = [
    "HARNESS",
    "Base",
    "BuildId",
    "Plan",
    "PreparedBuild",
    "Run",
    "builds_of",
    "default_parallel",
    "needs_base",
    "resolve_recipe",
]
