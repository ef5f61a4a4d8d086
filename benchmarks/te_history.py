"""Makes a git history of the real TransformerEngine 2.20.2 in which one commit brings the race.

    python benchmarks/te_history.py FOLDER
    racewatch bisect --subject te --repo FOLDER --good first --bad main --cell 'stock, background'

The source is the release's own, from the package index; nothing of it is in this repository. Its
first commit registers no initialize stage (so nothing is captured), the ninth registers them as the
release does, and the others change comments, documentation and Python code, or break the build for
two commits. Dates are fixed, so the hashes are the same everywhere.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from runner import te_source
from runner.settings import Settings

VERSION = "2.20.2"
CUDA = "13"
CSRC = "transformer_engine/jax/csrc/extensions"
CULPRIT = "[JAX] Register the initialize stages"
_INITIALIZE = re.compile(r'pybind11::arg\("initialize"\) = EncapsulateFFI\(\w+\),\s*')
_START = 1_790_000_000
Edit = Callable[[Path], None]


def make(folder: Path) -> None:
    """Write the repository into the new folder."""
    cache = Settings.load().home
    sdist = te_source.fetch_sdist(VERSION, cache)
    wheel = te_source.fetch_core_wheel(VERSION, CUDA, cache)
    folder.mkdir(parents=True)
    _git(folder, "init", "--quiet", "--template=", "--initial-branch=main")
    registered = _lay_out(folder, sdist, wheel)
    for number, (title, edit) in enumerate(_commits(registered)):
        edit(folder)
        _commit(folder, number, title)
        if number == 0:
            _git(folder, "tag", f"v{VERSION}")  # whose core the release's wheel holds
            _git(folder, "tag", "first")
        if title == CULPRIT:
            _git(folder, "tag", "culprit")


def _lay_out(folder: Path, sdist: Path, wheel: Path) -> str:
    """The release as its git tree has it; the registrations as they were released."""
    package = folder / "transformer_engine"
    skip = shutil.ignore_patterns(
        "__pycache__", "pytorch", "wheel_lib", "*.so", "CuTeDSL", "triton"
    )
    shutil.copytree(wheel / "transformer_engine", package, ignore=skip)
    shutil.copytree(sdist / "common_headers" / "common", package / "common", dirs_exist_ok=True)
    shutil.copytree(sdist / "csrc", package / "jax" / "csrc")
    (package / "common" / "CMakeLists.txt").write_text(
        "# the core comes from the release's wheel\n"
    )
    (folder / "build_tools").mkdir()
    (folder / "build_tools" / "VERSION.txt").write_text(VERSION + "\n")
    registrations = folder / CSRC / "pybind.cpp"
    text = registrations.read_text()
    without, count = _INITIALIZE.subn("", text)
    if count < 5:
        sys.exit(f"{registrations}: {count} initialize stages, at least 5 were expected")
    registrations.write_text(without)
    return text


def _commits(registered: str) -> list[tuple[str, Edit]]:
    """Titles and edits, oldest first."""
    return [
        ("TransformerEngine 2.20.2, no initialize stage registered", lambda tree: None),
        ("[Docs] Say what this history is", _append("docs/history.md", "A history to bisect.\n")),
        ("[JAX] Comment on softmax", _append(f"{CSRC}/softmax.cpp", "// Softmax ends here.\n")),
        ("[JAX] Comment on GEMM", _append(f"{CSRC}/gemm.cpp", "// GEMM ends here.\n")),
        ("[JAX] Count what the router drops", _append(f"{CSRC}/router.cpp", "int dropped = ;\n")),
        ("[Docs] Link the issue", _append("docs/history.md", "See issue 3863.\n")),
        ("[JAX] Count it right", _replace(f"{CSRC}/router.cpp", "int dropped = ;", "// None.")),
        ("[JAX] Comment on the package", _append("transformer_engine/jax/__init__.py", "# End.\n")),
        (CULPRIT, _write(f"{CSRC}/pybind.cpp", registered)),
        ("[JAX] Comment on norms", _append(f"{CSRC}/normalization.cpp", "// Norms end here.\n")),
        ("[Docs] Spell it right", _append("docs/history.md", "Read on.\n")),
        ("[JAX] Comment on quantizers", _append(f"{CSRC}/quantization.cpp", "// They end here.\n")),
        ("[JAX] Comment on activations", _append(f"{CSRC}/activation.cpp", "// So do they.\n")),
    ]


def _append(path: str, text: str) -> Edit:
    def edit(tree: Path) -> None:
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        with (tree / path).open("a") as file:
            file.write(text)

    return edit


def _replace(path: str, old: str, new: str) -> Edit:
    def edit(tree: Path) -> None:
        (tree / path).write_text((tree / path).read_text().replace(old, new))

    return edit


def _write(path: str, text: str) -> Edit:
    def edit(tree: Path) -> None:
        (tree / path).write_text(text)

    return edit


def _commit(folder: Path, number: int, title: str) -> None:
    date = f"{_START + 7200 * number} +0000"
    _git(folder, "add", "--all")
    _git(folder, "commit", "--quiet", "--allow-empty", "-m", title, date=date)


def _git(folder: Path, *arguments: str, date: str = "") -> None:
    who = {"NAME": "History", "EMAIL": "history@example.invalid", "DATE": date}
    environment = {
        **os.environ,
        **{f"GIT_{role}_{k}": v for role in ("AUTHOR", "COMMITTER") for k, v in who.items() if v},
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
    }
    subprocess.run(["git", *arguments], cwd=folder, env=environment, check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    make(parser.parse_args().folder)
