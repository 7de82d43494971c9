"""The two primitives of every cell, forward and backward: calls of a kernel in a program of XLA.

What follows ``call`` are arrays in its order: tables, values, and for the backward pass what was
kept and the upstream gradients that are ``present``.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import batching

from cellgen.frameworks.layout import row_axis
from cellgen.jax.batches import Axes, call_batch
from cellgen.jax.calls import JaxCall, run_backward, run_forward
from cellgen.jax.programs import by_rows, state
from cellgen.runtime.abi import Argument

Arrays: TypeAlias = Sequence[Any]
Which: TypeAlias = tuple[bool, ...]

forward_p = Primitive("cellgen_forward")
backward_p = Primitive("cellgen_backward")


def forward(call: JaxCall, save: bool, arrays: Arrays) -> list[Any]:
    """Compute all steps: outputs, final states, then what is saved if it is."""
    return list(forward_p.bind(*arrays, call=call, save=save))


def backward(call: JaxCall, present: Which, arrays: Arrays) -> list[Any]:
    """Compute the gradients of what learns."""
    return list(backward_p.bind(*arrays, call=call, present=present))


def _formed(call: JaxCall, save: bool) -> tuple[Argument, ...]:
    return call.formed if save else call.layout.outputs


def _read(call: JaxCall, present: Which) -> tuple[Argument, ...]:
    upstream = (u for u, given in zip(call.layout.upstream, present, strict=True) if given)
    return (*call.values, *call.kept, *upstream)


def _shapes(call: JaxCall, items: Sequence[Argument], arrays: Arrays) -> list[ShapedArray]:
    dtype = arrays[len(call.tables)].dtype
    return [ShapedArray(shape, dtype) for shape in call.shapes(items, arrays)]


def _forward_shapes(*arrays: Any, call: JaxCall, save: bool) -> list[ShapedArray]:
    return _shapes(call, _formed(call, save), arrays)


def _backward_shapes(*arrays: Any, call: JaxCall, present: Which) -> list[ShapedArray]:
    return _shapes(call, call.layout.gradients, arrays)


def _forward_lowered(*arrays: Any, call: JaxCall, save: bool) -> Any:
    def run(*some: Any) -> Any:
        return run_forward(call, save, some)

    found = [(len(item.shape), row_axis(item)) for item in _formed(call, save)]
    return by_rows(run, call.row_axes(call.values), found, arrays)


def _backward_lowered(*arrays: Any, call: JaxCall, present: Which) -> Any:
    def run(*some: Any) -> Any:
        return run_backward(call, present, some)

    found = [(len(item.shape), row_axis(item)) for item in call.layout.gradients]
    return by_rows(run, call.row_axes(_read(call, present)), found, arrays)


def _forward_batch(arrays: Arrays, axes: Axes, *, call: JaxCall, save: bool) -> Any:
    run = functools.partial(forward_p.bind, call=call, save=save)
    found = [row_axis(item) for item in _formed(call, save)]
    return call_batch(run, arrays, axes, call.row_axes(call.values), found)


def _backward_batch(arrays: Arrays, axes: Axes, *, call: JaxCall, present: Which) -> Any:
    run = functools.partial(backward_p.bind, call=call, present=present)
    found = [row_axis(item) for item in call.layout.gradients]
    return call_batch(run, arrays, axes, call.row_axes(_read(call, present)), found)


state(forward_p, _forward_shapes, _forward_lowered)
state(backward_p, _backward_shapes, _backward_lowered)
batching.primitive_batchers[forward_p] = _forward_batch
batching.primitive_batchers[backward_p] = _backward_batch
