"""Kernels in halves: the host's through an emulated driver, images by NVRTC, errors of each."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from cellgen import Cell, H, Input, State, Weight, api, tanh
from cellgen.cells import SHIPPED, Elman, MinGRU, SLSTMHeads
from cellgen.errors import BuildError, DeviceError
from cellgen.runtime.abi import Argument, axis_length
from cellgen.runtime.build.shared_object import Built
from cellgen.runtime.device import halves, nvcc, nvrtc
from cellgen.runtime.device.arrays import DeviceArray
from cellgen.runtime.device.backend import BACKEND
from cellgen.runtime.device.halves import CLUSTER, DEVICE, OWN, SHARED, Halves, ImagePart
from cellgen.runtime.device.kernel import CudaKernel
from cellgen.runtime.device.library import DeviceLibrary
from cellgen.runtime.device.model import EMULATED, EMULATED_CAPABILITY
from cellgen.runtime.options import Options
from cellgen.runtime.paths import include_folder
from cellgen.runtime.results import Results
from tests.cover import each_time
from tests.targets.test_cuda import OnHost, in_elements, inputs
from tests.targets.test_persistent import OPEN, STAYS, planted
from tests.within import set_library

DIMS = {"T": 4, "B": 3, "I": 5, "H": 12, "K": 2, "D": 12}
TIERS = {"float64": ("steps", "whole"), "float32": ("steps", "device", "cluster")}
TIERS |= dict.fromkeys(("bfloat16", "float16"), (*TIERS["float32"], "fragments"))
with_cxx = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
with_nvrtc = pytest.mark.skipif(nvrtc.find() is None, reason="no NVRTC")
QUICK = (Elman, MinGRU)
STAYING = (DEVICE, CLUSTER)


@cache
def whole(cell: type[Cell]) -> CudaKernel:
    return api.compile_cuda(cell, emulated=True)


@cache
def halved(cell: type[Cell]) -> CudaKernel:
    kernel = whole(cell)
    return CudaKernel(kernel.interface, kernel.sources, emulated=True, halved=True)


@cache
def elman() -> CudaKernel:
    """Two element types of a cell whose blocks stay wherever they fit."""
    of_two = in_elements(planted(Elman, (STAYS,)), "f32", "bf16")
    return CudaKernel(of_two.interface, of_two.sources, emulated=True, halved=True)


@cache
def named() -> CudaKernel:
    """Three element types of a cell of which each test has a library of its own."""
    of_three = in_elements(whole(TanhF64Persistent), "f32", "f64", "bf16")
    return CudaKernel(of_three.interface, of_three.sources, emulated=True, halved=True)


class Copied(Halves):
    """Halves of which each host library is a copy, which has loaded no image yet."""

    folder: ClassVar[Path]

    def half(self, dtype: str) -> Built:
        built = super().half(dtype)
        return replace(built, path=Path(shutil.copy(built.path, self.folder)))


def halved_anew(first: CudaKernel, folder: Path) -> CudaKernel:
    """From copies of its host halves."""
    kernel = CudaKernel(first.interface, first.sources, emulated=True, halved=True)
    both = Copied(kernel.sources, kernel.interface, True)
    Copied.folder = folder
    set_library(kernel, DeviceLibrary(both, kernel.interface))
    return kernel


def clusters(kernel: CudaKernel) -> None:
    """Make the emulation a device that has room for clusters."""
    kernel.library().lib.cellgen_emulation_device(8, 227 << 10)
    kernel.library().lib.cellgen_emulation_machine(1, 0, 90)


def drawn(kernel: CudaKernel, items: tuple[Argument, ...], dtype: str) -> dict[str, DeviceArray]:
    random = np.random.default_rng(5)
    shapes = {a.name: [axis_length(n, DIMS) for n in a.shape] for a in items if not a.is_scalar}
    return {n: kernel.array(random.standard_normal(s), dtype=dtype) for n, s in shapes.items()}


def both_ways(kernel: CudaKernel, dtype: str, tier: str, graph: bool) -> dict[str, np.ndarray]:
    """Results of all steps forward and back."""
    forward, backward = kernel.sequence_forward, kernel.sequence_backward
    given = drawn(kernel, forward.function.arguments, dtype)
    y = forward(**given, save=True, tier=tier, graph=graph)
    taken = {a.name for a in backward.function.arguments}
    own = {n: getattr(y, n) for n in y._fields if n in taken}
    above = drawn(kernel, tuple(a for a in backward.function.arguments if a.name == "d_h"), dtype)
    d = backward(**given, **own, **above, saved=y.saved, tier=tier, graph=graph)
    return arrays(y) | arrays(d)


def arrays(results: Results) -> dict[str, np.ndarray]:
    named = results._asdict()
    return {n: a.numpy() for n, a in named.items() if isinstance(a, DeviceArray)}


@with_cxx
@pytest.mark.parametrize(
    "dtype",
    each_time(("float32", "bfloat16"), TIERS),
)
@pytest.mark.parametrize("cell", [Elman, pytest.param(SLSTMHeads, marks=pytest.mark.slow)])
def test_the_hosts_half_launches_what_the_whole_does(cell: type[Cell], dtype: str) -> None:
    """Through the driver's calls alone: launches, those of blocks together, graphs; equal bits."""
    is_quick = cell is Elman and dtype in ("float32", "bfloat16")
    one, other = whole(cell), elman() if is_quick else halved(cell)
    clusters(one), clusters(other)
    for tier in TIERS[dtype]:
        for graph in (False, True):
            wanted = both_ways(one, dtype, tier, graph)
            got = both_ways(other, dtype, tier, graph)
            assert wanted.keys() == got.keys()
            assert len(got) > 4
            for name in wanted:
                np.testing.assert_array_equal(got[name], wanted[name], f"{tier} {name}")
    count = other.library().lib.cellgen_emulation_count
    assert count(1) > 0  # captured
    assert count(2) > 0  # replayed


