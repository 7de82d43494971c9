"""The backend of Triton: modules of kernels that PyTorch runs; Triton compiles them when called."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cellgen.errors import BuildError, DeviceError
from cellgen.runtime.abi import Interface
from cellgen.runtime.backend import AnyKernel, Backend, Need
from cellgen.runtime.build.shared_object import Built
from cellgen.runtime.build.sources import SourceFiles
from cellgen.runtime.folders import read_files, read_interface
from cellgen.runtime.triton.assembler import take_assembler
from cellgen.runtime.triton.kernel import TritonKernel

SUFFIX = "_triton.py"


@dataclass(frozen=True)
class TritonBackend:
    """Modules of kernels for forms over time."""

    name: str = "triton"
    precisions: tuple[str, ...] = ("float32", "bfloat16", "float16")
    threads: bool = False
    devices: tuple[str, ...] = ()
    emulates: bool = False

    def toolchain(self) -> tuple[Need, ...]:
        """Triton, PyTorch whose tensors it runs on, and the assembler of products."""
        needs = [Need(name, partial(_version_of, name)) for name in ("triton", "torch")]
        return (*needs, Need("ptxas", _assembler))

    def preparing(self) -> AbstractContextManager[None]:
        """Nothing: modules have nothing in common."""
        return nullcontext()

    def build(self, files: SourceFiles, interface: Interface) -> Built:
        """Keep the module in the cache."""
        return self.kernel(interface, files, emulated=False).build()

    def kernel(self, interface: Interface, files: SourceFiles, *, emulated: bool) -> TritonKernel:
        """The kernels of a cell."""
        return TritonKernel(interface, files)

    def load(self, folder: Path, *, emulated: bool) -> TritonKernel:
        """The kernels of a generated folder."""
        return self.kernel(
            read_interface(folder), read_files(folder, SUFFIX, self.name), emulated=emulated
        )

    def weigh(
        self, kernel: AnyKernel, sizes: Mapping[str, int], dtype: str, device: str
    ) -> list[str]:
        """Nothing: sizes of blocks are chosen by the call."""
        return []


BACKEND: Backend = TritonBackend()
HOPPER = 90
"""The devices for which assemblers are known to be wrong."""


def _assembler() -> str:
    """What kernels of products are assembled by for Hopper."""
    _version_of("triton")
    try:
        return f"{take_assembler('ptxas', HOPPER)}, for sm_{HOPPER}"
    except DeviceError as error:
        raise BuildError(str(error.args[0]).replace(". Take", "; take")) from None


def _version_of(package: str) -> str:
    """The version of a package. Raises BuildError, which says what brings it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        bringer = "'cellgen-compiler[torch]'" if package == "torch" else package
        raise BuildError(f"{package} is not installed; pip install {bringer}") from None
