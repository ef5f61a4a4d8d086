"""Toolchains: the named set of Python, JAX, CUDA libraries and compiler that a build uses."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from runner.errors import InfrastructureError, ToolchainError
from runner.sandbox.process_build import ProcessBuilds
from runner.sandbox.workshop import BuildSandbox

DEFAULT = "cu13-jax011"
FOLDER = Path(__file__).parent / "toolchains"
IMAGE_CACHE = Path("/opt/racewatch")
"""The cache folder in which an image of builds was made with its toolchain prepared."""

_GLIBC = range(34, 4, -1)
"""Minor versions of glibc 2 that ready-made packages name; pip takes only those that are named."""
_HEADERS_DISK = 4 * 2**30
_CORE_DISK = 3 * 2**30
_INTERPRETER_FACTS = """
import json, os, sys, sysconfig
print(json.dumps({
    "version": "%d.%d" % sys.version_info[:2],
    "include": sysconfig.get_path("include"),
    "suffix": sysconfig.get_config_var("EXT_SUFFIX"),
    "headers": os.path.isfile(os.path.join(sysconfig.get_path("include"), "Python.h")),
}))
"""


@dataclass(frozen=True)
class Toolchain:
    """One toolchain file; `headers`, `core` and `detector` map packages to pinned versions."""

    name: str
    python: str
    compiler: str
    compiler_versions: SpecifierSet
    cuda: str
    headers: Mapping[str, str]
    core: Mapping[str, str]
    detector: Mapping[str, str] = field(default_factory=dict)

    @property
    def cuda_major(self) -> int:
        return int(self.cuda.split(".")[0])

    def extension_identity(self) -> dict[str, str]:
        """What of the toolchain enters the build key of a JAX extension."""
        return {"python": self.python, "compiler": self.compiler, **self.headers}

    def core_identity(self) -> dict[str, str]:
        """What of the toolchain enters the build key of a core library."""
        return {"cuda": self.cuda, "compiler": self.compiler, **self.headers, **self.core}


@dataclass(frozen=True)
class Interpreter:
    """A Python that extensions can be compiled for."""

    executable: Path
    version: str
    include: Path
    extension_suffix: str
    has_headers: bool


@dataclass(frozen=True)
class ToolchainEnv:
    """A toolchain whose packages are installed; `site` is their site-packages folder.

    in_image: the packages are in the image that builds run in, not on this host.
    """

    toolchain: Toolchain
    interpreter: Interpreter
    compiler: Path
    compiler_version: str
    root: Path
    site: Path
    in_image: bool = False

    @property
    def cuda_home(self) -> Path:
        return self.site / "nvidia" / f"cu{self.toolchain.cuda_major}"

    @property
    def cudnn(self) -> Path:
        return self.site / "nvidia" / "cudnn"

    @property
    def nccl(self) -> Path:
        return self.site / "nvidia" / "nccl"

    @property
    def nccl_library(self) -> Path:
        return self.nccl / "lib" / "libnccl.so.2"

    @property
    def cudnn_frontend_include(self) -> Path:
        return self.site / "include"

    @property
    def include_dirs(self) -> tuple[Path, ...]:
        """Where the headers of everything that is not TransformerEngine's own are."""
        return (
            self.site / "jaxlib" / "include",
            self.site / "pybind11" / "include",
            self.cuda_home / "include",
            self.cuda_home / "include" / "cccl",
            self.cudnn / "include",
            self.nccl / "include",
            self.cudnn_frontend_include,
            self.interpreter.include,
        )

    def has_header(self, name: str) -> bool:
        """Whether some include folder has it; the interpreter's own may be in an image."""
        if self.in_image or (name == "Python.h" and self.interpreter.has_headers):
            return True
        return any((folder / name).is_file() for folder in self.include_dirs)


