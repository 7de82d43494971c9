"""Numbers of 16 bits: how calls see arrays of them, and how they are widened and rounded.

NumPy has no bfloat16 of its own. While a call runs, an array of 16 bits is one of NumPy's whose
type is a record of one member, named for what it holds: nobody else's arrays have these types.
Imports nothing else of cellgen.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray
BFLOAT16, FLOAT16 = "bfloat16", "float16"
STORED: dict[str, np.dtype[Any]] = {
    name: np.dtype([(name, np.uint16)]) for name in (BFLOAT16, FLOAT16)
}
"""The types of arrays of 16 bits during a call, by what they hold."""
IN_C = {BFLOAT16: 1, FLOAT16: 2}
"""What they hold as ``cellgen_stored`` in generated/include/cellgen.h numbers it; 0: floats."""
NUMBERS = {STORED[name]: number for name, number in IN_C.items()}
_TEXTS = {str(dtype) for dtype in NUMBERS}


def is_stored(dtype: str) -> bool:
    """Whether the text of a type is that of an array of 16 bits during a call."""
    return dtype in _TEXTS


def element_of(array: Any) -> str:
    """The name of the type of an array's elements, whatever library made it."""
    return element_of_type(getattr(array, "dtype", ""))


def element_of_type(dtype: Any) -> str:
    """The name of a type of elements; what is held by one of 16 bits during a call."""
    if isinstance(dtype, np.dtype):
        return _element_in_numpy(dtype)
    return element_name(dtype)


@functools.lru_cache(maxsize=256)
def _element_in_numpy(dtype: np.dtype[Any]) -> str:
    """The name of a type of NumPy's, which takes NumPy some 10 us to say."""
    return str(dtype.names[0]) if dtype in NUMBERS else str(dtype)  # type: ignore[index]


def element_name(dtype: Any) -> str:
    """The name of a type of elements, of NumPy's, PyTorch's or another library."""
    return str(dtype).removeprefix("torch.")


def as_stored(array: Array) -> Array:
    """Look at an array of 16 bits as a call sees it."""
    return array.view(STORED[element_of(array)])


def kinds_of(arrays: Mapping[str, object], members: Sequence[str]) -> Array:
    """What each member of a struct holds, as C numbers it."""
    types = (getattr(arrays.get(name), "dtype", None) for name in members)
    return np.array([NUMBERS.get(dtype, 0) for dtype in types], np.uint8)  # type: ignore[arg-type]


def in_numpy(array: Array) -> Array:
    """An array of 16 bits as NumPy's users have it; bfloat16 needs ``ml_dtypes`` for that."""
    element = element_of(array)
    if array.dtype not in NUMBERS:
        return array
    if element == FLOAT16:
        return array.view(np.float16)
    known = _bfloat16()
    return array if known is None else array.view(known)


@functools.cache
def _bfloat16() -> np.dtype[Any] | None:
    """The type of ``ml_dtypes``, which converts in one pass; None where that is not installed."""
    try:
        dtype: np.dtype[Any] = np.dtype(importlib.import_module("ml_dtypes").bfloat16)
    except ImportError:
        return None
    return dtype


def widened(array: Array) -> Array:
    """The numbers of an array of 16 bits in float32, exactly; others as they are."""
    element = element_of(array)
    if element == FLOAT16:
        return np.ascontiguousarray(array).view(np.float16).astype(np.float32).reshape(array.shape)
    if element == BFLOAT16:
        known = _bfloat16()
        if known is not None:
            return np.ascontiguousarray(array).view(known).astype(np.float32).reshape(array.shape)
        words = np.ascontiguousarray(array).view(np.uint16).astype(np.uint32)
        return (words << 16).view(np.float32).reshape(array.shape)
    return array


def rounded(array: Array, element: str) -> Array:
    """Numbers of float32 in 16 bits, to the nearest, ties to even, as a call sees them."""
    if element == FLOAT16:
        with np.errstate(over="ignore"):  # what is too large is infinite
            return array.astype(np.float16, order="C").view(STORED[element])
    known = _bfloat16()
    if known is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            return array.astype(known, order="C").view(STORED[element])
    bits = np.ascontiguousarray(array).view(np.uint32)
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet = (bits >> 16) | 0x40
    words = np.where((bits & 0x7FFFFFFF) > 0x7F800000, quiet, nearest)
    return words.astype(np.uint16).reshape(array.shape).view(STORED[element])
