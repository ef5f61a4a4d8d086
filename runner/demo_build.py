"""Compiles a checkout of the demo subject, with the emulation it runs on, into one library."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from runner.errors import BuildError, InfrastructureError, SubjectError

LIBRARY = "transformer_engine_jax.so"
"""Name of the library in a build's directory."""

EMULATION = Path(__file__).parent / "emulation"
_CSRC = "transformer_engine/jax/csrc"
_COMMON = "transformer_engine/common"
_INCLUDES = ("transformer_engine", f"{_COMMON}/include", _CSRC)
# No fused multiply-add: a program's bits must not depend on which expressions a compiler fuses.
_FLAGS = (
    *("-std=c++17", "-O1", "-fPIC", "-pthread", "-ffp-contract=off"),
    "-fmacro-prefix-map=./=",  # -include gives names in the tree that prefix
)
_ERROR_LINE = re.compile(r"\berror:(?! ld returned)|undefined reference|multiple definition")
_HOST_TROUBLE = re.compile(r"No space left on device|Killed signal|virtual memory exhausted")


@dataclass(frozen=True)
class _Step:
    """One run of the compiler, and what it said."""

    command: tuple[str, ...]
    status: int
    output: str


def compile_extension(tree: Path, out_dir: Path, log: TextIO, jobs: int) -> Path:
    """Compile the checkout at `tree` into `out_dir`, with at most `jobs` compilers at a time.

    Every command and what it printed goes to `log`. The library appears only when it is complete.
    Raises BuildError where the tree's source does not compile, InfrastructureError where the host
    cannot compile, SubjectError where the tree is not the demo's.
    """
    compiler = find_compiler()
    units = _units(tree)
    try:
        return _compile(compiler, units, tree, out_dir, log, jobs)
    except OSError as error:
        raise InfrastructureError(f"the build cannot be written to {out_dir}: {error}") from error


def _compile(
    compiler: tuple[str, ...],
    units: list[list[str]],
    tree: Path,
    out_dir: Path,
    log: TextIO,
    jobs: int,
) -> Path:
    out_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".objects-", dir=out_dir) as scratch:
        objects = [Path(scratch) / f"{n}.o" for n in range(len(units))]
        commands = [
            (*compiler, *_FLAGS, *_include_flags(), *_unit(sources), "-o", str(target))
            for sources, target in zip(units, objects, strict=True)
        ]
        with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
            steps = list(pool.map(lambda command: _run(command, tree), commands))
        _require_success(steps, log)
        library = Path(scratch) / LIBRARY
        link = ("-shared", "-pthread", "-Wl,--no-undefined", "-o", str(library))
        _require_success([_run((*compiler, *link, *map(str, objects)), tree)], log)
        os.replace(library, out_dir / LIBRARY)
    return out_dir / LIBRARY


def find_compiler() -> tuple[str, ...]:
    """The C++ compiler's command: $CXX, or the first of g++, c++ and clang++ on PATH."""
    named = os.environ.get("CXX", "").strip()
    candidates = [shlex.split(named)] if named else [["g++"], ["c++"], ["clang++"]]
    for command in candidates:
        if shutil.which(command[0]):
            return tuple(command)
    if named:
        raise InfrastructureError(f"CXX={named} is not a program on PATH; set it to a C++ compiler")
    raise InfrastructureError(
        "no C++ compiler: none of g++, c++, clang++ is on PATH; install one or set CXX"
    )


def _units(tree: Path) -> list[list[str]]:
    """The sources, grouped by what becomes one translation unit, the slowest first.

    Headers take most of a compiler's time here, so few units are faster than one per file.
    """
    extension = sorted(tree.glob(f"{_CSRC}/extensions/*.cpp"))
    common = sorted(tree.glob(f"{_COMMON}/**/*.cu"))
    for found, pattern in (
        (extension, f"{_CSRC}/extensions/*.cpp"),
        (common, f"{_COMMON}/**/*.cu"),
    ):
        if not found:
            raise SubjectError(f"{tree} is not the demo subject: it has no {pattern}")
    # Relative to the tree, so that messages and __FILE__ are the same wherever it lies.
    of_tree = [[str(path.relative_to(tree)) for path in paths] for paths in (extension, common)]
    return [[str(path) for path in sorted(EMULATION.glob("src/*.cpp"))], *of_tree]


def _unit(sources: list[str]) -> list[str]:
    *earlier, last = sources
    included = [word for source in earlier for word in ("-include", source)]
    return ["-x", "c++", *included, "-c", last]


def _include_flags() -> list[str]:
    return [f"-I{EMULATION / 'include'}", *(f"-I{path}" for path in _INCLUDES)]


def _run(command: tuple[str, ...], tree: Path) -> _Step:
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "LC_ALL": "C"},
        )
    except OSError as error:
        raise InfrastructureError(f"the compiler {command[0]} did not start: {error}") from error
    return _Step(command, done.returncode, done.stdout)


def _require_success(steps: list[_Step], log: TextIO) -> None:
    text = "".join(f"$ {shlex.join(step.command)}\n{step.output}" for step in steps)
    log.write(text)
    log.flush()
    failed = next((step for step in steps if step.status != 0), None)
    if failed is None:
        return
    trouble = _HOST_TROUBLE.search(failed.output)
    if trouble or failed.status < 0:
        reason = trouble.group(0) if trouble else f"signal {-failed.status}"
        raise InfrastructureError(
            f"the compiler {failed.command[0]} could not finish on this host: {reason}"
        )
    lines = failed.output.splitlines()
    first = next((line for line in lines if _ERROR_LINE.search(line)), lines[0] if lines else "")
    first = first.removeprefix("./")
    raise BuildError(f"the demo subject does not compile: {first}", log=text, first_error=first)
