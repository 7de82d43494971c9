"""Masks of regularised cells, drawn from torch's own generator: ``torch.manual_seed`` repeats them.

``cellgen.masks.draw_masks`` makes masks that do not depend on what was drawn before; pass those by
name where that is wanted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from cellgen import accept
from cellgen.errors import ArgumentError
from cellgen.runtime.masks import Kind, Mask, Varies

Rates: TypeAlias = float | Mapping[str, float]
EXPECTED = "a number from 0 to 1"


def check_rates(label: str, masks: Sequence[Mask], rate: Rates) -> Rates:
    """Look at the p of a cell's masks, for all or by name. Raises ArgumentError."""
    names = [mask.name for mask in masks]
    rates = rate if isinstance(rate, Mapping) else dict.fromkeys(names or ["rate"], rate)
    for name, p in rates.items():
        if names and name not in names:
            raise ArgumentError(
                f"{label}: rate has {accept.quoted(name)}, which is no mask of the cell; expected "
                f"names among {', '.join(names)}"
            )
        accept.real(label, f"the rate of {name}" if names else "rate", p, 0, 1, expected=EXPECTED)
        if not names and p:
            raise ArgumentError(
                f"{label}: rate is {accept.quoted(rate)}, but the cell has no masks; leave rate "
                f"out, or take a cell of cellgen.regularise"
            )
    return rate


def draw(
    mask: Mask,
    shape: tuple[int, ...],
    rate: Rates,
    like: Tensor,
    training: bool,
    batch_first: bool,
) -> Tensor:
    """Draw one mask of a shape, steps first; outside training it is what inference takes.

    Raises ArgumentError.
    """
    p = rate.get(mask.name) if isinstance(rate, Mapping) else rate
    p = accept.real("module", f"the rate of {mask.name}", p, 0, 1, expected=EXPECTED)
    if batch_first and mask.varies is Varies.STEP_AND_ROW:
        steps, rows, *units = shape
        shape = (rows, steps, *units)
    if not training:
        return like.new_full(shape, p if mask.kind is Kind.KEEP else 1.0)
    drawn = torch.promote_types(like.dtype, torch.float32)  # 16 bits are too few for a rate
    hit = torch.rand(shape, dtype=drawn, device=like.device) < p
    if mask.kind is Kind.KEEP:
        return hit.to(like.dtype)
    return hit.logical_not().to(like.dtype) * (1 / (1 - p) if p < 1 else 0.0)
