"""Kernels of memories in Triton's interpreter agree with the programs of chunks, forward and back.

In float64 what is left is rounding: sums of a few hundred products, 1e-13 of the largest entry. In
float32 the same bound times 2^29 is 6e-5; with gates down to e^-80 a step sums of logarithms reach
1600, of which half a unit in the last place, 6e-5, is the relative error of what decays by them.
In 16 bits a result is some sums of numbers that are rounded once: less than three times what
rounding of one costs, 2^-8 and 2^-11.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from cellgen import Cell
from cellgen.cells import (
    MLSTM,
    RWKV6,
    RWKV7,
    DeltaNet,
    GatedDeltaNet,
    GatedDeltaNet2,
    GatedLinearAttention,
    Mamba,
    Mamba2,
    RetNet,
)
from cellgen.program.chunks import Memory
from cellgen.program.chunks.programs import chunk_programs
from cellgen.targets.target import NotYet
from cellgen.targets.triton.memory import MemoryKernels, memory_head, memory_kernels
from cellgen.targets.triton.memory_plan import KERNELS
from cellgen.targets.triton.plan import ANEW, LEFT_OUT, BufferRole, laid_out, literal
from tests.program.test_chunk_programs import Counted, ErasedTwice

CELLS = [
    GatedLinearAttention,
    RetNet,
    Mamba2,
    MLSTM,
    DeltaNet,
    GatedDeltaNet,
    RWKV6,
    RWKV7,
    ErasedTwice,
    Counted,
]
QUICK = [GatedLinearAttention, MLSTM, DeltaNet, GatedDeltaNet, RWKV7]
CLOSE = {"float64": 1e-13, "float32": 1e-4, "bfloat16": 3 * 2**-8, "float16": 3 * 2**-11}
ODD = {"T": 20, "B": 1, "N": 1, "K": 12, "V": 20}
HEAD = f"""import triton
import triton.language as tl

ANEW, LEFT_OUT = tl.constexpr({ANEW}), tl.constexpr({LEFT_OUT})


