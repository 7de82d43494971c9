"""Where states start: declared with them, used by whatever makes initial states, and by resets."""

from __future__ import annotations

import math

import numpy as np
import pytest

import cellgen
from cellgen import (
    Bias,
    Cell,
    DeclarationError,
    H,
    I,
    Input,
    Layers,
    State,
    Weight,
    exp,
    maximum,
    tanh,
)
from cellgen.cells import SLSTM, SLSTMExp
from cellgen.pipeline import generate
from cellgen.proof.check import check
from cellgen.proof.over_time import run_steps
from cellgen.regularise import zoneout
from cellgen.runtime.abi import Argument


class Started(Cell):
    """A running maximum, a state that a product reads, and one that starts from 0."""

    x, h_prev = Input(I), State(H, initial=0.5)
    m_prev, s_prev = State(H, initial=-math.inf), State(H)
    w, u, b = Weight(I, H), Weight(H, H), Bias(H)

    a = x @ w + h_prev @ u + b
    m = maximum(m_prev, a)
    s = exp(m_prev - m) * s_prev + exp(a - m)
    h = tanh(a) + s * h_prev / 4


def states_of(cell: type[Cell]) -> dict[str, float]:
    return {str(v): cell.definition.initial_of(v) for v in cell.definition.states}


STARTS = {"h_prev": 0.5, "m_prev": -math.inf, "s_prev": 0.0}


def test_a_state_says_where_it_starts_and_variants_start_there_too() -> None:
    class Narrower(Started):
        h = tanh(Started.a)

    parent = Started.replaced("h", "h_raw")

    class Anew(parent):  # type: ignore[misc, valid-type]
        h = parent.h_prev - parent.h_raw

    for cell in (Started, Narrower, Anew, zoneout(Started, "h")):
        assert states_of(cell) == STARTS
    assert "state   m_prev (B, H) from -inf" in str(Started.definition)
    assert "state   s_prev (B, H)\n" in str(Started.definition)


@pytest.mark.parametrize("initial", [math.nan, "0", None, True, 1j, 1e39, 10**400, np.ones(3)])
def test_a_start_that_is_no_number_of_both_precisions_is_refused(initial: object) -> None:
    with pytest.raises(DeclarationError, match="expected a Python number"):
        State(H, initial=initial)  # type: ignore[arg-type]


def arguments_of(cell: type[Cell]) -> dict[str, Argument]:
    kernel = cellgen.compile(cell)
    return {item.name: item for item in kernel.sequence_forward.function.arguments}


def test_the_interface_carries_it_and_zero_is_not_spelled() -> None:
    found = arguments_of(Started)
    assert {name: found[name].initial for name in STARTS} == STARTS
    text = generate(Started, ("c",)).files["interface.json"]
    assert '{"name": "m_prev", "shape": ["B", "H"], "initial": "-inf", "role": "state"}' in text
    assert '{"name": "s_prev", "shape": ["B", "H"], "role": "state"}' in text


def test_the_help_of_a_kernel_says_where_states_start() -> None:
    text = cellgen.compile(Started).sequence_forward.__doc__ or ""
    assert "m_prev: (B, H); state; starts from -inf, in Layers and behind a reset" in text
    assert "s_prev: (B, H); state\n" in text


def test_options_over_time_are_proved_with_resets_to_where_states_start() -> None:
    report = check(Started)
    assert report.ok, str(report)


