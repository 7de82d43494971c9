"""Compiled kernels do what the equations say: any shape, given results, NaN and infinity."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cellgen
from cellgen import Cell, load
from cellgen.language.cell import definition_of
from cellgen.language.value import Role
from cellgen.pipeline import programs_of
from cellgen.program.interpret import interpret, shape_sizes
from cellgen.program.ssa import Program
from cellgen.program.step import CellPrograms
from tests.conftest import TYPICAL, Arrays, typical_cell

NAMES = [definition_of(cell).name for cell in TYPICAL]
TOLERANCE = {np.float32: 2.0**-18, np.float64: 2.0**-47}
"""Relative to the largest value on the way (`magnitude`): 32 units in the last place, for sums of
up to 80 terms and functions of 4 ulp; 600 random steps came to 6."""


@cache
def cell_named(name: str) -> type[Cell]:
    return next(cell for cell in TYPICAL if definition_of(cell).name == name)


def a_step(
    programs: CellPrograms, sizes: dict[str, int], seed: int, dtype: type = np.float64
) -> Arrays:
    """Everything a step has: arguments, upstream gradients, outputs, gradients (interpreted)."""
    rng = np.random.default_rng(seed)
    known: Arrays = {}
    for value in programs.definition.declared:
        name = str(value.name)
        if value.role is Role.SCALAR:
            known[name] = np.asarray(programs.definition.defaults[name])
            continue
        known[name] = rng.normal(size=shape_sizes(value, sizes)).astype(dtype)
    for value in programs.definition.outputs:
        upstream = rng.normal(size=shape_sizes(value, sizes)).astype(dtype)
        known[f"d_{value.name}"] = upstream
    for program in programs.functions:
        results = interpret(program, known, sizes)
        known |= {name: array.astype(dtype) for name, array in results.items()}
    return known


def call(program: Program, known: Arrays, **options: object) -> Arrays:
    """Call the kernel's function of a program; scalars go as numbers, results come back named."""
    kernel = load(program.cell)
    arguments = {
        str(v.name): float(known[str(v.name)]) if v.role is Role.SCALAR else known[str(v.name)]
        for v in program.arguments
    }
    results = kernel.functions[program.function](**arguments, **options)
    return dict(zip(results._fields, results, strict=True))


def magnitude(program: Program, known: Arrays, sizes: dict[str, int]) -> dict[str, float]:
    """The largest value on the way to the results: what is left by cancellation is not it."""
    values = interpret(program, known, sizes, keep=True)
    largest = max((float(np.abs(a).max()) for a in values.values() if a.size), default=0.0)
    return dict.fromkeys((str(result.name) for result in program.results), max(largest, 1.0))


# --- any shape -----------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    rows=st.integers(0, 20),
    inputs=st.integers(1, 40),
    units=st.integers(1, 40),
    dtype=st.sampled_from([np.float32, np.float64]),
    seed=st.integers(0, 2**16),
)
def test_kernels_agree_with_the_interpreter_for_any_shape(
    name: str, rows: int, inputs: int, units: int, dtype: type, seed: int
) -> None:
    programs, sizes = programs_of(cell_named(name)), {"B": rows, "I": inputs, "H": units}
    known = a_step(programs, sizes, seed, dtype)
    for program in programs.functions:
        exact = interpret(program, known, sizes)
        scale = magnitude(program, known, sizes)
        for result, array in call(program, known).items():
            assert array.dtype == dtype
            assert array.shape == exact[result].shape
            error = np.abs(array - exact[result]).max(initial=0.0)
            assert error <= TOLERANCE[dtype] * scale[result], (program.function, result)


@settings(max_examples=20, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    rows=st.integers(2, 20),
    pick=st.integers(0, 2**16),
    units=st.integers(1, 40),
)
def test_a_row_of_the_forward_does_not_depend_on_the_other_rows(
    name: str, rows: int, pick: int, units: int
) -> None:
    programs, sizes = programs_of(cell_named(name)), {"B": rows, "I": 5, "H": units}
    known, row, program = a_step(programs, sizes, pick), pick % rows, programs["forward"]
    batched = {str(v.name) for v in program.arguments if v.is_batched}
    alone = {k: a[row : row + 1].copy() if k in batched else a for k, a in known.items()}
    whole = call(program, known)
    for result, array in call(program, alone).items():
        np.testing.assert_array_equal(array[0], whole[result][row])


@typical_cell
def test_calls_repeat_bit_for_bit(cell: type[Cell]) -> None:
    programs, sizes = programs_of(cell), {"B": 7, "I": 5, "H": 19}
    known = a_step(programs, sizes, 0, np.float32)
    for program in programs.functions:
        first, second = call(program, known), call(program, known)
        assert all(first[k].tobytes() == second[k].tobytes() for k in first)


@typical_cell
def test_without_rows_weight_gradients_are_zero(cell: type[Cell]) -> None:
    programs, sizes = programs_of(cell), {"B": 0, "I": 3, "H": 4}
    known = a_step(programs, sizes, 0)
    for program in programs.functions:
        for array in call(program, known).values():
            assert not array.any()


