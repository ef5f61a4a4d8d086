"""The Python packages that TE imports, for a node that has only Python, JAX and CUDA."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from filelock import FileLock

from runner.errors import InfrastructureError, InputError

PINS = Path(__file__).parent / "toolchains"
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def node_packages(python: str, cache: Path) -> Path:
    """A folder with the packages pinned for that Python (such as `3.12`), made once per cache.

    Raises InputError where none are pinned, InfrastructureError where they cannot be fetched.
    """
    pins = PINS / f"node-python{python}.txt"
    if not pins.is_file():
        known = ", ".join(path.stem.removeprefix("node-python") for path in PINS.glob("node-*.txt"))
        raise InputError(f"no node packages are pinned for Python {python}; there are: {known}")
    digest = hashlib.sha256(pins.read_bytes()).hexdigest()[:16]
    folder = cache / "node-packages" / f"{python}-{digest}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if folder.is_dir():
            return folder
        scratch = folder.with_name(f".{folder.name}")
        shutil.rmtree(scratch, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
        command += ["--only-binary=:all:", "--implementation=cp", f"--python-version={python}"]
        # pip compares Requires-Python with the Python that runs it, not with the one asked for.
        command += ["--ignore-requires-python"]
        command += [f"--platform={platform}" for platform in PLATFORMS]
        command += ["--require-hashes", f"--target={scratch}", f"--requirement={pins}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            shutil.rmtree(scratch, ignore_errors=True)
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            said = lines[0] if lines else done.stderr.strip()[-200:]
            raise InfrastructureError(f"packages for the node cannot be fetched: {said}")
        shutil.rmtree(scratch / "bin", ignore_errors=True)
        scratch.rename(folder)
    return folder
