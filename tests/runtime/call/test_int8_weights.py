"""Weights of products in int8, a scale for each output: what is rounded, and what is refused.

The truth is the kernel in float64 on ``scale * q``, which NumPy rounds (``tests/int8.py``).
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import cellgen
from cellgen import cells
from cellgen.errors import ArgumentError
from cellgen.runtime.build.compiler import compiler
from cellgen.runtime.build.half import half_products
from cellgen.runtime.kernel import Kernel
from cellgen.runtime.options import BF16, FULL, INT8
from cellgen.runtime.paths import include_folder
from tests.int8 import Arrays, dequantised, drawn, every_size, held, rounded, weights_of

CELLS = {"lstm": cells.LSTM, "gru": cells.GRU}
SIZES = (
    (1, 5, 33, 17),
    (30, 1, 16, 128),
    (3, 70, 64, 40),
    (4, 2, 0, 5),
    (3, 2, 7, 1),
    (1, 1, 1, 1),
)
"""Steps, rows, inputs, units: vectors that are not whole, one row, many, no inputs, one unit."""
FLOAT32_ROUNDING = 2e-6
"""Between sums of some hundred terms of size 1 that float32 adds in one order or another."""


def sized(sizes: tuple[int, int, int, int]) -> dict[str, int]:
    return dict(zip("TBIH", sizes, strict=True))


def split(kernel: Kernel, arrays: Arrays) -> tuple[Arrays, Arrays]:
    """Weights, and what a call with packed weights takes."""
    own = weights_of(kernel)
    return {n: arrays[n] for n in own}, {n: a for n, a in arrays.items() if n not in own}


def assert_same(found: Any, expected: Any) -> None:
    for name, array in expected._asdict().items():
        if array is not None:
            np.testing.assert_array_equal(getattr(found, name), array, err_msg=name)


def assert_near(found: Any, exact: Any, atol: float = FLOAT32_ROUNDING) -> None:
    for name, array in exact._asdict().items():
        if array is not None:
            np.testing.assert_allclose(getattr(found, name), array, atol=atol, err_msg=name)


# --- what is rounded --------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("cell", CELLS)
def test_results_are_those_of_float32_with_the_weights_that_int8_holds(
    cell: str, sizes: tuple[int, int, int, int]
) -> None:
    kernel, own = cellgen.load(cell), sized(sizes)
    arrays = drawn(kernel, own)
    exact = kernel.sequence_forward(**dequantised(CELLS[cell], arrays, own))
    assert_near(kernel.sequence_forward(**arrays, products=INT8), exact)
    weights, others = split(kernel, arrays)
    if max(sizes) > 10:  # weights as they are would be elsewhere
        plain = kernel.sequence_forward(**arrays)
        assert np.abs(plain.h - exact.h).max() > 100 * FLOAT32_ROUNDING
    packed = kernel.pack(**weights, products=INT8)
    for how in ({"packed": packed}, {"packed": packed, "products": INT8}):
        assert_same(
            kernel.sequence_forward(**others, **how),
            kernel.sequence_forward(**arrays, products=INT8),
        )


def test_ties_are_rounded_to_even_and_the_scale_is_the_largest_weight_by_127() -> None:
    """Sums of one product are exact: to the bit the kernel with the rounded weights."""
    kernel = cellgen.load("elman")
    halves = np.arange(-126.5, 127.5)[:, None] * np.ones(3)
    w = np.vstack([halves, np.full((1, 3), -127.0)]).astype(np.float32) * np.float32(0.5)
    arrays = {
        "x": np.eye(len(w), dtype=np.float32)[None] / 64,
        "h_prev": np.zeros((len(w), 3), np.float32),
        "w": w,
        "u": np.zeros((3, 3), np.float32),
        "b": np.zeros(3, np.float32),
    }
    q, scale = rounded(w)
    assert (scale == 0.5).all()
    assert {-126, -2, 0, 2, 4, 126} <= set(q[:, 0])
    assert not set(q[:-1, 0]) & {1, 3, 125}
    expected = kernel.sequence_forward(**{**arrays, "w": held(w).astype(np.float32)})
    assert_same(kernel.sequence_forward(**arrays, products=INT8), expected)


def test_sums_of_integers_are_exact() -> None:
    """With weights that are integers up to 127 every scale is 1, and float32 holds all sums."""
    kernel = cellgen.load("lstm")
    arrays, draw = drawn(kernel, sized((1, 9, 70, 37))), np.random.default_rng(1)
    for name in ("x", "h_prev", *weights_of(kernel)):
        most = 127 if arrays[name].ndim == 2 and name != "h_prev" else 9
        arrays[name] = draw.integers(-most, most + 1, arrays[name].shape).astype(np.float32)
        if arrays[name].ndim > 1:
            arrays[name][..., 0, :] = most
    arrays |= {n: a / np.float32(512) for n, a in arrays.items() if n in ("x", "h_prev")}
    expected = kernel.sequence_forward(**arrays)
    assert np.ptp(expected.c_last) > 1
    assert_same(kernel.sequence_forward(**arrays, products=INT8), expected)


@pytest.mark.parametrize("size", [1e-42, 1e-39, 1e-20, 1e20, 1e34], ids=str)
def test_rows_of_any_size(size: float) -> None:
    """Numbers of a row may differ by any factor: results are off by 2^-24 of the largest."""
    kernel, draw = cellgen.load("elman"), np.random.default_rng(3)
    w = draw.uniform(-1, 1, (70, 20)) / (size if size > 1 else 1)
    arrays = elman(w)
    arrays["x"] = (draw.uniform(-1, 1, (1, 4, 70)) * size).astype(np.float32)
    arrays["x"][0, 1, 1:] *= np.float32(1e-6)
    arrays["x"][0, 2] = 0
    held_by = dequantised(cells.Elman, arrays, every_size(kernel, sized((1, 4, 70, 20))))
    exact = kernel.sequence_forward(**held_by)
    found = kernel.sequence_forward(**arrays, products=INT8)
    largest = np.abs(exact.h).max(axis=-1, keepdims=True)
    assert (np.abs(found.h - exact.h) <= 2e-6 * largest + 1e-43).all()


def test_a_row_with_a_number_that_is_none_gives_none_and_no_other_does() -> None:
    kernel = cellgen.load("elman")
    for bad in (np.nan, np.inf, -np.inf):
        arrays = elman(np.random.default_rng(2).standard_normal((30, 20)))
        plain = kernel.sequence_forward(**arrays, products=INT8).h
        arrays["x"][0, 2, 17] = bad
        found = kernel.sequence_forward(**arrays, products=INT8).h
        assert (np.isnan(found[0, 2]) | (np.abs(found[0, 2]) == 1)).all()
        np.testing.assert_array_equal(np.delete(found, 2, axis=1), np.delete(plain, 2, axis=1))


def test_sums_do_not_overflow() -> None:
    """Numbers that are all the largest, at the most that sums of 32 bits hold, and beyond."""
    kernel = cellgen.load("elman")
    for inputs in (1 << 16, (1 << 16) + 5):
        arrays = elman(np.ones((inputs, 2)))
        for x in (1, -1):
            arrays["x"] = np.full((1, 4, inputs), x / inputs, np.float32)
            found = kernel.sequence_forward(**arrays, products=INT8).h
            np.testing.assert_allclose(found, np.tanh(np.full((1, 4, 2), x)), rtol=1e-4)


@pytest.mark.parametrize("cell", CELLS)
def test_a_hundred_steps_stay_near_float64(cell: str) -> None:
    """Weights are off by 1/254 of the largest of their column at most; states do not drift."""
    kernel = cellgen.load(cell)
    arrays = drawn(kernel, sized((100, 4, 32, 64)))
    exact = kernel.sequence_forward(**{n: a.astype(np.float64) for n, a in arrays.items()})
    found = kernel.sequence_forward(**arrays, products=INT8)
    assert np.abs(found.h - exact.h).max() < 0.03
    assert np.sqrt(np.mean((found.h - exact.h) ** 2)) < 0.003


# --- what changes no bit ----------------------------------------------------------------------


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("sizes", [(6, 4, 48, 64), (6, 60, 9, 40), (1, 33, 24, 200)], ids=str)
def test_results_are_equal_to_the_bit_for_any_threads_plan_and_layout(
    cell: str, sizes: tuple[int, int, int, int]
) -> None:
    kernel, own = cellgen.load(cell), sized(sizes)
    run = kernel.sequence_forward
    arrays = drawn(kernel, own)
    one = run(**arrays, products=INT8, threads=1)
    for threads in (2, 3):
        assert_same(run(**arrays, products=INT8, threads=threads), one)
    packed = kernel.pack(**split(kernel, arrays)[0], products=INT8)
    given = split(kernel, arrays)[1]
    plan = run.plan(threads=2, **own)
    for hoist in (False, True):
        how = replace(plan, by_units=True, hoist=hoist, unpacked=False)
        assert_same(run(**given, packed=packed, threads=2, plan=how), one)
    transposed = {**given, "x": np.ascontiguousarray(given["x"].swapaxes(0, 1))}
    found = run(**transposed, packed=packed, batch_first=True)
    np.testing.assert_array_equal(found.h.swapaxes(0, 1), one.h)
    np.testing.assert_array_equal(run(**given, packed=packed, last_only=True).h_last, one.h_last)
    bound = run.bind(**given, packed=packed)
    assert_same(bound(), one)
    for row, length in enumerate(range(1, 1 + min(3, sizes[0]))):
        some = run(**given, packed=packed, lengths=np.full(sizes[1], length))
        np.testing.assert_array_equal(some.h[:length, row], one.h[:length, row])


def test_steps_one_by_one_are_a_sequence() -> None:
    kernel = cellgen.load("gru")
    arrays = drawn(kernel, sized((5, 2, 9, 20)))
    weights, given = split(kernel, arrays)
    packed = kernel.pack(**weights, products=INT8)
    whole = kernel.sequence_forward(**given, packed=packed)
    state = given["h_prev"]
    for step in range(5):
        found = kernel.sequence_forward(x=given["x"][step : step + 1], h_prev=state, packed=packed)
        np.testing.assert_array_equal(found.h[0], whole.h[step])
        state = found.h_last


def test_packed_weights_travel_and_serve_arrays_of_16_bits() -> None:
    kernel = cellgen.load("gru")
    arrays = drawn(kernel, sized((5, 2, 9, 20)))
    weights, given = split(kernel, arrays)
    packed = pickle.loads(pickle.dumps(kernel.pack(**weights, products=INT8)))
    assert_same(
        kernel.sequence_forward(**given, packed=packed),
        kernel.sequence_forward(**arrays, products=INT8),
    )
    narrow = {n: a.astype(ml_dtypes.bfloat16) for n, a in given.items()}
    wide = {n: a.astype(np.float32) for n, a in narrow.items()}
    found = kernel.sequence_forward(**narrow, packed=packed).h
    assert found.dtype == ml_dtypes.bfloat16
    expected = kernel.sequence_forward(**wide, packed=packed).h.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(found, expected)


# --- memory -----------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", CELLS)
def test_packed_weights_take_a_quarter_and_a_scale_for_each_output(cell: str) -> None:
    """Of float32's bytes; in bfloat16 half of them, but in the tiles of float32."""
    kernel, own = cellgen.load(cell), sized((3, 2, 128, 256))
    weights, _ = split(kernel, drawn(kernel, own))
    sizes = []
    for products in (FULL, BF16, INT8):
        (layout,) = kernel.pack(**weights, products=products).layouts.values()
        sizes.append(layout.memory.bytes)
    matrices = [a for a in weights.values() if a.ndim == 2]
    numbers, outputs = sum(a.size for a in matrices), sum(a.shape[1] for a in matrices)
    of_bf16 = 4 if half_products(compiler(), include_folder()).way == "float32" else 2
    assert sizes[:2] == [4 * numbers, of_bf16 * numbers]
    assert numbers + 4 * outputs <= sizes[2] <= numbers + 10 * outputs  # by the machine


