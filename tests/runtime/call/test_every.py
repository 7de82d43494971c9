"""``every=k``: the outputs of every k-th step alone, and gradients of these alone.

A call that shows some steps is the call that shows all of them, cut: results and gradients are
equal to the bit.
"""

from __future__ import annotations

import pickle
from functools import cache

import numpy as np
import pytest

import cellgen
from cellgen.errors import ArgumentError
from cellgen.runtime.abi import axis_length
from cellgen.runtime.stacks import Layers
from tests.cover import in_turn
from tests.drawing import draw_arrays

T, B = 7, 3
MASK = np.random.default_rng(1).random((T, B)) < 0.6
RESET = np.random.default_rng(2).random((T, B)) < 0.3
LENGTHS = np.array([7, 4, 0])
STEPS = {
    "all": {},
    "reverse": {"reverse": True},
    "lengths": {"lengths": LENGTHS},
    "mask": {"mask": MASK},
    "mask with zeros, reverse": {"mask": MASK, "zero_output_for_mask": True, "reverse": True},
    "all tables": {"lengths": LENGTHS, "mask": MASK, "reset": RESET},
    "batch first": {"batch_first": True},
    "batch first, mask, reverse": {"batch_first": True, "mask": MASK.T.copy(), "reverse": True},
    "flushed": {"flush_denormals": True},
}
"""Which steps are valid, and how arrays lie."""
WAYS = ({}, {"window": 2}, {"bp_lim": 3}, {"threads": 1}, {"threads": 3})
"""What a backward pass has beside it."""
CELLS = ("gru", "lstm", "gru_block_cell", "qrnn")
"""An output that is a state, two, and cells with outputs that are none."""


@cache
def kernel(name: str) -> cellgen.Kernel:
    return cellgen.load(name)


def drawn(name, dtype=np.float64, steps=T, rows=B, *, batch_first=False):
    """Arguments of a forward pass by name."""
    function = kernel(name).sequence_forward.function
    sizes = dict.fromkeys(function.dims, 4) | {"T": steps, "B": rows}
    arrays = draw_arrays(function, sizes, scale=0.4, dtype=dtype)
    swapped = {a.name for a in function.arguments if batch_first and a.over_time}
    return {
        n: np.ascontiguousarray(a.swapaxes(0, 1)) if n in swapped else a for n, a in arrays.items()
    }


def cut(array, every, *, batch_first=False):
    return array[:, every - 1 :: every] if batch_first else array[every - 1 :: every]


def upstream(name, full, every, *, batch_first=False):
    """Gradients of the outputs of every so many-th step, and these among zeros."""
    some, spread, rng = {}, {}, np.random.default_rng(3)
    for item in kernel(name).sequence_backward.function.arguments:
        if not item.optional:
            continue
        of = getattr(full, item.name.removeprefix("d_"))
        some[item.name] = spread[item.name] = rng.standard_normal(of.shape).astype(of.dtype)
        if item.over_time:
            some[item.name] = cut(some[item.name], every, batch_first=batch_first).copy()
            spread[item.name] = np.zeros_like(of)
            cut(spread[item.name], every, batch_first=batch_first)[...] = some[item.name]
    return some, spread


def agree(found, expected, name, every, *, batch_first=False):
    outputs = {a.name for a in kernel(name).sequence_forward.function.results if a.over_time}
    for result in expected._fields:
        if result == "saved":
            continue
        whole = getattr(expected, result)
        if result in outputs:
            whole = cut(whole, every, batch_first=batch_first)
        assert np.array_equal(getattr(found, result), whole), (name, result)


