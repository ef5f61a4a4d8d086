"""The detector's library against CUPTI's own headers and a stand-in for CUPTI itself.

What a real driver reports is measured on a GPU (benchmarks/detector.py); here it is played.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from runner import toolchain
from runner.detector import library, record
from runner.detector.record import Swallow
from runner.sandbox.process_build import ProcessBuilds

pytestmark = pytest.mark.te_build
HERE = Path(__file__).parent
UNJOINED, UNMATCHED, WRONG_THREAD = 904, 903, 908
BEGIN, END = "cuStreamBeginCapture_v2", "cuStreamEndCapture"
Step = tuple[str, str, int, int, int]
Play = Callable[..., Swallow]

# Loads the detector as the driver does, then has named threads call the driver, step by step.
PLAYER = """
import ctypes, json, os, sys
from concurrent.futures import ThreadPoolExecutor
from runner.detector import record
detector = ctypes.CDLL(sys.argv[1])
assert detector.InitializeInjection() == 1
threads = {}
for thread, api, stream, nodes, status in json.loads(sys.argv[2]):
    driver = ctypes.CDLL(os.environ["FAKE_CUPTI"])
    driver.fake_call.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    if thread not in threads:
        threads[thread] = ThreadPoolExecutor(1)
        threads[thread].submit(record.name_thread, thread).result()
    threads[thread].submit(driver.fake_call, api.encode(), stream, nodes, status).result()
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the toolchain's packages of CUDA's and CUPTI's headers."""
    folder = tmp_path_factory.mktemp("headers")
    library.fetch_headers(toolchain.load(), folder)
    return folder


@pytest.fixture(scope="module")
def detector(site: Path, tmp_path_factory: pytest.TempPathFactory, compiler: str) -> Path:
    made = tmp_path_factory.mktemp("detector") / library.NAME
    found = shutil.which(compiler.split()[-1])
    assert found
    library.compile_library(site, Path(found), made, ProcessBuilds())
    return made