# --- what is unusual --------------------------------------------------------------------------


def elman(w: np.ndarray) -> Arrays:
    """An Elman step on four rows whose inputs are small, with such weights of inputs."""
    draw, units = np.random.default_rng(0), w.shape[1]
    return {
        "x": draw.standard_normal((1, 4, len(w))).astype(np.float32),
        "h_prev": np.zeros((4, units), np.float32),
        "w": w.astype(np.float32),
        "u": np.zeros((units, units), np.float32),
        "b": np.zeros(units, np.float32),
    }


@pytest.mark.parametrize("factor", [1e-45, 2.7e-43, 1e-40, 1e-38, 1e30, 3e37], ids=str)
def test_scales_of_any_size(factor: float) -> None:
    kernel = cellgen.load("elman")
    w = np.random.default_rng(2).uniform(-1, 1, (12, 20)) * factor
    w[:, 3], w[:, 5] = 0, [factor] + [0] * 11
    arrays = elman(w)
    arrays["x"] *= np.float32(min(1.0, 1e-3 / factor))
    exact = kernel.sequence_forward(
        **dequantised(cells.Elman, arrays, every_size(kernel, sized((1, 4, 12, 20))))
    )
    found = kernel.sequence_forward(**arrays, products=INT8)
    largest = np.abs(exact.h).max()
    np.testing.assert_allclose(found.h, exact.h, atol=2e-6 * largest + 1e-43)
    assert np.array_equal(found.h[..., 3], np.zeros((1, 4)))


