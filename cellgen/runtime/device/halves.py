"""Compile a cell for CUDA in halves, without nvcc: the host's by a C++ compiler, kernels by NVRTC.

Input: ``SourceFiles``. Output: for each element type ``Built``, a library of functions that launch
kernels through the driver, and images, each with some kernels of one element type for one device:
those that all functions share, those of one function, those of it whose blocks stay on the device.
A library and an image are compiled when a call first needs them; all are kept in the cache. In the
emulation another library passes for the driver, and its image says so.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import NamedTuple

from cellgen.errors import BuildError
from cellgen.runtime.abi import ABI_VERSION, Interface
from cellgen.runtime.build import cache, steps
from cellgen.runtime.build.shared_object import Built
from cellgen.runtime.build.sources import SourceFiles
from cellgen.runtime.build.steps import Step, Tool
from cellgen.runtime.device import nvcc, nvrtc, remembered
from cellgen.runtime.device.cuda_abi import CUDA_STORES, cuda_cdef

VARIABLE = "CELLGEN_CUDA_COMPILER"
COMPILERS = ("nvcc", "nvrtc")
HOST_FLAGS = (
    "-x",
    "c++",
    "-std=c++17",
    "-O0",
    "-DCELLGEN_HOST_HALF",
    "-D_GLIBCXX_INCLUDE_NEXT_C_HEADERS",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
)
"""``-D_GLIBCXX``: <math.h> is that of C, which takes a tenth of the time of that of libstdc++."""
DEVICE_FLAGS = ("-default-device", "-std=c++17", "--fmad=false", "-DCELLGEN_DEVICE_HALF", "-w")
"""``-default-device``: functions of the host are read too, and nothing is left of them."""
SHARED, OWN, DEVICE, CLUSTER = "shared", "own", "device", "cluster"
"""Kinds of images: what all functions launch, what one does, with blocks that stay, in clusters."""
OF_FUNCTION = (OWN, DEVICE, CLUSTER)
PART_FLAGS = {kind: f"-DCELLGEN_{kind.upper()}_PART" for kind in (SHARED, OWN, DEVICE, CLUSTER)}
DRIVER_FLAG = "-DCELLGEN_EMULATED_DRIVER"
PLACES = {store.dtype: place for place, store in enumerate(CUDA_STORES)}
"""Of an element type's image, among those of a part."""
EMULATED_TOOLKIT = 13_000


def is_chosen() -> bool:
    """Whether kernels are compiled in halves: it is named, or what compiles so is there.

    That is sooner at a first kernel than nvcc. Where nothing compiles, it is the way of what the
    cache holds.
    Raises BuildError: what is named is no compiler.
    """
    named = os.environ.get(VARIABLE, "")
    if named and named not in COMPILERS:
        raise BuildError(
            f"{VARIABLE} is {named!r}, expected one of {', '.join(COMPILERS)}; correct or unset it",
            code="build.nvrtc",
        )
    if named or os.environ.get(nvcc.VARIABLE):
        return named == "nvrtc"
    library = nvrtc.find()
    if library is not None and library.version >= nvrtc.OLDEST and nvcc.has_cxx():
        return True
    if nvcc.is_there():
        return False
    way = remembered.recall(remembered.WAY)
    return library is not None if way is None else way == {"way": remembered.NVRTC}


class ImagePart(NamedTuple):
    """Kernels that are one image: a kind, and the function whose they are."""

    kind: str
    function: str = ""

    @classmethod
    def of(cls, kind: str, function: str) -> ImagePart:
        """The part of a kind that a function takes."""
        return cls(kind, "" if kind == SHARED else function)

    @property
    def stays(self) -> bool:
        """Whether their blocks stay on the device."""
        return self.kind in (DEVICE, CLUSTER)

    @property
    def flags(self) -> tuple[str, ...]:
        """What compiles them alone."""
        own = ("-DCELLGEN_ONLY", f"-DCELLGEN_ONLY_{self.function}") if self.function else ()
        return (*DEVICE_FLAGS, PART_FLAGS[self.kind], *own)

    def __str__(self) -> str:
        return f"{self.kind} {self.function}".rstrip()


@dataclass(frozen=True)
class ImageEntry:
    """An image in the cache: its name there, and the text and headers that it is compiled from."""

    name: str
    text: str
    headers: dict[str, str]


