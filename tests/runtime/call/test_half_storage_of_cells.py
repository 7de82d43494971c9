"""Arrays of 16 bits of every cell: the results of float32, each rounded once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cellgen
from cellgen.cells import SHIPPED
from tests.drawing import draw_arrays
from tests.runtime.call.test_half_storage import TYPES, assert_rounded, assert_same, assert_saved

pytestmark = pytest.mark.slow

STEPS, ROWS = 700, 3
"""Some windows of steps: one has the steps of 192 rows, or what 256 KB hold."""
DRAW = np.random.default_rng(2)
MASK = DRAW.random((STEPS, ROWS)) > 0.3
RESET = MASK & (DRAW.random((STEPS, ROWS)) < 0.1)


@pytest.mark.parametrize("how", [{}, {"mask": MASK, "reset": RESET, "reverse": True}], ids=len)
@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("cell", SHIPPED, ids=lambda cell: cell.definition.name)
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_every_cell(cell: Any, dtype: Any, how: dict[str, Any]) -> None:
    kernel = cellgen.load(cell.definition.name)
    forward, backward = kernel.sequence_forward, kernel.sequence_backward
    sizes = {**dict.fromkeys(forward.function.dims, 8), "T": STEPS, "B": ROWS}
    narrow = draw_arrays(forward.function, sizes, scale=0.4, dtype=dtype)
    wide = {n: a.astype(np.float32) for n, a in narrow.items()}
    run = forward(**narrow, save=True, **how)
    truth = forward(**wide, save=True, products=TYPES[dtype], **how)
    assert_rounded(run, truth, dtype)
    assert_saved(kernel, run.saved, truth.saved, dtype)
    taken = [a for a in backward.function.arguments if not a.saved]
    upstream = draw_arrays(backward.function, sizes, 1, scale=0.4, dtype=dtype, optional=True)
    given = {**upstream, **narrow, **run._asdict()}
    given = {a.name: given[a.name] for a in taken if a.name in given}
    found = backward(**given, saved=run.saved, threads=1)
    again = backward(**given, saved=run.saved, threads=2)
    for name, array in found._asdict().items():
        assert_same(getattr(again, name), array, name)
    given = {n: a.astype(np.float32) for n, a in given.items()}
    saved = {n: a.astype(np.float32) for n, a in run.saved._asdict().items()}
    assert_rounded(found, backward(**given, saved=saved, products=TYPES[dtype], **how), dtype)
