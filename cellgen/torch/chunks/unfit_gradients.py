"""Gradients that are not finite, in sequences that begin anew.

What comes back to a layer and is not finite is taken out behind it, and NaN is put in in front of
it: from the step that it came to back to where states begin anew. ``entering`` marks the arrays
that a layer reads, ``leaving`` those that it forms; the gradient of the mark tells what came back.
Not supported: forward mode, in which nothing comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cellgen.torch.chunks.unfit import Unfit, any_of, put_in, since_begun, taken_out


def entering(
    unfit: Unfit, streams: Sequence[Tensor], states: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Streams and states in front of a layer, the same, and a mark for ``leaving``."""
    steps = len(streams)
    *same, mark = _Entering.apply(unfit.restart, unfit.is_memory, steps, *streams, *states)
    return same[:steps], same[steps:], mark


def leaving(
    unfit: Unfit, mark: Tensor, formed: Sequence[Tensor], states: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """What a layer forms at steps, and its last states, the same."""
    steps = len(formed)
    same = [*_Leaving.apply(mark, unfit.is_memory, steps, *formed, *states)]
    return same[:steps], same[steps:]


class _Entering(torch.autograd.Function):
    """Arguments: where states begin anew, whether of a memory, how many are streams, arrays."""

    generate_vmap_rule = True

    @staticmethod
    def forward(restart: Tensor, is_memory: bool, steps: int, *arrays: Tensor) -> Any:
        """Give the arrays, and a mark of each entry that is unfit by itself."""
        mark = torch.zeros_like(arrays[0][..., :1] if is_memory else arrays[0])
        return (*[array.view_as(array) for array in arrays], mark)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep where states begin anew."""
        ctx.save_for_backward(inputs[0])
        ctx.steps = inputs[2]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Put in NaN back to where states began."""
        (restart,) = ctx.saved_tensors
        *above, mark = gradients
        first = restart.narrow(-2, 0, 1)
        later = torch.cat(
            (restart.narrow(-2, 1, restart.shape[-2] - 1), torch.zeros_like(first)), -2
        )
        lost = since_begun((mark != 0).flip(-2), later.flip(-2), -2).flip(-2)
        of_first = lost.narrow(-2, 0, 1) & ~first
        lost_of = [lost] * ctx.steps + [of_first] * (len(above) - ctx.steps)
        return (None, None, None, *map(put_in, above, lost_of))


class _Leaving(torch.autograd.Function):
    """Arguments: a mark, whether of a memory, how many have steps, arrays."""

    generate_vmap_rule = True

    @staticmethod
    def forward(mark: Tensor, is_memory: bool, steps: int, *arrays: Tensor) -> Any:
        """Give the arrays."""
        return tuple(array.view_as(array) for array in arrays)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep what kinds of arrays there are, and which entries are numbers."""
        _, ctx.is_memory, ctx.steps, *_ = inputs
        ctx.save_for_backward(*output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Take out what is not finite, and tell the mark; what is lost itself tells nothing."""
        unfit = [~torch.isfinite(gradient) for gradient in gradients]
        numbers = map(taken_out, gradients, unfit)
        values = zip(unfit, ctx.saved_tensors, strict=True)
        unfit = [flags & torch.isfinite(value) for flags, value in values]
        if ctx.is_memory:
            unfit = [flags.any(-1, keepdim=True) for flags in unfit]
            unfit[ctx.steps :] = [flags.any(-2, keepdim=True) for flags in unfit[ctx.steps :]]
        came = any_of(unfit[: ctx.steps])
        before = torch.zeros_like(came.narrow(-2, 1, came.shape[-2] - 1))
        last = torch.cat((before, any_of(unfit[ctx.steps :])), -2)
        return ((came | last).to(gradients[0].dtype), None, None, *numbers)