@dataclass(frozen=True)
class Halves:
    """The two halves of one cell; ``tried`` are flags of what is named to be tried."""

    sources: SourceFiles
    interface: Interface
    emulated: bool = False
    tried: tuple[str, ...] = field(default_factory=nvcc.switches)

    def build(self) -> Built:
        """Find the host's halves of all element types in the cache, or compile and publish them.

        The first one's path stands for all. Raises BuildError, as ``half`` does.
        """
        start = time.perf_counter()
        with ThreadPoolExecutor(len(PLACES)) as pool:
            each = [*pool.map(self.half, PLACES)]
        return Built(each[0].path, all(one.cached for one in each), time.perf_counter() - start)

    def half(self, dtype: str) -> Built:
        """Find the host's half of an element type in the cache, or compile and publish it.

        Raises BuildError: no C++ compiler, compiler errors, an unusable cache folder, no NVRTC.
        """
        start = time.perf_counter()
        compiler = None if self.emulated else self._known()[0]
        host = nvcc.cxx(may_recall=True)
        # linked, so that what proofs ask of the emulation is asked of this library
        linked = ("-Wl,--no-as-needed", str(self.driver())) if self.emulated else ()
        own = self._of_host(host, compiler, dtype)
        path, cached = self._library(_host(dtype), own, nvcc.HOST, linked)
        if compiler is not None:
            remembered.keep(remembered.CXX, host.facts, is_new=not cached)
            remembered.keep_release(remembered.NVRTC, compiler.facts, is_new=not cached)
            remembered.keep(remembered.WAY, {"way": remembered.NVRTC}, is_new=not cached)
        return Built(path, cached, time.perf_counter() - start)

    def driver(self) -> Path:
        """The library that passes for the driver in the emulation."""
        emulator = nvcc.emulator()
        command = (*emulator.command, DRIVER_FLAG, "-Wl,-Bsymbolic")
        compiler = nvcc.Compiler(command, emulator.version)
        return self._library("driver", compiler, nvcc.EMULATOR)[0]

    def _of_host(
        self, host: nvcc.Compiler, compiler: nvrtc.Nvrtc | None, dtype: str
    ) -> nvcc.Compiler:
        """What compiles a type's host half beside a release of NVRTC; None: in the emulation.

        A library has its images: what is tried has a library of its own.
        """
        toolkit = EMULATED_TOOLKIT if compiler is None else compiler.toolkit
        flags = (*HOST_FLAGS, f"-DCELLGEN_TOOLKIT={toolkit}", *_of_type(dtype), *self.tried)
        return nvcc.Compiler((*host.command, *flags), host.version)

    def _flags(self, dtype: str, part: ImagePart) -> tuple[str, ...]:
        return (*part.flags, *_of_type(dtype), *(self.tried if part.stays else ()))

    def _known(self) -> tuple[nvrtc.Nvrtc, ...]:
        """NVRTC, or releases that the cache remembers, those first that it has a host half of.

        Raises BuildError.
        """
        known = nvrtc.known()
        if len(known) == 1:
            return known
        host = nvcc.cxx(may_recall=True)

        def entries(release: nvrtc.Nvrtc) -> Iterator[str]:
            for dtype in PLACES:
                own = self._of_host(host, release, dtype)
                yield self._library_entry(_host(dtype), own, ())

        return tuple(sorted(known, key=lambda one: not any(map(cache.find, entries(one)))))

    def _library_entry(self, kind: str, compiler: nvcc.Compiler, linked: tuple[str, ...]) -> str:
        key = self._key(compiler.version, shlex.join((*compiler.command, *linked)))
        return f"{self.sources.name}_{kind}-{key}"

    def _library(
        self, kind: str, compiler: nvcc.Compiler, tool: Tool, linked: tuple[str, ...] = ()
    ) -> tuple[Path, bool]:
        name = self.sources.name
        entry = self._library_entry(kind, compiler, linked)

        def make(place: Path) -> str:
            file, produced = f"{name}.cu", f"{name}_{kind}.so"
            read = (file, "-Iinclude", "-I.", "-o", produced, "-x", "none", *linked, "-ldl")
            step = Step(f"compiling {file}", (*compiler.command, *read), produced)
            steps.run(place, name, entry, ((step,),), tool)
            steps.require_loadable(place / produced, name, step)
            return produced

        return cache.find_or_make(entry, self.sources.files, make)

    @cached_property
    def parts(self) -> tuple[ImagePart, ...]:
        """Which kernels there are for an image: the host's half says which functions' stay."""
        names = [function.name for function in self.interface.functions]
        library = ctypes.CDLL(str(self.half(next(iter(PLACES))).path))
        stays = library[f"{self.interface.name}_cuda_stays"]()
        kinds = [OF_FUNCTION if stays >> n & 1 else (OWN,) for n in range(len(names))]
        own = (ImagePart(kind, n) for n, each in zip(names, kinds, strict=True) for kind in each)
        return (ImagePart(SHARED), *own)

    def place(self, dtype: str, part: ImagePart) -> int:
        """Where the host's half keeps an image of an element type."""
        number = 0
        if part.function:
            names = [function.name for function in self.interface.functions]
            number = 1 + names.index(part.function) * len(OF_FUNCTION)
            number += OF_FUNCTION.index(part.kind)
        return number * len(PLACES) + PLACES[dtype]

    def image(self, dtype: str, capability: int, part: ImagePart) -> bytes:
        """Kernels of an element type for a device of a compute capability, ten times.

        Raises BuildError: no NVRTC, an architecture that it does not know, compiler errors.
        """
        if self.emulated:
            return f"cellgen emulated {CUDA_STORES[PLACES[dtype]].suffix} {part}\0".encode()
        compiler, arch = self._target(dtype, capability, part)
        return self._image(compiler, dtype, arch, part).read_bytes()

    def _target(self, dtype: str, capability: int, part: ImagePart) -> tuple[nvrtc.Nvrtc, str]:
        """What compiles an image and for which architecture; where nothing can, what is there."""
        known, named = self._known(), _named()
        if known[0].library is None:
            for one in known:
                wanted = (one.named(named, capability),) if named else one.runnable(capability)
                for arch in wanted:
                    if cache.find(self._image_entry(one, dtype, arch, part).name):
                        return one, arch
        first = known[0]
        return first, first.named(named, capability) if named else first.architecture(capability)

    def compile_ahead(self) -> None:
        """Compile all images for the architecture that is named, if one is; no device is needed.

        Beside machine code there is PTX, which drivers of newer devices compile. Raises BuildError.
        """
        named = _named()
        if not named or self.emulated:
            return
        compiler = self._known()[0]
        known = compiler.require(named)
        for arch in dict.fromkeys((known, nvrtc.portable(known))):
            for dtype, part in product(PLACES, self.parts):
                if dtype != "float64" or not part.stays:
                    self._image(compiler, dtype, arch, part)

    def _image(self, compiler: nvrtc.Nvrtc, dtype: str, arch: str, part: ImagePart) -> Path:
        entry = self._image_entry(compiler, dtype, arch, part)
        produced = f"{self.sources.name}_{CUDA_STORES[PLACES[dtype]].suffix}.image"

        def make(place: Path) -> str:
            name, text, headers = self.sources.name, entry.text, entry.headers
            if compiler.library is None:
                which = f"{part.function} of {name}" if part.function else name
                stay = " whose blocks stay on a device" if part.stays else ""
                raise compiler.lacking(f"kernels of {which} in {dtype}{stay}", arch)
            image = compiler.compiled(name, text, headers, arch, self._flags(dtype, part))
            (place / produced).write_bytes(image)
            return produced

        with cache.explained():
            path, cached = cache.find_or_make(entry.name, (), make)
        if compiler.library is not None:
            remembered.keep_release(remembered.NVRTC, compiler.facts, is_new=not cached)
        return path

    def _image_entry(
        self, compiler: nvrtc.Nvrtc, dtype: str, arch: str, part: ImagePart
    ) -> ImageEntry:
        """Where an image is in the cache, and what it is compiled from."""
        suffix, name = CUDA_STORES[PLACES[dtype]].suffix, f"{self.sources.name}.cu"
        headers = self._headers()
        text = f'#include "{name}"\n'
        said = f"{compiler} {arch} {' '.join(self._flags(dtype, part))} {dtype}"
        key = self._key("nvrtc", said, *headers.items())
        return ImageEntry(f"{self.sources.name}_{suffix}_{arch}-{key}", text, headers)

    def _headers(self) -> dict[str, str]:
        """All that NVRTC may include, by the name that it is included by."""
        own = {Path(name).name: text for name, text in self.sources.files}
        return {**nvrtc.SYSTEM_HEADERS, **own}

    def _key(self, version: str, command: str, *read: tuple[str, str]) -> str:
        """``read``: texts that are compiled, beside the sources."""
        return cache.digest(
            [
                *self.sources.files,
                *read,
                ("cdef", cuda_cdef(self.interface)),
                ("abi", str(ABI_VERSION)),
                ("command", command),
                ("version", version),
            ]
        )


def _of_type(dtype: str) -> tuple[str, str]:
    """What compiles an element type by itself."""
    return "-DCELLGEN_ONE_STORE", f"-DCELLGEN_ONE_STORE_{CUDA_STORES[PLACES[dtype]].suffix}"


def _host(dtype: str) -> str:
    """By what the library of an element type is named."""
    return f"host_{CUDA_STORES[PLACES[dtype]].suffix}"


def _named() -> str:
    """The architecture that a user named; of nvcc's "native", none: it is the device's."""
    named = os.environ.get(nvcc.ARCHITECTURE_VARIABLE, "")
    return "" if named == "native" else named
