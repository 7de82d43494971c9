"""What a sequence costs, as counts: products, packed weights, saved values, workspace, calls.

Counts do not depend on the machine, so they are tested; seconds are measured by `cellgen bench`.
"""

from __future__ import annotations

import math
from functools import cache

import pytest

import cellgen
from cellgen import Cell
from cellgen.bench.problem import Mode, Problem, problem_of
from cellgen.bench.shapes import NAMED
from cellgen.cells import (
    GRU,
    LSTM,
    MLSTM,
    SHIPPED,
    Elman,
    GRUBlockCell,
    GRUResetBefore,
    LayerNormLSTM,
    MinGRU,
)
from cellgen.language.ops import Pointwise, shape_of
from cellgen.language.value import Value
from cellgen.pipeline import sequence_of
from cellgen.program.over_time import unroll
from cellgen.runtime.kernel import Kernel
from cellgen.schedule.groups import Group
from cellgen.schedule.lower import lower
from cellgen.schedule.lower.plan import GroupPlan, PanelProduct, TimePlan
from cellgen.schedule.over_time import Part
from cellgen.schedule.schedule import Product
from cellgen.targets.interface import sequence_signatures
from tests import budgets

SHAPE = NAMED["W3"]
LAYERS = (Elman, GRU, GRUResetBefore, GRUBlockCell, LSTM)

layers = pytest.mark.parametrize("cell", LAYERS, ids=lambda cell: cell.definition.name)


@cache
def kernel_of(cell: type[Cell]) -> Kernel:
    return cellgen.load(cell.definition.name)


def problem(cell: type[Cell]) -> Problem:
    return problem_of(kernel_of(cell).interface, cell.definition.name, SHAPE)


def matrices(cell: type[Cell]) -> int:
    """Bytes of the weight matrices in float32."""
    found = [lengths for _, lengths in problem(cell).parameters if len(lengths) > 1]
    return 4 * sum(map(math.prod, found))


def read_by(part: Part) -> set[Value]:
    """Operands of all products of a part."""
    stages = part.stages
    groups = {t.operand.buffer.value for s in stages if isinstance(s, Group) for t in s.terms}
    return groups | {s.a.buffer.value for s in stages if isinstance(s, Product)}


# --- products ------------------------------------------------------------------------------------


def products_of(part: Part) -> tuple[tuple[int, int], ...]:
    """Of each group: matrices multiplied, and calls of the tile kernel that this takes."""
    groups = [stage for stage in part.stages if isinstance(stage, Group)]
    return tuple(
        (sum(len(t.weights) for t in g.terms), sum(len(t.runs) for t in g.terms)) for g in groups
    )


@pytest.mark.parametrize(
    ("cell", "forward", "reverse", "inputs", "weights"),
    [
        (Elman, ((2, 2),), ((1, 1),), ((1, 1),), 2),
        (GRU, ((6, 2),), ((3, 3),), ((3, 3),), 6),
        (GRUResetBefore, ((4, 2), (2, 2)), ((1, 1), (2, 2)), ((3, 3),), 6),
        (GRUBlockCell, ((4, 2), (2, 2)), ((1, 1), (1, 1)), ((2, 2),), 4),
        (LSTM, ((8, 2),), ((4, 4),), ((4, 4),), 8),
        (MinGRU, ((2, 1),), (), ((2, 2),), 2),
    ],
    ids=lambda item: item.definition.name if isinstance(item, type) else "",
)
def test_products_of_a_step_and_calls_that_they_take(
    cell: type[Cell],
    forward: tuple[tuple[int, int], ...],
    reverse: tuple[tuple[int, int], ...],
    inputs: tuple[tuple[int, int], ...],
    weights: int,
) -> None:
    """Forward one call for all gates that read x and one for all that read h, level by level; in
    reverse one a matrix of the state; afterwards one a matrix for inputs, one for its gradient."""
    schedule = sequence_of(cell)
    assert products_of(schedule.forward) == forward
    assert products_of(schedule.reverse) == reverse
    assert products_of(schedule.deferred) == inputs
    assert sum(isinstance(stage, Product) for stage in schedule.deferred.stages) == weights


def plans_of(cell: type[Cell]) -> tuple[TimePlan, TimePlan]:
    schedule = sequence_of(cell)
    return lower(schedule, sequence_signatures(schedule))


