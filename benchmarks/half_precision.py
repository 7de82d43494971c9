"""Products in bfloat16, in every way that the machine has, beside float32 and PyTorch's layers.

    python -m benchmarks.half_precision --rounds 20 --threads 2
    python -m benchmarks.half_precision --shapes W3,W4 --cells lstm --ways amx

A process has one way (``CELLGEN_BF16``), so each way is measured in a process of its own, beside
float32 there: every contestant takes a turn in every round; figures are each one's fastest, so that
what else a machine does counts little. ``f`` is a forward pass, ``f+b`` one that saves and a
backward pass with every gradient. ``amx``, ``avx512`` and ``float32`` are ``products="bf16"`` on
float32 arrays. Of the first way: ``arrays``, a call of arrays in bfloat16; ``full packed``,
``bf16 packed`` and ``int8 packed``, forward passes of float32 arrays with weights that were packed
before; ``torch``, ``nn.LSTM`` or ``nn.GRU`` in float32 and in bfloat16, where torch is installed.
On a machine that is busy, processor time on one thread says more: ``--processor-time --threads 1``.
Prints a table in Markdown: milliseconds of ``full``, the others as multiples of it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import ml_dtypes
import numpy as np

import cellgen
from cellgen.bench.shapes import BenchShape, parse_shapes
from cellgen.runtime.build.compiler import compiler
from cellgen.runtime.build.half import VARIABLE, WAYS, half_products
from cellgen.runtime.paths import include_folder
from cellgen.runtime.results import Array

try:
    import torch
except ImportError:  # the columns of torch stay empty
    torch = None  # type: ignore[assignment]

LAYERS = {"lstm": "LSTM", "gru": "GRU"}
CALLS = {
    "full": (np.dtype(np.float32), "full"),
    "bf16": (np.dtype(np.float32), "bf16"),
    "arrays": (np.dtype(ml_dtypes.bfloat16), "bf16"),
}
"""The type of a call's arrays, and its products."""
PACKED = ("full", "bf16", "int8")
"""Products of calls with packed weights."""
Work = Callable[[], object]


def drawn(cell: str, shape: BenchShape, seed: int = 0) -> dict[str, Array]:
    """Arguments of a forward pass in float32."""
    kernel, draw = cellgen.load(cell), np.random.default_rng(seed)
    shapes = kernel.shapes(**shape.sizes_of(kernel.sequence_forward.function.dims))
    scales = {name: 1.0 if name == "x" else shape.H**-0.5 for name in shapes}
    return {
        name: (draw.standard_normal(axes) * scales[name]).astype(np.float32)
        for name, axes in shapes.items()
    }


def of_cellgen(cell: str, shape: BenchShape, threads: int) -> dict[tuple[str, str], list[Work]]:
    """Bound calls by mode and contestant."""
    kernel = cellgen.load(cell)
    found: dict[tuple[str, str], list[Work]] = {}
    for name, (dtype, products) in CALLS.items():
        given = {n: array.astype(dtype) for n, array in drawn(cell, shape).items()}
        how = {"products": products, "threads": threads}
        saving = kernel.sequence_forward.bind(**given, **how, save=True)
        run = saving()
        every = {**given, **run._asdict(), "d_h": np.ones_like(run.h), "saved": None}
        read = [a.name for a in kernel.sequence_backward.function.arguments if not a.saved]
        back = kernel.sequence_backward.bind(
            **{n: every[n] for n in read if n in every}, **how, saved=run.saved
        )
        found["f", name] = [kernel.sequence_forward.bind(**given, **how)]
        found["f+b", name] = [saving, back]
    for products in PACKED:
        own = drawn(cell, shape)
        named = [a.name for a in kernel.sequence_forward.function.arguments if a.is_weight]
        packed = kernel.pack(**{n: own.pop(n) for n in named}, products=products)
        bound = kernel.sequence_forward.bind(**own, packed=packed, threads=threads)
        found["f", f"{products} packed"] = [bound]
    return found


