"""Record numbers of the peers, or the index of those that are there.

python -m tests.golden.record papers [CELL...]     (jax; every cell's where none is named)
python -m tests.golden.record weights LIBRARY...   (what each needs: recorders/weights.py)
python -m tests.golden.record index FULL           (from a full set of the peers' runs)
"""

from __future__ import annotations

import sys
from importlib import import_module

RECORDERS = ("papers", "weights", "index")
"""Modules of ``recorders``: each has ``record(names)``."""


def main(arguments: list[str]) -> None:
    if not arguments or arguments[0] not in RECORDERS:
        raise SystemExit(str(__doc__))
    kind, *names = arguments
    import_module(f"tests.golden.recorders.{kind}").record(names)


if __name__ == "__main__":
    main(sys.argv[1:])
