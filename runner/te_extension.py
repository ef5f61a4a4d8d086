"""Builds TransformerEngine's JAX extension from an sdist or a git checkout, without setup.py."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from runner.build_command import BuildCommands, CompilerCache, Workspace
from runner.errors import InfrastructureError, SubjectError
from runner.sandbox.process_build import ProcessBuilds
from runner.sandbox.workshop import BuildSandbox
from runner.toolchain import ToolchainEnv

TIME_S = 2 * 3600.0
"""A build takes 75 s on two cores."""

# What pybind11's and TE's own setup pass to the compiler (build_tools/jax.py); NCCL expert
# parallelism (NVTE_WITH_NCCL_EP) is left out: it needs newer NCCL headers than most nodes have.
COMPILE_FLAGS = ("-std=c++17", "-O3", "-g0", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-pthread")
LINK_FLAGS = ("-shared", "-pthread")

_REQUIRED_HEADERS = {
    "Python.h": "the development package of the toolchain's Python",
    "pybind11/pybind11.h": "pybind11",
    "xla/ffi/api/ffi.h": "jaxlib",
    "cuda_runtime_api.h": "nvidia-cuda-runtime",
    "crt/host_defines.h": "nvidia-cuda-crt",
    "nv/target": "nvidia-cuda-cccl",
    "cublasLt.h": "nvidia-cublas",
    "nvrtc.h": "nvidia-cuda-nvrtc",
    "nvtx3/nvToolsExt.h": "nvidia-nvtx",
    "cudnn.h": "nvidia-cudnn",
    "cudnn_frontend.h": "nvidia-cudnn-frontend",
    "nccl.h": "nvidia-nccl",
}
_OWN_SYMBOL = re.compile(r"^nvte_|18transformer_engine")
_LAYOUTS = (("transformer_engine/jax/csrc", "transformer_engine"), ("csrc", "common_headers"))


@dataclass(frozen=True)
class ExtensionTree:
    """Where the extension's parts lie below `root`, as paths relative to it."""

    root: Path
    csrc: Path
    headers: Path

    @property
    def sources(self) -> list[Path]:
        found = (self.root / self.csrc / "extensions").rglob("*.cpp")
        return sorted(path.relative_to(self.root) for path in found)

    @property
    def include_dirs(self) -> tuple[Path, ...]:
        common = self.headers / "common"
        return (self.headers, common, common / "include", self.csrc)


def find_tree(root: Path) -> ExtensionTree:
    """Recognise a git checkout of TransformerEngine or an sdist of its JAX extension."""
    for csrc, headers in _LAYOUTS:
        tree = ExtensionTree(root.absolute(), Path(csrc), Path(headers))
        if tree.sources and (root / headers / "common").is_dir():
            return tree
    raise SubjectError(
        f"{root} is no TransformerEngine with a JAX extension: neither "
        "transformer_engine/jax/csrc/extensions nor csrc/extensions beside common_headers has "
        "C++ sources"
    )


def missing_prerequisites(env: ToolchainEnv, sandbox: BuildSandbox | None = None) -> list[str]:
    """One sentence for each header, library or tool that the extension cannot be built without."""
    sandbox = sandbox or ProcessBuilds()
    missing = [
        f"no header {header}: toolchain {env.toolchain.name} needs {provider}"
        for header, provider in _REQUIRED_HEADERS.items()
        if not env.has_header(header)
    ]
    if not env.in_image and not env.nccl_library.is_file():
        missing.append(f"no library {env.nccl_library}: the toolchain needs nvidia-nccl")
    if sandbox.which(str(env.compiler)) is None:
        missing.append(f"no compiler at {env.compiler}: install {env.toolchain.compiler}")
    return missing


def compile_extension(
    root: Path,
    env: ToolchainEnv,
    out_dir: Path,
    *,
    log: Path,
    jobs: int,
    cache: CompilerCache | None = None,
    sandbox: BuildSandbox | None = None,
) -> Path:
    """Compile every source of the tree at `root` and link them; the result's path in `out_dir`.

    The log holds every command with its output. A source that does not compile is a BuildError;
    what the host lacks is an InfrastructureError before the first object.
    """
    sandbox = sandbox or ProcessBuilds()
    tree = find_tree(root)
    missing = missing_prerequisites(env, sandbox)
    if missing:
        raise InfrastructureError("; ".join(missing))
    out_dir.mkdir(parents=True, exist_ok=True)
    launcher = sandbox.which("ccache") if cache is not None else None
    with tempfile.TemporaryDirectory(prefix=".objects-", dir=out_dir.absolute()) as scratch:
        workspace = Workspace(
            tree.root,
            Path(scratch),
            reads=(tree.root,) if env.in_image else (tree.root, env.root),
            # A compiler that is ended leaves its own temporary files, which go with this folder.
            environment={"TMPDIR": scratch},
            cache=cache,
        )
        with BuildCommands(sandbox, workspace, log, time_s=TIME_S) as commands:
            objects = {
                source: Path(scratch) / f"{index}-{source.stem}.o"
                for index, source in enumerate(tree.sources)
            }
            compiles = {
                str(source): _compile_command(tree, env, source, target, launcher)
                for source, target in objects.items()
            }
            commands.run_all(compiles, jobs)
            linked = Path(scratch) / f"transformer_engine_jax{env.interpreter.extension_suffix}"
            commands.run(
                [env.compiler, *LINK_FLAGS, *objects.values(), env.nccl_library, "-o", linked],
                "linking the extension",
            )
            extension = out_dir / linked.name
            os.replace(commands.fetch(linked), extension)
    return extension


def missing_symbols(extension: Path, core: Path) -> list[str]:
    """TE's own functions that the extension calls and the core library does not have."""
    called = _dynamic_symbols(extension, "--undefined-only")
    had = _dynamic_symbols(core, "--defined-only")
    return sorted(name for name in called - had if _OWN_SYMBOL.search(name))


def _dynamic_symbols(library: Path, which: str) -> set[str]:
    listed = subprocess.run(
        ["nm", "--dynamic", which, library], capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        raise InfrastructureError(
            f"the symbols of {library} cannot be read: {listed.stderr.strip()}"
        )
    return {line.split()[-1].partition("@")[0] for line in listed.stdout.splitlines() if line}


def _compile_command(
    tree: ExtensionTree, env: ToolchainEnv, source: Path, target: Path, launcher: Path | None
) -> list[str | Path]:
    """Paths of the tree stay relative, so that equal sources give equal objects in any folder."""
    includes = [f"-I{folder}" for folder in tree.include_dirs]
    # As system headers, what they warn about does not bury the tree's own errors.
    system = [part for folder in env.include_dirs for part in ("-isystem", str(folder))]
    prefix: list[str | Path] = [launcher] if launcher else []
    return [
        *prefix,
        env.compiler,
        *COMPILE_FLAGS,
        *includes,
        *system,
        "-c",
        source,
        "-o",
        target,
    ]
