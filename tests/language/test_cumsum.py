"""``cumsum``: an operator that is two rows of the table and a routine of each target."""

from __future__ import annotations

import numpy as np
import pytest

from cellgen import Bias, Cell, H, I, Input, State, Weight, api, cumsum, max, split, tanh
from cellgen.errors import DeclarationError
from cellgen.language.latex import latex
from cellgen.language.notation import text
from cellgen.language.value import Value
from cellgen.pipeline import programs_of, recurrence
from cellgen.program.interpret import interpret
from cellgen.program.recurrence import RecurrenceClass
from cellgen.proof import check
from tests.conftest import ColumnParts, Cumulated, draw


class CumulatedUnits(Cell):
    """Along the units of a state, of a product and of a weight."""

    x, h_prev, w, v = Input(I), State(H), Weight(I, H), Bias(H)

    h = tanh(cumsum(h_prev * v) + cumsum(x @ w)) + cumsum(v)


class ColumnMaxima(Cell):
    """Maxima over columns of a weight that lie beside those of others; a step's functions only."""

    x, h_prev, w = Input(I), State(H), Weight(I, 2 * H)

    a, b = split(w, 2)
    h = tanh(x @ (max(b) * a) + h_prev)


CELLS = pytest.mark.parametrize("cell", [CumulatedUnits, Cumulated])


def test_each_unit_is_the_sum_up_to_it() -> None:
    forward, _ = programs_of(Cumulated).mathematics
    given = draw(forward.arguments, sizes={"B": 2, "I": 3, "K": 2, "D": 4})
    product = np.einsum("bi,ikd->bkd", given["x"], given["w"])
    product += np.einsum("bkd,kde->bke", given["h_prev"], given["r"])
    found = interpret(forward, given, {"B": 2, "I": 3, "K": 2, "D": 4})["h"]
    expected = np.tanh(np.stack([product[..., : k + 1].sum(-1) for k in range(4)], axis=-1))
    np.testing.assert_allclose(found, expected, rtol=1e-14)  # a sum of a dozen terms


@pytest.mark.parametrize("cell", [CumulatedUnits, Cumulated, ColumnParts, ColumnMaxima])
def test_its_kernels_agree_with_the_equations_and_with_complex_steps(cell: type[Cell]) -> None:
    report = check.check(cell)
    judged = [row for row in report.rows if row.verdict != "skipped"]
    assert [row.name for row in judged if not row.ok] == []
    proved = {row.name for row in judged}
    assert proved >= {"backward by complex step", "C float32 forward", "C float64 weight_gradients"}
    over_time = {"C float32 sequence_forward", "C sequence_backward with options"}
    assert proved >= over_time or cell is ColumnMaxima


@pytest.mark.usefixtures("compiled_as_by_users")
@CELLS
def test_its_sums_are_the_same_for_any_number_of_threads(cell: type[Cell]) -> None:
    kernel, rng = api.compile(cell), np.random.default_rng(3)
    shapes = {"x": (7, 5, 9), "w": (9, 4, 8), "r": (4, 8, 8), "h_prev": (5, 4, 8)}
    if cell is CumulatedUnits:
        shapes = {"x": (7, 5, 9), "w": (9, 17), "v": (17,), "h_prev": (5, 17)}
    given = {n: 0.3 * rng.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    alone, crowd = (
        kernel.sequence_forward(**given, threads=threads, save=True) for threads in (1, 4)
    )
    np.testing.assert_array_equal(alone.h, crowd.h)
    above = np.ones_like(alone.h)
    back, shared = (
        kernel.sequence_backward(**given, h=run.h, saved=run.saved, d_h=above, threads=threads)
        for run, threads in ((alone, 1), (crowd, 4))
    )
    np.testing.assert_array_equal(back.d_x, shared.d_x)
    np.testing.assert_array_equal(back.d_w, shared.d_w)


def test_units_that_are_summed_depend_on_each_other_and_heads_do_not() -> None:
    assert recurrence(CumulatedUnits).kind is RecurrenceClass.DENSE
    assert recurrence(Cumulated).kind is RecurrenceClass.BLOCK_DIAGONAL


def test_it_is_printed_as_it_is_written() -> None:
    x: Value = CumulatedUnits.definition.declared[0]
    assert text(cumsum(x)) == "cumsum(x)"
    assert latex(cumsum(x)) == r"\mathrm{cumsum}\left(x\right)"


def test_a_scalar_has_no_units_to_sum_along() -> None:
    with pytest.raises(DeclarationError, match=r"Scalars: .*cumsum along the units of a scalar"):

        class Scalars(Cell):
            x, h_prev = Input(H), State(H)
            h = x + cumsum(2 * H) * h_prev
