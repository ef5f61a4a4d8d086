"""TE's core for a commit: what enters it, when a release serves, and builds that are resumed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from runner import te_core, te_source, toolchain
from runner.errors import BuildError, InfrastructureError, RacewatchError, RefError, SubjectError
from runner.git import Repository, open_repository
from runner.store import Store, build_key
from runner.te_core import LIBRARY, Cores
from runner.toolchain import ToolchainEnv

needs_cmake = pytest.mark.skipif(
    shutil.which("cmake") is None or shutil.which("ninja") is None,
    reason="cmake and ninja are not installed",
)
CMAKE_FILE = """
cmake_minimum_required(VERSION 3.18)
project(transformer_engine LANGUAGES CXX)
set(CUTLASS "${CMAKE_CURRENT_SOURCE_DIR}/../../3rdparty/cutlass/include")
set(EXPERTS "${CMAKE_CURRENT_SOURCE_DIR}/../../3rdparty/nccl-extensions")
add_library(transformer_engine SHARED gelu.cpp norm.cpp)
target_include_directories(transformer_engine PRIVATE ${CUTLASS})
"""
FILES = {
    "transformer_engine/common/CMakeLists.txt": CMAKE_FILE,
    "transformer_engine/common/__init__.py": "\n",
    "transformer_engine/common/gelu.cpp": (
        '#include <cutlass.h>\nextern "C" int nvte_gelu() { return CUTLASS; }\n'
    ),
    "transformer_engine/common/norm.cpp": 'extern "C" int nvte_norm() { return 2; }\n',
    "transformer_engine/jax/csrc/extensions/ffi.h": "\n",
    "setup.py": "\n",
}
STUB_HEADERS = [
    *(f"nvidia/cu13/include/{name}" for name in (
        "nvml.h", "cuda_profiler_api.h", "curand_kernel.h", "cusolverDn.h", "cusparse.h",
        "cublasLt.h", "nvrtc.h", "nvtx3/nvToolsExt.h", "cuda_runtime_api.h", "crt/host_defines.h",
    )),
    "nvidia/cudnn/include/cudnn.h",
    "nvidia/nccl/include/nccl.h",
    "include/cudnn_frontend.h",
]  # fmt: skip


@dataclass(frozen=True)
class Work:
    """A repository with a work tree, to make commits in."""

    folder: Path

    def git(self, *arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", self.folder, "-c", "user.name=Ada", "-c", "user.email=a@example.org",
             *arguments],
            check=True, capture_output=True, text=True,
        ).stdout.strip()  # fmt: skip

    def commit(self, files: Mapping[str, str], pins: Mapping[str, str] | None = None) -> str:
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.git("add", *files)
        for path_in_tree, sha in (pins or {}).items():
            self.git("update-index", "--add", "--cacheinfo", f"160000,{sha},{path_in_tree}")
        self.git("commit", "--quiet", "--allow-empty", "-m", "change")
        return self.git("rev-parse", "HEAD")


def new_work(folder: Path) -> Work:
    folder.mkdir()
    work = Work(folder)
    work.git("init", "--quiet", "--initial-branch=main")
    return work


@pytest.fixture
def cutlass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    """A submodule's repository, of which this host has the only copy."""
    work = new_work(tmp_path / "cutlass")
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", f"url.{work.folder}.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "https://example.org/cutlass.git")
    sha = work.commit({"include/cutlass.h": "#define CUTLASS 1\n", "media/large.png": "x"})
    return work.folder, sha


@pytest.fixture
def work(tmp_path: Path, cutlass: tuple[Path, str]) -> Work:
    """A miniature of TE's repository, released as v2.14."""
    work = new_work(tmp_path / "te")
    modules = "".join(
        f'[submodule "{name}"]\n\tpath = 3rdparty/{name}\n\turl = {url}\n'
        for name, url in (
            ("cutlass", "https://example.org/cutlass.git"),
            ("googletest", "https://example.org/googletest.git"),
            ("nccl-extensions", "https://example.org/nccl.git"),
        )
    )
    pins = {"3rdparty/cutlass": cutlass[1], "3rdparty/googletest": "1" * 40,
            "3rdparty/nccl-extensions": "2" * 40}  # fmt: skip
    work.commit({**FILES, ".gitmodules": modules}, pins)
    work.git("tag", "v2.14")
    return work


@pytest.fixture
def repository(work: Work, tmp_path: Path) -> Repository:
    return open_repository(str(work.folder), tmp_path / "cache")


