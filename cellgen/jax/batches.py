"""A batch of calls, as ``vmap`` asks for: rows of one call, or one call after the other.

``axes`` are those of the batch in each array, None where all calls share it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

Axes: TypeAlias = Sequence[int | None]
Arrays: TypeAlias = Sequence[Any]


def size_of(arrays: Arrays, axes: Axes) -> int:
    """How many calls there are."""
    sizes = [a.shape[axis] for a, axis in zip(arrays, axes, strict=True) if axis is not None]
    size: int = sizes[0]
    return size


def spread(array: Any, axis: int | None, size: int) -> Any:
    """Let the batch be the first axis of an array, also where all calls share it."""
    if axis is None:
        return jnp.broadcast_to(array, (size, *array.shape))
    return jnp.moveaxis(array, axis, 0)


def shares(axes: Axes, rows: Axes) -> bool:
    """Whether what differs between the calls has rows: they share their weights."""
    return all(row is not None for axis, row in zip(axes, rows, strict=True) if axis is not None)


def call_batch(
    run: Callable[..., Sequence[Any]],
    arrays: Arrays,
    axes: Axes,
    argument_rows: Axes,
    result_rows: Axes,
) -> tuple[list[Any], list[int]]:
    """Make a batch of calls; each array's axis of rows is given, None where it has no rows.

    Where there are calls, and every array that differs between them has rows, and every result,
    they are the rows of one call; else the calls follow each other.
    """
    size = size_of(arrays, axes)
    if not size or not shares(axes, argument_rows) or None in result_rows:
        return one_by_one(run, arrays, axes)
    folded = [
        array if row is None else _folded(array, axis, size, row)
        for array, axis, row in zip(arrays, axes, argument_rows, strict=True)
    ]
    rows = [row for row in result_rows if row is not None]
    return [_unfolded(a, size, row) for a, row in zip(run(*folded), rows, strict=True)], rows


def _folded(array: Any, axis: int | None, size: int, row: int) -> Any:
    many = jnp.moveaxis(spread(array, axis, size), 0, row)
    return many.reshape(*many.shape[:row], size * many.shape[row + 1], *many.shape[row + 2 :])


def _unfolded(array: Any, size: int, row: int) -> Any:
    rows = array.shape[row] // size
    return array.reshape(*array.shape[:row], size, rows, *array.shape[row + 1 :])


def one_by_one(
    run: Callable[..., Sequence[Any]], arrays: Arrays, axes: Axes
) -> tuple[list[Any], list[int]]:
    """Make the calls in a loop of the program."""
    differing = [
        jnp.moveaxis(array, axis, 0)
        for array, axis in zip(arrays, axes, strict=True)
        if axis is not None
    ]

    def one(some: Arrays) -> tuple[Any, ...]:
        own = iter(some)
        whole = [
            array if axis is None else next(own) for array, axis in zip(arrays, axes, strict=True)
        ]
        return tuple(run(*whole))

    results = jax.lax.map(one, differing)
    return list(results), [0] * len(results)
