"""Stacked and bidirectional layers: against the equations run step by step, layer by layer, and
for every cell against calls of its functions over time, put together by hand."""

from __future__ import annotations

import numpy as np
import pytest

import cellgen
from cellgen import Cell, Input, Scalar, State, Weight, tanh
from cellgen.cells import GRU, LIF, LSTM, SHIPPED, CfC, GRUBlockCell, SLSTMHeads
from cellgen.errors import ArgumentError
from cellgen.proof.over_time import STEP, run_steps
from cellgen.runtime.abi import axis_length
from cellgen.runtime.options import Options
from cellgen.runtime.stacks import Layers
from tests.conftest import Contexts
from tests.cover import each_of, in_turn, of_call
from tests.language.test_regularise import PROVED

T, B, I, H = 6, 4, 3, 5
TOLERANCE = 1e-12  # float64, sums of some hundred terms over two layers of six steps
LENGTHS = np.array([6, 2, 0, 5])
MASK = np.random.default_rng(7).random((T, B)) < 0.7
OPTIONS = {
    "plain": {},
    "lengths": {"lengths": LENGTHS},
    "lengths and mask": {"lengths": LENGTHS, "mask": MASK},
    "in reverse": {"lengths": LENGTHS, "mask": MASK, "reverse": True},
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
            reverse = bool(direction) != options.get("reverse", False)
            chosen = Options(options.get("lengths"), options.get("mask"), reverse=reverse)
            sizes = {"T": T, "B": B, "I": x.shape[2], "H": H}
            found = run_steps(cell.definition, {"x": x, **own, **state}, sizes, chosen)
            outputs.append(found.outputs["h"])
            last[-1].append(found.last)
        x = np.concatenate(outputs, axis=2)
    return x, last


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize(
    ("cell", "options"), in_turn({c.__name__: c for c in (GRU, LSTM, GRUBlockCell)}, OPTIONS)
)
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


# --- any cell, every option ----------------------------------------------------------------------

RESET = np.random.default_rng(8).random((T, B)) < 0.3
LIMITS = {"whole": {}, "window": {"window": 2}, "bp_lim": {"bp_lim": 2, "window": 4}}


def described(cell, layers=2, directions=2):
    """Kernel, x, and by layer and direction: weights, states, what differs by layer; what is
    shared: everything else that varies by step or row and whose shape does not hold I or H."""
    kernel, rng = kernel_of(cell), np.random.default_rng(3)
    items = kernel.sequence_forward.function.arguments
    results = kernel.sequence_forward.function.results
    output = next(item for item in results if item.over_time)
    states = {f"{r.name.removesuffix('_last')}_prev" for r in results if not r.over_time}
    sizes = {"T": T, "B": B, "I": I, "H": H, "P": 2, "K": 2, "N": 2, "D": 3, "M": 3, "R": 2}
    nested = {"weights": [], "states": [], "inputs": []}
    first, shared = items[0], {}
    assert first.name == "x"
    x = rng.standard_normal([axis_length(axis, sizes) for axis in first.shape]) * 0.5
    for _ in range(layers):
        for name in nested:
            nested[name].append([])
        for _ in range(directions):
            own = {"weights": {}, "states": {}, "inputs": {}}
            for item in items[1:]:
                if item.is_scalar:
                    shared[item.name] = item.default * 0.75
                    continue
                array = rng.standard_normal([axis_length(axis, sizes) for axis in item.shape]) * 0.5
                varies = {"T", "B"} & set(item.shape)
                if item.name in states:
                    own["states"][item.name] = array
                elif not varies:
                    own["weights"][item.name] = array
                elif {"I", "H"} & set(item.shape):
                    own["inputs"][item.name] = abs(array)
                else:
                    shared.setdefault(item.name, abs(array))
            for name, arrays in own.items():
                nested[name][-1].append(arrays)
        width = directions * np.prod([axis_length(axis, sizes) for axis in output.shape[2:]])
        sizes[first.shape[2]] = int(width)
    return kernel, x, nested, shared


def kernel_of(cell):
    return cellgen.load(cell.definition.name) if cell in SHIPPED else cellgen.compile(cell)


def composed(kernel, x, nested, shared, d_output, d_last, options, limits):
    """What layers do, by hand: calls of the cell's functions on arrays without gaps."""
    forward, backward = kernel.sequence_forward, kernel.sequence_backward
    output = forward.function.results[0].name
    takes = {a.name for a in backward.function.arguments}
    tape = []
    for layer in zip(*nested.values(), strict=True):
        calls = []
        for direction, own in enumerate(zip(*layer, strict=True)):
            given = {"x": x, **shared} | {n: a for arrays in own for n, a in arrays.items()}
            chosen = {**options, "reverse": bool(direction)}
            calls.append((given, chosen, forward(**given, **chosen, save=True)))
        x = np.concatenate([getattr(c[2], output).reshape(T, B, -1) for c in calls], axis=2)
        tape.append(calls)
    found = []
    d_x = d_output
    for layer, calls in reversed(list(enumerate(tape))):
        parts = np.split(d_x, len(calls), axis=2)
        one = []
        for (given, chosen, result), part, last in zip(calls, parts, d_last[layer], strict=True):
            known = {n: a for n, a in {**given, **result._asdict()}.items() if n in takes}
            shape = getattr(result, output).shape
            upstream = {f"d_{output}": np.ascontiguousarray(part).reshape(shape)}
            upstream |= {f"d_{name}_last": array for name, array in last.items()}
            gradients = backward(**known, **upstream, **chosen, **limits, saved=result.saved)
            one.append(gradients._asdict())
        d_x = sum(each["d_x"] for each in one)
        found.insert(0, one)
    return x, tape, found


def near(found, expected):
    # float64: the same sums over two layers of six steps, in another order where arrays have gaps.
    return np.max(np.abs(found - expected), initial=0) <= 1e-11 * np.max(
        np.abs(expected), initial=1
    )


@pytest.mark.parametrize(
    "cell", [*each_of(of_call), *PROVED, Contexts], ids=lambda c: c.definition.name
)
def test_every_cell_stacks_with_all_options_together(cell):
    kernel, x, nested, shared = described(cell)
    options = {"lengths": LENGTHS, "mask": MASK, "reset": RESET}
    transposed = {"lengths": LENGTHS, "mask": MASK.T.copy(), "reset": RESET.T.copy()}
    over_time = {a.name for a in kernel.sequence_forward.function.arguments if a.over_time}

    def swap(arrays):
        return {
            n: np.ascontiguousarray(a.swapaxes(0, 1)) if n in over_time else a
            for n, a in arrays.items()
        }

    layers = Layers(kernel, nested["weights"], threads=2)
    run = layers.forward(
        x.swapaxes(0, 1),
        nested["states"],
        inputs=[[swap(own) for own in layer] for layer in nested["inputs"]],
        shared=swap(shared),
        save=True,
        batch_first=True,
        **transposed,
    )
    rng = np.random.default_rng(4)
    d_output = rng.standard_normal(run.output.shape)
    d_last = [
        [{n: rng.standard_normal(a.shape) for n, a in own.items()} for own in layer]
        for layer in run.last
    ]
    for name, limits in LIMITS.items():
        output, tape, expected = composed(
            kernel, x, nested, shared, d_output.swapaxes(0, 1), d_last, options, limits
        )
        assert near(run.output.swapaxes(0, 1), output)
        found = layers.backward(run, d_output, d_last, **limits)
        assert near(found.d_input.swapaxes(0, 1), sum(one["d_x"] for one in expected[0]))
        sums = {}
        for layer, direction in np.ndindex(2, 2):
            for state, array in run.last[layer][direction].items():
                assert np.array_equal(array, getattr(tape[layer][direction][2], f"{state}_last"))
            one = expected[layer][direction]
            for source in ("weights", "states", "inputs"):
                given = nested[source][layer][direction]
                gradients = getattr(found, f"d_{source}")[layer][direction]
                assert set(gradients) == {n for n in given if f"d_{n}" in one}
                for n, array in swap(gradients).items():
                    assert near(array, one[f"d_{n}"]), (name, n)
            for n in shared:
                if f"d_{n}" in one:
                    sums[n] = sums.get(n, 0) + one[f"d_{n}"]
        assert set(found.d_shared) == set(sums)
        for n, array in swap(found.d_shared).items():
            assert near(array, sums[n]), (name, n)


class Shown(Cell):
    """Its output is no state."""

    x, h_prev = Input(cellgen.I), State(cellgen.H)
    w, u = Weight(cellgen.I, cellgen.H), Weight(cellgen.H, cellgen.H)

    h = tanh(x @ w + h_prev @ u)
    y = h * h_prev

    outputs = y, h


@pytest.mark.parametrize("cell", [LSTM, SLSTMHeads, Shown], ids=lambda c: c.definition.name)
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_the_last_step_alone_of_the_last_layer(cell, batch_first, reverse):
    """Each direction's own last valid step; without one, zeros or the initial state."""
    kernel, x, nested, _ = described(cell)
    options = {"lengths": LENGTHS, "mask": MASK.T.copy() if batch_first else MASK}
    options |= {"batch_first": batch_first, "reverse": reverse}
    x = x.swapaxes(0, 1) if batch_first else x
    layers = Layers(kernel, nested["weights"], threads=2)
    whole = layers.forward(x, nested["states"], save=True, **options)
    saved = layers.forward(x, nested["states"], save=True, last_only=True, **options)
    alone = layers.forward(x, nested["states"], last_only=True, **options)
    output = whole.output.swapaxes(0, 1) if batch_first else whole.output
    units = output.shape[2] // 2
    expected = np.zeros((B, 2 * units))
    d_whole = np.zeros_like(output)
    d_output = np.random.default_rng(5).standard_normal(expected.shape)
    valid = MASK & (np.arange(T)[:, None] < LENGTHS)
    for row, direction in np.ndindex(B, 2):
        part = slice(direction * units, (direction + 1) * units)
        steps = np.flatnonzero(valid[:, row])
        if len(steps):
            at = steps[0 if bool(direction) != reverse else -1]
            expected[row, part] = output[at, row, part]
            d_whole[at, row, part] = d_output[row, part]
        elif cell is not Shown:
            expected[row, part] = nested["states"][1][direction]["h_prev"][row].reshape(-1)
    assert np.array_equal(alone.output, expected)
    assert np.array_equal(saved.output, expected)
    none = ~valid.any(axis=0)
    assert none.any()
    d_last = [[{}, {}], [{}, {}]]
    if cell is not Shown:  # of a row without a step the output is the initial state
        h = whole.last[1][0]["h"]
        for direction in range(2):
            part = d_output[:, direction * units : (direction + 1) * units].reshape(h.shape)
            only = none.reshape(-1, *(1,) * (h.ndim - 1))
            d_last[1][direction]["h"] = np.where(only, part, 0)
    d_whole = d_whole.swapaxes(0, 1) if batch_first else d_whole
    one = layers.backward(whole, d_whole, d_last)
    other = layers.backward(saved, d_output)
    assert near(other.d_input, one.d_input)
    for source in ("d_states", "d_weights"):
        for layer, direction in np.ndindex(2, 2):
            pair = [getattr(g, source)[layer][direction] for g in (other, one)]
            for name, array in pair[0].items():
                assert near(array, pair[1][name]), (source, name)


def test_layers_may_differ_in_width_and_one_direction_flattens_heads():
    kernel, x, nested, _ = described(SLSTMHeads, directions=1)
    run = Layers(kernel, nested["weights"]).forward(x, nested["states"], lengths=LENGTHS)
    assert run.output.shape == (T, B, 6)
    assert run.last[1][0]["h"].shape == (B, 2, 3)


@pytest.mark.parametrize("cell", [LSTM, Shown], ids=lambda c: c.definition.name)
@pytest.mark.parametrize("shape", [(0, B, I), (T, 0, I)])
def test_layers_of_nothing(cell, shape):
    kernel, _, nested, _ = described(cell)
    layers = Layers(kernel, nested["weights"])
    run = layers.forward(np.zeros(shape), save=True)
    assert run.output.shape == (*shape[:2], 2 * H)
    assert layers.backward(run, run.output).d_input.shape == shape
    for save in (False, True):
        run = layers.forward(np.zeros(shape), save=save, last_only=True)
        assert np.array_equal(run.output, np.zeros((shape[1], 2 * H)))
    assert layers.backward(run, run.output).d_input.shape == shape


class Leaky(Cell):
    """A number that learns."""

    x, h_prev, rate = Input(cellgen.H), State(cellgen.H), Scalar(0.5, gradient=True)

    h = rate * h_prev + x


def test_a_number_that_learns_has_its_gradient_at_its_default_too():
    x = np.random.default_rng(6).standard_normal((T, B, H))
    layers = Layers(cellgen.compile(Leaky), [[{}], [{}]])
    found = []
    for shared in ({}, {"rate": 0.5}):
        run = layers.forward(x, shared=shared, save=True)
        found.append(layers.backward(run, np.ones_like(run.output)).d_shared)
    assert found[0].keys() == found[1].keys() == {"rate"}
    assert found[0]["rate"] == found[1]["rate"] != 0


@pytest.mark.parametrize(
    ("d_output", "d_last", "message"),
    [
        (
            np.ones((B, H), np.float32),
            {},
            "d_output is numpy.ndarray of float32, expected",
        ),
        (np.ones((B, H)), np.ones(H), r"d_h_last has shape|d_h_last has 1 axes"),
        (np.ones((B, H)), np.ones((B, 1)), "d_h_last has"),
        (np.ones((B, H)), np.ones((B, H), np.float32), "d_h_last"),
        (np.ones((B, H)), [1.0], "d_h_last is a list"),
    ],
)
def test_wrong_gradients_of_the_last_step_are_refused(d_output, d_last, message):
    kernel, x, nested, _ = described(LSTM, 1, 1)
    layers = Layers(kernel, nested["weights"])
    run = layers.forward(x, save=True, last_only=True)
    given = None if isinstance(d_last, dict) else [[{"h": d_last}]]
    with pytest.raises(ArgumentError, match=message):
        layers.backward(run, d_output, given)


def elapsed(change):
    """Run CfC's layers with what is given changed."""
    kernel, x, nested, shared = described(CfC)
    given = {"x": x, "states": nested["states"], "inputs": None, "shared": shared}
    given |= change(nested, shared)
    return Layers(kernel, nested["weights"]).forward(given.pop("x"), **given, save=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda n, s: {"shared": {}},
            r"Layers\(cfc\).forward, layer 0, direction 0: ts is missing, expected an array "
            r"\(T, B, 1\) in shared, or in inputs",
        ),
        (lambda n, s: {"inputs": [[s, s], [s, s]]}, "ts is given in shared and as inputs"),
        (lambda n, s: {"shared": {**s, "x": s["ts"]}}, "x is given in shared and as x"),
        (lambda n, s: {"shared": {**s, "tss": s["ts"]}}, "unknown 'tss' in shared; did you mean"),
        (lambda n, s: {"inputs": [[{}, {}]]}, r"inputs is nested as \[2\], expected \[2, 2\]"),
        (lambda n, s: {"x": np.ones((T, B))}, r"x has 2 axes, shape \(6, 4\), expected 3"),
        (lambda n, s: {"x": [[[1.0]]]}, "x is a list, expected a numpy.ndarray"),
        (
            lambda n, s: {"shared": {"ts": s["ts"][:2]}},
            r"layer 0, direction 0: .*ts has shape \(2, 4, 1\), expected \(T, B, 1\)",
        ),
    ],
)
def test_what_is_given_wrongly_is_answered_with_layer_and_direction(change, message):
    with pytest.raises(ArgumentError, match=message):
        elapsed(change)


