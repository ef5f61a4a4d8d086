"""The devices of a host, as its nvidia-smi tells them, and emulated ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from runner import device
from runner.errors import InfrastructureError, InputError

Smi = Callable[[str], None]
H200 = ["0, NVIDIA H200, 9.0, 580.159, 143771", "1, NVIDIA H200, 9.0, 580.159, 143771"]
L4 = "2, NVIDIA L4, 8.9, 580.159, 23034"


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Smi:
    """Puts an nvidia-smi on PATH that does what the script says."""

    def install(script: str) -> None:
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return install


def says(*rows: str) -> str:
    return "\n".join(f"echo '{row}'" for row in rows)


def test_all_gpus_of_one_kind_are_one_device_with_many_ids(smi: Smi) -> None:
    smi(says(*H200))
    found = device.cuda()
    assert (found.device.kind, found.device.name) == ("cuda", "NVIDIA H200")
    assert (found.device.compute_capability, found.device.driver) == ((9, 0), "580.159")
    assert found.device.ids == ("0", "1")
    assert found.memory_gib == pytest.approx(140.4, abs=0.1)


def test_some_gpus_can_be_named(smi: Smi) -> None:
    smi(says(*H200, L4))
    assert device.cuda(["2"]).device.name == "NVIDIA L4"


def test_a_run_is_on_one_kind_of_device(smi: Smi) -> None:
    smi(says(*H200, L4))
    with pytest.raises(InputError, match=r"NVIDIA H200 \(9\.0\), NVIDIA L4 \(8\.9\); name some"):
        device.cuda()


def test_a_gpu_that_is_not_there_is_bad_input(smi: Smi) -> None:
    smi(says(*H200))
    with pytest.raises(InputError, match="no GPU '7' here; there are 0, 1"):
        device.cuda(["7"])


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'NVIDIA-SMI has failed'; exit 9", "nvidia-smi says: NVIDIA-SMI has failed"),
        ("echo 'No devices were found'", "nvidia-smi says: No devices were found"),
        ("exit 0", "nvidia-smi says: nothing"),
    ],
)
def test_a_driver_that_does_not_answer_is_the_hosts_fault(smi: Smi, script: str, said: str) -> None:
    smi(script)
    with pytest.raises(InfrastructureError, match=said):
        device.cuda()


def test_a_host_without_a_driver_is_told_what_else_there_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InfrastructureError, match="use --subject demo"):
        device.cuda()


def test_there_is_one_emulated_device_unless_more_are_named() -> None:
    assert device.emulated().device.ids == ("0",)
    assert device.emulated(["0", "3"]).device.ids == ("0", "3")
    assert device.emulated().device.emulated


@pytest.mark.parametrize("name", ["x", "²", "-1", "9" * 5000], ids=["x", "²", "-1", "9..."])
def test_an_emulated_device_is_a_number(name: str) -> None:
    with pytest.raises(InputError, match=f"got '{name}'"):
        device.emulated([name])


def test_this_process_may_use_a_core() -> None:
    assert device.cores() >= 1
