"""Packages for a node: exactly those pinned, made once, by the real pip on wheels made here."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from runner import node_packages as module
from runner.errors import InfrastructureError, InputError
from runner.node_packages import node_packages


def wheel(folder: Path, name: str, requires: str = "", python: str = "") -> str:
    """Write a wheel; its SHA-256."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    metadata += f"Requires-Dist: {requires}\n" if requires else ""
    metadata += f"Requires-Python: {python}\n" if python else ""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/__init__.py", "")
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all the index there is."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setattr(module, "PINS", tmp_path)
    return folder


def pin(tmp_path: Path, text: str) -> None:
    (tmp_path / "node-python3.12.txt").write_text(text)


def test_what_is_pinned_is_there_and_nothing_that_it_asks_for(wheels: Path, tmp_path: Path) -> None:
    digest = wheel(wheels, "alpha", requires="beta", python=">=3.12")
    pin(tmp_path, f"alpha==1.0 --hash=sha256:{digest}\n")
    folder = node_packages("3.12", tmp_path / "cache")
    assert (folder / "alpha" / "__init__.py").is_file()
    assert {path.name for path in folder.iterdir()} == {"alpha", "alpha-1.0.dist-info"}


def test_it_is_fetched_once(wheels: Path, tmp_path: Path) -> None:
    digest = wheel(wheels, "alpha")
    pin(tmp_path, f"alpha==1.0 --hash=sha256:{digest}\n")
    first = node_packages("3.12", tmp_path / "cache")
    next(wheels.iterdir()).unlink()
    assert node_packages("3.12", tmp_path / "cache") == first


def test_a_file_with_other_bytes_is_refused_and_leaves_nothing(
    wheels: Path, tmp_path: Path
) -> None:
    wheel(wheels, "alpha")
    pin(tmp_path, f"alpha==1.0 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(InfrastructureError, match="packages for the node cannot be fetched") as e:
        node_packages("3.12", tmp_path / "cache")
    assert "\n" not in str(e.value)
    left = [p for p in (tmp_path / "cache" / "node-packages").iterdir() if p.suffix != ".lock"]
    assert left == []


def test_a_python_without_pins_names_those_with(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Python 3\.9; there are: 3\.12"):
        node_packages("3.9", tmp_path)
