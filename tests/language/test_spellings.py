"""Nothing is told from how a name is spelled: roles are known."""

from __future__ import annotations

import numpy as np
import pytest

import cellgen
from cellgen import Cell, H, I, Input, State, Weight, tanh
from cellgen.errors import ArgumentError, DeclarationError
from cellgen.pipeline import generate
from cellgen.program.transforms.regularise import variational_dropout, zoneout
from cellgen.program.transforms.tangent import tangent
from cellgen.proof.check import check
from cellgen.runtime.derivatives import directions, jvp
from cellgen.runtime.interface_file import interface_of
from cellgen.runtime.stacks import Layers
from tests.awkward_cells import Spellings

SIZES = {"I": 3, "H": 5}


def arguments(rng: np.random.Generator, steps: int = 6, rows: int = 4) -> dict[str, np.ndarray]:
    lengths = {**SIZES, "T": steps, "B": rows}
    return {
        item.name: rng.standard_normal([lengths[axis] for axis in item.shape])
        for item in cellgen.compile(Spellings).sequence_forward.function.arguments
    }


def test_a_cell_whose_values_are_spelled_like_derived_ones_is_proved() -> None:
    report = check(Spellings)
    assert report.ok, str(report)


def test_gradients_are_of_what_they_are_of() -> None:
    found = {
        (item.name, item.of)
        for function in cellgen.compile(Spellings).interface.functions
        for item in (*function.arguments, *function.results)
        if item.role in ("gradient", "upstream")
    }
    assert found >= {("d_w_total", "w_total"), ("d_y_last", "y_last"), ("d_y_total", "y_total")}
    assert ("d_y_last_last", "y_last_last") in found
    assert {of for name, of in found if name.startswith("d_y_total")} == {"y_total", "y"}


def test_an_output_beside_a_state_called_like_its_last_value_is_no_state() -> None:
    """``y`` beside the final state ``y_last_last`` of the state ``y_last``."""
    given, lengths = arguments(np.random.default_rng(0)), np.array([6, 2, 0, 3])
    forward = cellgen.compile(Spellings).sequence_forward
    whole = forward(**given, lengths=lengths)
    last = forward(**given, lengths=lengths, last_only=True)
    assert last.y_last is None
    assert last.a_prev is None
    shown = np.array([whole.y[n - 1, row] if n else 0 * whole.y[0, 0] for row, n in ((0, 6),)])
    assert np.array_equal(last.y[:1], shown)
    assert np.array_equal(last.y[1], whole.y[1, 1])
    assert np.array_equal(last.y_last_last, whole.y_last_last)


def test_stacked_layers_take_and_give_the_states_of_such_a_cell() -> None:
    given = arguments(np.random.default_rng(1))
    kernel = cellgen.compile(Spellings)
    states = {name: given[name] for name in ("y_last_prev", "a_prev_prev")}
    weights = {n: a for n, a in given.items() if n not in ("z_prev", "t_x", *states)}
    layers = Layers(kernel, [[weights]], reads="z_prev", output="y_last")
    run = layers.forward(given["z_prev"], [[states]], shared={"t_x": given["t_x"]}, save=True)
    made = kernel.sequence_forward(**given, save=True)
    assert np.array_equal(run.output, made.y_last)
    assert set(run.last[0][0]) == {"y_last", "a_prev"}
    upstream = np.random.default_rng(2).standard_normal(made.y_last.shape)
    found = layers.backward(run, upstream)
    read = {n: getattr(made, n) for n in ("y", "y_last", "a_prev")}
    backward = kernel.sequence_backward(**given, **read, d_y_last=upstream, saved=made.saved)
    assert np.array_equal(found.d_weights[0][0]["w_total"], backward.d_w_total)
    assert np.array_equal(found.d_weights[0][0]["dot_x"], backward.d_dot_x)


def test_a_value_with_a_name_of_a_direction_makes_no_tangent() -> None:
    class Moving(Cell):
        x, dot_x, h_prev, w = Input(I), Input(I), State(H), Weight(I, H)
        h = tanh((x + dot_x) @ w + h_prev)

    with pytest.raises(ArgumentError, match="moving is of no tangent"):
        directions(cellgen.compile(Moving))
    made = tangent(Moving, by=("x",))
    kernel = cellgen.compile(made)
    expected = {"x": "dot2_x", "h_prev": "dot2_h_prev", "h": "dot2_h", "h_last": "dot2_h_last"}
    assert directions(kernel) == expected
    assert interface_of(generate(made).files["interface.json"], "here") == kernel.interface
    rng = np.random.default_rng(0)
    values = {
        **{n: rng.standard_normal((4, 2, 3)) for n in ("x", "dot_x")},
        "h_prev": np.zeros((2, 5)),
        "w": rng.standard_normal((3, 5)),
    }
    along = {"x": rng.standard_normal((4, 2, 3))}
    found = jvp(kernel, values, along)
    forward = cellgen.compile(Moving).sequence_forward
    ends = [
        forward(**{**values, "x": values["x"] + side * 1e-6 * along["x"]}).h for side in (1, -1)
    ]
    np.testing.assert_allclose(found.tangents["h"], (ends[0] - ends[1]) / 2e-6, atol=1e-8)


def test_an_input_spelled_like_a_state_is_an_input_of_its_own_name() -> None:
    masked = variational_dropout(Spellings, inputs=("z_prev",))
    assert "mask_z_prev" in {str(value) for value in masked.definition.declared}
    with pytest.raises(DeclarationError, match=r"z is not among its inputs"):
        variational_dropout(Spellings, inputs=("z",))
    for name in ("a_prev", "a_prev_prev"):
        made = zoneout(Spellings, name)
        assert "keep_a_prev" in {str(value) for value in made.definition.declared}


def test_a_value_named_after_such_an_input_must_be_of_use() -> None:
    with pytest.raises(DeclarationError, match="z is computed and never"):

        class Idle(Cell):
            z_prev, h_prev, w = Input(I), State(H), Weight(I, H)
            z = z_prev @ w
            h = tanh(z_prev @ w + h_prev)
