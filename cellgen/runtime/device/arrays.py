"""Arrays on devices: those of kernels, and those of other libraries.

Input: arrays with ``__dlpack__`` or ``__cuda_array_interface__``, and streams. Output: views of
them, results like them, or ``DeviceArray`` where their library cannot be asked for memory.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np

from cellgen.accept import in_memory, lacking, type_name
from cellgen.errors import ArgumentError, DeviceError
from cellgen.runtime.call.signature import shown_steps
from cellgen.runtime.call.views import (
    BYTES,
    TYPESTRS,
    ArrayView,
    dense_steps,
    library_of,
    view_of_capsule,
    view_of_interface,
    with_gaps,
)
from cellgen.runtime.device.cuda_abi import CUDA_STORES
from cellgen.runtime.device.library import DeviceLibrary
from cellgen.runtime.options import Options

Stream: TypeAlias = object
"""An address, an object with ``cuda_stream`` (PyTorch), ``ptr`` (CuPy) or ``__cuda_stream__``."""

LIBRARY = "cellgen"
SUFFIXES = {store.dtype: store.suffix for store in CUDA_STORES}
ON_DEVICE = (2, 13)
"""Device types of DLPack: CUDA memory, managed memory."""


class DeviceArray:
    """Memory on a device, made by a kernel; offers ``__cuda_array_interface__`` (not bfloat16)."""

    def __init__(
        self, library: DeviceLibrary, shape: tuple[int, ...], dtype: str, device: int, stream: int
    ) -> None:
        size = max(1, math.prod(shape) * BYTES[dtype])
        self.shape, self.dtype, self.device, self._stream = shape, dtype, device, stream
        self._library = library
        self.pointer = address = library.allocate(device, size, stream)
        self.view = ArrayView(address, shape, dtype, BYTES[dtype], device, library=LIBRARY)

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
        """Bytes of its memory."""
        return math.prod(self.shape) * BYTES[self.dtype]

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        if self.dtype == "bfloat16":
            raise AttributeError("__cuda_array_interface__ has no bfloat16")
        return {
            "shape": self.shape,
            "typestr": {dtype: text for text, dtype in TYPESTRS.items()}[self.dtype],
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
        lengths, strides = list(whole.shape), list(dense_steps(whole.shape))
        self._whole, self._index = whole, (*(slice(None),) * axis, steps)
        self.dtype, self.device = whole.dtype, whole.device
        self.pointer = whole.pointer
        chosen = range(lengths[axis])[steps]
        if chosen:
            self.pointer += chosen.start * strides[axis] * BYTES[whole.dtype]
        lengths[axis], strides[axis] = len(chosen), strides[axis] * chosen.step
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
    axis, steps = int(bool(options.batch_first)), shown_steps(options)
    if isinstance(whole, DeviceArray):
        return DevicePart(whole, axis, steps)
    return whole[:, steps] if axis else whole[steps]


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Round float32 to bfloat16, to nearest even; the result holds bits (uint16)."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


# --- arrays of other libraries ----------------------------------------------------------------


def look(label: str, name: str, array: object, stream: int, lent: list[object]) -> ArrayView:
    """Look at an array without copying; what it lends joins ``lent``. Raises ArgumentError."""
    view = _look(label, name, in_memory(label, name, array), stream, lent)
    if not view.pointer and 0 not in view.shape:
        raise ArgumentError(
            f"{label}: {name} is a {type_name(array)} {view.shape} that lends no memory, expected "
            f"numbers on a device; pass an array that has them"
        )
    return view


def _look(label: str, name: str, array: object, stream: int, lent: list[object]) -> ArrayView:
    if isinstance(array, DeviceArray):
        return array.view
    if hasattr(array, "__dlpack_device__"):
        kind, device = array.__dlpack_device__()
        if int(kind) not in ON_DEVICE:
            raise _on_host(label, name, array)
        try:
            capsule = array.__dlpack__(stream=stream or 1)  # type: ignore[attr-defined]
        except (BufferError, RuntimeError) as error:
            raise ArgumentError(f"{label}: {name} cannot be lent: {error}") from error
        lent.append(capsule)
        return view_of_capsule(capsule, int(device), library_of(array))
    if isinstance(getattr(array, "__cuda_array_interface__", None), dict):
        return view_of_interface(label, name, array, tuple(SUFFIXES))
    raise _on_host(label, name, array)


def placed(
    label: str, name: str, view: ArrayView, library: Callable[[], DeviceLibrary]
) -> ArrayView:
    """Ask the driver where an array lies that does not say so itself. Raises ArgumentError."""
    if view.device >= 0:
        return view
    device = library().device_of(view.pointer) if view.pointer else 0
    if device < 0:
        raise ArgumentError(f"{label}: {name} lies in the host's memory; move it to the device")
    return view._replace(device=device)


def _on_host(label: str, name: str, array: object) -> ArgumentError:
    kind = f"{type(array).__module__}.{type(array).__qualname__}".removeprefix("builtins.")
    return ArgumentError(
        f"{label}: {name} is a {kind} in the host's memory, expected a device array (with "
        f"__dlpack__ or __cuda_array_interface__); move it to the device, or use the C kernel: "
        f"cellgen.load(...) without target"
    )


def same_place(one: object, other: object) -> bool:
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


def place_of(view: ArrayView) -> np.ndarray:
    """An array of NumPy's at the place of one on a device: what lies there must not be read."""
    place = {
        "data": (view.pointer, False),
        "shape": view.shape,
        "typestr": f"|V{view.itemsize}",
        "strides": view.strides,
        "version": 3,
    }
    return np.asarray(SimpleNamespace(__array_interface__=place))


