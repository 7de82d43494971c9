"""The code on a cell's page of the site, run as a reader would: NumPy's first, then another's."""

from __future__ import annotations

import re
from typing import Any

from cellgen.cli.gallery_use import use
from cellgen.language.cell import Cell

BLOCK = re.compile(r"\*\*(\w+)\*\*\n\n```python\n(.*?)\n```", re.DOTALL)


def run(cell: type[Cell], door: str) -> dict[str, Any]:
    """The names that stand after the blocks of NumPy and of ``door``."""
    blocks, names = dict(BLOCK.findall(use(cell.definition))), dict[str, Any]()
    for block in ("NumPy", door):
        exec(blocks[block], names)
    return names