@with_cxx
def test_element_types_that_are_compiled_apart_know_of_each_others_refusal(tmp_path: Path) -> None:
    """A device that refused blocks together in one type is not asked by another."""
    kernel = halved_anew(elman(), tmp_path)
    clusters(kernel)
    library, drawn = kernel.library().lib, inputs(kernel, OPEN)
    library.cellgen_emulation_fail(b"together", 720)
    with pytest.warns(RuntimeWarning, match="refused a launch"):
        OnHost(kernel, "bfloat16").sequence_forward(**drawn, tier="together", graph=False)
    assert library.cellgen_cuda_refused(0) > 0
    OnHost(kernel, "float32").sequence_forward(**drawn, tier="together", graph=False)


@with_cxx
def test_a_call_compiles_what_launches_its_own_element_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By arrays of the kernel's, and by addresses: no other type is compiled for either."""
    named, half = list[str](), Halves.half

    def counted(self: Halves, dtype: str) -> Built:
        named.append(dtype)
        return half(self, dtype)

    monkeypatch.setattr(Halves, "half", counted)
    kernel = halved_anew(elman(), tmp_path)
    given = drawn(kernel, kernel.sequence_forward.function.arguments, "bfloat16")
    kernel.sequence_forward(**given, tier="steps")
    assert named == ["bfloat16"]
    (tmp_path / "anew").mkdir()
    anew = halved_anew(elman(), tmp_path / "anew")
    function, library = anew.sequence_forward.function, kernel.library()
    arrays = drawn(kernel, (*function.arguments, *function.results), "bfloat16")
    launch = anew.launcher(function.name)
    views = [(name, array.view) for name, array in arrays.items()]
    call = launch.bind("bfloat16", views, Options(), ())
    call.prepare((), {})
    launch("bfloat16", 0, call.words, 0, lambda size: library.allocate(0, size, 0))
    assert named == ["bfloat16"] * 2