# --- streams and results -----------------------------------------------------------------------


def stream_handle(stream: Stream, arrays: Any = ()) -> int:
    """The address of a stream: of what is given, else the arrays' library's current one."""
    if stream is None:
        for array in arrays:
            if type(array) is DeviceArray:
                continue
            library = type(array).__module__.partition(".")[0]
            if library in _CURRENT_STREAM:
                return _CURRENT_STREAM[library](array)
        return 0
    if isinstance(stream, int) and 0 <= stream < 1 << 64:
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


def _torch_empty(like: Any, shapes: Shapes, dtype: str, stream: int) -> list[object]:
    cuda = sys.modules["torch"].cuda
    if int(cuda.current_stream(like.device).cuda_stream) == stream:
        return [like.new_empty(shape) for shape in shapes]
    own = cuda.ExternalStream(stream, like.device) if stream else cuda.default_stream(like.device)
    with cuda.stream(own):
        return [like.new_empty(shape) for shape in shapes]


def _cupy_empty(like: Any, shapes: Shapes, dtype: str, stream: int) -> list[object]:
    cupy = sys.modules["cupy"]
    with cupy.cuda.ExternalStream(stream):
        return [cupy.empty(shape, dtype) for shape in shapes]


Shapes: TypeAlias = Sequence[tuple[int, ...]]
_EMPTY: Mapping[str, Callable[[Any, Shapes, str, int], list[object]]] = {
    "torch": _torch_empty,
    "cupy": _cupy_empty,
}
"""How to ask a library for arrays that are not initialised, in the order of a stream: what another
stream still reads must not be given for them."""


def make_like(
    like: object, shapes: Shapes, dtype: str, device: int, library: DeviceLibrary, stream: int
) -> list[object]:
    """Make arrays that are not initialised, by the library of another one."""
    make = None if type(like) is DeviceArray else _EMPTY.get(library_of(like))
    if make is not None:
        return make(like, shapes, dtype, stream)
    return [DeviceArray(library, shape, dtype, device, stream) for shape in shapes]


def view_of_result(result: Any, shape: tuple[int, ...], dtype: str, device: int) -> ArrayView:
    """Look at a result of ``make_like``."""
    if type(result) is DeviceArray:
        return result.view
    pointer = int(result.data_ptr() if hasattr(result, "data_ptr") else result.data.ptr)
    return ArrayView(pointer, shape, dtype, BYTES[dtype], device)


class Views:
    """Looks at the arrays of one call on a stream; what arrays lend stays in ``lent``.

    PyTorch's own tensors are looked at by what they say of themselves, without importing it. A
    tensor that the stream would have to wait for, which a function is differentiated by, or that
    is none of the plain kind, lends its memory as other arrays do.
    """

    def __init__(self, label: str, stream: int, library: Callable[[], DeviceLibrary]) -> None:
        self.stream, self.lent = stream, list[object]()
        self._label, self._library = label, library
        self._torch: Any = sys.modules.get("torch")
        self._ordered = dict[int, bool]()
        parameter = getattr(getattr(self._torch, "nn", None), "Parameter", None)
        self._kinds = (getattr(self._torch, "Tensor", None), parameter)

    def __call__(self, name: str, array: object) -> ArrayView:
        """Look at an array; a message calls it ``name``. Raises ArgumentError."""
        kind = type(array)
        if isinstance(array, DeviceArray):
            return array.view
        if kind in self._kinds and (view := self._of_tensor(array)) is not None:
            return view
        view = look(self._label, name, array, self.stream, self.lent)
        return placed(self._label, name, view, self._library)

    def _of_tensor(self, tensor: Any) -> ArrayView | None:
        """Look at a tensor; None for what lends its memory."""
        torch = self._torch
        if not tensor.is_cuda or tensor.requires_grad or tensor.layout is not torch.strided:
            return None
        device = tensor.get_device()
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in BYTES or not self._is_ordered(device) or lacking(tensor):
            return None
        size, shape = BYTES[dtype], tuple(tensor.shape)
        strides = None
        if not tensor.is_contiguous():
            strides = with_gaps(shape, tuple(n * size for n in tensor.stride()), size)
        return ArrayView(tensor.data_ptr(), shape, dtype, size, device, strides, library="torch")

    def _is_ordered(self, device: int) -> bool:
        """Whether the stream of the call is that of PyTorch, on which its tensors are made."""
        if device not in self._ordered:
            current = self._torch.cuda.current_stream(device).cuda_stream
            self._ordered[device] = int(current) == self.stream
        return self._ordered[device]
