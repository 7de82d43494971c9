"""Compile a cell for CUDA in halves, without nvcc: the host's by a C++ compiler, kernels by NVRTC.

Input: ``SourceFiles``. Output: ``Built``, a library of functions that launch kernels through the
driver, and images, each with the kernels of one element type for one device. An image is compiled
when a call first needs it; all are kept in the cache. In the emulation a third library passes for
the driver, and its image says so.
"""

from __future__ import annotations

import os
import shlex
import time
from dataclasses import dataclass
from pathlib import Path

from cellgen.errors import BuildError
from cellgen.runtime.abi import ABI_VERSION, Interface
from cellgen.runtime.build import cache, steps
from cellgen.runtime.build.shared_object import Built
from cellgen.runtime.build.sources import SourceFiles
from cellgen.runtime.build.steps import Step, Tool
from cellgen.runtime.device import nvcc, nvrtc
from cellgen.runtime.device.cuda_abi import CUDA_STORES, cuda_cdef

VARIABLE = "CELLGEN_CUDA_COMPILER"
COMPILERS = ("nvcc", "nvrtc")
HOST_FLAGS = (
    "-x",
    "c++",
    "-std=c++17",
    "-O1",
    "-DCELLGEN_HOST_HALF",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
)
DEVICE_FLAGS = ("-default-device", "-std=c++17", "--fmad=false", "-DCELLGEN_DEVICE_HALF", "-w")
"""``-default-device``: functions of the host are read too, and nothing is left of them."""
DRIVER_FLAG = "-DCELLGEN_EMULATED_DRIVER"
INSTANCE = "#define CELLGEN_STORE "
"""Begins what a cell's text compiles for one element type: headers stand before the first."""
PLACES = {store.dtype: place for place, store in enumerate(CUDA_STORES)}
"""Of an element type's image, among those of a device."""
EMULATED_TOOLKIT = 13_000


def is_chosen() -> bool:
    """Whether kernels are compiled in halves: it is named, or there is no nvcc.

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
    return not nvcc.is_there() and nvrtc.find() is not None


@dataclass(frozen=True)
class Halves:
    """The two halves of one cell."""

    sources: SourceFiles
    interface: Interface
    emulated: bool = False

    def build(self) -> Built:
        """Find the host's half in the cache, or compile and publish it.

        Raises BuildError: no C++ compiler, compiler errors, an unusable cache folder, no NVRTC.
        """
        start = time.perf_counter()
        toolkit = EMULATED_TOOLKIT if self.emulated else nvrtc.required().toolkit
        path, version = nvcc.cxx()
        command = (path, *HOST_FLAGS, f"-DCELLGEN_TOOLKIT={toolkit}")
        # linked, so that what proofs ask of the emulation is asked of this library
        linked = ("-Wl,--no-as-needed", str(self.driver())) if self.emulated else ()
        made, cached = self._library("host", nvcc.Compiler(command, version), nvcc.HOST, linked)
        return Built(made, cached, time.perf_counter() - start)

    def driver(self) -> Path:
        """The library that passes for the driver in the emulation."""
        found = nvcc.emulator()
        command = (*found.command, DRIVER_FLAG, "-Wl,-Bsymbolic")
        compiler = nvcc.Compiler(command, found.version)
        return self._library("driver", compiler, nvcc.EMULATOR)[0]

    def _library(
        self, kind: str, found: nvcc.Compiler, tool: Tool, linked: tuple[str, ...] = ()
    ) -> tuple[Path, bool]:
        name = self.sources.name
        key = self._key(found.version, shlex.join((*found.command, *linked)))
        entry = f"{name}_{kind}-{key}"

        def make(place: Path) -> str:
            file, produced = f"{name}.cu", f"{name}_{kind}.so"
            end = ("-Iinclude", "-I.", "-o", produced, "-x", "none", *linked, "-ldl")
            command = (*found.command, file, *end)
            step = Step(f"compiling {file}", command, produced)
            steps.run(place, name, entry, ((step,),), tool)
            steps.require_loadable(place / produced, name, step)
            return produced

        return cache.made(entry, self.sources.files, make)

    def image(self, dtype: str, capability: int) -> bytes:
        """The kernels of an element type for a device of a compute capability, ten times.

        Raises BuildError: no NVRTC, an architecture that it does not know, compiler errors.
        """
        suffix = CUDA_STORES[PLACES[dtype]].suffix
        if self.emulated:
            return f"cellgen emulated {suffix}\0".encode()
        compiler = nvrtc.required()
        named = os.environ.get(nvcc.ARCHITECTURE_VARIABLE, "")
        arch = compiler.require(named) if named else compiler.architecture(capability)
        said = f"{compiler} {arch} {' '.join(DEVICE_FLAGS)} {dtype}"
        headers, name = self._headers(), f"{self.sources.name}.cu"
        text = _of_element(headers[name], name, suffix)
        key = self._key("nvrtc", said, (name, text), *headers.items())
        entry = f"{self.sources.name}_{suffix}_{arch}-{key}"
        produced = f"{self.sources.name}_{suffix}.image"

        def make(place: Path) -> str:
            image = compiler.compiled(self.sources.name, text, headers, arch, DEVICE_FLAGS)
            (place / produced).write_bytes(image)
            return produced

        with cache.explained():
            return cache.made(entry, (), make)[0].read_bytes()

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


def _of_element(text: str, name: str, suffix: str) -> str:
    """The part of a cell's text that compiles it for one element type."""
    headers = text.partition(INSTANCE)[0]
    return f'{headers}{INSTANCE}{suffix}\n#include "{name}"\n#endif\n'
