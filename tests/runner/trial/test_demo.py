"""The demo subject tells the story of the race, in real processes with two real threads."""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from runner import demo_build
from runner.demo_build import LIBRARY, compile_extension, find_compiler
from runner.demo_repo import create
from runner.errors import BuildError, InfrastructureError, SubjectError
from runner.matrix import Program, Recipe
from runner.trial import demo
from runner.trial.program import ParentConfig
from runner.variants import ffi13, stream

CSRC = "transformer_engine/jax/csrc"
NORM, SOFTMAX = Program.NORM_ACT_GEMM, Program.SOFTMAX_QUANTIZE_ROUTER
CAPTURE_ERRORS = (
    "operation failed due to a previous error during capture",
    "capturing stream has unjoined work",
)
JOIN_S = 5.0
HUNG_JOIN_S = 0.3


@dataclass(frozen=True)
class Seen:
    """What is known of a trial once its process has ended."""

    signal: int = 0
    error: str = ""
    background_error: str = ""
    joined: bool = True
    stale: int | None = None
    digests: tuple[str, ...] = ()
    updates: int = 0
    recipe: str = ""

    @property
    def passed(self) -> bool:
        return (
            not (self.signal or self.error or self.background_error)
            and self.joined
            and self.stale == 0
            and len(set(self.digests)) == 1
        )


