"""The detector's library for CUDA: compiled against a toolchain's headers, once per content."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from filelock import FileLock

from runner.build_command import BuildCommands, Workspace
from runner.detector.record import Detector
from runner.errors import BuildError, InfrastructureError
from runner.sandbox.workshop import BuildSandbox
from runner.toolchain import Toolchain

NAME = "libracewatch-detector.so"
SOURCES = Path(__file__).parent
FLAGS = ("-std=c++17", "-O2", "-Wall", "-Wextra", "-fPIC", "-fvisibility=hidden", "-pthread")
TIME_S = 300.0
"""It takes seconds."""


def prepare(chain: Toolchain, cache: Path, sandbox: BuildSandbox) -> Detector:
    """The detector of a toolchain, from the cache folder or the sandbox's compiler.

    Where it cannot be made, or the toolchain names no CUPTI, that is no error: trials then run
    without it, and say why.
    """
    if not chain.detector:
        return Detector(reason=f"toolchain {chain.name} names no CUPTI in a [detector] table")
    library = cache.absolute() / "detectors" / _key(chain) / NAME
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{library}.lock"):
            if not library.is_file():
                _make(chain, library, sandbox)
    except (InfrastructureError, BuildError) as error:
        return Detector(reason=f"it cannot be made here: {error}")
    except OSError as error:
        return Detector(reason=f"it cannot be made in {library.parent}: {error.strerror}")
    return Detector(library=os.fspath(library))


def _key(chain: Toolchain) -> str:
    """Of everything that enters it; any compiler of the toolchain makes the same of that."""
    identity = [dict(chain.detector), FLAGS, platform.machine()]
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode())
    for path in _sources():
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _sources() -> list[Path]:
    return sorted(path for path in SOURCES.iterdir() if path.suffix in {".cpp", ".h"})


def _make(chain: Toolchain, library: Path, sandbox: BuildSandbox) -> None:
    compiler = sandbox.which(chain.compiler)
    if compiler is None:
        raise InfrastructureError(f"no compiler: there is no {chain.compiler} where builds run")
    with tempfile.TemporaryDirectory(prefix=".headers-", dir=library.parent) as scratch:
        site = Path(scratch) / "site"
        fetch_headers(chain, site)
        compile_library(site, compiler, library, sandbox)


def fetch_headers(chain: Toolchain, site: Path) -> None:
    """Install the toolchain's [detector] packages into a folder. Raises InfrastructureError."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    command += ["--only-binary=:all:", f"--target={site}"]
    command += [f"{package}=={version}" for package, version in chain.detector.items()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        said = errors[-1] if errors else done.stderr.strip()[-200:]
        raise InfrastructureError(f"its headers cannot be fetched: {said}")


def compile_library(site: Path, compiler: Path, library: Path, sandbox: BuildSandbox) -> None:
    """Compile it against the headers that `site` has, whole or not at all.

    Raises BuildError where it does not compile, InfrastructureError where that cannot be tried.
    """
    headers = [
        part for folder in sorted(site.glob("nvidia/*/include")) for part in ("-isystem", folder)
    ]
    with tempfile.TemporaryDirectory(prefix=".detector-", dir=library.parent) as folder:
        out = Path(folder) / "out"
        out.mkdir()
        linked = out / NAME
        command = [compiler, *FLAGS, "-shared", *headers, "cupti.cpp", "-ldl", "-o", linked]
        workspace = Workspace(SOURCES, out, (SOURCES, site.absolute()), {"TMPDIR": str(out)})
        log = Path(folder) / "log"
        with BuildCommands(sandbox, workspace, log, time_s=TIME_S) as commands:
            commands.run(command, "compiling the detector")
            os.replace(commands.fetch(linked), library)
