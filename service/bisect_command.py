"""`racewatch bisect`: one machine alone finds which commit changed a cell's failure rate."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from runner import bundle as bundling
from runner import device as host
from runner import matrix as matrices
from runner.bisect.bisection import Settings
from runner.bisect.local import EventLog, Local, about, higher
from runner.bisect.packed import FOUND, Packed, cell_data, cost, result
from runner.bisect.probe import HostProber
from runner.bisect.range import Range, between
from runner.bisect.report import PlainView
from runner.bisect.settings import Observe
from runner.bisect.verdict import Verdict, named
from runner.bisect.view import LiveView
from runner.detector.record import Detector
from runner.errors import InputError
from runner.matrix import Cell, Matrix
from runner.node import compilation_cache
from runner.run import BuildId, Plan, builds_of, default_parallel
from runner.sandbox.base import Sandbox
from runner.sandbox.choice import Choice
from runner.settings import Settings as Home
from runner.subject import Options, Subject
from runner.subjects import open_subject
from runner.te_subject import TeSubject

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True)
class Asked:
    """What is asked for: see the command's options."""

    subject: str
    good: str
    bad: str
    cell: str
    matrix: str
    confidence: float
    budget: str
    repo: str = ""
    toolchain: str = ""
    devices: tuple[str, ...] = ()
    parallel: int | None = None
    record: Path | None = None
    json: Path | None = None
    bundle: Path | None = None
    arch: str = ""
    observe: str = Observe.FAILURE
    sandbox: str = "process"
    image: str = ""
    build_image: str = ""


def bisect(asked: Asked) -> int:
    """Bisect to the verdict; the exit status: 0 for a culprit, 1 where there is none to name.

    Raises InputError and InfrastructureError.
    """
    settings = Settings(
        confidence=confidence(asked.confidence),
        budget_s=duration(asked.budget, "--budget"),
        observe=observation(asked.observe),
    )
    cell = one_cell(asked.matrix, asked.cell)
    home = Home.load()
    choice = Choice(asked.subject, asked.sandbox, asked.image, asked.build_image)
    choice.require(trials=asked.bundle is None)
    for warning in choice.warnings():
        print(f"racewatch: {warning}", file=sys.stderr)
    options = Options(home.folders, asked.repo, asked.toolchain, architecture=asked.arch)
    options = replace(options, sandbox=choice.builds(home.home, options.jobs))
    subject = open_subject(asked.subject, options)
    lineage = subject.lineage()
    searched = between(
        lineage, lineage.resolve(asked.good), lineage.resolve(asked.bad), BuildId.of(cell)
    )
    if asked.bundle is not None:
        return _pack(asked, subject, searched, cell)
    what = about(subject.name, searched, cell_data(cell), settings)
    log = EventLog.open(asked.record or _record(home.home, what), what)
    console = Console()
    console.print(searched.text, highlight=False, markup=False)
    if log.events:
        console.print(f"going on after {len(log.events)} events of {log.path}", highlight=False)
    prober = _prober(subject, cell, asked, home, settings.observe, choice.pinned())
    local = Local(searched, log, prober, higher, settings, lineage)
    with _view(console) as view:
        for step in local:
            view.show(step)
    verdict = local.verdict
    assert verdict is not None
    _conclude(console, local, verdict, log.path)
    if asked.json is not None:
        asked.json.write_text(json.dumps(result(local, verdict, searched), indent=1) + "\n")
    return 0 if verdict.kind in FOUND else 1


def _conclude(console: Console, local: Local, verdict: Verdict, record: Path) -> None:
    console.print(f"\n{verdict.kind}: {verdict.text}", highlight=False, markup=False)
    console.print(f"{cost(local)}; record: {record}", highlight=False, markup=False)


def confidence(value: float) -> float:
    """A confidence that can be reached. Raises InputError."""
    if not 0.5 < value < 1:
        raise InputError(f"--confidence: must be more than 0.5 and less than 1, got {value:g}")
    return value