@pytest.mark.parametrize(("name", "steps"), in_turn(CELLS, STEPS))
def test_results_are_those_of_all_steps_cut(name, steps):
    first = bool(steps.get("batch_first"))
    arguments = drawn(name, batch_first=first)
    forward, backward = kernel(name).sequence_forward, kernel(name).sequence_backward
    read = {item.name for item in backward.function.arguments}
    whole = forward(**arguments, **steps, save=True)
    for every in (2, 3, T, T + 2):
        agree(forward(**arguments, **steps, every=every), whole, name, every, batch_first=first)
        part = forward(**arguments, **steps, every=every, save=True)
        agree(part, whole, name, every, batch_first=first)
        some, spread = upstream(name, whole, every, batch_first=first)
        given = {n: a for n, a in arguments.items() if n in read}
        all_outputs = {n: getattr(whole, n) for n in whole._fields if n in read}
        shown = {n: getattr(part, n) for n in part._fields if n in read}
        for way in WAYS:
            expected = backward(**given, **all_outputs, **spread, saved=whole.saved, **way)
            for found in (
                backward(**given, **shown, **some, saved=part.saved, **way),
                backward(**given, **some, saved=part.saved, **way),  # what is saved has all steps
                backward(**given, **all_outputs, **some, saved=whole.saved, every=every, **way),
            ):
                for result, array in expected._asdict().items():
                    assert np.array_equal(getattr(found, result), array), (every, way, result)


def test_what_is_saved_has_all_steps_for_gradients_in_the_other_layout_too():
    """T and B differ, so that an array in the wrong layout is none of a call."""
    arguments, forward = drawn("gru"), kernel("gru").sequence_forward
    whole, part = (forward(**arguments, save=True, every=every) for every in (1, 3))
    some, _ = upstream("gru", whole, 3)
    backward = kernel("gru").sequence_backward
    expected = backward(**arguments, **some, saved=part.saved)
    swapped = drawn("gru", batch_first=True)
    above = {n: a.swapaxes(0, 1).copy() if n == "d_h" else a for n, a in some.items()}
    found = backward(**swapped, **above, saved=part.saved, batch_first=True)
    assert np.array_equal(found.d_x.swapaxes(0, 1), expected.d_x)
    for name in set(expected._fields) - {"d_x"}:
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_row_blocks_get_their_gradients(dtype):
    """Twenty rows are passed backward in row blocks."""
    arguments = drawn("gru", dtype, 60, 20)
    forward, backward = kernel("gru").sequence_forward, kernel("gru").sequence_backward
    whole = forward(**arguments, save=True)
    some, spread = upstream("gru", whole, 4)
    for threads in (1, 2, 3):
        expected = backward(**arguments, h=whole.h, **spread, saved=whole.saved, threads=threads)
        found = backward(
            **arguments, h=whole.h, **some, saved=whole.saved, threads=threads, every=4
        )
        for result, array in expected._asdict().items():
            assert np.array_equal(getattr(found, result), array), (threads, result)


def test_outputs_of_no_step_are_empty_and_final_states_are_those_of_the_last_step():
    found = kernel("gru").sequence_forward(**drawn("gru"), every=T + 1)
    assert found.h.shape == (0, B, 4)
    assert np.array_equal(found.h_last, kernel("gru").sequence_forward(**drawn("gru")).h_last)
    saved = kernel("gru").sequence_forward(**drawn("gru"), every=T + 1, save=True)
    gradients = kernel("gru").sequence_backward(**drawn("gru"), saved=saved.saved)
    assert not gradients.d_x.any()


def test_of_no_steps_none_are_shown():
    """Rows or not: without rows no result has an element."""
    for rows in (B, 0):
        arguments = {**drawn("gru"), "x": drawn("gru")["x"][:0, :rows]}
        arguments["h_prev"] = arguments["h_prev"][:rows]
        found = kernel("gru").sequence_forward(**arguments, every=3)
        assert found.h.shape == (0, rows, 4)
        assert np.array_equal(found.h_last, arguments["h_prev"])


