"""The two operators of every cell: ``torch.ops.cellgen.forward`` and ``.backward``.

Weights and other tensors of a call come in one list, in the order of the declaration, so that one
schema serves every cell and an exported graph names the cell. What an operator returns is a list,
too: outputs, final states, then what was saved. Derivatives of ``backward`` are calls of the
tangent of the cell, so that any order is one of these two operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cellgen.accept import lacking
from cellgen.frameworks.selection import names_over_time, showing
from cellgen.runtime.abi import Argument
from cellgen.runtime.numbers import from_numbers
from cellgen.runtime.options import TABLES, Options, skips, with_tables
from cellgen.torch import native
from cellgen.torch.derivatives import Call, backward, second
from cellgen.torch.devices import PLACES
from cellgen.torch.errors import TensorError
from cellgen.torch.layout import Layout
from cellgen.torch.registry import Known, find
from cellgen.torch.run import TensorPlan
from cellgen.torch.schemas import BACKWARD, FORWARD, NAMES, OF_STEPS

library = torch.library.Library("cellgen", "DEF")
for name, schema in zip(NAMES, (FORWARD, BACKWARD), strict=True):
    library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))


def forward_in_python(
    cell: str, theta: Sequence[Tensor], scalars: Sequence[float], save: bool, *options: Any
) -> list[Tensor]:
    """Run the forward pass of a cell: outputs and final states, then what is kept."""
    known = find(cell)
    layout, kind = known.layout, (save, *options[1:], *_kinds(theta), *_kinds(options[0]))
    plan = known.plans.find(kind)
    if plan is None:
        of_call, tables = options_of(known, options)
        sizes = layout.check(theta)
        layout.check_steps(sizes, theta[0], *tables)
        plan = known.runner_on(theta[0].device).plan_forward(theta, of_call, save=save)
        known.plans.keep(kind, plan)
    if any(map(lacking, theta)):
        layout.check_memory(_by_name(plan.theta, theta))
    if options[1]:
        tables = spread(options[0], options[1], 3)
        layout.check_memory(dict(zip(TABLES, tables, strict=True)))
        if tables[0] is not None and PLACES[theta[0].device.type].reads:
            layout.check_lengths(tables[0], plan.sizes["T"])
    return plan.runner.forward(plan, theta, scalars, _with_tables(plan, options))


def backward_in_python(
    cell: str,
    theta: Sequence[Tensor],
    scalars: Sequence[float],
    kept: Sequence[Tensor],
    upstream: Sequence[Tensor],
    present: int,
    wanted: int,
    *options: Any,
) -> list[Tensor]:
    """Run the backward pass of a cell: the gradients of what learns."""
    known = find(cell)
    kind = (wanted, *options[1:], *_kinds(theta))
    plan = known.plans.find(kind)
    if plan is None:
        of_call, _ = options_of(known, options)
        _layout(known, of_call).check(theta)
        plan = known.runner_on(theta[0].device).plan_backward(theta, of_call, wanted)
        known.plans.keep(kind, plan)
    layout, every = known.layout, spread(upstream, present, len(plan.upstream))
    if any(map(lacking, (*theta, *kept, *upstream))):
        layout.check_memory(_by_name(plan.theta, theta))
        layout.check_memory({f"what is kept, {place}": one for place, one in enumerate(kept)})
        layout.check_memory(_by_name(plan.upstream, every))
    return plan.runner.backward(plan, theta, scalars, kept, every, _with_tables(plan, options))


def _by_name(
    items: Sequence[Argument], tensors: Sequence[Tensor | None]
) -> dict[str, Tensor | None]:
    return {item.name: tensor for item, tensor in zip(items, tensors, strict=True)}


def _kinds(tensors: Sequence[Tensor]) -> list[object]:
    """What of tensors a check and a plan depend on, beside where they are."""
    place = PLACES.get(tensors[0].device.type) if tensors else None
    facts = [(t.shape, t.dtype, t.device, t.layout) for t in tensors]
    return [len(tensors), place and (place.target, place.emulated), *facts]


def _with_tables(plan: TensorPlan, arguments: Sequence[Any]) -> Options:
    """The options of a call of a plan, with its own tables."""
    if not arguments[1]:
        return plan.options
    return with_tables(plan.options, *spread(arguments[0], arguments[1], 3))


def forward_shapes(
    cell: str, theta: Sequence[Tensor], scalars: Sequence[float], save: bool, *options: Any
) -> list[Tensor]:
    """Make what the forward pass gives of tensors without numbers."""
    known = find(cell)
    of_call, tables = options_of(known, options)
    layout = _layout(known, of_call)
    sizes = layout.check(theta)
    layout.check_steps(sizes, theta[0], *tables)
    formed = (*layout.outputs, *layout.saved) if save else layout.outputs
    return [
        theta[0].new_empty(layout.shape(item.name, sizes), dtype=dtype)
        for item, dtype in zip(formed, layout.dtypes(theta[0], save=save), strict=True)
    ]


def _backward_shapes(
    cell: str,
    theta: Sequence[Tensor],
    scalars: Sequence[float],
    kept: Sequence[Tensor],
    upstream: Sequence[Tensor],
    present: int,
    wanted: int,
    *options: Any,
) -> list[Tensor]:
    known = find(cell)
    layout, per_row = known.layout, options_of(known, options)[0].per_row
    sizes = layout.check(theta)
    formed = [item for place, item in enumerate(layout.gradients) if wanted >> place & 1]
    return [theta[0].new_empty(layout.gradient_shape(i, sizes, per_row)) for i in formed]


def _keep_forward(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    cell, theta, scalars, save, *options = inputs
    known = find(cell)
    ctx.call, ctx.tables = Call(known, tuple(scalars), _plain(known, options)), len(options[0])
    ctx.is_saved = save
    kept = ctx.call.kept(output)
    ctx.save_for_backward(*spread(options[0], options[1], 3), *theta, *kept)
    ctx.set_materialize_grads(False)


def _forward_gradients(ctx: Any, upstream: Sequence[Tensor | None]) -> tuple[Any, ...]:
    call: Call = ctx.call
    if not ctx.is_saved:
        raise TensorError(
            f"{call.known.layout.label}: this forward pass was run with save=False, so that "
            f"nothing can be differentiated; run torch.ops.cellgen.forward with save=True"
        )
    tables, theta, kept = call.split(ctx.saved_tensors)
    call = call.wanting(tuple(ctx.needs_input_grad[1]))
    gradients = backward(call, tables, theta, kept, upstream[: call.outputs])
    spread = call.spread(gradients)
    return (None, spread, no_numbers(call), None, [None] * ctx.tables, *(None,) * OF_STEPS)


def _keep_backward(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    cell, theta, scalars, kept, upstream, present, wanted, *options = inputs
    known = find(cell)
    ctx.call = Call(known, tuple(scalars), _plain(known, options), wanted=wanted)
    ctx.kept = len(kept)
    ctx.present, ctx.tables = present, len(options[0])
    ctx.save_for_backward(*spread(options[0], options[1], 3), *theta, *upstream)
    ctx.set_materialize_grads(False)


def _backward_gradients(ctx: Any, cotangents: Sequence[Tensor | None]) -> tuple[Any, ...]:
    call: Call = ctx.call
    if call.options.per_row:
        raise TensorError(
            f"{call.known.layout.label}: this backward pass was run with per_row, expected the "
            f"sum over rows where gradients are differentiated; leave per_row out"
        )
    tables, theta, upstream = call.split(ctx.saved_tensors)
    every = spread(upstream, ctx.present, len(call.layout(tables).upstream))
    d_theta, d_every = second(call, tables, theta, every, cotangents)
    d_upstream = [d for u, d in zip(every, d_every, strict=True) if u is not None]
    return (
        None,
        d_theta,
        no_numbers(call),
        [None] * ctx.kept,
        d_upstream,
        None,
        None,
        [None] * ctx.tables,
        *(None,) * OF_STEPS,
    )


def no_numbers(call: Call) -> list[None] | None:
    """What torch takes as the gradient of a list of numbers: a list only where there are none."""
    return None if call.scalars else []


def spread(tensors: Sequence[Tensor], present: int, count: int) -> list[Tensor | None]:
    """Put the tensors of a list in their places; bit k tells whether there is a k-th."""
    there = iter(tensors)
    return [next(there) if present >> place & 1 else None for place in range(count)]


def options_of(known: Known, arguments: Sequence[Any]) -> tuple[Options, list[Tensor | None]]:
    """The options of a call, and their tables, from what both operators end with."""
    tables = spread(arguments[0], arguments[1], 3)
    return from_numbers(arguments[2:], names_over_time(known.layout), *tables), tables


def _plain(known: Known, arguments: Sequence[Any]) -> Options:
    """The same options without their tables."""
    return from_numbers(arguments[2:], names_over_time(known.layout))


def _layout(known: Known, options: Options) -> Layout:
    """What a call takes and gives, with its options."""
    return showing(known.layout, options, skips=skips(options))


is_native = native.register(*NAMES)
"""Whether the operators are C."""
KERNELS = (forward_in_python, backward_in_python)
SHAPES = (forward_shapes, _backward_shapes)
RULES = ((_forward_gradients, _keep_forward), (_backward_gradients, _keep_backward))
for name, kernel, shapes, (gradients, keep) in zip(NAMES, KERNELS, SHAPES, RULES, strict=True):
    if not is_native:
        library.impl(name, kernel, "CPU")
    library.impl(name, kernel, "CUDA")
    torch.library.register_fake(f"cellgen::{name}", shapes, lib=library)
    torch.library.register_autograd(f"cellgen::{name}", gradients, setup_context=keep, lib=library)
