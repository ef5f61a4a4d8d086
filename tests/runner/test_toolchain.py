"""Toolchains: files that are checked, hosts that are checked, packages that are installed once."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner import toolchain
from runner.errors import InfrastructureError, ToolchainError

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


def document(**changes: Any) -> dict[str, Any]:
    return {
        "name": "tiny",
        "python": HERE,
        "compiler": "g++",
        "compiler-versions": ">=1",
        "cuda": "13.0",
        "headers": {"tinyheaders": "1.0"},
        "core": {"tinycore": "2.0"},
        **changes,
    }


def tiny(**changes: Any) -> toolchain.Toolchain:
    return toolchain.parse(document(**changes), "tiny.toml")


def write_wheel(folder: Path, package: str, version: str, files: dict[str, str]) -> None:
    info = f"{package}-{version}.dist-info"
    contents = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(folder / f"{package}-{version}-py3-none-any.whl", "w") as wheel:
        for name, text in contents.items():
            wheel.writestr(name, text)
        record = "".join(f"{name},,\n" for name in [*contents, f"{info}/RECORD"])
        wheel.writestr(f"{info}/RECORD", record)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that pip takes packages from, in place of any index."""
    folder = tmp_path_factory.mktemp("wheels")
    write_wheel(folder, "tinyheaders", "1.0", {"nvidia/cu13/include/cuda.h": "// 13.0\n"})
    write_wheel(folder, "tinyheaders", "1.1", {"nvidia/cu13/include/cuda.h": "// 13.1\n"})
    write_wheel(folder, "tinycore", "2.0", {"nvidia/cu13/lib/libcudart.so.13": "library"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(folder))
        patch.setenv("PIP_CONFIG_FILE", "/dev/null")
        yield folder


@pytest.fixture(scope="module")
def cache(index: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder in which the tiny toolchain is prepared."""
    folder = tmp_path_factory.mktemp("cache")
    toolchain.prepare(tiny(), folder)
    return folder


@pytest.fixture
def bare_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it, and no pyenv."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "no-pyenv"))
    return folder


def write_program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def interpreter_facts(include: Path, headers: bool = False) -> str:
    facts = {"version": "3.99", "include": str(include), "suffix": ".so", "headers": headers}
    return json.dumps(facts)


def test_the_default_toolchain_is_the_one_of_the_measured_node() -> None:
    default = toolchain.load()

    assert default.name == "cu13-jax011"
    assert default.python == "3.12"
    assert default.cuda_major == 13
    assert default.headers["jaxlib"] == "0.11.2"
    assert default.headers["nvidia-cudnn-cu13"] == "9.19.0.56"
    assert default.headers["nvidia-nccl-cu13"] == "2.28.9"


@pytest.mark.parametrize("name", toolchain.available())
def test_every_toolchain_that_comes_with_racewatch_is_valid(name: str) -> None:
    assert toolchain.load(name).name == name


def test_an_unknown_toolchain_names_the_known_ones() -> None:
    with pytest.raises(ToolchainError, match=r"'cu99' is unknown: choose one of cu13-jax011"):
        toolchain.load("cu99")


def test_a_toolchain_can_be_a_file_of_the_users_own(tmp_path: Path) -> None:
    text = (toolchain.FOLDER / "cu13-jax011.toml").read_text().replace("cu13-jax011", "mine")
    (tmp_path / "mine.toml").write_text(text)

    assert toolchain.load(str(tmp_path / "mine.toml")).name == "mine"


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=r"gone\.toml: the file cannot be read"):
        toolchain.load(str(tmp_path / "gone.toml"))


@pytest.mark.parametrize(
    ("text", "said"),
    [("name = \n", ".*line 1"), (f"name = {'9' * 5000}", ""), (f"name = {'[' * 5000}", "")],
    ids=["no value", "digits", "brackets"],
)
def test_a_file_that_is_no_toml_says_so(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "bad.toml").write_text(text)

    with pytest.raises(ToolchainError, match=rf"bad\.toml: not valid TOML: {said}"):
        toolchain.load(str(tmp_path / "bad.toml"))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"python": "3"}, r"tiny\.toml: python: must be .* got '3'"),
        ({"python": 3.12}, r"python: must be a string .* got 3\.12"),
        ({"cuda": "thirteen"}, r"cuda: must be .* got 'thirteen'"),
        ({"compiler-versions": "about 12"}, r"compiler-versions: not a version range: 'about 12'"),
        ({"headers": ["jaxlib"]}, r"headers: must be a table .* got \['jaxlib'\]"),
        ({"headers": {"jaxlib": ">=0.11"}}, r"headers\.jaxlib: .* exact version, got '>=0\.11'"),
        ({"core": {"cmake": 4}}, r"core\.cmake: .* exact version, got 4"),
        ({"cudnn": "9.19"}, r"cudnn: unknown key; known are compiler, .*"),
    ],
)
def test_each_bad_value_names_the_file_the_key_and_the_value(
    change: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ToolchainError, match=sentence):
        tiny(**change)


@pytest.mark.parametrize("key", sorted(document()))
def test_each_missing_key_is_named(key: str) -> None:
    without = {name: value for name, value in document().items() if name != key}

    with pytest.raises(ToolchainError, match=f"{key}: this key is missing"):
        toolchain.parse(without, "tiny.toml")


def test_a_host_that_has_everything_has_no_problems(tmp_path: Path) -> None:
    assert toolchain.problems(tiny(), tmp_path) == []


def test_a_host_without_a_compiler_has_that_problem(bare_path: Path, tmp_path: Path) -> None:
    (problem,) = toolchain.problems(tiny(), tmp_path)

    assert problem == "no compiler: g++ is not on PATH, install it (package g++)"


def test_a_compiler_of_another_version_is_a_problem(bare_path: Path, tmp_path: Path) -> None:
    write_program(bare_path / "g++", "echo 4.8.5")

    (problem,) = toolchain.problems(tiny(**{"compiler-versions": ">=9"}), tmp_path)

    assert problem.endswith("is version 4.8.5, the toolchain needs >=9")


def test_a_compiler_that_does_not_tell_its_version_is_a_problem(
    bare_path: Path, tmp_path: Path
) -> None:
    write_program(bare_path / "g++", "exit 1")

    (problem,) = toolchain.problems(tiny(), tmp_path)

    assert "does not tell its version" in problem


def test_a_host_without_the_python_has_that_problem(tmp_path: Path) -> None:
    (problem,) = toolchain.problems(tiny(python="3.99"), tmp_path)

    assert problem.startswith("no Python 3.99: install it so that python3.99 is on PATH")


def test_a_python_shim_that_does_not_run_is_passed_over(bare_path: Path, tmp_path: Path) -> None:
    write_program(bare_path / "python3.99", "echo 'version 3.99 is not installed' >&2; exit 127")

    assert toolchain.find_interpreter("3.99") is None


def test_a_python_without_headers_is_a_problem(bare_path: Path, tmp_path: Path) -> None:
    write_program(bare_path / "python3.99", f"echo '{interpreter_facts(tmp_path / 'include')}'")
    write_program(bare_path / "g++", "echo 12.2.0")

    (problem,) = toolchain.problems(tiny(python="3.99"), tmp_path)

    assert f"has no headers ({tmp_path}/include/Python.h)" in problem


def test_an_interpreter_with_headers_is_preferred(bare_path: Path, tmp_path: Path) -> None:
    pyenv = tmp_path / "no-pyenv" / "versions" / "3.99.1" / "bin"
    pyenv.mkdir(parents=True)
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "Python.h").write_text("")
    for place, include in ((bare_path, "nowhere"), (pyenv, "include")):
        facts = interpreter_facts(tmp_path / include, headers=include == "include")
        write_program(place / "python3.99", f"echo '{facts}'")

    found = toolchain.find_interpreter("3.99")

    assert found is not None
    assert found.executable == pyenv / "python3.99"


def test_a_full_disk_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "_HEADERS_DISK", 2**60)

    (problem,) = toolchain.problems(tiny(), tmp_path / "not" / "yet" / "there")

    assert "GiB are free; free some, or choose another cache folder" in problem


def test_all_problems_are_one_sentence_when_preparing(bare_path: Path, tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError) as caught:
        toolchain.prepare(tiny(python="3.99"), tmp_path)

    assert "no compiler" in str(caught.value)
    assert "no Python 3.99" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_preparing_installs_the_pinned_headers(cache: Path) -> None:
    env = toolchain.prepare(tiny(), cache)

    assert (env.cuda_home / "include" / "cuda.h").read_text() == "// 13.0\n"
    assert env.interpreter.version == HERE
    assert env.compiler_version


def test_preparing_again_installs_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "/nonexistent")

    env = toolchain.prepare(tiny(), cache)

    assert (env.cuda_home / "include" / "cuda.h").is_file()


def test_a_toolchain_with_other_versions_has_a_folder_of_its_own(cache: Path) -> None:
    new = toolchain.prepare(tiny(headers={"tinyheaders": "1.1"}), cache)
    old = toolchain.prepare(tiny(), cache)

    assert (old.cuda_home / "include" / "cuda.h").read_text() == "// 13.0\n"
    assert (new.cuda_home / "include" / "cuda.h").read_text() == "// 13.1\n"


def test_an_interrupted_preparation_starts_over(cache: Path) -> None:
    interrupted = toolchain.prepare(tiny(), cache)
    (interrupted.root / ".racewatch-headers").unlink()
    (interrupted.cuda_home / "include" / "cuda.h").unlink()

    again = toolchain.prepare(tiny(), cache)

    assert (again.cuda_home / "include" / "cuda.h").is_file()


def test_a_package_that_cannot_be_installed_is_one_sentence(index: Path, tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match=r"\[headers\] table cannot be installed: ERROR"):
        toolchain.prepare(tiny(headers={"tinyheaders": "9.9"}), tmp_path / "cache")


def test_the_cores_packages_come_beside_and_look_like_a_toolkit(cache: Path) -> None:
    env = toolchain.prepare(tiny(), cache)

    toolchain.prepare_core(env)

    assert (env.cuda_home / "lib64" / "libcudart.so").read_text() == "library"
    assert (env.cuda_home / "include" / "cuda.h").is_file()


def test_preparing_the_core_twice_changes_nothing(cache: Path) -> None:
    env = toolchain.prepare(tiny(), cache)
    toolchain.prepare_core(env)
    before = sorted(str(path) for path in env.cuda_home.rglob("*"))

    toolchain.prepare_core(env)

    assert sorted(str(path) for path in env.cuda_home.rglob("*")) == before


def test_only_the_cores_identity_knows_the_cores_packages() -> None:
    assert "tinycore" in tiny().core_identity()
    assert "tinycore" not in tiny().extension_identity()
    assert tiny().extension_identity()["tinyheaders"] == "1.0"


def test_the_detector_is_part_of_no_builds_identity() -> None:
    watched = tiny(detector={"tinycupti": "1.0"})
    assert watched.extension_identity() == tiny().extension_identity()
    assert watched.core_identity() == tiny().core_identity()


def test_a_toolchain_may_have_no_detector() -> None:
    assert tiny().detector == {}
