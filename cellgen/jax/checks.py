"""Look at the arrays of a call before a program is made of it: shapes and dtypes, no values.

Input: arrays or tracers. Output: the same in order, or an ArrayError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import jax.numpy as jnp

from cellgen.frameworks.layout import TensorLayout
from cellgen.jax.errors import ArrayError
from cellgen.jax.platforms import dtype_of_numbers
from cellgen.runtime.abi import Argument
from cellgen.runtime.call.stored import STORED
from cellgen.runtime.options import TABLES

DTYPES = ("float32", "float64", *STORED)
KINDS = {"lengths": "integers", "mask": "bool", "reset": "bool"}


def check_values(layout: TensorLayout, arrays: Mapping[str, Any]) -> list[Any]:
    """Look at every array of a call; return them in order. Raises ArrayError."""
    first = arrays[layout.theta[0].name]
    items = (*layout.theta, *layout.scalars)
    for item in items:
        array = arrays[item.name]
        if array.dtype.name not in DTYPES or array.dtype != first.dtype:
            if item in layout.scalars and array.dtype == dtype_of_numbers(first.dtype):
                continue
            _refuse_dtype(layout, item, array, first)
        if array.ndim != len(item.shape):
            raise ArrayError(layout.wrong_rank(item, array.shape))
    ordered = [arrays[item.name] for item in items]
    sizes = layout.sizes(ordered)
    for item, array in zip(items, ordered, strict=True):
        if tuple(array.shape) != layout.shape(item.name, sizes):
            raise ArrayError(layout.wrong_shape(item, array.shape, sizes))
    return ordered


def check_tables(label: str, sizes: Mapping[str, int], tables: Mapping[str, Any]) -> None:
    """Look at what says which steps are valid: lengths (B) integers, mask and reset (T, B) bool."""
    for name, table in tables.items():
        axes, kind = TABLES[name], KINDS[name]
        shape = tuple(sizes[axis] for axis in axes)
        wanted = jnp.integer if name == "lengths" else jnp.bool_
        if table.shape == shape and jnp.issubdtype(table.dtype, wanted):
            continue
        raise ArrayError(
            f"{label}: {name} has shape {table.shape} and dtype {table.dtype.name}, expected "
            f"({', '.join(axes)}) = {shape} of {kind}; make it so"
        )


def _refuse_dtype(layout: TensorLayout, item: Argument, array: Any, first: Any) -> NoReturn:
    *others, last = DTYPES
    expected, wanted = f"{', '.join(others)} or {last}", "float32"
    if array.dtype.name in DTYPES:
        wanted = first.dtype.name
        expected = f"{wanted}, as {layout.theta[0].name} is"
    raise ArrayError(
        f"{layout.label}: {item.name} is {array.dtype.name}, expected {expected}; pass "
        f"{item.name}.astype(jax.numpy.{wanted})"
    )
