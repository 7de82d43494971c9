"""Compare a machine's results with this one's: ``python -m tests.elsewhere MACHINE [CELL...]``.

Machines: gcc, clang, zig (this one's compilers), arm64 (under qemu-user), wasm (under Node). Every
cell is compiled for it with the time driver; every function is called in both precisions and two
shapes, over time on one and on two threads where there are threads. Exit code 1 where a result is
beyond the bounds of ``calls.BOUNDS``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cellgen.cells import SHIPPED
from tests.elsewhere.calls import BOUNDS, Compared, calls_of, compare, returned
from tests.elsewhere.machines import C11, ElsewhereError, Machine, elsewhere, native

CELLS = tuple(cell.definition.name for cell in SHIPPED)


def run(machine: Machine, name: str, work: Path, language: Sequence[str] = C11) -> list[Compared]:
    """Make every call of a cell here and there. Raises ElsewhereError, AssertionError."""
    made = calls_of(name)
    calls = b"".join(one.text for one in made)
    if machine.like is not None:
        place = work / "like"
        place.mkdir(exist_ok=True)
        made = returned(made, machine.like.run(machine.like.build(name, place), calls))
    return compare(made, machine.run(machine.build(name, work, language), calls))


def told(machine: Machine, name: str, compared: list[Compared]) -> str:
    """Say how many arrays are equal to the bit, and the largest difference by precision."""
    arrays, equal = (sum(getattr(one, of) for one in compared) for of in ("arrays", "equal"))
    off = [
        f"{suffix} {max(one.largest for one in compared if one.label.endswith(suffix)):.1e}"
        for suffix in BOUNDS
    ]
    return f"{machine.name} {name}: {equal} of {arrays} arrays to the bit, {', '.join(off)}"


def main(arguments: list[str]) -> int:
    machines = {machine.name: machine for machine in (*native(), *elsewhere())}
    parser = argparse.ArgumentParser(prog="python -m tests.elsewhere", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    runnable = [name for name, machine in machines.items() if machine.runner is not None]
    parser.add_argument("machine", choices=runnable)
    parser.add_argument("cells", nargs="*", choices=[*CELLS, []], help="all, if none is named")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    given = parser.parse_args(arguments)
    machine, failures, everything = machines[given.machine], 0, []
    if machine.missing:
        parser.exit(2, f"{machine.name}: {machine.missing} is missing\n")
    work = Path(tempfile.mkdtemp())
    names = given.cells or CELLS
    with ThreadPoolExecutor(given.jobs) as pool:
        run(machine, names[0], work)  # and the driver, which all others use
        runs = [(name, pool.submit(run, machine, name, work)) for name in names]
        for name, result in runs:
            try:
                compared = result.result()
                everything += compared
                print(told(machine, name, compared), flush=True)
                for one in (one for one in compared if not one.ok):
                    failures += 1
                    print(f"  {one.label}: {one.largest:.1e}, at most {one.bound:.1e}", flush=True)
            except (ElsewhereError, AssertionError) as error:
                failures += 1
                print(f"{machine.name} {name}: {error}", flush=True)
    shutil.rmtree(work)
    if everything:
        print(told(machine, f"{len(names)} cells", everything))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
