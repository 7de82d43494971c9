"""What the cache holds of CUDA loads where nvcc, NVRTC and C++ compilers are not: in containers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from cellgen import Cell, api
from cellgen.cells import GRU, Elman, MinGRU
from cellgen.errors import BuildError
from cellgen.runtime.build import cache as kernels
from cellgen.runtime.device import halves, nvcc, nvrtc
from cellgen.runtime.device.backend import BACKEND
from cellgen.runtime.device.halves import DEVICE, SHARED, Halves, ImagePart
from cellgen.runtime.device.kernel import CudaKernel

WHOLE = ImagePart(SHARED)
OF_TESTS = ("float32", "bfloat16")
"""Element types whose halves are compiled here: one of threads, one of matrix units."""

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")

COMPILER = """#!/bin/sh
# passes for nvcc: what it makes is the emulation
if [ "$1" = --version ]; then echo "release 13.0"; exit; fi
for word; do out=$word; done
exec cp {} "$out"
"""
REMEMBERING = """#!/bin/sh
# compiles as g++ does; what it compiled before of the same texts it copies
compiles=
for word; do
    [ "$word" != -c ] || compiles=1
    [ "$last" != -o ] || made=$word
    last=$word
done
[ "$compiles" ] || exec {compiler} "$@"
texts=$(find . -name '*.cu' -o -name '*.cuh' -o -name '*.h' | sort)
kept={kept}/$(echo "$@" | cat - $texts | sha256sum | cut -c1-40)
[ -e "$kept" ] && exec cp "$kept" "$made"
{compiler} "$@" && cp "$made" "$kept.$$" && mv "$kept.$$" "$kept"
"""
PROGRAM = """
import sys, warnings
from pathlib import Path
import numpy as np
import cellgen
from cellgen.runtime.device import nvcc, nvrtc
nvcc.wheel_folders = nvrtc.candidates = lambda *places: iter(())
nvcc.Path = lambda home: Path("/nowhere")
warnings.simplefilter("ignore", RuntimeWarning)  # no cuBLAS
kernel = cellgen.load(sys.argv[1], target="cuda")
forward, lengths = kernel.sequence_forward, {"T": 3, "B": 2, "I": 4, "H": 5}
shapes = {a.name: tuple(lengths[n] for n in a.shape) for a in forward.function.arguments}
given = {n: kernel.array(np.full(s, 0.25, np.float32)) for n, s in shapes.items()}
sys.stdout.buffer.write(forward(**given).h.numpy().tobytes())
"""


def run(folder: Path, cell: str, path: str) -> subprocess.CompletedProcess[bytes]:
    """Load a cell and run it in a process of its own, which finds programs along ``path`` alone."""
    own = {"PATH": path, "CELLGEN_CACHE_DIR": str(folder / "cache"), "HOME": str(folder)}
    others = {"CELLGEN_NVCC", "CELLGEN_CXX", "CXX", "CUDA_HOME", "CUDA_PATH", halves.VARIABLE}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, cell],
        env={n: v for n, v in os.environ.items() if n not in others} | own,
        capture_output=True,
        timeout=300,
        check=False,
    )


def test_what_nvcc_compiled_runs_where_no_compiler_is(tmp_path: Path) -> None:
    tools, nothing = tmp_path / "tools", tmp_path / "nothing"
    tools.mkdir(), nothing.mkdir()
    (tools / "nvcc").write_text(COMPILER.format(emulated(MinGRU).build().path))
    (tools / "nvcc").chmod(0o700)
    first = run(tmp_path, "min_gru", f"{tools}:{os.defpath}")
    assert first.returncode == 0, first.stderr.decode()
    assert len(first.stdout) == 3 * 2 * 5 * 4
    shutil.rmtree(tools)
    again = run(tmp_path, "min_gru", str(nothing))
    assert again.returncode == 0, again.stderr.decode()
    assert again.stdout == first.stdout
    lacking = run(tmp_path, "elman", str(nothing))
    said = lacking.stderr.decode()
    assert lacking.returncode != 0
    for part in ("elman.cu", "is not in the kernel cache", str(tmp_path), "nvcc", "CELLGEN_NVCC="):
        assert part in said
    (nothing / "cache").mkdir()
    empty = run(nothing, "min_gru", str(nothing))
    assert "no CUDA compiler" in empty.stderr.decode()


def test_what_is_tried_is_remembered_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a cache filled with a switch is not taken without, nor the other way round."""
    named = []
    for tried in ("", "ends", "ends,wide"):
        monkeypatch.setenv(nvcc.TRY_VARIABLE, tried)
        named.append(nvcc.remembered_as())
    assert len(set(named)) == len(named)
    monkeypatch.setenv(nvcc.TRY_VARIABLE, "end")
    with pytest.raises(BuildError, match="CELLGEN_CUDA_TRY names end, expected some of ends,"):
        nvcc.remembered_as()


@cache
def emulated(cell: type[Cell]) -> CudaKernel:
    return api.compile_cuda(cell, emulated=True)


def both(cell: type[Cell]) -> Halves:
    return Halves(emulated(cell).sources, emulated(cell).interface)


