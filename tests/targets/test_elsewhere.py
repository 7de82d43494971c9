"""Kernels on other machines: emulated arm64, WebAssembly under Node. Breadth: ``.ci/elsewhere``."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.elsewhere import inner_loop
from tests.elsewhere.__main__ import CELLS as SHIPPED
from tests.elsewhere.__main__ import run
from tests.elsewhere.machines import ElsewhereError, Machine, elsewhere, ran

ROOT = Path(__file__).parents[2]
MACHINES = {machine.name: machine for machine in elsewhere()}
CELLS = ("gru", "mlstm")
"""Two products a step, forward and a training step; a memory that is a matrix."""


def present(name: str) -> Machine:
    machine = MACHINES[name]
    if machine.missing:
        pytest.skip(f"{machine.missing} is not installed")
    return machine


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("name", ["arm64", "wasm"])
def test_steps_and_training_steps_are_the_same_elsewhere(name, cell, tmp_path) -> None:
    compared = run(present(name), cell, tmp_path)
    assert [one.label for one in compared if not one.ok] == []
    assert {one.label.split()[1] for one in compared} >= {"forward", "sequence_backward"}
    assert any(one.equal for one in compared)


@pytest.mark.slow
def test_programs_for_a_machine_that_is_not_here_are_linked(tmp_path: Path) -> None:
    assert present("macos-arm64").build("gru", tmp_path).stat().st_size > 100_000


@pytest.mark.slow
def test_no_tile_of_arm64_keeps_its_sums_in_memory() -> None:
    machine = present("arm64")
    if shutil.which(inner_loop.OBJDUMP["arm64"]) is None:
        pytest.skip("no objdump for arm64")
    found = {loop.tile: loop for loop in inner_loop.loops(machine, inner_loop.OBJDUMP["arm64"])}
    assert len(found) == 2 * 45
    for tile, loop in found.items():
        rows, vectors = map(int, re.findall(r"\d+", tile)[:2])
        assert loop.fma == rows * vectors
        assert loop.spills == 0
        # a load for each vector and each row at most, one comparison, one jump, three additions
        assert loop.count <= rows * vectors + rows + vectors + 5


@pytest.mark.parametrize("machine", ["Linux arm64: gcc", "WebAssembly "])
def test_the_page_counts_the_cells_that_ship(machine: str) -> None:
    """A cell that came later has to run there too, before the page says that all do."""
    text = (ROOT / "docs" / "how-to" / "elsewhere.md").read_text(encoding="utf-8")
    (row,) = (line for line in text.splitlines() if line.startswith(f"| {machine}"))
    assert row.split("|")[3].strip() == str(len(SHIPPED))


LISTING = """
0000000000000010 <cellgen_tile_1x1_f32>:
      10:\tldr\tq1, [x1]
      14:\tldr\ts0, [x2, x0]
      18:\tfmla\tv2.4s, v1.4s, v0.s[0]
      1c:\tstr\tq2, [sp, #16]
      20:\tnop
      24:\tb.ne\t10 <cellgen_tile_1x1_f32>  // b.any
      28:\tret
"""


def test_an_inner_loop_is_counted() -> None:
    (loop,) = inner_loop.loops_of(LISTING)
    assert (loop.tile, loop.count, loop.fma, loop.spills) == ("tile_1x1_f32", 6, 1, 1)


def test_a_program_that_does_not_end_is_named() -> None:
    with pytest.raises(ElsewhereError, match=r"no end after 0 s: sleep 9"):
        ran(["sleep", "9"], timeout=0.1)
