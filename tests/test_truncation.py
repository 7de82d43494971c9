"""Truncation term by term, ``bp_lim``: for every cell, and for every row as if it were alone."""

from __future__ import annotations

import numpy as np
import pytest

import cellgen
from cellgen.cells import LIF, LSTM, SHIPPED, SLSTM, SLSTMExp
from cellgen.runtime.abi import axis_length
from cellgen.runtime.call.over_time import NONE
from tests.test_options import run, term_by_term

SIZES = {"T": 5, "B": 4, "I": 3, "H": 6, "P": 2, "K": 2, "D": 3, "M": 4, "R": 2}
TOLERANCE = 1e-11  # float64, sums of some hundred terms over five steps, in another order
LENGTHS = [5, 2, 0, 3]

omitting = pytest.mark.parametrize("cell", [LIF, SLSTMExp], ids=lambda c: c.definition.name)


def draw(items, seed):
    rng = np.random.default_rng(seed)
    return {
        a.name: rng.standard_normal([axis_length(axis, SIZES) for axis in a.shape]) * 0.5
        for a in items
        if not a.is_scalar and not a.saved
    }


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
    arguments = draw(kernel.sequence_forward.function.arguments, 0)
    backward = kernel.sequence_backward.function
    return arguments, draw([a for a in backward.arguments if a.optional], 1)


@pytest.mark.parametrize("cell", SHIPPED, ids=lambda c: c.definition.name)
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