@with_cxx
def test_an_image_that_the_driver_does_not_take_is_said(tmp_path: Path) -> None:
    kernel = halved_anew(elman(), tmp_path)
    lib = kernel.library().lib
    image = kernel.library().ffi.from_buffer(b"no image\0")
    assert lib.cellgen_cuda_load(0, 0, image) == 1200
    assert lib.cellgen_cuda_load(64, 0, image) == 1001 == lib.cellgen_cuda_load(0, 128, image)
    given = drawn(kernel, kernel.sequence_forward.function.arguments, "float32")
    lib.cellgen_emulation_fail(b"image", 222)
    with pytest.raises(DeviceError, match=r"elman: loading kernels of float32 onto device 0.* 222"):
        kernel.sequence_forward(**given)
    assert kernel.sequence_forward(**given).h.numpy().shape == (4, 3, 12)  # it is tried again


@with_cxx
def test_kernels_of_another_element_type_are_not_taken(tmp_path: Path) -> None:
    """An image has one element type; what is not there is an error, not another's kernel."""
    kernel = halved_anew(elman(), tmp_path)
    library, name = kernel.library(), "sequence_forward"
    assert library.load(0, "float32", name, (SHARED, OWN))
    given = drawn(kernel, kernel.sequence_forward.function.arguments, "bfloat16")
    library._images |= {(0, "bfloat16", ImagePart.of(kind, name)) for kind in (SHARED, OWN)}
    with pytest.raises(DeviceError, match=r"CUDA error 500.* cellgen cache clear"):
        kernel.sequence_forward(**given)


class TanhF64Persistent(Cell):
    """A cell whose name has words of names of kernels in it."""

    x, h_prev, u = Input(H), State(H), Weight(H, H)
    h = tanh(x + h_prev @ u)


OVER_TIME = "sequence_forward"
LONG: dict[str, object] = {"T": 64, "H": 256}
LOADED: dict[str, list[tuple[str, dict[str, object], list[str]]]] = {
    "float32": [
        ("forward", {}, ["own forward", "shared"]),
        (OVER_TIME, {}, [f"own {OVER_TIME}"]),  # fewer than 8 steps
        (OVER_TIME, {"T": 64, "H": 64, "shared": 4 << 10}, []),  # does not fit
        (OVER_TIME, {"T": 64, "H": 64, "tier": "steps"}, []),
        (OVER_TIME, LONG, [f"device {OVER_TIME}"]),
        (OVER_TIME, LONG, []),
        (OVER_TIME, {"tier": "cluster"}, [f"cluster {OVER_TIME}"]),
    ],
    "float64": [(OVER_TIME, {"T": 64}, [f"own {OVER_TIME}", "shared"])],
    "bfloat16": [(OVER_TIME, LONG, [f"cluster {OVER_TIME}", f"own {OVER_TIME}", "shared"])],
}
"""Calls one after the other, and the kernels that each loads, by element type."""


