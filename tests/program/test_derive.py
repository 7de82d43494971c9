"""Derivatives: adjoints, tangents and second order against complex step; what they look like."""

from __future__ import annotations

import numpy as np
import pytest

from cellgen import Bias, Cell, H, I, Input, Scalar, State, Static, Weight, sigmoid, sqrt, tanh
from cellgen import sum as total
from cellgen.cells import ElmanRelu, GRUBlockCell, GRUResetBefore, LSTMBlockCell
from cellgen.language.ops import Pointwise
from cellgen.pipeline import programs_of
from cellgen.program.derive import adjoint, forward, tangent
from cellgen.program.interpret import interpret
from cellgen.program.simplify import FORWARD, simplify
from cellgen.program.slopes import derivative
from cellgen.program.ssa import Program
from cellgen.program.step import derive_functions
from tests.conftest import SIZES, SLSTM, Arrays, directional, draw, every_cell, relative

ACCURACY = 1e-13
"""Complex step has no error of its own: what is left is the rounding of sums in another order."""


def gradients_by_complex_step(program: Program, given: Arrays, upstream: Arrays) -> Arrays:
    """Gradient of sum(upstream * results) by every argument, one entry after the other."""
    found = {}
    for value in program.arguments:
        name = str(value.name)
        gradient = np.zeros(given[name].shape)
        for index in np.ndindex(gradient.shape):
            along = np.zeros(gradient.shape)
            along[index] = 1
            slopes = directional(program, given, {name: along})
            gradient[index] = sum(np.sum(upstream[f"d_{k}"] * slope) for k, slope in slopes.items())
        found[f"d_{name}"] = gradient
    return found


@every_cell
def test_derived_gradients_agree_with_complex_step(cell: type[Cell]) -> None:
    programs = programs_of(cell)
    first, full = programs.mathematics
    given, upstream = draw(first.arguments), draw(full.optional, seed=1)
    expected = gradients_by_complex_step(first, given, upstream)
    values = interpret(full, {**given, **upstream}, SIZES, keep=True)
    for argument in first.arguments:
        if argument in programs.adjoints:
            found = values[str(programs.adjoints[argument].name)]
            assert relative(found, expected[f"d_{argument}"]) < ACCURACY, argument


@every_cell
def test_backward_input_and_weight_gradients_together_are_the_whole_adjoint(
    cell: type[Cell],
) -> None:
    programs = programs_of(cell)
    first, full = programs.mathematics
    given, upstream = draw(first.arguments), draw(full.optional, seed=1)
    whole = interpret(full, {**given, **upstream}, SIZES, keep=True)
    known = {**given, **upstream, **interpret(programs["forward"], given, SIZES)}
    for name in [p.function for p in programs.functions if p.function != "forward"]:
        results = interpret(programs[name], known, SIZES)
        for key, array in results.items():
            assert relative(array, whole[key]) < ACCURACY, (name, key)
        known.update(results)
    named = {str(programs.adjoints[v].name) for v in programs.definition.parameters}
    assert named <= set(known)


@every_cell
def test_tangents_agree_with_complex_step(cell: type[Cell]) -> None:
    first = programs_of(cell).mathematics[0]
    given, along = draw(first.arguments), draw(first.arguments, seed=1)
    expected = directional(first, given, along)
    found = interpret(
        tangent(first, first.arguments),
        {**given, **{f"t_{name}": array for name, array in along.items()}},
        SIZES,
    )
    for result in first.results:
        assert relative(found[f"t_{result}"], expected[str(result)]) < ACCURACY


def test_tangents_along_some_arguments_only() -> None:
    first = programs_of(GRUBlockCell).mathematics[0]
    by = [value for value in first.arguments if value.name == "h_prev"]
    given, along = draw(first.arguments), draw(by, seed=1)
    expected = directional(first, given, along)
    flat = forward(GRUBlockCell.definition)  # with its concatenations
    for program in (first, flat):
        found = interpret(tangent(program, by), {**given, "t_h_prev": along["h_prev"]}, SIZES)
        assert relative(found["t_h"], expected["h"]) < ACCURACY


@pytest.mark.parametrize("cell", [GRUResetBefore, SLSTM], ids=lambda cell: cell.__name__)
def test_adjoint_of_an_adjoint_is_the_second_derivative(cell: type[Cell]) -> None:
    _, first = programs_of(cell).mathematics
    second, adjoints = adjoint(first, first.results, first.arguments)
    given, upstream = draw(first.arguments), draw(first.results, seed=1)
    expected = gradients_by_complex_step(first, given, {f"d_{n}": a for n, a in upstream.items()})
    values = interpret(second, {**given, **_renamed(second, first, upstream)}, SIZES, keep=True)
    for argument in first.arguments:
        found = values[str(adjoints[argument].name)]
        assert relative(found, expected[f"d_{argument}"]) < 10 * ACCURACY, argument


def _renamed(second: Program, first: Program, upstream: Arrays) -> Arrays:
    """Upstream gradients under the names that the second adjoint gave them."""
    optional = [value for value in second.optional if value not in first.optional]
    return {
        str(value.name): upstream[str(result.name)]
        for value, result in zip(optional, first.results, strict=True)
    }


