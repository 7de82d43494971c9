"""Time steps of a stream, the worst of a million too: ``python -m benchmarks.streams``.

Every step is timed by itself, through Python, from the call to its return. The worst is what the
machine does, too: other programs, its timer, pages that are touched for the first time.
"""

from __future__ import annotations

import argparse
import gc
import time

import numpy as np

import cellgen
from cellgen.runtime.streams.stream import Stream

SHARES = (50.0, 99.0, 99.9, 99.99)


def timed(stream: Stream, x: np.ndarray, steps: int) -> np.ndarray:
    """Nanoseconds of each step."""
    found, now, step = np.zeros(steps, np.int64), time.perf_counter_ns, stream.step
    for _ in range(min(steps, 1000)):
        step(x)
    for number in range(steps):
        before = now()
        step(x)
        found[number] = now() - before
    return found


def main() -> None:
    """Print a line for each shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cell", nargs="?", default="gru", help="a cell that ships")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, nargs="+", default=[1])
    parser.add_argument("--inputs", type=int, default=64)
    parser.add_argument("--units", type=int, default=128)
    asked = parser.parse_args()
    kernel, rng = cellgen.load(asked.cell), np.random.default_rng(0)
    sizes = dict.fromkeys(kernel.interface.dims, asked.units) | {"I": asked.inputs}
    weights = kernel.init(rng, **{name: size for name, size in sizes.items() if name not in "TB"})
    print(
        f"{'microseconds a step of':34}"
        + "".join(f"{share:>9g}%" for share in SHARES)
        + "     worst"
    )
    for rows in asked.rows:
        stream = kernel.stream(weights, rows=rows)
        x = rng.standard_normal((rows, asked.inputs), np.float32)
        gc.disable()
        each = timed(stream, x, asked.steps) / 1000
        gc.enable()
        shape = f"{asked.cell}, {rows} x {asked.inputs} x {asked.units}, {asked.steps:,} steps"
        figures = [*np.percentile(each, SHARES), each.max()]
        print(f"{shape:34}" + "".join(f"{figure:10.1f}" for figure in figures), flush=True)


if __name__ == "__main__":
    main()
