"""Steps of streams, counted: run by the tests with ``counted.c`` preloaded."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

import numpy as np

import cellgen

STEPS = 500
own = ctypes.CDLL(None)
counters = [ctypes.c_long.in_dll(own, f"counted_{what}") for what in ("allocations", "locks")]


def counted(call: Callable[[], object]) -> list[int]:
    """What so many calls allocate by malloc, lock, and leave behind in Python's own memory."""
    for _ in range(20):
        call()
    blocks, before = sys.getallocatedblocks(), [c.value for c in counters]
    for _ in range(STEPS):
        call()
    after = [c.value for c in counters]
    return [b - a for a, b in zip(before, after, strict=True)] + [sys.getallocatedblocks() - blocks]


def main() -> None:
    rng = np.random.default_rng(0)
    kernel = cellgen.load("lstm")
    weights = kernel.init(rng, I=5, H=8)
    streams = {
        "one": kernel.stream(weights, rows=3, block=4),
        "many": kernel.stream(weights, rows=700, room=900, block=4),
        "stack": cellgen.Layers(kernel, [[weights], [kernel.init(rng, I=8, H=8)]]).stream(
            3, block=4
        ),
    }
    layer = streams["one"]._layers[0]
    sizes = layer.sizes(1, 3)
    empty = counted(lambda: layer._entry.size(sizes, layer._options))
    print("nothing", *empty)
    for name, stream in streams.items():
        rows = len(stream)
        x = rng.standard_normal((rows, 5), np.float32)
        block = rng.standard_normal((4, rows, 5), np.float32)
        calls = len(stream._layers)
        print(name, calls, *counted(lambda s=stream, x=x: s.step(x)))
        print(name, calls, *counted(lambda s=stream, x=block: s.run(x)))


if __name__ == "__main__":
    main()
