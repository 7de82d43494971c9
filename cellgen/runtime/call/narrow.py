"""Arrays of 16 bits: bfloat16 and float16, of NumPy (``ml_dtypes``), PyTorch, JAX and their like.

Input: a call whose arrays have such a type. Output: what the call gives in float32 for the same
numbers, each result rounded once, to the nearest, ties to even. Arguments become float32 exactly.
States from step to step, sums and functions are float32; products over time have operands in
bfloat16 where the arrays do, unless the call says otherwise. What is saved is rounded too where the
arrays are NumPy's; of another library's it stays float32.
Not supported: ``out``, ``bind``, ``measure``, scalars, arrays of more than one type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cellgen.accept import type_name
from cellgen.errors import ArgumentError
from cellgen.runtime.call.frameworks import is_foreign
from cellgen.runtime.call.saved import Saved, make_saved
from cellgen.runtime.options import BF16, FULL, ROWS
from cellgen.runtime.results import Results

PRODUCTS = {"bfloat16": BF16, "float16": FULL}
"""What products over time are where a call does not say, by the type of its arrays."""


def narrow_element(arguments: Mapping[str, object]) -> str:
    """The type of a call's arrays where it has 16 bits, as its first array of numbers tells."""
    for value in arguments.values():
        if type(value) is np.ndarray:
            if value.dtype.itemsize == 2 and value.dtype.name in PRODUCTS:
                return str(value.dtype.name)
            if value.dtype.kind == "f":
                return ""
        elif is_foreign(value):
            return element if (element := _element(value)) in PRODUCTS else ""
    return ""


def call_widened(
    function: Callable[..., Results],
    where: str,
    arguments: Mapping[str, object],
    out: object,
    kept: Mapping[str, object],
    *,
    over_time: bool,
) -> Results:
    """Call a function in float32, and round its results.

    ``kept`` are keywords of the call beside its arrays. Raises ArgumentError for ``out``, and for
    arrays of another type.
    """
    element = narrow_element(arguments)
    first = next(n for n, a in arguments.items() if _element(a) == element)
    if out is not None:
        raise ArgumentError(
            f"{where}: out is given and {first} is {element}, expected none: results are rounded "
            f"into new arrays; leave out out, or pass float32 arrays"
        )
    wide = dict(kept)
    for name, value in arguments.items():
        is_array = isinstance(value, np.ndarray) or is_foreign(value)
        if name in ROWS or not is_array:
            wide[name] = value
        elif _element(value) != element:
            raise ArgumentError(
                f"{where}: {name} is a {type_name(value)} of {_element(value)}, but {first} is "
                f"{element}; convert {name}"
            )
        else:
            wide[name] = _converted(value, "float32")
    if over_time:
        wide.setdefault("products", PRODUCTS[element])
    if wide.get("saved") is not None:
        wide["saved"] = _saved_as(wide["saved"], np.dtype(np.float32))
    found = function(**wide)
    model: Any = arguments[first]
    return tuple.__new__(type(found), [_rounded(result, model) for result in found])


def _rounded(result: object, model: Any) -> object:
    """A result in the type of the call's arrays; None stays None."""
    if isinstance(result, Saved):
        return _saved_as(result, model.dtype) if isinstance(model, np.ndarray) else result
    return None if result is None else _converted(result, model.dtype)


def _saved_as(saved: object, dtype: np.dtype[Any]) -> object:
    """What is saved with its numbers in a type; a dict of arrays by name too."""
    if isinstance(saved, Saved):
        whole = {name: _converted(array, dtype) for name, array in saved._whole.items()}
        arrays = tuple(_converted(array, dtype) for array in saved)
        return make_saved(saved._fields, arrays, saved.run, whole)
    if isinstance(saved, Mapping):
        return {name: _converted(array, dtype) for name, array in saved.items()}
    return saved


def _element(array: Any) -> str:
    """The name of an array's type of elements."""
    return str(getattr(array, "dtype", "")).removeprefix("torch.")


def _converted(array: Any, dtype: Any) -> Any:
    """An array of whatever library in another type, which NumPy, PyTorch and JAX round to."""
    if isinstance(array, np.ndarray):
        return array.astype(dtype)
    if hasattr(array, "astype"):
        return array.astype(dtype)
    return array.float() if dtype == "float32" else array.to(dtype)
