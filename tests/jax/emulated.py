"""Send arrays of the CPU the way of arrays on a device: to the CUDA kernels, in their emulation.

``emulated_device()`` puts CUDA's row of the table of platforms, emulated, in the place of that of
the CPU. Everything between a function and the launch of a kernel is then what runs on a device.
What XLA has there and not on a CPU, a stream and memory, ``emulated.c`` gives the handler.
"""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import jax

from cellgen.jax import handler, programs
from cellgen.jax.platforms import PLATFORMS, CudaPlatform
from cellgen.jax.registry import find
from cellgen.runtime.device import nvcc

SOURCE = Path(__file__).with_name("emulated.c")
TARGET = "cellgen_emulated_call"
STREAMS = 0x1000
"""The stream of device 0, that of device 1 follows; as in ``emulated.c``."""
NO_STREAM, NO_MEMORY = 1, 2


class Emulated:
    """XLA as a device has it: what was asked of it, and what it refuses."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.counts = (ctypes.c_int64 * 3).in_dll(library, "emulated_counts")
        self.lacks = ctypes.c_int.in_dll(library, "emulated_lacks")
        self.devices = ctypes.c_int.in_dll(library, "emulated_devices")

    @property
    def calls(self) -> int:
        """Calls so far."""
        return self.counts[0]

    @property
    def allocated(self) -> int:
        """Bytes so far."""
        return self.counts[1]

    @property
    def held(self) -> int:
        """Allocations that nobody has given back."""
        return self.counts[2]

    @contextmanager
    def lacking(self, what: int) -> Iterator[None]:
        """Refuse a stream, or memory, in the body."""
        self.lacks.value = what
        try:
            yield
        finally:
            self.lacks.value = 0


@functools.cache
def _emulated() -> Emulated:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "emulated.so"
        flags = ("-x", "c", "-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC")
        include = f"-I{jax.ffi.include_dir()}"
        command = [*nvcc.cxx().command, *flags, include, str(SOURCE), "-o", str(place), "-lpthread"]
        subprocess.run(command, check=True)
        library = ctypes.CDLL(str(place))
    call = ctypes.cast(handler._handler().cellgen_device_call, ctypes.c_void_p)
    library.emulated_set.argtypes = (ctypes.c_void_p,)
    library.emulated_set(call)
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(library.emulated_call), platform="cpu")
    return Emulated(library)


@contextmanager
def emulated_device() -> Iterator[Emulated]:
    """Run cells on arrays of the CPU as on a device for the body."""
    there = _emulated()
    with mock.patch.dict(PLATFORMS, cpu=CudaPlatform(TARGET, emulated=True)):
        _forget_programs()
        try:
            yield there
        finally:
            _forget_programs()
    assert not there.held


def _forget_programs() -> None:
    """A program knows its place."""
    programs._compiled.cache_clear()
    jax.clear_caches()


@contextmanager
def two_devices(cell: str) -> Iterator[None]:
    """Let the emulation have two devices, each with a stream that the other refuses."""
    library, count = find(cell).kernel_of(emulated=True).library(), _emulated().devices
    for device in range(2):
        library.lib.cellgen_emulation_stream(library.pointer(STREAMS + device), device)
    library.lib.cellgen_emulation_machine(2, 1, 80)
    count.value = 2
    try:
        yield
    finally:
        count.value = 1
        library.lib.cellgen_emulation_machine(1, 0, 80)