def available() -> list[str]:
    """Names of the toolchains that come with Racewatch."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load(name_or_path: str = DEFAULT) -> Toolchain:
    """Read a toolchain by name, or from a TOML file of the user's own."""
    path = Path(name_or_path)
    if path.suffix != ".toml":
        path = FOLDER / f"{name_or_path}.toml"
        if name_or_path not in available():
            raise ToolchainError(
                f"toolchain {name_or_path!r} is unknown: choose one of {', '.join(available())}, "
                "or give the path of a .toml file"
            )
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ToolchainError(
            f"toolchain {path}: the file cannot be read ({error.strerror})"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ToolchainError(f"toolchain {path}: not valid TOML: {error}") from error
    return parse(document, str(path))


def parse(document: Mapping[str, object], where: str) -> Toolchain:
    """Check a toolchain document; each error names the file, the key and the value."""
    return _Fields(document, where).toolchain()


class _Fields:
    """Typed access to one toolchain document, refusing what is missing, mistyped or unknown."""

    _KEYS = frozenset(
        {
            "name",
            "python",
            "compiler",
            "compiler-versions",
            "cuda",
            "headers",
            "core",
            "detector",
        }
    )

    def __init__(self, document: Mapping[str, object], where: str) -> None:
        self._document = document
        self._where = where

    def toolchain(self) -> Toolchain:
        unknown = sorted(set(self._document) - self._KEYS)
        if unknown:
            self._refuse(unknown[0], f"unknown key; known are {', '.join(sorted(self._KEYS))}")
        return Toolchain(
            name=self._text("name", r"[A-Za-z0-9][A-Za-z0-9._-]*"),
            python=self._text("python", r"3\.\d+"),
            compiler=self._text("compiler", r"\S+"),
            compiler_versions=self._specifiers("compiler-versions"),
            cuda=self._text("cuda", r"\d+\.\d+"),
            headers=self._pins("headers"),
            core=self._pins("core"),
            # A toolchain made before there was a detector has no such table.
            detector=self._pins("detector") if "detector" in self._document else {},
        )

    def _refuse(self, key: str, reason: str) -> None:
        raise ToolchainError(f"toolchain {self._where}: {key}: {reason}")

    def _value(self, key: str) -> object:
        if key not in self._document:
            self._refuse(key, "this key is missing")
        return self._document[key]

    def _text(self, key: str, pattern: str) -> str:
        value = self._value(key)
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            self._refuse(key, f"must be a string like {pattern}, got {value!r}")
        return str(value)

    def _specifiers(self, key: str) -> SpecifierSet:
        value = self._text(key, r".*")
        try:
            return SpecifierSet(value)
        except InvalidSpecifier as error:
            raise ToolchainError(
                f"toolchain {self._where}: {key}: not a version range: {value!r}"
            ) from error

    def _pins(self, key: str) -> dict[str, str]:
        value = self._value(key)
        if not isinstance(value, dict):
            self._refuse(key, f"must be a table of package = version, got {value!r}")
        assert isinstance(value, dict)
        for package, version in value.items():
            try:
                Version(version if isinstance(version, str) else "")
            except InvalidVersion:
                self._refuse(f"{key}.{package}", f"must be one exact version, got {version!r}")
        return dict(sorted(value.items()))


def problems(toolchain: Toolchain, cache: Path, sandbox: BuildSandbox | None = None) -> list[str]:
    """One sentence for each thing that builds lack to use the toolchain; empty when ready."""
    sandbox = sandbox or ProcessBuilds()
    found = [
        _platform_problem(),
        _compiler_problem(toolchain, sandbox),
        _python_problem(toolchain, sandbox),
    ]
    if not _is_installed(toolchain, cache, sandbox):
        found.append(_disk_problem(cache, _HEADERS_DISK, f"toolchain {toolchain.name}"))
    return [problem for problem in found if problem is not None]


def prepare(toolchain: Toolchain, cache: Path, sandbox: BuildSandbox | None = None) -> ToolchainEnv:
    """Install what an extension is compiled against, once per cache folder.

    Compiler and interpreter are the sandbox's. The packages are, too, where its image was made with
    them; else this process fetches them into the cache, since a build reaches no network.
    """
    sandbox = sandbox or ProcessBuilds()
    missing = problems(toolchain, cache, sandbox)
    if missing:
        raise InfrastructureError(f"toolchain {toolchain.name}: " + "; ".join(missing))
    interpreter = find_interpreter(toolchain.python, sandbox)
    compiler = sandbox.which(toolchain.compiler)
    assert interpreter is not None
    assert compiler is not None
    in_image = _is_in_image(toolchain, sandbox)
    root = _root(toolchain, IMAGE_CACHE) if in_image else _root(toolchain, cache, sandbox)
    env = ToolchainEnv(
        toolchain=toolchain,
        interpreter=interpreter,
        compiler=compiler,
        compiler_version=_compiler_version(compiler, sandbox),
        root=root,
        site=root / "lib" / f"python{toolchain.python}" / "site-packages",
        in_image=in_image,
    )
    if not in_image:
        _install(env, "headers", toolchain.headers, sandbox)
    return env


def prepare_core(env: ToolchainEnv, sandbox: BuildSandbox | None = None) -> None:
    """Install what a core built from source needs besides, and lay it out as a CUDA toolkit."""
    root = env.root
    if env.in_image:
        if (sandbox or ProcessBuilds()).ask(["/bin/cat", str(_marker(root, "core"))]) is None:
            raise InfrastructureError(
                f"toolchain {env.toolchain.name}: the image of builds has its headers, and not "
                "what a core is built with: make the image anew"
            )
        return
    if not _marker(root, "core").exists():
        problem = _disk_problem(root, _CORE_DISK, f"toolchain {env.toolchain.name}, core")
        if problem is not None:
            raise InfrastructureError(problem)
    _install(env, "core", env.toolchain.core, sandbox or ProcessBuilds())
    with FileLock(f"{root}.lock"):
        _link_as_toolkit(env.cuda_home)


def find_interpreter(version: str, sandbox: BuildSandbox | None = None) -> Interpreter | None:
    """A Python of this version where builds run, one with headers before one without."""
    sandbox = sandbox or ProcessBuilds()
    found = [
        facts
        for executable in _candidates(version, sandbox)
        if (facts := _interrogate(executable, sandbox)) is not None and facts.version == version
    ]
    return next((each for each in found if each.has_headers), found[0] if found else None)


def _candidates(version: str, sandbox: BuildSandbox) -> Iterator[Path]:
    if sandbox.on_host and version == f"{sys.version_info.major}.{sys.version_info.minor}":
        yield Path(sys.executable)
    named = sandbox.which(f"python{version}")
    if named:
        yield named
    if not sandbox.on_host:
        return
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}"))
    uv = shutil.which("uv")
    if uv:
        listed = subprocess.run(
            [uv, "python", "find", version], capture_output=True, text=True, check=False
        )
        if listed.returncode == 0:
            yield Path(listed.stdout.strip())


