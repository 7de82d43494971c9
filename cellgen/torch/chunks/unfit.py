"""Numbers that are not finite, in sequences that begin anew.

Where states begin anew nothing of what was there must show; a product with 0 does not do that to a
number that is not finite, and a product of matrices spreads it to steps before it. So what is not
finite is taken out in front, and where it would have come NaN is put in behind: from the step that
it came at to the last before states begin anew. What is taken out has a gradient of 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


def since_begun(unfit: Tensor, restart: Tensor, dim: int) -> Tensor:
    """Steps up to which something unfit came, no later than the states last began anew."""
    shape = [1] * unfit.dim()
    shape[dim] = unfit.shape[dim]
    place = torch.arange(1, unfit.shape[dim] + 1, device=unfit.device).reshape(shape)
    came = torch.where(unfit, place, -1).cummax(dim).values
    return came >= torch.where(restart, place, 0).cummax(dim).values


def any_of(flags: Iterable[Tensor]) -> Tensor:
    """Where one of some flags is set."""
    first, *others = flags
    for other in others:
        first = first | other
    return first


@dataclass(frozen=True)
class Unfit:
    """What of a layer is unfit: its arrays are (B, ..., T, K), its states (B, ..., V or 1, K).

    ``restart`` (B, 1, ..., T, 1) says where states begin anew. Of a memory all keys of a step are
    unfit together; values of its states go their own ways. A maximum may be -inf.
    """

    restart: Tensor
    is_memory: bool
    is_largest: bool

    def of(self, array: Tensor) -> Tensor:
        """What of an array is unfit."""
        unfit = ~(array < math.inf) if self.is_largest else ~torch.isfinite(array)
        return unfit.any(-1, keepdim=True) if self.is_memory else unfit

    # --- what steps say ---

    def of_steps(self, streams: Mapping[str, Tensor]) -> Tensor:
        """What of each step is unfit."""
        return any_of(map(self.of, streams.values()))

    def after(self, unfit: Tensor) -> Tensor:
        """What steps leave behind is unfit."""
        return since_begun(unfit, self.restart, -2)

    def before(self, after: Tensor) -> Tensor:
        """What steps find is unfit."""
        nothing = torch.zeros_like(after.narrow(-2, 0, 1))
        moved = torch.cat((nothing, after.narrow(-2, 0, after.shape[-2] - 1)), -2)
        return moved & ~self.restart

    # --- what a chunk starts from ---

    def of_states(self, states: Sequence[Tensor]) -> Tensor:
        """What of the states is unfit: where one of them is, those that it is coupled with."""
        return any_of(map(self.of, states))

    def untouched(self, start: int, count: int) -> Tensor:
        """Steps of a chunk that nothing began anew before, nor at."""
        return self.restart.narrow(-2, start, count).cumsum(-2) == 0

    def as_read(self, unfit: Tensor) -> Tensor:
        """What steps read of unfit states."""
        return unfit.mT if self.is_memory else unfit


def taken_out(array: Tensor, unfit: Tensor, by: float = 0.0) -> Tensor:
    """An array with a number in place of what is unfit."""
    return torch.where(unfit, by, array)


def put_in(array: Tensor, unfit: Tensor) -> Tensor:
    """An array that is NaN where something is unfit."""
    return torch.where(unfit, math.nan, array)
