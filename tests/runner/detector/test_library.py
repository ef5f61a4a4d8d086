"""The detector's library is made once, or it is said why it is not."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from runner import toolchain
from runner.detector import library
from runner.detector.record import Detector
from runner.errors import BuildError
from runner.sandbox.process_build import ProcessBuilds

HERE = ProcessBuilds()


class NoCompiler(ProcessBuilds):
    """A place for builds that has no compiler."""

    def which(self, program: str) -> Path | None:
        return None


def test_the_default_toolchain_names_cupti_of_its_cuda() -> None:
    chain = toolchain.load()
    assert chain.detector["nvidia-cuda-cupti"].startswith(chain.cuda)
    for package in ("nvidia-cuda-crt", "nvidia-cuda-runtime"):
        assert chain.detector[package] == chain.headers[package]


def test_a_toolchain_without_cupti_has_no_detector(tmp_path: Path) -> None:
    chain = replace(toolchain.load(), name="mine", detector={})
    said = library.prepare(chain, tmp_path, HERE)
    assert said == Detector(reason="toolchain mine names no CUPTI in a [detector] table")


def test_a_host_without_a_compiler_says_so(tmp_path: Path) -> None:
    said = library.prepare(toolchain.load(), tmp_path, NoCompiler())
    assert said.library == ""
    assert said.reason == ("it cannot be made here: no compiler: there is no g++ where builds run")


def test_headers_that_cannot_be_had_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    chain = replace(toolchain.load(), compiler=compiler.split()[-1])
    said = library.prepare(chain, tmp_path, HERE)
    assert said.reason.startswith("it cannot be made here: its headers cannot be fetched: ERROR: ")
    (folder,) = (tmp_path / "detectors").iterdir()
    assert [path.name for path in folder.iterdir()] == [f"{library.NAME}.lock"]


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "detectors").write_text("a file")
    said = library.prepare(toolchain.load(), tmp_path, HERE)
    assert said.reason.startswith(f"it cannot be made in {tmp_path}/detectors/")


def test_one_that_is_there_needs_no_compiler(tmp_path: Path) -> None:
    chain = toolchain.load()
    made = tmp_path / "detectors" / library._key(chain) / library.NAME
    made.parent.mkdir(parents=True)
    made.touch()
    assert library.prepare(chain, tmp_path, NoCompiler()) == Detector(library=str(made))


def test_other_headers_are_another_library() -> None:
    chain = toolchain.load()
    other = replace(chain, detector={**chain.detector, "nvidia-cuda-cupti": "13.1"})
    assert library._key(chain) != library._key(other)


def test_what_does_not_compile_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, compiler: str
) -> None:
    found = Path(shutil.which(compiler.split()[-1]) or "")
    site = tmp_path / "no-headers"
    site.mkdir()
    (tmp_path / "made").mkdir()
    with pytest.raises(BuildError, match=r"compiling the detector: .*cupti\.h: No such file"):
        library.compile_library(site, found, tmp_path / "made" / library.NAME, HERE)
    assert list((tmp_path / "made").iterdir()) == []
