"""Print the errors of memories' kernels in Triton's interpreter: cells and their cases, as JSON.

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
from tests.quick_interpreter import quickly
from tests.targets.triton_memories import Case, Sizes, errors


def main(cases_of: str) -> None:
    """Run the cases of each cell, a line for each."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)  # new tensors are NaN: nothing unwritten is read
    warnings.simplefilter("ignore")  # products of marked rows overflow, and are done again
    cells = {one.definition.name: one for one in (*SHIPPED, *OWN)}
    with quickly(), tempfile.TemporaryDirectory() as folder:
        for name, cases in json.loads(cases_of).items():
            for case in cases:
                sizes = Sizes(**case.pop("sizes", {}))
                found = errors(cells[name], Case(sizes, **case), Path(folder))
                print(json.dumps(found), flush=True)


main(*sys.argv[1:])