def _interrogate(executable: Path, sandbox: BuildSandbox) -> Interpreter | None:
    """Ask an interpreter what it is; None where it does not run (a version manager's shim)."""
    answer = sandbox.ask([str(executable), "-I", "-c", _INTERPRETER_FACTS])
    if answer is None:
        return None
    facts = json.loads(answer)
    return Interpreter(
        executable, facts["version"], Path(facts["include"]), facts["suffix"], facts["headers"]
    )


def _platform_problem() -> str | None:
    if sys.platform == "linux" and platform.machine() in {"x86_64", "aarch64"}:
        return None
    return (
        f"this host is {sys.platform} on {platform.machine()}, and CUDA's packages exist only for "
        "Linux on x86_64 or aarch64"
    )


def _compiler_version(compiler: Path, sandbox: BuildSandbox) -> str:
    return (sandbox.ask([str(compiler), "-dumpfullversion", "-dumpversion"]) or "").strip()


def _compiler_problem(toolchain: Toolchain, sandbox: BuildSandbox) -> str | None:
    compiler = sandbox.which(toolchain.compiler)
    if compiler is None:
        if not sandbox.on_host:
            return f"no compiler: the image of builds has no {toolchain.compiler}"
        return f"no compiler: {toolchain.compiler} is not on PATH, install it (package g++)"
    version = _compiler_version(compiler, sandbox)
    try:
        fits = Version(version) in toolchain.compiler_versions
    except InvalidVersion:
        return f"{compiler} does not tell its version (got {version!r}): it is no C++ compiler"
    if fits:
        return None
    return f"{compiler} is version {version}, the toolchain needs {toolchain.compiler_versions}"


def _python_problem(toolchain: Toolchain, sandbox: BuildSandbox) -> str | None:
    interpreter = find_interpreter(toolchain.python, sandbox)
    if interpreter is None:
        if not sandbox.on_host:
            return f"no Python {toolchain.python}: the image of builds has no such interpreter"
        return (
            f"no Python {toolchain.python}: install it so that python{toolchain.python} is on "
            "PATH, or with pyenv or uv"
        )
    if interpreter.has_headers:
        return None
    return (
        f"Python {toolchain.python} at {interpreter.executable} has no headers "
        f"({interpreter.include}/Python.h), install its development package"
    )


