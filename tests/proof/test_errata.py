"""TensorFlow's published GRU gradients are wrong in six places; the derived ones are exact."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from cellgen.proof import goldens
from examples import tensorflow_gru_errata as errata


@pytest.fixture(scope="module")
def lines() -> list[errata.Line]:
    return errata.table()


def test_every_published_error_is_reproduced(lines: list[errata.Line]) -> None:
    published = [line for line in lines if line.source == "published"]
    assert len(published) == 7
    wrong = [line.error for line in published if line.error is not None]
    assert sorted(math.isinf(error) for error in wrong) == [False] * 4 + [True] * 2
    assert min(wrong) > 0.3  # golden/README.md found 0.3 to 3.8 on other points


def test_every_derived_gradient_is_exact(lines: list[errata.Line]) -> None:
    derived = [line for line in lines if line.source == "cellgen" and line.error is not None]
    assert len(derived) == 7
    assert max(line.error for line in derived) <= 1e-13


def test_the_command_prints_the_table_and_exits_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert errata.main() == 0
    printed = capsys.readouterr().out
    assert "d_h_prev = d_h_prev_component_1 + d_h_prevr o r + u" in printed
    assert "d_h_prev = d_h * u + d_h_prev_r * r + d_h_prev_1" in printed
    assert max(map(len, printed.splitlines())) <= 140


def test_the_command_exits_1_when_a_derived_gradient_is_wrong(
    lines: list[errata.Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = [replace(line, error=0.5) if line.note == "exact" else line for line in lines]
    monkeypatch.setattr(errata, "table", lambda: bad)
    assert errata.main() == 1


def test_tensorflows_kernel_agrees_with_the_derived_gradients_not_with_its_text() -> None:
    root = goldens.folder()
    assert root is not None
    z, _ = goldens.read(root / "tf" / "gru_block_cell_a.npz")
    d_u_bar = np.hsplit(z["d_r_bar_u_bar"], 2)[1]
    published = z["d_h"] * (z["h"] - z["c"]) * z["u"] * (1 - z["u"])
    derived = z["d_h"] * (z["h_prev"] - z["c"]) * z["u"] * (1 - z["u"])
    assert errata.relative(published, d_u_bar) > 0.1
    assert errata.relative(derived, d_u_bar) < 1e-6  # float32, a dozen roundings
