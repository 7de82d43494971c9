"""Weights in bfloat16: products in bfloat16 read them where they lie, packed or not.

The truth is a call with the same numbers in float32: equal to the bit.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import pytest

import cellgen
from cellgen.cells import CIFG
from cellgen.errors import ArgumentError
from cellgen.pipeline import sequence_of
from cellgen.runtime.call.stored import as_stored, in_numpy, rounded, widened
from cellgen.runtime.options import BF16
from cellgen.schedule.operands import operands_alone
from tests.drawing import draw_arrays
from tests.runtime.call.test_half_storage import BFLOAT16, assert_rounded, assert_same

Seen: TypeAlias = Callable[[str, Any], Any]
CELLS = ("gru", "lstm_block_cell", "slstm_heads", "antisymmetric_rnn", "sru")
"""Several weights, slices of one, heads, work on weights alone, products ahead of the loop."""
SIZES = ((3, 2, 37, 41), (4, 5, 1, 7), (2, 3, 64, 96))
"""Steps, rows, inputs, units: pairs and vectors that are not whole, and those that are."""


def drawn(cell: str, sizes: tuple[int, ...]) -> dict[str, Any]:
    """Arguments in bfloat16; heads are as wide as units, two of them."""
    function = cellgen.load(cell).sequence_forward.function
    own = {**dict.fromkeys(function.dims, sizes[3]), "K": 2}
    own |= dict(zip("TBIH", sizes, strict=True))
    return draw_arrays(function, own, scale=0.3, dtype=BFLOAT16)


def weights_of(cell: str) -> list[str]:
    return [a.name for a in cellgen.load(cell).sequence_forward.function.arguments if a.is_weight]


def both(
    cell: str, arrays: dict[str, Any], out: str, seen: Seen = lambda _, array: array, **how: Any
) -> list[dict[str, Any]]:
    """A forward and a backward pass, results by name; arrays as ``seen`` has them."""
    kernel = cellgen.load(cell)
    given = {name: seen(name, array) for name, array in arrays.items()}
    run = kernel.sequence_forward(**given, save=True, **how)
    up = np.random.default_rng(1).standard_normal(getattr(run, out).shape)
    d_out = seen(f"d_{out}", up.astype(arrays["x"].dtype))
    known = {**given, **run._asdict(), f"d_{out}": d_out}
    names = [a.name for a in kernel.sequence_backward.function.arguments if not a.saved]
    back = {n: v for n, v in how.items() if n in ("packed", "products", "threads")}
    found = {n: known[n] for n in names if n in known}
    gradients = kernel.sequence_backward(**found, saved=run.saved, **back)
    return [run, gradients]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("cell", CELLS)
def test_weights_that_are_read_where_they_lie_give_the_same_bits(
    cell: str, sizes: tuple[int, ...]
) -> None:
    """Beside a call in which all that has no steps is widened before."""
    arrays = drawn(cell, sizes)
    out = cellgen.load(cell).sequence_forward.function.results[0].name
    found = both(cell, arrays, out, threads=2)
    functions = cellgen.load(cell).functions.values()
    timed = {
        item.name
        for function in functions
        for item in (*function.function.arguments, *function.function.results)
        if item.over_time
    }

    def seen(name: str, array: Any) -> Any:
        return as_stored(array) if name in timed else widened(array)

    wanted = both(cell, arrays, out, seen, threads=1, products=BF16)
    for one, two in zip(found, wanted, strict=True):
        for name, array in one._asdict().items():
            if name != "saved" and array is not None:
                wide = getattr(two, name)
                assert (wide.dtype == np.float32) == (name not in timed)
                narrow = in_numpy(wide if name in timed else rounded(wide, "bfloat16"))
                assert_same(array, narrow, name)


def test_pack_takes_weights_in_bfloat16() -> None:
    kernel, arrays = cellgen.load("gru"), drawn("gru", (30, 3, 9, 11))
    own = {n: arrays[n] for n in weights_of("gru")}
    inputs = {n: a for n, a in arrays.items() if n not in own}
    packed = kernel.pack(**own)
    assert packed.arguments["w_z"].dtype == BFLOAT16
    assert packed.weights.products == BF16
    wanted = both("gru", arrays, "h")
    for of in (packed, pickle.loads(pickle.dumps(packed))):
        for one, two in zip(both("gru", inputs, "h", packed=of), wanted, strict=True):
            assert_rounded(one, two, BFLOAT16)
    wide = {n: a.astype(np.float32) for n, a in arrays.items()}
    expected = both("gru", wide, "h", products=BF16)
    single = {n: wide[n] for n in inputs}
    for how in ({}, {"checkpoint": 7}):
        found = both("gru", single, "h", products=BF16, packed=packed, **how)
        for one, two in zip(found, expected, strict=True):
            for name, array in one._asdict().items():
                if name != "saved":
                    np.testing.assert_array_equal(array, getattr(two, name), err_msg=name)
    full = kernel.pack(**own, products="full")
    found = kernel.sequence_forward(**inputs, packed=full, products="full")
    assert_rounded(found, kernel.sequence_forward(**arrays, products="full"), BFLOAT16)
    half = {n: a.astype(np.float16) for n, a in arrays.items()}
    packed = kernel.pack(**{n: half[n] for n in own})
    found = kernel.sequence_forward(**{n: half[n] for n in inputs}, packed=packed)
    assert_rounded(found, kernel.sequence_forward(**half), np.float16)


def test_a_bound_call_reads_weights_that_have_changed() -> None:
    kernel, arrays = cellgen.load("gru"), drawn("gru", (5, 3, 9, 11))
    bound = kernel.sequence_forward.bind(**arrays)
    for factor in (1, 2):
        arrays["w_z"] *= ml_dtypes.bfloat16(factor)
        assert_rounded(bound(), kernel.sequence_forward(**arrays), BFLOAT16)


def test_weights_with_gaps_are_read_too() -> None:
    kernel, arrays = cellgen.load("gru"), drawn("gru", (5, 3, 9, 11))
    gaps = {**arrays, "w_z": np.ascontiguousarray(arrays["w_z"].T).T}
    assert_rounded(kernel.sequence_forward(**gaps), kernel.sequence_forward(**arrays), BFLOAT16)


def test_mixtures_are_refused() -> None:
    kernel, arrays = cellgen.load("gru"), drawn("gru", (5, 3, 9, 11))
    own = {n: arrays[n] for n in weights_of("gru")}
    with pytest.raises(
        ArgumentError, match=r"gru\.pack: u_z is a numpy.ndarray of float32, but w_"
    ):
        kernel.pack(**{**own, "u_z": own["u_z"].astype(np.float32)})


def test_operands_are_weights_that_products_alone_read() -> None:
    names = {str(v.name) for v in operands_alone(sequence_of(CIFG))}
    flags = {a.name for a in cellgen.load("cifg").sequence_forward.function.arguments if a.operand}
    assert names == flags
    assert not flags & {n for n in weights_of("cifg") if n.startswith("b")}
    for cell, name in (("antisymmetric_rnn", "u"), ("ind_rnn", "u"), ("elman", "b")):
        found = {a.name: a for a in cellgen.load(cell).sequence_forward.function.arguments}
        assert not found[name].operand, (cell, name)
