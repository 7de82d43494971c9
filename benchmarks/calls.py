"""What a call costs beside its arithmetic: ``python -m benchmarks.calls [CELL]``.

Microseconds of one call, the least of many runs: of a step and of a sequence of one step with one
row, 8 inputs and 8 units on one thread, checked and bound, and of NumPy's cheapest work beside it.
``CELLGEN_CALLS`` decides who makes the checked ones.
"""

from __future__ import annotations

import sys
import timeit
from collections.abc import Callable
from functools import partial

import numpy as np

import cellgen

SIZES = {"T": 1, "B": 1, "I": 8, "H": 8}
RUNS, CALLS = 300, 300


def least(call: Callable[[], object]) -> float:
    """Microseconds of the fastest run."""
    return min(timeit.repeat(call, number=CALLS, repeat=RUNS)) / CALLS * 1e6


def main(name: str) -> None:
    kernel, rng = cellgen.load(name), np.random.default_rng(0)
    print(f"{'empty array':32s} {least(lambda: np.empty((1, 8), np.float32)):8.2f} us")
    for function, how in ((kernel.forward, {}), (kernel.sequence_forward, {"threads": 1})):
        dims = {name: SIZES[name] for name in function.function.dims}
        shapes = kernel.shapes(**dims)
        given = {name: rng.normal(size=shape).astype("f") for name, shape in shapes.items()}
        checked = least(partial(function, **given, **how))
        bound = least(function.bind(**given, **how))
        print(f"{function.__name__ + ', checked':32s} {checked:8.2f} us")
        print(f"{function.__name__ + ', bound':32s} {bound:8.2f} us")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "gru")
