"""Truncation term by term, ``bp_lim``: for every cell, and for every row as if it were alone."""

from __future__ import annotations

import numpy as np
import pytest

import cellgen
from cellgen.cells import LIF, LSTM, SHIPPED, SLSTM, SLSTMExp
from cellgen.errors import ArgumentError
from cellgen.runtime.options import NONE
from tests.cover import each_of, of_all
from tests.drawing import draw_arrays
from tests.runtime.call.test_options import run, term_by_term

SIZES = {"T": 5, "B": 4, "I": 3, "H": 6, "P": 2, "K": 2, "N": 2, "D": 3, "M": 4, "R": 2}
TOLERANCE = 1e-11  # float64, sums of some hundred terms over five steps, in another order
LENGTHS = [5, 2, 0, 3]

omitting = pytest.mark.parametrize("cell", [LIF, SLSTMExp], ids=lambda c: c.definition.name)


def gradients(cell, arguments, upstream, options, limit=None, *, omit=False):
    """Every gradient; ``omit``: the call leaves out what the backward pass does not read."""
    kernel = cellgen.load(cell.definition.name)
    backward = kernel.sequence_backward.function
    forward = kernel.sequence_forward(**arguments, **options, save=True)
    known = {**arguments, **forward._asdict()}
    named = [a.name for a in backward.arguments if a.name in known and not a.saved]
    unread = {a.name for a in backward.arguments if not a.used}
    given = {n: known[n] for n in named if not (omit and n in unread)}
    limited = {} if limit is None else {"bp_lim": limit}
    return kernel.sequence_backward(**given, **upstream, saved=forward.saved, **options, **limited)


def case(cell):
    kernel = cellgen.load(cell.definition.name)
    arguments = draw_arrays(kernel.sequence_forward.function, SIZES)
    backward = kernel.sequence_backward.function
    return arguments, draw_arrays(backward, SIZES, 1, optional=True)


@pytest.mark.parametrize("cell", each_of(of_all))
@pytest.mark.parametrize("omit", [False, True], ids=["all given", "unread left out"])
def test_terms_that_reach_every_state_give_the_whole_gradient(cell, omit):
    arguments, upstream = case(cell)
    options = {"lengths": LENGTHS, "reset": np.eye(5, 4, dtype=bool), "reverse": True}
    whole = gradients(cell, arguments, upstream, options)
    found = gradients(cell, arguments, upstream, options, 5, omit=omit)
    for name, array in whole._asdict().items():
        largest = np.max(np.abs(array), initial=1.0)
        assert np.max(np.abs(getattr(found, name) - array)) <= TOLERANCE * largest, name


@omitting
@pytest.mark.parametrize("limit", [0, 1, 3])
def test_initial_states_that_no_gradient_reads_may_be_left_out(cell, limit):
    arguments, upstream = case(cell)
    given = gradients(cell, arguments, upstream, {}, limit)
    left_out = gradients(cell, arguments, upstream, {}, limit, omit=True)
    for name, array in given._asdict().items():
        assert np.array_equal(getattr(left_out, name), array), name


@omitting
@pytest.mark.parametrize("limit", [0, 1, 3])
def test_every_loss_term_of_such_a_cell_reaches_the_given_number_of_states(cell, limit):
    expected, found = term_by_term(cell, NONE, limit), run(cell, NONE, bp_lim=limit)
    for gradient, array in expected.items():
        largest = np.max(np.abs(array), initial=1.0)
        assert np.max(np.abs(found[gradient] - array)) <= TOLERANCE * largest, gradient


@pytest.mark.parametrize("cell", [LSTM, SLSTM, LIF], ids=lambda c: c.definition.name)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("limit", [0, 1, 3])
def test_a_padded_row_has_the_gradients_that_it_has_alone(cell, reverse, limit):
    arguments, upstream = case(cell)
    found = gradients(
        cell, arguments, upstream, {"lengths": LENGTHS, "reverse": reverse}, limit
    )._asdict()
    kernel = cellgen.load(cell.definition.name)
    items = (
        *kernel.sequence_backward.function.arguments,
        *kernel.sequence_backward.function.results,
    )
    shapes = {item.name: item.shape for item in items}
    sums = {n: np.zeros_like(a) for n, a in found.items() if "B" not in shapes[n]}

    def alone(arrays, row):
        cut = {("T", "B"): (slice(LENGTHS[row]), slice(row, row + 1)), ("B",): slice(row, row + 1)}
        parts = {n: cut.get(tuple(x for x in shapes[n] if x in "TB"), ...) for n in arrays}
        return {n: np.ascontiguousarray(a[parts[n]]) for n, a in arrays.items()}

    for row in range(SIZES["B"]):
        one = gradients(
            cell, alone(arguments, row), alone(upstream, row), {"reverse": reverse}, limit
        )._asdict()
        expected = alone(found, row)
        for name, array in one.items():
            if name in sums:
                sums[name] += array
            else:
                assert np.max(np.abs(expected[name] - array), initial=0) <= TOLERANCE, name
    for name, array in sums.items():
        assert np.max(np.abs(found[name] - array)) <= TOLERANCE, name


