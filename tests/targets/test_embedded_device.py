"""Exports on an emulated Cortex-M4F: the bits of the desktop, and no arithmetic in double."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cellgen.cells import SHIPPED
from cellgen.language.cell import definition_of
from tests.embedded.device import HAS_BOARD, TABLE, measured, on_board

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not HAS_BOARD,
        reason="needs gcc-arm-none-eabi, libnewlib-arm-none-eabi and qemu-system-arm",
    ),
]

OF_THE_LIBRARY = {"sinf", "cosf", "powf", "erff", "atan2f"}
"""Functions whose last bits are each library's own."""

BAR = 2.0**-17
"""Of the largest entry, where the two libraries differ: the bar of float32 over time."""

CELLS = {definition_of(cell).name: cell for cell in SHIPPED}


@pytest.mark.parametrize("name", sorted(CELLS))
def test_the_board_gives_the_bits_of_the_desktop(name: str, tmp_path: Path) -> None:
    found, expected, called = on_board(CELLS[name], tmp_path)
    assert not [symbol for symbol in called if symbol.startswith(("__aeabi_d", "__aeabi_f2d"))]
    for one, other in zip(found, expected, strict=True):
        assert np.isfinite(other).all()
        if called & OF_THE_LIBRARY:
            assert np.abs(one - other).max() <= BAR * np.abs(other).max()
        else:
            np.testing.assert_array_equal(one, other)


def test_counted_instructions_are_near_what_the_document_says() -> None:
    """A step of 3840 multiplications and additions, of which each takes four or five."""
    found = measured(*TABLE[0], False, ("-Os",))
    assert 3840 * 3 < found["instructions"] < 3840 * 6
    assert found["code"] < 2000
    assert found["stack"] < 300


def test_the_example_adapts_on_the_board_as_it_does_here() -> None:
    script = Path(__file__).parents[2] / "examples/embedded/digits.py"
    found = []
    for place in ((), ("--here",)):
        command = (sys.executable, script, "--json", *place)
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found.append(json.loads(done.stdout))
    board, here = found
    assert (board.pop("place"), here.pop("place")) == ("device", "here")
    assert board == here
    assert board["usual"] > 0.93
    assert board["moved"] < 0.5
    assert board["adapted"] > 0.8
