"""Products of operands in bfloat16: what is rounded, how it is added, how far off it is."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import cellgen
from benchmarks import half_precision
from cellgen.errors import ArgumentError
from cellgen.proof.half_precision import BF16_ROUNDOFF
from cellgen.runtime.abi import axis_length
from cellgen.runtime.build.compiler import compiler
from cellgen.runtime.build.half import VARIABLE, WAYS, HalfProducts, half_products
from cellgen.runtime.options import BF16, FULL
from cellgen.runtime.paths import include_folder
from tests.drivers import with_its_own_driver

CELLS = ("lstm", "gru")
Arrays = dict[str, np.ndarray]


def rounded(array: np.ndarray) -> np.ndarray:
    """The nearest bfloat16 of each number, ties to even, as float32."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return nearest.astype(np.uint32).view(np.float32)


def drawn(
    cell: str, steps: int, rows: int, inputs: int, units: int, seed: int = 0, **more: int
) -> Arrays:
    function = cellgen.load(cell).sequence_forward.function
    draw = np.random.default_rng(seed)
    sizes = {"T": steps, "B": rows, "I": inputs, "H": units, **more}
    found = {}
    for item in function.arguments:
        axes = tuple(axis_length(axis, sizes) for axis in item.shape)
        scale = 1.0 if item.name == "x" else units**-0.5
        found[item.name] = (draw.standard_normal(axes) * scale).astype(np.float32)
    return found


def upstream(arrays: Arrays) -> Arrays:
    shape = (*arrays["x"].shape[:2], arrays["h_prev"].shape[-1])
    drawn = np.random.default_rng(1).standard_normal(shape)
    return {"d_h": rounded(drawn).astype(arrays["x"].dtype)}


def both(cell: str, arrays: Arrays, **how: Any) -> Arrays:
    """Outputs, final states and gradients, by name."""
    kernel, given = cellgen.load(cell), {**arrays, **upstream(arrays)}
    run = kernel.sequence_forward(**arrays, save=True, **how)
    known = {**given, **run._asdict()}
    names = [a.name for a in kernel.sequence_backward.function.arguments if not a.saved]
    back = kernel.sequence_backward(
        **{n: known[n] for n in names if n in known}, saved=run.saved, **how
    )
    return {n: a for n, a in {**run._asdict(), **back._asdict()}.items() if n != "saved"}


def assert_equal(found: Arrays, expected: Arrays) -> None:
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def with_ties(arrays: Arrays) -> Arrays:
    """Every third operand lies half-way between two bfloat16, above even and above odd ones."""
    found = dict(arrays)
    for name in ("x", "h_prev", *(n for n in arrays if n[0] in "wu")):
        bits = arrays[name].copy().view(np.uint32)
        flat = bits.reshape(-1)
        flat[::3] = (flat[::3] & 0xFFFF0000) | 0x8000
        found[name] = bits.view(np.float32)
    return found


