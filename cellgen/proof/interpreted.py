"""bfloat16 in Triton's interpreter as on devices: rounded to nearest, multiplied as numbers.

The interpreter holds bfloat16 as whole numbers of 16 bits. It cuts digits off where devices round,
and its products are of those whole numbers. ``with bfloat16_as_on_devices():`` mends both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from triton.runtime import interpreter

BUILDER = interpreter.interpreter_builder
HALF, QUIET = np.uint32(0x7FFF), np.uint16(0x7FC0)


@contextmanager
def replaced(place: object, by: Mapping[str, Callable[..., object]]) -> Iterator[None]:
    """Put other functions into an object or a class for a while."""
    own = {name: vars(place).get(name) for name in by}
    for name, function in by.items():
        setattr(place, name, function)
    try:
        yield
    finally:
        for name, before in own.items():
            if before is None:
                delattr(place, name)
            else:
                setattr(place, name, before)


@contextmanager
def bfloat16_as_on_devices() -> Iterator[None]:
    """Round to bfloat16, and multiply it, as devices do."""
    product, cast = BUILDER.create_dot, BUILDER.cast_impl

    def dot(a: Any, b: Any, *rest: object) -> object:
        return product(as_numbers(a), as_numbers(b), *rest)

    def rounded(source: Any, kind: Any) -> object:
        names = (source.dtype.scalar.name, kind.scalar.name)
        if names != ("fp32", "bf16"):
            return cast(source, kind)
        return interpreter.TensorHandle(bits_of(source.data), kind.scalar)

    with replaced(BUILDER, {"create_dot": dot, "cast_impl": rounded}):
        yield


def bits_of(numbers: Any) -> Any:
    """The nearest bfloat16 of float32, even where two are as near, as bits.

    >>> [hex(bits) for bits in bits_of(np.array([1.0, 1.00390625, -1.01171875], np.float32))]
    ['0x3f80', '0x3f80', '0xbf82']
    """
    bits = np.asarray(numbers, np.float32).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    nearest = ((bits + HALF + odd) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(numbers), QUIET, nearest)


def as_numbers(handle: Any) -> Any:
    """A block of bfloat16 as float32; any other as it is."""
    if handle.dtype.scalar.name != "bf16" or handle.data.dtype != np.uint16:
        return handle
    bits = handle.data.astype(np.uint32) << np.uint32(16)
    return interpreter.TensorHandle(bits.view(np.float32), interpreter.tl.float32)
