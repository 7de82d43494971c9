"""Loaded shared libraries of one cell for CUDA: memory of devices, errors, what devices are."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, NamedTuple

import cffi
import numpy as np

from cellgen.errors import BuildError, DeviceError
from cellgen.runtime.abi import ERROR_CODES, Interface
from cellgen.runtime.device import nvcc
from cellgen.runtime.device.cuda_abi import cuda_cdef
from cellgen.runtime.device.graphs import stream_text
from cellgen.runtime.device.halves import PLACES, Halves, ImagePart
from cellgen.runtime.device.settings import PERSISTENT
from cellgen.runtime.imports import whole_imports

CUDA_ERROR, CUBLAS_STATUS, DOES_NOT_FIT, NO_CUBLAS = 1000, 2000, 2998, 2999
"""Where the codes of ``cellgen_cuda.cuh`` begin."""

HINTS = {
    2: "the device has no memory left: fewer rows or steps at a time, or free arrays",
    35: "no driver is loaded, or one older than the compiler's runtime: run nvidia-smi",
    100: "no CUDA device was found: is one visible (CUDA_VISIBLE_DEVICES, nvidia-smi)?",
    101: "no device has that number: nvidia-smi lists them, CUDA_VISIBLE_DEVICES hides some",
    200: f"the driver does not read the kernels: {nvcc.ARCHITECTURE_VARIABLE} names another target",
    209: f"the code is for other devices: {nvcc.ARCHITECTURE_VARIABLE} names another target",
    400: "the stream is of another device or was destroyed: pass one of the arrays' device",
    720: "not all blocks of the launch run at once: use tier='auto' or 'steps'",
    800: "the device, or how it is shared, does not permit it",
    801: "the device or its driver does not support it",
    222: "the driver is older than the compiler of the kernels: update it, or use an older NVRTC",
    500: "the kernels that were loaded do not have it; clear the cache: cellgen cache clear",
    719: (
        "a kernel failed on the device, or its blocks waited for each other for seconds: the "
        f"context is lost, restart the process; {PERSISTENT}=0 keeps from kernels that wait"
    ),
    900: "the stream cannot be captured in a graph",
    700: "a kernel read or wrote outside an array: the context is lost, restart the process",
    999: "the driver failed, or there is none: run nvidia-smi",
}
"""What to do about a CUDA error."""


class ByNumber(NamedTuple):
    """What a call asks of a library every time."""

    allocate: Callable[..., int]
    free: Callable[..., int]
    device_of: Callable[..., int]
    capturing: Callable[..., int]


class DeviceLibrary:
    """The loaded shared library of one cell, or libraries, each of one element type.

    ``source``: the path of the one, or the halves, of which a type's is loaded when it is named.
    """

    def __init__(self, source: str | Halves, interface: Interface) -> None:
        self.name, self._source = interface.name, source
        self._halves = source if isinstance(source, Halves) else None
        self.loads = self._halves is not None
        self._images, self._lock = set[tuple[int, str, ImagePart]](), threading.RLock()
        with whole_imports():  # cffi imports its parser when it is used
            self.ffi = cffi.FFI()
            self.ffi.cdef(cuda_cdef(interface))
        self._of_type, self._refused = dict[str, Any](), dict[int, int]()
        self._address, self._number = self.ffi.typeof("uintptr_t *"), self.ffi.typeof("int *")

    @cached_property
    def lib(self) -> Any:
        """The one library, or the first that is there: what every one has is asked of it.

        Raises BuildError.
        """
        if isinstance(self._source, str):
            return self._opened(self._source)
        return next(iter(self._of_type.values()), None) or self.of(next(iter(PLACES)))

    def of(self, element: str) -> Any:
        """The library of functions in an element type, compiled if need be. Raises BuildError."""
        if self._halves is None:
            return self.lib
        with self._lock:
            if element not in self._of_type:
                lib = self._opened(str(self._halves.half(element).path))
                for device, code in self._refused.items():
                    lib.cellgen_cuda_refuse(device, code)
                if self._halves.emulated:
                    lib.cellgen_cuda_driver(str(self._halves.driver()).encode())
                self._of_type[element] = lib
        return self._of_type[element]

    def _opened(self, path: str) -> Any:
        try:
            return self.ffi.dlopen(path)
        except OSError as error:
            raise BuildError(f"cannot load {path}: {error}", code="build.load") from error

    @cached_property
    def _by_number(self) -> ByNumber:
        """Functions of the library whose addresses are Python's integers: none has to be cast."""

        def cast(name: str, parameters: str) -> Callable[..., int]:
            kind = f"int (*)({parameters})"
            function: Callable[..., int] = self.ffi.cast(kind, getattr(self.lib, name))
            return function

        return ByNumber(
            cast("cellgen_cuda_allocate", "int, int64_t, uintptr_t, uintptr_t *"),
            cast("cellgen_cuda_free", "uintptr_t, uintptr_t"),
            cast("cellgen_cuda_device_of", "uintptr_t, int *"),
            cast("cellgen_cuda_capturing", "uintptr_t, int *"),
        )

    def error(self, code: int) -> str:
        """Say what a code means and what to do."""
        if code < CUDA_ERROR:
            return ERROR_CODES.get(code, f"code {code}")
        if code == NO_CUBLAS:
            return "cuBLAS cannot be opened"
        if code == DOES_NOT_FIT:
            return (
                "the tier does not run this cell at this shape on this device: its weights do not "
                "fit a block's shared memory, or the memory of a head its registers, or not all "
                "blocks run at once, or the cell has no such kernel (`cellgen explain CELL "
                "--target cuda`), or the toolkit is older than CUDA 12.3, or, of "
                "tier='cluster', "
                f"the code is not for sm_90 ({nvcc.ARCHITECTURE_VARIABLE}=sm_90); "
                "use tier='auto' or 'steps'"
            )
        if code >= CUBLAS_STATUS:
            return f"cuBLAS status {code - CUBLAS_STATUS}"
        text = self.ffi.string(self.lib.cellgen_cuda_error_text(code)).decode()
        hint = HINTS.get(code - CUDA_ERROR)
        return f"CUDA error {code - CUDA_ERROR}, {text}" + (f"; {hint}" if hint else "")

    def require(self, code: int, label: str) -> None:
        """Raise DeviceError for a code that is none of success."""
        if code:
            raise DeviceError(f"{label}: {self.error(code)}")

    def warn_of_refusal(self, device: int) -> None:
        """Say once if a device refused blocks that wait for each other: steps are launched then.

        No element type asks it again.
        """
        if device in self._refused:
            return
        loaded = [*self._of_type.values()] or [self.lib]
        if code := max(int(lib.cellgen_cuda_refused(device)) for lib in loaded):
            self._refused[device] = code
            for lib in loaded:
                lib.cellgen_cuda_refuse(device, code)
            warnings.warn(
                f"{self.name}: device {device} refused a launch whose blocks wait for each other: "
                f"{self.error(code)}; such calls go launch by launch, with the same results but "
                f"for rounding; with {PERSISTENT}=0 in the environment tier='auto' does not ask",
                RuntimeWarning,
                stacklevel=5,
            )

    def allocate(self, device: int, size: int, stream: int) -> int:
        """Take memory of a device, in the order of a stream. Raises MemoryError, DeviceError."""
        address = self.ffi.new(self._address)
        code = self._by_number.allocate(device, size, stream, address)
        if code == CUDA_ERROR + 2:
            raise MemoryError(
                f"{self.name}: no memory for {size:,} bytes on device {device}: {self.error(code)}"
            )
        if code:
            what = f"{self.name}: taking {size:,} bytes on device {device}, {stream_text(stream)}"
            raise DeviceError(f"{what}: {self.error(code)}")
        return int(address[0])

    def device_of(self, address: int) -> int:
        """The device that an address belongs to, -1 for the host's memory."""
        device = self.ffi.new(self._number)
        code = self._by_number.device_of(address, device)
        self.require(code, f"{self.name}: asking where an array lies")
        return int(device[0])

    def free(self, address: int, stream: int) -> None:
        """Give memory back, in the order of a stream."""
        self._by_number.free(address, stream)

    def is_captured(self, stream: int) -> tuple[int, bool]:
        """Whether a stream is being captured into a graph, behind a code."""
        capturing = self.ffi.new(self._number)
        return self._by_number.capturing(stream, capturing), bool(capturing[0])

    def read(self, host: np.ndarray, address: int, size: int, stream: int) -> None:
        """Copy bytes to the host; waits for the stream. Raises DeviceError."""
        code = self.lib.cellgen_cuda_read(
            self.ffi.from_buffer(host), self.pointer(address), size, self.pointer(stream)
        )
        self.require(code, f"{self.name}: copying to the host, {stream_text(stream)}")

    def write(self, address: int, host: np.ndarray, size: int, stream: int) -> None:
        """Copy bytes to the device. Raises DeviceError."""
        code = self.lib.cellgen_cuda_write(
            self.pointer(address), self.ffi.from_buffer(host), size, self.pointer(stream)
        )
        self.require(code, f"{self.name}: copying to the device, {stream_text(stream)}")

    def devices(self) -> int:
        """Count the devices. Raises DeviceError without driver or device."""
        count = self.ffi.new("int *")
        self.require(self.lib.cellgen_cuda_devices(count), f"{self.name}: looking for devices")
        if count[0] == 0:
            raise DeviceError(f"{self.name}: {HINTS[100]}")
        return int(count[0])

    def capability(self, device: int) -> int:
        """The compute capability of a device, ten times."""
        capability = self.ffi.new("int *")
        code = self.lib.cellgen_cuda_capability(device, capability)
        self.require(code, f"{self.name}: asking device {device} what it is")
        return int(capability[0])

    def load(self, device: int, dtype: str, function: str, kinds: Sequence[str]) -> bool:
        """Load kernels of a function that are not there yet; return whether there were any.

        Nothing is to be done where they are part of the library. Raises BuildError, DeviceError.
        """
        if self._halves is None:
            return False
        wanted = [(device, dtype, ImagePart.of(kind, function)) for kind in kinds]
        if self._images.issuperset(wanted):
            return False
        with self._lock:
            lacking = [one for one in wanted if one not in self._images]
            halves, capability = self._halves, self.capability(device)
            with ThreadPoolExecutor(len(kinds)) as pool:
                images = pool.map(lambda one: halves.image(dtype, capability, one[2]), lacking)
            for one, image in zip(lacking, images, strict=True):
                place = halves.place(dtype, one[2])
                code = self.of(dtype).cellgen_cuda_load(device, place, self.ffi.from_buffer(image))
                self.require(code, f"{self.name}: loading kernels of {dtype} onto device {device}")
                self._images.add(one)
        return True

    def on(self, device: int) -> Current:
        """Make a device current for the body of a ``with``. Raises DeviceError."""
        return Current(self, device)

    def pointer(self, address: int) -> object:
        """An address as C takes it."""
        return self.ffi.cast("void *", address)


class Current:
    """A device, current for the body of a ``with``; then the one before is."""

    def __init__(self, library: DeviceLibrary, device: int) -> None:
        self._library, self._device = library, device
        self._before = library.ffi.new("int *")

    def __enter__(self) -> None:
        code = self._library.lib.cellgen_cuda_use(self._device, self._before)
        self._library.require(code, f"{self._library.name}: taking device {self._device}")

    def __exit__(self, *_: object) -> None:
        if self._before[0] != self._device:
            self._library.lib.cellgen_cuda_use(self._before[0], self._library.ffi.new("int *"))