# --- what is rounded --------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "inputs", "units"), [(5, 33, 17), (40, 16, 48)])
@pytest.mark.parametrize("way", [way for way in WAYS if way != "amx"])
def test_operands_are_rounded_to_the_nearest_and_their_products_added_in_order(
    way: str, rows: int, inputs: int, units: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """To the bit what float32 makes of rounded operands: truncated ones would differ everywhere.

    In every way but AMX, which adds groups of 32. A driver has one, which ``CELLGEN_BF16`` names.
    """
    monkeypatch.setenv(VARIABLE, way)
    if half_products(compiler(), include_folder()).way != way:
        pytest.skip(f"this machine has no {way}")
    arrays = with_ties(drawn("lstm", 1, rows, inputs, units))
    operands = {n: rounded(a) for n, a in arrays.items() if n[0] in "wux" or n == "h_prev"}
    kernel = with_its_own_driver(cellgen.load("lstm"), tmp_path)
    found = kernel.sequence_forward(**arrays, products=BF16)
    expected = kernel.sequence_forward(**{**arrays, **operands})
    assert_equal(found._asdict(), {"h": expected.h, "c": expected.c})
    cut = {n: (a.view(np.uint32) & 0xFFFF0000).view(np.float32) for n, a in arrays.items()}
    truncated = kernel.sequence_forward(**{**arrays, **{n: cut[n] for n in operands}})
    assert np.abs(truncated.h - expected.h).max() > BF16_ROUNDOFF / 4


def test_gradients_are_products_of_rounded_adjoints_weights_and_inputs() -> None:
    arrays = with_ties(drawn("lstm", 1, 21, 19, 18))
    given = {**arrays, "x": arrays["x"][0], "d_h": upstream(arrays)["d_h"][0]}
    found = both("lstm", arrays, products=BF16)
    kernel = cellgen.load("lstm")
    backward = kernel.backward.function
    given["c"] = found["c"][0]
    run = kernel.sequence_forward(**arrays, save=True, products=BF16)
    i, f, g, o = (np.asarray(getattr(run.saved, n)[0], np.float64) for n in "ifgo")
    assert {a.name for a in backward.arguments} >= {"d_h", "c"}
    tanh_c = np.tanh(given["c"].astype(np.float64))
    d_c = given["d_h"] * o * (1 - tanh_c**2)
    bars = {
        "i": d_c * g * i * (1 - i),
        "f": d_c * given["c_prev"] * f * (1 - f),
        "g": d_c * i * (1 - g**2),
        "o": given["d_h"] * tanh_c * o * (1 - o),
    }
    wide = {n: rounded(a).astype(np.float64) for n, a in arrays.items()}
    adjoints = {n: rounded(a.astype(np.float32)).astype(np.float64) for n, a in bars.items()}
    expected = {
        "d_x": sum(adjoints[n] @ wide[f"w_{n}"].T for n in bars)[None],  # type: ignore[index]
        "d_h_prev": sum(adjoints[n] @ wide[f"u_{n}"].T for n in bars),
        **{f"d_w_{n}": wide["x"][0].T @ adjoints[n] for n in bars},
        **{f"d_u_{n}": wide["h_prev"].T @ adjoints[n] for n in bars},
    }
    for name, array in expected.items():
        # float64 may round an adjoint to the other neighbour: a few do, by 2^-8 of their size
        close = np.isclose(found[name], array, rtol=1e-5, atol=1e-6 * np.abs(array).max())
        assert close.mean() > 0.9, (name, close.mean())
    for name, adjoint in bars.items():  # sums are not of rounded numbers
        np.testing.assert_allclose(found[f"d_b_{name}"], adjoint.sum(0), rtol=2e-5, atol=1e-6)


def test_infinities_and_what_is_no_number_stay_what_they_are() -> None:
    arrays = drawn("gru", 2, 3, 4, 5)
    arrays["x"][0, 0, 0], arrays["x"][0, 1, 0] = np.nan, np.inf
    arrays["x"].view(np.uint32)[0, 2, 1] = 0x7F800001  # all that says so is cut off by rounding
    found = cellgen.load("gru").sequence_forward(**arrays, products=BF16).h
    assert np.isnan(found[0, 0]).all()
    assert np.isnan(found[0, 2]).all()
    assert np.isfinite(found[0, 1]).all()


# --- what changes no bit ----------------------------------------------------------------------


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(
    "sizes", [(3, 7, 9, 21), (5, 1, 40, 24), (2, 70, 64, 200), (1, 33, 24, 40)], ids=str
)
def test_results_are_equal_to_the_bit_for_any_threads(
    cell: str, sizes: tuple[int, int, int, int]
) -> None:
    arrays = drawn(cell, *sizes)
    one = both(cell, arrays, products=BF16, threads=1)
    for threads in (2, 3):
        assert_equal(both(cell, arrays, products=BF16, threads=threads), one)


@pytest.mark.parametrize(
    "dtype", [ml_dtypes.bfloat16, np.float32], ids=lambda dtype: np.dtype(dtype).name
)
@pytest.mark.parametrize(
    ("cell", "sizes"),
    [
        ("lstm_projection", {"I": 70, "H": 40, "P": 37}),
        ("lem", {"I": 70, "H": 40}),
        ("rwkv6", {"H": 2, "R": 3, "N": 4, "D": 3, "K": 5}),
    ],
)
def test_threads_in_different_stages_keep_their_own_rounded_rows(
    cell: str, sizes: dict[str, int], dtype: Any
) -> None:
    """Threads that share rows are not in the same stage, and operands of stages differ in width."""
    kernel, draw = cellgen.load(cell), np.random.default_rng(0)
    run, back = kernel.sequence_forward, kernel.sequence_backward
    arguments = {a.name: a for a in (*back.function.arguments, *run.function.arguments)}
    drawn = {}
    for name in (n for n, a in arguments.items() if not (a.is_scalar or a.saved)):
        axes = [axis_length(x, {"T": 12, "B": 6, **sizes}) for x in arguments[name].shape]
        drawn[name] = (0.3 * draw.standard_normal(axes)).astype(dtype)
    arrays = {a.name: drawn[a.name] for a in run.function.arguments if not a.is_scalar}
    one = run(**arrays, save=True, products=BF16, threads=1)
    given = {**drawn, **one._asdict()}
    given = {a.name: given[a.name] for a in back.function.arguments if a.name in drawn}
    expected = back(**given, saved=one.saved, products=BF16, threads=1)._asdict()
    for threads in (2, 3) * 60:
        found = back(**given, saved=one.saved, products=BF16, threads=threads)
        assert_equal(found._asdict(), expected)


def test_results_do_not_depend_on_the_plan() -> None:
    """Threads that share units round rows together where these are many, each itself where few."""
    kernel = cellgen.load("gru")
    for rows in (4, 60):
        arrays = drawn("gru", 6, rows, 48, 64)
        one = kernel.sequence_forward(**arrays, products=BF16, threads=1).h
        plan = kernel.sequence_forward.plan(threads=2, T=6, B=rows, I=48, H=64)
        for hoist in (False, True):
            shared = replace(plan, by_units=True, hoist=hoist, unpacked=False)
            found = kernel.sequence_forward(**arrays, products=BF16, threads=2, plan=shared).h
            np.testing.assert_array_equal(found, one)


@pytest.mark.parametrize("cell", CELLS)
def test_chunks_and_row_blocks_change_no_bit_of_a_weight_gradient(cell: str) -> None:
    """Rows of many steps are added in pairs; chunks of an odd number of rows end within one."""
    arrays = drawn(cell, 40, 15, 10, 12)
    whole = both(cell, arrays, products=BF16)
    kernel, given = cellgen.load(cell), {**arrays, **upstream(arrays)}
    run = kernel.sequence_forward(**arrays, save=True, products=BF16)
    known = {**given, **run._asdict()}
    names = [a.name for a in kernel.sequence_backward.function.arguments if not a.saved]
    call = {n: known[n] for n in names if n in known}
    plan = kernel.sequence_backward.plan(threads=1, T=40, B=15, I=10, H=12)
    for rows in (15, 45):
        found = kernel.sequence_backward(
            **call, saved=run.saved, products=BF16, threads=1, plan=replace(plan, chunk_rows=rows)
        )
        assert_equal(found._asdict(), {n: whole[n] for n in found._fields})


def test_full_products_are_those_of_a_call_that_says_nothing() -> None:
    arrays = drawn("gru", 4, 5, 6, 7)
    assert_equal(both("gru", arrays, products=FULL), both("gru", arrays))


def test_layouts_and_packed_weights_change_no_bit() -> None:
    kernel, arrays = cellgen.load("lstm"), drawn("lstm", 6, 5, 9, 20)
    plain = kernel.sequence_forward(**arrays, products=BF16)
    weights = {
        a.name: arrays[a.name] for a in kernel.sequence_forward.function.arguments if a.is_weight
    }
    packed = kernel.pack(**weights, products=BF16)
    states = {n: arrays[n] for n in ("x", "h_prev", "c_prev")}
    found = kernel.sequence_forward(**states, packed=packed, products=BF16)
    assert_equal(found._asdict(), {n: a for n, a in plain._asdict().items() if n != "saved"})
    transposed = {**arrays, "x": np.ascontiguousarray(arrays["x"].swapaxes(0, 1))}
    found = kernel.sequence_forward(**transposed, products=BF16, batch_first=True)
    np.testing.assert_array_equal(found.h.swapaxes(0, 1), plain.h)
    lengths = np.array([6, 3, 0, 5, 1])
    some = kernel.sequence_forward(**arrays, products=BF16, lengths=lengths)
    for row, length in enumerate(lengths):
        np.testing.assert_array_equal(some.h[:length, row], plain.h[:length, row])


def test_gradients_row_by_row_are_those_of_each_row_alone() -> None:
    arrays = drawn("gru", 5, 3, 6, 8)
    kernel, given = cellgen.load("gru"), {**arrays, **upstream(arrays)}
    names = [a.name for a in kernel.sequence_backward.function.arguments if not a.saved]

    def gradients(arrays: Arrays, **how: Any) -> Any:
        run = kernel.sequence_forward(
            **{n: a for n, a in arrays.items() if n != "d_h"}, save=True, products=BF16
        )
        known = {**arrays, **run._asdict()}
        return kernel.sequence_backward(
            **{n: known[n] for n in names if n in known}, saved=run.saved, products=BF16, **how
        )

    rows = gradients(given, per_row=True)
    for row in range(3):
        own = {
            n: np.ascontiguousarray(a[:, row : row + 1]) for n, a in given.items() if a.ndim == 3
        }
        own["h_prev"] = given["h_prev"][row : row + 1]
        alone = gradients({**given, **own})
        np.testing.assert_array_equal(rows.d_w_z[row], alone.d_w_z)
        np.testing.assert_array_equal(rows.d_u_n[row], alone.d_u_n)


@pytest.mark.parametrize("sizes", [(0, 3, 4, 5), (3, 0, 4, 5), (3, 2, 0, 5)], ids=str)
def test_empty_axes_are_those_of_full_products(sizes: tuple[int, int, int, int]) -> None:
    arrays = drawn("gru", *sizes)
    found, expected = both("gru", arrays, products=BF16), both("gru", arrays)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, atol=0.05, err_msg=name)


