"""The folder a TE build is imported from: whole, and in front of any other TE."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runner import te_site
from runner.errors import SubjectError


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A TE package with what a site takes and what it leaves out."""
    root = tmp_path / "source" / "transformer_engine"
    for name in ("__init__.py", "jax/__init__.py", "pytorch/__init__.py", "jax/csrc/pybind.cpp"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def test_a_site_holds_the_python_code_of_the_jax_side_only(package: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    te_site.write_python(package, "2.20.2", out)
    found = {p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file()}
    code = {name for name in found if name.startswith("transformer_engine/")}
    assert code == {"transformer_engine/__init__.py", "transformer_engine/jax/__init__.py"}


def test_links_that_go_round_in_circles_stay_links(package: Path, tmp_path: Path) -> None:
    (package / "jax" / "round").symlink_to("..")
    out = tmp_path / "out"
    out.mkdir()
    te_site.write_python(package, "2.20.2", out)
    assert os.readlink(out / "transformer_engine" / "jax" / "round") == ".."


@pytest.mark.parametrize("version", ["", "../../evil", "2.20\nName: evil", "2 20"])
def test_what_is_no_version_is_refused(package: Path, tmp_path: Path, version: str) -> None:
    out = tmp_path / "out"
    with pytest.raises(SubjectError, match=r"version .* is none"):
        te_site.write_python(package, version, out)
    assert not out.exists()


def test_another_te_in_the_interpreter_does_not_get_into_the_way(
    package: Path, tmp_path: Path
) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder, version in ((ours, "2.20.2"), (theirs, "2.19.0")):
        folder.mkdir()
        te_site.write_python(package, version, folder)
    code = (
        "import sys; from importlib.metadata import distribution, version\n"
        f"sys.path[:0] = [{str(ours)!r}, {str(theirs)!r}]\n"
        f"print(*(version(name) for name in {te_site.PACKAGES!r}))\n"
        "print([f.name for f in distribution('transformer_engine').files])"
    )
    said = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    versions, files = said.stdout.splitlines()
    assert versions.split() == ["2.20.2"] * 3, said.stderr
    assert "WHEEL" in files


def test_a_site_is_links_to_the_build_and_its_core(package: Path, tmp_path: Path) -> None:
    build = tmp_path / "build"
    build.mkdir()
    te_site.write_python(package, "2.20.2", build)
    (build / "transformer_engine_jax.cpython-312-x86_64-linux-gnu.so").touch()
    (build / "build.log").touch()
    core = tmp_path / "core" / te_site.CORE_LIBRARY
    core.parent.mkdir()
    core.write_text("core")
    site = te_site.assemble(build, core, tmp_path / "sites" / "one")
    assert all(entry.is_symlink() for entry in site.iterdir())
    assert (site / te_site.CORE_LIBRARY).read_text() == "core"
    assert not (site / "build.log").exists()
    assert te_site.assemble(build, core, site) == site


def test_a_site_that_cannot_be_made_leaves_nothing(package: Path, tmp_path: Path) -> None:
    core = tmp_path / te_site.CORE_LIBRARY
    with pytest.raises(OSError, match="no-such-build"):
        te_site.assemble(tmp_path / "no-such-build", core, tmp_path / "sites" / "one")
    assert list((tmp_path / "sites").iterdir()) == []