@pytest.fixture(scope="module")
def fake(site: Path, tmp_path_factory: pytest.TempPathFactory, compiler: str) -> Path:
    """A library that stands for libcupti.so and for the driver behind it."""
    made = tmp_path_factory.mktemp("fake") / "libcupti-fake.so"
    (headers,) = site.glob("nvidia/*/include")
    command = [*compiler.split(), "-std=c++17", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    command += ["-isystem", str(headers), str(HERE / "fake_cupti.cpp"), "-o", str(made)]
    subprocess.run(command, check=True)
    return made


@pytest.fixture
def play(detector: Path, fake: Path, tmp_path: Path) -> Play:
    """What the detector records while these steps are played."""

    def played(*steps: Step, **environment: str) -> Swallow:
        path = tmp_path / "record"
        path.unlink(missing_ok=True)
        known = {record.VARIABLE: str(path), "RACEWATCH_CUPTI": str(fake), "FAKE_CUPTI": str(fake)}
        subprocess.run(
            [sys.executable, "-c", PLAYER, str(detector), json.dumps(steps)],
            env={**os.environ, **known, **environment, "PYTHONPATH": str(HERE.parents[2])},
            check=True,
        )
        return record.parse(path.read_bytes())

    return played


def test_own_and_foreign_work_are_told_apart(play: Play) -> None:
    seen = play(
        ("one", BEGIN, 1, 0, 0),
        ("one", "cuLaunchKernel", 1, 1, 0),
        ("loader", "cuMemcpyHtoDAsync_v2", 1, 1, 0),
        ("loader", "cuLaunchKernel", 1, 2, 0),
        ("one", END, 1, 0, 0),
        ("loader", "cuLaunchKernel", 1, 1, 0),
    )
    assert (seen.windows, seen.own, seen.foreign, seen.reason) == (1, 1, 3, "")
    assert [(one.api, one.thread, one.count) for one in seen.calls] == [
        ("cuLaunchKernel", "loader", 2), ("cuMemcpyHtoDAsync_v2", "loader", 1),
    ]  # fmt: skip


@pytest.mark.parametrize("begin", [BEGIN, f"{BEGIN}_ptsz"])
def test_every_way_to_begin_a_capture_opens_a_window(play: Play, begin: str) -> None:
    assert play(("one", begin, 1, 0, 0), ("two", "cuLaunchKernel", 1, 1, 0)).foreign == 1


@pytest.mark.parametrize(
    "api", ["cuGraphAddKernelNode_v2", "cuGraphInstantiateWithFlags", "cuGraphClone"]
)
def test_a_graph_that_is_built_on_purpose_is_no_foreign_work(play: Play, api: str) -> None:
    assert play(("one", BEGIN, 1, 0, 0), ("two", api, 0, 3, 0)) == Swallow(windows=1)


def test_a_launch_of_a_graph_is_work_like_any_other(play: Play) -> None:
    assert play(("one", BEGIN, 1, 0, 0), ("two", "cuGraphLaunch", 1, 1, 0)).foreign == 1


def test_calls_that_make_no_nodes_are_not_followed(play: Play, fake: Path) -> None:
    seen = play(("one", BEGIN, 1, 0, 0), ("two", "cuCtxGetCurrent", 0, 1, 0))
    assert [one.api for one in seen.calls] == ["(unknown)"]


@pytest.mark.parametrize(
    ("status", "foreign"), [(0, 0), (UNJOINED, 0), (UNMATCHED, 1), (WRONG_THREAD, 1)]
)
def test_a_capture_ends_with_most_errors_too(play: Play, status: int, foreign: int) -> None:
    seen = play(
        ("one", BEGIN, 1, 0, 0), ("one", END, 1, 0, status), ("two", "cuLaunchKernel", 1, 1, 0)
    )
    assert seen.foreign == foreign


def test_a_capture_that_fails_to_begin_opens_no_window(play: Play) -> None:
    seen = play(("one", BEGIN, 1, 0, 401), ("two", "cuLaunchKernel", 1, 1, 0))
    assert seen == Swallow()


@pytest.mark.parametrize("api", ["cuStreamSynchronize", "cuEventQuery", "cuLaunchKernel"])
@pytest.mark.parametrize(("status", "refused"), [(900, 1), (901, 1), (907, 1), (0, 0), (600, 0)])
def test_what_a_capture_refuses_is_counted(play: Play, api: str, status: int, refused: int) -> None:
    seen = play(("one", BEGIN, 1, 0, 0), ("two", api, 1, 0, status), ("one", api, 1, 0, status))
    assert (seen.foreign, seen.refused) == (0, refused)
    assert [one.api for one in seen.calls] == [f"{api} (refused)"] * refused


def test_where_a_profiler_has_cupti_it_says_so(play: Play) -> None:
    seen = play(("one", BEGIN, 1, 0, 0), FAKE_CUPTI_TAKEN="1")
    assert seen.reason == (
        "a profiler has CUPTI already: CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED (39)"
    )


def test_where_graphs_cannot_be_watched_it_says_so_and_follows_nothing(play: Play) -> None:
    seen = play(("one", BEGIN, 1, 0, 0), FAKE_CUPTI_REFUSES="1")
    assert seen == Swallow(reason="CUPTI cannot watch graphs: CUPTI_ERROR_NOT_COMPATIBLE (14)")


def test_where_there_is_no_cupti_it_says_so(play: Play, tmp_path: Path) -> None:
    for name in ("libcupti.so.13", "libcupti.so.12", "libcupti.so"):
        (tmp_path / name).write_text("no library")  # stands before one that this host may have
    seen = play(RACEWATCH_CUPTI="/nowhere/libcupti.so.13", LD_LIBRARY_PATH=str(tmp_path))
    assert seen.reason.startswith("no CUPTI here: /nowhere/libcupti.so.13: cannot open shared")


def test_a_library_that_is_no_cupti_is_named_by_what_it_lacks(play: Play, detector: Path) -> None:
    assert play(RACEWATCH_CUPTI=str(detector)).reason == "this CUPTI has no cuptiSubscribe"


def test_the_real_cupti_without_a_gpu_says_so(play: Play, site: Path) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("a GPU is here: benchmarks/detector.py shows what it sees there")
    (real,) = site.glob("nvidia/*/lib/libcupti.so.1?")
    assert play(RACEWATCH_CUPTI=str(real)).reason.startswith("CUPTI cannot be used: ")


def test_without_a_file_to_write_it_stays_out_of_the_way(
    play: Play, tmp_path: Path, detector: Path
) -> None:
    code = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).InitializeInjection())"
    environment = {name: value for name, value in os.environ.items() if name != record.VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", code, str(detector)],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("1\n", "")
    assert list(tmp_path.iterdir()) == []


def test_it_exports_what_the_driver_calls_and_needs_no_cuda_library(detector: Path) -> None:
    symbols = subprocess.run(
        ["nm", "--dynamic", detector], capture_output=True, text=True, check=True
    ).stdout
    assert " T InitializeInjection" in symbols
    assert not [line for line in symbols.splitlines() if " U cu" in line]