def test_a_column_with_a_number_that_is_none_gives_such_results_and_no_other_does() -> None:
    kernel = cellgen.load("elman")
    for bad in (np.nan, np.inf, -np.inf):
        arrays = elman(np.random.default_rng(2).standard_normal((7, 20)))
        arrays["w"][4, 6] = bad
        found = kernel.sequence_forward(**arrays, products=INT8).h
        assert np.isnan(found[..., 6]).all()
        assert np.isfinite(np.delete(found, 6, axis=-1)).all()
        with pytest.raises(ArgumentError, match=r"elman\.pack: w\[4, 6\] is -?(nan|inf), expected"):
            kernel.pack(**split(kernel, arrays)[0], products=INT8)


def test_work_on_weights_alone_is_rounded_as_a_product_reads_it() -> None:
    """The antisymmetric RNN multiplies by ``u - u^T - gamma I``, which panels hold."""
    kernel, own = cellgen.load("antisymmetric_rnn"), sized((4, 3, 6, 21))
    arrays = drawn(kernel, own)
    plain = kernel.sequence_forward(**arrays)
    found = kernel.sequence_forward(**arrays, products=INT8)
    assert 1e-4 < np.abs(found.h - plain.h).max() < 0.02
    packed = kernel.pack(**split(kernel, arrays)[0], products=INT8)
    assert_same(kernel.sequence_forward(**split(kernel, arrays)[1], packed=packed), found)


