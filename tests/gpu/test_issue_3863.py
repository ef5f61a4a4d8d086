"""The issue's six rows on a real GPU, run from an unpacked bundle (RACEWATCH_BUNDLE)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu

# What the bundle's Python is on this host: JAX and the CUDA libraries are there, not here.
PYTHON = os.environ.get("RACEWATCH_BUNDLE_PYTHON", "python3")


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of the whole matrix, run once."""
    if shutil.which("nvidia-smi") is None:
        pytest.skip("no GPU here (no nvidia-smi)")
    bundle = os.environ.get("RACEWATCH_BUNDLE")
    if not bundle:
        pytest.skip("RACEWATCH_BUNDLE does not name an unpacked bundle")
    folder = tmp_path_factory.mktemp("gpu")
    out = folder / "result.json"
    command = [PYTHON, str(Path(bundle) / "run.py"), "--matrix", "issue-3863"]
    command += ["--json", str(out), "--work", str(folder / "work")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert out.is_file(), done.stderr
    read: dict[str, Any] = json.loads(out.read_text())
    return read


def row(answer: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (cell for cell in answer["cells"] if cell["name"] == name)
    assert isinstance(found, dict)
    return found


def test_it_ran_on_cuda_and_to_its_end(answer: dict[str, Any]) -> None:
    assert answer["device"]["kind"] == "cuda"
    assert answer["status"] == "complete"
    assert {trial["evidence"]["platform"] for trial in answer["trials"]} == {"cuda"}


@pytest.mark.parametrize("name", ["stock, background", "stock, background, hold 20 ms"])
def test_stock_races_in_every_trial(answer: dict[str, Any], name: str) -> None:
    cell = row(answer, name)
    assert cell["n"] == cell["trials"]
    assert cell["k"] == cell["n"]


@pytest.mark.parametrize(
    "name",
    [
        "stock, alone",
        "unregistered, background",
        "owned-stream, background",
        "owned-stream, background, hold 20 ms",
    ],
)
def test_without_one_of_its_conditions_there_is_no_race(answer: dict[str, Any], name: str) -> None:
    cell = row(answer, name)
    assert (cell["n"], cell["k"]) == (cell["trials"], 0)


def test_only_the_thirteen_bring_the_race_to_the_second_program(answer: dict[str, Any]) -> None:
    assert row(answer, "softmax stock, background")["k"] == 0
    assert row(answer, "softmax ffi13, background")["k"] > 0
    assert row(answer, "softmax ffi13+owned-stream, background, hold 20 ms")["k"] == 0


def test_the_fix_changes_no_bit(answer: dict[str, Any]) -> None:
    assert answer["parity"]["status"] == "identical"


def test_the_race_is_the_answer(answer: dict[str, Any]) -> None:
    assert answer["exit_code"] == 1
