"""The two primitives of every cell, forward and backward: calls of a kernel in a program of XLA.

What follows ``call`` are arrays in its order: tables, values, and for the backward pass what was
kept and the upstream gradients that are ``present``. The backward pass forms the gradients that
are ``wanted``; ``per_row``, those of weights come row by row, (B, ...).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from itertools import compress
from typing import Any, TypeAlias

import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import batching
from jax.interpreters import partial_eval as pe

from cellgen.frameworks.layout import row_axis
from cellgen.frameworks.selection import when_plain
from cellgen.jax.batches import Axes, call_batch, one_by_one, shares, size_of
from cellgen.jax.calls import JaxCall, Which, gradient_shapes, run_backward, run_forward
from cellgen.jax.platforms import Platform
from cellgen.jax.programs import by_rows, result, state
from cellgen.jax.segments_on_device import run_segments_on_device
from cellgen.jax.selection import show
from cellgen.runtime.abi import Argument

Arrays: TypeAlias = Sequence[Any]

forward_p = Primitive("cellgen_forward")
backward_p = Primitive("cellgen_backward")


def forward(call: JaxCall, save: bool, arrays: Arrays) -> list[Any]:
    """Compute all steps: outputs, final states, then what is saved if it is."""
    return list(forward_p.bind(*arrays, call=call, save=save))


def backward(call: JaxCall, present: Which, arrays: Arrays, names: Sequence[str]) -> dict[str, Any]:
    """Compute the gradients of some of what learns, by the names of theta."""
    theta, layout = call.layout.theta, call.layout
    learn = [theta[place].name for place in layout.learns]
    wanted = tuple(
        name in names or not item.optional
        for name, item in zip(learn, layout.gradients, strict=True)
    )
    gradients = backward_p.bind(*arrays, call=call, present=present, wanted=wanted, per_row=False)
    return dict(zip(compress(learn, wanted), gradients, strict=True))


def _formed(call: JaxCall, save: bool) -> tuple[Argument, ...]:
    return call.formed if save else call.layout.outputs


def _read(call: JaxCall, present: Which) -> tuple[Argument, ...]:
    return (*call.values, *call.kept, *compress(call.layout.upstream, present))


def _shapes(call: JaxCall, items: Sequence[Argument], arrays: Arrays) -> list[ShapedArray]:
    dtypes = call.dtypes(items, arrays[len(call.tables)])
    shapes = call.shapes(items, arrays)
    return [result(shape, dtype, arrays) for shape, dtype in zip(shapes, dtypes, strict=True)]


def _forward_shapes(*arrays: Any, call: JaxCall, save: bool) -> list[ShapedArray]:
    return _shapes(call, _formed(call, save), arrays)


def _backward_shapes(
    *arrays: Any, call: JaxCall, present: Which, wanted: Which, per_row: bool
) -> list[ShapedArray]:
    dtype = arrays[len(call.tables)].dtype
    return [result(s, dtype, arrays) for s in gradient_shapes(call, wanted, per_row, arrays)]


def _forward_lowered(platform: Platform, *arrays: Any, call: JaxCall, save: bool) -> Any:
    whole = call if save else replace(call, options=when_plain(call.options)).saving

    def run(*some: Any) -> Any:
        if save or not platform.is_device or call == whole:
            return _formed_on(platform, call, save, some)
        return show(call, call.split(some)[0], _formed_on(platform, whole, False, some))

    if call.cut is not None and not platform.is_device:
        return run(*arrays)
    ranks = [(len(item.shape), row_axis(item)) for item in _formed(call, save)]
    return by_rows(run, call.row_axes(call.values), ranks, arrays)


def _formed_on(platform: Platform, call: JaxCall, save: bool, arrays: Arrays) -> list[Any]:
    """Put all steps into the program; in segments, what a platform has for them."""
    if call.cut is None or not platform.is_device:
        return run_forward(call, save, arrays, platform)
    run = functools.partial(run_forward, platform=platform)
    return run_segments_on_device(call, save, arrays, run)


def _backward_lowered(
    platform: Platform, *arrays: Any, call: JaxCall, present: Which, wanted: Which, per_row: bool
) -> Any:
    if platform.is_device and per_row:
        return row_by_row(arrays, call=call, present=present, wanted=wanted)

    def run(*some: Any) -> Any:
        if not platform.is_device:
            return run_backward(call, present, wanted, per_row, some, platform)
        every = (True,) * len(wanted)
        return list(compress(run_backward(call, present, every, False, some, platform), wanted))

    ranks = [
        (len(item.shape) + 1, 0)
        if per_row and row_axis(item) is None
        else (len(item.shape), row_axis(item))
        for item in compress(call.layout.gradients, wanted)
    ]
    return by_rows(run, call.row_axes(_read(call, present)), ranks, arrays)


def _forward_batch(arrays: Arrays, axes: Axes, *, call: JaxCall, save: bool) -> Any:
    run = functools.partial(forward_p.bind, call=call, save=save)
    result_rows = [row_axis(item) for item in _formed(call, save)]
    return call_batch(run, arrays, axes, call.row_axes(call.values), result_rows)


def _backward_batch(
    arrays: Arrays, axes: Axes, *, call: JaxCall, present: Which, wanted: Which, per_row: bool
) -> Any:
    """Run a batch of backward passes: as rows of one where they share their weights."""
    bind = functools.partial(backward_p.bind, call=call, present=present, wanted=wanted)
    run = functools.partial(bind, per_row=per_row)
    argument_rows = call.row_axes(_read(call, present))
    result_rows = [row_axis(item) for item in compress(call.layout.gradients, wanted)]
    if not shares(axes, argument_rows):
        return one_by_one(run, arrays, axes)
    size = size_of(arrays, axes)
    folded, places = call_batch(
        functools.partial(bind, per_row=True),
        arrays,
        axes,
        argument_rows,
        [row or 0 for row in result_rows],
    )
    results = [
        array if row is not None or per_row else jnp.sum(array, axis=1)
        for array, row in zip(folded, result_rows, strict=True)
    ]
    assert all(array.shape[place] == size for array, place in zip(results, places, strict=True))
    return results, places


def row_by_row(arrays: Arrays, *, call: JaxCall, present: Which, wanted: Which) -> tuple[Any, ...]:
    """Compute what ``backward_p`` gives ``per_row``, by a call for each row, which has rules."""
    argument_rows = call.row_axes(_read(call, present))
    result_rows = [row_axis(item) for item in compress(call.layout.gradients, wanted)]
    alone = [
        array if row is None else jnp.expand_dims(array, row + 1)
        for array, row in zip(arrays, argument_rows, strict=True)
    ]
    run = functools.partial(
        backward_p.bind, call=call, present=present, wanted=wanted, per_row=False
    )
    each, _ = one_by_one(run, alone, argument_rows)
    return tuple(
        array if row is None else jnp.moveaxis(array, 0, row + 1).squeeze(row)
        for array, row in zip(each, result_rows, strict=True)
    )


def _forward_read(read: Sequence[bool], equation: Any) -> Any:
    """Save nothing where nobody reads what is saved."""
    call, save = equation.params["call"], equation.params["save"]
    if not any(read):
        return [False] * len(equation.invars), None
    outputs = len(call.layout.outputs)
    if save and not any(read[outputs:]):
        equation = equation.replace(
            outvars=equation.outvars[:outputs], params={"call": call, "save": False}
        )
    return [True] * len(equation.invars), equation


def _backward_read(read: Sequence[bool], equation: Any) -> Any:
    """Form the gradients that somebody reads, and those that others follow from."""
    if not any(read):
        return [False] * len(equation.invars), None
    call, wanted = equation.params["call"], equation.params["wanted"]
    places = list(compress(range(len(wanted)), wanted))
    formed = [
        is_read or not call.layout.gradients[place].optional
        for place, is_read in zip(places, read, strict=True)
    ]
    left = set(compress(places, formed))
    equation = equation.replace(
        outvars=list(compress(equation.outvars, formed)),
        params=equation.params | {"wanted": tuple(place in left for place in range(len(wanted)))},
    )
    return [True] * len(equation.invars), equation


state(forward_p, _forward_shapes, _forward_lowered)
state(backward_p, _backward_shapes, _backward_lowered)
batching.primitive_batchers[forward_p] = _forward_batch
batching.primitive_batchers[backward_p] = _backward_batch
pe.dce_rules[forward_p] = _forward_read
pe.dce_rules[backward_p] = _backward_read
