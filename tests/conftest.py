"""What every test can count on: programs that must be here, and one cache of builds for all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# An example may take as long as a busy host lets it.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

Needs = Callable[[object, str], None]


@pytest.fixture(scope="session")
def needs() -> Needs:
    """`needs(found, what)`: skip where the host lacks something, fail where CI does."""

    def need(found: object, what: str) -> None:
        if found:
            return
        if os.environ.get("CI") == "true":
            pytest.fail(f"no {what} here, which CI must have")
        pytest.skip(f"no {what} here")

    return need


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RACEWATCH_HOME of the whole session, so that each build is compiled once.

    RACEWATCH_TEST_HOME keeps one from session to session, for who works on the tests.
    """
    kept = os.environ.get("RACEWATCH_TEST_HOME")
    return Path(kept) if kept else tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def compiler(needs: Needs) -> str:
    """CXX for tests: through ccache where there is one, which a build's key does not tell."""
    found = next((name for name in ("g++", "c++", "clang++") if shutil.which(name)), "")
    needs(found, "C++ compiler (g++, c++ or clang++)")
    return f"ccache {found}" if shutil.which("ccache") else found


Eventually = Callable[[Callable[[], object], str], None]


@pytest.fixture(scope="session")
def eventually() -> Eventually:
    """`eventually(condition, what)`: look again until it holds, fail after a time that is ample."""

    def wait(condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, f"never happened: {what}"
            time.sleep(0.01)

    return wait


Racewatch = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def racewatch(home: Path, compiler: str, tmp_path: Path) -> Racewatch:
    """Starts the command in a process (and session) of its own, on the shared cache."""

    def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "service.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            start_new_session=True,
            env={**os.environ, "RACEWATCH_HOME": str(home), "CXX": compiler, **environment},
        )

    return start