def write_program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def env(tmp_path: Path) -> ToolchainEnv:
    """A toolchain's folder with this host's cmake and ninja, and an nvcc that knows sm_90."""
    root = tmp_path / "toolchain"
    site = root / "site"
    for name in STUB_HEADERS:
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text("")
    write_program(site / "nvidia" / "cu13" / "bin" / "nvcc", "echo sm_80; echo sm_90")
    for tool, place in (("cmake", site / "cmake" / "data" / "bin"), ("ninja", root / "bin")):
        write_program(place / tool, f'exec {shutil.which(tool) or "/bin/false"} "$@"')
    (root / ".racewatch-core").write_text("")
    interpreter = toolchain.find_interpreter("3.12") or toolchain.find_interpreter("3.11")
    assert interpreter is not None
    (root / "bin" / "python").symlink_to(interpreter.executable)
    (site / "nvidia" / "cu13" / "lib").mkdir()
    compiler = shutil.which("g++")
    assert compiler is not None
    return ToolchainEnv(toolchain.load(), interpreter, Path(compiler), "12.2.0", root, site)


@pytest.fixture
def cores(repository: Repository, tmp_path: Path) -> Cores:
    return Cores(
        repository, toolchain.load(), tmp_path / "cache", Store(tmp_path / "store"), jobs=1
    )


@pytest.fixture
def tree(repository: Repository, tmp_path: Path) -> Path:
    """A checkout with the submodules that the core needs."""
    folder = tmp_path / "tree"
    te_core.write_tree(repository, repository.resolve("main").sha, folder, tmp_path / "cache")
    return folder


def sources(repository: Repository, sha: str) -> dict[str, str]:
    return te_core.core_sources(repository, sha)


def test_a_change_of_a_kernel_is_another_core(work: Work, repository: Repository) -> None:
    before = work.git("rev-parse", "HEAD")
    after = work.commit({"transformer_engine/common/norm.cpp": "int changed;\n"})

    assert sources(repository, before) != sources(repository, after)


@pytest.mark.parametrize(
    "path",
    [
        "transformer_engine/common/__init__.py",
        "transformer_engine/jax/csrc/extensions/ffi.h",
        "setup.py",
        "docs/index.rst",
    ],
)
def test_what_no_compiler_of_the_core_reads_is_the_same_core(
    work: Work, repository: Repository, path: str
) -> None:
    before = work.git("rev-parse", "HEAD")
    after = work.commit({path: "# changed\n"})

    assert sources(repository, before) == sources(repository, after)


@pytest.mark.parametrize(
    ("submodule", "same"), [("cutlass", False), ("googletest", True), ("nccl-extensions", True)]
)
def test_a_submodule_counts_where_the_core_reads_it(
    work: Work, repository: Repository, submodule: str, same: bool
) -> None:
    before = work.git("rev-parse", "HEAD")
    after = work.commit({}, {f"3rdparty/{submodule}": "3" * 40})

    assert (sources(repository, before) == sources(repository, after)) is same


def test_a_repository_that_is_no_transformer_engine_is_one_sentence(
    tmp_path: Path,
) -> None:
    other = new_work(tmp_path / "other")
    sha = other.commit({"README": "\n"})

    with pytest.raises(SubjectError, match=r"is no TransformerEngine: it has no .*CMakeLists\.txt"):
        sources(open_repository(str(other.folder), tmp_path / "cache"), sha)


def test_the_commit_of_a_release_has_its_core(work: Work, repository: Repository) -> None:
    sha = work.git("rev-parse", "v2.14")

    assert te_core.release_with_core_of(repository, sha) == "2.14.0"


def test_a_later_commit_with_the_same_core_sources_has_the_releases_core(
    work: Work, repository: Repository
) -> None:
    sha = work.commit({"transformer_engine/jax/csrc/extensions/ffi.h": "// fix\n"})

    assert te_core.release_with_core_of(repository, sha) == "2.14.0"


def test_a_commit_with_other_core_sources_has_no_releases_core(
    work: Work, repository: Repository
) -> None:
    sha = work.commit({"transformer_engine/common/norm.cpp": "int changed;\n"})

    assert te_core.release_with_core_of(repository, sha) is None


def test_a_patch_release_is_known_by_its_own_tag(work: Work, repository: Repository) -> None:
    sha = work.commit({"transformer_engine/common/norm.cpp": "int patched;\n"})
    work.git("tag", "v2.14.1")
    work.git("tag", "nightly")

    assert te_core.release_with_core_of(repository, sha) == "2.14.1"


