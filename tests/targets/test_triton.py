"""The target for Triton: what it spells, and what it refuses; nothing here runs a kernel."""

from __future__ import annotations

import ast

import pytest

import cellgen
from cellgen.cells import GRU, RWKV4, SHIPPED, Mamba, MinGRU
from cellgen.errors import BuildError, DerivationError
from cellgen.language.ops.pointwise import POINTWISE
from cellgen.language.ops.pointwise_triton import FUNCTIONS, REFUSED, SPELLINGS
from cellgen.language.value import B as ROWS
from cellgen.language.value import H, Role, Value
from cellgen.pipeline import generate
from cellgen.program.chunks import form_over_time
from cellgen.program.chunks.programs import chunk_programs
from cellgen.targets.triton.expressions import functions_of, triton_expression
from cellgen.targets.triton.rows import RowWork
from tests.awkward_cells import Unread
from tests.cover import each_of, of_equations

pytestmark = pytest.mark.of_numpy
OVER_TIME = [
    cell
    for cell in SHIPPED
    if form_over_time(cell.definition).refusal is None and cell.definition.name != "mamba"
]


@pytest.mark.parametrize("name", POINTWISE)
def test_every_pointwise_row_is_spelled_or_refused_with_a_reason(name: str) -> None:
    function = POINTWISE[name]
    values = [Value(f"x_{n}", (ROWS, H), Role.LOCAL, "", n) for n in range(function.row.arity)]
    assert (name in SPELLINGS) != (name in REFUSED)
    if name in REFUSED:
        with pytest.raises(
            DerivationError, match=f"{name} is not spelled in Triton: {REFUSED[name]}"
        ):
            triton_expression(function(*values))
        return
    expression = function(*values)
    text = "\n".join([*functions_of([expression]), triton_expression(expression)])
    calls = (node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    called = {function.id for function in calls if isinstance(function, ast.Name)} - {"float"}
    assert called <= FUNCTIONS.keys()
    assert all(f"def {other}(" in text for other in called)
    assert {*SPELLINGS, *REFUSED} == set(POINTWISE)


@pytest.mark.parametrize("cell", each_of(of_equations, OVER_TIME))
def test_a_cell_with_a_form_over_time_is_a_module_of_kernels_and_a_plan(
    cell: type[cellgen.Cell],
) -> None:
    text = generate(cell, ["triton"]).text("_triton.py")
    module = ast.parse(text)
    functions = {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
    plan = ast.literal_eval(module.body[-1].value)  # type: ignore[attr-defined]
    launches = [one for one in (*plan["forward"], *plan["backward"]) if one["op"] == "launch"]
    assert {one["kernel"] for one in launches} <= functions
    assert set(plan["gradients"]) == {str(value) for value in cell.definition.declared}
    for one in (*plan["forward"], *plan["backward"]):
        if one["op"] == "memory":
            assert plan["memories"][one["layer"]]["buffers"]
            continue
        named = one["arrays"].values() if one["op"] == "launch" else {one["into"]}
        assert set(named) <= plan["arrays"].keys()


def test_a_vector_memory_of_its_own_is_refused_with_its_name() -> None:
    with pytest.raises(BuildError, match="mamba: s_prev is a vector for each row and head"):
        generate(Mamba, ["triton"]).of("triton")


def test_scans_that_follow_each_other_without_a_product_are_one_launch() -> None:
    """RWKV-4: a delay before the products; its maximum and both sums behind them."""
    stages = RowWork(chunk_programs(RWKV4.definition)).stages()
    states = [[str(s) for s in kernel.states] for stage in stages for kernel in stage.kernels]
    assert states == [["x_shift_prev"], ["a_prev", "b_prev", "p_prev"]]


def test_a_kernel_reads_each_stream_once_and_writes_each_output_once() -> None:
    (kernel,) = [k for s in RowWork(chunk_programs(MinGRU.definition)).stages() for k in s.kernels]
    assert [str(v) for v in kernel.streams] == ["x_w_z", "x_w_n"]
    assert [str(v) for v in (*kernel.following, *kernel.roots)] == ["h"]


def test_a_state_that_is_a_product_and_is_not_read_is_refused_with_its_name() -> None:
    with pytest.raises(BuildError, match="unread has h, a state that is formed across units"):
        generate(Unread, ["triton"]).of("triton")


def test_a_cell_without_a_form_over_time_is_refused_with_the_statement_that_forbids_it() -> None:
    with pytest.raises(BuildError, match=r"gru has no form over time: .*mixes units of a state"):
        generate(GRU, ["triton"]).of("triton")