def _disk_problem(folder: Path, needed: int, what: str) -> str | None:
    existing = next(
        path for path in (folder.absolute(), *folder.absolute().parents) if path.exists()
    )
    free = shutil.disk_usage(existing).free
    if free >= needed:
        return None
    return (
        f"{what} needs {needed / 2**30:.0f} GiB below {folder}, where {free / 2**30:.1f} GiB are "
        "free; free some, or choose another cache folder"
    )


def _is_in_image(toolchain: Toolchain, sandbox: BuildSandbox) -> bool:
    marker = _marker(_root(toolchain, IMAGE_CACHE), "headers")
    return not sandbox.on_host and sandbox.ask(["/bin/cat", str(marker)]) is not None


def _is_installed(toolchain: Toolchain, cache: Path, sandbox: BuildSandbox) -> bool:
    here = _marker(_root(toolchain, cache, sandbox), "headers")
    return here.exists() or _is_in_image(toolchain, sandbox)


def _root(toolchain: Toolchain, cache: Path, sandbox: BuildSandbox | None = None) -> Path:
    """One folder for each content: an edited toolchain never meets an older one's packages."""
    identity = json.dumps(
        toolchain.core_identity() | toolchain.extension_identity(), sort_keys=True
    )
    digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
    # For an image's interpreter, whose packages are fetched in another way.
    kind = "" if sandbox is None or sandbox.on_host else "-image"
    return cache.absolute() / "toolchains" / f"{toolchain.name}-{digest}{kind}"


def _marker(root: Path, group: str) -> Path:
    return root / f".racewatch-{group}"


def _install(env: ToolchainEnv, group: str, pins: Mapping[str, str], sandbox: BuildSandbox) -> None:
    """Install pinned packages; the marker, written last, says that all of them are there."""
    root = env.root
    root.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{root}.lock"):
        if _marker(root, group).exists():
            return
        if group == "headers":
            shutil.rmtree(root, ignore_errors=True)  # what an interrupted preparation left
        requirements = [f"{package}=={version}" for package, version in pins.items()]
        refused = f"the packages of the toolchain's [{group}] table cannot be installed"
        if sandbox.on_host:
            _install_for_host(env.interpreter, root, requirements, refused)
        else:
            _install_for_image(env, requirements, refused)
        _marker(root, group).write_text("\n".join(requirements) + "\n", encoding="utf-8")


def _install_for_host(
    interpreter: Interpreter, root: Path, requirements: list[str], refused: str
) -> None:
    python = root / "bin" / "python"
    if not python.exists():
        _run_or_refuse(
            [interpreter.executable, "-m", "venv", root],
            f"Python {interpreter.version} at {interpreter.executable} cannot make a virtual "
            "environment",
        )
    _run_or_refuse([python, "-m", "pip", "install", "--no-deps", *requirements], refused)


def _install_for_image(env: ToolchainEnv, requirements: list[str], refused: str) -> None:
    """Fetched for an interpreter that is not here: ready-made packages only."""
    env.site.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".packages-", dir=env.root) as scratch:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
        command += ["--only-binary=:all:", "--implementation=cp"]
        command += [f"--python-version={env.toolchain.python}"]
        # pip compares Requires-Python with the Python that runs it, not with the one asked for.
        command += ["--ignore-requires-python", f"--target={scratch}"]
        _run_or_refuse([*command, *map(_platform, _GLIBC), *requirements], refused)
        # Packages share folders such as `nvidia`, and pip puts them into an empty target only.
        for source, target in (
            (Path(scratch) / "bin", env.root / "bin"),
            (Path(scratch), env.site),
        ):
            if source.is_dir():
                shutil.copytree(
                    source, target, symlinks=True, dirs_exist_ok=True, copy_function=os.link
                )


def _platform(glibc: int) -> str:
    return f"--platform=manylinux_2_{glibc}_{platform.machine()}"


def _run_or_refuse(command: Iterable[str | Path], sentence: str) -> None:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:]
        raise InfrastructureError(f"{sentence}: {errors[-1] if errors else 'no output'}")


def _link_as_toolkit(cuda_home: Path) -> None:
    """Give the wheels' folder the names that a linker and CMake look for in a CUDA toolkit."""
    lib = cuda_home / "lib"
    for library in sorted(lib.glob("lib*.so.*")):
        plain = lib / (library.name.partition(".so.")[0] + ".so")
        if not plain.exists():
            plain.symlink_to(library.name)
    if not (cuda_home / "lib64").exists():
        (cuda_home / "lib64").symlink_to("lib")