# --- how far off ------------------------------------------------------------------------------

PEER = {
    "lstm": {
        "h": 3.79e-03,
        "h_last": 4.91e-03,
        "c_last": 1.85e-03,
        "d_x": 4.14e-03,
        "d_h_prev": 3.15e-03,
        "d_c_prev": 5.78e-03,
        "d_w_i": 3.18e-03,
        "d_w_f": 3.45e-03,
        "d_w_g": 4.33e-03,
        "d_w_o": 4.57e-03,
        "d_u_i": 3.21e-03,
        "d_u_f": 7.06e-03,
        "d_u_g": 4.84e-03,
        "d_u_o": 2.80e-03,
        "d_b_i": 4.18e-03,
        "d_b_f": 2.72e-03,
        "d_b_g": 4.21e-03,
        "d_b_o": 1.57e-03,
    },
    "gru": {
        "h": 7.74e-03,
        "h_last": 5.82e-03,
        "d_x": 6.66e-03,
        "d_h_prev": 4.87e-03,
        "d_w_r": 5.51e-03,
        "d_w_z": 6.43e-03,
        "d_w_n": 6.59e-03,
        "d_u_r": 7.74e-03,
        "d_u_z": 8.05e-03,
        "d_u_n": 1.27e-02,
        "d_b_r": 9.33e-03,
        "d_b_z": 5.26e-03,
        "d_b_n": 5.26e-03,
    },
}
"""How far torch.nn.LSTM and GRU in bfloat16 are from float64, of the largest entry of each array,
for ``drawn_bf16``: ``python -m tests.torch.test_half_precision``, torch 2.13 on a Zen 4."""


