"""Print the errors of a memory's kernels in Triton's interpreter: ``cell`` and cases, as JSON.

A process of its own: Triton decides when it is imported whether it interprets.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import torch

from cellgen.cells import SHIPPED
from tests.program.test_chunk_programs import OWN
from tests.targets.triton_memories import Case, Sizes, errors


def main(name: str, cases: str) -> None:
    """Run the cases of one cell."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)  # new tensors are NaN: nothing unwritten is read
    warnings.simplefilter("ignore")  # products of marked rows overflow, and are done again
    cells = [*SHIPPED, *OWN]
    cell = next(one for one in cells if one.definition.name == name)
    with tempfile.TemporaryDirectory() as folder:
        for case in json.loads(cases):
            sizes = Sizes(**case.pop("sizes", {}))
            print(json.dumps(errors(cell, Case(sizes, **case), Path(folder))), flush=True)


main(*sys.argv[1:])
