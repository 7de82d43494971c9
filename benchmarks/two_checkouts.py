"""Time two checkouts side by side: how long a call of NEW takes by one of OLD.

    python benchmarks/two_checkouts.py OLD NEW [--cells gru,lstm] [--shapes W1,W6] [--threads 1,2]

Each checkout runs in a process of its own and binds its kernels to the same arrays. The two take
turns within a round, and which goes first alternates; an entry is the least time of NEW over all
rounds by that of OLD. Samples last as long as ten milliseconds, or one call. One thread has its
processor time counted, which other work on the machine disturbs less; several have elapsed time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CELLS = "elman,gru,gru_reset_before,lstm,lstm_peephole,min_gru,layer_norm_lstm,slstm,qrnn"
SHAPES = "W1,W2,W3,W4,W5,W6"
MODES = ("forward", "forward+backward")
SAMPLE_SECONDS = 0.01
ENTRY_SECONDS = 1.0
LEAST_ROUNDS = 3
MOST_ROUNDS = 100


@dataclass(frozen=True)
class Case:
    """One call: a cell, a named shape, what is computed, threads."""

    cell: str
    shape: str
    mode: str
    threads: int


def work() -> None:
    """Answer each line of standard input: a case prepares it, a number runs it that many times."""
    from cellgen.bench.peers import own
    from cellgen.bench.problem import Mode, problem_of
    from cellgen.bench.shapes import NAMED

    run: Any = None
    clock = time.perf_counter
    for line in sys.stdin:
        asked = json.loads(line)
        if isinstance(asked, dict):
            case = Case(**asked)
            interface = own.kernel_of(case.cell).interface
            problem = problem_of(interface, case.cell, NAMED[case.shape])
            run = own.prepare(problem, Mode(case.mode), case.threads).run
            clock = time.process_time if case.threads == 1 else time.perf_counter
            run()
        begun = clock()
        for _ in range(asked if isinstance(asked, int) else 1):
            run()
        print(clock() - begun, flush=True)


class Worker:
    """A checkout in a process of its own."""

    def __init__(self, checkout: Path) -> None:
        """Start the process; kernels are compiled when a case first asks for them."""
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--work"],
            env={**os.environ, "PYTHONPATH": str(checkout)},
            cwd=checkout,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def ask(self, what: object) -> float:
        """Send a case or a number of calls; return the seconds it took."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"{self.process.args!r} ended at {what!r}")
        return float(answer)


def entry(workers: Sequence[Worker], case: Case) -> tuple[float, float]:
    """The least seconds of a call, of OLD and of NEW, over rounds in turn."""
    longest = max(worker.ask(vars(case)) for worker in workers)
    calls = max(1, round(SAMPLE_SECONDS / longest))
    rounds = round(ENTRY_SECONDS / (calls * longest * len(workers)))
    best = [float("inf")] * len(workers)
    for turn in range(min(max(rounds, LEAST_ROUNDS), MOST_ROUNDS)):
        order = range(len(workers)) if turn % 2 else reversed(range(len(workers)))
        for which in order:
            best[which] = min(best[which], workers[which].ask(calls) / calls)
    return best[0], best[1]


def cases(cells: str, shapes: str, threads: str) -> Iterator[Case]:
    """All combinations, one cell after the other."""
    for cell in cells.split(","):
        for shape in shapes.split(","):
            for mode in MODES:
                for count in threads.split(","):
                    yield Case(cell, shape, mode, int(count))


def table(ratios: dict[Case, float]) -> Iterator[str]:
    """Median and worst of all cells, by shape, threads and what is computed."""
    yield "| shape | threads | forward: median, worst | forward and backward: median, worst |"
    yield "|---|---|---|---|"
    rows = dict.fromkeys((case.shape, case.threads) for case in ratios)
    for shape, threads in rows:
        found = [
            [r for c, r in ratios.items() if (c.shape, c.threads, c.mode) == (shape, threads, mode)]
            for mode in MODES
        ]
        said = (f"{statistics.median(group):.3f}, {max(group):.3f}" for group in found)
        yield f"| {shape} | {threads} | {' | '.join(said)} |"
    yield f"{len(ratios)} entries, median {statistics.median(ratios.values()):.3f}"


def main() -> int:
    """Time every case in both checkouts; print each, then the table."""
    if sys.argv[1:] == ["--work"]:
        work()
        return 0
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--cells", default=CELLS)
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--threads", default="1,2")
    args = parser.parse_args()
    workers = [Worker(args.old.resolve()), Worker(args.new.resolve())]
    ratios: dict[Case, float] = {}
    for case in cases(args.cells, args.shapes, args.threads):
        old, new = entry(workers, case)
        ratios[case] = new / old
        print(*vars(case).values(), f"{old:.3e} {new:.3e} {new / old:.3f}", flush=True)
    print("\n".join(table(ratios)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
