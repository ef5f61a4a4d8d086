"""Bundles of a made-up build: the same bytes each time, whole, and usable with Python alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from runner import bundle
from runner.bundle import BundledCommit, pack
from runner.detector.record import Detector
from runner.errors import InfrastructureError, InputError
from runner.outcome import Outcome
from runner.result import Commit
from runner.run import Base, BuildId, PreparedBuild
from runner.variants.names import BuildKind

STOCK, INSTRUMENTED = BuildId(BuildKind.STOCK), BuildId(BuildKind.INSTRUMENTED)
CORE = "libtransformer_engine.so"


def site(folder: Path, key: str, core: Path) -> PreparedBuild:
    """A build as te_site lays one out: links to a built package, an extension and a core."""
    built = folder / "built" / key
    package = built / "transformer_engine"
    (package / "jax").mkdir(parents=True)
    (package / "__init__.py").write_text(f"KEY = {key!r}\n")
    (package / "jax" / "__init__.py").write_text("")
    (package / "README.md").write_text("not imported")
    (built / "transformer_engine_jax.so").write_text(f"extension {key}")
    sites = folder / "sites" / key
    sites.mkdir(parents=True)
    for entry in built.iterdir():
        (sites / entry.name).symlink_to(entry)
    (sites / CORE).symlink_to(core)
    return PreparedBuild(key, str(sites), initialize=("NormForward",), seconds=7.5)


@pytest.fixture
def content(tmp_path: Path) -> dict[str, object]:
    """Two commits, one core, and one build that is none."""
    core = tmp_path / "cores" / "release-2.20.2-sm90" / CORE
    core.parent.mkdir(parents=True)
    core.write_bytes(b"core" * 1000)
    dependencies = tmp_path / "dependencies"
    (dependencies / "pydantic" / "__pycache__").mkdir(parents=True)
    (dependencies / "pydantic" / "__init__.py").write_text("")
    (dependencies / "pydantic" / "__pycache__" / "x.pyc").write_text("")
    none = PreparedBuild("n", outcome=Outcome.UNSUPPORTED, signature="s", reason="no captures")
    stock = site(tmp_path, "a1", core)
    commits = [
        BundledCommit(Commit("2.20.2", "2.20.2", "release"), {STOCK: stock, INSTRUMENTED: none}),
        BundledCommit(
            Commit("b" * 40, "main"),
            {STOCK: site(tmp_path, "b2", core), INSTRUMENTED: site(tmp_path, "c3", core)},
            Base(Commit("a" * 40, "a" * 40), stock),
        ),
    ]
    return {
        "commits": commits,
        "architecture": "90",
        "toolchain": "cu13-jax011",
        "dependencies": dependencies,
        "detector": Detector(reason="no CUPTI for it"),
    }


@pytest.fixture
def packed(content: dict[str, object], tmp_path: Path) -> Path:
    out = tmp_path / "te.tar.xz"
    pack(**content, out=out)  # type: ignore[arg-type]
    return out


@pytest.fixture
def unpacked(packed: Path, tmp_path: Path) -> Path:
    shutil.unpack_archive(packed, tmp_path / "node", "xztar")
    return tmp_path / "node" / "te"


def test_the_same_content_is_the_same_file(
    content: dict[str, object], packed: Path, tmp_path: Path
) -> None:
    commits = content["commits"]
    assert isinstance(commits, list)
    slower = {key: replace(b, seconds=99.0, cached=True) for key, b in commits[0].builds.items()}
    content["commits"] = [replace(commits[0], builds=slower), commits[1]]
    (tmp_path / "later").mkdir()
    again = tmp_path / "later" / packed.name
    pack(**content, out=again)  # type: ignore[arg-type]
    assert again.read_bytes() == packed.read_bytes()


def test_it_holds_everything_below_one_folder_of_its_name(unpacked: Path) -> None:
    assert {path.name for path in unpacked.iterdir()} == {
        "builds", "bundle.json", "cores", "deps", "run.py", "runner",
    }  # fmt: skip
    assert {path.name for path in (unpacked / "builds").iterdir()} == {"a1", "b2", "c3"}


def test_members_belong_to_nobody_and_have_no_time(packed: Path) -> None:
    with tarfile.open(packed) as archive:
        members = archive.getmembers()
    assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in members} == {(0, 0, "", "", 0)}


def test_a_core_is_carried_once_for_all_builds(unpacked: Path) -> None:
    (core,) = (unpacked / "cores").rglob(CORE)
    for key in ("a1", "b2", "c3"):
        link = unpacked / "builds" / key / CORE
        assert link.is_symlink()
        assert not link.readlink().is_absolute()
        assert link.resolve() == core.resolve()
        assert link.read_bytes() == b"core" * 1000


def test_of_a_package_only_what_is_imported_is_carried(unpacked: Path) -> None:
    names = {path.name for path in unpacked.rglob("*")}
    assert "transformer_engine_jax.so" in names
    assert not names & {"README.md", "__pycache__", "x.pyc"}


def test_the_manifest_names_commits_builds_and_base(unpacked: Path) -> None:
    manifest = json.loads((unpacked / "bundle.json").read_text())
    release, main = manifest["commits"]
    assert (manifest["architecture"], manifest["toolchain"]) == ("90", "cu13-jax011")
    assert [row["build"]["folder"] for row in release["builds"]] == ["builds/a1", ""]
    assert release["builds"][1]["build"]["reason"] == "no captures"
    assert release["base"] is None
    assert main["base"]["commit"]["sha"] == "a" * 40
    assert main["base"]["build"]["folder"] == "builds/a1"


def test_parts_joined_are_the_whole(
    content: dict[str, object], packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = content["commits"]
    assert isinstance(commits, list)
    core = Path(commits[0].builds[STOCK].folder) / CORE
    core.resolve().write_bytes(os.urandom(5 << 19))
    (tmp_path / "split").mkdir()
    out = tmp_path / "split" / "te.tar.xz"
    written = pack(**content, out=out, part_mib=1)  # type: ignore[arg-type]
    whole = pack(**content, out=packed)  # type: ignore[arg-type]
    assert [part.name for part in written.parts] == [f"te.tar.xz.part{n:02d}" for n in range(3)]
    assert all(part.stat().st_size <= 1 << 20 for part in written.parts)
    assert b"".join(part.read_bytes() for part in written.parts) == packed.read_bytes()
    assert written.size == whole.size == packed.stat().st_size
    assert {path.name for path in out.parent.iterdir()} == {p.name for p in written.parts}


def test_parts_of_an_older_larger_bundle_do_not_stay(
    content: dict[str, object], tmp_path: Path
) -> None:
    out = tmp_path / "te.tar.xz"
    for number in (0, 1, 7):
        out.with_name(f"{out.name}.part{number:02d}").write_text("old")
    (part,) = pack(**content, out=out, part_mib=1).parts  # type: ignore[arg-type]
    assert list(tmp_path.glob("te.tar.xz.part*")) == [part]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_what_cannot_be_finished_leaves_nothing(
    content: dict[str, object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(bundle, "_place", fail)
    (tmp_path / "out").mkdir()
    expected = InfrastructureError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(expected):
        pack(**content, out=tmp_path / "out" / "te.tar.xz")  # type: ignore[arg-type]
    assert list((tmp_path / "out").iterdir()) == []


def test_a_full_disk_is_one_sentence_and_leaves_nothing(
    content: dict[str, object], tmp_path: Path
) -> None:
    tiny = tmp_path / "tiny"
    tiny.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tiny)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a tiny file system can only be mounted by root")
    try:
        with pytest.raises(InfrastructureError, match="No space left on device"):
            pack(**content, out=tiny / "te.tar.xz")  # type: ignore[arg-type]
        assert list(tiny.iterdir()) == []
    finally:
        subprocess.run(["umount", "-l", str(tiny)], check=True)


@pytest.mark.parametrize(
    ("name", "part_mib", "said"),
    [
        ("no/te.tar.xz", None, "no folder"),
        ("te.zip", None, r"ends in \.tar\.xz"),
        ("te.tar.xz", 0, "at least 1"),
    ],
)
def test_a_target_that_cannot_be_is_refused(
    content: dict[str, object], tmp_path: Path, name: str, part_mib: int | None, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        pack(**content, out=tmp_path / name, part_mib=part_mib)  # type: ignore[arg-type]


def test_an_unpacked_bundle_needs_only_the_standard_library(unpacked: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(unpacked / "run.py"), "--help"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "--matrix" in done.stdout


def test_the_detector_is_carried_by_its_name_in_the_bundle(
    content: dict[str, object], tmp_path: Path
) -> None:
    library = tmp_path / "made" / "libdetector.so"
    library.parent.mkdir()
    library.write_text("detector")
    out = tmp_path / "watched.tar.xz"
    pack(**{**content, "detector": Detector(str(library))}, out=out)  # type: ignore[arg-type]
    shutil.unpack_archive(out, tmp_path / "node", "xztar")
    manifest = json.loads((tmp_path / "node" / "watched" / "bundle.json").read_text())
    assert manifest["detector"] == {"library": "detector/libdetector.so", "reason": ""}
    assert (tmp_path / "node/watched/detector/libdetector.so").read_text() == "detector"


def test_a_bundle_without_a_detector_says_why(unpacked: Path) -> None:
    manifest = json.loads((unpacked / "bundle.json").read_text())
    assert manifest["detector"] == {"library": "", "reason": "no CUPTI for it"}
