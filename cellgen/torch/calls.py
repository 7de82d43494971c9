"""Calls of the two operators of every cell, and of the forward pass where torch only runs it.

Input: a ``Call``, its tables and tensors. Output: what the operators give.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from cellgen.runtime.numbers import ALL, MOST_BITS
from cellgen.torch.direct import is_quiet
from cellgen.torch.in_segments import run_segments
from cellgen.torch.schemas import OVERLOAD

if TYPE_CHECKING:
    from cellgen.torch.derivatives import Call

Tables: TypeAlias = tuple[Tensor | None, Tensor | None, Tensor | None]
"""Lengths, mask and reset of a call."""
Tensors: TypeAlias = Sequence[Tensor | None]


def run_forward(
    call: Call, tables: Tables, theta: Sequence[Tensor], *, save: bool
) -> Sequence[Tensor]:
    """Call the operator: with tables that there are, and which those are."""
    if call.cut is not None:
        return run_segments(call, call.cut, tables, theta, save=save, forward=run_forward)
    tensors, present = _present(tables)
    if not tensors and torch.compiler.is_exporting():  # AOTInductor makes None of an empty list
        tensors = [theta[0]]
    results: Sequence[Tensor] = getattr(torch.ops.cellgen.forward, OVERLOAD)(
        call.known.text, theta, call.scalars, save, tensors, present, *call.numbers
    )
    return results


def run_below(
    call: Call, tables: Tables, theta: Sequence[Tensor], *, save: bool
) -> Sequence[Tensor]:
    """The same where torch only runs it: below autograd, with what does not change kept."""
    if call.cut is not None:
        return run_segments(call, call.cut, tables, theta, save=save, forward=run_forward)
    lengths, mask, reset = tables
    direct = call.direct
    if direct is not None and lengths is None and mask is None and reset is None and is_quiet():
        results = direct.run(theta, save=save)
        if results is not None:
            return results
    with torch._C._AutoDispatchBelowAutograd():
        if lengths is None and mask is None and reset is None:
            head, rest = call.ends
            behind = rest[save]
            operator = getattr(torch.ops.cellgen.forward, OVERLOAD)
            computed: Sequence[Tensor] = operator(head, theta, *behind)
            return computed
        return run_forward(call, tables, theta, save=save)


def _present(tensors: Tensors) -> tuple[list[Tensor], int]:
    """The tensors that there are, and their places as bits."""
    there = [tensor for tensor in tensors if tensor is not None]
    every = (1 << len(tensors)) - 1 if len(tensors) <= MOST_BITS else ALL
    if len(there) == len(tensors):
        return there, every
    return there, every - sum([1 << place for place, t in enumerate(tensors) if t is None])


def _with_zeros(call: Call, tables: Tables, theta: Sequence[Tensor], upstream: Tensors) -> Tensors:
    """Put zeros in the place of gradients that are missing where bits do not tell them apart."""
    layout = call.layout(tables)
    sizes, filled = layout.sizes(theta), [*upstream]
    for place in range(MOST_BITS, len(filled)):
        if filled[place] is None:
            filled[place] = theta[0].new_zeros(layout.shape(layout.upstream[place].name, sizes))
    return filled


def run_backward(
    call: Call,
    tables: Tables,
    theta: Sequence[Tensor],
    kept: Sequence[Tensor],
    upstream: Tensors,
) -> Sequence[Tensor]:
    """Call the operator: upstream gradients that there are, and which those are."""
    if len(upstream) > MOST_BITS:
        upstream = _with_zeros(call, tables, theta, upstream)
    tensors, present = _present(upstream)
    there, which = _present(tables)
    gradients: Sequence[Tensor] = getattr(torch.ops.cellgen.backward, OVERLOAD)(
        *(call.known.text, theta, call.scalars, kept, tensors, present, call.wanted, there, which),
        *call.numbers,
    )
    return gradients
