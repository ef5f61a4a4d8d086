"""Versions below which a container is no wall are told, each with what it takes to mend that."""

from __future__ import annotations

from pathlib import Path

import docker
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.sandbox.docker_versions import (
    ENGINE,
    MINIMUM,
    RUNC,
    TOOLKIT,
    Minimum,
    versions,
    warnings,
)


@pytest.mark.parametrize(
    ("version", "good"),
    [
        ("1.1.15", False),
        ("1.2.7", False),
        ("1.2.8", True),
        ("1.2.9", True),
        ("1.3.0", False),
        ("1.3.3", True),
        ("1.4.0", True),
        ("1.5.1", True),
        ("2.0.0", True),
        ("1.1.5+ds1", False),
        ("1.3.3-0ubuntu1~22.04.3", True),
    ],
)
def test_each_series_of_runc_has_a_first_good_release(version: str, good: bool) -> None:
    (least,) = [each for each in MINIMUM if each.component == RUNC]
    assert least.allows(version) is good


def test_a_version_that_is_too_old_is_told_with_its_cve() -> None:
    (sentence,) = warnings({ENGINE: "29.0.1", RUNC: "1.1.5+ds1", TOOLKIT: "1.19.1"})
    assert sentence.startswith("runc 1.1.5+ds1 is older than 1.2.8 or 1.3.3 or 1.4.0: ")
    assert "CVE-2025-31133" in sentence
    (sentence,) = warnings({ENGINE: "29.0.1", RUNC: "1.4.0", TOOLKIT: "1.18.2"})
    assert sentence.startswith("NVIDIA Container Toolkit 1.18.2 is older than 1.19.1: ")
    assert "CVE-2026-24260" in sentence


def test_a_version_that_cannot_be_read_is_told() -> None:
    (sentence,) = warnings({ENGINE: "29.0.1", RUNC: "1.4.0", TOOLKIT: ""})
    assert sentence.startswith("NVIDIA Container Toolkit: its version cannot be read here")


def test_without_a_gpu_nothing_is_said_of_its_toolkit() -> None:
    assert warnings({ENGINE: "29.0.1", RUNC: "1.4.0"}) == []


@pytest.mark.parametrize("least", MINIMUM, ids=lambda least: least.component)
@given(parts=st.tuples(*[st.integers(0, 40)] * 3), later=st.integers(1, 9))
def test_a_later_release_of_a_series_is_no_worse(
    least: Minimum, parts: tuple[int, int, int], later: int
) -> None:
    major, minor, patch = parts
    if least.allows(f"{major}.{minor}.{patch}"):
        assert least.allows(f"{major}.{minor}.{patch + later}")


def test_this_hosts_engine_tells_its_versions(engine: docker.DockerClient) -> None:
    found = versions(engine, gpu=False)
    assert set(found) == {ENGINE, RUNC}
    assert all(version[0].isdigit() for version in found.values())


def test_the_toolkits_version_is_read_from_its_command(
    engine: docker.DockerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "nvidia-ctk"
    command.write_text("#!/bin/sh\necho NVIDIA Container Toolkit CLI version 1.17.7\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert versions(engine, gpu=True)[TOOLKIT] == "1.17.7"


def test_where_the_toolkits_command_is_not_here_its_version_is_not_known(
    engine: docker.DockerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert versions(engine, gpu=True)[TOOLKIT] == ""
