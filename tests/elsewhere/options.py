"""Every option over time on an emulated arm64: ``python -m tests.elsewhere.options [CELL...]``.

The program of ``tests/drive`` calls every function from memory between guard pages: with lengths,
masks, gaps and gradients by row, products in bfloat16, arrays of 16 bits, states kept in place of
what every step saves, alone and on teams of threads. Results must have the same bits however they
were formed, and leave what lies between their rows as it was. Exit code 1 where one does not.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cellgen.pipeline import generate
from cellgen.runtime.paths import generated_folder, include_folder
from tests.drive import DriveError, Driver
from tests.elsewhere.machines import MEANING, elsewhere
from tests.sanitize import CELLS

CHOSEN = ("gru", "lstm", "mlstm", "s5", "gated_delta_net", "rwkv7", "slstm", "ltc")
"""Products of a step; memories that are matrices, in strips; several sums of a row."""
ARM64 = next(machine for machine in elsewhere() if machine.name == "arm64")


def drive(name: str) -> str:
    """Compile and run one cell of ``generated/``; return a line of what ran. Raises DriveError."""
    (compiler,), start = ARM64.compiler, time.perf_counter()
    driver = Driver(
        generate(CELLS[name]).interface,
        ("-O2", *MEANING, "-fopenmp-simd", *ARM64.flags),
        compiler=compiler,
        runner=ARM64.runner or (),
        quick=True,
    )
    with tempfile.TemporaryDirectory() as work:
        said = driver.run(generated_folder() / name / f"{name}.c", include_folder(), Path(work))
    return f"{ARM64.name} {name}: {said.strip()}, {time.perf_counter() - start:.0f} s"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.elsewhere.options", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("cells", nargs="*", choices=[*CELLS, []], help=f"else {', '.join(CHOSEN)}")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    given = parser.parse_args(arguments)
    if ARM64.missing:
        parser.exit(2, f"{ARM64.name}: {ARM64.missing} is missing\n")
    failures = 0
    with ThreadPoolExecutor(given.jobs) as pool:
        runs = [pool.submit(drive, name) for name in given.cells or CHOSEN]
        for run in runs:
            try:
                print(run.result(), flush=True)
            except DriveError as error:
                failures += 1
                print(error, flush=True)
    print(f"{len(runs) - failures} of {len(runs)} clean")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
