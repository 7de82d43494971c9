"""Functions of JAX in an equation are answered with cellgen's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellgen.errors import DeclarationError
from cellgen.views.find import load_file


@pytest.mark.parametrize("equation", ["jnp.tanh(x)", "jnp.tanh(x + h_prev)", "jnp.add(x, h_prev)"])
def test_an_expression_given_to_jax_is_answered_on_the_command_line(
    equation: str, tmp_path: Path
) -> None:
    path = tmp_path / "body.py"
    path.write_text(
        "import jax.numpy as jnp\nfrom cellgen import *\nclass A(Cell):\n"
        f"    x, h_prev = Input(H), State(H)\n    h = {equation} + h_prev\n"
    )
    with pytest.raises(DeclarationError, match="cellgen's own: from cellgen import tanh") as told:
        load_file(path)
    assert str(told.value).endswith(f"h = {equation} + h_prev")
