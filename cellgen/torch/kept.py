"""What a call keeps for its backward pass, where that lies in one tensor: its arrays, as views.

Input: the tensor that ``place_kept`` of direct.c lays out. Output: arrays by name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from cellgen.runtime.abi import Argument
from cellgen.runtime.call.signature import kept_element
from cellgen.runtime.call.stored import element_name
from cellgen.torch.errors import TensorError
from cellgen.torch.layout import Layout

ALIGNED = 64
"""Bytes at whose multiples arrays begin that lie in one tensor."""
NARROW = 2
"""Bytes of bfloat16 and float16."""


def apart(
    layout: Layout, items: Sequence[Argument], theta: Sequence[Tensor], kept: Tensor
) -> dict[str, Tensor]:
    """Return the arrays of one tensor by name; ``items`` are in the order of the cell's results.

    Beside tensors of 16 bits it holds several types, as bytes.

    Raises TensorError where a hook of saved tensors gave something else back.
    """
    sizes, x = layout.sizes(theta), theta[0]
    element, parts = element_name(x.dtype), []
    place = 0
    for item in items:
        shape, dtype = layout.shape(item.name, sizes), getattr(torch, kept_element(item, element))
        count = math.prod(shape) * dtype.itemsize
        parts.append((item.name, shape, dtype, place, count))
        place += -(-count // ALIGNED) * ALIGNED
    holds = torch.uint8 if x.element_size() == NARROW else x.dtype
    expected = (place // holds.itemsize,)
    if (tuple(kept.shape), kept.dtype, kept.device) != (expected, holds, x.device):
        raise TensorError(
            f"{layout.label}: what a call keeps is {tuple(kept.shape)} of {kept.dtype} on "
            f"{kept.device}, expected {expected} of {holds} on {x.device}; a hook of saved "
            f"tensors changed it: let it give back what it was given"
        )
    numbers = kept.contiguous().view(torch.uint8)
    return {
        name: numbers[place : place + count].view(dtype).view(shape)
        for name, shape, dtype, place, count in parts
    }
