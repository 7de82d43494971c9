"""A row's results do not depend on the rows beside it, to the bit: every cell, any batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

import cellgen
from tests.cover import each_name_of, of_all
from tests.drawing import draw_arrays

SIZES = {"T": 3, "B": 37, "I": 19, "H": 36, "K": 4, "D": 9, "M": 5, "N": 4}
"""37 rows are whole tiles and a rest; H and I go beyond two vectors of any machine, with a rest."""
OTHER = 6
BATCHES = ([0], [36], [5, 3], [4, 5, 6, 7], [30, 2, 11, 12, 13, 14, 15, 16, 1, 0, 9], [*range(20)])
"""One row, the last one, rows in another order, as many as a tile has, more, and half of them."""

Arrays = Mapping[str, np.ndarray]


class Rows:
    """Calls of a kernel over time with some rows of the same arrays."""

    def __init__(self, name: str, dtype: type) -> None:
        self.kernel, rng = cellgen.load(name), np.random.default_rng(3)
        self.forward = self.kernel.sequence_forward.function
        self.backward = self.kernel.sequence_backward.function
        both = self.forward, self.backward
        sizes = {dim: SIZES.get(dim, OTHER) for function in both for dim in function.dims}
        arguments, upstream = (
            draw_arrays(function, sizes, rng, dtype=dtype, optional=optional)
            for function, optional in ((self.forward, False), (self.backward, True))
        )
        self.arguments = arguments
        self.upstream = {n: a for n, a in upstream.items() if n.startswith("d_")}
        self.axes = {
            item.name: item.shape.index("B")
            for function in both
            for item in (*function.arguments, *function.results)
            if "B" in item.shape
        }

    def taken(self, arrays: Arrays, rows: Sequence[int]) -> dict[str, np.ndarray]:
        return {
            n: np.take(a, rows, self.axes[n]) if n in self.axes else a for n, a in arrays.items()
        }

    def results(self, rows: Sequence[int], threads: int, **options: str) -> dict[str, np.ndarray]:
        """Outputs, and gradients that every row has of its own."""
        given = self.taken(self.arguments, rows)
        run = self.kernel.sequence_forward(**given, save=True, threads=threads, **options)
        found = {r.name: getattr(run, r.name) for r in self.forward.results if not r.saved}
        read = {a.name: found[a.name] for a in self.backward.arguments if a.name in found}
        upstream = self.taken(self.upstream, rows)
        gradients = self.kernel.sequence_backward(
            **given, **read, **upstream, saved=run.saved, threads=threads, **options
        )
        return found | {
            r.name: getattr(gradients, r.name) for r in self.backward.results if r.name in self.axes
        }


def assert_rows_are_alone(rows: Rows, **options: str) -> None:
    whole = rows.results(range(SIZES["B"]), 2, **options)
    assert whole
    for batch in BATCHES:
        for name, array in rows.results(batch, 1, **options).items():
            expected = np.take(whole[name], batch, rows.axes[name])
            assert array.tobytes() == expected.tobytes(), (name, batch)


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", each_name_of(of_all))
def test_a_row_has_the_bits_that_it_has_alone(name: str, dtype: type) -> None:
    assert_rows_are_alone(Rows(name, dtype))


@pytest.mark.parametrize("name", ["gru", "lstm", "mlstm"])
def test_products_in_bfloat16_keep_rows_alone_as_well(name: str) -> None:
    assert_rows_are_alone(Rows(name, np.float32), products="bf16")
