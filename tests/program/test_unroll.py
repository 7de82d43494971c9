"""Cells whose deferred gradients read what comes through time, or what is constant over time."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

import cellgen
from cellgen import Bias, Cell, H, I, Input, State, Static, Weight, sigmoid, tanh
from cellgen.language.ops import Pointwise
from cellgen.language.value import Value
from cellgen.program import differentiate as differentiation
from cellgen.program.derive import adjoint
from cellgen.program.over_time import unroll
from cellgen.program.ssa import Program
from cellgen.program.step import derive_functions
from cellgen.views.find import find_one
from tests.cover import each_of, of_equations
from tests.drawing import draw_arrays
from tests.runtime.call.test_sequences import STEP, outputs_of, run_step_by_step, sizes_of


class AddedInput(Cell):
    """An input that is a pre-activation's term: its gradient is formed in reverse."""

    a, p, h_prev, w = Input(H), Input(H), State(H), Weight(H, H)

    h = tanh(a + p + h_prev @ w)


class LeakyIntegrator(Cell):
    """A linear cell: every weight gradient reads the gradient of the state itself."""

    x, h_prev, k, w = Input(I), State(H), Bias(H), Weight(I, H)

    h = k * h_prev + x @ w


class MinimalGRU(Cell):
    """minGRU (Feng et al. 2024, arXiv:2410.01201)."""

    x, h_prev, w_z, w_n = Input(I), State(H), Weight(I, H), Weight(I, H)

    z = sigmoid(x @ w_z)
    h = (1 - z) * h_prev + z * (x @ w_n)


class SkipConnection(Cell):
    """An input added to the state: its gradient is that of the state."""

    x, h_prev, w = Input(H), State(H), Weight(H, H)

    h = tanh(h_prev @ w) + x


class MaskedInput(Cell):
    """A mask that is the same at every step, read by what is deferred, and a product of it."""

    x, h_prev, m, w, u = Input(I), State(H), Static(H), Weight(I, H), Weight(H, H)

    x_w, m_u = x @ w, m @ u
    h = tanh(m * x_w + m_u + h_prev)


CELLS = (AddedInput, LeakyIntegrator, MinimalGRU, SkipConnection, MaskedInput)

each = pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.definition.name)


@each
def test_deferred_gradients_read_the_sum_of_what_comes_from_outside_and_through_time(cell):
    programs = unroll(cell.definition)
    states = {programs.upstream[link.next] for link in programs.links}
    assert not states & set(programs.deferred.arguments)


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("lstm", ["d_o_bar", "d_g_bar", "d_f_bar", "d_i_bar"]),
        (
            "fast_grnn",
            ["d_sigmoid_zeta_terms", "d_sigmoid_nu_terms", "d_h_bar_pre", "d_z_pre", "d_s"],
        ),
        ("lstm_projection", ["d_r_in", "o_tanh_c", "d_b_x_w_r_prev_u"]),
        ("min_gru", ["d_n_bar", "d_z_pre"]),
    ],
)
def test_what_costs_least_is_kept_for_the_deferred_part(name, kept):
    """Sums of FastGRNN's scalars need two functions again, or two products kept instead of one
    adjoint; factors of weight gradients, which the loop has at hand and products read, are kept
    even where all of them follow from one adjoint (minGRU)."""
    programs = unroll(find_one(name).definition)
    assert [str(value.name) for value in programs.kept] == kept


@pytest.mark.parametrize(
    ("name", "functions", "read"),
    [("slstm", ["exp", "log_sigmoid", "sigmoid"], {"m_prev"}), ("slstm_exp", ["exp"], set())],
)
def test_an_slstm_takes_one_exponential_a_step_back_and_reads_no_maximum(name, functions, read):
    reverse = unroll(find_one(name).definition).reverse
    found = [f for s in reverse.statements for f in s.expression.atoms(Pointwise)]
    assert sorted(str(f.func) for f in found if f.row.transcendental) == functions
    assert {str(v) for v in reverse.arguments} & {"m", "m_prev"} == read