@with_cxx
@pytest.mark.parametrize("dtype", each_time(("float32", "bfloat16"), LOADED))
def test_a_call_loads_the_kernels_that_it_may_take(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No staying ones for a function of one step, nor where a call cannot or does not stay."""
    monkeypatch.delenv("CELLGEN_PERSISTENT", raising=False)
    kernel = halved_anew(named(), tmp_path)
    library, loaded, image = kernel.library(), list[str](), Halves.image

    def counted(self: Halves, dtype: str, capability: int, part: ImagePart) -> bytes:
        loaded.append(f"{dtype} {part}")
        return image(self, dtype, capability, part)

    monkeypatch.setattr(Halves, "image", counted)

    def loads(function: str, shared: int = 227 << 10, **how: object) -> list[str]:
        library.lib.cellgen_emulation_device(132, shared)
        library.lib.cellgen_emulation_machine(1, 0, 90)
        sizes = DIMS | {n: how.pop(n) for n in DIMS.keys() & how.keys()}
        items = kernel.functions[function].function.arguments
        shapes = {a.name: [axis_length(n, sizes) for n in a.shape] for a in items}
        given = {n: DeviceArray(library, tuple(s), dtype, 0, 0) for n, s in shapes.items()}
        before = len(loaded)
        kernel.functions[function](**given, **how)
        return sorted(one.removeprefix(f"{dtype} ") for one in loaded[before:])

    library.of(dtype)  # of which what every half has is asked
    library.lib.cellgen_emulation_dry(1)
    try:
        for function, how, expected in LOADED[dtype]:
            assert loads(function, **how) == expected, how
    finally:
        library.lib.cellgen_emulation_dry(0)
        library.lib.cellgen_emulation_device(*EMULATED)
        library.lib.cellgen_emulation_machine(1, 0, EMULATED_CAPABILITY)


@with_cxx
def test_a_cell_may_be_called_as_an_element_type_is(tmp_path: Path) -> None:
    kernel, draw = halved_anew(named(), tmp_path), np.random.default_rng(0).standard_normal
    x, u = draw((3, 2, 4)).astype(np.float32), draw((4, 4)).astype(np.float32)
    given = {"x": x, "h_prev": np.zeros((2, 4), np.float32), "u": u}
    there = {name: kernel.array(array) for name, array in given.items()}
    found = kernel.sequence_forward(**there, tier="steps")
    first = np.tanh(x[0])
    wanted = np.stack([first, np.tanh(x[1] + first @ u)])
    # a few roundings of float32 at the size of what is added
    np.testing.assert_allclose(found.h.numpy()[:2], wanted, rtol=1e-6, atol=1e-6)


def test_the_compiler_is_the_one_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    there = nvrtc.Nvrtc(None, "", (13, 0), (80,))
    monkeypatch.setattr(nvrtc, "find", lambda: there)
    monkeypatch.setattr(nvcc, "is_there", lambda: True)
    monkeypatch.setattr(nvcc, "has_cxx", lambda: True)
    monkeypatch.delenv(nvcc.VARIABLE, raising=False)
    for named, chosen in (("", True), ("nvcc", False), ("nvrtc", True)):
        monkeypatch.setenv(halves.VARIABLE, named)
        assert halves.is_chosen() is chosen
    monkeypatch.setenv(halves.VARIABLE, "")
    for name, lacks in (
        ("has_cxx", False),
        ("find", None),
        ("find", replace(there, version=(11, 8))),
    ):
        with monkeypatch.context() as other:
            other.setattr(nvrtc if name == "find" else nvcc, name, lambda lacks=lacks: lacks)
            assert not halves.is_chosen()
    monkeypatch.setattr(nvcc, "is_there", lambda: False)
    assert halves.is_chosen()
    monkeypatch.setenv(nvcc.VARIABLE, "/a/nvcc")
    assert not halves.is_chosen()
    monkeypatch.setenv(halves.VARIABLE, "clang")
    with pytest.raises(BuildError, match="CELLGEN_CUDA_COMPILER is 'clang', expected one of nvcc"):
        halves.is_chosen()


def test_a_cxx_that_is_not_there_or_does_not_work_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other is taken in the place of one that was named, and its fix is no toolkit of CUDA."""
    monkeypatch.setenv("CELLGEN_CXX", "/nowhere/c++")
    with pytest.raises(BuildError, match=r"CELLGEN_CXX names the C\+\+ compiler '/nowhere/c\+\+'"):
        nvcc.cxx()
    monkeypatch.setenv("CELLGEN_CXX", "false")
    with pytest.raises(BuildError, match=r"false does not work: .*; install one, or name one"):
        nvcc.cxx()
    monkeypatch.setenv("CELLGEN_CXX", "")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(
        BuildError, match=r"none of g\+\+, c\+\+, clang\+\+ is on PATH; install one"
    ):
        nvcc.cxx()


def test_limits_of_types_that_kernels_name_are_in_the_headers_that_nvrtc_is_given() -> None:
    limit = re.compile(r"\b(?:U?INT(?:PTR|\d+)|SIZE)_(?:MIN|MAX)\b")
    texts = "".join(text for _, text in elman().sources.files)
    named = {*limit.findall(texts)}
    assert "INT64_MIN" in named
    assert {
        name for name in named if f"#define {name} " not in nvrtc.SYSTEM_HEADERS["stdint.h"]
    } == set()


def test_without_nvrtc_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "candidates", lambda: iter(("/nowhere/libnvrtc.so.13",)))
    with pytest.raises(BuildError, match=r"no NVRTC: libnvrtc\.so\.13 and .*`pip install nvidia"):
        nvrtc.required()


