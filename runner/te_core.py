"""TransformerEngine's core library for a commit: a release's where it is the same, else built."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock
from packaging.version import Version

from runner import te_source
from runner.build_command import BuildCommands, CompilerCache, Workspace
from runner.device import available_memory
from runner.errors import BuildError, InfrastructureError, RefError, SubjectError
from runner.git import Repository, Submodule, open_commit
from runner.sandbox.process_build import ProcessBuilds
from runner.sandbox.workshop import BuildSandbox
from runner.store import Store, build_key
from runner.te_site import CORE_LIBRARY as LIBRARY
from runner.toolchain import Toolchain, ToolchainEnv, prepare_core

SOURCES = "transformer_engine/common"

_CMAKE_FILE = f"{SOURCES}/CMakeLists.txt"
# What a core for JAX reads of the submodules; tests need googletest, and NCCL's sources only serve
# expert parallelism, which is built in nowhere here (see te_extension).
_SUBMODULE_PARTS = {"cutlass": ("include", "tools/util"), "cudnn-frontend": ("include", "cmake")}
_SUBMODULES_UNUSED = re.compile(r"googletest|nccl.*")
# Never a folder: a repository on this host may be of the commit's own making, and git runs what a
# repository's configuration names.
_ADDRESS = re.compile(r"(?:https?|ssh|git)://[^\s/-].*|[\w.-]+@[\w.-]+:[^\s/].*", re.ASCII)
_RELEASE_TAG = re.compile(r"v(\d+\.\d+)(\.\d+)?")
_JOB_MEMORY = 3 * 2**30
_BUILD_DISK = 3 * 2**30
_HEADERS = {
    "nvml.h": "nvidia-nvml-dev",
    "cuda_profiler_api.h": "nvidia-cuda-profiler-api",
    "curand_kernel.h": "nvidia-curand",
    "cusolverDn.h": "nvidia-cusolver",
    "cusparse.h": "nvidia-cusparse",
    "cublasLt.h": "nvidia-cublas",
    "nvrtc.h": "nvidia-cuda-nvrtc",
    "nvtx3/nvToolsExt.h": "nvidia-nvtx",
    "cuda_runtime_api.h": "nvidia-cuda-runtime",
    "crt/host_defines.h": "nvidia-cuda-crt",
    "cudnn.h": "nvidia-cudnn",
    "cudnn_frontend.h": "nvidia-cudnn-frontend",
    "nccl.h": "nvidia-nccl",
}


@dataclass(frozen=True)
class Core:
    """A core library. `release` is the version it was released with, empty if built here."""

    key: str
    library: Path
    release: str = ""


def core_in(wheel: Path, version: str, cuda_major: int) -> Core:
    """The core in an unpacked wheel, keyed alike for the release and its commits."""
    return Core(f"release-{Version(version)}-cu{cuda_major}", library_in(wheel), version)


@dataclass(frozen=True)
class Cores:
    """Cores for commits of one repository, from the cache, the store, a release or a build.

    A build's folder stays until the build is done or has failed, so that an interrupted one is
    resumed, except in a container, which keeps nothing.
    """

    repository: Repository
    toolchain: Toolchain
    cache: Path
    store: Store
    jobs: int
    compiler_cache: CompilerCache | None = None
    sandbox: BuildSandbox = field(default_factory=ProcessBuilds)

    def released(self, sha: str) -> Core | None:
        """The core of a release with the same sources, None where there is no such release."""
        version = release_with_core_of(self.repository, sha)
        if version is None:
            return None
        try:
            wheel = te_source.fetch_core_wheel(version, self.toolchain.cuda_major, self.cache)
        except RefError:
            return None  # the tag was not published for this CUDA: its core is built
        return core_in(wheel, version, self.toolchain.cuda_major)

    def build(self, sha: str, env: ToolchainEnv, architecture: str) -> Core:
        """The core built from the commit's sources for one GPU architecture.

        Raises BuildError where the sources do not compile, InfrastructureError where this host
        cannot build them, before the first object where that can be known.
        """
        key = build_key(core_parts(self.repository, sha, env, architecture))
        folder = self.cache.absolute() / "cores" / key
        library = folder / LIBRARY
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not library.is_file() and self.store.get(key, folder) is None:
                self._build(sha, env, architecture, key, folder)
        return Core(key, library)

    def _build(
        self, sha: str, env: ToolchainEnv, architecture: str, key: str, folder: Path
    ) -> None:
        work = self.cache.absolute() / "core-builds" / key
        tree = work / "tree"
        if not tree.is_dir():
            write_tree(self.repository, sha, tree, self.cache)
        prepare_core(env, self.sandbox)
        log = work / "build.log"
        hopeless = False
        try:
            library = compile_core(
                tree, env, work / "build",
                architecture=architecture, log=log, jobs=self.jobs, cache=self.compiler_cache,
                sandbox=self.sandbox,
            )  # fmt: skip
        except BuildError:
            hopeless = True
            raise
        finally:
            if log.is_file():
                self.store.put_log(key, log.read_text(encoding="utf-8", errors="replace"))
            if hopeless:
                shutil.rmtree(work)
        result = work / "result"
        result.mkdir(exist_ok=True)
        os.replace(library, result / LIBRARY)
        self.store.put(key, result, {"part": "core", "commit": sha, "architecture": architecture})
        os.replace(result, folder)
        shutil.rmtree(work)


def core_sources(repository: Repository, sha: str) -> dict[str, str]:
    """Object hash of everything of a commit that enters its core library.

    TE's Python code lies between the core's sources and enters nothing that is compiled.
    """
    blobs = repository.blobs(sha, SOURCES)
    if _CMAKE_FILE not in blobs:
        raise SubjectError(
            f"commit {sha[:12]} of {repository.source} is no TransformerEngine: it has no "
            f"{_CMAKE_FILE}"
        )
    sources = {path: blob for path, blob in blobs.items() if not path.endswith(".py")}
    return sources | {each.path: each.sha for each in needed_submodules(repository, sha)}


def needed_submodules(repository: Repository, sha: str) -> list[Submodule]:
    """The submodules that the core's CMake file reads."""
    text = repository.text(sha, _CMAKE_FILE) or ""
    names = set(re.findall(r"3rdparty/([A-Za-z0-9_-]+)", text))
    return [
        each
        for each in repository.submodules(sha)
        if (name := each.path.rpartition("/")[2]) in names and not _SUBMODULES_UNUSED.match(name)
    ]


