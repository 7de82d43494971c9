"""Shapes of a kernel's arguments, and parameters to begin with: dimensions are given by name.

Input: the interface of a kernel and dimensions. Output: shapes, or arrays of NumPy, by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import numpy as np

from cellgen import accept
from cellgen.errors import ArgumentError
from cellgen.runtime.abi import Argument, Function, Interface
from cellgen.runtime.call.arguments import lengths
from cellgen.runtime.call.dimensions import dims_of
from cellgen.runtime.call.faults import shape_text
from cellgen.runtime.initial import Shape, drawn, fixed_of, must_be_given, read_axes, rule_of
from cellgen.runtime.results import Array

InitialNumbers: TypeAlias = Array | Callable[[np.random.Generator, Shape], Array]
"""Numbers of a parameter, or what makes them of a generator and a shape."""
MOST_NUMBERS = 2**60
"""Of float64, which NumPy counts in 63 bits of bytes."""


def shapes_of(interface: Interface, sizes: Mapping[str, object]) -> dict[str, Shape]:
    """Return the shape of every array by name: over time where ``T`` is given, else of one step.

    Run-time scalars have none. Raises ArgumentError.
    """
    label = f"{interface.name}.shapes"
    function = _function(interface, over_time="T" in sizes)
    items = [item for item in function.arguments if not item.is_scalar]
    dims = _sizes(label, interface, items, sizes)
    return {item.name: lengths(item, dims) for item in items}


def initial_of(
    interface: Interface,
    rng: object,
    dtype: object,
    initial: object,
    sizes: Mapping[str, object],
) -> dict[str, Array]:
    """Return weights and biases by name, and where ``B`` is given the states as they begin.

    Raises ArgumentError.
    """
    label = f"{interface.name}.init"
    if not isinstance(rng, np.random.Generator):
        raise ArgumentError(
            f"{label}: rng is {accept.quoted(rng)}, expected a numpy.random.Generator; pass "
            f"np.random.default_rng(0)"
        )
    element = accept.float_dtype(label, dtype)
    function = _function(interface, over_time=True)
    parameters = [item for item in function.arguments if item.is_weight and item.used]
    states = [item for item in function.arguments if item.role == "state" and "B" in sizes]
    chosen = {} if initial is None else accept.names(label, "initial", initial, "arrays")
    for name in chosen:
        accept.choice(label, "a name in initial", name, [item.name for item in parameters])
    dims = _sizes(label, interface, [*parameters, *states], sizes)
    fixed, axes = fixed_of(interface.functions), read_axes(function.arguments)
    arrays = {}
    for item in parameters:
        shape = lengths(item, dims)
        if item.name in chosen:
            arrays[item.name] = _numbers(label, item, chosen[item.name], rng, shape).astype(element)
            continue
        rule = rule_of(interface.name, item, axes, fixed)
        if rule is None:
            raise ArgumentError(must_be_given(label, item, f"an array {shape}"))
        try:
            arrays[item.name] = drawn(rule.of(shape), shape, rng).astype(element)
        except (MemoryError, ValueError) as error:
            if isinstance(error, ValueError) and math.prod(shape) < MOST_NUMBERS:
                raise
            raise MemoryError(
                f"{label}: no memory for {item.name} of shape {shape}; take fewer units"
            ) from error
    starts = {item.name: np.full(lengths(item, dims), item.initial, element) for item in states}
    return arrays | starts


def _function(interface: Interface, *, over_time: bool) -> Function:
    """The forward pass over time, or of one step; the other where the cell has one alone."""
    known = {one.name: one for one in interface.functions}
    names = ("sequence_forward", "forward")
    return next(known[n] for n in (names if over_time else names[::-1]) if n in known)


def _sizes(
    label: str, interface: Interface, items: Iterable[Argument], sizes: Mapping[str, object]
) -> dict[str, int]:
    """Look at dimensions that are given by name: all that ``items`` have. Raises ArgumentError."""
    for name in sizes:
        if name not in interface.dims:
            raise ArgumentError(
                f"{label}: unknown dimension {name!r}, expected some of "
                f"{', '.join(interface.dims)}; correct the name"
            )
    dims = {name: accept.whole(label, name, size) for name, size in sizes.items()}
    needed = dict.fromkeys(dim for item in items for dim in dims_of(item))
    missing = [name for name in interface.dims if name in needed and name not in dims]
    if missing:
        raise ArgumentError(
            f"{label}: the dimension {missing[0]} is missing; pass "
            f"{', '.join(f'{name}=...' for name in missing)}"
        )
    return dims


def _numbers(
    label: str, item: Argument, value: object, rng: np.random.Generator, shape: Shape
) -> Array:
    """Numbers that a caller gives for a parameter. Raises ArgumentError for another shape."""
    numbers = value(rng, shape) if callable(value) else value
    array = accept.array(label, f"initial[{item.name!r}]", numbers)
    if array.shape != tuple(shape):
        raise ArgumentError(
            f"{label}: initial[{item.name!r}] has shape {array.shape}, expected "
            f"{shape_text(item)} = {shape}; give as many numbers"
        )
    return array
