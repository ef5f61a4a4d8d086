"""Probes on this machine: trials of one cell at one commit, built first where it is not there."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from runner.bisect.bisection import Probe
from runner.bisect.events import Observation, Seen
from runner.bisect.settings import Observe
from runner.errors import InfrastructureError
from runner.matrix import Cell, Matrix
from runner.node import EventsFile, in_own_folder
from runner.outcome import Outcome
from runner.result import Commit
from runner.run import BuildId, Plan, PreparedBuild, Run, builds_of
from runner.sandbox.base import Sandbox

MakeBuild = Callable[[Commit, BuildId], PreparedBuild]
MakeSandbox = Callable[[Plan], Sandbox]


class Prober(Protocol):
    """Carries out probes."""

    def probe(self, probe: Probe, trials: int) -> Observation:
        """So many trials of a probe's commit, and what came of them."""
        ...


@dataclass(frozen=True)
class HostProber:
    """Probes on this host's devices.

    plan: of any run here; commit, matrix and builds are put in for each probe. observe: what is
    counted of its trials; for swallows the plan has a detector.
    """

    cell: Cell
    plan: Plan
    build: MakeBuild
    sandbox: MakeSandbox
    observe: Observe = Observe.FAILURE

    def probe(self, probe: Probe, trials: int) -> Observation:
        """See Prober."""
        matrix = Matrix("bisection", "", (replace(self.cell, trials=trials),))
        try:
            builds = {one: self.build(probe.commit, one) for one in builds_of(matrix)}
        except InfrastructureError as error:
            return Observation(probe.key, Seen.INFRASTRUCTURE, check=probe.check, reason=str(error))
        build_s = sum(build.seconds for build in builds.values() if not build.cached)
        own = builds[BuildId.of(self.cell)]
        if own.outcome is not None:
            return Observation(
                probe.key, Seen.UNBUILDABLE, check=probe.check, build_s=build_s, reason=own.reason
            )
        began = time.monotonic()
        plan = in_own_folder(
            replace(
                self.plan, commit=probe.commit, matrix=matrix, builds=builds, run=str(uuid.uuid4())
            )
        )
        a_run = Run(plan, self.sandbox(plan))
        log = EventsFile(Path(plan.folder) / "events.jsonl")
        try:
            for event in a_run.events():
                log.write(event)
        finally:
            log.close()
        return self._seen(a_run, probe, build_s, time.monotonic() - began)

    def _seen(self, a_run: Run, probe: Probe, build_s: float, trial_s: float) -> Observation:
        (cell,) = a_run.fold.cells()
        k, n = cell.k, cell.n
        if self.observe is Observe.SWALLOW:
            k, n = sum(trial.swallowed for trial in cell.watched), len(cell.watched)
        seen = Observation(
            probe.key,
            k=k,
            n=n,
            check=probe.check,
            build_s=build_s,
            trial_s=trial_s,
        )
        if seen.n:
            return seen
        reason = cell.trials[-1].reason if cell.trials else "no trial ended"
        if cell.n:
            last = cell.trials[-1].swallow
            reason = f"no trial was watched: {last.reason if last else 'nothing watches here'}"
        unsupported = cell.counts[Outcome.UNSUPPORTED] and not cell.n
        kind = Seen.UNBUILDABLE if unsupported else Seen.INFRASTRUCTURE
        return replace(seen, seen=kind, reason=reason)