def test_a_gradient_of_another_shape_is_refused():
    kernel, x, nested, _ = described(LIF)
    layers = Layers(kernel, nested["weights"])
    run = layers.forward(x, save=True)
    with pytest.raises(ArgumentError, match=r"d_output has shape \(6, 4, 5\), expected that of"):
        layers.backward(run, np.ones((T, B, H)))
    with pytest.raises(
        ArgumentError, match=r"layer 1, direction 0: lif.sequence_backward: bp_lim is -1, expected"
    ):
        layers.backward(run, run.output, window=1, bp_lim=-1)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda k, w: Layers(k, []), "weights has no layer"),
        (lambda k, w: Layers(k, [w[0] * 3]), "layer 0 has 3 directions"),
        (lambda k, w: Layers(k, [w[0], w[0] * 2]), "layer 1 has 2 directions"),
        (lambda k, w: Layers(k, w, output="z"), "output is 'z', expected one of h"),
        (lambda k, w: Layers(k, w, reads="h"), "reads is 'h', expected one of x"),
        (
            lambda k, w: Layers(k, w).forward(np.ones((T, B, I)), masks=MASK),
            "unknown option 'masks'; did you mean 'mask'",
        ),
        (
            lambda k, w: Layers(k, w).forward(np.ones((T, B, I)), last_only=1),
            "last_only is 1, expected True or False",
        ),
        (
            lambda k, w: Layers(k, w).forward(np.ones((T, B, I)), reverse="yes"),
            "reverse is 'yes', expected True or False",
        ),
        (lambda k, w: Layers(k, w[0]), "layer 0 is a dict, expected a list"),
        (
            lambda k, w: Layers(k, w).forward(np.ones((T, B, I)), [{}]),
            r"states has a dict for a layer.*pass states\[layer\]\[direction\]",
        ),
        (
            lambda k, w: Layers(k, w).backward(
                Layers(k, w).forward(np.ones((T, B, I)), save=True), [1]
            ),
            r"d_output has shape \(1,\), expected that of run.output",
        ),
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