"""
MARKED = {"gla", "rwkv6", "erased_twice"}
by_cell = pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.definition.name)
needs_triton = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("torch", "triton")),
    reason="PyTorch and Triton are not installed",
)


def spelled(cell: type[Cell]) -> MemoryKernels:
    programs = chunk_programs(cell.definition)
    memory = next(m for m in programs.form.memories if m.value_axis is not None)
    kernels = memory_kernels(programs, memory)
    assert isinstance(kernels, MemoryKernels)
    return kernels


Compared = Callable[[dict[str, list[dict[str, object]]]], list[dict[str, float]]]


@pytest.fixture
def compared(tmp_path: Path) -> Compared:
    """Errors of each result and gradient, a case of a cell after the other."""
    from tests.targets.run_triton_memories import errors_of  # it imports torch

    return lambda cases_of: errors_of(cases_of, tmp_path)


def worst(errors: dict[str, float]) -> float:
    return max(error for name, error in errors.items() if name != "marks")


@needs_triton
def test_kernels_agree_with_the_programs_of_chunks(compared: Compared) -> None:
    """Steps and units that fill no block, steps that begin anew, gates of any strength."""
    case = {"sizes": {**ODD, "B": 2}, "gaps": True, "strong": True}
    cases = {
        cell.definition.name: [{**case, "few_rows": cell in (DeltaNet, GatedDeltaNet)}]
        for cell in QUICK
    }
    for name, errors in zip(cases, compared(cases), strict=True):
        assert worst(errors) < CLOSE["float64"], (name, errors)
        if name in MARKED:
            assert errors["marks"] == 1, name  # of two rows the one that has to be


@needs_triton
@pytest.mark.slow
@by_cell
def test_memories_of_every_kind_agree(cell: type[Cell], compared: Compared) -> None:
    """Both forward passes, weak and strong gates, float32, chunks of 64 steps, blocks of keys."""
    many = {"T": 20, "B": 2, "N": 1, "K": 24, "V": 20}
    heads = 2 if spelled(cell).plan.sizes["N"] else 1
    long = {"T": 150, "B": 2, "N": heads, "K": 40, "V": 48}
    blocks = {"BT": 64, "BK": 32, "BV": 16}
    cases: list[dict[str, object]] = [
        {"sizes": ODD, "gaps": True},
        {"sizes": many, "dtype": "float32", "strong": True, "few_rows": True},
        {"sizes": long, "blocks": blocks, "gaps": True, "few_rows": True},
        {"sizes": ODD, "strong": True, "gaps": True},
        {"sizes": {**ODD, "T": 40}, "strong": True, "same_keys": True},
        {"sizes": {**ODD, "T": 40}, "same_keys": True, "dtype": "float32"},
    ]
    weak, strong, wide, exact, same, single = compared({cell.definition.name: cases})
    for errors in (weak, wide, exact, same):
        assert worst(errors) < CLOSE["float64"], errors
    for errors in (strong, single):
        assert worst(errors) < CLOSE["float32"], errors
    if cell.definition.name in MARKED:
        assert (weak["marks"], strong["marks"]) == (0, 1)


QUICK_NARROW = ((GatedLinearAttention, "float16"), (GatedDeltaNet, "bfloat16"))
NARROW = [
    pytest.param(*case, marks=[] if case in QUICK_NARROW else pytest.mark.slow)
    for case in product(CELLS, ("bfloat16", "float16"))
]


@needs_triton
@pytest.mark.parametrize(("cell", "dtype"), NARROW)
def test_memories_agree_in_16_bits_where_gates_are_shut(
    cell: type[Cell], dtype: str, compared: Compared
) -> None:
    """Of numbers that 16 bits hold, at steps that begin anew and where some are left out."""
    case = {"sizes": {**ODD, "B": 2}, "gaps": True, "strong": True, "dtype": dtype}
    (errors,) = compared({cell.definition.name: [case]})
    assert worst(errors) < CLOSE[dtype], errors
    if cell.definition.name in MARKED:
        assert errors["marks"] == 1


@pytest.mark.of_numpy
@by_cell
def test_every_launch_has_the_parameters_of_its_kernel(cell: type[Cell]) -> None:
    kernels = spelled(cell)
    module = ast.parse(memory_head(kernels.by_key) + kernels.text)
    parameters = {
        node.name: {argument.arg for argument in node.args.args}
        for node in module.body
        if isinstance(node, ast.FunctionDef)
    }
    plan = kernels.plan
    launches = [*plan.forward, *plan.few_rows, *plan.training, *plan.backward]
    for launch in launches:
        set_by = {*launch.buffers, *launch.sizes, *launch.constants, *launch.blocks}
        assert set_by == parameters[launch.kernel], launch.kernel
        assert set(launch.buffers.values()) <= set(plan.buffers)
        assert plan.configurations[launch.kernel]
    assert {launch.kernel.rpartition("_")[2] for launch in launches} <= set(KERNELS)
    is_marked = any(launch.constants.get("EXACT") for launch in launches)
    assert is_marked == (cell.definition.name in MARKED)


@pytest.mark.of_numpy
@by_cell
def test_a_call_without_gradients_keeps_no_states(cell: type[Cell]) -> None:
    plan = spelled(cell).plan
    taken = {name for launch in plan.forward for name in launch.buffers.values()}
    roles = {plan.buffers[name].role for name in taken}
    assert BufferRole.SAVED not in roles
    saved = {name for name, buffer in plan.buffers.items() if buffer.role is BufferRole.SAVED}
    assert saved <= {name for launch in plan.backward for name in launch.buffers.values()}


@pytest.mark.of_numpy
@pytest.mark.parametrize("cell", [*CELLS, GatedDeltaNet2], ids=lambda cell: cell.definition.name)
def test_a_backward_pass_writes_the_gradient_of_every_stream(cell: type[Cell]) -> None:
    """Also of a value that is written as it is by an update that erases."""
    plan = spelled(cell).plan
    streams = {name for name, buffer in plan.buffers.items() if buffer.role is BufferRole.STREAM}
    written = {name for launch in plan.backward for name in launch.buffers.values()}
    assert streams
    assert {f"d_{name}" for name in streams} <= written


def test_a_plan_is_written_as_strings_and_numbers() -> None:
    plan = literal(spelled(GatedLinearAttention).plan)
    text = laid_out(plan)
    assert ast.literal_eval(text) == plan
    assert max(map(len, text.splitlines())) <= 100


def test_a_vector_that_is_no_column_of_a_matrix_is_refused_with_the_reason() -> None:
    programs = chunk_programs(Mamba.definition)
    (memory,) = (m for m in programs.form.memories if isinstance(m, Memory))
    refused = memory_kernels(programs, memory)
    assert isinstance(refused, NotYet)
    assert "s_prev is a vector for each row and head" in refused.reason
