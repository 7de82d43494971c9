"""Prove cells until one is refused: ``python -m tests.mutants.prove CELL...``; exit code 1 then."""

from __future__ import annotations

import sys

import cellgen.cells
from cellgen.errors import CellgenError
from cellgen.proof.check import check

CELLS = {cell.definition.name: cell for cell in cellgen.cells.SHIPPED}


def main(names: list[str]) -> int:
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