def drawn_bf16(cell: str, seed: int = 0) -> Arrays:
    """Arguments that bfloat16 holds exactly, as torch takes them."""
    return {n: rounded(a) for n, a in drawn(cell, 20, 8, 16, 32, seed).items()}


def errors_of(cell: str, arrays: Arrays, found: Arrays) -> dict[str, float]:
    """The largest difference from float64 of each array, of its largest entry."""
    exact = both(cell, {n: a.astype(np.float64) for n, a in arrays.items()})
    return {n: float(np.abs(a - exact[n]).max() / np.abs(exact[n]).max()) for n, a in found.items()}


@pytest.mark.parametrize("cell", CELLS)
def test_no_array_is_further_from_float64_than_that_of_torch_in_bfloat16(cell: str) -> None:
    arrays = drawn_bf16(cell)
    mine = errors_of(cell, arrays, both(cell, arrays, products=BF16))
    assert {n: (mine[n], peer) for n, peer in PEER[cell].items() if mine[n] > peer} == {}


# --- what is refused --------------------------------------------------------------------------


def test_what_cannot_be_is_refused() -> None:
    kernel, arrays = cellgen.load("gru"), drawn("gru", 2, 3, 4, 5)
    wide = {n: a.astype(np.float64) for n, a in arrays.items()}
    with pytest.raises(
        ArgumentError,
        match=r"gru\.sequence_forward: products is 'bf16' and the arrays are float64, expected",
    ):
        kernel.sequence_forward(**wide, products=BF16)
    with pytest.raises(ArgumentError, match=r"products is 'bf17', expected one of 'full', 'bf16'"):
        kernel.sequence_forward(**arrays, products="bf17")
    weights = {
        a.name: arrays[a.name] for a in kernel.sequence_forward.function.arguments if a.is_weight
    }
    with pytest.raises(
        ArgumentError, match=r"gru\.pack: products is 'bf16' and the arrays are float64"
    ):
        kernel.pack(**{n: a.astype(np.float64) for n, a in weights.items()}, products=BF16)
    packed = kernel.pack(**weights, products=BF16)
    given = {n: arrays[n] for n in ("x", "h_prev")}
    with pytest.raises(ArgumentError, match=r"products is 'full', but packed was made for 'bf16'"):
        kernel.sequence_forward(**given, packed=packed, products=FULL)
    with pytest.raises(ArgumentError, match=r"products is 'bf16', but packed was made for 'full'"):
        kernel.sequence_forward(**given, packed=kernel.pack(**weights), products=BF16)


