"""Row blocks: a batch is the sum of its row blocks to the bit, for every option and any threads."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import cellgen
from cellgen import Cell, H, I, Input, State, Weight, mean, sqrt, tanh
from cellgen.cells import (
    GRU,
    LSTM,
    SLSTM,
    FastGRNN,
    GRUBlockCell,
    LayerNormLSTM,
    SLSTMHeads,
)
from cellgen.cells.gru_dropout import GRUDropout
from cellgen.errors import ArgumentError, CellgenError
from cellgen.proof.threads import differing_bits
from cellgen.runtime.call import engine
from cellgen.runtime.call import over_time as call_over_time
from tests.awkward_cells import AWKWARD
from tests.conftest import Contexts
from tests.cover import in_turn
from tests.drawing import draw_arrays
from tests.random_cells import run_both

SIZES = {"T": 40, "B": 17, "I": 3, "H": 18, "K": 2, "D": 9, "M": 5, "N": 2}
"""40 steps of 17 rows are more than two chunks, and 17 rows are row blocks of 8 and 9."""
CELLS = (GRU, LSTM, GRUBlockCell, FastGRNN, LayerNormLSTM, SLSTM, SLSTMHeads, GRUDropout, Contexts)
FORMED_ONCE = {FastGRNN: ("d_zeta", "d_nu"), Contexts: ("d_rate",)}
"""Gradients of numbers: what all row blocks sum for each unit is added up over units at the end."""
RNG = np.random.default_rng(7)
LENGTHS = RNG.integers(0, 41, 17)
MASK = RNG.random((40, 17)) < 0.7
RESET = RNG.random((40, 17)) < 0.1

CASES = {
    "plain": {},
    "reverse": {"reverse": True},
    "lengths": {"lengths": LENGTHS},
    "window": {"window": 6},
    "all together": {
        "lengths": LENGTHS,
        "mask": MASK,
        "reset": RESET,
        "reverse": True,
        "window": 6,
    },
}

cells = pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.definition.name)


@cache
def kernel_of(cell: type[cellgen.Cell]) -> cellgen.Kernel:
    shipped = cell in cellgen.cells.SHIPPED
    return cellgen.load(cell.definition.name) if shipped else cellgen.compile(cell)


def arrays_of(cell: type[cellgen.Cell], dtype: type = np.float32) -> list[dict[str, np.ndarray]]:
    """Arguments of a forward pass, and upstream gradients."""
    kernel, rng = kernel_of(cell), np.random.default_rng(3)
    forward, backward = kernel.sequence_forward.function, kernel.sequence_backward.function
    found = [draw_arrays(forward, SIZES, rng), draw_arrays(backward, SIZES, rng, optional=True)]
    return [{name: array.astype(dtype) for name, array in group.items()} for group in found]


def batch_axes(cell: type[cellgen.Cell]) -> dict[str, int]:
    """Which axis of an argument or result is the batch, of those that have one."""
    kernel = kernel_of(cell)
    functions = (kernel.sequence_forward.function, kernel.sequence_backward.function)
    named = [a for function in functions for a in (*function.arguments, *function.results)]
    return {a.name: a.shape.index("B") for a in named if "B" in a.shape} | {
        "lengths": 0,
        "mask": 1,
        "reset": 1,
    }


def of_rows(values: dict, axes: dict[str, int], rows: slice) -> dict:
    return {
        name: value[(slice(None),) * axes[name] + (rows,)] if name in axes else value
        for name, value in values.items()
    }


@pytest.mark.parametrize(
    ("cell", "case"),
    in_turn({cell.definition.name: cell for cell in CELLS}, CASES.keys()),
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_batch_is_the_sum_of_its_row_blocks(cell, case, dtype):
    kernel, axes, options = kernel_of(cell), batch_axes(cell), CASES[case]
    arrays, given = arrays_of(cell, dtype)
    sizes = {name: SIZES[name] for name in kernel.sequence_backward.function.dims}
    assert kernel.sequence_backward.plan(**sizes, dtype=dtype).row_blocks == 2
    whole = run_both(cell, kernel, arrays, given, **options)
    first, second = (
        run_both(
            cell,
            kernel,
            *(of_rows(group, axes, rows) for group in (arrays, given)),
            **of_rows(options, axes, rows),
        )
        for rows in (slice(0, 8), slice(8, 17))
    )
    for name, found in whole.items():
        if name in axes:
            expected = np.concatenate([first[name], second[name]], axis=axes[name])
        elif name in FORMED_ONCE.get(cell, ()):
            # from the sums: in another order, which a few dozen roundings tell apart
            np.testing.assert_allclose(
                found, first[name] + second[name], rtol=80 * np.finfo(dtype).eps
            )
            continue
        else:
            expected = first[name] + second[name]
        assert np.all(np.isfinite(found)), name
        np.testing.assert_array_equal(found, expected, err_msg=name)


@pytest.mark.parametrize("cell", AWKWARD, ids=lambda cell: cell.definition.name)
def test_row_blocks_of_awkward_cells_have_the_bits_of_one_thread_with_all_options(cell):
    """Alone, shared by three threads by rows, and by units where the cell allows it."""
    kernel, rng = cellgen.compile(cell), np.random.default_rng(3)
    forward, backward = kernel.sequence_forward.function, kernel.sequence_backward.function
    arrays, given = (
        draw_arrays(forward, SIZES, rng),
        draw_arrays(backward, SIZES, rng, optional=True),
    )
    options = CASES["all together"]
    one, three = (
        run_both(cell, kernel, arrays, given, threads=threads, **options) for threads in (1, 3)
    )
    assert [n for n, array in one.items() if array.tobytes() != three[n].tobytes()] == []
    shares = differing_bits(kernel, arrays, given, SIZES, 3)
    assert not any(shares.values()), shares


@cells
@pytest.mark.parametrize("by_units", [False, True])
def test_any_number_of_threads_gives_the_same_bits(cell, by_units):
    """One thread has both row blocks, two have one each, more share them."""
    kernel = kernel_of(cell)
    arrays, given = arrays_of(cell)
    results = kernel.sequence_forward(**arrays, save=True)
    outputs = {str(v): getattr(results, str(v)) for v in cell.definition.outputs}
    sizes = {name: SIZES[name] for name in kernel.sequence_backward.function.dims}
    runs = []
    units_may_be_shared = cell not in (LayerNormLSTM, SLSTMHeads)
    for threads in (1, 2, 3, 5):
        plan = kernel.sequence_backward.plan(threads=threads, **sizes)
        if by_units and threads > 1:
            plan = replace(plan, by_units=units_may_be_shared, chunk_rows=51)
        found = kernel.sequence_backward(
            **arrays, **outputs, **given, saved=results.saved, threads=threads, plan=plan
        )
        runs.append([array.tobytes() for array in found])
    assert all(run == runs[0] for run in runs)


class Divided(Cell):
    """Sums over units of loops that divide: masked rows are left out of those."""

    x, h_prev, g, t, w = Input(I), State(H), Input(H), Input(1), Weight(I, H)

    v = sqrt((x @ w) ** 2 + 0.5)
    n = v / sqrt(mean(v**2))
    h = tanh(h_prev * g) * n / (t**2 + 1)

    outputs = h, v, n


@pytest.mark.usefixtures("compiled_as_by_users")
@pytest.mark.parametrize("steps", [1, 20])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_over_units_beside_a_division_have_the_same_bits_for_any_threads(steps, dtype):
    """Where GCC made two loops of one, what a row summed depended on where its thread began."""
    kernel, sizes = cellgen.compile(Divided), {"T": steps, "B": 2, "I": 3, "H": 18}
    for seed in range(10):
        rng = np.random.default_rng(seed)
        forward, backward = kernel.sequence_forward.function, kernel.sequence_backward.function
        arrays, given = (
            {n: a.astype(dtype) for n, a in draw_arrays(f, sizes, rng, optional=optional).items()}
            for f, optional in ((forward, False), (backward, True))
        )
        one, *others = (
            run_both(Divided, kernel, arrays, given, threads=threads) for threads in (1, 2, 3)
        )
        for other in others:
            for name, array in one.items():
                assert array.tobytes() == other[name].tobytes(), name


@cells
def test_row_blocks_follow_plans_and_packed_weights_to_the_bit(cell):
    kernel = kernel_of(cell)
    arrays, given = arrays_of(cell)
    results = kernel.sequence_forward(**arrays, save=True)
    outputs = {str(v): getattr(results, str(v)) for v in cell.definition.outputs}
    backward, saved = kernel.sequence_backward, results.saved
    weights = {a.name for a in kernel.sequence_forward.function.arguments if a.is_weight}
    packed = kernel.pack(**{name: a for name, a in arrays.items() if name in weights})
    unpacked = {name: a for name, a in arrays.items() if name not in weights}
    own = backward.plan(**{name: SIZES[name] for name in backward.function.dims})
    plans = [own, *(replace(own, chunk_rows=rows) for rows in (0, 9, 700))]
    runs = [backward(**arrays, **outputs, **given, saved=saved, plan=plan) for plan in plans]
    runs.append(backward(**unpacked, **outputs, **given, saved=saved, packed=packed))
    kept = [[array.tobytes() for array in found] for found in runs]
    assert all(run == kept[0] for run in kept)


def test_row_blocks_are_by_the_shape():
    plan = kernel_of(LSTM).sequence_backward.plan
    shapes = {
        (1000, 15, 64): 1,  # too few rows
        (1000, 16, 64): 2,
        (1000, 32, 64): 2,  # of 16 rows, whose tiles are higher
        (1000, 48, 64): 3,
        (1000, 500, 64): 4,  # the most
        (20, 16, 64): 1,  # fewer rows of all steps than two chunks have
        (1, 1000, 64): 1,  # one step
        (1000, 64, 128): 1,  # gradients of weights that leave the cache
    }
    for (steps, rows, units), row_blocks in shapes.items():
        for threads in (1, 2, 8):
            found = plan(T=steps, B=rows, I=units, H=units, threads=threads)
            assert found.row_blocks == row_blocks, (steps, rows, units)
    assert kernel_of(LSTM).sequence_forward.plan(T=1000, B=16, I=64, H=64).row_blocks == 1


def test_a_plan_of_other_row_blocks_is_refused():
    kernel = kernel_of(LSTM)
    arrays, given = arrays_of(LSTM)
    results = kernel.sequence_forward(**arrays, save=True)
    sizes = {name: SIZES[name] for name in kernel.sequence_backward.function.dims}
    plan = replace(kernel.sequence_backward.plan(**sizes), row_blocks=1)
    with pytest.raises(ArgumentError, match="plan"):
        kernel.sequence_backward(
            **arrays, h=results.h, c=results.c, **given, saved=results.saved, plan=plan
        )


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_a_call_that_is_ended_goes_on_with_no_other_chunk(threads, monkeypatch):
    """Asked before it begins, it ends before its first step; a chunk of 11 steps need not ask."""
    kernel, rng, sizes = kernel_of(LSTM), np.random.default_rng(3), SIZES | {"B": 51}
    backward = kernel.sequence_backward
    arrays = draw_arrays(kernel.sequence_forward.function, sizes, rng)
    results = kernel.sequence_forward(**arrays, save=True)
    dims = {name: sizes[name] for name in backward.function.dims}
    plan = backward.plan(**dims)
    assert (plan.row_blocks, plan.chunk_rows) == (3, 11 * 17)
    d_x = np.full_like(arrays["x"], 7)

    def asked_at_once(call, stop, label):
        stop[0] = 1
        return call()

    monkeypatch.setattr(engine, "LONG", 0)
    monkeypatch.setattr(call_over_time, "heeding_signals", asked_at_once)
    given = {**arrays, "h": results.h, "c": results.c, "saved": results.saved}
    with pytest.raises(CellgenError, match="returned 6"):
        backward(**given, d_h=np.ones_like(results.h), out={"d_x": d_x}, threads=threads)
    assert np.all(d_x == 7)
