"""Usual calls of drop-in cells: one step of a batch, parameters where the cell keeps them.

Input: a cell's input and states, (B, ...), and its parameters by name. Output: its final states;
None for calls that are not usual, which go the long way. All that a backward pass reads beside the
arguments lies in one tensor, so that a step costs autograd little.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from cellgen.frameworks.selection import ON_TENSORS
from cellgen.torch import native
from cellgen.torch.derivatives import Call, backward
from cellgen.torch.direct import DETACHED, OF_STEP, are_plain, is_quiet
from cellgen.torch.errors import DeclinedError
from cellgen.torch.functional import CellFunction
from cellgen.torch.kept import apart
from cellgen.torch.tracked import NO_TABLES, TrackedCall, run_tracked


@dataclass(frozen=True)
class CellStep:
    """One step of a cell: ``names`` are those of its parameters, in order behind the states.

    A copy, or what is unpickled, is None: ``number``, by which C knows the cell, holds in this
    process alone.
    """

    cell: CellFunction
    number: int
    names: tuple[str, ...]
    call: Call

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

    def run(
        self, x: Any, states: Sequence[Any], parameters: Mapping[str, Any]
    ) -> Sequence[Tensor] | None:
        """Compute the final states, or nothing; ``states`` are () where they start at zero."""
        if type(x) is not Tensor or x.dim() != 2 or not are_plain(states):
            return None
        run = native.direct()
        if run is None or not is_quiet():
            return None
        count = len(self.cell.states)
        theta = [x, *(states or (None,) * count), *map(parameters.get, self.names)]
        if not torch.is_grad_enabled():
            results: Sequence[Tensor] | None = run(self.number, OF_STEP | DETACHED, theta, (), ())
            return results
        try:
            if _learns(theta):
                return run_tracked(self.tracked, *self._with_states(theta))
            results = run(self.number, OF_STEP, theta, (), ())
        except (DeclinedError, RuntimeError, AttributeError):
            return None  # the long way has words for it
        return results

    def _with_states(self, theta: list[Any]) -> list[Any]:
        """The tensors of a call, states that are left out made."""
        if theta[1] is None:
            layout = self.cell.layout
            sizes = layout.sizes([theta[0].unsqueeze(0), *theta[1:]])
            for place, name in enumerate(self.cell.states, 1):
                theta[place] = theta[0].new_zeros(layout.shape(name, sizes))
        return theta

    @cached_property
    def tracked(self) -> TrackedStep:
        """The step as autograd tracks it."""
        return TrackedStep(self.cell, self.call)


class TrackedStep(TrackedCall):
    """A step, all of whose results are final states; its outputs are kept beside them."""

    def __init__(self, cell: CellFunction, call: Call) -> None:
        super().__init__(call, OF_STEP, cell.finals, ())
        self.cell = cell

    def gradients(
        self, needed: tuple[bool, ...], saved: Sequence[Any], upstream: Sequence[Tensor | None]
    ) -> Sequence[Tensor | None]:
        """Return gradients of theta by operators, which may be differentiated again."""
        call = self.call.wanting(needed)
        every = [None if place < 0 else upstream[place] for place in self.upstream]
        *theta, kept = saved
        theta[0] = theta[0].unsqueeze(0)
        arrays = self._apart(theta, kept)
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            spread = call.spread(backward(call, NO_TABLES, theta, arrays, every))
        else:
            with torch._C._AutoDispatchBelowAutograd():
                spread = call.spread(backward(call, NO_TABLES, theta, arrays, every))
        d_x = spread[0]
        return [None if d_x is None else d_x.squeeze(0), *spread[1:]]

    def _apart(self, theta: Sequence[Tensor], kept: Tensor) -> list[Tensor]:
        """What a step keeps as the operators have it: outputs, final states, saved arrays.

        Raises TensorError where a hook of saved tensors gave something else back.
        """
        layout = self.cell.layout
        items = [item for item in layout.forward.results if not item.of]
        kept_by_name = apart(layout, items, theta, kept)
        for name, final in zip(self.cell.over_time_names, self.cell.finals, strict=True):
            kept_by_name[final] = kept_by_name[name][0]
        return [kept_by_name[item.name] for item in (*layout.outputs, *layout.saved)]


def _learns(tensors: Sequence[Any]) -> bool:
    for tensor in reversed(tensors):  # noqa: SIM110 - parameters first: a third of any(...)
        if tensor is not None and tensor.requires_grad:
            return True
    return False


def step_of(cell: CellFunction) -> CellStep | None:
    """Return a step of a cell whose parameters have its names; None where C has none.

    That is where outputs over time are not all states, or a cell reads more than one input.
    """
    layout, number = cell.layout, native.number_of(cell.known.text)
    roles = [item.role for item in layout.theta]
    states = len(cell.states)
    alike = roles[: 1 + states] == ["input", *["state"] * states]
    names = [item.name for item in layout.outputs]
    all_are_states = names == [*cell.over_time_names, *cell.finals] and cell.finals == tuple(
        f"{name}_last" for name in cell.over_time_names
    )
    others = {"input", "static"} & {*roles[1:]}
    plain = len(layout.theta[0].shape) == 3 and not (others or layout.scalars)
    if not (number and native.direct() and alike and plain and all_are_states):
        return None
    return CellStep(cell, number, cell.names[1 + states :], Call(cell.known, (), ON_TENSORS))
