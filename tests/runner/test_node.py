"""`run.py` on a node: only the standard library, one sentence for what it cannot do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from runner import node
from runner.bundle import BundledCommit, pack
from runner.detector.record import Detector
from runner.errors import InfrastructureError, InputError
from runner.matrix import parse
from runner.result import Commit, Fold, RunEnded, load
from runner.run import BuildId, PreparedBuild
from runner.variants.names import BuildKind

Run = Callable[..., "subprocess.CompletedProcess[str]"]


MINE = """
detect = true
[[cells]]
name = "alone, twice"
variant = "stock"
background = false
trials = 2
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with an empty TE in it."""
    folder = tmp_path_factory.mktemp("node")
    (folder / "site").mkdir()
    (folder / "deps").mkdir()
    stock = PreparedBuild("k", str(folder / "site"))
    commit = BundledCommit(Commit("2.20.2", "2.20.2"), {BuildId(BuildKind.STOCK): stock})
    pack(
        [commit],
        architecture="90",
        toolchain="t",
        dependencies=folder / "deps",
        detector=Detector(reason="no CUPTI for it"),
        matrices=[parse(MINE, "mine")],
        out=folder / "te.tar.xz",
    )
    shutil.unpack_archive(folder / "te.tar.xz", folder / "out", "xztar")
    return folder / "out" / "te"


GPUS = """#!/bin/sh
printf '%s\\n' '0, NVIDIA H200, 9.0, 580.159, 143771' '1, NVIDIA H200, 9.0, 580.159, 143771'
"""


@pytest.fixture
def run(unpacked: Path, tmp_path: Path) -> Run:
    """Runs run.py as a node does: Python alone, `smi` standing for its nvidia-smi."""

    def start(*arguments: str, smi: str = GPUS) -> subprocess.CompletedProcess[str]:
        tools = tmp_path / "bin"
        tools.mkdir(exist_ok=True)
        if smi:
            (tools / "nvidia-smi").write_text(smi)
            (tools / "nvidia-smi").chmod(0o755)
        return subprocess.run(
            [sys.executable, "-I", "-S", str(unpacked / "run.py"), *arguments],
            cwd=tmp_path, env={"PATH": str(tools)}, capture_output=True, text=True, check=False,
        )  # fmt: skip

    return start


def test_a_node_without_a_gpu_is_told_in_one_sentence(run: Run, alone: Path) -> None:
    done = run("--matrix", str(alone), smi="")
    assert done.returncode == 3
    assert done.stderr.startswith("racewatch: no GPU here: nvidia-smi is not installed; ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--ref", "main"], "--ref: no 'main' in this bundle; it has 2.20.2"),
        (
            ["--matrix", "issue-3863"],
            "matrix issue-3863 needs the build instrumented, which this bundle does not hold; it "
            "has stock, for --matrix mine",
        ),
        (
            ["--matrix", "nonsense"],
            "matrix 'nonsense': neither a file nor one of after-fix, issue-3863, quick, nor of "
            "this bundle's own, mine",
        ),
        (["--parallel", "0"], "--parallel: must be at least 1"),
        (["--progress-s", "0"], "--progress-s: must be more than 0"),
        (["--trials", "0"], "--trials: must be"),
        (["--devices", "0,5"], "--devices: no GPU '5' here; there are 0, 1"),
        (["--devices", "0,0"], "--devices: '0' is named more than once"),
        (["--json", "no/r.json"], "--json: no folder"),
        (["--events", "/"], "--events: / is a folder"),
    ],
)
def test_bad_input_is_one_sentence(
    run: Run, alone: Path, tmp_path: Path, arguments: list[str], said: str
) -> None:
    if "--matrix" not in arguments:
        arguments = ["--matrix", str(alone), *arguments]
    done = run(*arguments, "--work", str(tmp_path / "work"))
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "work").exists()


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    path = tmp_path / "alone.toml"
    path.write_text('[[cells]]\nname = "alone"\nvariant = "stock"\nbackground = false\n')
    return path


@pytest.mark.parametrize("named", [[], ["--matrix", "mine"]], ids=["by default", "by name"])
def test_a_bundle_brings_the_matrix_that_it_was_made_for(
    run: Run, tmp_path: Path, named: list[str]
) -> None:
    answer = tmp_path / "result.json"
    run(*named, "--json", str(answer), "--work", str(tmp_path / "work"))
    read = json.loads(answer.read_text())
    assert read["matrix"] == "mine"
    assert [(cell["name"], cell["trials"]) for cell in read["cells"]] == [("alone, twice", 2)]
    assert "no CUPTI for it" in answer.read_text(), "its matrix asks for the detector"


def test_a_bundle_for_another_gpu_names_the_right_one(run: Run, alone: Path) -> None:
    done = run("--matrix", str(alone), smi=GPUS.replace("9.0", "10.0"))
    assert done.returncode == 2
    assert "this bundle is for sm_90, the device is sm_100" in done.stderr
    assert "--arch 100" in done.stderr


def test_a_node_without_jax_could_not_run(run: Run, alone: Path, tmp_path: Path) -> None:
    answer, events = tmp_path / "result.json", tmp_path / "events.jsonl"
    files = ["--json", str(answer), "--events", str(events), "--work", str(tmp_path / "work")]
    done = run("--matrix", str(alone), *files)
    assert done.returncode == 3
    read = json.loads(answer.read_text())
    assert read["status"] == "failed"
    assert {trial["outcome"] for trial in read["trials"]} == {"infra_error"}
    assert "jax" in read["reason"]
    assert read["device"]["name"] == "NVIDIA H200"
    assert read["device"]["ids"] == ["0", "1"]
    assert read["emulated"] is False
    folded = Fold()
    for line in events.read_text().splitlines():
        folded.add(load(line))
    assert json.loads(json.dumps(folded.as_json(), default=str)) == read


def test_trials_are_watched_on_request(run: Run, alone: Path, tmp_path: Path) -> None:
    answer = tmp_path / "result.json"
    files = ["--json", str(answer), "--work", str(tmp_path / "work")]
    run("--matrix", str(alone), "--detect", *files)
    assert {t["swallow"]["reason"] for t in json.loads(answer.read_text())["trials"]} == {
        "no CUPTI for it"
    }
    run("--matrix", str(alone), *files)
    assert {t["swallow"] for t in json.loads(answer.read_text())["trials"]} == {None}


def test_a_bundles_detector_is_found_where_it_was_unpacked(tmp_path: Path) -> None:
    row = {"library": "detector/libdetector.so", "reason": ""}
    assert node.detector(row, tmp_path) == Detector(f"{tmp_path}/detector/libdetector.so")
    assert node.detector({"library": "", "reason": "no"}, tmp_path) == Detector(reason="no")


def test_run_py_without_its_bundle_says_so(run: Run, unpacked: Path, tmp_path: Path) -> None:
    half = tmp_path / "half"
    shutil.copytree(unpacked, half, symlinks=True)
    (half / "bundle.json").unlink()
    command = [sys.executable, "-I", "-S", str(half / "run.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no bundle.json beside" in done.stderr


# What a run leaves


END = RunEnded("r", "complete")


def write_until_it_fails(file: node.EventsFile) -> None:
    for _ in range(100):
        file.write(END)


def test_events_are_whole_lines_on_a_disk_that_fills_up(tmp_path: Path) -> None:
    path = tmp_path / "tiny"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(path)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a tiny file system can only be mounted by root")
    try:
        file = node.EventsFile(path / "events")
        file.write(END)
        with pytest.raises(InfrastructureError, match="No space left on device"):
            write_until_it_fails(file)
        file.write(END)
        file.close()
        assert {load(line) for line in (path / "events").read_text().splitlines()} == {END}
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_result_that_cannot_be_written_leaves_the_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unfinished(Fold):
        def as_json(self) -> dict[str, object]:
            return {"a": 1}

    path = tmp_path / "result.json"
    path.write_text("older")

    def full(self: Path, text: str) -> int:
        with self.open("w") as file:
            file.write(text[:2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(InfrastructureError, match="No space left on device"):
        node.write_json(Unfinished(), path)
    assert path.read_text() == "older"
    assert list(tmp_path.iterdir()) == [path]


def test_a_pipe_or_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    class Finished(Fold):
        def as_json(self) -> dict[str, object]:
            return {"status": "complete"}

    kept, link = tmp_path / "kept", tmp_path / "link"
    kept.write_text("older")
    link.symlink_to(kept)  # as /dev/stdout is one
    node.write_json(Finished(), link)
    assert link.is_symlink()
    assert json.loads(kept.read_text()) == {"status": "complete"}
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        node.write_json(Finished(), pipe)
        assert pipe.is_fifo()
        assert json.loads(os.read(reader, 4096)) == {"status": "complete"}
    finally:
        os.close(reader)


def test_a_file_that_only_others_may_write_is_refused_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(InputError, match="permission denied"):
        node.check_output(tmp_path / "result.json", "--json")