@pytest.mark.parametrize("name", ["slstm_heads", "lstm_block_cell", "lstm_projection"])
def test_heads_slices_and_projections(name: str) -> None:
    _check_cell(name)


@pytest.mark.slow
@pytest.mark.parametrize("cell", cells.SHIPPED, ids=lambda cell: cell.definition.name)
def test_every_cell_runs_with_the_weights_that_int8_holds(cell: Any) -> None:
    _check_cell(cell.definition.name)


def _check_cell(name: str) -> None:
    """Three steps beside float64 on what int8 holds, packed or not, on one or two threads.

    As near as the kernel in float32 is, which has weights of 24 bits in their place.
    """
    kernel = cellgen.load(name)
    cell = next(c for c in cells.SHIPPED if c.definition.name == name)
    run = kernel.functions["sequence_forward"]
    own = every_size(kernel, {"T": 3, "B": 5, "I": 6, "H": 19})
    arrays = drawn(kernel, own)
    found = run(**arrays, products=INT8, threads=1)
    packed = kernel.pack(**split(kernel, arrays)[0], products=INT8)
    assert_same(run(**split(kernel, arrays)[1], packed=packed, threads=2), found)
    if name == "antisymmetric_rnn":
        return
    held_by = dequantised(cell, arrays, own)
    exact, plain = (run(**{n: a.astype(t) for n, a in held_by.items()}) for t in ("f8", "f4"))
    for label, array in exact._asdict().items():
        if array is not None:
            error, rounding = (
                np.abs(getattr(r, label) - array).max(initial=0) for r in (found, plain)
            )
            least = 1e-5 * max(1, np.abs(array).max(initial=0))
            assert error <= 8 * rounding + least, (name, label, error, rounding)


# --- what is refused --------------------------------------------------------------------------


def test_what_cannot_be_is_refused() -> None:
    kernel = cellgen.load("gru")
    arrays = drawn(kernel, sized((2, 3, 4, 5)))
    weights, given = split(kernel, arrays)
    packed = kernel.pack(**weights, products=INT8)
    wide = {n: a.astype(np.float64) for n, a in arrays.items()}
    with pytest.raises(ArgumentError, match=r"products is 'int8' and the arrays are float64"):
        kernel.sequence_forward(**wide, products=INT8)
    with pytest.raises(ArgumentError, match=r"gru\.pack: products is 'int8' and the arrays are f"):
        kernel.pack(**{n: wide[n] for n in weights}, products=INT8)
    for how in ({"packed": packed}, {"products": INT8}):
        of = given if "packed" in how else arrays
        for more in ({}, {"checkpoint": 1}):
            with pytest.raises(
                ArgumentError, match=r"gru\.sequence_forward: products is 'int8' and save is True"
            ):
                kernel.sequence_forward(**of, **how, save=True, **more)
        with pytest.raises(ArgumentError, match=r"products is 'int8' and save is True"):
            kernel.sequence_forward.bind(**of, **how, save=True)
    run = kernel.sequence_forward(**arrays, save=True)
    known = {**arrays, **run._asdict(), "d_h": run.h}
    names = [a.name for a in kernel.sequence_backward.function.arguments if not a.saved]
    back = {n: known[n] for n in names if n in known}
    for more in ({}, {"bp_lim": 1}):
        with pytest.raises(
            ArgumentError, match=r"gru\.sequence_backward: products is 'int8' and this is a back"
        ):
            kernel.sequence_backward(**back, saved=run.saved, products=INT8, **more)
    back = {n: a for n, a in back.items() if n not in weights}
    with pytest.raises(ArgumentError, match=r"products is 'int8' and this is a backward pass"):
        kernel.sequence_backward(**back, saved=run.saved, packed=packed)
    for products in (FULL, BF16):
        with pytest.raises(ArgumentError, match=rf"{products}', but packed was made for 'int8'"):
            kernel.sequence_forward(**given, packed=packed, products=products)
