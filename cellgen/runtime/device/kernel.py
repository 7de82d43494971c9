"""A cell's CUDA kernels, called on device arrays by the names of its equations.

Input: an ``Interface`` and the text of the cell's ``.cu``. Output: ``CudaKernel``, with the
functions that ``Kernel`` has. Arrays are anything with ``__dlpack__`` or
``__cuda_array_interface__`` (PyTorch, CuPy, JAX), or ``DeviceArray``; they are neither copied nor
converted. Calls launch on the caller's stream and return without waiting. float32, float64, and
bfloat16 and float16 with float32 arithmetic. Results are made by the library of the arguments where
it can be asked (PyTorch, CuPy), else they are ``DeviceArray``.
"""

from __future__ import annotations

import functools
import threading
import warnings
from typing import Never

import numpy as np

from cellgen.errors import DeviceError
from cellgen.runtime.abi import ABI_VERSION, Interface
from cellgen.runtime.build.shared_object import Built
from cellgen.runtime.build.sources import SourceFiles
from cellgen.runtime.call.arguments import no_function_error
from cellgen.runtime.device import cublas, halves, nvcc
from cellgen.runtime.device.arrays import SUFFIXES, DeviceArray, to_bfloat16
from cellgen.runtime.device.function import CudaFunction
from cellgen.runtime.device.halves import Halves
from cellgen.runtime.device.launching import FunctionLauncher
from cellgen.runtime.device.library import HINTS, NO_CUBLAS, DeviceLibrary
from cellgen.runtime.kernel import ARRIVALS, require_abi
from cellgen.runtime.notebook import ShownInNotebooks


