"""Run the generated kernels from C under sanitizers: ``python -m tests.sanitize [CELL...]``.

Each cell of ``generated/`` is compiled with the program of ``tests/drive`` three times:

    address      AddressSanitizer and UndefinedBehaviourSanitizer
    thread       ThreadSanitizer
    allocations  no sanitizer, the flags of ``cellgen build``; every allocation in a call is counted

and run on small shapes, some of them empty, alone and on teams of threads, from memory that ends
at guard pages. ``--quick`` takes two cells, one of them under sanitizers, and fewer shapes;
``--march`` names the instruction set (native: this machine's; x86-64: the portable path). Needs gcc
or clang with its sanitizer libraries (CC names another compiler). Exit code 1 where anything is
found.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cellgen.cells import SHIPPED
from cellgen.pipeline import generate
from cellgen.runtime.paths import generated_folder, include_folder
from tests.drive import INTERPOSED, DriveError, Driver

IEEE = ("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-fopenmp-simd")
"""Flags of ``cellgen build`` that say what arithmetic means."""

BUILDS = {
    "address": ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-O1", "-g", "-fsanitize=thread"),
    "allocations": ("-O3", *INTERPOSED),
}
QUICK_CELLS = {
    "address": ("gru_block_cell",),
    "thread": ("gru_block_cell",),
    "allocations": ("gru_block_cell", "lstm"),
}
"""Two levels a step and concatenated operands; one level and two states, where threads meet no more
often, and whose arrays end at guard pages."""
QUICK_FLAGS = {
    "address": ("-g1", "-fno-sanitize=null,object-size,pointer-overflow"),
    "thread": ("-g1", "-DDRIVE_TEAMS"),
}
"""For a shorter time: lines without variables, without what AddressSanitizer mostly finds, and
without calls of one thread where threads are watched."""
QUICK_PORTABLE = ("address", "thread")
"""Compiled for any machine, in a third of the time: which thread touches what is no matter of
vectors, and what these read and write is held by guard pages (tests/proof/test_sanitize.py)."""
QUICK_BUILDS = ("address", "thread")
"""Allocations are counted by tests/proof/test_sanitize.py."""

ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1",
}


CELLS = {cell.definition.name: cell for cell in SHIPPED}


def sanitize(cell: str, build: str, march: str, *, quick: bool) -> str:
    """Compile and run one cell of ``generated/``; return a line of what ran. Raises DriveError."""
    folder = generated_folder() / cell
    fewer = QUICK_FLAGS.get(build, ()) if quick else ()
    machine = () if quick and build in QUICK_PORTABLE else (f"-march={march}",)
    flags = (*BUILDS[build], *fewer, *IEEE, *machine)
    interface = generate(CELLS[cell]).interface
    driver = Driver(interface, flags, compiler=os.environ.get("CC", "cc"), quick=quick)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as work:
        said = driver.run(folder / f"{cell}.c", include_folder(), Path(work), **ENVIRONMENT)
    return f"{cell:40s} {build:12s} {said.strip():>12s} {time.perf_counter() - start:6.1f} s"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sanitize", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("cells", nargs="*", choices=[*CELLS, []], help="all, if none is named")
    parser.add_argument("--build", action="append", choices=BUILDS, help="one of the three")
    parser.add_argument("--march", default="native")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    given = parser.parse_args(arguments)
    chosen = QUICK_CELLS if given.quick else dict.fromkeys(BUILDS, tuple(CELLS))
    builds = given.build or (QUICK_BUILDS if given.quick else tuple(BUILDS))
    failures = 0
    with ThreadPoolExecutor(given.jobs) as pool:
        runs = [
            pool.submit(sanitize, cell, build, given.march, quick=given.quick)
            for build in builds
            for cell in given.cells or chosen[build]
        ]
        for run in runs:
            try:
                print(run.result(), flush=True)
            except DriveError as error:
                failures += 1
                print(error, flush=True)
    print(f"{len(runs) - failures} of {len(runs)} runs clean")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
