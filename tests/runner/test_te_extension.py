"""Compiling TE's JAX extension: on a miniature of its layouts, and TE 2.20.2 itself."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from runner import te_source, toolchain
from runner.build_command import CompilerCache
from runner.errors import BuildError, InfrastructureError, SubjectError
from runner.settings import Settings
from runner.te_extension import (
    compile_extension,
    find_tree,
    missing_prerequisites,
    missing_symbols,
)
from runner.toolchain import ToolchainEnv
from runner.variants import BuildKind, apply

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
HEADERS = {
    "jaxlib/include/xla/ffi/api/ffi.h": "",
    "pybind11/include/pybind11/pybind11.h": "",
    "nvidia/cu13/include/cuda_runtime_api.h": "#define CUDA_ANSWER 42\n",
    "nvidia/cu13/include/crt/host_defines.h": "",
    "nvidia/cu13/include/cccl/nv/target": "",
    "nvidia/cu13/include/cublasLt.h": "",
    "nvidia/cu13/include/nvrtc.h": "",
    "nvidia/cu13/include/nvtx3/nvToolsExt.h": "",
    "nvidia/cudnn/include/cudnn.h": "",
    "nvidia/nccl/include/nccl.h": "",
    "include/cudnn_frontend.h": "",
}
SOURCES = {
    "csrc/extensions.h": "#pragma once\nint answer();\n",
    "csrc/extensions/answer.cpp": (
        '#include <cuda_runtime_api.h>\n#include "../extensions.h"\n#include "common/common.h"\n'
        "int answer() { return CUDA_ANSWER + COMMON; }\n"
    ),
    "csrc/extensions/deep/entry.cpp": (
        '#include "extensions.h"\n'
        'extern "C" __attribute__((visibility("default"))) int entry() { return answer(); }\n'
    ),
    "common_headers/common/common.h": "#define COMMON 0\n",
}


def write(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def library(path: Path, source: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", path],
        input=source,
        text=True,
        check=True,
    )
    return path


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of a toolchain, as far as a miniature needs them."""
    folder = write(tmp_path_factory.mktemp("site"), HEADERS)
    library(folder / "nvidia" / "nccl" / "lib" / "libnccl.so.2", "")
    return folder


@pytest.fixture
def env(site: Path) -> ToolchainEnv:
    interpreter = toolchain.find_interpreter(HERE)
    compiler = shutil.which("g++")
    assert interpreter is not None
    assert compiler is not None
    named = replace(toolchain.load(), python=HERE)
    return ToolchainEnv(named, interpreter, Path(compiler), "", site, site)


@pytest.fixture
def sdist(tmp_path: Path) -> Path:
    return write(tmp_path / "sdist", SOURCES)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "build.log"


def call_entry(extension: Path) -> int:
    answer: int = ctypes.CDLL(str(extension)).entry()
    return answer


def test_an_sdist_is_compiled_and_linked(
    sdist: Path, env: ToolchainEnv, tmp_path: Path, log: Path
) -> None:
    extension = compile_extension(sdist, env, tmp_path / "out", log=log, jobs=2)

    assert extension.name == f"transformer_engine_jax{env.interpreter.extension_suffix}"
    assert call_entry(extension) == 42


def test_a_git_checkout_is_compiled_and_linked(
    env: ToolchainEnv, tmp_path: Path, log: Path
) -> None:
    moved = {
        name.replace("csrc/", "transformer_engine/jax/csrc/", 1).replace(
            "common_headers/", "transformer_engine/"
        ): text
        for name, text in SOURCES.items()
    }
    checkout = write(tmp_path / "checkout", moved)

    extension = compile_extension(checkout, env, tmp_path / "out", log=log, jobs=2)

    assert call_entry(extension) == 42


def test_only_the_extension_is_left_in_the_output_folder(
    sdist: Path, env: ToolchainEnv, tmp_path: Path, log: Path
) -> None:
    extension = compile_extension(sdist, env, tmp_path / "out", log=log, jobs=2)

    assert list((tmp_path / "out").iterdir()) == [extension]


def test_equal_sources_make_equal_extensions_in_any_folder(
    sdist: Path, env: ToolchainEnv, tmp_path: Path, log: Path
) -> None:
    write(
        sdist, {"csrc/extensions/where.cpp": 'extern "C" const char* where() { return __FILE__; }'}
    )
    moved = tmp_path / "elsewhere" / "deep"
    shutil.copytree(sdist, moved)

    digests = {
        hashlib.sha256(
            compile_extension(tree, env, tmp_path / f"out{number}", log=log, jobs=1).read_bytes()
        ).hexdigest()
        for number, tree in enumerate((sdist, moved))
    }

    assert len(digests) == 1