def release_with_core_of(repository: Repository, sha: str) -> str | None:
    """Version of a tagged release whose core has the same sources as the commit's."""
    wanted = core_sources(repository, sha)
    quick = repository.tree_hashes(sha, [_CMAKE_FILE])
    for tag in repository.tags():
        version = _RELEASE_TAG.fullmatch(tag)
        if version is None:
            continue
        ref = f"refs/tags/{tag}^{{commit}}"
        # Most tags differ in the one file already; only the rest are compared whole.
        same_file = repository.tree_hashes(ref, [_CMAKE_FILE]) == quick
        if same_file and core_sources(repository, ref) == wanted:
            return version[1] + (version[2] or ".0")
    return None


def core_parts(
    repository: Repository, sha: str, env: ToolchainEnv, architecture: str
) -> dict[str, str]:
    """Everything that enters a core built from source: the parts of its key."""
    return {
        "part": "core",
        "architecture": architecture,
        "compiler version": env.compiler_version,
        **env.toolchain.core_identity(),
        **core_sources(repository, sha),
    }


def write_tree(repository: Repository, sha: str, tree: Path, cache: Path) -> None:
    """Export a commit's core sources with the submodules that they need; whole or not at all."""
    scratch = tree.with_name(f"{tree.name}.partial")
    shutil.rmtree(scratch, ignore_errors=True)
    # Nothing that does not enter the key: a folder beside the core's is on its include path.
    repository.export(sha, scratch, [SOURCES])
    for path in scratch.rglob("*.py"):
        path.unlink()
    for each in needed_submodules(repository, sha):
        if not _ADDRESS.fullmatch(each.url):
            raise SubjectError(
                f"submodule {each.path}: {each.url!r} is no address of a server, such as https://..."
            )
        source = open_commit(each.url, each.sha, cache)
        parts = _SUBMODULE_PARTS.get(each.path.rpartition("/")[2], ())
        source.export(each.sha, scratch / each.path, parts)
    os.replace(scratch, tree)


