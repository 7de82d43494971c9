"""Time one long row of cells whose units read each other, in segments with a tolerance.

Beside step by step, one thread; ratios are of the least processor times, of calls that take turns.
Weights are those of ``kernel.init``, biases of forget gates 1, recurrent weights also twice as
large.

    python benchmarks/long_rows_dense.py
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from long_rows import seconds

import cellgen

CELLS = ("gru", "lstm", "elman")
SHAPES = ((16384, 32, 16), (16384, 64, 16), (16384, 128, 16), (8192, 256, 8))
"""Steps, units and segments."""
GAINS, TOLERANCES, CALLS = (1.0, 2.0), (1e-6, 1e-4), 5


def main() -> None:
    """Print a row for each cell, shape, size of weights and tolerance."""
    heads = f"{'cell':6} {'T, B, H':15} {'segments':>8} {'weights':>7} {'tol':>6}"
    print(f"{heads} {'ratio':>6} {'error':>8}  how it went")
    for name in CELLS:
        kernel = cellgen.load(name)
        for steps, units, count in SHAPES:
            for gain in GAINS:
                rng = np.random.default_rng(0)
                given = kernel.init(rng, B=1, I=4, H=units)
                given |= {n: a * gain for n, a in given.items() if n.startswith("u")}
                given["x"] = rng.standard_normal((steps, 1, 4), np.float32)
                stepping = partial(kernel.sequence_forward, **given, threads=1)
                exact = stepping()
                for tolerance in TOLERANCES:
                    cut = {"parallel": "segments", "segments": count, "tolerance": tolerance}
                    both = stepping, partial(stepping, **cut)
                    found = both[1]()
                    error = float(np.abs(found.h - exact.h).max())
                    least = [math.inf, math.inf]
                    for _ in range(CALLS):
                        least = [min(t, seconds(c)) for t, c in zip(least, both, strict=True)]
                    print(
                        f"{name:6} {f'({steps}, 1, {units})':15} {count:8} {gain:7} "
                        f"{tolerance:6.0e} {least[0] / least[1]:6.2f} {error:8.1e}  "
                        f"{found.parallel}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
