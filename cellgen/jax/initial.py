"""Parameters to begin with, as arrays of JAX drawn with its keys.

``cellgen.runtime.initial`` lists the rules by which they start, those of NumPy's and torch's too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from cellgen import accept
from cellgen.frameworks.layout import TensorLayout
from cellgen.jax.errors import ArrayError
from cellgen.runtime.abi import Argument
from cellgen.runtime.call.faults import shape_text
from cellgen.runtime.initial import (
    Draw,
    Numbers,
    Shape,
    Uniform,
    must_be_given,
    read_axes,
    rule_of,
)


def initial_arrays(
    layout: TensorLayout,
    key: jax.Array,
    shapes: Mapping[str, Shape],
    dtype: Any,
    initial: Mapping[str, Any],
) -> dict[str, jax.Array]:
    """Return an array for each parameter. Raises ArrayError."""
    label = f"{layout.cell}.init"
    for name in accept.names(label, "initial", initial, "arrays"):
        accept.choice(label, "a name in initial", name, shapes)
    learns = {layout.theta[place].name for place in layout.learns}
    axes, fixed = read_axes(layout.theta), frozenset(shapes.keys() - learns)
    items = [item for item in layout.theta if item.name in shapes]
    arrays = {}
    for item, own in zip(items, jax.random.split(key, len(items)), strict=True):
        shape = shapes[item.name]
        if item.name in initial:
            arrays[item.name] = _stated(label, item, initial[item.name], own, shape, dtype)
            continue
        rule = rule_of(layout.cell, item, axes, fixed)
        if rule is None:
            raise ArrayError(must_be_given(label, item, f"an array {shape}"))
        arrays[item.name] = drawn(rule.of(shape), own, shape, dtype)
    return arrays


def drawn(draw: Draw, key: jax.Array, shape: Shape, dtype: Any) -> jax.Array:
    """Draw what a rule says of a shape."""
    if isinstance(draw, Numbers):
        return jnp.broadcast_to(jnp.asarray(draw.values, dtype), shape)
    if isinstance(draw, Uniform):
        numbers = jax.random.uniform(key, shape, dtype, draw.low, draw.high)
        return jnp.log(numbers) if draw.log else numbers
    rows = shape[-2]
    squares = jax.random.orthogonal(key, rows, (*shape[:-2], draw.gates), dtype)
    return jnp.moveaxis(squares, -3, -2).reshape(shape)


def _stated(
    label: str, item: Argument, value: Any, key: jax.Array, shape: Shape, dtype: Any
) -> jax.Array:
    """Numbers that a caller gives for a parameter. Raises ArrayError for another shape."""
    array = jnp.asarray(value(key, shape, dtype) if callable(value) else value, dtype)
    if array.shape != shape:
        raise ArrayError(
            f"{label}: initial[{item.name!r}] has shape {array.shape}, expected "
            f"{shape_text(item)} = {shape}; give as many numbers"
        )
    return array