def test_a_released_core_is_the_wheels_library(
    work: Work, cores: Cores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "wheel" / "transformer_engine" / "wheel_lib" / LIBRARY
    library.parent.mkdir(parents=True)
    library.write_bytes(b"core")
    asked: list[tuple[str, int]] = []

    def fetch(version: str, cuda_major: int, cache: Path) -> Path:
        asked.append((version, cuda_major))
        return tmp_path / "wheel"

    monkeypatch.setattr(te_source, "fetch_core_wheel", fetch)

    core = cores.released(work.git("rev-parse", "HEAD"))

    assert core is not None
    assert (core.library, core.release) == (library, "2.14.0")
    assert core == te_core.core_in(tmp_path / "wheel", "2.14.0", 13)  # a build of the release's own
    assert asked == [("2.14.0", 13)]


def test_a_release_that_was_not_published_for_this_cuda_is_none(
    work: Work, cores: Cores, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(version: str, cuda_major: int, cache: Path) -> Path:
        raise RefError("no release")

    monkeypatch.setattr(te_source, "fetch_core_wheel", fetch)

    assert cores.released(work.git("rev-parse", "HEAD")) is None


def test_a_host_that_has_everything_lacks_nothing(tree: Path, env: ToolchainEnv) -> None:
    assert te_core.missing_prerequisites(tree, env, "90") == []


def test_a_missing_submodule_is_named_with_the_way_out(tree: Path, env: ToolchainEnv) -> None:
    shutil.rmtree(tree / "3rdparty" / "cutlass")

    (sentence,) = te_core.missing_prerequisites(tree, env, "90")

    assert sentence.startswith("submodule 3rdparty/cutlass is not there: run git submodule update")


@pytest.mark.parametrize(
    ("path", "package"),
    [
        ("nvidia/cu13/bin/nvcc", "nvidia-cuda-nvcc"),
        ("cmake/data/bin/cmake", "cmake"),
        ("nvidia/cu13/include/nvml.h", "nvidia-nvml-dev"),
        ("nvidia/cudnn/include/cudnn.h", "nvidia-cudnn"),
        ("include/cudnn_frontend.h", "nvidia-cudnn-frontend"),
    ],
)
def test_a_missing_tool_or_header_names_its_package(
    tree: Path, env: ToolchainEnv, path: str, package: str
) -> None:
    (env.site / path).unlink()

    (sentence,) = te_core.missing_prerequisites(tree, env, "90")

    assert path.rpartition("/")[2] in sentence
    assert sentence.endswith(f"needs {package}")


def test_an_architecture_that_nvcc_does_not_know_is_named(tree: Path, env: ToolchainEnv) -> None:
    (sentence,) = te_core.missing_prerequisites(tree, env, "61")

    assert sentence == "nvcc of CUDA 13.0 cannot compile for sm_61, only for sm_80, sm_90"


def test_too_little_memory_is_one_sentence(
    tree: Path, env: ToolchainEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(te_core, "available_memory", lambda: 2**30)

    (sentence,) = te_core.missing_prerequisites(tree, env, "90")

    assert sentence == "one compiler needs 3 GiB of memory, and 1.0 GiB are free here"


def test_too_little_disk_is_one_sentence(
    tree: Path, env: ToolchainEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(te_core, "_BUILD_DISK", 2**60)

    (sentence,) = te_core.missing_prerequisites(tree, env, "90")

    assert "the build needs 1073741824 GiB below" in sentence


def test_what_is_missing_is_said_before_anything_is_built(
    tree: Path, env: ToolchainEnv, tmp_path: Path
) -> None:
    (env.site / "nvidia/cu13/include/nvml.h").unlink()

    with pytest.raises(InfrastructureError, match=r"TE's core cannot be built: no header nvml\.h"):
        te_core.compile_core(
            tree, env, tmp_path / "build", architecture="90", log=tmp_path / "log", jobs=1
        )

    assert not (tmp_path / "build").exists()


def test_a_cmake_file_in_another_encoding_is_read(tree: Path, env: ToolchainEnv) -> None:
    with (tree / "transformer_engine" / "common" / "CMakeLists.txt").open("ab") as file:
        file.write(b"# caf\xe9\n")
    assert te_core.missing_prerequisites(tree, env, "90") == []


@needs_cmake
def test_the_core_is_built_by_the_trees_own_cmake_file(
    tree: Path, env: ToolchainEnv, tmp_path: Path
) -> None:
    library = te_core.compile_core(
        tree, env, tmp_path / "build", architecture="90", log=tmp_path / "log", jobs=1
    )

    exported = subprocess.run(
        ["nm", "--dynamic", "--defined-only", library], capture_output=True, text=True, check=True
    ).stdout
    assert "nvte_gelu" in exported
    assert "-DCMAKE_CUDA_ARCHITECTURES=90" in (tmp_path / "log").read_text()


@needs_cmake
def test_a_build_goes_on_where_it_stopped(tree: Path, env: ToolchainEnv, tmp_path: Path) -> None:
    broken = tree / "transformer_engine" / "common" / "norm.cpp"
    right = broken.read_text()
    broken.write_text("int f() { return missing; }\n")
    build, log = tmp_path / "build", tmp_path / "log"
    with pytest.raises(BuildError):
        te_core.compile_core(tree, env, build, architecture="90", log=log, jobs=2)
    done = {path: path.stat().st_mtime_ns for path in build.rglob("gelu.cpp.o")}
    broken.write_text(right)

    te_core.compile_core(tree, env, build, architecture="90", log=log, jobs=2)

    assert len(done) == 1
    assert {path: path.stat().st_mtime_ns for path in done} == done


@needs_cmake
def test_sources_that_do_not_compile_are_a_build_error_and_the_log_is_kept(
    work: Work, cores: Cores, env: ToolchainEnv
) -> None:
    sha = work.commit({"transformer_engine/common/norm.cpp": "int f() { return missing; }\n"})

    with pytest.raises(BuildError) as caught:
        cores.build(sha, env, "90")

    assert "norm.cpp:1:18: error:" in caught.value.first_error
    key = build_key(te_core.core_parts(cores.repository, sha, env, "90"))
    assert "norm.cpp:1:18: error:" in (cores.store.log(key) or "")
    assert not cores.store.has(key)
    assert os.listdir(cores.cache / "core-builds") == [], "the same sources will not compile later"


@needs_cmake
def test_a_built_core_comes_from_the_cache_and_from_the_store(
    work: Work, cores: Cores, env: ToolchainEnv
) -> None:
    sha = work.git("rev-parse", "HEAD")
    built = cores.build(sha, env, "90")
    content = built.library.read_bytes()
    (env.root / "bin" / "ninja").unlink()

    again = cores.build(sha, env, "90")
    shutil.rmtree(cores.cache / "cores")
    fetched = cores.build(sha, env, "90")

    assert again == built == fetched
    assert fetched.library.read_bytes() == content


@needs_cmake
def test_a_finished_build_leaves_no_build_folder(
    work: Work, cores: Cores, env: ToolchainEnv
) -> None:
    cores.build(work.git("rev-parse", "HEAD"), env, "90")

    assert os.listdir(cores.cache / "core-builds") == []


def test_another_architecture_or_compiler_is_another_core(
    work: Work, repository: Repository, env: ToolchainEnv
) -> None:
    sha = work.git("rev-parse", "HEAD")
    keys = {
        build_key(te_core.core_parts(repository, sha, each, architecture))
        for each, architecture in (
            (env, "90"),
            (env, "100"),
            (replace(env, compiler_version="13.1.0"), "90"),
        )
    }

    assert len(keys) == 3


def test_the_tree_holds_of_each_submodule_what_the_core_reads(tree: Path) -> None:
    assert (tree / "3rdparty" / "cutlass" / "include" / "cutlass.h").is_file()
    assert not (tree / "3rdparty" / "cutlass" / "media").exists()
    assert not (tree / "3rdparty" / "googletest").exists()


@pytest.mark.parametrize("scheme", ["", "file://", "file://localhost"])
def test_no_folder_of_this_host_is_a_commits_submodule(
    work: Work, repository: Repository, tmp_path: Path, scheme: str
) -> None:
    # A repository that a commit brought itself, such as among its own files, may name commands in
    # its configuration, which git runs where an object is missing.
    evil, ran = new_work(tmp_path / "evil"), tmp_path / "ran"
    settings = {
        "core.repositoryFormatVersion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        "remote.origin.url": f"ext::touch {ran}",
        "protocol.ext.allow": "always",
    }
    for name, value in settings.items():
        evil.git("config", name, value)
    text = work.folder.joinpath(".gitmodules").read_text()
    hostile = text.replace("https://example.org/cutlass.git", f"{scheme}{evil.folder}")
    sha = work.commit({".gitmodules": hostile}, {"3rdparty/cutlass": "4" * 40})

    with pytest.raises(RacewatchError) as refused:
        te_core.write_tree(repository, sha, tmp_path / "tree", tmp_path / "cache")

    assert not ran.exists(), "a command of the commit's choice ran on this host"
    assert "is no address of a server" in str(refused.value)
    assert not (tmp_path / "tree").exists()


def test_a_submodule_that_cannot_be_fetched_is_one_sentence_and_no_tree(
    work: Work, repository: Repository, tmp_path: Path
) -> None:
    text = work.folder.joinpath(".gitmodules").read_text()
    gone = text.replace("https://example.org/cutlass.git", "https://example.invalid/cutlass.git")
    sha = work.commit({".gitmodules": gone})

    with pytest.raises(InfrastructureError, match=r"cutlass\.git cannot be fetched"):
        te_core.write_tree(repository, sha, tmp_path / "tree", tmp_path / "cache")

    assert not (tmp_path / "tree").exists()
