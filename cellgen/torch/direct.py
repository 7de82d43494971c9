"""Calls without torch's dispatcher, where nothing would come of it.

The dispatcher finds what a call means under gradients, modes, transforms and on other devices, and
takes as long as a small kernel. Where torch has none of these at work and tensors are plain ones of
the CPU, ``direct.c`` runs the same kernel on the same memory. What it declines, operators do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd import forward_ad

from cellgen.torch import native
from cellgen.torch.devices import CPU, PLACES

SAVES, OF_LAYER, DETACHED, OF_STEP, IN_ONE = 1, 2, 4, 8, 16
"""Flags of a call: it keeps what a gradient reads; states have a first axis of one layer, (1, B,
...); tensors that require gradients are taken, too, since nothing is tracked; arrays over time are
those of one step, (B, ...), and final states alone are results; what is kept beside results lies in
one tensor, so that autograd has less to keep."""
PLAIN = (Tensor, torch.nn.Parameter)
"""The types whose objects C takes."""


def are_plain(values: Sequence[object]) -> bool:
    """Whether all are tensors of torch's own kinds: no None, no stand-in of a tracer."""
    for value in values:  # noqa: SIM110 - a third of the time of all(...)
        if type(value) not in PLAIN:
            return False
    return True


def is_quiet() -> bool:
    """Whether torch only runs what it is given: no mode, transform, trace or profile is at work."""
    own = torch._C
    return not torch.compiler.is_compiling() and not (
        own._len_torch_dispatch_stack()
        or own._len_torch_function_stack()
        or own._is_any_autocast_enabled()
        or own._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or own._is_tracing()
        or own._autograd._profiler_enabled()
        or PLACES["cpu"] is not CPU
    )


@dataclass(frozen=True)
class Direct:
    """Both passes of a call without tables: the cell by its number, its scalars and options."""

    number: int
    scalars: tuple[float, ...]
    numbers: tuple[int, ...]

    def run(
        self, theta: Sequence[Tensor | None], *, save: bool, flags: int = DETACHED
    ) -> list[Tensor] | None:
        """Compute outputs, final states, and what is saved; None: run operators."""
        run = native.direct()
        flags |= SAVES * save
        return None if run is None else run(self.number, flags, theta, self.scalars, self.numbers)

    def back(
        self,
        theta: Sequence[Tensor | None],
        kept: Sequence[Tensor],
        upstream: Sequence[Tensor | None],
        wanted: int,
    ) -> list[Tensor] | None:
        """Compute the gradients that are wanted; None: run operators."""
        run = native.back()
        if run is None:
            return None
        tensors = [*theta, *kept, *upstream]
        count = len(upstream)
        gradients: list[Tensor] | None = run(
            self.number, tensors, self.scalars, wanted, count, self.numbers
        )
        return gradients


def how(text: str, scalars: tuple[float, ...], numbers: tuple[int, ...]) -> Direct | None:
    """Say how a cell is called, by the text that operators know it by; None where only they can."""
    number = native.number_of(text)
    return Direct(number, scalars, numbers) if number else None
