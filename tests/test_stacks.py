"""Stacked and bidirectional layers: against the equations run step by step, layer by layer."""

from __future__ import annotations

import numpy as np
import pytest

import cellgen
from cellgen.abi import axis_length
from cellgen.call_over_time import Options
from cellgen.cells import GRU, LSTM, GRUBlockCell
from cellgen.errors import ArgumentError
from cellgen.layers import Layers
from cellgen.over_time import STEP, run_steps

T, B, I, H = 6, 4, 3, 5
TOLERANCE = 1e-12  # float64, sums of some hundred terms over two layers of six steps
LENGTHS = np.array([6, 2, 0, 5])
MASK = np.random.default_rng(7).random((T, B)) < 0.7
OPTIONS = {
    "plain": {},
    "lengths": {"lengths": LENGTHS},
    "lengths and mask": {"lengths": LENGTHS, "mask": MASK},
}

cells = pytest.mark.parametrize("cell", [GRU, LSTM, GRUBlockCell], ids=lambda c: c.__name__)


def draw(cell, layers, directions, seed=0):
    """Weights and initial states of every layer and direction."""
    rng = np.random.default_rng(seed)
    kernel = cellgen.load(cell.definition.name)
    states = {str(s.name) for s in cell.definition.states}
    weights, initial = [], []
    for layer in range(layers):
        sizes = {"B": B, "I": directions * H if layer else I, "H": H}
        weights.append([])
        initial.append([])
        for _ in range(directions):
            arrays = {
                a.name: rng.standard_normal([axis_length(x, sizes) for x in a.shape]) * 0.5
                for a in kernel.sequence_forward.function.arguments
                if not a.over_time and not a.is_scalar
            }
            initial[-1].append({n: a for n, a in arrays.items() if n in states})
            weights[-1].append({n: a for n, a in arrays.items() if n not in states})
    return kernel, rng.standard_normal((T, B, I)), weights, initial


def interpret(cell, x, weights, initial, options):
    """Run the equations; returns the last layer's output and all final states."""
    last = []
    for layer, states in zip(weights, initial, strict=True):
        outputs = []
        last.append([])
        for direction, (own, state) in enumerate(zip(layer, states, strict=True)):
            chosen = Options(options.get("lengths"), options.get("mask"), reverse=bool(direction))
            sizes = {"T": T, "B": B, "I": x.shape[2], "H": H}
            found = run_steps(cell.definition, {"x": x, **own, **state}, sizes, chosen)
            outputs.append(found.outputs["h"])
            last[-1].append(found.last)
        x = np.concatenate(outputs, axis=2)
    return x, last


@cells
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_two_layers_agree_with_the_equations(cell, directions, options):
    kernel, x, weights, initial = draw(cell, 2, directions)
    if "h" not in {str(v.name) for v in cell.definition.outputs[:1]}:
        layers = Layers(kernel, weights, output="h", threads=2)
    else:
        layers = Layers(kernel, weights, threads=2)
    run = layers.forward(x, initial, save=True, **options)
    output, last = interpret(cell, x, weights, initial, options)
    assert np.max(np.abs(run.output - output)) <= TOLERANCE
    for found, expected in zip(run.last, last, strict=True):
        for one, other in zip(found, expected, strict=True):
            assert {f"{n}_last" for n in one} == set(other)
            for name, array in one.items():
                assert np.max(np.abs(array - other[f"{name}_last"])) <= TOLERANCE

    rng = np.random.default_rng(1)
    upstream = rng.standard_normal(output.shape)
    d_last = [
        [{n: rng.standard_normal(a.shape) for n, a in one.items()} for one in layer]
        for layer in run.last
    ]
    gradients = layers.backward(run, upstream, d_last)

    def slope(x, weights, initial):
        output, last = interpret(cell, x, weights, initial, options)
        loss = np.sum(output * upstream)
        for layer, given in zip(last, d_last, strict=True):
            for one, d in zip(layer, given, strict=True):
                loss += sum(np.sum(one[f"{n}_last"] * a) for n, a in d.items())
        return np.imag(loss) / STEP

    move = rng.standard_normal(x.shape)
    terms = gradients.d_input * move
    assert abs(np.sum(terms) - slope(x + 1j * STEP * move, weights, initial)) <= TOLERANCE * np.sum(
        np.abs(terms)
    )
    for kind, values, found in (
        ("weights", weights, gradients.d_weights),
        ("states", initial, gradients.d_states),
    ):
        for layer in range(2):
            for direction in range(directions):
                for name, array in values[layer][direction].items():
                    move = rng.standard_normal(array.shape)
                    moved = [[dict(one) for one in each] for each in values]
                    moved[layer][direction][name] = array + 1j * STEP * move
                    arrays = {"weights": weights, "initial": initial}
                    arrays["weights" if kind == "weights" else "initial"] = moved
                    terms = found[layer][direction][name] * move
                    expected = slope(x, **arrays)
                    size = np.sum(np.abs(terms)) + 1e-300
                    assert abs(np.sum(terms) - expected) <= TOLERANCE * size, (kind, name)


def test_batch_first_and_zero_states_are_the_same_layers():
    kernel, x, weights, _ = draw(LSTM, 2, 2)
    layers = Layers(kernel, weights)
    run = layers.forward(x, save=True, lengths=LENGTHS)
    swapped = np.ascontiguousarray(x.swapaxes(0, 1))
    other = layers.forward(swapped, save=True, lengths=LENGTHS, batch_first=True)
    assert np.array_equal(other.output.swapaxes(0, 1), run.output)
    d_output = np.ones_like(run.output)
    one = layers.backward(run, d_output)
    two = layers.backward(other, np.ascontiguousarray(d_output.swapaxes(0, 1)))
    assert np.max(np.abs(two.d_input.swapaxes(0, 1) - one.d_input)) <= TOLERANCE
    for name in weights[0][1]:
        assert np.max(np.abs(two.d_weights[0][1][name] - one.d_weights[0][1][name])) <= TOLERANCE


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda k, w: Layers(k, []), "weights has no layer"),
        (lambda k, w: Layers(k, [w[0] * 3]), "layer 0 has 3 directions"),
        (lambda k, w: Layers(k, [w[0], w[0] * 2]), "layer 1 has 2 directions"),
        (lambda k, w: Layers(k, w, output="z"), "output is 'z', expected one of h"),
        (lambda k, w: Layers(k, w).forward(np.ones((T, B, I)), reverse=True), "last_only and rev"),
        (
            lambda k, w: Layers(k, w).backward(Layers(k, w).forward(np.ones((T, B, I)))),
            "the run holds nothing saved",
        ),
    ],
)
def test_wrong_layers_are_refused(build, message):
    kernel, _, weights, _ = draw(GRU, 1, 1)
    with pytest.raises(ArgumentError, match=message):
        build(kernel, weights)
