"""Time one long row in segments of time beside step by step: ratios of processor time, one thread.

Calls of both kinds take turns; a ratio is that of the least times.

    python benchmarks/long_rows.py
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial

import numpy as np

import cellgen

CELLS = ("ind_rnn", "brc", "sru", "min_gru", "para_gru", "para_lstm", "gru")
SHAPES = ((4096, 1), (16384, 1), (65536, 1), (4096, 8), (16384, 8), (65536, 8), (16384, 64))
"""Steps and units."""
CALLS = 15


def seconds(call: Callable[[], object]) -> float:
    """Processor time of a call."""
    start = time.thread_time()
    call()
    return time.thread_time() - start


def main() -> None:
    """Print a row for each cell and shape."""
    print(f"{'cell':10} {'T, B, H':14} {'step by step':>12} {'ratio':>6}  how it went")
    for name in CELLS:
        kernel = cellgen.load(name)
        for steps, units in SHAPES:
            rng = np.random.default_rng(0)
            sizes = {
                d: {"T": steps, "B": 1, "I": 4}.get(d, units)
                for d in kernel.sequence_forward.function.dims
            }
            arguments = kernel.init(rng, **{n: s for n, s in sizes.items() if n != "T"})
            arguments["x"] = rng.standard_normal(kernel.shapes(**sizes)["x"], np.float32)
            stepping = partial(kernel.sequence_forward, **arguments, threads=1)
            both = stepping, partial(stepping, parallel="segments")
            least = [math.inf, math.inf]
            for _ in range(CALLS):
                least = [min(t, seconds(call)) for t, call in zip(least, both, strict=True)]
            went = both[1]().parallel
            shape = f"({steps}, 1, {units})"
            ms = f"{least[0] * 1e3:9.2f} ms"
            print(f"{name:10} {shape:14} {ms} {least[0] / least[1]:6.2f}  {went}", flush=True)


if __name__ == "__main__":
    main()
