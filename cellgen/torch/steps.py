"""Usual calls of drop-in cells: one step of a batch, parameters where the cell keeps them.

Input: a cell's input and states, (B, ...), and its parameters by name. Output: its final states;
None for calls that are not usual, which go the long way. All that a backward pass reads beside the
arguments lies in one tensor, so that a step costs autograd little.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from cellgen.torch import native
from cellgen.torch.derivatives import Call, backward
from cellgen.torch.direct import DETACHED, OF_STEP, SAVES, are_plain, is_quiet
from cellgen.torch.errors import DeclinedError, TensorError
from cellgen.torch.functional import CellFunction

NO_TABLES = (None, None, None)
ALIGNED = 16
"""Numbers at whose multiples arrays begin that a step keeps; ``place_kept`` of direct.c has it."""


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
            found: Sequence[Tensor] | None = run(self.number, OF_STEP | DETACHED, theta, (), ())
            return found
        try:
            if _learns(theta):
                return _apply(self, *self._with_states(theta))
            found = run(self.number, OF_STEP, theta, (), ())
        except (DeclinedError, RuntimeError, AttributeError):
            return None  # the long way has words for it
        return found

    def _with_states(self, theta: list[Any]) -> list[Any]:
        """The tensors of a call, states that are left out made."""
        if theta[1] is None:
            layout = self.cell.layout
            sizes = layout.sizes([theta[0].unsqueeze(0), *theta[1:]])
            for place, name in enumerate(self.cell.states, 1):
                theta[place] = theta[0].new_zeros(layout.shape(name, sizes))
        return theta

    @cached_property
    def upstream(self) -> tuple[int, ...]:
        """The number of its final state for each upstream gradient of the cell; -1: it has none."""
        names = [f"d_{name}" for name in self.cell.finals]
        places = (names.index(i.name) if i.name in names else -1 for i in self.cell.layout.upstream)
        return tuple(places)

    def gradients(
        self,
        call: Call,
        theta: Sequence[Tensor],
        kept: Tensor,
        upstream: Sequence[Tensor | None],
    ) -> Sequence[Tensor | None]:
        """The gradients that ``call`` wants, of what ``Stepped`` kept."""
        every = [None if place < 0 else upstream[place] for place in self.upstream]
        run = native.back()
        if run is not None and not torch.is_grad_enabled() and is_quiet():
            tensors = [*theta, kept, *every]
            found: Sequence[Tensor] | None = run(
                self.number, OF_STEP, tensors, (), call.wanted, len(every), ()
            )
            if found is not None:
                return call.spread(found)
        x, *others = theta
        over_time = [x.unsqueeze(0), *others]
        arrays = self._apart(over_time, kept)
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            spread = call.spread(backward(call, NO_TABLES, over_time, arrays, every))
        else:
            with torch._C._AutoDispatchBelowAutograd():
                spread = call.spread(backward(call, NO_TABLES, over_time, arrays, every))
        d_x = spread[0]
        return [None if d_x is None else d_x.squeeze(0), *spread[1:]]

    def _apart(self, theta: Sequence[Tensor], kept: Tensor) -> list[Tensor]:
        """What a step keeps as the operators have it: outputs, final states, saved arrays.

        Raises TensorError where a hook of saved tensors gave something else back.
        """
        layout, found = self.cell.layout, dict[str, Tensor]()
        sizes, x = layout.sizes(theta), theta[0]
        shapes = {i.name: layout.shape(i.name, sizes) for i in layout.forward.results if not i.of}
        lengths = [-(-math.prod(shape) // ALIGNED) * ALIGNED for shape in shapes.values()]
        expected = (sum(lengths),)
        if (tuple(kept.shape), kept.dtype, kept.device) != (expected, x.dtype, x.device):
            raise TensorError(
                f"{layout.where}: what a step keeps is {tuple(kept.shape)} of {kept.dtype} on "
                f"{kept.device}, expected {expected} of {x.dtype} on {x.device}; a hook of saved "
                f"tensors changed it: let it give back what it was given"
            )
        parts = kept.contiguous().split(lengths)
        for part, (name, shape) in zip(parts, shapes.items(), strict=True):
            found[name] = part[: math.prod(shape)].view(shape)
        for name, final in zip(self.cell.over_time_names, self.cell.finals, strict=True):
            found[final] = found[name][0]
        return [found[item.name] for item in (*layout.outputs, *layout.saved)]


class Stepped(torch.autograd.Function):
    """A step where a graph is wanted and torch only runs it: what training by cells calls."""

    @staticmethod
    def forward(ctx: Any, step: CellStep, *theta: Any) -> tuple[Tensor, ...]:
        """Run the kernel. Raises DeclinedError."""
        run = native.direct()
        made = (
            None if run is None else run(step.number, OF_STEP | DETACHED | SAVES, [*theta], (), ())
        )
        if made is None:
            raise DeclinedError
        ctx.step = step
        ctx.save_for_backward(*theta, made.pop())
        ctx.set_materialize_grads(False)
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return gradients of the tensors."""
        step: CellStep = ctx.step
        *theta, kept = ctx.saved_tensors
        needed = ctx.needs_input_grad[1:]
        call = step.call if all(needed) else step.call.wanting(needed)
        return (None, *step.gradients(call, theta, kept, upstream))


_apply: Callable[..., Sequence[Tensor]] = super(torch.autograd.Function, Stepped).apply
"""``Stepped.apply`` without a look for transforms of torch.func, which a usual call has not."""


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
    return CellStep(cell, number, cell.names[1 + states :], Call(cell.known))
