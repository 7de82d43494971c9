"""Which assemblers are refused for which devices: the table's limits, and what is said."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellgen.errors import DeviceError
from cellgen.runtime.device.assemblers import refuse_assembler, version_of
from cellgen.runtime.triton import assembler
from cellgen.runtime.triton.assembler import assembler_in_use, take_assembler

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


def of_release(folder: Path, release: str) -> Path:
    path = folder / f"ptxas-{release}"
    path.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.93'\n")
    path.chmod(0o700)
    return path


@pytest.fixture(autouse=True)
def triton(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A Triton that takes its ptxas of 12.8 for Hopper, the one variable, and nothing else."""
    own = tmp_path / "backends" / "nvidia" / "bin"
    own.mkdir(parents=True)
    of_release(own, "12.8").rename(own / "ptxas")
    monkeypatch.setattr(
        assembler, "folders_of", lambda name: [tmp_path] if name == "triton" else []
    )
    monkeypatch.setattr(assembler, "triton_compiler", lambda: None)
    monkeypatch.setattr(assembler.shutil, "which", lambda name: None)
    for name in (*assembler.VARIABLES, *assembler.TOOLKITS):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    assembler.assembler_for.cache_clear()
    yield own
    assembler.assembler_for.cache_clear()


def test_a_caller_who_names_an_assembler_has_it_or_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, triton: Path
) -> None:
    of_release(triton, "13.0")
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(of_release(tmp_path, "12.8")))
    with pytest.raises(DeviceError, match=r"gla: .*ptxas-12\.8: ptxas 12\.8 is wrong for sm_90"):
        take_assembler("gla", 90)
    assert take_assembler("gla", 90, multiplies=False) is None
    take_assembler("gla", 80)
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(of_release(tmp_path, "12.9")))
    assert take_assembler("gla", 90).path == str(tmp_path / "ptxas-12.9")


def test_an_assembler_that_does_not_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_PTXAS_PATH", "/no/such/ptxas")
    with pytest.raises(DeviceError, match="gla: /no/such/ptxas: this assembler does not run"):
        take_assembler("gla", 90)


def test_a_right_assembler_that_triton_brings_is_taken_in_place_of_a_wrong_one(
    triton: Path,
) -> None:
    of_release(triton, "12.7")  # looked at first, and wrong as well
    newer = of_release(triton, "13.0")
    assert str(assembler_in_use(90)).startswith("ptxas 12.8, ")
    for arch in (80, 90, 90):
        taken = take_assembler("gla", arch)
        assert taken.path == str(triton / "ptxas" if arch == 80 else newer)
    assert str(assembler_in_use(90)) == f"ptxas 13.0, {newer}"


@pytest.mark.parametrize("place", ["nvidia", "toolkit", "path"])
def test_others_than_triton_s_are_looked_at(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "other" / "bin"
    folder.mkdir(parents=True)
    right = of_release(folder, "13.1")
    if place == "nvidia":
        own = assembler.folders_of
        monkeypatch.setattr(
            assembler, "folders_of", lambda name: [tmp_path] if name == "nvidia" else own(name)
        )
    elif place == "toolkit":
        monkeypatch.setenv("CUDA_HOME", str(folder.parent))
    else:
        monkeypatch.setattr(assembler.shutil, "which", lambda name: str(right))
    assert take_assembler("gla", 90).path == str(right)


def test_where_only_wrong_ones_are_one_message_says_so(triton: Path) -> None:
    of_release(triton, "12.7")
    with pytest.raises(
        DeviceError, match=r"^.*gla: \S*/ptxas: ptxas 12\.8 is wrong.*Take 12\.9 or"
    ):
        take_assembler("gla", 90)
    assert take_assembler("min_gru", 90, multiplies=False) is None


class Newer:
    """Triton's module, of a release that has another assembler for newer devices."""

    class knobs:
        class nvidia:
            ptxas_blackwell = "newer"

    @staticmethod
    def get_ptxas(arch: int) -> str:
        return "newer" if arch >= 90 else "older"


def test_the_variable_is_the_one_that_counts_for_the_device(
    triton: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembler, "triton_compiler", lambda: Newer)
    of_release(triton, "12.8").rename(triton / "ptxas-blackwell")
    right = of_release(triton, "13.0")
    assert take_assembler("gla", 90).path == str(right)
    assert assembler.os.environ["TRITON_PTXAS_BLACKWELL_PATH"] == str(right)
    assert "TRITON_PTXAS_PATH" not in assembler.os.environ


def test_triton_forgets_the_version_by_which_it_names_what_it_compiled(
    triton: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Asked(Newer):
        @staticmethod
        @functools.cache
        def get_ptxas_version(arch: int = 80) -> str:
            return assembler_in_use(arch).release

    monkeypatch.setattr(assembler, "triton_compiler", lambda: Asked)
    of_release(triton, "12.8").rename(triton / "ptxas-blackwell")
    of_release(triton, "13.0")
    assert "12.8" in Asked.get_ptxas_version(90)
    take_assembler("gla", 90)
    assert "13.0" in Asked.get_ptxas_version(90)