def runs_of(plan: TimePlan) -> list[PanelProduct]:
    stages = [stage for part in plan.parts for stage in part.stages]
    return [run for stage in stages if isinstance(stage, GroupPlan) for run in stage.runs]


@layers
def test_products_of_inputs_read_no_state_and_can_be_hoisted(cell: type[Cell]) -> None:
    schedule = sequence_of(cell)
    inputs = {v for v in cell.definition.declared if v.role.value == "input"}
    assert inputs <= read_by(schedule.forward)
    assert not inputs & read_by(schedule.reverse)
    hoisted = [run for run in runs_of(plans_of(cell)[0]) if run.ahead]
    groups = [
        stage
        for stage in schedule.forward.stages
        if isinstance(stage, Group) and inputs & {t.operand.buffer.value for t in stage.terms}
    ]
    assert len(hoisted) == len(groups)


# --- functions and arrays ------------------------------------------------------------------------


@pytest.mark.parametrize("cell", SHIPPED, ids=lambda cell: cell.definition.name)
def test_loops_compute_as_many_functions_and_read_as_many_arrays_as_recorded(
    cell: type[Cell],
) -> None:
    """An exponential of a head that is computed for each entry of its matrix is another shape."""
    assert budgets.counts(cell) == budgets.recorded()[cell.definition.name]


@pytest.mark.parametrize("cell", [LSTM, MLSTM, LayerNormLSTM], ids=lambda c: c.definition.name)
def test_no_function_is_computed_for_more_entries_than_its_argument_has(cell: type[Cell]) -> None:
    for program in unroll(cell.definition).all:
        for statement in program.statements:
            for node in statement.expression.atoms(Pointwise):
                if node.row.transcendental:
                    assert shape_of(node) == statement.target.shape, (program.function, statement)


# --- packed weights ------------------------------------------------------------------------------


@layers
def test_each_weight_is_packed_once_in_each_direction(cell: type[Cell]) -> None:
    """Every slot of a panel takes other weights, and no two panels are one memory."""
    for plan in plans_of(cell):
        runs = runs_of(plan)
        panels = [run.panel for run in runs]
        weights = [(w.of, w.offset, w.transposed) for run in runs for w in run.weights]
        assert weights
        assert len(panels) == len(set(panels))
        assert len(weights) == len(set(weights))


@layers
def test_packed_weights_are_as_large_as_the_weights(cell: type[Cell]) -> None:
    """H is a whole number of vectors at this shape, so that no panel has empty columns."""
    sizes = SHAPE.sizes
    assert kernel_of(cell).sequence_forward.plan(**sizes, threads=1).weight_bytes == matrices(cell)
    backward = kernel_of(cell).sequence_backward.plan(**sizes, threads=1)
    assert backward.weight_bytes == matrices(cell) // 2, "those of the state; I = H"


# --- what is saved -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "values"),
    [
        (LSTM, 5),  # i, f, g, o, and c, which is an output
        (GRU, 4),  # z, r, n and the recurrent product, besides h
        (GRUResetBefore, 3),
        (Elman, 0),  # h is enough
        (MinGRU, 2),  # as many as it has pre-activations
    ],
    ids=lambda item: item.definition.name if isinstance(item, type) else "",
)
def test_values_saved_for_each_unit_and_step(cell: type[Cell], values: int) -> None:
    """Arrays over time beside the first output that the backward pass reads."""
    kernel = kernel_of(cell)
    forward = kernel.sequence_forward.function
    read = {item.name for item in kernel.sequence_backward.function.struct_members}
    outputs = [r.name for r in forward.results if r.over_time and r.name in read]
    kept = [r for r in forward.results if r.saved or r.name in outputs[1:]]
    assert len(kept) == values
    assert all(item.shape == ("T", "B", "H") for item in kept)


# --- memory --------------------------------------------------------------------------------------


@layers
def test_memory_of_a_training_step_is_what_it_cannot_do_without(cell: type[Cell]) -> None:
    """Outputs, saved set, gradients and one packed copy of the weights."""
    kernel, dims = kernel_of(cell), tuple(SHAPE.sizes.values())
    library, name = kernel.library(), cell.definition.name
    sizes = [
        getattr(library.lib, f"{name}_sequence_{function}_workspace_size_f32")(
            *dims, library.ffi.NULL
        )
        for function in ("forward", "backward")
    ]
    necessary = problem(cell).necessary_bytes(Mode.BOTH)
    assert necessary - matrices(cell) + max(sizes) <= 1.1 * necessary