# --- results that the caller gives ------------------------------------------------------------


def truncating(cell=LSTM, **options):
    """A call with ``bp_lim``, and its results as new arrays."""
    arguments, upstream = case(cell)
    kernel = cellgen.load(cell.definition.name)
    forward = kernel.sequence_forward(**arguments, **options, save=True)
    known = {**arguments, **forward._asdict()}
    named = [a.name for a in kernel.sequence_backward.function.arguments if a.name in known]
    call = {n: known[n] for n in named} | {"saved": forward.saved, **upstream, "bp_lim": 3}
    return kernel.sequence_backward, call, kernel.sequence_backward(**call)


def read_only(array):
    array.flags.writeable = False
    return array


WRONG_OUT = {
    "dtype": (lambda like, call: like.astype(np.float32), "out d_u_i is float32, but"),
    "integers": (lambda like, call: like.astype(np.int64), "out d_u_i has dtype int64"),
    "shape": (lambda like, call: np.empty((2, *like.shape)), "out d_u_i has 3 axes"),
    "width": (lambda like, call: np.empty((6, 7)), r"out d_u_i has shape \(6, 7\)"),
    "read-only": (lambda like, call: read_only(like.copy()), "out d_u_i is read-only"),
    "gaps": (lambda like, call: np.empty((6, 12))[:, ::2], "out d_u_i is not C-contiguous"),
    "argument": (lambda like, call: call["u_i"], "out d_u_i shares memory with the argument u_i"),
    "list": (lambda like, call: like.tolist(), "out d_u_i is a list"),
}


@pytest.mark.parametrize(("make", "message"), WRONG_OUT.values(), ids=WRONG_OUT.keys())
@pytest.mark.parametrize("batch_first", [False, True])
def test_results_to_write_into_are_checked_as_in_every_call(make, message, batch_first):
    backward, call, found = truncating()
    before = {name: array.copy() for name, array in call.items() if isinstance(array, np.ndarray)}
    wrong = make(found.d_u_i.copy(), call)
    if batch_first:
        for name in ("x", "h", "c", "d_h", "d_c"):
            call[name] = np.ascontiguousarray(call[name].swapaxes(0, 1))
    for limit in ({}, {"bp_lim": None}):
        with pytest.raises(ArgumentError, match=message):
            backward(**(call | limit), out={"d_u_i": wrong}, batch_first=batch_first)
    same = (n for n, array in before.items() if not np.array_equal(call[n], array))
    assert [n for n in same if n not in ("x", "h", "c", "d_h", "d_c")] == []


def test_one_array_for_two_results_is_refused():
    backward, call, found = truncating()
    one = np.empty_like(found.d_u_i)
    with pytest.raises(ArgumentError, match="out d_u_i shares memory with the result d_u_f"):
        backward(**call, out={"d_u_i": one, "d_u_f": one})


@pytest.mark.parametrize("inputs", [0, 3])
@pytest.mark.parametrize("options", [{}, {"reverse": True}, {"lengths": LENGTHS}])
@pytest.mark.parametrize("name", ["lstm", "elman", "min_gru"])
def test_results_are_the_same_whichever_the_caller_gives(name, inputs, options, monkeypatch):
    monkeypatch.setitem(SIZES, "I", inputs)
    cell = next(cell for cell in SHIPPED if cell.definition.name == name)
    rng = np.random.default_rng(0)
    backward, call, expected = truncating(cell, mask=rng.random((5, 4)) < 0.6, **options)
    kept = [array.copy() for array in expected]
    for _ in range(8):
        chosen = [n for n in expected._fields if rng.random() < 0.5]
        out = {n: np.full_like(getattr(expected, n), np.nan) for n in chosen}
        found = backward(**call, out=out)
        assert all(getattr(found, n) is array for n, array in out.items())
        assert all(np.array_equal(a, b) for a, b in zip(found, kept, strict=True))


def test_batch_first_results_are_written_in_place():
    backward, call, expected = truncating()
    timed = ("x", "h", "c", "d_h", "d_c")
    transposed = {n: np.ascontiguousarray(call[n].swapaxes(0, 1)) for n in timed}
    out = {"d_x": np.full_like(transposed["x"], np.nan), "d_u_i": np.full((6, 6), np.nan)}
    backward(**(call | transposed), out=out, batch_first=True)
    assert np.array_equal(out["d_x"], expected.d_x.swapaxes(0, 1))
    assert np.array_equal(out["d_u_i"], expected.d_u_i)


@pytest.mark.parametrize("sizes", [{"H": 0}, {"T": 0}, {"B": 0}, {"H": 0, "I": 0}])
@pytest.mark.parametrize("limit", [0, 3])
def test_truncation_of_nothing_gives_what_the_whole_gradient_is(sizes, limit, monkeypatch):
    for name, size in sizes.items():
        monkeypatch.setitem(SIZES, name, size)
    arguments, upstream = case(LSTM)
    whole = gradients(LSTM, arguments, upstream, {})
    found = gradients(LSTM, arguments, upstream, {}, limit)
    assert all(np.array_equal(a, b) for a, b in zip(found, whole, strict=True))