@pytest.mark.parametrize("save", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_results_are_written_where_the_caller_says(save, batch_first):
    forward, arguments = kernel("gru").sequence_forward, drawn("gru", batch_first=batch_first)
    expected = forward(**arguments, every=3, save=save, batch_first=batch_first)
    given = np.full((2 * expected.h.shape[0], *expected.h.shape[1:]), np.nan)[::2]
    found = forward(**arguments, every=3, save=save, batch_first=batch_first, out={"h": given})
    assert np.array_equal(given, expected.h)
    assert found.h is given or np.shares_memory(found.h, given)
    with pytest.raises(ArgumentError, match=r"expected \(T // 3, B, H\) = \(2, 3, 4\) with T // 3"):
        forward(**arguments, every=3, save=save, batch_first=batch_first, out={"h": arguments["x"]})


def test_a_bound_call_shows_some_steps_too():
    forward, arguments = kernel("lstm").sequence_forward, drawn("lstm")
    bound = forward.bind(**arguments, every=2)
    kept = forward.bind(**arguments, every=2, save=True)
    arguments["x"] *= 0.5
    for found in (bound(), kept()):
        agree(found, forward(**arguments), "lstm", 2)
    gradients = kernel("lstm").sequence_backward
    read = {n: a for n, a in arguments.items() if n != "c_last"}
    d_h = np.ones_like(kept.results.h)
    expected = gradients(**read, saved=kept.results.saved, d_h=d_h)
    found = gradients.bind(**read, saved=kept.results.saved, d_h=d_h)()
    for one, other in zip(found, expected, strict=True):
        assert np.array_equal(one, other)
    with pytest.raises(ArgumentError, match="out has h, expected none of them with save=True and"):
        forward.bind(**arguments, every=2, save=True, out={"h": np.zeros((3, B, 4))})


def test_what_is_saved_travels_with_the_outputs_of_all_steps():
    arguments = drawn("gru")
    saved = kernel("gru").sequence_forward(**arguments, every=2, save=True).saved
    sent = pickle.loads(pickle.dumps(saved))
    d_h = np.ones((T // 2, B, 4))
    one, other = (
        kernel("gru").sequence_backward(**arguments, saved=s, d_h=d_h) for s in (saved, sent)
    )
    assert np.array_equal(one.d_x, other.d_x)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every is 0, expected a number of steps, 1 for all or more"),
        ({"every": True}, "every is True, expected a number of steps, 1 for all or more"),
        ({"every": 2.0}, "every is 2.0, expected a number of steps"),
        ({"every": 2, "last_only": True}, "last_only and every=2 are both given, expected one"),
        ({"every": 2, "last_only": True, "save": True}, "last_only and every=2 are both given"),
    ],
    ids=str,
)
def test_wrong_steps_are_named(options, message):
    with pytest.raises(ArgumentError, match=message):
        kernel("gru").sequence_forward(**drawn("gru"), **options)


def test_gradients_of_another_number_of_steps_are_named():
    arguments = drawn("gru")
    saved = kernel("gru").sequence_forward(**arguments, every=2, save=True).saved
    message = r"d_h has shape \(7, 3, 4\), expected \(T // 2, B, H\) = \(3, 3, 4\) with T // 2 = 3"
    with pytest.raises(ArgumentError, match=message):
        kernel("gru").sequence_backward(**arguments, saved=saved, d_h=np.ones((T, B, 4)))


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("save", [False, True])
def test_a_stack_shows_the_steps_of_its_last_layer(directions, save):
    gru, rng = kernel("gru"), np.random.default_rng(0)
    items = [a for a in gru.sequence_forward.function.arguments if a.is_weight]
    weights = [
        [
            {
                a.name: 0.4
                * rng.standard_normal([axis_length(s, {"I": wide, "H": 4}) for s in a.shape])
                for a in items
            }
            for _ in range(directions)
        ]
        for wide in (5, 4 * directions)
    ]
    layers, x = Layers(gru, weights), rng.standard_normal((T, B, 5))
    whole = layers.forward(x, save=True, lengths=LENGTHS)
    part = layers.forward(x, save=save, lengths=LENGTHS, every=3)
    assert np.array_equal(part.output, whole.output[2::3])
    if save:
        d_some = rng.standard_normal(part.output.shape)
        d_all = np.zeros_like(whole.output)
        d_all[2::3] = d_some
        found, expected = layers.backward(part, d_some), layers.backward(whole, d_all)
        assert np.array_equal(found.d_input, expected.d_input)
        assert np.array_equal(found.d_weights[0][0]["w_z"], expected.d_weights[0][0]["w_z"])
