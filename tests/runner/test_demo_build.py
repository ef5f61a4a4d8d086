"""The demo's emulation is compiled once on a host, and the builds are as if it never was kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from runner import demo_build
from runner.demo_subject import CSRC, INPUTS, DemoSubject
from runner.errors import BuildError
from runner.subject import Folders, Options, Request

Compile = Callable[..., str]


@pytest.fixture
def tree(home: Path, tmp_path: Path) -> Path:
    subject = DemoSubject(Options(Folders(home, str(home / "store"))))
    commit = subject.resolve(Request("race"))
    subject._repository.export(commit.sha, tmp_path / "tree", INPUTS)
    return tmp_path / "tree"


@pytest.fixture
def compile_it(
    tree: Path, tmp_path: Path, compiler: str, monkeypatch: pytest.MonkeyPatch
) -> Compile:
    """Compiles the tree into a folder; the log."""
    monkeypatch.setenv("CXX", compiler)

    def compile_into(name: str, emulation: Path | None = None) -> str:
        log = tmp_path / f"{name}.log"
        demo_build.compile_extension(tree, tmp_path / name, log=log, jobs=2, emulation=emulation)
        return log.read_text()

    return compile_into


def test_the_second_build_takes_the_emulation_that_the_first_has_made(
    compile_it: Compile, tmp_path: Path
) -> None:
    kept = tmp_path / "cache" / "emulation.o"
    assert "emulation/src/program.cpp" in compile_it("first", kept)
    assert list(kept.parent.iterdir()) == [kept]
    assert "emulation/src/program.cpp" not in compile_it("second", kept)
    compile_it("alone")
    made = {
        (tmp_path / name / demo_build.LIBRARY).read_bytes() for name in ("first", "second", "alone")
    }
    assert len(made) == 1


def test_a_build_that_fails_keeps_nothing(compile_it: Compile, tree: Path, tmp_path: Path) -> None:
    (tree / CSRC / "extensions" / "broken.cpp").write_text("int broken(")
    kept = tmp_path / "cache" / "emulation.o"
    with pytest.raises(BuildError):
        compile_it("broken", kept)
    assert not kept.exists()
