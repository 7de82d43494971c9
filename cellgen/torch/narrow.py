"""Tensors of 16 bits: which elements a kernel in C reads and writes where tensors are narrow.

Arrays over time stay in 16 bits, of their own type or, where they are saved gates, in float16. All
others are float32 while a call runs: widened before it, rounded once after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cellgen.runtime.abi import Argument
from cellgen.runtime.call.arguments import has_steps
from cellgen.runtime.call.stored import IN_C

STORED = {getattr(torch, name): number for name, number in IN_C.items()}
"""As C numbers them; 0: floats."""


@dataclass
class Widened:
    """The arrays of a call as its kernel has them, and results to be rounded from float32."""

    arrays: dict[str, Tensor | float]
    rounded: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def round(self) -> None:
        """Round what a call gave, once it has run."""
        for narrow, wide in self.rounded:
            narrow.copy_(wide)


def widened(
    arrays: dict[str, Tensor | float],
    arguments: Sequence[Argument],
    results: Sequence[Argument],
    *,
    last: bool,
) -> Widened:
    """Widen what has no steps, of what a call is given and of its results.

    ``last``: these are of the last step alone.
    """
    widened_call = Widened(dict(arrays))
    for place, item in enumerate((*arguments, *results)):
        tensor, is_result = arrays.get(item.name), place >= len(arguments)
        stays = has_steps(item) and not (last and is_result)
        if stays or not isinstance(tensor, Tensor) or tensor.dtype not in STORED:
            continue
        wide = widened_call.arrays[item.name] = tensor.to(torch.float32)
        if is_result:
            widened_call.rounded.append((tensor, wide))
    return widened_call


def stored_of(arrays: dict[str, Tensor | float], members: Sequence[Argument]) -> Tensor:
    """What each member of a call's struct holds, as C numbers it."""
    tensors = (arrays.get(item.name) for item in members)
    kinds = [STORED.get(t.dtype, 0) if isinstance(t, Tensor) else 0 for t in tensors]
    return torch.tensor(kinds, dtype=torch.uint8)
