"""The real TransformerEngine sources that the transforms are tested on."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs
import pytest

from runner.te_source import fetch_sdist
from runner.variants import read


@pytest.fixture(scope="session")
def te_csrc_dir() -> Path:
    """The csrc folder of TE 2.20.2's JAX extension. Not to be written to."""
    cache = os.environ.get("RACEWATCH_CACHE") or platformdirs.user_cache_dir("racewatch")
    return fetch_sdist("2.20.2", Path(cache)) / "csrc"


@pytest.fixture(scope="session")
def te_csrc(te_csrc_dir: Path) -> dict[str, str]:
    """The same as text by path below csrc."""
    return read(te_csrc_dir)
