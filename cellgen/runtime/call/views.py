"""Arrays as a call sees them: where they are and what, whoever made them.

Input: NumPy's arrays, and arrays with ``__dlpack__`` or ``__cuda_array_interface__`` (PyTorch, JAX,
CuPy). Output: ``ArrayView``; nothing is copied or converted. Calls on the host and on devices check
views, by the same code.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cellgen.errors import ArgumentError

HOST, UNKNOWN = -1, -2
"""Devices: the host's memory; one that an array does not say."""

BYTES = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2, "int64": 8, "bool": 1, "uint8": 1}
_KINDS = {(2, 32): "float32", (2, 64): "float64", (4, 16): "bfloat16", (2, 16): "float16"}
_KINDS |= {(0, 64): "int64", (6, 8): "bool", (1, 8): "uint8"}
TYPESTRS = {"<f4": "float32", "<f8": "float64", "<f2": "float16"}
TYPESTRS |= {"<i8": "int64", "|b1": "bool", "|u1": "uint8"}


class ArrayView(NamedTuple):
    """What a call needs to know of an array.

    ``strides`` are in bytes, None where nothing has gaps. ``library`` is the package that made it.
    """

    pointer: int
    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    device: int = HOST
    strides: tuple[int, ...] | None = None
    writable: bool = True
    library: str = "numpy"

    @property
    def contiguous(self) -> bool:
        """Whether nothing has gaps."""
        return self.strides is None

    @property
    def apart(self) -> tuple[int, ...]:
        """Elements from one index to the next, of every axis."""
        if self.strides is None:
            return dense_steps(self.shape)
        return tuple(stride // self.itemsize for stride in self.strides)

    def swapped(self) -> ArrayView:
        """The same with its first two axes swapped."""
        if len(self.shape) < 2:
            return self
        steps = tuple(self.itemsize * n for n in self.apart) if self.contiguous else self.strides
        assert steps is not None
        (first, second, *rest), (one, other, *others) = self.shape, steps
        shape = (second, first, *rest)
        strides = with_gaps(shape, (other, one, *others), self.itemsize)
        return self._replace(shape=shape, strides=strides)


@dataclass(frozen=True)
class _Words:
    """How a library's users do what a message advises; of a ``name``, ``shape`` and ``dtype``."""

    convert: str
    compact: str
    copy: str
    allocate: str


_NUMPY = _Words(
    "pass {name}.astype(np.{dtype})",
    "pass np.ascontiguousarray({name})",
    "pass {name}.copy()",
    "allocate it as np.empty({shape}, np.{dtype})",
)
_TORCH = _Words(
    "pass {name}.to(torch.{dtype})",
    "pass {name}.contiguous()",
    "pass {name}.clone()",
    "allocate it as torch.empty({shape}, dtype=torch.{dtype})",
)
_OTHERS = _Words(
    "convert it to {dtype}",
    "pass {name}.contiguous() or its like",
    "pass a copy of it",
    "allocate one of shape {shape} and {dtype}",
)
_WORDS = {"numpy": _NUMPY, "torch": _TORCH}


def advice(view: ArrayView, what: str, name: str, dtype: str = "") -> str:
    """What to do about an array, in the words of its library; ``what`` is a field of the words."""
    words = getattr(_WORDS.get(view.library, _OTHERS), what)
    return str(words.format(name=name, shape=view.shape, dtype=dtype or view.dtype))


def dense_steps(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Elements from one index to the next where nothing has gaps."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def with_gaps(
    shape: tuple[int, ...], strides: tuple[int, ...] | None, itemsize: int
) -> tuple[int, ...] | None:
    """Strides in bytes, or None where they leave no gaps."""
    if strides is None or 0 in shape:
        return None
    pairs = zip(shape, strides, dense_steps(shape), strict=True)
    return strides if any(n != 1 and one != itemsize * other for n, one, other in pairs) else None


def library_of(array: object) -> str:
    """The package that made an array."""
    return type(array).__module__.partition(".")[0]


def view_of(array: np.ndarray) -> ArrayView:
    """Look at an array of NumPy's."""
    flags, dtype = array.flags, array.dtype
    return ArrayView(
        array.__array_interface__["data"][0],
        array.shape,
        str(dtype) if dtype.isnative else dtype.str,
        dtype.itemsize,
        HOST,
        None if flags.c_contiguous else array.strides,
        flags.writeable,
    )


def view_of_interface(label: str, name: str, array: object, known: tuple[str, ...]) -> ArrayView:
    """Look at an array by its ``__cuda_array_interface__``; ``known`` are the types that may pass.

    Raises ArgumentError.
    """
    interface: Mapping[str, Any] = array.__cuda_array_interface__  # type: ignore[attr-defined]
    shape, typestr = tuple(int(length) for length in interface["shape"]), str(interface["typestr"])
    if typestr not in TYPESTRS:
        raise ArgumentError(
            f"{label}: {name} has element type {typestr}, expected one of {', '.join(known)}"
        )
    dtype = TYPESTRS[typestr]
    size, (pointer, read_only), apart = BYTES[dtype], interface["data"], interface.get("strides")
    strides = None if apart is None else tuple(int(s) for s in apart)
    strides = with_gaps(shape, strides, size)
    library = library_of(array)
    return ArrayView(int(pointer), shape, dtype, size, UNKNOWN, strides, not read_only, library)


class _DLDevice(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class _DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class DLTensor(ctypes.Structure):
    """An array as DLPack's C struct of that name."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", _DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


def view_of_capsule(capsule: object, device: int, library: str) -> ArrayView:
    """Look at what a "dltensor" capsule lends, while the capsule lives."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = DLTensor.from_address(pointer(capsule, b"dltensor"))
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    kind = (tensor.dtype.code, tensor.dtype.bits)
    dtype = _KINDS.get(kind, f"DLPack type {kind}") if tensor.dtype.lanes == 1 else "a vector type"
    size = max(1, tensor.dtype.bits * tensor.dtype.lanes // 8)
    steps = tuple(tensor.strides[axis] for axis in range(tensor.ndim)) if tensor.strides else None
    strides = None if steps is None else tuple(size * step for step in steps)
    address = (tensor.data or 0) + tensor.byte_offset
    gaps = with_gaps(shape, strides, size)
    return ArrayView(address, shape, dtype, size, device, gaps, library=library)
