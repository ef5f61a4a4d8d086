"""How a trial of TE has the CUDA driver load the detector; its program needs a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runner.detector import record
from runner.detector.record import Swallow
from runner.trial import te
from runner.trial.program import ParentConfig


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the trial's record is to be; whatever a test sets in the environment is undone."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    os.environ.pop(te.INJECTION, None)
    os.environ[record.VARIABLE] = str(tmp_path / "record")
    return tmp_path / "record"


@pytest.fixture
def library(tmp_path: Path, compiler: str) -> str:
    made = tmp_path / "detector.so"
    command = [*compiler.split(), "-shared", "-fPIC", "-x", "c", "-", "-o", str(made)]
    subprocess.run(
        command, input="int InitializeInjection(void) { return 1; }", text=True, check=True
    )
    return str(made)


def opened(detector: str) -> None:
    te.open_program(ParentConfig("te", "/build", "registered", "0", detector=detector))


def test_the_driver_is_told_to_load_the_detector(path: Path, library: str) -> None:
    opened(library)
    assert os.environ[te.INJECTION] == library
    assert not path.exists()


def test_a_profiler_that_was_there_first_stays_and_the_record_says_so(
    path: Path, library: str
) -> None:
    os.environ[te.INJECTION] = "/opt/profiler/libinject.so"
    opened(library)
    assert os.environ[te.INJECTION] == "/opt/profiler/libinject.so"
    assert record.parse(path.read_bytes()) == Swallow(
        reason="a profiler is here already: CUDA_INJECTION64_PATH is /opt/profiler/libinject.so"
    )


def test_a_detector_that_cannot_be_loaded_is_not_left_to_the_driver(path: Path) -> None:
    opened("/no/detector.so")
    assert te.INJECTION not in os.environ
    reason = record.parse(path.read_bytes()).reason
    assert reason.startswith("the detector cannot be loaded: /no/detector.so: cannot open")


def test_a_trial_that_is_not_watched_has_nothing_loaded(path: Path, library: str) -> None:
    del os.environ[record.VARIABLE]
    opened(library)
    os.environ[record.VARIABLE] = str(path)
    opened("")
    assert te.INJECTION not in os.environ
    assert not path.exists()


def test_cupti_is_looked_for_in_packages_and_then_in_a_toolkit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages, toolkit = tmp_path / "site[1]", tmp_path / "cuda"
    found = [
        packages / "nvidia" / "cu13" / "lib" / "libcupti.so.13",
        packages / "nvidia" / "cuda_cupti" / "lib" / "libcupti.so.12",
        toolkit / "extras" / "CUPTI" / "lib64" / "libcupti.so",
    ]
    for path in found:
        path.parent.mkdir(parents=True)
        path.touch()
    monkeypatch.setattr(sys, "path", [str(packages)])
    monkeypatch.setenv("CUDA_HOME", str(toolkit))
    monkeypatch.delenv("CUDA_PATH", raising=False)
    libraries = te._cupti_libraries()
    assert set(libraries[:2]) == {str(path) for path in found[:2]}
    assert libraries[2] == str(found[2])
