"""Figures of an explanation: what the C chooses for a shape, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from sympy import Add, Expr, Mul

from cellgen.language.ops import Form
from cellgen.language.value import Value
from cellgen.program.ssa import Program
from cellgen.runtime.abi import Function as Signature
from cellgen.runtime.abi import axis_length
from cellgen.runtime.call.arguments import DTYPES
from cellgen.runtime.host.plans import SequencePlan
from cellgen.runtime.kernel import Kernel
from cellgen.schedule.groups import Group
from cellgen.schedule.over_time import (
    Part,
    SequenceSchedule,
    waits_for_no_state,
)
from cellgen.views.explanation import (
    ChoiceRow,
    ExplainedShape,
    Section,
    amount_of,
    bytes_of,
    count_of,
)


def row_values(values: Sequence[Value]) -> Expr:
    """Elements of a row of all values."""
    return Add(*(Mul(*value.shape[1:]) for value in values))


def multiply_adds(program: Program) -> Expr:
    """Multiply-adds of a program's products over one step, with the rows of the batch."""
    total: Expr = Add()
    for statement in program.statements:
        product = statement.traits.product
        if product is None:
            continue
        a, b = statement.expression.operands[-2:]
        by_head, units = product.by_head, b.shape[-1:]
        if product.form is Form.TN:
            total += Mul(*a.shape, *(units if by_head else b.shape[1:]))
        else:  # a product from heads contracts heads and units
            total += Mul(*statement.target.shape, *(a.shape[-1:] if by_head else a.shape[1:]))
    return total


def figures_of(
    schedule: SequenceSchedule,
    functions: Sequence[Signature],
    kernel: Kernel,
    shape: ExplainedShape,
) -> Section:
    """Rows with figures for a shape."""
    programs, size = schedule.programs, np.dtype(shape.dtype).itemsize
    steps = shape.sizes["T"]
    rows = []
    for name, parts in (
        ("forward", (programs.forward,)),
        ("backward", (programs.reverse, programs.deferred)),
    ):
        flops = sum(2 * steps * number_at(multiply_adds(part), shape) for part in parts)
        rows.append(
            ChoiceRow(f"{name}: {amount_of(flops, ('flop', 'kflop', 'Mflop', 'Gflop'), 1000)}")
        )
    saved = number_at(row_values(programs.saved), shape) * size
    total = saved * steps * shape.sizes["B"]
    rows.append(ChoiceRow(f"saved: {bytes_of(saved)} a step and row, {bytes_of(total)} in all"))
    suffix = DTYPES[np.dtype(shape.dtype)][0]
    library = kernel.library()
    for function in functions:
        names = kernel.interface.symbols(function, suffix)
        dims = [shape.sizes[dim] for dim in function.dims]
        workspace = getattr(library.lib, names.workspace_size)(*dims, library.ffi.NULL)
        arrays = [a for a in (*function.struct_members, *function.results) if not a.is_scalar]
        elements = sum(prod(axis_length(x, dict(shape.sizes)) for x in a.shape) for a in arrays)
        rows.append(
            ChoiceRow(
                f"{function.name}: {bytes_of(elements * size)} of arguments and results, each "
                f"once; {bytes_of(workspace)} of workspace"
            )
        )
    return Section(f"figures at {shape}", tuple(rows))


def number_at(expression: Expr, shape: ExplainedShape) -> int:
    """What an expression of dimensions is at a shape."""
    sizes = {symbol: shape.sizes[str(symbol)] for symbol in expression.free_symbols}
    return int(expression.xreplace(sizes))


def plan_section(
    name: str, plan: SequencePlan, shape: ExplainedShape, part: Part, schedule: SequenceSchedule
) -> Section:
    """What was chosen for a function at a shape, and why."""
    is_free = waits_for_no_state(part, schedule.programs)
    rows = [_threads_row(plan, shape, part, is_free=is_free)]
    if name == "sequence_forward":
        rows.append(_hoist_row(plan, shape, part, is_free=is_free))
    rows.append(_pack_row(plan, shape))
    if name == "sequence_backward":
        rows += [_row_blocks_row(plan, shape), _chunk_row(plan, shape)]
    return Section(f"plan of {name}", tuple(rows))