@pytest.mark.parametrize(
    "missing", [(), ("d_h",), ("d_r", "d_u", "d_c"), ("d_r", "d_u", "d_c", "d_h")]
)
def test_upstream_gradients_left_out_count_as_zero(missing: tuple[str, ...]) -> None:
    programs = programs_of(GRUBlockCell)
    first, full = programs.mathematics
    given, upstream = draw(first.arguments), draw(full.optional, seed=1)
    zeros = {n: np.zeros_like(a) if n in missing else a for n, a in upstream.items()}
    some = {n: a for n, a in upstream.items() if n not in missing}
    expected = interpret(full, {**given, **zeros}, SIZES)
    for name, array in interpret(full, {**given, **some}, SIZES).items():
        np.testing.assert_array_equal(array, expected[name])


# --- what derived programs look like --------------------------------------------------------------


def calls(program: Program) -> list[str]:
    return sorted(
        node.row.name
        for statement in program.statements
        for node in statement.expression.atoms(Pointwise)
        if node.row.transcendental
    )


def test_equations_of_gru_block_cell_backward() -> None:
    backward = programs_of(GRUBlockCell)["backward"]
    assert str(backward) == "\n".join(
        [
            "gru_block_cell.backward(h_prev (B, H), w_ru (I + H, 2*H), w_c (I + H, H), d_r (B, H), "
            "d_u (B, H), d_c (B, H), d_h (B, H), r (B, H), u (B, H), c (B, H))",
            "    w_ru_x = w_ru[:I]    (I, 2*H)",
            "    w_ru_h_prev = w_ru[I:I + H]    (H, 2*H)",
            "    w_c_x = w_c[:I]    (I, H)",
            "    w_c_h_prev_r = w_c[I:I + H]    (H, H)",
            "    d_c_total = d_c + d_h * (1 - u)    (B, H)",
            "    d_c_bar = d_c_total * (1 - c**2)    (B, H)",
            "    d_h_prev_r = d_c_bar @ w_c_h_prev_r.T    (B, H)",
            "    d_u_total = d_u + d_h * (h_prev - c)    (B, H)",
            "    d_r_bar_u_bar_1 = d_u_total * (1 - u) * u    (B, H)",
            "    d_r_total = d_r + d_h_prev_r * h_prev    (B, H)",
            "    d_r_bar_u_bar_0 = d_r_total * (1 - r) * r    (B, H)",
            "    d_r_bar_u_bar = concat(d_r_bar_u_bar_0, d_r_bar_u_bar_1)    (B, 2*H)",
            "    d_h_prev_1 = d_r_bar_u_bar @ w_ru_h_prev.T    (B, H)",
            "    d_h_prev = d_h * u + d_h_prev_r * r + d_h_prev_1    (B, H)",
            "    d_x_1 = d_c_bar @ w_c_x.T    (B, I)",
            "    d_x = d_x_1 + d_r_bar_u_bar @ w_ru_x.T    (B, I)",
            "    return d_x, d_h_prev, d_c_bar, d_r_bar_u_bar",
        ]
    )


def test_backward_is_written_through_outputs() -> None:
    programs = programs_of(GRUBlockCell)
    assert calls(programs["forward"]) == ["sigmoid", "sigmoid", "tanh"]
    assert calls(programs["backward"]) == []
    assert calls(programs["weight_gradients"]) == []
    assert len(programs["backward"].statements) == 16
    products = [s for s in programs["backward"].statements if s.traits.is_product]
    assert len(products) == 4


def test_step_functions_of_a_cell_and_what_a_call_may_give() -> None:
    programs = programs_of(GRUBlockCell)
    assert [p.function for p in programs.functions] == ["forward", "backward", "weight_gradients"]
    assert [str(r) for r in programs["forward"].results] == ["r", "u", "c", "h"]
    assert [str(r) for r in programs["weight_gradients"].results] == [
        "d_w_ru",
        "d_w_c",
        "d_b_ru",
        "d_b_c",
    ]
    assert [str(v) for v in programs["weight_gradients"].arguments] == [
        "x",
        "h_prev",
        "r",
        "d_c_bar",
        "d_r_bar_u_bar",
    ]
    accepted = {str(v) for v in programs.accepted["backward"]}
    assert accepted == {*"x h_prev w_ru w_c b_ru b_c r u c h d_r d_u d_c d_h".split()}  # noqa: SIM905


def test_gradients_of_inputs_that_the_author_leaves_out_are_a_function_of_their_own() -> None:
    programs = programs_of(LSTMBlockCell)
    assert [p.function for p in programs.functions] == [
        "forward",
        "backward",
        "input_gradients",
        "weight_gradients",
    ]
    assert {str(r) for r in programs["input_gradients"].results} == {"d_x", "d_h_prev"}
    assert {str(r) for r in programs["weight_gradients"].results} == {"d_w", "d_b"}


