"""What a cell's page says of PyTorch runs, and what has a gradient gets it."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from cellgen.language.cell import Cell
from tests import page_code
from tests.cover import each_of, of_interface


@pytest.mark.parametrize("cell", each_of(of_interface))
def test_the_code_of_a_page_runs(cell: type[Cell]) -> None:
    names = page_code.run(cell, "PyTorch")
    backward = names["kernel"].functions["sequence_backward"].function
    derived = {result.name.removeprefix("d_") for result in backward.results}
    assert names["tensors"].keys() & derived
    for name in names["tensors"].keys() & derived:
        tensor = names["tensors"][name]
        assert tensor.grad is not None, name
        assert tensor.grad.shape == tensor.shape, name
        assert torch.isfinite(tensor.grad).all(), name
    if "layer" in names:
        output = names["output"]
        assert output.shape[:2] == (20, 8)
        assert output.isfinite().all()