def _row_blocks_row(plan: SequencePlan, shape: ExplainedShape) -> ChoiceRow:
    rows = count_of(shape.sizes["B"], "row")
    if plan.row_blocks == 1:
        why = f"too few rows or steps, or too many weights, to sum parts of {rows} apart"
        return ChoiceRow("row_blocks = 1", why)
    return ChoiceRow(
        f"row_blocks = {plan.row_blocks}: {rows} in {plan.row_blocks} blocks, each summed apart",
        "a thread that has a whole block keeps its adjoints in its caches and meets no other; by "
        "shape and precision alone, since the order of additions depends on it",
    )


def _chunk_row(plan: SequencePlan, shape: ExplainedShape) -> ChoiceRow:
    reason = "as many whole steps as keep their adjoints in cache"
    if plan.row_blocks > 1:
        reason = "of a row block: " + reason
    elif plan.chunk_rows > max(plan.by.chunk_rows, shape.sizes["B"]):
        if plan.weight_bytes > plan.by.weights_in_cache:
            reason += "; no fewer, since every chunk reads and writes the gradients of all weights"
        else:
            reason += "; no fewer, since threads meet after each, and few weights are little work"
    return ChoiceRow(f"chunk_rows = {plan.chunk_rows}", reason)


def _threads_row(
    plan: SequencePlan, shape: ExplainedShape, part: Part, *, is_free: bool
) -> ChoiceRow:
    rows, weights = shape.sizes["B"], bytes_of(plan.weight_bytes)
    if plan.threads == 1:
        return ChoiceRow("threads = 1", "nothing is shared")
    what = f"threads = {plan.threads}, by_units = {plan.by_units}: "
    if plan.by_units and is_free:
        return ChoiceRow(
            what + "threads share the units of all steps and never meet",
            "no product waits for a state",
        )
    if plan.by_units:
        if rows < plan.by.rows_per_thread * plan.threads:
            why = (
                f"{count_of(rows, 'row')} for {plan.threads} threads is fewer than "
                f"{plan.by.rows_per_thread} for each"
            )
        elif plan.weight_bytes > plan.by.weights_in_cache:
            why = (
                f"{weights} of weights do not fit a core's cache "
                f"({bytes_of(plan.by.weights_in_cache)}); so each thread reads a partition of them "
                f"alone"
            )
        else:
            why = f"one step of {count_of(rows, 'row')} is too little to pack {weights} for"
        return ChoiceRow(what + "threads share the units of a step and meet after each stage", why)
    why = f"{count_of(rows, 'row')} are enough, and {weights} of weights fit a core's cache"
    if plan.weight_bytes > plan.by.weights_in_cache:
        why = f"{count_of(rows, 'row')} are enough to hide that {weights} of weights come from afar"
    if not part.can_split_units:
        why = "a sum over units, or a head, needs whole rows"
    return ChoiceRow(what + "threads share the rows of all steps and never meet", why)


def _hoist_row(
    plan: SequencePlan, shape: ExplainedShape, forward: Part, *, is_free: bool
) -> ChoiceRow:
    rows = shape.sizes["B"]
    if plan.hoist:
        steps = plan.window_rows // max(rows, 1)
        return ChoiceRow(
            f"hoist = True: products of inputs ahead, hoist windows of {count_of(steps, 'step')}",
            "no product waits for a state: the loop over time is pointwise"
            if is_free
            else "inputs, states and a panel of the weights of both exceed a core's cache"
            if rows > plan.by.hoist_rows
            else f"a tile of {count_of(rows, 'row')} is bound by reading weights, one of "
            f"{plan.window_rows} is not",
        )
    why = f"{count_of(rows, 'row')} fill a tile by themselves"
    if not is_free:
        why += f" (more than {plan.by.hoist_rows})"
    if shape.sizes["T"] <= 1:
        why = "there is one step only"
    elif rows <= plan.by.hoist_rows:
        why = "threads share rows, and each would form all of it"
    if not any(isinstance(stage, Group) for stage in forward.stages):
        why = "there is no product"
    return ChoiceRow("hoist = False: products of inputs inside the time loop", why)


def _pack_row(plan: SequencePlan, shape: ExplainedShape) -> ChoiceRow:
    weights = bytes_of(plan.weight_bytes)
    if plan.unpacked:
        return ChoiceRow(
            "unpacked = True", f"one step: {weights} are read where they lie, not packed"
        )
    steps = count_of(shape.sizes["T"], "step")
    return ChoiceRow("unpacked = False", f"{weights} are packed once a call, for {steps}")