@typical_cell
def test_gradients_left_out_count_as_zero(cell: type[Cell]) -> None:
    programs, sizes = programs_of(cell), {"B": 3, "I": 2, "H": 5}
    known, backward = a_step(programs, sizes, 1), programs["backward"]
    names = [str(value.name) for value in backward.optional]
    for left_out in names:
        zero = call(backward, known | {left_out: np.zeros_like(known[left_out])})
        arguments = {
            str(v.name): float(known[str(v.name)]) if v.role is Role.SCALAR else known[str(v.name)]
            for v in backward.arguments
            if str(v.name) != left_out
        }
        absent = load(backward.cell).backward(**arguments)
        for name, array in zero.items():
            np.testing.assert_array_equal(getattr(absent, name), array)


# --- out= ----------------------------------------------------------------------------------------


@typical_cell
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_given_results_are_written_and_returned(cell: type[Cell], dtype: type) -> None:
    programs, sizes = programs_of(cell), {"B": 3, "I": 4, "H": 9}
    known = a_step(programs, sizes, 2, dtype)
    for program in programs.functions:
        expected = call(program, known)
        out = {name: np.full_like(array, np.nan) for name, array in expected.items()}
        results = call(program, known, out=out)
        for name, array in results.items():
            assert array is out[name]
            np.testing.assert_array_equal(array, expected[name])


def test_a_result_may_not_share_memory_with_an_argument() -> None:
    programs = programs_of(cell_named("gru"))
    known = a_step(programs, {"B": 3, "I": 4, "H": 4}, 0)
    with pytest.raises(
        cellgen.ArgumentError, match=r"out h shares memory with the argument h_prev"
    ):
        call(programs["forward"], known, out={"h": known["h_prev"]})


# --- NaN and infinity ----------------------------------------------------------------------------


def compare_ieee(program: Program, known: Arrays, sizes: dict[str, int]) -> Arrays:
    """NaN where the interpreter has NaN, infinite where it is infinite, equal elsewhere."""
    exact, found = interpret(program, known, sizes), call(program, known)
    for name, array in found.items():
        np.testing.assert_array_equal(np.isnan(array), np.isnan(exact[name]), err_msg=name)
        np.testing.assert_allclose(array, exact[name], rtol=1e-9, atol=1e-9, err_msg=name)
    return found


@typical_cell
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", ["x", "h_prev"])
def test_nan_and_infinity_flow_through_their_row_and_no_other(
    cell: type[Cell], place: str, special: float
) -> None:
    programs, sizes = programs_of(cell), {"B": 4, "I": 3, "H": 17}
    forward = programs["forward"]
    clean = a_step(programs, sizes, 3)
    known = {k: a.copy() for k, a in clean.items()}
    known[place][1, 0] = special
    found = compare_ieee(forward, known, sizes)
    undisturbed = call(forward, clean)
    for name, array in found.items():
        others = [0, 2, 3]
        np.testing.assert_array_equal(array[others], undisturbed[name][others])
    if np.isnan(special):
        assert all(np.isnan(array[1]).any() for array in found.values())


@typical_cell
def test_nan_in_a_weight_reaches_every_row(cell: type[Cell]) -> None:
    programs, sizes = programs_of(cell), {"B": 5, "I": 3, "H": 18}
    known = a_step(programs, sizes, 4)
    weight = str(programs.definition.parameters[0].name)
    known[weight][0, 0] = np.nan
    found = compare_ieee(programs["forward"], known, sizes)
    state = str(programs.definition.states[0].name).removesuffix("_prev")
    assert np.isnan(found[state]).any(axis=1).all()


@typical_cell
def test_nan_in_an_upstream_gradient_reaches_its_row_and_every_weight(cell: type[Cell]) -> None:
    programs, sizes = programs_of(cell), {"B": 3, "I": 2, "H": 17}
    known = a_step(programs, sizes, 5)
    upstream = str(programs["backward"].optional[-1].name)
    known[upstream][2, 3] = np.nan
    for program in programs.functions[1:]:
        found = compare_ieee(program, known, sizes)
        known |= found
    gradients = {k: known[k] for p in programs.functions[1:] for k in map(str, p.results)}
    assert not any(np.isnan(a[:2]).any() for k, a in gradients.items() if k == "d_h_prev")
    weight = f"d_{programs.definition.parameters[0].name}"
    assert np.isnan(gradients[weight]).any()


@pytest.mark.parametrize("name", ["gru_block_cell", "lstm_block_cell"])
def test_saturated_gates_are_exact_and_their_gradients_zero(name: str) -> None:
    programs, sizes = programs_of(cell_named(name)), {"B": 2, "I": 1, "H": 16}
    known = {k: 0 * a for k, a in a_step(programs, sizes, 6).items()}
    bias = "b_ru" if name == "gru_block_cell" else "b"
    for saturated, gate in ((1e4, 1.0), (-1e4, 0.0)):
        known[bias] = np.full_like(known[bias], saturated)
        found = call(programs["forward"], known)
        for output in "ru" if name == "gru_block_cell" else "ifo":
            assert (found[output] == gate).all()