@pytest.mark.parametrize("named", [None, "", "avx512"])
def test_the_benchmark_leaves_the_name_of_a_way_as_it_is(
    named: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if named is not None:
        monkeypatch.setenv(VARIABLE, named)

    def machine(*_: object) -> HalfProducts:
        way = os.environ.get(VARIABLE)
        return HalfProducts(way if way == "float32" else "amx", "")

    monkeypatch.setattr(half_precision, "half_products", machine)
    monkeypatch.setattr(half_precision, "compiler", lambda: None)
    assert half_precision.ways_here() == ["amx", "float32"]
    assert os.environ.get(VARIABLE) == named


def test_steps_that_are_computed_once_more_are_in_the_products_of_their_run() -> None:
    kernel, arrays = cellgen.load("gru"), drawn("gru", 9, 4, 6, 8)
    names = [a.name for a in kernel.sequence_backward.function.arguments if not a.saved]
    found = []
    for how in ({}, {"checkpoint": 4}):
        run = kernel.sequence_forward(**arrays, save=True, products=BF16, **how)
        known = {**arrays, **run._asdict(), **upstream(arrays)}
        given = {n: known[n] for n in names if n in known}
        for products in (BF16, FULL):
            found.append(
                kernel.sequence_backward(**given, saved=run.saved, products=products)._asdict()
            )
    assert_equal(found[2], found[0])
    assert_equal(found[3], found[1])


def test_numbers_of_16_bits_in_swapped_bytes_are_refused_by_name() -> None:
    function = cellgen.load("gru").sequence_forward
    shapes = cellgen.load("gru").shapes(T=2, B=2, I=3, H=4)
    names = [item.name for item in function.function.arguments]
    arrays = {name: np.ones(shapes[name], ">f2") for name in names}
    with pytest.raises(ArgumentError, match="x has dtype >f2"):
        function(**arrays)
