"""Packs harness, built variants and TE for one architecture into a file for an offline node."""

from __future__ import annotations

import glob
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from runner import te_site
from runner.detector.record import Detector
from runner.errors import InfrastructureError, InputError
from runner.matrix import Matrix, as_data
from runner.result import Commit
from runner.run import HARNESS, Base, BuildId, PreparedBuild

ROOT = Path(__file__).parent
SCHEMA = 2
SUFFIX = ".tar.xz"
HARNESS_FILES = (
    "__init__.py",
    "errors.py",
    "outcome*.py",
    "matrix.py",
    "rates.py",
    "result.py",
    "report.py",
    "controls.py",
    "run.py",
    "device.py",
    "detector/__init__.py",
    "detector/record.py",
    "matrices/*.toml",
    "node.py",
    "statistics/*.py",
    *(
        f"bisect/{name}.py"
        for name in (
            "__init__",
            "bisection",
            "decision",
            "events",
            "local",
            "packed",
            "policy",
            "posterior",
            "prior",
            "probe",
            "range",
            "report",
            "settings",
            "verdict",
            "verification",
        )
    ),
    "sandbox/__init__.py",
    "sandbox/base.py",
    "sandbox/process.py",
    "trial/*.py",
    "variants/names.py",
)
"""What of `runner` a node needs, carried verbatim; all of it imports the standard library only."""
EPOCH = 0
"""Time of every member, so that the same content gives the same file."""


@dataclass(frozen=True)
class BundledCommit:
    """A commit with its builds, their folders as `runner.te_site` lays them out."""

    commit: Commit
    builds: Mapping[BuildId, PreparedBuild]
    base: Base | None = None


@dataclass(frozen=True)
class Bundle:
    """What was written: the file's parts, and the size in bytes of all of them together."""

    parts: tuple[Path, ...]
    size: int


def pack(
    commits: Sequence[BundledCommit],
    *,
    architecture: str,
    toolchain: str,
    dependencies: Path,
    detector: Detector,
    out: Path,
    part_mib: int | None = None,
    bisection: Mapping[str, Any] | None = None,
    control: Base | None = None,
    matrices: Sequence[Matrix] = (),
) -> Bundle:
    """Write the bundle `out` (a .tar.xz), or `out.part00`, ... of at most `part_mib` MiB each.

    dependencies: a folder of Python packages that TE imports, used where the node has none.
    detector: what watches trials there, or why there is none. bisection: what `run.py --bisect`
    bisects, as `runner.bisect.packed` writes it; the commits are then those of its range.
    control: what the control cells run there, if any. matrices: what the builds are for; there
    `run.py` knows them by name, and runs the first where none is named.
    Raises InfrastructureError where it cannot be written; nothing half-written is left.
    """
    check_target(out, part_mib)
    name = out.name.removesuffix(SUFFIX)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=out.parent) as scratch:
            tree = Path(scratch) / name
            manifest = {
                "schema": SCHEMA,
                "harness": HARNESS,
                "architecture": architecture,
                "toolchain": toolchain,
                "detector": asdict(_carried(tree, detector)),
                "commits": [_commit_row(tree, commit) for commit in commits],
                "control": _base_row(tree, control),
                "matrices": [as_data(one) for one in matrices],
                "bisection": bisection,
            }
            _lay_out(tree, manifest, dependencies)
            packed = Path(scratch) / out.name
            with tarfile.open(packed, "w:xz", preset=6) as archive:
                for path in _sorted(tree):
                    archive.add(path, path.relative_to(scratch), recursive=False, filter=_plain)
            return _place(packed, out, part_mib)
    except OSError as error:
        raise InfrastructureError(f"bundle {out}: cannot be written: {error.strerror}") from error


def check_target(out: Path, part_mib: int | None) -> None:
    """Raises InputError where a bundle cannot be written to that file, or in such parts."""
    if part_mib is not None and part_mib < 1:
        raise InputError(f"--part-mib: must be at least 1, got {part_mib}")
    if not out.name.endswith(SUFFIX) or out.name == SUFFIX:
        raise InputError(f"-o: a bundle's name ends in {SUFFIX}, got {out.name!r}")
    if not out.absolute().parent.is_dir():
        raise InputError(f"-o: no folder {out.absolute().parent} to write {out.name} to")
    if out.is_dir():
        raise InputError(f"-o: {out} is a folder, name a file in it")