def library_in(folder: Path) -> Path:
    """The core library in an unpacked wheel."""
    found = sorted(folder.glob(f"transformer_engine/**/{LIBRARY}"))
    if not found:
        raise InfrastructureError(f"{folder.name} has no {LIBRARY}: it is no core wheel")
    return found[0]


def missing_prerequisites(
    tree: Path, env: ToolchainEnv, architecture: str, sandbox: BuildSandbox | None = None
) -> list[str]:
    """One sentence for each thing that the core cannot be built without; empty when ready."""
    # What is installed on this host is looked at on this host, whatever it is used in.
    where = sandbox if sandbox is not None and env.in_image else ProcessBuilds()
    found = [
        *_missing_submodules(tree),
        *_missing_tools(env, where),
        *_missing_headers(env),
        _architecture_problem(env, architecture, where),
        _memory_problem(),
        _disk_problem(tree),
    ]
    return [problem for problem in found if problem]


def compile_core(
    tree: Path,
    env: ToolchainEnv,
    build: Path,
    *,
    architecture: str,
    log: Path,
    jobs: int,
    cache: CompilerCache | None = None,
    sandbox: BuildSandbox | None = None,
) -> Path:
    """Build the core with TE's own CMake files; on this host, calling it again goes on where it
    stopped."""
    sandbox = sandbox or ProcessBuilds()
    missing = missing_prerequisites(tree, env, architecture, sandbox)
    if missing:
        raise InfrastructureError("TE's core cannot be built: " + "; ".join(missing))
    jobs = max(1, min(jobs, available_memory() // _JOB_MEMORY))
    launcher = sandbox.which("ccache") if cache is not None else None
    build.mkdir(parents=True, exist_ok=True)
    workspace = Workspace(
        tree.parent, build, reads=(tree,) if env.in_image else (tree, env.root),
        cache=cache,
        environment=_environment(env, tree), path=(env.cuda_home / "bin",),
    )  # fmt: skip
    with BuildCommands(sandbox, workspace, log) as commands:
        commands.follow(
            _configure(tree, env, build, architecture, launcher, sandbox), "configuring TE's core"
        )
        commands.follow(
            [_ninja(env), "-C", build, f"-j{jobs}", "transformer_engine"], "compiling TE's core"
        )
        return commands.fetch(build / LIBRARY)


def _configure(
    tree: Path,
    env: ToolchainEnv,
    build: Path,
    architecture: str,
    launcher: Path | None,
    sandbox: BuildSandbox,
) -> list[str | Path]:
    python = env.root / "bin" / "python" if sandbox.on_host else env.interpreter.executable
    settings = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_MAKE_PROGRAM": _ninja(env),
        "CMAKE_CXX_COMPILER": env.compiler,
        "CMAKE_CUDA_COMPILER": _nvcc(env),
        "CMAKE_CUDA_HOST_COMPILER": env.compiler,
        "CMAKE_CUDA_ARCHITECTURES": architecture,
        "CUDAToolkit_ROOT": env.cuda_home,
        "CUDNN_PATH": env.cudnn,
        "CUDNN_FRONTEND_INCLUDE_DIR": env.cudnn_frontend_include,
        "NCCL_INCLUDE_DIR": env.nccl / "include",
        "NVTE_WITH_NCCL_EP": "OFF",
        "Python_EXECUTABLE": python,
    }
    if launcher:
        settings |= {"CMAKE_CXX_COMPILER_LAUNCHER": launcher}
        settings |= {"CMAKE_CUDA_COMPILER_LAUNCHER": launcher}
    defined = [f"-D{name}={value}" for name, value in settings.items()]
    return [_cmake(env), "-S", tree / SOURCES, "-B", build, "-G", "Ninja", *defined]


def _environment(env: ToolchainEnv, tree: Path) -> dict[str, str]:
    """Where the wheels are, for a build that expects a CUDA toolkit."""
    return {
        "CUDA_HOME": str(env.cuda_home),
        "CPATH": _paths(env.include_dirs),
        "CMAKE_LIBRARY_PATH": _paths([env.cuda_home / "lib", env.nccl / "lib", env.cudnn / "lib"]),
        # For ccache, which knows sources below this folder by relative paths: another commit's
        # tree hits too.
        "CCACHE_BASEDIR": str(tree.parent),
    }


def _paths(folders: Iterable[Path]) -> str:
    return os.pathsep.join(str(folder) for folder in folders)


def _cmake(env: ToolchainEnv) -> Path:
    return env.site / "cmake" / "data" / "bin" / "cmake"


def _ninja(env: ToolchainEnv) -> Path:
    return env.root / "bin" / "ninja"


def _nvcc(env: ToolchainEnv) -> Path:
    return env.cuda_home / "bin" / "nvcc"


def _missing_submodules(tree: Path) -> list[str]:
    cmake_file = tree / _CMAKE_FILE
    if not cmake_file.is_file():
        return [f"{tree} has no {_CMAKE_FILE}: it is no TransformerEngine"]
    names = set(
        re.findall(
            r"3rdparty/([A-Za-z0-9_-]+)", cmake_file.read_text(encoding="utf-8", errors="replace")
        )
    )
    needed = sorted(name for name in names if not _SUBMODULES_UNUSED.match(name))
    return [
        f"submodule 3rdparty/{name} is not there: run git submodule update --init in the checkout"
        for name in needed
        if not (tree / "3rdparty" / name / "include").is_dir()
    ]


def _missing_tools(env: ToolchainEnv, where: BuildSandbox) -> list[str]:
    tools = {"nvidia-cuda-nvcc": _nvcc(env), "cmake": _cmake(env), "ninja": _ninja(env)}
    return [
        f"no {path.name} at {path}: toolchain {env.toolchain.name} needs {package}"
        for package, path in tools.items()
        if where.which(str(path)) is None
    ]


def _missing_headers(env: ToolchainEnv) -> list[str]:
    return [
        f"no header {header}: toolchain {env.toolchain.name} needs {package}"
        for header, package in _HEADERS.items()
        if not env.has_header(header)
    ]


def _architecture_problem(env: ToolchainEnv, architecture: str, where: BuildSandbox) -> str | None:
    if where.which(str(_nvcc(env))) is None:
        return None  # said already
    listed = (where.ask([str(_nvcc(env)), "--list-gpu-code"]) or "").split()
    if f"sm_{architecture}" in listed:
        return None
    return f"nvcc of CUDA {env.toolchain.cuda} cannot compile for sm_{architecture}, only for " + (
        ", ".join(listed) or "nothing"
    )


def _memory_problem() -> str | None:
    available = available_memory()
    if available >= _JOB_MEMORY:
        return None
    return (
        f"one compiler needs {_JOB_MEMORY / 2**30:.0f} GiB of memory, and "
        f"{available / 2**30:.1f} GiB are free here"
    )


def _disk_problem(tree: Path) -> str | None:
    existing = next(path for path in (tree, *tree.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free >= _BUILD_DISK:
        return None
    return (
        f"the build needs {_BUILD_DISK / 2**30:.0f} GiB below {existing}, and "
        f"{free / 2**30:.1f} GiB are free there"
    )
