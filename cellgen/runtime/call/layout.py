"""Where arrays over time lie: elements from step to step and from row to row.

Arrays over time are (T, B, ...) with units side by side; steps and rows may lie any distance apart,
so that batch-first arrays and slices of larger ones are read and written in place.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from cellgen.errors import ArgumentError
from cellgen.runtime.abi import Argument, Function, axis_length
from cellgen.runtime.call.arguments import Checked, as_base
from cellgen.runtime.call.plan import CallPlan
from cellgen.runtime.call.workspace import Pointer
from cellgen.runtime.host.out_of_memory import named_in_memory_errors
from cellgen.runtime.results import Array


def arrays_over_time(function: Function) -> tuple[Argument, ...]:
    """The arrays over time of a function's struct, in its order."""
    members = (*function.struct_members, *function.results)
    return tuple(item for item in members if item.over_time)


def measured_strides(
    function: Function, checked: Checked
) -> tuple[tuple[int, ...] | None, frozenset[str]]:
    """Measure steps and rows of every array over time, and name those that have gaps."""
    arrays = {**checked.inputs, **checked.outputs}
    numbers: list[int] = []
    apart = set()
    for item in arrays_over_time(function):
        array = arrays.get(item.name)
        if array is None or array.flags.c_contiguous:
            numbers += _dense_strides(item, checked.dims)
        else:
            apart.add(item.name)
            numbers += _strides_of(array)
    return (tuple(numbers) if apart else None), frozenset(apart)


def dense_strides(function: Function, dims: Mapping[str, int]) -> tuple[int, ...]:
    """The strides of every array over time where none has gaps."""
    return tuple(n for item in arrays_over_time(function) for n in _dense_strides(item, dims))


def with_fresh(
    function: Function, strides: Sequence[int], fresh: Mapping[str, Array | None]
) -> tuple[int, ...]:
    """Put in the strides of results that a call has made."""
    numbers = list(strides)
    for place, item in enumerate(arrays_over_time(function)):
        array = fresh.get(item.name)
        if array is not None:
            numbers[2 * place : 2 * place + 2] = _strides_of(array)
    return tuple(numbers)


def _dense_strides(item: Argument, dims: Mapping[str, int]) -> tuple[int, int]:
    width = math.prod(axis_length(axis, dict(dims)) for axis in item.shape[2:])
    return dims["B"] * width, width


def _strides_of(array: Array) -> tuple[int, int]:
    return array.strides[0] // array.itemsize, array.strides[1] // array.itemsize


def flag_strides(flags: Array | None, rows: int) -> tuple[int, int]:
    """The strides of a table of flags, (T, B) without gaps where there is none."""
    return (rows, 1) if flags is None else (flags.strides[0], flags.strides[1])


def swap_time_and_batch(names: Collection[str], arrays: Mapping[str, object]) -> dict:  # type: ignore[type-arg]
    """Look at the arrays of some names with their first two axes swapped."""
    return {
        name: array.swapaxes(0, 1)
        if name in names and isinstance(array, np.ndarray) and array.ndim > 1
        else array
        for name, array in ((name, as_base(array)) for name, array in arrays.items())
    }


def address_of(ffi: Pointer, plan: CallPlan, array: object) -> Pointer:
    """The address of an array's first element, whatever its strides."""
    data = array.__array_interface__["data"][0]  # type: ignore[attr-defined]
    return ffi.cast(plan.element, data)  # type: ignore[attr-defined]


@named_in_memory_errors(str)
def refuse_shared(
    label: str, arguments: Mapping[str, object], results: Mapping[str, Array]
) -> None:
    """Raise ArgumentError where a result shares an element with another array of the call."""
    given = [(n, a) for n, a in arguments.items() if isinstance(a, np.ndarray)]
    for name, result in results.items():
        others = [(n, a) for n, a in results.items() if n != name]
        for kind, arrays in (("argument", given), ("result", others)):
            for other, array in arrays:
                if np.may_share_memory(result, array) and np.shares_memory(result, array):
                    raise ArgumentError(
                        f"{label}: out {name} shares memory with the {kind} {other}, expected "
                        f"memory of its own (results are written while arguments are read); give "
                        f"another array"
                    )
