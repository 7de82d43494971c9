"""Which assemblers are refused for which devices: the table's limits, and what is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellgen.errors import DeviceError
from cellgen.runtime.device.assemblers import refuse_assembler, version_of
from cellgen.runtime.triton.assembler import require_assembler

PRINTED = "Cuda compilation tools, release 12.8, V12.8.93\nBuild cuda_12.8.r12.8/compiler.3558"


@pytest.mark.parametrize("version", ["12.8", "12.8.93", "12.4", "11.8", PRINTED])
def test_assemblers_that_lose_descriptors_are_refused_for_hopper(version: str) -> None:
    with pytest.raises(DeviceError, match=r"sm_90: it loses the base.*Take 12\.9 or later"):
        refuse_assembler(version, 90)


@pytest.mark.parametrize(
    ("version", "arch"), [("12.9", 90), ("13.0.88", 90), ("14.0", 90), ("12.8", 80), ("12.8", 100)]
)
def test_others_are_taken(version: str, arch: int) -> None:
    refuse_assembler(version, arch)


def test_a_version_that_cannot_be_read_is_said() -> None:
    with pytest.raises(DeviceError, match=r"not known from 'no such tool'.*TRITON_PTXAS_PATH"):
        version_of("no such tool")


def of_release(folder: Path, release: str) -> str:
    path = folder / f"ptxas-{release}"
    path.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.93'\n")
    path.chmod(0o700)
    return str(path)


def test_what_triton_would_take_is_asked_for_its_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_PTXAS_PATH", of_release(tmp_path, "12.8"))
    with pytest.raises(DeviceError, match=r"gla: .*ptxas-12\.8: ptxas 12\.8 is wrong for sm_90"):
        require_assembler("gla", 90)
    require_assembler("gla", 80)
    monkeypatch.setenv("TRITON_PTXAS_PATH", of_release(tmp_path, "12.9"))
    require_assembler("gla", 90)


def test_an_assembler_that_does_not_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_PTXAS_PATH", "/no/such/ptxas")
    with pytest.raises(DeviceError, match="gla: /no/such/ptxas: this assembler does not run"):
        require_assembler("gla", 90)
