"""Launch a memory whose states may begin anew, so that nothing of what was there shows.

What streams and upstream gradients have that is no finite number is taken out in front of the
kernels and put in again behind them, from where it came to where states begin anew: products of
matrices would spread it over their whole chunk. States that are no finite numbers are the kernels'
own affair.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cellgen.torch.chunks.rows import ANEW, LEFT_OUT
from cellgen.torch.chunks.unfit import any_of, put_in, since_begun, taken_out
from cellgen.torch.memories import MemoryLaunches

STEP_BEFORE = "step.before"
BY_STEP = 3
"""Axes of steps, rows and heads; units stand behind them."""


class ClearedLaunches(MemoryLaunches):
    """The launches of a call with resets."""

    def forward(self, trains: bool = True) -> dict[str, Tensor]:
        """The same, with NaN in what is read and left behind since something unfit came."""
        came = self._take_out("stream")
        results = super().forward(trains)
        after = since_begun(came, self._anew(), 0)
        lost = after & self._valid()
        for name in self._of_roles(("read",)):
            self.arrays[name].masked_fill_(_over_units(lost, self.arrays[name]), math.nan)
        for name in self._of_roles(("last",)):
            self.arrays[name].masked_fill_(_over_units(after[-1], self.arrays[name]), math.nan)
        return results

    def backward(self) -> dict[str, Tensor]:
        """The same, with NaN in what is handed back from where something unfit came."""
        self._take_out("stream")
        came = self._take_out("upstream")
        came[-1] |= self._take_out_of_last()
        anew = self._anew()
        later = torch.cat((anew[1:], torch.zeros_like(anew[:1])))  # begins anew at the next step
        before = since_begun(came.flip(0), later.flip(0), 0).flip(0)
        lost = before & self._valid()
        gradients = super().backward()
        roles = {n: self.plan["buffers"][n]["of"] for n in gradients}
        firsts = set(self._of_roles(("first",)))
        for name, array in gradients.items():
            is_first = name.removeprefix("d_") in firsts or f"{roles[name]}_first" in firsts
            flags = before[0] & ~anew[0] if is_first else lost
            gradients[name] = put_in(array, _over_units(flags, array))
        return gradients

    def _anew(self) -> Tensor:
        return (self.arrays[STEP_BEFORE] == ANEW).unsqueeze(-1)

    def _valid(self) -> Tensor:
        return (self.arrays[STEP_BEFORE] != LEFT_OUT).unsqueeze(-1)

    def _take_out(self, role: str) -> Tensor:
        """Take out of arrays of every step what is unfit; tells of which steps, (T, B, heads)."""
        arrays = self._of_roles((role,))
        unfit = any_of(_by_step(array, BY_STEP) for array in arrays.values())
        for name, array in arrays.items():
            self.arrays[name] = taken_out(array, _over_units(unfit, array))
        return unfit

    def _take_out_of_last(self) -> Tensor:
        arrays = self._of_roles(("upstream_last",))
        if not arrays:
            return torch.zeros((), dtype=torch.bool, device=self.device)
        unfit = any_of(_by_step(array, BY_STEP - 1) for array in arrays.values())
        for name, array in arrays.items():
            self.arrays[name] = taken_out(array, _over_units(unfit, array))
        return unfit


def _by_step(array: Tensor, axes: int) -> Tensor:
    """Where some unit is no finite number."""
    unfit = ~torch.isfinite(array)
    return unfit.flatten(axes).any(-1) if array.dim() > axes else unfit


def _over_units(flags: Tensor, array: Tensor) -> Tensor:
    return flags.reshape(*flags.shape, *(1,) * (array.dim() - flags.dim()))