class Library:
    """Passes for NVRTC: it compiles for some devices, and says what it did."""

    def __init__(self, *architectures: int) -> None:
        self.compiled: list[str] = []
        self.nvrtc = nvrtc.Nvrtc(object(), "libnvrtc.so.13", (13, 0), architectures)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a compiler of C++: caches of several tests get the same objects of it."""
    folder = tmp_path_factory.mktemp("tools")
    compiler = folder / "g++"
    compiler.write_text(REMEMBERING.format(compiler=shutil.which("g++"), kept=folder))
    compiler.chmod(0o700)
    return folder


@pytest.fixture
def library(tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    """A cache of its own, no nvcc, and something that passes for NVRTC."""
    one = Library(80, 86, 90)
    monkeypatch.setenv("CELLGEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    for name in (nvcc.VARIABLE, nvcc.CXX_VARIABLE, nvcc.ARCHITECTURE_VARIABLE, halves.VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(nvcc, "candidates", lambda: iter(()))
    monkeypatch.setattr(nvrtc, "find", lambda: one.nvrtc)
    monkeypatch.setattr(halves, "PLACES", {dtype: halves.PLACES[dtype] for dtype in OF_TESTS})

    def compiled(
        self: nvrtc.Nvrtc, name: str, text: str, headers: dict[str, str], arch: str, flags: object
    ) -> bytes:
        one.compiled.append(arch)
        return f"{name} {arch}".encode()

    monkeypatch.setattr(nvrtc.Nvrtc, "compiled", compiled)
    return one


def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on there is neither NVRTC nor a compiler of C++."""
    monkeypatch.setattr(nvrtc, "find", lambda: None)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)


def test_halves_load_where_no_compiler_is(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = emulated(MinGRU)
    path = BACKEND.build(kernel.sources, kernel.interface).path
    image = both(MinGRU).image("float32", 90, WHOLE)
    bare(monkeypatch)
    assert halves.is_chosen()
    assert BACKEND.build(kernel.sources, kernel.interface).path == path
    assert both(MinGRU).image("float32", 90, WHOLE) == image == b"min_gru sm_90"
    lacking = r"for sm_80: they are not in the kernel cache .*, and NVRTC 13.0 is not here"
    for part, which in (
        (WHOLE, "min_gru in float32 "),
        (
            ImagePart(DEVICE, "sequence_forward"),
            "sequence_forward of .* whose blocks stay on a device ",
        ),
    ):
        with pytest.raises(BuildError, match=which + lacking):
            both(MinGRU).image("float32", 80, part)
    with pytest.raises(BuildError, match=r"gru.cu: it is not in the kernel cache .*'g\+\+'"):
        both(GRU).build()


def test_a_cache_of_nvcc_is_taken_where_torch_brings_nvrtc_and_no_compiler_is(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way that filled the cache, unless the other one can compile."""
    nvcc.remembered.keep(nvcc.remembered.WAY, {"way": nvcc.remembered.NVCC}, is_new=True)
    assert halves.is_chosen()
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    assert not halves.is_chosen()
    nvcc.remembered.keep(nvcc.remembered.WAY, {"way": nvcc.remembered.NVRTC}, is_new=True)
    assert halves.is_chosen()


def test_an_image_of_another_device_is_taken_where_it_runs(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machine code of an older device of the generation, and PTX of any older one."""
    monkeypatch.setenv(nvcc.ARCHITECTURE_VARIABLE, "sm_80")
    kernel = emulated(MinGRU)
    BACKEND.build(kernel.sources, kernel.interface)
    count = len(OF_TESTS) * len(both(MinGRU).parts)
    assert library.compiled == ["sm_80"] * count + ["compute_80"] * count
    monkeypatch.delenv(nvcc.ARCHITECTURE_VARIABLE)
    bare(monkeypatch)
    for capability, arch in ((80, "sm_80"), (86, "sm_80"), (90, "compute_80"), (87, "compute_80")):
        assert both(MinGRU).image("bfloat16", capability, WHOLE).decode() == f"min_gru {arch}"
    with pytest.raises(BuildError, match=r"compiles for .*, and the device is sm_75"):
        both(MinGRU).image("bfloat16", 75, WHOLE)
    for damaged in (kernels.folder() / kernels.KERNELS).glob("min_gru_bf16_sm_80-*/*.image"):
        damaged.write_bytes(b"")
    assert both(MinGRU).image("bfloat16", 80, WHOLE).decode() == "min_gru compute_80"


def test_a_named_target_is_ptx_on_devices_that_do_not_run_its_code(library: Library) -> None:
    named = library.nvrtc.named
    for name, capability, arch in (
        ("sm_80", 80, "sm_80"),
        ("sm_80", 86, "sm_80"),
        ("sm_80", 90, "compute_80"),
        ("sm_90", 80, "sm_90"),  # which the driver refuses: the variable is in its words
        ("sm_90a", 90, "sm_90a"),
        ("compute_80", 90, "compute_80"),
    ):
        assert named(name, capability) == arch


def test_every_release_of_nvrtc_is_remembered(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another release has other entries: each is found again, that of the last new one first."""
    older, newer = library.nvrtc, replace(library.nvrtc, version=(13, 2), architectures=(80, 90))
    built = {}
    for cell, release in ((MinGRU, older), (Elman, newer)):
        monkeypatch.setattr(nvrtc, "find", lambda release=release: release)
        built[cell] = both(cell).build().path
        both(cell).image("float32", 90, WHOLE)
    assert library.compiled == ["sm_90", "sm_90"]
    bare(monkeypatch)
    assert [known.version for known in nvrtc.known()] == [(13, 2), (13, 0)]
    for cell in built:
        assert both(cell).build().path == built[cell]
        name = cell.definition.name
        assert both(cell).image("float32", 90, WHOLE).decode() == f"{name} sm_90"
    kernels.clear()
    with pytest.raises(BuildError, match="no NVRTC"):
        nvrtc.known()


def test_a_native_architecture_is_the_devices(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is nvcc's word; NVRTC knows none, and compiles when a device asks."""
    monkeypatch.setenv(nvcc.ARCHITECTURE_VARIABLE, "native")
    kernel = emulated(MinGRU)
    BACKEND.build(kernel.sources, kernel.interface)
    assert library.compiled == []
    assert both(MinGRU).image("float32", 90, WHOLE).decode() == "min_gru sm_90"