@pytest.mark.parametrize("options", [{}, {"last_only": True}, {"reverse": True}], ids=str)
def test_layers_run_in_segments_with_the_bits_of_steps(options):
    kernel, x, weights, states = draw(GRU, 2, 2)
    layers, cut = Layers(kernel, weights), {"parallel": "segments", "segments": 3, "sweeps": 9}
    runs = [layers.forward(x, states, save=True, **options, **how) for how in ({}, cut)]
    expected, found = (layers.backward(run, np.ones_like(run.output)) for run in runs)
    np.testing.assert_array_equal(runs[1].output, runs[0].output)
    np.testing.assert_array_equal(runs[1].last[1][1]["h"], runs[0].last[1][1]["h"])
    np.testing.assert_array_equal(found.d_input, expected.d_input)
    np.testing.assert_array_equal(found.d_weights[0][1]["u_n"], expected.d_weights[0][1]["u_n"])


def test_layers_in_segments_refuse_what_a_call_refuses():
    kernel, x, weights, _ = draw(GRU, 1, 1)
    with pytest.raises(ArgumentError, match=r"Layers\(gru\)\.forward: parallel is 'segments' and"):
        Layers(kernel, weights).forward(x, parallel="segments", mask=MASK)
    spiking = cellgen.load("lif")
    sizes = {"B": B, "I": I, "H": H}
    given = spiking.init(np.random.default_rng(0), **sizes)
    own = [[{n: a for n, a in given.items() if not n.endswith("_prev")}]]
    with pytest.raises(ArgumentError, match="whose states follow each other without steps"):
        Layers(spiking, own).forward(x, parallel="segments")
