"""The real demo subject: its commits, each build compiled once, and runs of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from runner import result
from runner.demo_subject import DemoSubject
from runner.detector.record import Detector
from runner.matrix import Matrix, parse
from runner.result import Event, Fold
from runner.run import Base, BuildId, Plan, PreparedBuild, Run, builds_of
from runner.sandbox.process import ProcessSandbox
from runner.subject import Folders, Options, Request
from runner.trial.program import ParentConfig, TrialSpec
from runner.trial.supervise import Deadlines
from runner.variants.names import BuildKind

Build = Callable[..., PreparedBuild]
RunDemo = Callable[..., Fold]
WIDE = {"EMULATION_LOAD_MS": "12"}
"""Captures that are open for so long that a busy host does not keep the other thread from them."""


@pytest.fixture(scope="session")
def demo(home: Path, compiler: str) -> DemoSubject:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", compiler)
        return DemoSubject(Options(Folders(home, str(home / "store"))))


@pytest.fixture(scope="session")
def build(demo: DemoSubject, compiler: str) -> Build:
    """`build("race", "instrumented")`: a build of the demo's commit, made at its first use."""

    def make(ref: str = "race", kind: str = "stock", pulls: Sequence[int] = ()) -> PreparedBuild:
        commit = demo.resolve(Request(ref))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CXX", compiler)
            return demo.build(commit, BuildId(BuildKind(kind), tuple(pulls)))

    return make


@pytest.fixture
def config(build: Build) -> Callable[..., ParentConfig]:
    """How a parent of the demo's trials is started."""

    def of(ref: str = "race", kind: str = "stock", **changes: object) -> ParentConfig:
        values = {"registration": "registered", "device": "0", **changes}
        return ParentConfig(subject="demo", build_dir=build(ref, kind).folder, **values)

    return of


@pytest.fixture
def spec(tmp_path: Path) -> Callable[..., TrialSpec]:
    """What one trial of the demo is told; its environment by keyword."""

    def of(index: int = 0, background: bool = False, **environment: str) -> TrialSpec:
        return TrialSpec(
            index=index,
            program="norm-act-gemm",
            recipe="auto",
            background=background,
            background_period_ms=0.0,
            environment=environment,
            log=str(tmp_path / f"trial-{index}.log"),
        )

    return of


def matrix_of(cells: Sequence[Mapping[str, object]]) -> Matrix:
    lines = ["name = 'test'"]
    for cell in cells:
        lines.append("[[cells]]")
        for key, value in cell.items():
            text = str(value).lower() if isinstance(value, bool | int | float) else f"'{value}'"
            lines.append(f"{key} = {text}")
    return parse("\n".join(lines), "test")


@pytest.fixture
def plan(demo: DemoSubject, build: Build, tmp_path: Path) -> Callable[..., Plan]:
    """A plan for cells of a commit of the demo."""

    def of(
        *cells: Mapping[str, object],
        ref: str = "race",
        devices: Sequence[str] = (),
        parallel: int = 2,
        deadlines: Deadlines | None = None,
        fresh: bool = False,
        base: Base | None = None,
        detector: Detector | None = None,
    ) -> Plan:
        matrix = matrix_of(cells)
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        return Plan(
            subject="demo",
            commit=demo.resolve(Request(ref)),
            matrix=matrix,
            builds={b: build(ref, str(b.kind), b.pulls) for b in builds_of(matrix)},
            device=demo.devices(devices).device,
            parallel=parallel,
            toolchain=demo.toolchain_name,
            folder=folder,
            expected_handlers=demo.expected_handlers,
            deadlines=deadlines or Deadlines(),
            fresh=fresh,
            base=base,
            detector=detector,
        )

    return of


@pytest.fixture
def run_demo(demo: DemoSubject, plan: Callable[..., Plan]) -> RunDemo:
    """Run cells of a commit of the demo; `on_event` is shown each event as it happens."""

    def carry_out(
        *cells: Mapping[str, object],
        environment: Mapping[str, str] | None = None,
        on_event: Callable[[Event], None] = lambda event: None,
        **options: object,
    ) -> Fold:
        planned = plan(*cells, **options)
        shared = {**demo.trial_environment(planned.device), **WIDE, **(environment or {})}
        run = Run(planned, ProcessSandbox(planned.folder, environment=shared))
        events = []
        for event in run:
            events.append(event)
            on_event(event)
        # Whatever a test says of a run holds of its stream of events alone.
        return result.fold(result.load(result.dump(event)) for event in events)

    return carry_out
