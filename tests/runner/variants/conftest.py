"""The real TransformerEngine sources that the transforms are tested on."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import platformdirs
import pypi_simple
import pytest

from runner.variants import read

VERSION = "2.20.2"


def _cache() -> Path:
    folder = os.environ.get("RACEWATCH_CACHE") or platformdirs.user_cache_dir("racewatch")
    return Path(folder) / "sdists"


def _sdist(folder: Path) -> Path:
    """The sdist of TE's JAX extension from the package index, its digest verified."""
    name = f"transformer_engine_jax-{VERSION}.tar.gz"
    if not (folder / name).exists():
        folder.mkdir(parents=True, exist_ok=True)
        endpoint = os.environ.get("PIP_INDEX_URL", pypi_simple.PYPI_SIMPLE_ENDPOINT)
        with pypi_simple.PyPISimple(endpoint) as index:
            page = index.get_project_page("transformer-engine-jax")
            package = next(one for one in page.packages if one.filename == name)
            partial = folder / f"{name}.{os.getpid()}"
            index.download_package(package, partial, verify=True)
            partial.replace(folder / name)
    return folder / name


@pytest.fixture(scope="session")
def te_csrc_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The csrc folder of TE 2.20.2's JAX extension. Not to be written to."""
    folder = tmp_path_factory.mktemp("te")
    with tarfile.open(_sdist(_cache())) as archive:
        archive.extractall(folder, filter="data")
    return folder / f"transformer_engine_jax-{VERSION}" / "csrc"


@pytest.fixture(scope="session")
def te_csrc(te_csrc_dir: Path) -> dict[str, str]:
    """The same as text by path below csrc."""
    return read(te_csrc_dir)
