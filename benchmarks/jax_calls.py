"""What a call of a cell costs in JAX: beside the kernel by addresses and the same cell by a scan.

One thread, float32, the GRU or the LSTM; minima and medians of interleaved rounds, microseconds of
the processor, of forward and of forward with every gradient under ``jit``. "raw" is
``RawFunction``, "empty" a program that takes the same arrays and adds 1 to one of them.

    python benchmarks/jax_calls.py [gru | lstm] [rounds] [shapes, as W1 or T,B,I,H]
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["CELLGEN_NUM_THREADS"] = "1"

import jax
import jax.numpy as jnp
import numpy as np

import cellgen
import cellgen.jax
from cellgen.bench.shapes import parse_shapes
from tests.by_words import RawFunction

SHAPES = ("1,1,8,8", "100,32,128,256")
NAME = sys.argv.pop(1) if sys.argv[1:2] in (["gru"], ["lstm"]) else "gru"
CELL = cellgen.jax.function(NAME)

Arrays = dict[str, jax.Array]
States = tuple[jax.Array, ...]
Job = Callable[[], object]


def gru(p: Arrays, states: States, x: jax.Array) -> States:
    """A step of the GRU of cuDNN's kind in JAX."""
    (h,), sigmoid = states, jax.nn.sigmoid
    z = sigmoid(x @ p["w_z"] + h @ p["u_z"] + p["b_z"])
    r = sigmoid(x @ p["w_r"] + h @ p["u_r"] + p["b_r"])
    n = jnp.tanh(x @ p["w_n"] + p["b_n"] + r * (h @ p["u_n"] + p["c_n"]))
    return ((1 - z) * n + z * h,)


def lstm(p: Arrays, states: States, x: jax.Array) -> States:
    """A step of the LSTM in JAX."""
    (h, c), sigmoid = states, jax.nn.sigmoid
    i, f, g, o = (x @ p[f"w_{k}"] + h @ p[f"u_{k}"] + p[f"b_{k}"] for k in "ifgo")
    c = sigmoid(f) * c + sigmoid(i) * jnp.tanh(g)
    return sigmoid(o) * jnp.tanh(c), c


def by_scan(p: Arrays) -> States:
    """The cell's outputs, then final states, by JAX's scan."""

    def step(states: States, x: jax.Array) -> tuple[States, jax.Array]:
        states = {"gru": gru, "lstm": lstm}[NAME](p, states, x)
        return states, states[0]

    last, over_time = jax.lax.scan(step, tuple(p[name] for name in CELL.states), p["x"])
    return over_time, *last


def by_cellgen(p: Arrays) -> States:
    """The same by the kernel."""
    states = tuple(p[name] for name in CELL.states)
    y = CELL({name: p[name] for name in CELL.params}, p["x"], states)
    return y.h, *(getattr(y, f"{name.removesuffix('_prev')}_last") for name in CELL.states)


def raw(sizes: dict[str, int], given: dict[str, np.ndarray]) -> tuple[Job, Job]:
    """The kernel by addresses: forward, and forward that saves with backward."""
    layout, kernel = CELL.layout, CELL.known.kernel
    arrays = dict(given)
    for item in (*layout.outputs, *layout.saved, *layout.gradients):
        arrays[item.name] = np.zeros(layout.shape(item.name, sizes), np.float32)
    arrays["d_h"] = np.ones_like(arrays["h"])

    def job(name: str, without: set[str]) -> Job:
        function = RawFunction(kernel, name)
        dims = [sizes[dim] for dim in function.function.dims]
        left_out = without | {item.name for item in function.members} - {*arrays}
        words = [
            0 if item.name in left_out else arrays[item.name].ctypes.data
            for item in function.members
        ]

        def run(memory: object = arrays) -> None:  # addresses need arrays that live
            function(dims, words, None, 1)

        return run

    saving, backward = job("sequence_forward", set()), job("sequence_backward", set())
    plain = job("sequence_forward", {item.name for item in layout.saved})
    return plain, lambda: (saving(), backward())


def in_jax(run: Callable[[Arrays], tuple[jax.Array, ...]], given: Arrays) -> tuple[Job, Job]:
    """A function under ``jit``: forward, and with every gradient of its first result."""
    forward = jax.jit(run)
    up = jnp.ones_like(forward(given)[0])
    both = jax.jit(lambda up, a: jax.vjp(lambda a: run(a)[0], a)[1](up))
    return (
        lambda: jax.block_until_ready(forward(given)),
        lambda: jax.block_until_ready(both(up, given)),
    )


def measure(jobs: dict[str, tuple[Job, Job]], rounds: int, calls: int) -> None:
    """Run jobs by turns and print microseconds a call."""
    found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in jobs}
    for _ in range(rounds):
        for name, pair in jobs.items():
            for job, times in zip(pair, found[name], strict=True):
                job()
                begun = time.process_time()
                for _ in range(calls):
                    job()
                times.append((time.process_time() - begun) / calls * 1e6)
    print(f"{'':10} {'forward':>22} {'with gradients':>22}   least (median), us")
    for name, pair in found.items():
        cells = (f"{min(t):11.1f} ({statistics.median(t):8.1f})" for t in pair)
        print(f"{name:10} {' '.join(cells)}")


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    print(f"JAX {jax.__version__}, load {os.getloadavg()[0]:.1f}")
    for shape in parse_shapes(sys.argv[2:] or SHAPES):
        sizes = {"T": shape.T, "B": shape.B, "I": shape.I, "H": shape.H}
        numbers = np.random.default_rng(0)
        given = {
            item.name: np.float32(0.3 * numbers.normal(size=CELL.layout.shape(item.name, sizes)))
            for item in CELL.layout.theta
        }
        arrays = {name: jnp.asarray(array) for name, array in given.items()}
        jobs = {
            "raw": raw(sizes, given),
            "empty": in_jax(lambda a: (a["x"] + 1,), arrays),
            "cellgen": in_jax(by_cellgen, arrays),
            "lax.scan": in_jax(by_scan, arrays),
        }
        print(f"T, B, I, H = {', '.join(map(str, sizes.values()))}")
        measure(jobs, rounds, 50 if shape.T == shape.B == 1 else 1)


if __name__ == "__main__":
    main()
