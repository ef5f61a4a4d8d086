"""Bisects from an unpacked bundle, whose builds are all made: for a GPU host with no network."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from runner import matrix as matrices
from runner.bisect.bisection import Settings
from runner.bisect.local import EventLog, Local, about, higher
from runner.bisect.probe import HostProber
from runner.bisect.range import Range
from runner.bisect.report import PlainView
from runner.bisect.verdict import Verdict, VerdictKind
from runner.matrix import Cell
from runner.outcome import Outcome
from runner.result import Commit
from runner.run import BuildId, Plan, PreparedBuild
from runner.sandbox.base import Sandbox

FOUND = (VerdictKind.CULPRIT, VerdictKind.AMONG)


@dataclass(frozen=True)
class Packed:
    """What a bundle holds of a bisection: its range and its cell."""

    searched: Range
    cell: Cell

    def to_data(self) -> dict[str, Any]:
        """As the bundle's manifest has it."""
        return {"range": self.searched.to_data(), "cell": cell_data(self.cell)}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Packed:
        """What `to_data` gave. Raises MatrixError, BisectionError."""
        (cell,) = matrices.from_data({"name": "bisection", "cells": [data["cell"]]}).cells
        return cls(Range.from_data(data["range"]), cell)


def cell_data(cell: Cell) -> dict[str, Any]:
    """A cell as a matrix file has it."""
    return {**asdict(cell), "variant": cell.variant.text}


def carry_out(
    packed: Packed,
    builds: Mapping[str, Mapping[BuildId, PreparedBuild]],
    plan: Plan,
    sandbox: Callable[[Plan], Sandbox],
    settings: Settings,
    record: Path,
    json_file: Path | None,
) -> int:
    """Bisect to the verdict and print it; the exit status of `racewatch bisect`.

    builds: of each commit's hash. plan: of any run on this host.
    """
    what = about(plan.subject, packed.searched, cell_data(packed.cell), settings)
    log = EventLog.open(record, what)
    print(packed.searched.text, flush=True)
    if log.events:
        print(f"going on after {len(log.events)} events of {record}", flush=True)

    def build(commit: Commit, build_id: BuildId) -> PreparedBuild:
        held = builds.get(commit.sha, {}).get(build_id)
        reason = f"the bundle holds no build {build_id} of {commit.sha[:12]}"
        return held or PreparedBuild("", outcome=Outcome.UNSUPPORTED, reason=reason)

    prober = HostProber(replace(packed.cell, trials=1), plan, build, sandbox, settings.observe)
    local = Local(packed.searched, log, prober, higher, settings)
    view = PlainView(sys.stdout)
    for step in local:
        view.show(step)
    verdict = local.verdict
    assert verdict is not None
    print(f"\n{verdict.kind}: {verdict.text}\n{cost(local)}; record: {record}", flush=True)
    if json_file is not None:
        text = json.dumps(result(local, verdict, packed.searched), indent=1) + "\n"
        json_file.write_text(text)
    return 0 if verdict.kind in FOUND else 1


def cost(local: Local) -> str:
    """What it cost, in one line."""
    spent = local.state.spent
    return (
        f"{spent.builds} builds ({spent.build_s:.0f} s), {spent.trials} trials "
        f"({spent.trial_s:.0f} s)"
    )


def result(local: Local, verdict: Verdict, searched: Range) -> dict[str, Any]:
    """The verdict, what it rests on and what it cost, as JSON takes it."""
    posterior = local.state.posterior
    return {
        "verdict": asdict(verdict),
        "range": searched.to_data(),
        "trials": {
            each.commit.sha: local.state.tallies[each.key]._asdict()
            for each in local.state.range.classes
            if each.key in local.state.tallies
        },
        "spent": asdict(local.state.spent),
        "posterior": {
            "no change": posterior.none,
            "steps": {
                (each.blamed or each.commit).sha: chance
                for each, chance in zip(local.state.range.classes, posterior.steps, strict=True)
            },
        },
        "checks": [asdict(check) for check in local.state.checks],
    }
