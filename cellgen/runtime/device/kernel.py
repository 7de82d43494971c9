"""Call a cell's CUDA kernels on device arrays, by the names of its equations.

Input: an ``Interface`` and the text of the cell's ``.cu``. Output: ``CudaKernel``, with the
functions that ``Kernel`` has. Arrays are anything with ``__dlpack__`` or
``__cuda_array_interface__`` (PyTorch, CuPy, JAX), or this module's ``DeviceArray``; they are
neither copied nor converted. Calls launch on the caller's stream and return without waiting.
float32, float64, and bfloat16 with float32 arithmetic. Results are made by the library of the
arguments where it can be asked (PyTorch, CuPy), else they are ``DeviceArray``.
SavedSteps and rows of arrays over time may lie any distance apart; other arrays are contiguous.
"""

from __future__ import annotations

import ctypes
import functools
import math
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import cffi
import numpy as np

from cellgen import accept
from cellgen.errors import ArgumentError, BuildError, DeviceError
from cellgen.runtime.abi import (
    ABI_VERSION,
    ERROR_CODES,
    Argument,
    Function,
    Interface,
    axis_length,
    axis_terms,
)
from cellgen.runtime.build.compiler import Built
from cellgen.runtime.build.sources import SourceFiles
from cellgen.runtime.call.arguments import (
    as_scalar,
    divide_dims,
    has_elements,
    refuse_overflow,
    shape_text,
    suggestion,
    take_out,
)
from cellgen.runtime.call.outputs import Outputs, interface_of, shown_steps
from cellgen.runtime.call.saved import (
    ForwardRun,
    Saved,
    SavedSteps,
    is_on,
    make_saved,
    read_saved,
    same_number,
    steps_in,
    steps_of,
)
from cellgen.runtime.call.settings import checked_options, numbers
from cellgen.runtime.device import cublas, nvcc
from cellgen.runtime.device.cuda_abi import CUDA_STORES, cuda_cdef, cuda_symbols, over_time
from cellgen.runtime.device.graphs import Graphs, Launch, stream_text
from cellgen.runtime.imports import whole_imports
from cellgen.runtime.kernel import ARRIVALS, require_abi
from cellgen.runtime.names import c_member
from cellgen.runtime.options import (
    BY_ROW,
    NONE,
    OF_OPTIONS,
    TABLE,
    Options,
    device_members,
)
from cellgen.runtime.results import Results, result_class

Stream: TypeAlias = object
"""An address, an object with ``cuda_stream`` (PyTorch), ``ptr`` (CuPy) or ``__cuda_stream__``."""

SUFFIXES = {dtype: suffix for suffix, _, dtype in CUDA_STORES}
BYTES = {"float32": 4, "float64": 8, "bfloat16": 2, "int64": 8, "bool": 1, "uint8": 1}
CUDA_ERROR, CUBLAS_STATUS, DOES_NOT_FIT, NO_CUBLAS = 1000, 2000, 2998, 2999
"""Where the codes of ``cellgen_cuda.cuh`` begin."""
ON_DEVICE = (2, 13)
"""Device types of DLPack: CUDA memory, managed memory."""
_KINDS = {(2, 32): "float32", (2, 64): "float64", (4, 16): "bfloat16"}
_KINDS |= {(0, 64): "int64", (6, 8): "bool", (1, 8): "uint8"}
_TYPESTRS = {"<f4": "float32", "<f8": "float64", "<i8": "int64", "|b1": "bool", "|u1": "uint8"}


TIERS = {"auto": 0, "steps": 1, "whole": 2, "fragments": 3}
TABLES = {o.name: o for o in OF_OPTIONS if o.kind == BY_ROW and o.on_device}
"""Options over time that are arrays."""


_HINTS = {
    2: "the device has no memory left: fewer rows or steps at a time, or free arrays",
    35: "no driver is loaded, or one older than the compiler's runtime: run nvidia-smi",
    100: "no CUDA device was found: is one visible (CUDA_VISIBLE_DEVICES, nvidia-smi)?",
    101: "no device has that number: nvidia-smi lists them, CUDA_VISIBLE_DEVICES hides some",
    209: f"the code is for other devices: {nvcc.ARCHITECTURE_VARIABLE} names another target",
    400: "the stream is of another device or was destroyed: pass one of the arrays' device",
    719: "a kernel failed on the device: the context is lost, restart the process",
    900: "the stream cannot be captured in a graph",
    700: "a kernel read or wrote outside an array: the context is lost, restart the process",
    999: "the driver failed, or there is none: run nvidia-smi",
}
"""What to do about a CUDA error."""