def of_torch(cell: str, shape: BenchShape, threads: int) -> dict[tuple[str, str], list[Work]]:
    """Calls of a layer by mode and precision."""
    if torch is None:
        return {}
    torch.set_num_threads(threads)
    found: dict[tuple[str, str], list[Work]] = {}
    for name, dtype in (("torch full", torch.float32), ("torch bf16", torch.bfloat16)):
        layer = getattr(torch.nn, LAYERS[cell])(shape.I, shape.H).to(dtype)
        x = torch.randn(shape.T, shape.B, shape.I, dtype=dtype)
        leaf = x.clone().requires_grad_()
        ones = torch.ones(shape.T, shape.B, shape.H, dtype=dtype)

        def forward(layer: torch.nn.Module = layer, x: torch.Tensor = x) -> object:
            with torch.no_grad():
                return layer(x)

        def both(
            layer: torch.nn.Module = layer, leaf: torch.Tensor = leaf, ones: torch.Tensor = ones
        ) -> object:
            layer.zero_grad()
            leaf.grad = None
            return layer(leaf)[0].backward(ones)

        found["f", name], found["f+b", name] = [forward], [both]
    return found


def fastest(
    works: Mapping[tuple[str, str], Sequence[Work]], rounds: int, clock: Callable[[], float]
) -> dict[tuple[str, str], float]:
    """The fastest of each in milliseconds, all in turn in every round."""
    best = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for key, calls in works.items():
            start = clock()
            for call in calls:
                call()
            best[key] = min(best[key], 1e3 * (clock() - start))
    return best


Times = dict[str, dict[str, float]]
"""Milliseconds by mode and contestant."""


def measured(given: argparse.Namespace) -> Iterator[str]:
    """One line of JSON for each cell and shape: cell, shape, ``Times``. Of this process's way."""
    clock = time.process_time if given.processor_time else time.perf_counter
    for cell in given.cells.split(","):
        for shape in parse_shapes([given.shapes]):
            works = of_cellgen(cell, shape, given.threads)
            if not given.without_torch:
                works |= of_torch(cell, shape, given.threads)
            times: Times = {"f": {}, "f+b": {}}
            for (mode, name), best in fastest(works, given.rounds, clock).items():
                times[mode][name] = best
            yield json.dumps([cell, shape.name, times])


def of_way(way: str, given: argparse.Namespace, *, is_first: bool) -> dict[tuple[str, str], Times]:
    """What a process with one way measures, by cell and shape."""
    words = [
        f"--{name}={getattr(given, name)}" for name in ("cells", "shapes", "threads", "rounds")
    ]
    words += ["--processor-time"] if given.processor_time else []
    words += ["--without-torch"] if given.without_torch or not is_first else []
    command = [sys.executable, "-m", "benchmarks.half_precision", "--measure", *words]
    done = subprocess.run(
        command, env={**os.environ, VARIABLE: way}, stdout=subprocess.PIPE, text=True, check=True
    )
    return {
        (cell, shape): times for cell, shape, times in map(json.loads, done.stdout.splitlines())
    }


def ways_here() -> list[str]:
    """Those that the machine has, the one that it takes by itself first."""
    named, found = os.environ.get(VARIABLE), {}
    try:
        for way in ("", *WAYS):  # an empty name is none
            os.environ[VARIABLE] = way
            found[way] = half_products(compiler(), include_folder()).way
    finally:
        os.environ.pop(VARIABLE)
        if named is not None:
            os.environ[VARIABLE] = named
    return sorted((way for way in WAYS if found[way] == way), key=lambda way: way != found[""])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", default="lstm,gru")
    parser.add_argument("--shapes", default="W1,W2,W3,W4,W5,W6")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--ways", default="", help="amx, avx512, float32; all when left out")
    parser.add_argument("--without-torch", action="store_true")
    parser.add_argument("--processor-time", action="store_true", help="of all threads")
    parser.add_argument("--measure", action="store_true", help="of this process's way, as JSON")
    given = parser.parse_args()
    if given.measure:
        for line in measured(given):
            print(line, flush=True)
        return
    ways = given.ways.split(",") if given.ways else ways_here()
    found = {way: of_way(way, given, is_first=way == ways[0]) for way in ways}
    others = ("arrays", *(f"{p} packed" for p in PACKED), "torch full", "torch bf16")
    print(f"| cell | shape | mode | full, ms | {' | '.join((*ways, *others))} |")
    print(f"|---|---|---|---:|{'---:|' * (len(ways) + len(others))}")
    for (cell, shape), first in found[ways[0]].items():
        for mode, times in first.items():
            own = [found[way][cell, shape][mode] for way in ways]
            cells = [f"{of['bf16'] / of['full']:.2f}" for of in own]
            full = times["full"]
            cells += [f"{times[name] / full:.2f}" if name in times else "" for name in others]
            print(f"| {cell} | {shape} | {mode} | {full:.3f} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
