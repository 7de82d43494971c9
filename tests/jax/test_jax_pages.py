"""What a cell's page says of JAX runs, and every parameter has its gradient."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from cellgen.language.cell import Cell
from tests import page_code
from tests.cover import each_of, of_interface


@pytest.fixture(autouse=True)
def _single_precision() -> object:
    with jax.enable_x64(False):
        yield


@pytest.mark.parametrize("cell", each_of(of_interface))
def test_the_code_of_a_page_runs(cell: type[Cell]) -> None:
    names = page_code.run(cell, "JAX")
    drawn = names["start"].keys() & set(names["f"].params)
    assert names["gradients"].keys() == names["params"].keys() == drawn
    assert drawn
    for name, gradient in names["gradients"].items():
        assert gradient.shape == names["params"][name].shape, name
        assert np.isfinite(gradient).all(), name