@dataclass(frozen=True)
class DeviceView:
    """What a call needs to know of an array: where it is, and what; device -1 is not known yet.

    ``strides`` are in elements, None where nothing has gaps.
    """

    pointer: int
    shape: tuple[int, ...]
    dtype: str
    device: int
    strides: tuple[int, ...] | None = None
    writable: bool = True

    @property
    def contiguous(self) -> bool:
        """Whether nothing has gaps."""
        return self.strides is None

    @property
    def apart(self) -> tuple[int, ...]:
        """Elements from one index to the next, of every axis."""
        return _dense(self.shape) if self.strides is None else self.strides

    def swapped(self) -> DeviceView:
        """The same with its first two axes swapped."""
        if len(self.shape) < 2:
            return self
        (first, second, *rest), (one, other, *others) = self.shape, self.apart
        shape, strides = (second, first, *rest), (other, one, *others)
        return replace(self, shape=shape, strides=_with_gaps(shape, strides))


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _with_gaps(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Strides in elements, or None where they leave no gaps."""
    if strides is None or 0 in shape:
        return None
    pairs = zip(shape, strides, _dense(shape), strict=True)
    return strides if any(n != 1 and one != other for n, one, other in pairs) else None


class DeviceArray:
    """Memory on a device, made by a kernel; offers ``__cuda_array_interface__`` (not bfloat16)."""

    def __init__(
        self, library: _Library, shape: tuple[int, ...], dtype: str, device: int, stream: int
    ) -> None:
        size = max(1, math.prod(shape) * BYTES[dtype])
        self.shape, self.dtype, self.device, self._stream = shape, dtype, device, stream
        self._library = library
        self.pointer = library.allocate(device, size, stream)

    def __del__(self) -> None:
        if getattr(self, "pointer", 0):
            self._library.free(self.pointer, self._stream)

    def __repr__(self) -> str:
        return f"DeviceArray({self.shape}, {self.dtype}, device={self.device})"

    def __reduce__(self) -> tuple[object, ...]:
        raise DeviceError(
            f"{self!r}: an array on a device can be neither pickled nor copied, expected one in "
            f"the host's memory; send what .numpy() returns"
        )

    @property
    def bytes(self) -> int:
        """Bytes that it takes."""
        return math.prod(self.shape) * BYTES[self.dtype]

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        if self.dtype == "bfloat16":
            raise AttributeError("__cuda_array_interface__ has no bfloat16")
        return {
            "shape": self.shape,
            "typestr": {dtype: text for text, dtype in _TYPESTRS.items()}[self.dtype],
            "data": (self.pointer, False),
            "version": 3,
            "stream": self._stream or 1,
        }

    def numpy(self) -> np.ndarray:
        """Copy to the host; waits for the stream. bfloat16 comes as float32."""
        wide = self.dtype == "bfloat16"
        host = np.empty(self.shape, np.uint16 if wide else self.dtype)
        self._library.read(host, self.pointer, self.bytes, self._stream)
        return (host.astype(np.uint32) << 16).view(np.float32) if wide else host


class DevicePart:
    """Some steps of a ``DeviceArray``, where they lie."""

    def __init__(self, whole: DeviceArray, axis: int, steps: slice) -> None:
        lengths, strides = list(whole.shape), list(_dense(whole.shape))
        self._whole, self._index = whole, (*(slice(None),) * axis, steps)
        self.dtype, self.device = whole.dtype, whole.device
        self.pointer = whole.pointer
        found = range(lengths[axis])[steps]
        if found:
            self.pointer += found.start * strides[axis] * BYTES[whole.dtype]
        lengths[axis], strides[axis] = len(found), strides[axis] * found.step
        self.shape = tuple(lengths)
        self._strides = tuple(stride * BYTES[whole.dtype] for stride in strides)

    def __repr__(self) -> str:
        return f"DevicePart({self.shape}, {self.dtype}, device={self.device})"

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        lent = self._whole.__cuda_array_interface__
        data = (self.pointer, False)
        return {**lent, "shape": self.shape, "data": data, "strides": self._strides}

    def numpy(self) -> np.ndarray:
        """Copy to the host; waits for the stream. bfloat16 comes as float32."""
        return np.ascontiguousarray(self._whole.numpy()[self._index])


def shown_part(whole: Any, options: Options) -> object:
    """Look at the steps of an output that a call shows."""
    axis, steps = int(options.batch_first), shown_steps(options)
    if isinstance(whole, DeviceArray):
        return DevicePart(whole, axis, steps)
    return whole[:, steps] if axis else whole[steps]


class _Library:
    """A loaded shared library of one cell."""

    def __init__(self, path: str, interface: Interface) -> None:
        self.name = interface.name
        with whole_imports():  # cffi imports its parser when it is used
            self.ffi = cffi.FFI()
            self.ffi.cdef(cuda_cdef(interface))
        try:
            self.lib: Any = self.ffi.dlopen(path)
        except OSError as error:
            raise BuildError(f"cannot load {path}: {error}", code="build.load") from error

    def error(self, code: int) -> str:
        """Say what a code means and what to do."""
        if code < CUDA_ERROR:
            return ERROR_CODES.get(code, f"code {code}")
        if code == NO_CUBLAS:
            return "cuBLAS cannot be opened"
        if code == DOES_NOT_FIT:
            return "the recurrent weights do not fit a block's shared memory; use tier='steps'"
        if code >= CUBLAS_STATUS:
            return f"cuBLAS status {code - CUBLAS_STATUS}"
        text = self.ffi.string(self.lib.cellgen_cuda_error_text(code)).decode()
        hint = _HINTS.get(code - CUDA_ERROR)
        return f"CUDA error {code - CUDA_ERROR}, {text}" + (f"; {hint}" if hint else "")

    def require(self, code: int, where: str) -> None:
        if code:
            raise DeviceError(f"{where}: {self.error(code)}")

    def allocate(self, device: int, size: int, stream: int) -> int:
        address = self.ffi.new("void **")
        code = self.lib.cellgen_cuda_allocate(device, size, self._pointer(stream), address)
        if code == CUDA_ERROR + 2:
            raise MemoryError(
                f"{self.name}: no memory for {size:,} bytes on device {device}: {self.error(code)}"
            )
        if code:
            what = f"{self.name}: taking {size:,} bytes on device {device}, {stream_text(stream)}"
            raise DeviceError(f"{what}: {self.error(code)}")
        return int(self.ffi.cast("uintptr_t", address[0]))

    def device_of(self, address: int) -> int:
        """The device that an address belongs to, -1 for the host's memory."""
        device = self.ffi.new("int *")
        code = self.lib.cellgen_cuda_device_of(self._pointer(address), device)
        self.require(code, f"{self.name}: asking where an array lies")
        return int(device[0])

    def free(self, address: int, stream: int) -> None:
        self.lib.cellgen_cuda_free(self._pointer(address), self._pointer(stream))

    def read(self, host: np.ndarray, address: int, size: int, stream: int) -> None:
        code = self.lib.cellgen_cuda_read(
            self.ffi.from_buffer(host), self._pointer(address), size, self._pointer(stream)
        )
        self.require(code, f"{self.name}: copying to the host, {stream_text(stream)}")

    def write(self, address: int, host: np.ndarray, size: int, stream: int) -> None:
        code = self.lib.cellgen_cuda_write(
            self._pointer(address), self.ffi.from_buffer(host), size, self._pointer(stream)
        )
        self.require(code, f"{self.name}: copying to the device, {stream_text(stream)}")

    def devices(self) -> int:
        """Count the devices. Raises DeviceError without driver or device."""
        count = self.ffi.new("int *")
        self.require(self.lib.cellgen_cuda_devices(count), f"{self.name}: looking for devices")
        if count[0] == 0:
            raise DeviceError(f"{self.name}: {_HINTS[100]}")
        return int(count[0])

    def capability(self, device: int) -> int:
        """The compute capability of a device, ten times."""
        found = self.ffi.new("int *")
        code = self.lib.cellgen_cuda_capability(device, found)
        self.require(code, f"{self.name}: asking device {device} what it is")
        return int(found[0])

    @contextmanager
    def on(self, device: int) -> Iterator[None]:
        """Make a device current for the body."""
        before = self.ffi.new("int *")
        code = self.lib.cellgen_cuda_use(device, before)
        self.require(code, f"{self.name}: taking device {device}")
        try:
            yield
        finally:
            self.lib.cellgen_cuda_use(before[0], self.ffi.new("int *"))

    def _pointer(self, address: int) -> object:
        return self.ffi.cast("void *", address)


class CudaKernel:
    """A cell whose functions run on a CUDA device; compiled and loaded when first needed.

    ``emulated`` runs the same text on the CPU: slow, for proofs. Pickled, it travels as its
    interface and its sources, and is compiled where it arrives unless the cache there has it.
    """

    def __init__(
        self, interface: Interface, sources: SourceFiles, *, emulated: bool = False
    ) -> None:
        self.name, self.interface, self.emulated = interface.name, interface, emulated
        self.functions = {f.name: CudaFunction(self, f) for f in interface.functions}
        self._sources = sources
        self._library: _Library | None = None
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

    def __reduce__(self) -> tuple[object, ...]:
        return _arrived, (ABI_VERSION, self.interface, self._sources, self.emulated)

    def __copy__(self) -> CudaKernel:
        return self

    def __deepcopy__(self, memo: object) -> CudaKernel:
        return self

    def __repr__(self) -> str:
        return f"<CUDA kernel {self.name}: {', '.join(self.functions)}>"

    def digest(self) -> str:
        """Identify what the kernel computes; see ``Kernel.digest``."""
        if not self._digest:
            self._digest = self._sources.digest
        return self._digest

    def build(self) -> Built:
        """Compile the library unless the cache has it, and load it. Raises BuildError."""
        with self._lock:
            built = nvcc.build(self._sources, self.interface, emulated=self.emulated)
            if self._library is None:
                self._library = _Library(str(built.path), self.interface)
            return built

    def library(self) -> _Library:
        """The library, loaded once."""
        if self._library is None:
            self.build()
        assert self._library is not None
        return self._library

    def devices(self) -> int:
        """Count the devices. Raises DeviceError: no driver, no device, or the first is too old."""
        self.require_device(0)
        return self.library().devices()

    def require_device(self, device: int) -> None:
        """Check, once, that a device is there and new enough for the code. Raises DeviceError."""
        if device in self._usable:
            return
        library, needed = self.library(), nvcc.oldest()
        count = library.devices()
        if not 0 <= device < count:
            raise DeviceError(
                f"{self.name}: device {device} is not there, expected one of 0 to {count - 1}: "
                f"{_HINTS[101]}"
            )
        found = library.capability(device)
        if found < needed:
            raise DeviceError(
                f"{self.name}: device {device} has compute capability {found / 10}, expected "
                f"{needed / 10} or newer; use another device, or the C kernel: "
                f"cellgen.load({self.name!r})"
            )
        self._usable.add(device)

    def array(
        self, values: np.ndarray, *, dtype: str = "", device: int = 0, stream: int = 0
    ) -> DeviceArray:
        """Copy a NumPy array to a device, for programs without another library."""
        name = dtype or str(values.dtype)
        library = self.library()
        self.require_device(device)
        with library.on(device):
            made = DeviceArray(library, values.shape, name, device, stream)
            host = np.ascontiguousarray(values, np.float32 if name == "bfloat16" else name)
            host = to_bfloat16(host) if name == "bfloat16" else host
            library.write(made.pointer, host, made.bytes, stream)
        return made

    def blas(self, device: int, path: str = "") -> object:
        """Open cuBLAS for this thread and device; NULL and a warning where it is not installed."""
        library = self.library()
        key = (device, threading.get_ident())
        if key not in self._blas:
            self._blas[key] = library.ffi.NULL if self.emulated else _open_blas(library, path)
            if self._blas[key] == library.ffi.NULL and not self.emulated:
                warn_of_slow_products(self.name)
        return self._blas[key]


@functools.lru_cache(maxsize=ARRIVALS)
def _arrived(abi: int, interface: Interface, sources: SourceFiles, emulated: bool) -> CudaKernel:
    """Make a kernel again from a pickle. Raises BuildError: another version of cellgen."""
    require_abi(interface.name, abi)
    return CudaKernel(interface, sources, emulated=emulated)


def _open_blas(library: _Library, path: str) -> object:
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


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Round float32 to bfloat16, to nearest even; the result holds bits (uint16)."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


# --- calls ------------------------------------------------------------------------------------


class CudaFunction:
    """One function of a kernel: checks its arguments, launches, returns a named tuple."""

    def __init__(self, kernel: CudaKernel, function: Function) -> None:
        self.__name__ = function.name
        self.__qualname__ = f"{kernel.name}.{function.name}"
        self.function = function
        self._kernel = kernel
        self._saves = tuple(item.name for item in function.results if item.saved)
        self._takes = tuple(item.name for item in function.arguments if item.saved)
        self._defaults = {a.name: a.default for a in function.arguments if a.is_scalar}
        self._fields = tuple(item.name for item in function.results if not item.saved)
        self._results = tuple(item.name for item in function.results)
        self._is_forward = function.name == "sequence_forward"
        named = ((a.name, a) for a in function.arguments)
        made = ((f"out {a.name}", a) for a in function.results)
        self._turned = {name for name, a in (*named, *made) if a.over_time}
        extra = ("saved",) if self._is_forward else ()
        self.result = result_class(function.name, (*self._fields, *extra))
        self._outputs = Outputs(self.__qualname__, function)
        self.graphs = Graphs()

    def __repr__(self) -> str:
        return f"<CUDA kernel function {self.__qualname__}>"

    def __reduce__(self) -> tuple[object, ...]:
        return getattr, (self._kernel, self.__name__)

    def __call__(
        self,
        /,
        *,
        out: Mapping[str, object] | None = None,
        save: bool = False,
        saved: Saved | Mapping[str, object] | None = None,
        stream: Stream = None,
        tier: str = "auto",
        graph: bool | None = None,
        **arguments: object,
    ) -> Results:
        """Launch the function on a stream. Raises ArgumentError, DeviceError, MemoryError.

        ``tier`` says how functions over time run: ``"steps"`` one launch for each level and step,
        ``"whole"`` all steps in one launch where the cell allows it, to the same bits,
        ``"fragments"`` the same with matrix units, of bfloat16 only, ``"auto"`` as the cost model
        of ``cellgen_cuda_tiers.cuh`` chooses.

        ``graph`` says whether a function over time replays its launches as a CUDA graph: True
        always, False never, None from the second call on with the same arrays. Into a stream that
        the caller captures, kernels are launched as they are. Graphs keep a workspace;
        ``function.graphs.clear()`` gives it back.

        Functions over time take the options of the C kernels whose row in ``options.TABLE`` says
        that devices have them. Their arrays lie on the device, ``lengths`` of int64; a length
        outside 0 to T counts as the nearer of the two.
        """
        where = self.__qualname__
        tier, save = accept.choice(where, "tier", tier, TIERS), accept.flag(where, "save", save)
        if graph is not None and accept.flag(where, "graph", graph) and not self.function.team:
            raise self._fault("graph is an option of functions over time; leave it out")
        kept, run = self._take_saved(arguments, saved)
        options = self._take_options(arguments, tier, save=save)
        self._refuse_options(arguments)
        if save and options.stated.every != 1 and out is not None:
            self._outputs.refuse_copies(take_out(where, self._results, out), options.stated)
        arguments |= kept  # after the options, whose names a value may have
        given = {n: a for n, a in arguments.items() if a is not None}
        scalars = self._take_scalars(given)
        self._check_names(given)
        results: dict[str, object] = {}
        if out is not None:
            results.update(take_out(self.__qualname__, self._results, out))
        handle = stream_handle(stream, given.values())
        arrays = {**given, **_labelled(results), **options.labelled}
        with _looked_at(self.__qualname__, arrays, handle) as views:
            library = self._kernel.library()
            self._find_devices(library, views)
            tables = {n: views.pop(n) for n in options.labelled}
            if options.chosen.batch_first:
                tables = {n: v.swapped() for n, v in tables.items()}
                views.update((n, v.swapped()) for n, v in views.items() if n in self._turned)
            function = interface_of(self.function, options.chosen.every)
            dims, dtype, device = self._check(views, function)
            self._check_sizes(run, dims, dtype, tier)
            self._check_tables(tables, dims, device, batch_first=options.chosen.batch_first)
            self._kernel.require_device(device)
            with library.on(device):
                self._make_results(
                    results, views, given, dims, dtype, device, save, handle, options
                )
                settings: dict[str, object] = {**options.settings, "tier": TIERS[tier]}
                if self.function.team:
                    settings |= self._layout(views, tables, dims)
                settings |= {n.removeprefix("option "): v.pointer for n, v in tables.items()}
                if has_elements(self.function.results, dims):
                    call = self._call(views, scalars, dims, dtype, device, handle, settings)
                    self._launch(call, graph if self.function.team else False)
        if not self._is_forward:
            return tuple.__new__(self.result, [results.get(name) for name in self._fields])
        made = self._kept(results, dims, scalars, options.stated) if save else None
        if made is not None:
            results |= {n: shown_part(a, options.stated) for n, a in made._whole.items()}
        return tuple.__new__(self.result, [*(results.get(name) for name in self._fields), made])

    def _kept(
        self,
        results: Mapping[str, object],
        dims: Mapping[str, int],
        scalars: Mapping[str, float],
        options: Options,
    ) -> Saved:
        """Put what was saved together with how the run was made; its tables stay on the device."""
        how = SavedSteps(*(getattr(options, name) for name in SavedSteps._fields))
        names = self.function.dims
        sizes = tuple(dims[name] for name in names)
        digest = self._kernel.digest()
        run = ForwardRun(self._kernel.name, digest, names, sizes, tuple(scalars.items()), how)
        whole = {n: results[n] for n in self._outputs.names if options.every != 1}
        return make_saved(self._saves, tuple(results[n] for n in self._saves), run, whole)  # type: ignore[misc,arg-type]

    def _take_saved(
        self, arguments: dict[str, object], saved: object
    ) -> tuple[dict[str, object], ForwardRun | None]:
        """Return what was saved, and add the options of its run to the arguments.

        Raises ArgumentError.
        """
        if saved is None:
            return {}, None
        arrays, run = read_saved(self.__qualname__, self._takes, saved, self._kernel.digest())
        if run is None or not isinstance(saved, Saved):
            return {**arrays}, None
        known = {item.name for item in self.function.arguments}
        for name, kept in run.scalars:
            if name in self._defaults:
                default = self._defaults[name]
                given = as_scalar(self.__qualname__, name, arguments.get(name, kept), default)
                if not same_number(given, kept):
                    raise self._fault(
                        f"{name} is {given!r}, but the run that saved had {kept!r}; leave it out"
                    )
                arguments[name] = given
        stated = steps_in(arguments)
        turned = None not in (stated.batch_first, run.steps.batch_first)
        turned = turned and is_on(stated.batch_first) != run.steps.batch_first
        for name in ("mask", "reset"):
            if turned and getattr(stated, name) is None and getattr(run.steps, name) is not None:
                raise self._fault(
                    f"{name} of the run that saved is laid out for batch_first="
                    f"{run.steps.batch_first}, expected as batch_first={stated.batch_first} says; "
                    f"pass {name} turned, or leave batch_first out"
                )
        steps = steps_of(self.__qualname__, run, stated, self._same)
        arguments.update(steps._asdict())
        whole = {n: a for n, a in saved._whole.items() if n in known}
        if whole and is_on(steps.batch_first) != run.steps.batch_first:
            raise self._fault(
                f"{', '.join(whole)} of all steps, which saved holds, are laid out for batch_first="
                f"{run.steps.batch_first}, expected as batch_first={steps.batch_first} says; leave "
                f"batch_first out"
            )
        for name in whole:  # what the run showed of it
            arguments.pop(name, None)
        return {**arrays, **whole}, run

    def _same(self, name: str, given: object, own: object) -> bool:
        """Raise ArgumentError for another array than that of a run: contents would take waiting."""
        if not _same_place(given, own):
            raise self._fault(
                f"{name} is another array than the run that saved had (contents on a device are "
                f"not compared); pass that one, or leave {name} out"
            )
        return True

    def _check_sizes(
        self, run: ForwardRun | None, dims: Mapping[str, int], dtype: str, tier: str
    ) -> None:
        """Refuse a call that does not fit what it is given.

        Raises ArgumentError where it has other dimensions than the run that saved, more bytes than
        can be counted, or a dtype that a tier has not.
        """
        refuse_overflow(self.__qualname__, self.function, dims, BYTES[dtype])
        if tier == "fragments" and dtype != "bfloat16":
            raise self._fault(
                f"tier is 'fragments' and arrays are {dtype}: matrix units take bfloat16 only; "
                f"use tier='whole'"
            )
        for name, size in zip(run.dims, run.sizes, strict=True) if run else ():
            if dims.get(name, size) != size:
                raise self._fault(
                    f"arguments have {name} = {dims[name]}, but saved is of a run with {name} = "
                    f"{size}; pass the arguments and results of that run"
                )

    def _take_options(self, arguments: dict[str, object], tier: str, *, save: bool) -> _Options:
        """Take the options over time out of the arguments. Raises ArgumentError."""
        if not self.function.team:
            return _Options({}, {})
        mine = [o for o in OF_OPTIONS if o.on_device and self.__name__ in o.functions]
        chosen: dict[str, Any] = {o.name: arguments.pop(o.name, o.default) for o in mine}
        options = stated = checked_options(self.__qualname__, chosen)
        self._outputs.refuse_both(stated)
        if save:
            options = self._outputs.when_saving(stated)
        tables = {f"option {n}": chosen[n] for n in TABLES if chosen[n] is not None}
        if tables and tier in ("whole", "fragments"):
            raise self._fault(
                f"tier is {tier!r}, and all steps run in one launch only where every step counts; "
                "leave out lengths, mask and reset, or use tier='steps'"
            )
        on_device = {member.name for member in device_members()}
        settings = {name: n for name, n in numbers(options).items() if name in on_device}
        return _Options(tables, settings, options, stated)

    def _check_tables(
        self,
        tables: Mapping[str, DeviceView],
        dims: Mapping[str, int],
        device: int,
        *,
        batch_first: bool,
    ) -> None:
        """Check the arrays that say which steps count. Raises ArgumentError."""
        for label, view in tables.items():
            name = label.removeprefix("option ")
            axes, dtypes = TABLES[name].axes, TABLES[name].dtypes
            shape = tuple(dims[axis] for axis in axes)
            if view.dtype not in dtypes or view.shape != shape:
                order = slice(None, None, -1 if batch_first else 1)
                seen = view.shape[order] if len(view.shape) == 2 else view.shape
                raise self._fault(
                    f"{name} is {view.dtype} of shape {seen}, expected {dtypes[0]} of shape "
                    f"({', '.join(axes[order])}) = {shape[order]}"
                )
            is_apart = name == "lengths" and not view.contiguous
            if view.device != device or is_apart:
                raise self._fault(
                    f"{name} is on device {view.device}{' and not contiguous' if is_apart else ''}"
                    f", expected {'a contiguous' if is_apart else 'an'} array on device {device}, "
                    f"where the other arrays are"
                )

    def _refuse_options(self, arguments: dict[str, object]) -> None:
        """Take options of the C kernels out of the arguments; only what asks for nothing passes."""
        own = ("save", "saved")
        for option in TABLE:
            name = option.name
            value = None if option.on_device or name in own else arguments.pop(name, None)
            if value is not None and value is not False:
                raise self._fault(
                    f"{name} is an option of the C kernels that CUDA kernels do not have yet; "
                    f"leave it out, or use the C kernel: cellgen.load(...)"
                )

    def _take_scalars(self, given: dict[str, object]) -> dict[str, float]:
        where, defaults = self.__qualname__, self._defaults
        return {n: as_scalar(where, n, given.pop(n, d), d) for n, d in defaults.items()}

    def _check_names(self, given: Mapping[str, object]) -> None:
        known = [item.name for item in self.function.arguments]
        for name in given:
            if name not in known:
                raise self._fault(f"unknown argument {name!r}; {suggestion(name, known)}")
        for item in self.function.struct_members:
            if not (item.optional or item.is_scalar) and item.name not in given:
                raise self._fault(
                    f"argument {item.name} is missing, expected a device array "
                    f"{shape_text(item)}; pass {item.name}=..."
                )

    def _find_devices(self, library: _Library, views: dict[str, DeviceView]) -> None:
        """Ask the driver where arrays lie that do not say so themselves."""
        for name, view in views.items():
            if view.device >= 0:
                continue
            device = library.device_of(view.pointer) if view.pointer else 0
            if device < 0:
                raise self._fault(f"{name} lies in the host's memory; move it to the device")
            views[name] = replace(view, device=device)

    def _check(
        self, views: Mapping[str, DeviceView], function: Function
    ) -> tuple[dict[str, int], str, int]:
        """Check dtypes, devices, memory and shapes; return dimensions, dtype and device."""
        first_name, first = next(iter(views.items()))
        dims: dict[str, int] = {}
        origins: dict[str, str] = {}
        items = {item.name: item for item in function.arguments}
        items |= {f"out {item.name}": item for item in function.results}
        for name, view in views.items():
            self._check_view(name, view, first_name, first)
            if len(view.shape) != len(items[name].shape):
                raise self._fault(
                    f"{name} has {len(view.shape)} axes, expected {shape_text(items[name])}"
                )
            self._check_memory(name, view, items[name])
        for _ in self.function.dims:
            for name, view in views.items():
                for axis, length in zip(items[name].shape, view.shape, strict=True):
                    _solve(axis, length, name, dims, origins)
        for dim in self.function.dims:
            if dim not in dims:
                raise self._fault(f"no array given tells {dim}")
        divide_dims(dims, origins, tuple(items.values()))
        for name, view in views.items():
            expected = tuple(axis_length(axis, dims) for axis in items[name].shape)
            if view.shape != expected:
                told = ", ".join(f"{d} = {dims[d]} from {o}" for d, o in origins.items())
                raise self._fault(
                    f"{name} is {view.shape}, expected {shape_text(items[name])} = {expected} "
                    f"with {told}"
                )
        return dims, first.dtype, first.device

    def _check_view(self, name: str, view: DeviceView, first_name: str, first: DeviceView) -> None:
        if view.dtype not in SUFFIXES:
            raise self._fault(f"{name} is {view.dtype}, expected one of {', '.join(SUFFIXES)}")
        if view.dtype != first.dtype:
            raise self._fault(
                f"{name} is {view.dtype} and {first_name} {first.dtype}; give all arrays one dtype"
            )
        if view.device != first.device:
            raise self._fault(
                f"{name} is on device {view.device} and {first_name} on device {first.device}; "
                f"move all arrays to one device"
            )
        if name.startswith("out ") and not view.writable:
            raise self._fault(f"{name} is read-only; give an array that can be written")

    def _check_memory(self, name: str, view: DeviceView, item: Argument) -> None:
        """Check the gaps of an array: between steps and rows of one over time, else nowhere."""
        free = 2 if item.over_time else 0
        if view.contiguous:
            return
        if _with_gaps(view.shape[free:], view.apart[free:]) is not None or not free:
            what = "has units that are not contiguous" if free else "is not contiguous"
            raise self._fault(
                f"{name} {what}, and nothing is copied behind your back; pass "
                f"{name.removeprefix('out ')}.contiguous() or its like"
            )
        dense = math.prod(view.shape[2:])
        moves = zip(view.apart[:2], view.shape[:2], strict=True)
        for stride, length in sorted((abs(s), n) for s, n in moves if n > 1):
            if stride < dense and name.startswith("out "):
                raise self._fault(
                    f"{name} has rows that share memory (shape {view.shape}, strides of "
                    f"{view.apart} elements), expected each in a place of its own"
                )
            dense = stride * length

    def _fault(self, what: str) -> ArgumentError:
        return ArgumentError(f"{self.__qualname__}: {what}")

    def _make_results(
        self,
        results: dict[str, object],
        views: dict[str, DeviceView],
        given: Mapping[str, object],
        dims: dict[str, int],
        dtype: str,
        device: int,
        save: bool,
        stream: int,
        options: _Options,
    ) -> None:
        like = next(iter(given.values()))
        for item in interface_of(self.function, options.chosen.every).results:
            if item.name in results or (item.saved and not save):
                continue
            if not self._outputs.is_formed(item.name, options.chosen):
                continue
            shape = tuple(axis_length(axis, dims) for axis in item.shape)
            turned = options.chosen.batch_first and item.over_time
            if turned:
                shape = (shape[1], shape[0], *shape[2:])
            made = _make(like, shape, dtype, device, self._kernel.library(), stream)
            results[item.name] = made
            view = _view_of_made(made, shape, dtype, device)
            views[f"out {item.name}"] = view.swapped() if turned else view

    def _layout(
        self,
        views: Mapping[str, DeviceView],
        tables: Mapping[str, DeviceView],
        dims: dict[str, int],
    ) -> dict[str, object]:
        """Tell how far apart steps and rows lie, of every array over time, mask and reset."""
        strides: list[int] = []
        found = []
        for item in over_time(self.function):
            view = views.get(item.name) or views.get(f"out {item.name}")
            shape = tuple(axis_length(axis, dims) for axis in item.shape)
            strides += _dense(shape)[:2] if view is None else view.apart[:2]
            found.append(view)
        for name in ("mask", "reset"):
            view = tables.get(f"option {name}")
            strides += (dims["B"], 1) if view is None else view.apart
            found.append(view)
        strided = any(view is not None and not view.contiguous for view in found)
        return {"strided": int(strided), "strides": strides if strided else [0] * len(strides)}

    def _call(
        self,
        views: Mapping[str, DeviceView],
        scalars: Mapping[str, float],
        dims: Mapping[str, int],
        dtype: str,
        device: int,
        stream: int,
        settings: Mapping[str, object],
    ) -> Launch:
        """Put together what the kernels depend on."""
        library = self._kernel.library()
        ffi, lib = library.ffi, library.lib
        names = cuda_symbols(self._kernel.interface, self.function, SUFFIXES[dtype])
        counted = {**dims, "T": 0} if self.function.team and not dims["B"] else dims
        lengths = [counted[name] for name in self.function.dims]
        blas = self._kernel.blas(device)
        args = ffi.new(f"{names.struct} *")
        for item in (*self.function.struct_members, *self.function.results):
            _set(ffi, args, item, views, scalars)
        for name, value in settings.items():
            setattr(args, name, ffi.cast(_TABLE_TYPES[name], value) if name in TABLES else value)
        how = [getattr(lib, names.how)(*lengths, args)] if self.function.team else []
        size = getattr(lib, names.workspace_size)(*lengths, int(blas != ffi.NULL), *how)
        args.workspace_bytes = size
        args.blas = blas
        key = repr((names.call, lengths, device, stream)).encode() + bytes(ffi.buffer(args))

        def run(on: int, workspace: int) -> int:
            """Launch the kernels."""
            args.workspace, args.stream = ffi.cast("void *", workspace), ffi.cast("void *", on)
            return int(getattr(lib, names.call)(*lengths, args))

        return Launch(self.__qualname__, key, device, stream, size, run)

    def _launch(self, call: Launch, graph: bool | None) -> None:
        """Launch a call, or replay it."""
        library = self._kernel.library()
        if graph is not False and self.graphs.launch(library, call, graph):
            return
        workspace = self._workspace(call)
        try:
            code = call.run(call.stream, workspace)
            if code:
                raise call.fault(library.error(code))
        finally:
            library.free(workspace, call.stream)

    def _workspace(self, call: Launch) -> int:
        """Take a workspace; where memory is short, graphs give theirs back first."""
        library = self._kernel.library()
        try:
            return library.allocate(call.device, call.size, call.stream)
        except MemoryError:
            if not len(self.graphs):
                raise
            self.graphs.clear()
            return library.allocate(call.device, call.size, call.stream)


@dataclass(frozen=True)
class _Options:
    """Options over time of one call, as its kernels run, and as it stated them.

    Arrays by label, members of the argument struct.
    """

    labelled: Mapping[str, object]
    settings: Mapping[str, int]
    chosen: Options = NONE
    stated: Options = NONE


_TABLE_TYPES = {"lengths": "int64_t *", "mask": "unsigned char *", "reset": "unsigned char *"}


def _solve(
    axis: str, length: int, name: str, dims: dict[str, int], origins: dict[str, str]
) -> None:
    """Learn a dimension from an axis that holds no other unknown one."""
    unknown = [(factor, dim) for factor, dim in axis_terms(axis) if dim and dim not in dims]
    if len(unknown) == 1:
        known = [(f, dims.get(d, 1)) for f, d in axis_terms(axis) if not d or d in dims]
        factor, dim = unknown[0]
        rest = length - sum(f * size for f, size in known)
        if rest >= 0 and rest % factor == 0:
            dims[dim] = rest // factor
            origins[dim] = name


def _set(
    ffi: cffi.FFI,
    args: object,
    item: Argument,
    views: Mapping[str, DeviceView],
    scalars: Mapping[str, float],
) -> None:
    """Fill one member of an argument struct; what is left out is NULL."""
    if item.is_scalar:
        setattr(args, c_member(item.name), scalars[item.name])
        return
    view = views.get(item.name) or views.get(f"out {item.name}")
    if view is not None:
        kind = ffi.typeof(args).item
        name = c_member(item.name)
        member = dict(kind.fields)[name].type
        # An empty array may have no address; the functions refuse NULL.
        setattr(args, name, ffi.cast(member, view.pointer or 1))


def _same_place(one: object, other: object) -> bool:
    """Whether two device arrays are the same memory; to compare contents would wait."""
    if one is other:
        return True
    places = [_place(array) for array in (one, other)]
    return places[0] is not None and places[0] == places[1]


def _place(array: object) -> int | None:
    if isinstance(array, DeviceArray):
        return array.pointer
    if hasattr(array, "data_ptr"):
        return int(array.data_ptr())
    interface = getattr(array, "__cuda_array_interface__", None)
    return int(interface["data"][0]) if isinstance(interface, dict) else None


def _labelled(out: Mapping[str, object]) -> dict[str, object]:
    return {f"out {name}": array for name, array in out.items()}


# --- arrays of other libraries ----------------------------------------------------------------


@contextmanager
def _looked_at(
    where: str, arrays: Mapping[str, object], stream: int
) -> Iterator[dict[str, DeviceView]]:
    """Look at arrays without copying; what they lend is given back at the end."""
    views: dict[str, DeviceView] = {}
    lent: list[Callable[[], None]] = []
    try:
        for name, array in arrays.items():
            views[name] = _look(where, name, array, stream, lent)
        yield views
    finally:
        for give_back in lent:
            give_back()


def _look(
    where: str, name: str, array: object, stream: int, lent: list[Callable[[], None]]
) -> DeviceView:
    if isinstance(array, DeviceArray):
        return DeviceView(array.pointer, array.shape, array.dtype, array.device)
    if hasattr(array, "__dlpack_device__"):
        kind, device = array.__dlpack_device__()
        if int(kind) not in ON_DEVICE:
            raise _on_host(where, name, array)
        try:
            capsule = array.__dlpack__(stream=stream or 1)  # type: ignore[attr-defined]
        except (BufferError, RuntimeError) as error:
            raise ArgumentError(f"{where}: {name} cannot be lent: {error}") from error
        return _from_dlpack(capsule, int(device), lent)
    interface = getattr(array, "__cuda_array_interface__", None)
    if isinstance(interface, dict):
        return _from_interface(where, name, interface)
    raise _on_host(where, name, array)


def _on_host(where: str, name: str, array: object) -> ArgumentError:
    kind = f"{type(array).__module__}.{type(array).__qualname__}".removeprefix("builtins.")
    return ArgumentError(
        f"{where}: {name} is a {kind} in the host's memory, expected a device array (with "
        f"__dlpack__ or __cuda_array_interface__); move it to the device, or use the C kernel: "
        f"cellgen.load(...) without target"
    )


def _from_interface(where: str, name: str, interface: Mapping[str, Any]) -> DeviceView:
    shape = tuple(int(length) for length in interface["shape"])
    typestr = str(interface["typestr"])
    if typestr not in _TYPESTRS:
        raise ArgumentError(
            f"{where}: {name} has element type {typestr}, expected one of {', '.join(SUFFIXES)}"
        )
    dtype = _TYPESTRS[typestr]
    pointer, read_only = interface["data"]
    found = interface.get("strides")
    strides = None if found is None else tuple(int(s) for s in found)
    if strides is not None and any(s % BYTES[dtype] for s in strides):
        raise ArgumentError(
            f"{where}: {name} has strides of {strides} bytes, expected multiples of its items' "
            f"{BYTES[dtype]} bytes"
        )
    in_elements = None if strides is None else tuple(s // BYTES[dtype] for s in strides)
    return DeviceView(int(pointer), shape, dtype, -1, _with_gaps(shape, in_elements), not read_only)


class _DLDevice(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class _DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", _DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


def _from_dlpack(capsule: object, device: int, lent: list[Callable[[], None]]) -> DeviceView:
    """Read a "dltensor" capsule; the capsule itself frees what it lends when it is dropped."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = _DLTensor.from_address(pointer(capsule, b"dltensor"))
    lent.append(_Keep(capsule))
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    strides = tuple(tensor.strides[axis] for axis in range(tensor.ndim)) if tensor.strides else None
    kind = (tensor.dtype.code, tensor.dtype.bits)
    return DeviceView(
        (tensor.data or 0) + tensor.byte_offset,
        shape,
        _KINDS.get(kind, f"DLPack type {kind}") if tensor.dtype.lanes == 1 else "a vector type",
        device,
        _with_gaps(shape, strides),
    )


@dataclass
class _Keep:
    """Holds a capsule until it is called."""

    capsule: object

    def __call__(self) -> None:
        self.capsule = None


def stream_handle(stream: Stream, arrays: Any = ()) -> int:
    """The address of a stream: of what is given, else the arrays' library's current one."""
    if stream is None:
        for array in arrays:
            library = type(array).__module__.partition(".")[0]
            if library in _CURRENT_STREAM:
                return _CURRENT_STREAM[library](array)
        return 0
    if isinstance(stream, int):
        return stream
    for name in ("cuda_stream", "ptr"):
        if hasattr(stream, name):
            return int(getattr(stream, name))
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        return int((protocol() if callable(protocol) else protocol)[1])
    raise ArgumentError(
        f"stream is {stream!r:.60}, expected an address, or an object with cuda_stream, ptr or "
        f"__cuda_stream__; pass torch.cuda.current_stream() or its like"
    )


_CURRENT_STREAM: Mapping[str, Callable[[Any], int]] = {
    "torch": lambda array: int(sys.modules["torch"].cuda.current_stream(array.device).cuda_stream),
    "cupy": lambda array: int(sys.modules["cupy"].cuda.get_current_stream().ptr),
}
"""How to ask a library for its current stream."""


def _torch_empty(like: Any, shape: tuple[int, ...], dtype: str, stream: int) -> object:
    cuda = sys.modules["torch"].cuda
    if int(cuda.current_stream(like.device).cuda_stream) == stream:
        return like.new_empty(shape)
    own = cuda.ExternalStream(stream, like.device) if stream else cuda.default_stream(like.device)
    with cuda.stream(own):
        return like.new_empty(shape)


def _cupy_empty(like: Any, shape: tuple[int, ...], dtype: str, stream: int) -> object:
    cupy = sys.modules["cupy"]
    with cupy.cuda.ExternalStream(stream):
        return cupy.empty(shape, dtype)


_EMPTY: Mapping[str, Callable[[Any, tuple[int, ...], str, int], object]] = {
    "torch": _torch_empty,
    "cupy": _cupy_empty,
}
"""How to ask a library for an array that is not initialised, in the order of a stream: what another
stream still reads must not be given for it."""


def _make(
    like: object, shape: tuple[int, ...], dtype: str, device: int, library: _Library, stream: int
) -> object:
    make = _EMPTY.get(type(like).__module__.partition(".")[0])
    if make is not None:
        return make(like, shape, dtype, stream)
    return DeviceArray(library, shape, dtype, device, stream)


def _view_of_made(made: Any, shape: tuple[int, ...], dtype: str, device: int) -> DeviceView:
    if isinstance(made, DeviceArray):
        return DeviceView(made.pointer, shape, dtype, device)
    pointer = made.data_ptr() if hasattr(made, "data_ptr") else made.data.ptr
    return DeviceView(int(pointer), shape, dtype, device)