@pytest.mark.parametrize("cell", each_of(of_equations))
def test_the_deferred_part_computes_no_function_that_the_loop_has_computed(cell):
    programs = unroll(cell.definition)
    looped = {statement.target for statement in programs.reverse.statements}
    for statement in programs.deferred.statements:
        if statement.target in looped and statement.is_pointwise:
            functions = statement.expression.atoms(Pointwise)
            assert not any(f.row.transcendental for f in functions), str(statement)


@each
def test_no_gradient_is_formed_both_in_reverse_and_at_the_end(cell):
    programs = unroll(cell.definition)
    formed = {s.target for s in programs.reverse.statements}
    assert not formed & {s.target for s in programs.deferred.statements}


@each
def test_no_function_returns_a_gradient_twice(cell):
    for program in derive_functions(cell.definition).functions:
        assert len(set(program.results)) == len(program.results)


@each
@pytest.mark.parametrize("threads", [1, 2])
def test_every_gradient_agrees_with_the_complex_step(cell, threads):
    kernel, rng = cellgen.compile(cell), np.random.default_rng(2)
    shape = (5, 3, 4, 9)
    arguments = draw_arrays(kernel.sequence_forward.function, sizes_of(shape))
    given = draw_arrays(kernel.sequence_backward.function, sizes_of(shape), 1, optional=True)
    result = kernel.sequence_forward(**arguments, save=True, threads=threads)
    gradients = kernel.sequence_backward(
        **arguments, **outputs_of(cell, result), **given, saved=result.saved, threads=threads
    )
    for name in (field.removeprefix("d_") for field in gradients._fields):
        along = rng.standard_normal(arguments[name].shape)
        moved = arguments | {name: arguments[name] + 1j * STEP * along}
        outputs, last = run_step_by_step(cell, moved, shape)
        expected = sum(
            np.sum(np.imag({**outputs, **last}[d.removeprefix("d_")]) / STEP * weight)
            for d, weight in given.items()
        )
        found = np.sum(getattr(gradients, f"d_{name}") * along)
        assert found == pytest.approx(expected, rel=1e-11), name  # rounding of sums over 5 steps


class TakenNames(Cell):
    """Weights named as cellgen names sums, carries and terms of its own."""

    x, h_prev, lam = Input(I), State(H), Weight(1)
    w, h_in, h_next, lam_terms, lam_units = Weight(I, H), Bias(H), Bias(H), Bias(H), Bias(H)

    z = sigmoid(x @ w + h_in)
    h = z * tanh(h_prev * h_next) * lam * lam_terms + lam_units


class RowWeight(Cell):
    """What weights of shape (1, H) and (1, 1) alone make."""

    x, h_prev, w, u, v = Input(I), State(H), Weight(I, H), Weight(1, H), Weight(1, 1)

    g = tanh(u) * 2
    h = tanh(x @ w) * g + h_prev * g * sigmoid(v)


@pytest.mark.parametrize("cell", [TakenNames, RowWeight])
def test_gradients_have_the_names_and_shapes_of_their_parameters(cell):
    backward = cellgen.compile(cell).sequence_backward.function
    found = {a.name: a.shape for a in backward.results if not a.over_time}
    expected = {f"d_{v.name}": tuple(map(str, v.shape)) for v in cell.definition.parameters}
    assert expected.items() <= found.items()
    test_every_gradient_agrees_with_the_complex_step(cell, 1)


def test_the_functions_of_a_step_and_a_loop_come_of_one_adjoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    derived: list[tuple[str, ...]] = []

    def counting(program: Program, upstream: tuple[Value, ...], wanted: Iterable[Value]) -> object:
        derived.append(tuple(str(value.name) for value in upstream))
        return adjoint(program, upstream, wanted)

    monkeypatch.setattr(differentiation, "adjoint", counting)

    class Plain(Cell):
        x, h_prev, w, u = Input(I), State(H), Weight(I, H), Weight(H, H)
        h = tanh(x @ w + h_prev @ u)

    class TwoOutputs(Cell):
        x, h_prev, w, u = Input(I), State(H), Weight(I, H), Weight(H, H)
        h = tanh(x @ w + h_prev @ u)
        y = 2 * h
        outputs = y, h

    for cell, upstream in ((Plain, ("h",)), (TwoOutputs, ("y", "h"))):
        derived.clear()
        derive_functions(cell.definition)
        unroll(cell.definition)
        assert derived == [upstream]