def drawn(cell: type[Cell], dtype: str, steps: int, rows: int) -> dict[str, np.ndarray]:
    rng, sizes = np.random.default_rng(0), {"T": steps, "B": rows, "I": 3, "H": 5}
    return {
        name: np.asarray(
            np.full([sizes[n] for n in item.shape], item.initial)
            if name in states_of(cell)
            else rng.normal(size=[sizes[n] for n in item.shape]),
            dtype,
        )
        for name, item in arguments_of(cell).items()
    }


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_reset_is_a_new_sequence(dtype: str) -> None:
    kernel, given = cellgen.compile(Started), drawn(Started, dtype, 7, 3)
    rng = np.random.default_rng(1)
    d_h = rng.normal(size=(7, 3, 5)).astype(dtype)
    reset = np.zeros((7, 3), bool)
    reset[4] = True
    states = set(STARTS)

    def run(steps: slice, **options: object) -> tuple[dict, dict]:
        part = {n: a[steps] if a.ndim == 3 else a for n, a in given.items()}
        made = kernel.sequence_forward(**part, **options, save=True)._asdict()
        known = {n: a for n, a in made.items() if not n.endswith("_last")}
        back = kernel.sequence_backward(**part, **known, **options, d_h=d_h[steps])._asdict()
        return made, back

    (whole, gradients), (first, d_first), (second, d_second) = (
        run(slice(0, 7), reset=reset),
        run(slice(0, 4)),
        run(slice(4, 7)),
    )
    np.testing.assert_array_equal(whole["h"], np.concatenate([first["h"], second["h"]]))
    np.testing.assert_array_equal(whole["m_last"], second["m_last"])
    eps = 64 * np.finfo(dtype).eps
    for name, array in gradients.items():
        assert np.isfinite(array).all(), name
        if name == "d_x":
            expected = np.concatenate([d_first[name], d_second[name]])
        else:
            expected = d_first[name] + (0 if name[2:] in states else d_second[name])
        np.testing.assert_allclose(array, expected, rtol=eps, atol=eps, err_msg=name)


def test_limited_back_propagation_starts_there_behind_a_reset() -> None:
    kernel, given = cellgen.compile(Started), drawn(Started, "float64", 6, 2)
    reset = np.zeros((6, 2), bool)
    reset[2:4] = True
    made = kernel.sequence_forward(**given, reset=reset, save=True)._asdict()
    known = {n: a for n, a in made.items() if not n.endswith("_last")} | {"d_h": made["h"]}
    whole = kernel.sequence_backward(**given, **known, reset=reset)
    limited = kernel.sequence_backward(**given, **known, reset=reset, bp_lim=6)
    for name, array in whole._asdict().items():
        assert np.isfinite(array).all(), name
        np.testing.assert_allclose(
            getattr(limited, name), array, rtol=1e-12, atol=1e-13, err_msg=name
        )


def test_layers_start_states_that_are_left_out_there() -> None:
    kernel, given = cellgen.compile(Started), drawn(Started, "float64", 4, 2)
    weights = {n: given[n] for n in ("w", "u", "b")}
    x = given["x"]
    found = Layers(kernel, [[weights]]).forward(x)
    expected = kernel.sequence_forward(**given)
    np.testing.assert_array_equal(found.output, expected.h)


@pytest.mark.parametrize(
    ("dtype", "gate"),
    [("float32", -100.0), ("float32", -120.0), ("float64", -735.0), ("float64", -760.0)],
)
@pytest.mark.parametrize("cell", [SLSTM, SLSTMExp])
def test_the_first_step_of_an_slstm_is_right_however_small_its_input_gate_is(
    cell: type[Cell], dtype: str, gate: float
) -> None:
    kernel, given = cellgen.load(cell.definition.name), drawn(cell, dtype, 3, 2)
    given["b_i"] = np.full_like(given["b_i"], gate)
    names = ("x", *states_of(cell))
    weights = {n: a for n, a in given.items() if n not in names}
    layers = Layers(kernel, [[weights]])
    run = layers.forward(given["x"], save=True)
    z = np.tanh(given["x"][0] @ given["w_z"] + given["b_z"])
    o = 1 / (1 + np.exp(-(given["x"][0] @ given["w_o"] + given["b_o"])))
    eps = 16 * np.finfo(dtype).eps
    np.testing.assert_allclose(run.output[0], o * z, rtol=eps, atol=eps)
    assert np.isfinite(run.output).all()
    zeros = {**given, "m_prev": np.zeros_like(given["m_prev"])}
    from_zero = kernel.sequence_forward(**zeros).h[0]  # i and n underflow, i / n is what is left
    assert not np.allclose(from_zero, o * z, rtol=eps, atol=eps)
    wide = {n: a.astype("float64") for n, a in given.items()}
    exact = run_steps(cell.definition, wide, {"T": 3, "B": 2, "I": 3, "H": 5})
    np.testing.assert_allclose(run.output, exact.outputs["h"], rtol=64 * eps, atol=64 * eps)
    anew = kernel.sequence_forward(**given, reset=np.ones((3, 2), bool))
    alone = kernel.sequence_forward(**{**given, "x": given["x"][2:]})
    np.testing.assert_array_equal(anew.h[2], alone.h[0])
    np.testing.assert_array_equal(anew.m_last, alone.m_last)