def test_default_gradients_are_inputs_states_and_the_pre_activations_that_weights_need() -> None:
    results = programs_of(ElmanRelu)["backward"].results
    assert [str(r) for r in results] == ["d_x", "d_h_prev", "d_h_bar"]


def test_scalars_are_differentiated_on_request() -> None:
    class Leaky(Cell):
        x, h_prev, w, k = Input(I), State(H), Weight(I, H), Scalar(0.9)
        h = tanh(x @ w) * k + h_prev
        gradients = x, h_prev, w, k

    programs = programs_of(Leaky)
    assert [str(r) for r in programs["backward"].results] == ["d_x", "d_h_prev", "d_w", "d_k"]
    assert [p.function for p in programs.functions] == ["forward", "backward"]
    first, full = programs.mathematics
    given, upstream = draw(first.arguments), draw(full.optional, seed=1)
    expected = gradients_by_complex_step(first, given, upstream)["d_k"]
    assert relative(interpret(full, {**given, **upstream}, SIZES)["d_k"], expected) < ACCURACY


def test_gradients_sum_over_every_axis_that_was_broadcast() -> None:
    class Broad(Cell):
        x, kept, h_prev = Input(1), Static(H), State(H)
        b, g = Bias(H), Bias(1)
        h = sigmoid(x * b + g) * kept * h_prev

    first, full = programs_of(Broad).mathematics
    shapes = {str(r): r.shape for r in full.results}
    for value in first.arguments:
        if f"d_{value}" in shapes:
            assert shapes[f"d_{value}"] == value.shape
    assert {"d_x", "d_b", "d_g", "d_h_prev"} <= set(shapes)


def test_flattening_names_intermediates_after_their_operands() -> None:
    flat = forward(GRUBlockCell.definition)
    assert [str(s.target) for s in flat.statements] == [
        "x_h_prev",
        "x_h_prev_w_ru",
        "r_bar_u_bar",
        "r_bar_u_bar_0",
        "r",
        "r_bar_u_bar_1",
        "u",
        "h_prev_r",
        "x_h_prev_r",
        "x_h_prev_r_w_c",
        "c_bar",
        "c",
        "h",
    ]


def test_equal_cells_have_equal_digests_and_different_mathematics_differ() -> None:
    def make(factor: float, units: object) -> type[Cell]:
        class A(Cell):
            h_prev = State(units)  # type: ignore[arg-type]
            h = factor * tanh(h_prev)

        return A

    def digest(cell: type[Cell]) -> str:
        return derive_functions(cell.definition).digest

    assert digest(make(2, H)) == digest(make(2, H))
    assert len({digest(make(2, H)), digest(make(3, H)), digest(make(2, 2 * H))}) == 3


def test_interpreter_refuses_missing_and_misshapen_arguments() -> None:
    program = simplify(forward(ElmanRelu.definition), FORWARD)
    given = draw(program.arguments)
    with pytest.raises(ValueError, match=r"elman_relu\.forward: argument w is missing"):
        interpret(program, {n: a for n, a in given.items() if n != "w"}, SIZES)
    with pytest.raises(ValueError, match=r"x has shape \(2, 2\), expected \(B, I\) = \(3, 2\)"):
        interpret(program, {**given, "x": np.zeros((2, 2))}, SIZES)


def _normed(share: float) -> type[Cell]:
    class Normed(Cell):
        x, h_prev = Input(H), State(H)
        centred = h_prev - share * total(h_prev) / H
        h = tanh(x + centred / sqrt(total(centred**2) / H + 1))

    return Normed


@pytest.mark.parametrize(("share", "waits"), [(1, False), (0.5, True)])
def test_sums_that_cancel_are_not_formed(share: float, waits: bool) -> None:
    """The variance moves the mean by the sum of all distances from it, which is 0 if it is the
    mean: then neither of a layer norm's two sums waits for the other."""
    definition = _normed(share).definition
    program = simplify(forward(definition), FORWARD)
    full, adjoints = adjoint(program, definition.outputs, program.arguments)
    found = full.restrict("gradient", [adjoints[v] for v in program.arguments], program.values)
    first, second = (s for s in found.statements if s.traits.is_sum)
    needed = found.restrict("sum", [second.target], program.values)
    assert (first.target in needed.values) == waits
    # What all units share is not copied to each of them to be multiplied there.
    copies = [s for s in found.statements if s.expression in adjoints.values()]
    assert not [s for s in copies if s.target.shape != s.expression.shape]
    given, upstream = draw(program.arguments), draw(full.optional, seed=1)
    expected = gradients_by_complex_step(program, given, upstream)
    values = interpret(full, {**given, **upstream}, SIZES, keep=True)
    for argument in program.arguments:
        error = relative(values[str(adjoints[argument].name)], expected[f"d_{argument}"])
        assert error < ACCURACY, argument


@every_cell
def test_derivatives_of_expressions_are_those_of_sympy(cell: type[Cell]) -> None:
    for statement in programs_of(cell).mathematics[0].statements:
        for value in statement.operands if statement.is_pointwise else ():
            found = derivative(statement.expression, value)
            assert found == statement.expression.diff(value), statement
