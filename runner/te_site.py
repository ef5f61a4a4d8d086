"""The folder a TE build is imported from: Python code, extension and core side by side."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

from runner.errors import SubjectError

CORE_LIBRARY = "libtransformer_engine.so"
PACKAGES = ("transformer_engine", "transformer_engine_cu13", "transformer_engine_jax")
LAYOUT = "3"
"""Version of what `write_python` writes; part of a build's key."""
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

    TE compares the versions of its three packages where the extension's is installed, and demands
    then that they come from wheels. Ours stand before whatever the interpreter has installed, so
    that another TE in it (the `gpu` extra, say) does not get into the way.

    Raises SubjectError where the version, which is the commit's own word, is none.
    """
    if not re.fullmatch(r"[A-Za-z0-9.+!_-]+", version):
        raise SubjectError(f"the commit's version {version!r} is none")
    # Links stay links: the commit's own may go round in circles.
    shutil.copytree(package, out / "transformer_engine", symlinks=True, ignore=only_python)
    for name in PACKAGES:
        info = out / f"{name}-{version}.dist-info"
        info.mkdir()
        files = {
            "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            "WHEEL": "Wheel-Version: 1.0\nGenerator: racewatch\nRoot-Is-Purelib: true\n",
        }
        files["RECORD"] = "".join(f"{info.name}/{file},,\n" for file in (*files, "RECORD"))
        for file, text in files.items():
            (info / file).write_text(text)


def assemble(build: Path, core: Path, site: Path) -> Path:
    """The site of a build on a core library: a folder of links, made whole or not at all.

    TE looks for both libraries beside its package first, as for an editable installation.
    """
    if site.is_dir():
        return site
    site.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".site-", dir=site.parent))
    try:
        for entry in build.iterdir():
            if entry.suffix == ".so" or entry.name.startswith("transformer_engine"):
                (scratch / entry.name).symlink_to(entry)
        (scratch / CORE_LIBRARY).symlink_to(core)
        scratch.chmod(0o755)
        os.rename(scratch, site)
    except OSError:
        shutil.rmtree(scratch)
        if not site.is_dir():  # else another process made the same one meanwhile
            raise
    return site