FAKE = """
#include <string.h>
int nvrtcVersion(int *major, int *minor) { *major = MAJOR, *minor = 8; return 0; }
int nvrtcGetNumSupportedArchs(int *count) { *count = 2; return 0; }
int nvrtcGetSupportedArchs(int *all) { all[0] = 90, all[1] = 80; return 0; }
const char *nvrtcGetErrorString(int code) { return code ? "COMPILATION" : "SUCCESS"; }
int nvrtcCreateProgram(void **p, char *s, char *n, int c, char **h, char **i) { *p = 0; return 0; }
int nvrtcDestroyProgram(void **program) { return 0; }
int nvrtcCompileProgram(void *program, int count, char **options) { return CODE; }
#define SAID "a warning\\nx.cu(3): error: identifier \\"y\\" is undefined\\n"
int nvrtcGetProgramLogSize(void *program, long *size) { *size = sizeof SAID; return 0; }
int nvrtcGetProgramLog(void *program, char *log) { memcpy(log, SAID, sizeof SAID); return 0; }
int nvrtcGetCUBINSize(void *program, long *size) { *size = 3; return 0; }
int nvrtcGetCUBIN(void *program, char *to) { memcpy(to, "bin", 3); return 0; }
int nvrtcGetPTXSize(void *program, long *size) { *size = 3; return 0; }
int nvrtcGetPTX(void *program, char *to) { memcpy(to, "ptx", 3); return 0; }
"""


def fake(folder: Path, major: int = 12, code: int = 0) -> str:
    """A library that passes for NVRTC, for what it says."""
    path = folder / f"libnvrtc-{major}-{code}.so"
    (folder / "fake.c").write_text(FAKE)
    flags = (f"-DMAJOR={major}", f"-DCODE={code}", "-shared", "-fPIC", "-o", str(path))
    subprocess.run(["cc", "-w", str(folder / "fake.c"), *flags], check=True)
    return str(path)


@with_cxx
def test_an_old_nvrtc_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fake(tmp_path, 11)
    monkeypatch.setattr(nvrtc, "candidates", lambda: iter((path,)))
    with pytest.raises(BuildError, match=r"NVRTC 11\.8 .* is too old, expected 12\.0 or newer"):
        nvrtc.required()


