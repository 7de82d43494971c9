"""The backend of CUDA: its compilers, and kernels on a device or in an emulation on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from cellgen.errors import BuildError
from cellgen.runtime.abi import Interface
from cellgen.runtime.backend import AnyKernel, Backend, Need
from cellgen.runtime.build.shared_object import Built
from cellgen.runtime.build.sources import SourceFiles
from cellgen.runtime.device import cublas, engine, halves, nvcc, nvrtc
from cellgen.runtime.device.arrays import SUFFIXES
from cellgen.runtime.device.halves import Halves
from cellgen.runtime.device.kernel import CudaKernel
from cellgen.runtime.device.model import DEVICES, choices, describe
from cellgen.runtime.folders import read_files, read_interface


@dataclass(frozen=True)
class DeviceBackend:
    """Kernels of CUDA, compiled when they are first called."""

    name: str = "cuda"
    precisions: tuple[str, ...] = tuple(SUFFIXES)
    threads: bool = False
    devices: tuple[str, ...] = tuple(DEVICES)
    emulates: bool = True

    def toolchain(self) -> tuple[Need, ...]:
        """What compiles, the one that is taken first, and cuBLAS."""
        compilers = (Need("nvcc", _nvcc), Need("NVRTC", _nvrtc))
        with suppress(BuildError):  # who builds is told
            compilers = compilers[::-1] if halves.is_chosen() else compilers
        return (*compilers, Need("cuBLAS", _cublas))

    def preparing(self) -> AbstractContextManager[None]:
        """Nothing: kernels have nothing compiled in common."""
        return nullcontext()

    def build(self, files: SourceFiles, interface: Interface) -> Built:
        """Compile what the cache lacks of a cell; images wait for a device, or its name."""
        engine.build()
        if halves.is_chosen():
            both = Halves(files, interface)
            built = both.build()
            both.compile_ahead()
            return built
        return nvcc.build(files, interface)

    def kernel(self, interface: Interface, files: SourceFiles, *, emulated: bool) -> CudaKernel:
        """The kernel of a cell."""
        return CudaKernel(interface, files, emulated=emulated)

    def load(self, folder: Path, *, emulated: bool) -> CudaKernel:
        """The kernel of a generated folder, without building its C."""
        files = read_files(folder, ".cu", self.name)
        return self.kernel(read_interface(folder), files, emulated=emulated)

    def weigh(
        self, kernel: AnyKernel, sizes: Mapping[str, int], dtype: str, device: str
    ) -> list[str]:
        """Which tier a shape gets on devices, with the figures it is chosen by."""
        assert isinstance(kernel, CudaKernel)
        lines = []
        for chosen in [DEVICES[device]] if device else DEVICES.values():
            lines += describe(chosen, choices(kernel, sizes, dtype, chosen))
        return lines


BACKEND: Backend = DeviceBackend()


def _nvcc() -> str:
    compiler = nvcc.compiler()
    return f"{compiler.command[0]}, {compiler.version.splitlines()[-1]}"


def _nvrtc() -> str:
    compiler = nvrtc.required()
    return f"{compiler.path}, {compiler}"


def _cublas() -> str:
    path = cublas.find()
    if not path:
        raise BuildError(f"not found: {cublas.FALLBACK}; {cublas.FIX}")
    return path
