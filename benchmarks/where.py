"""Where the time of a kernel goes, sampled by Linux' perf: products, functions, packing, waiting.

    python -m benchmarks.where lstm --shapes W1,W5 --mode forward+backward --threads 2

Calls run back to back for some seconds after a warm-up; what a processor was doing is asked 4000
times a second. Shares are of all samples of the process, Python and the system included: a thread
that waits for another counts as well. Needs perf, and the right to use it.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from cellgen.bench.peers.own import kernel_of, prepare
from cellgen.bench.problem import Mode, problem_of
from cellgen.bench.shapes import BenchShape, parse_shapes
from cellgen.errors import CellgenError

SECONDS = 4.0
RATE = 4000
KINDS = {
    "products": r"cellgen_(tile|column|narrow)_",
    "packing": r"cellgen_(pack|packed|gemm|outers)_",
    "functions of a step": r"_(forward|reverse)_\d+_f",
    "deferred, pointwise": r"_deferred_\d+_f",
    "waiting": r"cellgen_team_|sched_yield|schedule|do_syscall|entry_SYSCALL|syscall_return|futex",
    "other of the kernel": r"_sequence_|cellgen_\w+_f(32|64)",
    "page faults": r"page_fault|clear_page|memcg|folio|anonymous",
    "Python": r"^Py|^_Py|^py|python|cffi|numpy|vgetargs|dict|tuple|list_|unicode|malloc|free|gc_",
}
"""What a symbol belongs to: the first pattern that it matches."""

REST = "rest"


def run(cell: str, shape: BenchShape, mode: Mode, threads: int, control: str) -> None:
    """Call the kernel for some seconds; perf is let in after a warm-up."""
    problem = problem_of(kernel_of(cell).interface, cell, shape)
    call = prepare(replace(problem, flush_denormals=True), mode, threads).run
    for _ in range(3):
        call()
    with open(control, "w", encoding="ascii") as pipe:
        print("enable", file=pipe, flush=True)
        time.sleep(0.2)
        began, count = time.perf_counter(), 0
        while time.perf_counter() < began + SECONDS:
            call()
            count += 1
        seconds = (time.perf_counter() - began) / count
        print("disable", file=pipe, flush=True)
        time.sleep(0.2)
    print(seconds)


def sample(cell: str, shape: BenchShape, mode: Mode, threads: int) -> tuple[float, Counter[str]]:
    """Return the seconds of a call and the samples of every symbol."""
    with tempfile.TemporaryDirectory() as folder:
        control, data = Path(folder, "control"), Path(folder, "data")
        os.mkfifo(control)
        command = [sys.executable, "-m", "benchmarks.where", cell, "--shapes", shape.text]
        command += ["--mode", mode, "--threads", str(threads), "--control", str(control)]
        record = ["perf", "record", "-q", "-D", "-1", "--control", f"fifo:{control}"]
        record += ["-e", "cpu-clock", "-F", str(RATE), "-o", str(data), "--"]
        done = subprocess.run([*record, *command], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"where: perf cannot sample {cell}: {done.stderr[-500:]}")
        report = ["perf", "report", "-i", str(data), "--stdio", "--no-children", "-t", "|"]
        report += ["--sort", "symbol", "--show-nr-samples"]
        text = subprocess.run(report, capture_output=True, text=True, check=True).stdout
    found: Counter[str] = Counter()
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) >= 3 and fields[1].isdigit():
            found[fields[2].partition("] ")[2]] += int(fields[1])
    return float(done.stdout.split()[-1]), found


def kind_of(symbol: str) -> str:
    """Return what a symbol belongs to."""
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, symbol)), REST)


def markdown(rows: Sequence[tuple[str, float, Counter[str]]]) -> str:
    """Write one line a case: the time of a call and the share of every kind, in percent."""
    head = ["case", "a call, ms", *KINDS, REST]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, seconds, symbols in rows:
        kinds: Counter[str] = Counter()
        for symbol, count in symbols.items():
            kinds[kind_of(symbol)] += count
        total = sum(kinds.values()) or 1
        shares = [f"{100 * kinds[kind] / total:.0f}" for kind in (*KINDS, REST)]
        lines.append(f"| {name} | {1e3 * seconds:.3g} | {' | '.join(shares)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.where", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("cells", nargs="+", metavar="CELL")
    parser.add_argument("--shapes", action="append", default=[], metavar="W2|T,B,I,H")
    parser.add_argument("--mode", type=Mode, action="append", default=[], metavar="MODE")
    parser.add_argument("--threads", type=int, default=1, metavar="N")
    parser.add_argument("--control", help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        shapes = parse_shapes(options.shapes)
        if options.control:
            run(options.cells[0], shapes[0], options.mode[0], options.threads, options.control)
            return
    except CellgenError as error:
        sys.exit(f"where: {error}")
    if shutil.which("perf") is None:
        sys.exit("where: perf is not found; install it (Debian: linux-perf, Ubuntu: linux-tools)")
    rows = []
    modes = options.mode or list(Mode)
    for cell, mode, shape in product(options.cells, modes, shapes):
        seconds, symbols = sample(cell, shape, mode, options.threads)
        rows.append((f"`{cell}` {mode} {shape.name}", seconds, symbols))
        print(rows[-1][0], dict(symbols.most_common(6)), file=sys.stderr)
    print(markdown(rows))


if __name__ == "__main__":
    main()
