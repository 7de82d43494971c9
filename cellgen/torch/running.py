"""Run a cell's forward pass in the way that torch's state asks for: eager, compiled, transformed.

Input: a ``Planned`` call, its tables and tensors. Output: which of its two calls it was, and the
outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cellgen.runtime.directions import AUTO
from cellgen.torch.calls import Tables, run_below, run_forward
from cellgen.torch.derivatives import Call, Forward, backward, forward_along, run_back
from cellgen.torch.devices import CPU, PLACES
from cellgen.torch.modes import has_gradient, is_transforming
from cellgen.torch.planned import Planned
from cellgen.torch.streams import TIER, in_tier


class Eager(torch.autograd.Function):
    """The forward pass where a graph is wanted and torch only runs it: what training calls.

    The operators are called below autograd, whose formulas in Python cost more than small kernels;
    where a gradient is to be differentiated again, ``backward`` is the operator with its formula.
    """

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Any) -> tuple[Tensor, ...]:
        """Run the kernel."""
        tables, theta, _ = call.split(tensors)
        results = run_below(call, tables, theta, save=True)
        ctx.call, ctx.tier = call, TIER.get()
        ctx.save_for_backward(*tensors, *call.kept(results))
        ctx.set_materialize_grads(False)
        return tuple(results[: call.outputs])

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return gradients of the tensors."""
        call: Call = ctx.call
        tables, theta, kept = call.split(ctx.saved_tensors)
        call = call.wanting(ctx.needs_input_grad[4:])
        is_differentiated = torch.is_grad_enabled() or torch.compiler.is_compiling()
        back = backward if is_differentiated else run_back
        if ctx.tier == AUTO:
            gradients = back(call, tables, theta, kept, upstream)
        else:
            with in_tier(ctx.tier):  # which autograd's own thread does not know
                gradients = back(call, tables, theta, kept, upstream)
        return (None, None, None, None, *call.spread(gradients))


def run(plan: Planned, tables: Tables, theta: Sequence[Tensor]) -> tuple[Call, Sequence[Tensor]]:
    """Run a cell's forward pass in the way that torch's state asks for.

    Returns which of the two calls it was, and its outputs.
    """
    if is_transforming():
        return plan.saving, _transformed(plan.saving, tables, theta)
    if torch._C._is_tracing():
        return trace(plan, tables, theta, _learns(theta))
    if torch.is_grad_enabled() and _learns(theta):
        results: Sequence[Tensor] = Eager.apply(plan.saving, *tables, *theta)
        return plan.saving, results
    call = _plain(plan, theta)
    return call, run_below(call, tables, theta, save=False)[: call.outputs]


def run_compiled(
    plan: Planned, tables: Tables, theta: Sequence[Tensor]
) -> tuple[Call, Sequence[Tensor]]:
    """Put a cell's forward pass into a graph that torch compiles; as ``run``.

    What goes in segments is called from the graph: values say how often they run.
    """
    if plan.saving.cut is not None:
        call, outputs = _outside(plan, tables, theta)
        return call, outputs
    if is_transforming():
        return plan.saving, _transformed(plan.saving, tables, theta)
    save = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in theta)
    return trace(plan, tables, theta, save)


@torch._disable_dynamo  # type: ignore[untyped-decorator]
def _outside(
    plan: Planned, tables: Tables, theta: Sequence[Tensor]
) -> tuple[Call, Sequence[Tensor]]:
    """Run a cell's forward pass between two compiled graphs."""
    call, outputs = run(plan, tables, theta)
    return call, outputs


def trace(
    plan: Planned, tables: Tables, theta: Sequence[Tensor], save: bool
) -> tuple[Call, Sequence[Tensor]]:
    """Put a cell's forward pass into a graph: one operator, which has its formula.

    A graph of ``torch.jit.trace`` may learn where it was traced without gradients.
    """
    call = plan.saving if save else _plain(plan, theta)
    return call, run_forward(call, tables, theta, save=save)[: call.outputs]


def _plain(plan: Planned, theta: Sequence[Tensor]) -> Call:
    """The call that does not save; where kernels form all outputs, it is as one that does."""
    if plan.plain is plan.saving or PLACES.get(theta[0].device.type, CPU).parts:
        return plan.plain
    return plan.saving


def _learns(tensors: Sequence[Tensor]) -> bool:
    """Whether a tensor requires a gradient."""
    for tensor in tensors:  # noqa: SIM110 - a third of the time of any(...)
        if tensor.requires_grad:
            return True
    return False


@torch._disable_dynamo  # type: ignore[untyped-decorator]
def _transformed(call: Call, tables: Tables, theta: Sequence[Tensor]) -> Sequence[Tensor]:
    """Run with the rules of ``torch.func`` and forward-mode.

    Never within a compiled graph: Dynamo would drop the rules of forward-mode without a word.
    """
    along = forward_along(call, tables, theta)
    if along is not None:
        return along
    call = call.saving(is_read=has_gradient(theta))
    results: Sequence[Tensor] = Forward.apply(call, *tables, *theta)
    return results[: call.outputs]