def run_trial(
    build: Path,
    program: Program = NORM,
    *,
    background: bool = True,
    registration: str = "registered",
    period_ms: float = 0.0,
    recipe: str = "auto",
    device: str = "0",
    environment: Mapping[str, str] | None = None,
) -> Seen:
    """One trial in a process of its own."""
    config = ParentConfig("demo", str(build), registration, device)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        faulthandler.disable()
        os.environ.update(environment or {})
        facts = _facts_of(config, program, background, period_ms, recipe)
        os.write(write, json.dumps(facts).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    status = os.waitpid(child, 0)[1]
    told = json.loads(text) if text else {}
    told["digests"] = tuple(told.get("digests", ()))
    return Seen(signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, **told)


def _facts_of(
    config: ParentConfig, name: Program, background: bool, period_ms: float, recipe: str
) -> dict[str, object]:
    facts: dict[str, object] = {}
    try:
        program = demo.open_program(config)
        program.open_device()
        facts["recipe"] = program.compile(name, recipe)
        if background:
            program.start_background(period_ms)
        outputs = [program.execute() for _ in range(2)]
        facts["digests"] = [hashlib.sha256(output).hexdigest() for output in outputs]
        hung = os.environ.get("EMULATION_BACKGROUND") == "wait"
        facts["joined"] = program.stop_background(HUNG_JOIN_S if hung else JOIN_S)
        facts["background_error"] = program.background_error()
        facts["updates"] = program.background_updates()
        if facts["joined"]:
            facts["stale"] = program.compare_resident()
    except Exception as error:
        facts["error"] = str(error)
    return facts


class Builds:
    """Commits of the demo, built once each."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.logs: dict[Path, str] = {}
        create(root / "repository")

    def tree(self, ref: str) -> Path:
        """A checkout of its own."""
        tree = self.root / f"tree-{len(list(self.root.iterdir()))}"
        git = ["git", "-C", str(self.root / "repository")]
        subprocess.run([*git, "worktree", "add", "-q", "--detach", str(tree), ref], check=True)
        return tree

    def build(self, ref: str, *transforms: Callable[[dict[str, str]], dict[str, str]]) -> Path:
        """The directory of the build of that commit after these transforms."""
        names = "-".join(transform.__name__ for transform in transforms)
        out = self.root / f"build-{ref.replace('/', '-')}-{names}"
        if not out.exists():
            tree = self.tree(ref)
            csrc = tree / CSRC
            for transform in transforms:
                paths = [path for path in csrc.rglob("*") if path.is_file()]
                texts = {str(path.relative_to(csrc)): path.read_text() for path in paths}
                for path, text in transform(texts).items():
                    (csrc / path).write_text(text)
            log = self.root / f"{out.name}.log"
            compile_extension(tree, out, log=log, jobs=2)
            self.logs[out] = log.read_text()
        return out


def widened(csrc: dict[str, str]) -> dict[str, str]:
    return ffi13.widen(csrc).files


def instrumented(csrc: dict[str, str]) -> dict[str, str]:
    return stream.instrument(csrc).files


@pytest.fixture(scope="session")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Builds:
    return Builds(tmp_path_factory.mktemp("demo-builds"))


@pytest.fixture(scope="session")
def race(builds: Builds) -> Path:
    return builds.build("race")


@pytest.fixture(scope="session")
def race_ffi13(builds: Builds) -> Path:
    """The race with thirteen more stages; hold, stream and trace are read from the environment."""
    return builds.build("race", widened, instrumented)


@pytest.fixture(scope="session")
def reference(race: Path) -> dict[Program, tuple[str, ...]]:
    """Digests of stock without a background thread."""
    return {program: run_trial(race, program, background=False).digests for program in Program}


@pytest.fixture
def bare_tree(tmp_path: Path) -> Path:
    """The least that has the demo's shape: one source on each side, no extension module."""
    tree = tmp_path / "tree"
    for path in (f"{CSRC}/extensions/a.cpp", "transformer_engine/common/b/b.cu"):
        (tree / path).parent.mkdir(parents=True)
        (tree / path).write_text("// nothing\n")
    return tree


WIDE_MS = "16"
"""Four times what a kernel's load takes by itself, and so the time that captures are open for."""


def surely(background: str) -> dict[str, str]:
    """That work, beside captures that a busy host does not keep it from."""
    return {"EMULATION_BACKGROUND": background, "EMULATION_LOAD_MS": WIDE_MS}


def failures(seen: list[Seen]) -> int:
    return sum(not one.passed for one in seen)


# The race ---------------------------------------------------------------------------------------


def test_stock_fails_with_a_background_thread(race: Path) -> None:
    """One in thousands passes, where the host kept the thread from all captures. If it were one in
    a hundred, eight of sixty would pass less often than once in a million."""
    assert failures([run_trial(race) for _ in range(60)]) > 60 - 8


@pytest.mark.parametrize("period_ms", [0.3, 1.0, 3.0])
def test_a_slow_background_thread_meets_the_race_too(race: Path, period_ms: float) -> None:
    environment = {"EMULATION_LOAD_MS": WIDE_MS}
    seen = [run_trial(race, period_ms=period_ms, environment=environment) for _ in range(12)]
    assert failures(seen) == 12


def test_stock_passes_without_a_background_thread(race: Path) -> None:
    assert failures([run_trial(race, background=False) for _ in range(20)]) == 0


def test_unregistered_passes_with_a_background_thread(race: Path) -> None:
    assert failures([run_trial(race, registration="unregistered") for _ in range(40)]) == 0


def test_before_the_race_a_background_thread_does_no_harm(builds: Builds) -> None:
    before = builds.build("before")
    assert failures([run_trial(before) for _ in range(40)]) == 0


def test_the_fix_passes_with_a_background_thread(builds: Builds) -> None:
    fix = builds.build("fix")
    assert failures([run_trial(fix) for _ in range(40)]) == 0


def test_the_pull_request_passes_with_a_background_thread(builds: Builds) -> None:
    pull = builds.build("refs/pull/7/head", instrumented)
    held = [run_trial(pull, environment={"RACEWATCH_HOLD_MS": "5"}) for _ in range(10)]
    assert failures([run_trial(pull) for _ in range(20)] + held) == 0


def test_the_second_program_passes_under_stock(race: Path) -> None:
    assert failures([run_trial(race, SOFTMAX) for _ in range(40)]) == 0


def test_ffi13_brings_the_race_to_the_second_program(race_ffi13: Path) -> None:
    environment = {"EMULATION_LOAD_MS": WIDE_MS}
    seen = [run_trial(race_ffi13, SOFTMAX, environment=environment) for _ in range(20)]
    assert failures(seen) == 20


@pytest.mark.parametrize("program", Program)
@pytest.mark.parametrize("hold_ms", ["", "20"])
def test_an_owned_stream_takes_the_race_away(
    race_ffi13: Path,
    reference: dict[Program, tuple[str, ...]],
    program: Program,
    hold_ms: str,
) -> None:
    environment = {"RACEWATCH_CAPTURE_STREAM": "owned", "RACEWATCH_HOLD_MS": hold_ms}
    seen = [
        run_trial(race_ffi13, program, environment=environment) for _ in range(4 if hold_ms else 20)
    ]
    assert failures(seen) == 0
    assert {one.digests for one in seen} == {reference[program]}


def test_a_capture_that_is_held_open_longer_is_met_more_often(race_ffi13: Path) -> None:
    rare = {"EMULATION_RATE": "0.1"}
    held = {**rare, "RACEWATCH_HOLD_MS": "40"}
    briefly = failures([run_trial(race_ffi13, environment=rare) for _ in range(40)])
    longer = failures([run_trial(race_ffi13, environment=held) for _ in range(40)])
    assert longer > briefly + 8


def test_the_race_can_be_made_rare(race: Path) -> None:
    seen = [run_trial(race, environment={"EMULATION_RATE": "0.1"}) for _ in range(150)]
    # None of them at that rate: 1.4 times in ten million; more than forty: less than that.
    assert 1 <= failures(seen) <= 40


def test_a_device_may_lose_an_update_whatever_the_commit(race: Path) -> None:
    faults = [
        run_trial(race, registration="unregistered", environment={"EMULATION_FAULT": share})
        for share in ("1", "1", "1", "0", "0", "0")
    ]
    assert [one.stale for one in faults] == [1, 1, 1, 0, 0, 0]
    assert not any(one.error or one.signal for one in faults)


# Each kind of failure on demand -----------------------------------------------------------------


def test_failures_of_the_default_background_are_of_several_kinds(race: Path) -> None:
    seen = [run_trial(race, period_ms=n) for n in (0.0, 0.3, 1.0, 3.0) for _ in range(20)]
    texts = {text for text in CAPTURE_ERRORS if any(text in one.error for one in seen)}
    assert texts == set(CAPTURE_ERRORS)
    assert any(one.stale for one in seen)


def test_copies_alone_are_lost_in_silence(race: Path) -> None:
    seen = [run_trial(race, environment=surely("copy")) for _ in range(10)]
    assert all(one.stale and not one.error and not one.signal for one in seen)


def test_a_synchronization_makes_a_capture_error(race: Path) -> None:
    seen = [run_trial(race, environment=surely("synchronize")) for _ in range(10)]
    assert all(CAPTURE_ERRORS[0] in one.error for one in seen)


def test_a_capture_error_reads_as_xla_and_cuda_write_it(race: Path) -> None:
    error = run_trial(race, environment=surely("synchronize")).error
    assert error.startswith("INTERNAL: XLA FFI call failed: transformer_engine/common/")
    assert f" in function nvte_layernorm_fwd: CUDA Error: {CAPTURE_ERRORS[0]}" in error


def test_an_event_of_a_capture_that_is_gone_makes_a_crash(race: Path) -> None:
    seen = [run_trial(race, environment=surely("record")) for _ in range(10)]
    assert {one.signal for one in seen} == {11}


def test_waiting_for_captured_work_makes_a_hang(race: Path) -> None:
    seen = [run_trial(race, environment=surely("wait")) for _ in range(3)]
    assert [one.joined for one in seen] == [False] * 3


def test_a_swallowed_batch_makes_a_wrong_output(
    race: Path, reference: dict[Program, tuple[str, ...]]
) -> None:
    seen = [run_trial(race, environment=surely("feed")) for _ in range(5)]
    right = reference[NORM][0]
    for one in seen:
        assert one.digests[0] != right
        assert one.digests[1] == right


@pytest.mark.parametrize("work", ["copy", "synchronize", "record", "wait", "feed"])
def test_no_kind_of_background_does_harm_where_nothing_is_captured(
    race: Path, reference: dict[Program, tuple[str, ...]], work: str
) -> None:
    trials = 5
    seen = [
        run_trial(race, registration="unregistered", environment={"EMULATION_BACKGROUND": work})
        for _ in range(trials)
    ]
    assert failures(seen) == 0
    assert {one.digests for one in seen} == {reference[NORM]}


# The program side -------------------------------------------------------------------------------


def test_both_executions_give_the_same_bits_in_every_process(
    race: Path, reference: dict[Program, tuple[str, ...]]
) -> None:
    for program in Program:
        again = run_trial(race, program, background=False).digests
        assert again == reference[program]
        assert len(set(again)) == 1


def test_a_change_of_speed_only_changes_no_bits(
    builds: Builds, reference: dict[Program, tuple[str, ...]]
) -> None:
    subjects = subprocess.run(
        ["git", "-C", str(builds.root / "repository"), "log", "--format=%s", "before~3..race"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "[Common] Walk the right operand of the GEMM row by row" in subjects
    assert run_trial(builds.build("before~3"), background=False).digests == reference[NORM]


def test_recipes_differ_in_bits_and_say_which_ran(race: Path) -> None:
    seen = [run_trial(race, background=False, recipe=r) for r in ("auto", Recipe.FP8, Recipe.BF16)]
    assert [one.recipe for one in seen] == [Recipe.FP8, Recipe.FP8, Recipe.BF16]
    assert seen[0].digests == seen[1].digests != seen[2].digests


@pytest.mark.parametrize("recipe", [Recipe.NVFP4, Recipe.MXFP8])
def test_a_recipe_of_newer_devices_is_refused_by_compute_capability(
    race: Path, recipe: Recipe
) -> None:
    assert "compute capability 10.0 or higher required" in run_trial(race, recipe=recipe).error


@pytest.mark.parametrize(("program", "count"), [(NORM, 4), (SOFTMAX, 13)])
def test_the_expected_handlers_are_the_ones_that_are_entered(
    race_ffi13: Path, tmp_path: Path, program: Program, count: int
) -> None:
    trace = tmp_path / "trace"
    environment = {"RACEWATCH_TRACE": str(trace), "RACEWATCH_CAPTURE_STREAM": "owned"}
    run_trial(race_ffi13, program, environment=environment)
    expected = demo.expected_handlers(program, Recipe.FP8, demo.COMPUTE_CAPABILITY)
    entered = trace.read_text().split()
    assert len(entered) == len(set(entered)) == count
    assert set(entered) == {f"{name}InitializeFFI" for name in expected}


def test_the_thirteen_are_the_ones_of_the_variant() -> None:
    expected = demo.expected_handlers(SOFTMAX, Recipe.AUTO, demo.COMPUTE_CAPABILITY)
    assert sorted(expected) == sorted(ffi13.HANDLERS)


def test_the_background_thread_has_made_an_update_before_the_program_runs(race: Path) -> None:
    seen = run_trial(race, registration="unregistered", period_ms=60_000)
    assert (seen.updates, seen.passed) == (1, True)


def test_a_program_that_does_not_exist_is_an_error(race: Path) -> None:
    config = ParentConfig("demo", str(race), "registered", "0")
    program = demo.open_program(config)
    with pytest.raises(demo.EmulatedRuntimeError, match="no program is called nothing"):
        program.compile("nothing", "auto")


def test_an_unknown_background_is_refused_by_name(
    race: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMULATION_BACKGROUND", "nothing")
    program = demo.open_program(ParentConfig("demo", str(race), "registered", "0"))
    with pytest.raises(ValueError, match=r"EMULATION_BACKGROUND must be one of mix, .* 'nothing'"):
        program.start_background(0)


@pytest.mark.parametrize("name", ["EMULATION_RATE", "EMULATION_LOAD_MS", "EMULATION_FAULT"])
@pytest.mark.parametrize("text", ["-1", "nan", "inf", "often"])
def test_a_bad_number_in_the_environment_is_refused_by_name(
    race: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(ValueError, match=f"{name} must be a number >= 0, got '{text}'"):
        demo.open_program(ParentConfig("demo", str(race), "registered", "0"))


def test_a_device_that_does_not_exist_is_an_error(race: Path) -> None:
    assert "invalid device ordinal" in run_trial(race, device="1").error
    assert (
        run_trial(race, device="1", background=False, environment={"EMULATION_DEVICES": "2"}).error
        == ""
    )


def test_no_device_reads_as_cuda_says_it(race: Path) -> None:
    assert (
        "no CUDA-capable device is detected"
        in run_trial(race, environment={"EMULATION_DEVICES": "0"}).error
    )


def test_loading_a_build_starts_no_thread(race: Path) -> None:
    code = (
        "import os, sys; from runner.trial import demo;"
        "from runner.trial.program import ParentConfig;"
        "demo.prepare(ParentConfig('demo', sys.argv[1], 'registered', '0'));"
        "print(len(os.listdir('/proc/self/task')))"
    )
    done = subprocess.run(["python3", "-c", code, str(race)], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("1", "")


# The build --------------------------------------------------------------------------------------


def test_what_does_not_compile_is_a_build_error_with_its_first_line(
    builds: Builds, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with pytest.raises(BuildError) as caught:
        compile_extension(builds.tree("broken"), tmp_path / "out", log=log, jobs=2)
    assert caught.value.first_error.startswith(f"{CSRC}/extensions/quantization.cpp:")
    assert "'count_saturated' was not declared" in caught.value.first_error
    assert caught.value.log in log.read_text()
    assert list((tmp_path / "out").iterdir()) == []


def test_a_symbol_that_is_nowhere_is_a_build_error(bare_tree: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildError) as caught:
        compile_extension(bare_tree, tmp_path / "out", log=tmp_path / "log", jobs=2)
    assert "undefined reference to `emulation_import_extension'" in caught.value.first_error
    assert list((tmp_path / "out").iterdir()) == []


def test_a_build_leaves_the_library_and_a_log_of_every_command(builds: Builds, race: Path) -> None:
    commands = [line for line in builds.logs[race].splitlines() if line.startswith("+ ")]
    assert len(commands) == 4
    assert sum(f"{CSRC}/extensions/softmax.cpp" in command for command in commands) == 1
    assert [path.name for path in race.iterdir()] == [LIBRARY]


def test_a_tree_that_is_not_the_demo_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SubjectError, match="is not the demo subject"):
        compile_extension(tmp_path, tmp_path / "out", log=tmp_path / "log", jobs=1)


def test_no_compiler_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InfrastructureError, match=r"no C\+\+ compiler"):
        find_compiler()


def test_a_named_compiler_is_taken_with_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "env g++")
    assert find_compiler() == ("env", "g++")


def test_a_named_compiler_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(InfrastructureError, match="CXX=no-such-compiler is not a program"):
        find_compiler()


@pytest.mark.parametrize(
    ("trouble", "sentence"),
    [
        ("fatal error: error writing to x.s: No space left on device", "the disk is full"),
        ("g++: fatal error: Killed signal", "lack of memory"),
    ],
)
def test_a_compiler_that_the_host_stops_is_not_a_build_error(
    bare_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str, sentence: str
) -> None:
    fake = tmp_path / "g++"
    fake.write_text(f"#!/bin/sh\necho '{trouble}' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    with pytest.raises(InfrastructureError, match=sentence):
        compile_extension(bare_tree, tmp_path / "out", log=tmp_path / "log", jobs=1)


def test_a_folder_that_cannot_be_written_is_named(bare_tree: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(InfrastructureError, match=r"cannot be written to .*out"):
        compile_extension(bare_tree, tmp_path / "out", log=tmp_path / "log", jobs=1)


def test_the_names_of_the_library_agree() -> None:
    assert demo.LIBRARY == demo_build.LIBRARY