def _lay_out(tree: Path, manifest: Mapping[str, Any], dependencies: Path) -> None:
    for pattern in HARNESS_FILES:
        found = sorted(ROOT.glob(pattern))
        if not found:
            raise InfrastructureError(f"bundle: this installation lacks runner/{pattern}")
        for source in found:
            _copy(source, tree / "runner" / source.relative_to(ROOT))
    # On the node only names are parsed, nothing is transformed.
    (tree / "runner" / "variants" / "__init__.py").touch()
    _copy(ROOT / "node.py", tree / "run.py")
    shutil.copytree(dependencies, tree / "deps", ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "bundle.json").write_text(json.dumps(manifest, indent=1, default=dict) + "\n")


def _commit_row(tree: Path, bundled: BundledCommit) -> dict[str, Any]:
    """A commit as the manifest has it, its builds copied."""
    builds = [
        {"kind": build_id.kind, "pulls": build_id.pulls, "build": _row(tree, build)}
        for build_id, build in bundled.builds.items()
    ]
    base = _base_row(tree, bundled.base)
    return {"commit": asdict(bundled.commit), "builds": builds, "base": base}


def _base_row(tree: Path, base: Base | None) -> dict[str, Any] | None:
    if base is None:
        return None
    return {"commit": asdict(base.commit), "build": _row(tree, base.build)}


def _carried(tree: Path, detector: Detector) -> Detector:
    """The detector as the manifest has it, its library copied."""
    if not detector.library:
        return detector
    library = Path("detector") / Path(detector.library).name
    _copy(Path(detector.library), tree / library)
    return replace(detector, library=str(library))


def _row(tree: Path, build: PreparedBuild) -> dict[str, Any]:
    """A build in the manifest: nothing of when and how fast this host made it."""
    folder = _carry(tree, build) if build.folder else ""
    return asdict(replace(build, folder=folder, seconds=0.0, cached=True))


def _carry(tree: Path, build: PreparedBuild) -> str:
    """Copy a build's site once; a core library that sites share is copied once for all of them."""
    relative = Path("builds") / build.key
    target = tree / relative
    if target.exists():
        return str(relative)
    target.mkdir(parents=True)
    for entry in sorted(Path(build.folder).iterdir()):
        content = entry.resolve()
        if entry.name == te_site.CORE_LIBRARY:
            carried = tree / "cores" / content.parent.name / entry.name
            if not carried.exists():
                _copy(content, carried)
            (target / entry.name).symlink_to(os.path.relpath(carried, target))
        elif content.is_dir():
            shutil.copytree(content, target / entry.name, ignore=te_site.only_python)
        else:
            shutil.copy(content, target / entry.name)
    return str(relative)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _sorted(tree: Path) -> Iterator[Path]:
    yield tree
    yield from sorted(tree.rglob("*"))


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = EPOCH
    member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    return member


def _place(packed: Path, out: Path, part_mib: int | None) -> Bundle:
    size = packed.stat().st_size
    if part_mib is None:
        packed.replace(out)
        _remove_parts(out, from_number=0)
        return Bundle((out,), size)
    parts: list[Path] = []
    with packed.open("rb") as whole:
        while data := whole.read(part_mib << 20):
            part = packed.with_name(f"{out.name}.part{len(parts):02d}")
            part.write_bytes(data)
            parts.append(part)
    placed = []
    for part in parts:
        placed.append(out.with_name(part.name))
        part.replace(placed[-1])
    _remove_parts(out, from_number=len(placed))
    return Bundle(tuple(placed), size)


def _remove_parts(out: Path, from_number: int) -> None:
    """Remove parts of an earlier bundle of that name, which would spoil `cat out.part*`."""
    for old in out.parent.glob(f"{glob.escape(out.name)}.part*"):
        number = old.name.removeprefix(f"{out.name}.part")
        if number.isdigit() and int(number) >= from_number:
            old.unlink()
