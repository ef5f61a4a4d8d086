"""Compiles a checkout of the demo subject, with the emulation it runs on, into one library."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from runner.build_command import BuildCommands, Workspace
from runner.errors import InfrastructureError, SubjectError
from runner.sandbox.process_build import ProcessBuilds
from runner.sandbox.workshop import BuildSandbox

LIBRARY = "transformer_engine_jax.so"
"""Name of the library in a build's directory."""

EMULATION = Path(__file__).parent / "emulation"
DETECTOR = Path(__file__).parent / "detector"
"""The emulation tells what captures swallow in the same record as the detector on CUDA."""
_CSRC = "transformer_engine/jax/csrc"
_COMMON = "transformer_engine/common"
_INCLUDES = ("transformer_engine", f"{_COMMON}/include", _CSRC)
# No fused multiply-add: a program's bits must not depend on which expressions a compiler fuses.
_FLAGS = (
    *("-std=c++17", "-O1", "-fPIC", "-pthread", "-ffp-contract=off"),
    "-fmacro-prefix-map=./=",  # -include gives names in the tree that prefix
)
TIME_S = 900.0
"""A build takes seconds."""


def compile_extension(
    tree: Path,
    out_dir: Path,
    *,
    log: Path,
    jobs: int,
    sandbox: BuildSandbox | None = None,
    emulation: Path | None = None,
) -> Path:
    """Compile the checkout at `tree` into `out_dir`, with at most `jobs` compilers at a time.

    emulation: a file that holds the compiled emulation from one build to the next, which takes as
    long as all the rest; made where it is not there. Its name must tell all that enters it.
    Every command and what it printed goes to `log`. The library appears only when it is complete.
    Raises BuildError where the tree's source does not compile, InfrastructureError where it cannot
    be compiled here, SubjectError where the tree is not the demo's.
    """
    sandbox = sandbox or ProcessBuilds()
    compiler = find_compiler(sandbox)
    kept = [emulation] if emulation is not None and emulation.is_file() else []
    units = _units(tree) if kept else [_emulation_unit(), *_units(tree)]
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".objects-", dir=out_dir.absolute()) as scratch:
            reads = (tree.absolute(), EMULATION, DETECTOR, *kept)
            workspace = Workspace(
                tree.absolute(), Path(scratch), reads=reads, environment={"TMPDIR": scratch}
            )
            with BuildCommands(sandbox, workspace, log, time_s=TIME_S) as commands:
                objects = _compile(commands, compiler, units, Path(scratch), jobs)
                if emulation is not None and not kept:
                    _keep(commands.fetch(objects[0]), emulation)
                library = _link(commands, compiler, [*kept, *objects], Path(scratch))
                os.replace(library, out_dir / LIBRARY)
    except OSError as error:
        raise InfrastructureError(f"the build cannot be written to {out_dir}: {error}") from error
    return out_dir / LIBRARY


def _compile(
    commands: BuildCommands,
    compiler: tuple[str, ...],
    units: list[list[str]],
    scratch: Path,
    jobs: int,
) -> list[Path]:
    objects = [scratch / f"{n}.o" for n in range(len(units))]
    compiles: dict[str, tuple[str | Path, ...]] = {
        f"compiling {sources[-1]}": (
            *compiler, *_FLAGS, *_include_flags(), *_unit(sources), "-o", target,
        )
        for sources, target in zip(units, objects, strict=True)
    }  # fmt: skip
    commands.run_all(compiles, jobs)
    return objects


def _link(
    commands: BuildCommands, compiler: tuple[str, ...], objects: Sequence[Path], scratch: Path
) -> Path:
    library = scratch / LIBRARY
    link = ("-shared", "-pthread", "-Wl,--no-undefined", "-o", library)
    commands.run((*compiler, *link, *objects), "linking the demo subject")
    return commands.fetch(library)


def _keep(made: Path, emulation: Path) -> None:
    """Whole or not at all: another build may look at it now."""
    emulation.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".keeping-", dir=emulation.parent) as scratch:
        os.replace(shutil.copy(made, scratch), emulation)


def emulation_sources() -> list[Path]:
    """Every file of the emulation that enters a build, besides the checkout's own."""
    folders = (EMULATION / "include", EMULATION / "src")
    files = [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
    return [*files, DETECTOR / "record.h"]


def find_compiler(sandbox: BuildSandbox | None = None) -> tuple[str, ...]:
    """The C++ compiler's command: $CXX on this host, else the first of g++, c++ and clang++."""
    sandbox = sandbox or ProcessBuilds()
    named = os.environ.get("CXX", "").strip() if sandbox.on_host else ""
    candidates = [shlex.split(named)] if named else [["g++"], ["c++"], ["clang++"]]
    for command in candidates:
        if sandbox.which(command[0]):
            return tuple(command)
    if named:
        raise InfrastructureError(f"CXX={named} is not a program on PATH; set it to a C++ compiler")
    where = "on PATH; install one or set CXX" if sandbox.on_host else "in the image of builds"
    raise InfrastructureError(f"no C++ compiler: none of g++, c++, clang++ is {where}")


def _units(tree: Path) -> list[list[str]]:
    """The checkout's sources, grouped by what becomes one translation unit, the slowest first.

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
    return [[str(path.relative_to(tree)) for path in paths] for paths in (extension, common)]


def _emulation_unit() -> list[str]:
    return [str(path) for path in sorted(EMULATION.glob("src/*.cpp"))]


def _unit(sources: list[str]) -> list[str]:
    *earlier, last = sources
    included = [word for source in earlier for word in ("-include", source)]
    return ["-x", "c++", *included, "-c", last]


def _include_flags() -> list[str]:
    own = (EMULATION / "include", DETECTOR)
    return [f"-I{path}" for path in (*own, *_INCLUDES)]