def test_the_log_holds_every_command_and_what_it_printed(
    sdist: Path, env: ToolchainEnv, tmp_path: Path, log: Path
) -> None:
    write(sdist, {"csrc/extensions/loud.cpp": "#warning careful here\n"})

    compile_extension(sdist, env, tmp_path / "out", log=log, jobs=2)

    text = log.read_text()
    assert text.count("\n+ ") + text.startswith("+ ") == 4
    assert "careful here" in text


def test_a_source_that_does_not_compile_is_a_build_error_with_its_first_error_line(
    sdist: Path, env: ToolchainEnv, tmp_path: Path, log: Path
) -> None:
    write(
        sdist,
        {"csrc/extensions/broken.cpp": '#include "extensions.h"\nint f() { return missing; }\n'},
    )

    with pytest.raises(BuildError) as caught:
        compile_extension(sdist, env, tmp_path / "out", log=log, jobs=2)

    assert caught.value.first_error.startswith("csrc/extensions/broken.cpp:2:18: error:")
    assert "missing" in caught.value.first_error
    assert "In function 'int f()'" in caught.value.log
    assert "In function 'int f()'" in log.read_text()
    assert list((tmp_path / "out").iterdir()) == []


def test_two_definitions_are_a_build_error_of_the_linker(
    sdist: Path, env: ToolchainEnv, tmp_path: Path, log: Path
) -> None:
    write(sdist, {"csrc/extensions/again.cpp": "int answer() { return 1; }\n"})

    with pytest.raises(BuildError, match=r"linking the extension: .*multiple definition of"):
        compile_extension(sdist, env, tmp_path / "out", log=log, jobs=2)


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        ("a.s: Assembler messages: No space left on device", "the disk is full"),
        ("g++: fatal error: Killed signal terminated program cc1plus", "lack of memory"),
        ("cc1plus: out of memory allocating 65536 bytes", "ran out of memory"),
    ],
)
def test_what_the_host_lacked_is_not_the_sources_fault(
    sdist: Path, env: ToolchainEnv, tmp_path: Path, log: Path, output: str, sentence: str
) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text(f"#!/bin/sh\necho '{output}'\nexit 1\n")
    compiler.chmod(0o755)

    with pytest.raises(InfrastructureError, match=sentence):
        compile_extension(sdist, replace(env, compiler=compiler), tmp_path / "out", log=log, jobs=1)


def test_a_compiler_that_a_signal_ended_is_not_the_sources_fault(
    sdist: Path, env: ToolchainEnv, tmp_path: Path, log: Path
) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\nkill -KILL $$\n")
    compiler.chmod(0o755)

    with pytest.raises(InfrastructureError, match="ended by SIGKILL"):
        compile_extension(sdist, replace(env, compiler=compiler), tmp_path / "out", log=log, jobs=1)


def test_one_failure_ends_the_other_compilers(
    sdist: Path, env: ToolchainEnv, tmp_path: Path, log: Path
) -> None:
    """The fake compiler fails on one source once the other has begun, which then never ends."""
    begun = tmp_path / "begun"
    compiler = tmp_path / "g++"
    compiler.write_text(
        '#!/bin/sh\ncase "$*" in\n'
        f"*answer.cpp*) echo $$ > {begun}.partial; mv {begun}.partial {begun}; exec sleep 1000;;\n"
        f"*) while [ ! -e {begun} ]; do :; done; echo 'entry.cpp:1:1: error: no'; exit 1;;\n"
        "esac\n"
    )
    compiler.chmod(0o755)

    with pytest.raises(BuildError, match=r"entry\.cpp:1:1: error: no"):
        compile_extension(sdist, replace(env, compiler=compiler), tmp_path / "out", log=log, jobs=2)

    assert not Path(f"/proc/{begun.read_text().strip()}").exists()


def test_what_a_compiler_that_was_ended_has_left_is_removed(
    sdist: Path, env: ToolchainEnv, tmp_path: Path, log: Path
) -> None:
    left = tmp_path / "left"
    compiler = tmp_path / "g++"
    compiler.write_text(f"#!/bin/sh\nmktemp > {left}.new && mv {left}.new {left}\nkill -9 $$\n")
    compiler.chmod(0o755)

    with pytest.raises(InfrastructureError, match="ended by SIGKILL"):
        compile_extension(sdist, replace(env, compiler=compiler), tmp_path / "out", log=log, jobs=1)

    assert not Path(left.read_text().strip()).exists()


