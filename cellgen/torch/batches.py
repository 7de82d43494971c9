"""A batch of calls, as ``torch.func.vmap`` asks for: rows of one call, or one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from cellgen.frameworks.layout import row_axis
from cellgen.runtime.abi import Argument


def fold(tensor: Tensor | None, dim: int | None, size: int, axis: int | None) -> Tensor | None:
    """Put the calls of a batch among the rows of one call; weights are the same for all."""
    if tensor is None or axis is None:
        return tensor
    batch = tensor.movedim(dim, 0) if dim is not None else tensor.expand(size, *tensor.shape)
    return batch.movedim(0, axis).flatten(axis, axis + 1)


def unfold(tensor: Tensor, size: int, item: Argument) -> Tensor:
    """Take the rows of a result apart again: the calls of a batch come first."""
    axis = row_axis(item)
    assert axis is not None
    return tensor.unflatten(axis, (size, tensor.shape[axis] // size)).movedim(axis, 0)


def one_by_one(
    run: Callable[..., tuple[Tensor | None, ...]],
    size: int,
    call: object,
    dims: Sequence[int | None],
    tensors: Sequence[Tensor | None],
) -> tuple[tuple[Tensor | None, ...], tuple[int | None, ...]]:
    """Make the calls of a batch one after the other, where their weights differ.

    A batch without calls has the shapes of one call of zeros.
    """
    take = Tensor.select if size else _zeros
    each = [
        run(
            call,
            *(
                tensor if dim is None or tensor is None else take(tensor, dim, number)
                for tensor, dim in zip(tensors, dims, strict=True)
            ),
        )
        for number in range(size or 1)
    ]
    results = tuple(
        None if c[0] is None else torch.stack(c)[:size] for c in zip(*each, strict=True)
    )
    return results, tuple(None if result is None else 0 for result in results)


def _zeros(tensor: Tensor, dim: int, _: int) -> Tensor:
    """What stands for the tensor of one call where there is none."""
    return tensor.sum(dim, dtype=tensor.dtype)
