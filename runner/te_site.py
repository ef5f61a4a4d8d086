"""The folder a TE build is imported from: Python code, extension and core side by side."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

CORE_LIBRARY = "libtransformer_engine.so"
_SUFFIXES = (".py", ".json", ".txt", ".so")


def only_python(folder: str, names: list[str]) -> set[str]:
    """For `shutil.copytree`: leave out what importing TE's JAX side does not read."""
    left_out = {"__pycache__", "pytorch", "wheel_lib", "csrc", "include"}
    here = Path(folder)
    return {
        name
        for name in names
        if name in left_out
        or ((here / name).is_file() and not name.endswith(_SUFFIXES) and "dist-info" not in folder)
    }


def write_python(package: Path, version: str, out: Path) -> None:
    """Copy TE's Python package into `out`, with the metadata that its import asks for.

    TE takes its version from the metadata of `transformer-engine`, and demands matching packages
    from the index only where those metadata call the installation a pure-Python wheel.
    """
    shutil.copytree(package, out / "transformer_engine", ignore=only_python)
    info = out / f"transformer_engine-{version}.dist-info"
    info.mkdir()
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: transformer_engine\nVersion: {version}\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: racewatch\nRoot-Is-Purelib: false\n",
    }
    files["RECORD"] = "".join(f"{info.name}/{name},,\n" for name in (*files, "RECORD"))
    for name, text in files.items():
        (info / name).write_text(text)


def assemble(build: Path, core: Path, site: Path) -> Path:
    """The site of a build on a core library: a folder of links, made whole or not at all.

    TE looks for both libraries beside its package first, as for an editable installation.
    """
    if site.is_dir():
        return site
    site.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".site-", dir=site.parent))
    for entry in build.iterdir():
        if entry.suffix == ".so" or entry.name.startswith("transformer_engine"):
            (scratch / entry.name).symlink_to(entry)
    (scratch / CORE_LIBRARY).symlink_to(core)
    scratch.chmod(0o755)
    try:
        os.rename(scratch, site)
    except OSError:
        shutil.rmtree(scratch)
        if not site.is_dir():
            raise
    return site