def observation(text: str) -> Observe:
    """What is counted of a trial. Raises InputError."""
    if text not in set(Observe):
        raise InputError(f"--observe: must be one of {', '.join(Observe)}, got {text!r}")
    return Observe(text)


def watching(subject: Subject, observe: Observe) -> Detector:
    """What watches trials, as a bisection's are wherever they can be. Raises InputError where it is
    asked for swallows and nothing can."""
    detector = subject.detector()
    if observe is Observe.SWALLOW and detector.reason:
        raise InputError(
            f"--observe swallow: trials of {subject.name} cannot be watched here, use "
            f"--observe failure: {detector.reason}"
        )
    return detector


def duration(text: str, option: str) -> float | None:
    """Seconds of such as `90s`, `30m`, `2h`; None for an empty text. Raises InputError."""
    if not text:
        return None
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd])", text.strip())
    if found is None or float(found[1]) == 0:
        raise InputError(f"{option}: must be a time such as 90s, 30m or 2h, got {text!r}")
    return float(found[1]) * _UNITS[found[2]]


def one_cell(matrix: str, name: str) -> Cell:
    """The cell of that name. Raises MatrixError, which lists those that there are."""
    (cell,) = matrices.load(matrix).only((name,)).cells
    return cell


def _pack(asked: Asked, subject: Subject, searched: Range, cell: Cell) -> int:
    """Make every build of the range, and a bundle of them."""
    if not isinstance(subject, TeSubject):
        raise InputError(f"--bundle: only te runs on a GPU node, got --subject {asked.subject!r}")
    assert asked.bundle is not None
    bundling.check_target(asked.bundle, None)
    needed = builds_of(Matrix("bisection", "", (cell,)))
    console = Console()
    commits = []
    for each in searched.classes:
        builds = {}
        for build_id in needed:
            with console.status(f"building {build_id} of {named(each.commit)}"):
                builds[build_id] = subject.build(each.commit, build_id)
            said = builds[build_id].outcome or "built"
            console.print(f"{build_id} of {named(each.commit)}: {said}", highlight=False)
        commits.append(bundling.BundledCommit(each.commit, builds))
    packed = bundling.pack(
        commits,
        architecture=asked.arch,
        toolchain=subject.toolchain_name,
        dependencies=subject.node_packages(),
        detector=subject.detector(),
        out=asked.bundle,
        bisection=Packed(searched, cell).to_data(),
    )
    console.print(f"{packed.size / 1e6:.1f} MB in {asked.bundle}", highlight=False)
    return 0


def _record(home: Path, what: dict[str, Any]) -> Path:
    """Where the events of this bisection are kept: the same command goes on with them."""
    digest = hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()
    return home / "bisections" / f"{digest[:16]}.jsonl"


def _prober(
    subject: Subject, cell: Cell, asked: Asked, home: Home, observe: Observe, choice: Choice
) -> HostProber:
    found = subject.devices(asked.devices)
    python = subject.trial_python() if choice.name == "process" else ""
    parallel = asked.parallel
    if parallel is None:
        parallel = default_parallel(found.device, found.memory_gib, host.cores())
    plan = Plan(
        subject=subject.name,
        commit=subject.lineage().resolve(asked.bad),
        matrix=matrices.load(asked.matrix),
        builds={},
        device=found.device,
        parallel=parallel,
        toolchain=subject.toolchain_name,
        folder=home.runs,
        expected_handlers=subject.expected_handlers,
        environment=subject.trial_environment(found.device) | choice.recorded(),
        fallback_path=subject.trial_packages(),
        detector=watching(subject, observe),
    )

    def sandbox(of: Plan) -> Sandbox:
        environment = dict(of.environment) | compilation_cache(of, cold=False)
        return choice.trials(of, python, environment, home.home)

    return HostProber(replace(cell, trials=1), plan, subject.build, sandbox, observe)


@contextmanager
def _view(console: Console) -> Iterator[PlainView]:
    if not console.is_terminal:
        yield PlainView(sys.stdout)
        return
    with Live(console=console, refresh_per_second=4) as live:
        yield LiveView(live)
