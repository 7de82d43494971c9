"""Functions of PyTorch in an equation are answered with cellgen's own."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from cellgen import Cell, H, Input, State  # noqa: E402
from cellgen.errors import DeclarationError  # noqa: E402
from cellgen.views.find import load_file  # noqa: E402


def test_a_value_given_to_torch_is_answered_where_it_stands() -> None:
    with pytest.raises(DeclarationError, match="cellgen's own: from cellgen import tanh") as told:

        class A(Cell):
            x, h_prev = Input(H), State(H)
            h = torch.tanh(x) + h_prev

    assert "A: TypeError: torch.tanh takes arrays" in str(told.value)
    assert str(told.value).endswith("h = torch.tanh(x) + h_prev")


def test_an_expression_given_to_torch_is_answered_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "body.py"
    path.write_text(
        "import torch\nfrom cellgen import *\nclass A(Cell):\n"
        "    x, h_prev = Input(H), State(H)\n    h = torch.tanh(x + h_prev)\n"
    )
    with pytest.raises(DeclarationError, match="cellgen's own: from cellgen import tanh"):
        load_file(path)
