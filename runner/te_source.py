"""Fetches TransformerEngine's releases from the package index: the extension's sdist, the core."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import requests
from filelock import FileLock
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version
from pypi_simple import (
    DigestMismatchError,
    DistributionPackage,
    NoDigestsError,
    NoSuchProjectError,
    PyPISimple,
    UnsupportedContentTypeError,
    UnsupportedRepoVersionError,
)

from runner.archive import unpack
from runner.errors import InfrastructureError, RefError

SDIST_PROJECT = "transformer_engine_jax"
_TIMEOUT = (30.0, 120.0)
_NAMED_VERSIONS = 12


def core_project(cuda_major: int) -> str:
    """Name of the package that holds TE's core library and its Python code for one CUDA."""
    return f"transformer_engine_cu{cuda_major}"


def fetch_sdist(version: str, cache: Path) -> Path:
    """The unpacked sdist of the JAX extension: `csrc`, `common_headers`, `build_tools`."""
    return _fetch(SDIST_PROJECT, version, cache, _is_sdist, _unpack_sdist)


def fetch_core_wheel(version: str, cuda_major: int, cache: Path) -> Path:
    """The unpacked core wheel: `transformer_engine` with `wheel_lib/libtransformer_engine.so`."""
    return _fetch(core_project(cuda_major), version, cache, _is_wheel_for_host, _unpack_wheel)


def released_versions(project: str) -> list[str]:
    """Versions of a project that the package index has, newest first."""
    with _index() as index:
        return _versions(_packages(index, project))


def _fetch(
    project: str,
    version: str,
    cache: Path,
    wanted: Callable[[DistributionPackage], bool],
    unpack: Callable[[Path, Path], None],
) -> Path:
    """Download, verify and unpack once; the folder appears in the cache only when complete."""
    folder = cache.absolute() / "releases" / f"{project}-{_normal(project, version)}"
    if folder.is_dir():
        return folder
    with _index() as index:
        package = _choose(_packages(index, project), project, version, wanted)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{folder}.lock"):
                if not folder.is_dir():
                    _fill(folder, index, package, unpack)
        except OSError as error:
            raise InfrastructureError(
                f"{package.filename} cannot be kept in {folder.parent}: {error.strerror or error}"
            ) from error
    return folder


def _fill(
    folder: Path,
    index: PyPISimple,
    package: DistributionPackage,
    unpack: Callable[[Path, Path], None],
) -> None:
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        archive = Path(scratch) / PurePosixPath(package.filename).name
        _download(index, package, archive)
        unpacked = Path(scratch) / "unpacked"
        unpack(archive, unpacked)
        os.replace(unpacked, folder)


def _normal(project: str, version: str) -> str:
    try:
        return str(Version(version))
    except InvalidVersion as error:
        raise RefError(
            f"{version!r} is no version of {project}: versions look like 2.20.2"
        ) from error


@contextmanager
def _index() -> Iterator[PyPISimple]:
    """A client of the index that pip is set up for, or of the default one."""
    endpoint = os.environ.get("PIP_INDEX_URL") or _pip_setting("global.index-url")
    session = requests.Session()
    certificates = os.environ.get("PIP_CERT") or _pip_setting("global.cert")
    if certificates:
        session.verify = certificates
    client = PyPISimple(endpoint, session=session) if endpoint else PyPISimple(session=session)
    with client:
        yield client


def _pip_setting(name: str) -> str:
    """A setting of pip's; empty where it is unset or this Python has no pip."""
    answer = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", name],
        capture_output=True,
        text=True,
        check=False,
    )
    return answer.stdout.strip() if answer.returncode == 0 else ""


def _packages(index: PyPISimple, project: str) -> list[DistributionPackage]:
    try:
        return index.get_project_page(project, timeout=_TIMEOUT).packages
    except NoSuchProjectError as error:
        raise RefError(f"the package index has no project {project}") from error
    except (
        requests.RequestException,
        UnsupportedContentTypeError,
        UnsupportedRepoVersionError,
    ) as error:
        raise InfrastructureError(
            f"the package index cannot be asked for {project} ({type(error).__name__}): check the "
            "network and PIP_INDEX_URL"
        ) from error


def _versions(packages: list[DistributionPackage]) -> list[str]:
    known = set()
    for package in packages:
        try:
            known.add(Version(package.version or ""))
        except InvalidVersion:
            continue
    return [str(version) for version in sorted(known, reverse=True)]


def _choose(
    packages: list[DistributionPackage],
    project: str,
    version: str,
    wanted: Callable[[DistributionPackage], bool],
) -> DistributionPackage:
    usable = [package for package in packages if wanted(package)]
    normal = _normal(project, version)
    for package in usable:
        if package.version is not None and _versions([package]) == [normal]:
            return package
    versions = _versions(usable)
    named = ", ".join(versions[:_NAMED_VERSIONS]) or "none"
    more = ", ..." if len(versions) > _NAMED_VERSIONS else ""
    raise RefError(
        f"{project} has no release {version} for {platform.machine()}; there are {named}{more}"
    )


def _is_sdist(package: DistributionPackage) -> bool:
    return package.package_type == "sdist"


def _is_wheel_for_host(package: DistributionPackage) -> bool:
    if package.package_type != "wheel":
        return False
    try:
        tags = parse_wheel_filename(package.filename)[3]
    except InvalidWheelFilename:
        return False
    return any(tag.platform.endswith(f"_{platform.machine()}") for tag in tags)


def _download(index: PyPISimple, package: DistributionPackage, archive: Path) -> None:
    try:
        index.download_package(package, archive, verify=True, timeout=_TIMEOUT)
    except DigestMismatchError as error:
        raise InfrastructureError(
            f"{package.filename} arrived damaged: its digest is not the index's; try again"
        ) from error
    except NoDigestsError as error:
        raise InfrastructureError(
            f"{package.filename} has no digest in the package index, so it is not trusted"
        ) from error
    except requests.RequestException as error:
        raise InfrastructureError(
            f"{package.filename} cannot be downloaded ({type(error).__name__}): check the network"
        ) from error


def _unpack_sdist(archive: Path, target: Path) -> None:
    """Unpack below `target`, without the one top folder that an sdist has."""
    scratch = target.with_name("sdist")
    try:
        unpack(archive, scratch)
    except (tarfile.TarError, EOFError) as error:
        raise InfrastructureError(f"{archive.name} cannot be unpacked: {error}") from error
    tops = list(scratch.iterdir())
    if len(tops) != 1 or not tops[0].is_dir():
        raise InfrastructureError(f"{archive.name} is no sdist: it must hold exactly one folder")
    os.replace(tops[0], target)


def _unpack_wheel(archive: Path, target: Path) -> None:
    try:
        with zipfile.ZipFile(archive) as opened:
            for name in opened.namelist():
                path = PurePosixPath(name)
                if path.is_absolute() or ".." in path.parts:
                    raise InfrastructureError(
                        f"{archive.name} is not trusted: {name!r} leads outside of it"
                    )
            opened.extractall(target)
    except zipfile.BadZipFile as error:
        raise InfrastructureError(f"{archive.name} cannot be unpacked: {error}") from error
