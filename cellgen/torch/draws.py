"""Masks of regularised cells, drawn from torch's own generator: ``torch.manual_seed`` repeats them.

``cellgen.masks.draw_masks`` makes masks that do not depend on what was drawn before; pass those by
name where that is wanted.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from cellgen import accept
from cellgen.runtime.abi import axis_length
from cellgen.runtime.masks import Kind, Mask, Varies

BEFORE: Mapping[Varies, tuple[str, ...]] = {
    Varies.STEP_AND_ROW: ("T", "B"),
    Varies.ROW: ("B",),
    Varies.NEVER: (),
}
"""The axes of a mask before those of its value."""


def draw(
    mask: Mask,
    sizes: Mapping[str, int],
    rate: float | Mapping[str, float],
    like: Tensor,
    training: bool,
    batch_first: bool,
) -> Tensor:
    """Draw one mask; outside training it is what inference takes. Raises ArgumentError."""
    p = rate.get(mask.name) if isinstance(rate, Mapping) else rate
    p = accept.real("module", f"the rate of {mask.name}", p, 0, 1, expected="a number from 0 to 1")
    before = BEFORE[mask.varies]
    if batch_first and len(before) == 2:
        before = before[::-1]
    shape = tuple(axis_length(axis, dict(sizes)) for axis in (*before, *mask.shape))
    if not training:
        return like.new_full(shape, p if mask.kind is Kind.KEEP else 1.0)
    hit = torch.rand(shape, dtype=like.dtype, device=like.device) < p
    if mask.kind is Kind.KEEP:
        return hit.to(like.dtype)
    return hit.logical_not().to(like.dtype) * (1 / (1 - p) if p < 1 else 0.0)