@with_cxx
def test_architectures_are_those_of_nvrtc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that it does not know gets PTX of the newest before it; a named one is known."""
    path = fake(tmp_path)
    monkeypatch.setattr(nvrtc, "candidates", lambda: iter((path,)))
    found = nvrtc.required()
    assert [found.architecture(n) for n in (80, 90, 86, 120)] == [
        "sm_80",
        "sm_90",
        "compute_80",
        "compute_90",
    ]
    with pytest.raises(BuildError, match="compiles for sm_80, sm_90, and the device is sm_75"):
        found.architecture(75)
    assert found.require("sm_90a") == "sm_90a"
    for named in ("sm_75", "hopper", "sm_"):
        with pytest.raises(BuildError, match=f"CELLGEN_CUDA_ARCH is '{named}', and NVRTC 12.8"):
            found.require(named)
    assert found.compiled("toy", "", {}, "sm_80", ()) == b"bin"
    assert found.compiled("toy", "", {}, "compute_80", ()) == b"ptx"


@with_cxx
def test_an_image_is_found_again_for_what_nvrtc_reads_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its texts and headers, cellgen's own among them, its flags, its version, its target."""
    monkeypatch.setenv("CELLGEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv(nvcc.ARCHITECTURE_VARIABLE, raising=False)
    path = fake(tmp_path)
    monkeypatch.setattr(nvrtc, "candidates", lambda: iter((path,)))
    compiled: list[str] = []

    def counted(
        self: nvrtc.Nvrtc, name: str, text: str, headers: object, arch: str, flags: object
    ) -> bytes:
        compiled.append(arch)
        return arch.encode()

    monkeypatch.setattr(nvrtc.Nvrtc, "compiled", counted)
    kernel = whole(MinGRU)
    both = Halves(kernel.sources, kernel.interface)

    def is_compiled(dtype: str = "float32", capability: int = 90) -> bool:
        before = len(compiled)
        assert both.image(dtype, capability, ImagePart(SHARED)) == compiled[-1].encode()
        assert both.image(dtype, capability, ImagePart(SHARED)) == compiled[-1].encode()
        return len(compiled) == before + 1

    assert is_compiled()
    assert not is_compiled()
    assert is_compiled("float64")
    assert is_compiled(capability=80)
    assert is_compiled(capability=86)  # PTX of 80
    monkeypatch.setattr(halves, "DEVICE_FLAGS", (*halves.DEVICE_FLAGS, "-lineinfo"))
    assert is_compiled()
    headers = {**nvrtc.SYSTEM_HEADERS, "math.h": "#pragma once\n"}
    monkeypatch.setattr(nvrtc, "SYSTEM_HEADERS", headers)
    assert is_compiled()
    files = (*kernel.sources.files, ("include/another.h", ""))
    both = replace(both, sources=replace(kernel.sources, files=files))
    assert is_compiled()
    newer = fake(tmp_path, 13)
    monkeypatch.setattr(nvrtc, "candidates", lambda: iter((newer,)))
    assert is_compiled()


@with_cxx
@pytest.mark.parametrize(
    ("made", "is_emulated", "stay"),
    [(elman, True, 2), (lambda: whole(MinGRU), False, 0)],
    ids=["elman", "min_gru"],
)
def test_the_hosts_half_says_of_which_functions_kernels_stay(
    made: Callable[[], CudaKernel],
    is_emulated: bool,
    stay: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No text is asked, and every part has a place of its own among the images."""
    path = fake(tmp_path)
    monkeypatch.setattr(nvrtc, "candidates", lambda: iter((path,)))
    kernel = made()
    both = Halves(kernel.sources, kernel.interface, is_emulated)
    names = [function.name for function in kernel.interface.functions]
    staying = [(part.kind, part.function) for part in both.parts if part.stays]
    assert staying == [(kind, name) for name in names[len(names) - stay :] for kind in STAYING]
    assert [part.function for part in both.parts if part.kind == OWN] == names
    places = [both.place(dtype, part) for part in both.parts for dtype in halves.PLACES]
    assert len(set(places)) == len(places)
    assert max(places) < 128  # CELLGEN_IMAGES


@with_cxx
def test_what_nvrtc_says_is_in_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fake(tmp_path, code=6)
    monkeypatch.setattr(nvrtc, "candidates", lambda: iter((path,)))
    wanted = r'toy: NVRTC 12\.8 does not compile its kernels for sm_90: x\.cu\(3\): error: .*"y"'
    with pytest.raises(BuildError, match=wanted) as raised:
        nvrtc.required().compiled("toy", "", {}, "sm_90", ())
    assert "a warning" not in str(raised.value)
    assert path in str(raised.value)
    assert "CELLGEN_CUDA_COMPILER=nvcc" in str(raised.value)


@with_cxx
@with_nvrtc
@pytest.mark.parametrize("cell", each_time(QUICK, SHIPPED), ids=str)
@pytest.mark.parametrize("capability", [90, pytest.param(80, marks=pytest.mark.slow)])
def test_images_have_every_kernel_that_the_host_knows(
    cell: type[Cell], capability: int, tmp_path: Path
) -> None:
    """By the names that the host asks for, in each element type."""
    kernel = whole(cell)
    both = Halves(kernel.sources, kernel.interface)
    libraries = [both.half(dtype).path.read_bytes() for dtype in halves.PLACES]
    tags = [t for l in libraries for t in re.findall(rb"18cellgen_kernel_tagIXad(L_Z\w+EEE)\0", l)]
    asked = names_alone([tag.decode() for tag in tags], tmp_path)
    images = [both.image(d, capability, part) for d in halves.PLACES for part in both.parts]
    there = {name.decode() for i in images for name in re.findall(rb"\.text\.(_Z\w+)", i)}
    assert len(asked) > 10
    assert set(asked) == there


NAMES = """
#include <stdint.h>
#include <stdio.h>
#include "cellgen_cuda_names.h"
int main(int count, char **tags) { while (*++tags) puts(cellgen_name_in(*tags)); }
"""


def names_alone(tags: list[str], folder: Path) -> list[str]:
    """Names of kernels as the host asks for them, out of those of types."""
    (folder / "names.cpp").write_text(NAMES)
    include = Path(__file__).parents[3] / "generated" / "include"
    program = str(folder / "names")
    command = ["g++", "-std=c++17", f"-I{include}", str(folder / "names.cpp"), "-o", program]
    subprocess.run(command, check=True)
    done = subprocess.run([program, *tags], check=True, capture_output=True, text=True)
    return done.stdout.split()


def test_every_kernel_of_a_header_is_a_template() -> None:
    """Any other would be compiled in every image, launched or not."""
    found = []
    for header in sorted(include_folder().glob("*.cuh")):
        lines = header.read_text(encoding="utf-8").splitlines()
        for before, line in pairwise(lines):
            if "__global__ void" in line:
                found.append(line)
                assert "template <" in before or "template <" in line, f"{header.name}: {line}"
    assert len(found) > 20


@with_cxx
def test_what_a_name_repeats_counts_from_its_own_beginning(tmp_path: Path) -> None:
    """The tag is what a name in it repeats first; names, numbers and parameters stay."""
    repeated = "".join(f"S{n}_" for n in ("0", "1", "9", "A", "Z", "10", "11"))
    fewer = "".join(f"S{n}_" for n in ("", "0", "8", "9", "Y", "Z", "10"))
    tags = [f"L_Z4S0_TILi16ELb1EET_T0_{repeated}Sc2_fEEE", "L_Z1fvEEE"]
    assert names_alone(tags, tmp_path) == [f"_Z4S0_TILi16ELb1EET_T0_{fewer}Sc2_f", "_Z1fv"]


@with_nvrtc
def test_without_a_driver_it_is_said() -> None:
    kernel = whole(MinGRU)
    kernel = CudaKernel(kernel.interface, kernel.sources, halved=True)
    if shutil.which("nvidia-smi"):
        pytest.skip("a driver may be there")
    with pytest.raises(DeviceError, match=r"CUDA error 35, the driver libcuda\.so\.1.*nvidia-smi"):
        kernel.devices()


@with_cxx
def test_what_builds_without_nvcc_asks_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell's host half is what is built ahead; images wait for a device."""
    path = fake(tmp_path)
    monkeypatch.setattr(nvrtc, "candidates", lambda: iter((path,)))
    monkeypatch.setattr(nvcc, "candidates", lambda: iter(()))
    monkeypatch.delenv(nvcc.VARIABLE, raising=False)
    monkeypatch.delenv(halves.VARIABLE, raising=False)
    assert [need.name for need in BACKEND.toolchain()][:2] == ["NVRTC", "nvcc"]
    assert BACKEND.toolchain()[0].look() == f"{path}, 12.8"
    kernel = whole(MinGRU)
    assert BACKEND.build(kernel.sources, kernel.interface).path.name == "min_gru_host_f32.so"
