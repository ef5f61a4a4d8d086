"""The te subject's own checks; its parts (sources, extension, core) have tests of their own."""

import stat
import subprocess
from pathlib import Path

import pytest

from runner.errors import InfrastructureError, SubjectError
from runner.outcome import Outcome
from runner.result import Commit
from runner.run import BuildId
from runner.subject import Folders, Options, Request
from runner.te_subject import TeSubject
from runner.variants.names import BuildKind


@pytest.fixture
def subject(tmp_path: Path) -> TeSubject:
    """A te subject with folders of its own and nothing fetched."""
    return TeSubject(Options(Folders(tmp_path, str(tmp_path / "store")), architecture="90"))


def _interpreter(folder: Path, *lines: str) -> str:
    """A stand-in for an interpreter, which answers what it is asked with these lines."""
    path = folder / "python"
    path.write_text("#!/bin/sh\n" + "".join(f"echo {line}\n" for line in lines))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (("3.9", "0.11.2"), "is Python 3.9"),
        (("3.12",), "has no jaxlib"),
        (("3.12", "0.10.0"), "has jaxlib 0.10.0"),
    ],
)
def test_an_interpreter_that_does_not_fit_the_toolchain_is_refused(
    subject: TeSubject,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    said: tuple[str, ...],
    sentence: str,
) -> None:
    monkeypatch.setenv("RACEWATCH_PYTHON", _interpreter(tmp_path, *said))
    with pytest.raises(InfrastructureError, match=sentence) as refused:
        subject.trial_python()
    assert "trials need Python 3.12 with JAX 0.11.2 or newer" in str(refused.value)
    assert "RACEWATCH_PYTHON" in str(refused.value)


@pytest.mark.parametrize("jaxlib", ["0.11.2", "0.12.0.1"])
def test_an_interpreter_that_fits_runs_the_trials(
    subject: TeSubject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jaxlib: str
) -> None:
    python = _interpreter(tmp_path, "3.12", jaxlib)
    monkeypatch.setenv("RACEWATCH_PYTHON", python)
    assert subject.trial_python() == python


def test_an_interpreter_that_is_not_there_is_refused(
    subject: TeSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RACEWATCH_PYTHON", "/no/such/python")
    with pytest.raises(InfrastructureError, match="/no/such/python does not run"):
        subject.trial_python()


def test_a_release_has_no_history_to_merge_a_pull_request_onto(subject: TeSubject) -> None:
    build = subject.build(Commit("2.20.2", "2.20.2"), BuildId(BuildKind.STOCK, (2800,)))
    assert build.outcome is Outcome.UNSUPPORTED
    assert "name a commit with --ref" in build.reason


def test_a_repository_of_something_else_is_no_te(tmp_path: Path) -> None:
    other = tmp_path / "other"
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main", other], check=True)
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.invalid"]
    commit = ["commit", "--quiet", "--allow-empty", "--message=nothing"]
    subprocess.run(["git", "-C", other, *identity, *commit], check=True)
    folders = Folders(tmp_path / "cache", str(tmp_path / "store"))
    subject = TeSubject(Options(folders, repository=str(other), architecture="90"))
    with pytest.raises(SubjectError, match="at main is no TransformerEngine"):
        subject.resolve(Request(ref="main"))


def test_trials_get_the_packages_that_te_imports(subject: TeSubject) -> None:
    (folder,) = subject.trial_packages()
    found = {path.name for path in Path(folder).iterdir()}
    assert {"flax", "pydantic", "pydantic_core", "importlib_metadata"} <= found
    assert not found & {"jax", "jaxlib", "numpy"}
