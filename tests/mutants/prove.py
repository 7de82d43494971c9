"""Prove cells until one is refused: ``python -m tests.mutants.prove CELL...``; exit code 1 then.

With ``--sources`` first nothing is proved: printed is a digest of what is generated of the cells.
With ``--write`` alone the cells that ship are generated, where tests load them from.
"""

from __future__ import annotations

import sys
from hashlib import sha256

import cellgen.cells
from cellgen.errors import CellgenError
from cellgen.files.tree import write_cell
from cellgen.pipeline import generate
from cellgen.program.transforms.tangent import tangent
from cellgen.proof.check import check
from cellgen.runtime.paths import generated_folder

CELLS = {cell.definition.name: cell for cell in cellgen.cells.SHIPPED}


def sources(names: list[str]) -> str:
    """A digest of the C of cells, and of their tangents, which proofs interpret."""
    every = [cell for name in names for cell in (CELLS[name], tangent(CELLS[name]))]
    text = "".join(generate(cell, ("c",)).text(end) for cell in every for end in (".c", ".h"))
    return sha256(text.encode()).hexdigest()


def write() -> None:
    """Generate the C of all cells that ship."""
    for cell in CELLS.values():
        write_cell(generated_folder(), generate(cell, ("c",)))


def main(names: list[str]) -> int:
    if names == ["--write"]:
        write()
        return 0
    if names[:1] == ["--sources"]:
        print(sources(names[1:]))
        return 0
    for name in names:
        try:
            report = check(CELLS[name])
        except CellgenError as error:
            print(f"{name}: {str(error).splitlines()[0]}")
            return 1
        if not report.ok:
            print(f"{name}: {', '.join(row.name for row in report.failures)}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