def test_a_missing_header_is_found_before_the_first_object(
    sdist: Path, env: ToolchainEnv, tmp_path: Path, log: Path
) -> None:
    site = tmp_path / "site"
    shutil.copytree(env.site, site)
    (site / "nvidia" / "cudnn" / "include" / "cudnn.h").unlink()
    lacking = replace(env, site=site)

    with pytest.raises(InfrastructureError, match=r"^no header cudnn\.h: .* needs nvidia-cudnn$"):
        compile_extension(sdist, lacking, tmp_path / "out", log=log, jobs=1)

    assert not log.exists()


def test_every_missing_prerequisite_is_named(env: ToolchainEnv, tmp_path: Path) -> None:
    nothing = replace(env, site=tmp_path, compiler=tmp_path / "g++")

    missing = missing_prerequisites(nothing)

    for name in ("nccl.h", "cudnn_frontend.h", "xla/ffi/api/ffi.h", "libnccl.so.2", "no compiler"):
        assert any(name in sentence for sentence in missing), name


def test_a_folder_that_is_no_transformer_engine_is_one_sentence(tmp_path: Path) -> None:
    write(tmp_path, {"csrc/extensions/a.cpp": ""})

    with pytest.raises(SubjectError, match="is no TransformerEngine with a JAX extension"):
        find_tree(tmp_path)


@pytest.mark.skipif(shutil.which("ccache") is None, reason="ccache is not installed")
def test_ccache_knows_equal_sources_in_another_folder(
    sdist: Path, env: ToolchainEnv, tmp_path: Path, log: Path
) -> None:
    moved = tmp_path / "elsewhere"
    shutil.copytree(sdist, moved)
    cache = CompilerCache(tmp_path / "ccache")

    for number, tree in enumerate((sdist, moved)):
        compile_extension(tree, env, tmp_path / f"out{number}", log=log, jobs=1, cache=cache)

    assert ccache_counts(cache) == {"hits": 2, "misses": 2}


@pytest.mark.skipif(shutil.which("ccache") is None, reason="ccache is not installed")
def test_a_read_only_ccache_is_not_written(
    sdist: Path, env: ToolchainEnv, tmp_path: Path, log: Path
) -> None:
    cache = CompilerCache(tmp_path / "ccache", read_only=True)

    compile_extension(sdist, env, tmp_path / "out", log=log, jobs=1, cache=cache)

    assert not list((tmp_path / "ccache").rglob("*R"))


def ccache_counts(cache: CompilerCache) -> dict[str, int]:
    printed = subprocess.run(
        ["ccache", "--print-stats", "-d", cache.folder], capture_output=True, text=True, check=True
    ).stdout
    counts = {
        name: int(count) for name, count in (line.split("\t") for line in printed.splitlines())
    }
    hits = counts["direct_cache_hit"] + counts["preprocessed_cache_hit"]
    return {"hits": hits, "misses": counts["cache_miss"]}


def test_a_function_that_the_core_lacks_is_named(tmp_path: Path) -> None:
    core = library(tmp_path / "core.so", 'extern "C" void nvte_gelu() {}')
    extension = library(
        tmp_path / "extension.so",
        'extern "C" void nvte_gelu(); extern "C" void nvte_new(); extern "C" int puts(const char*);'
        'extern "C" void run() { nvte_gelu(); nvte_new(); puts(""); }',
    )

    assert missing_symbols(extension, core) == ["nvte_new"]


@pytest.mark.te_build
@pytest.mark.parametrize("kind", list(BuildKind))
def test_every_build_of_te_2_20_2_compiles_and_finds_its_functions_in_the_released_core(
    kind: BuildKind, tmp_path: Path
) -> None:
    home = Settings.load().home
    env = toolchain.prepare(toolchain.load(), home)
    tree = tmp_path / "tree"
    shutil.copytree(te_source.fetch_sdist("2.20.2", home), tree)
    apply(kind, tree / "csrc")

    extension = compile_extension(
        tree, env, tmp_path / "out", log=tmp_path / "log", jobs=2,
        cache=CompilerCache(home / "ccache"),
    )  # fmt: skip

    core = te_source.fetch_core_wheel("2.20.2", 13, home)
    library = core / "transformer_engine" / "wheel_lib" / "libtransformer_engine.so"
    assert missing_symbols(extension, library) == []
    assert_module_init(extension)


def assert_module_init(extension: Path) -> None:
    exported = subprocess.run(
        ["nm", "--dynamic", "--defined-only", extension], capture_output=True, text=True, check=True
    ).stdout
    assert "PyInit_transformer_engine_jax" in exported