class CudaKernel(ShownInNotebooks):
    """A cell whose functions run on a CUDA device; compiled and loaded when first needed.

    ``emulated`` runs the same text on the CPU: slow, for proofs; with ``halved`` what launches is
    the half that a device would have, and the emulation passes for the driver. Pickled, it travels
    as its interface and its sources, and is compiled where it arrives unless the cache has it.
    """

    def __init__(
        self,
        interface: Interface,
        sources: SourceFiles,
        *,
        emulated: bool = False,
        halved: bool = False,
    ) -> None:
        self.name, self.interface, self.emulated = interface.name, interface, emulated
        self.halved = halved
        self.functions = {f.name: CudaFunction(self, f) for f in interface.functions}
        self.sources = sources
        self._library: DeviceLibrary | None = None
        self._digest = ""
        self._lock = threading.RLock()
        self._blas: dict[tuple[int, int], object] = {}
        self._usable: set[int] = set()

    def __getattr__(self, name: str) -> CudaFunction:
        functions: dict[str, CudaFunction] = self.__dict__.get("functions", {})
        if name in functions:
            return functions[name]
        raise AttributeError(
            f"kernel {self.__dict__.get('name')} has no {name!r}; it has {', '.join(functions)}"
        )

    def __call__(self, /, *unnamed: Never, **named: Never) -> Never:
        """Raise ArgumentError: functions of a kernel are called, not the kernel itself."""
        raise no_function_error(self.name, self.interface.functions, unnamed, named)

    def __reduce__(self) -> tuple[object, ...]:
        return _arrived, (ABI_VERSION, self.interface, self.sources, self.emulated, self.halved)

    def __copy__(self) -> CudaKernel:
        return self

    def __deepcopy__(self, memo: object) -> CudaKernel:
        return self

    def __repr__(self) -> str:
        return f"<CUDA kernel {self.name}: {', '.join(self.functions)}>"

    def launcher(self, name: str) -> FunctionLauncher:
        """What launches a function over time on words; nothing is checked."""
        return self.functions[name].launcher

    def digest(self) -> str:
        """Identify what the kernel computes; see ``Kernel.digest``."""
        if not self._digest:
            self._digest = self.sources.digest
        return self._digest

    def build(self) -> Built:
        """Compile what the cache lacks, of all element types, and load it. Raises BuildError."""
        with self._lock:
            both = self._halves()
            if both is not None:
                built = both.build()
            else:
                built = nvcc.build(self.sources, self.interface, emulated=self.emulated)
            if self._library is None:
                self._library = DeviceLibrary(both or str(built.path), self.interface)
            return built

    def _halves(self) -> Halves | None:
        """The halves that it is compiled in, if it is. Raises BuildError."""
        if self.halved or (not self.emulated and halves.is_chosen()):
            return Halves(self.sources, self.interface, self.emulated)
        return None

    def library(self, element: str = "") -> DeviceLibrary:
        """Load the library, built first if need be, with functions of an element type.

        Where each type has a library of its own, only that one is built. Raises BuildError.
        """
        if self._library is None:
            with self._lock:
                both = self._halves()
                if both is None:
                    self.build()
                elif self._library is None:
                    self._library = DeviceLibrary(both, self.interface)
        assert self._library is not None
        if element in SUFFIXES:
            self._library.of(element)
        return self._library

    def devices(self) -> int:
        """Count the devices. Raises DeviceError: no driver, no device, or the first is too old."""
        self.require_device(0)
        return self.library().devices()

    def require_device(self, device: int) -> None:
        """Check, once, that a device is there, and new enough for the code. Raises DeviceError."""
        if device in self._usable:
            return
        library, needed = self.library(), nvcc.oldest()
        count = library.devices()
        if not 0 <= device < count:
            raise DeviceError(
                f"{self.name}: device {device} is not there, expected one of 0 to {count - 1}: "
                f"{HINTS[101]}"
            )
        capability = library.capability(device)
        if capability < needed:
            raise DeviceError(
                f"{self.name}: device {device} has compute capability {capability / 10}, expected "
                f"{needed / 10} or newer; use another device, or the C kernel: "
                f"cellgen.load({self.name!r})"
            )
        self._usable.add(device)

    def array(
        self, values: np.ndarray, *, dtype: str = "", device: int = 0, stream: int = 0
    ) -> DeviceArray:
        """Copy a NumPy array to a device, for programs without another library."""
        name = dtype or str(values.dtype)
        library = self.library(name)
        self.require_device(device)
        with library.on(device):
            array = DeviceArray(library, values.shape, name, device, stream)
            with np.errstate(over="ignore"):  # what float16 has no number for is infinite
                host = np.ascontiguousarray(values, np.float32 if name == "bfloat16" else name)
            host = to_bfloat16(host) if name == "bfloat16" else host
            library.write(array.pointer, host, array.bytes, stream)
        return array

    def number(self, address: float, dtype: str, device: int, stream: int) -> float:
        """Read a number of the arithmetic of elements of a type, which waits for the stream.

        Raises DeviceError.
        """
        host, library = np.empty(1, "float64" if dtype == "float64" else "float32"), self.library()
        with library.on(device):
            library.read(host, int(address), host.nbytes, stream)
        return float(host[0])

    def blas(self, device: int, path: str = "") -> object:
        """Open cuBLAS for this thread and device; NULL and a warning where it is not installed."""
        key = (device, threading.get_ident())
        if key not in self._blas:
            library = self.library()
            self._blas[key] = library.ffi.NULL if self.emulated else open_blas(library, path)
            if self._blas[key] == library.ffi.NULL and not self.emulated:
                warn_of_slow_products(self.name)
        return self._blas[key]


@functools.lru_cache(maxsize=ARRIVALS)
def _arrived(
    abi: int, interface: Interface, sources: SourceFiles, emulated: bool, halved: bool = False
) -> CudaKernel:
    """Make a kernel again from a pickle. Raises BuildError: another version of cellgen."""
    require_abi(interface.name, abi)
    return CudaKernel(interface, sources, emulated=emulated, halved=halved)


def open_blas(library: DeviceLibrary, path: str) -> object:
    """Open cuBLAS; NULL where it is not installed. Raises DeviceError."""
    opened = library.ffi.new("void **")
    for candidate in (path,) if path else cublas.candidates():
        code = library.lib.cellgen_cuda_blas_open(candidate.encode(), opened)
        if code == 0:
            return opened[0]
        if code != NO_CUBLAS:
            raise DeviceError(f"{library.name}: opening cuBLAS: {library.error(code)}")
    return library.ffi.NULL


def warn_of_slow_products(name: str) -> None:
    """Say that cuBLAS is missing and what runs instead."""
    warnings.warn(
        f"{name}: cuBLAS was not found (looked for {', '.join(cublas.NAMES)}, and in the wheels of "
        f"CUDA); {cublas.FALLBACK}: {cublas.FIX}",
        RuntimeWarning,
        stacklevel=2,
    )
