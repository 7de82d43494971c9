"""Derivatives of a cell inside PyTorch or JAX, beside those of the same equations as its own loop.

    python -m benchmarks.derivatives_in_frameworks torch
    python -m benchmarks.derivatives_in_frameworks jax --shape 20,32,64,64

The GRU, float32, one thread, milliseconds of the processor, the least of interleaved rounds: a
gradient, a Jacobian-vector product along the input, a Hessian-vector product along it, and the
gradients of a weight for single rows. PyTorch's loop runs eagerly, JAX's is ``lax.scan`` under
``jit``.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cellgen.bench.shapes import BenchShape, parse_shapes

Job = Callable[[], object]
Cell = Callable[[Mapping[str, Any]], Any]
"""Arrays by name to outputs over time."""


def arrays_of(layout: Any, shape: BenchShape) -> dict[str, np.ndarray]:
    """Arrays of a call, drawn."""
    sizes, numbers = shape.sizes_of(layout.dims), np.random.default_rng(0)
    return {
        item.name: np.float32(0.3 * numbers.normal(size=layout.shape(item.name, sizes)))
        for item in layout.theta
    }


def in_torch(shape: BenchShape) -> dict[str, tuple[Job, Job]]:
    """Derivatives in PyTorch: of cellgen's function, of a loop."""
    import torch

    import cellgen.torch

    torch.set_num_threads(1)
    cell = cellgen.torch.function("gru")
    given = {n: torch.from_numpy(a) for n, a in arrays_of(cell.layout, shape).items()}
    x, along = given["x"], torch.randn_like(given["x"])

    def loop(p: Mapping[str, Any]) -> Any:
        h, over_time = p["h_prev"], []
        for now in p["x"]:
            z = torch.sigmoid(now @ p["w_z"] + h @ p["u_z"] + p["b_z"])
            r = torch.sigmoid(now @ p["w_r"] + h @ p["u_r"] + p["b_r"])
            n = torch.tanh(now @ p["w_n"] + p["b_n"] + r * (h @ p["u_n"] + p["c_n"]))
            h = (1 - z) * n + z * h
            over_time.append(h)
        return torch.stack(over_time)

    def jobs(run: Cell) -> dict[str, Job]:
        def loss(x: Any) -> Any:
            return run({**given, "x": x}).square().sum()

        def of_row(w: Any, x: Any, h: Any) -> Any:
            one = {**given, "w_n": w, "x": x.unsqueeze(1), "h_prev": h.unsqueeze(0)}
            return run(one).square().sum()

        rows = torch.func.vmap(torch.func.grad(of_row), (None, 1, 0))
        gradient = torch.func.grad(loss)
        return {
            "gradient": lambda: gradient(x),
            "JVP": lambda: torch.func.jvp(loss, (x,), (along,)),
            "HVP": lambda: torch.func.jvp(gradient, (x,), (along,)),
            "by row": lambda: rows(given["w_n"], x, given["h_prev"]),
        }

    mine, other = jobs(lambda p: cell(**p).h), jobs(loop)
    return {name: (mine[name], other[name]) for name in mine}


def in_jax(shape: BenchShape) -> dict[str, tuple[Job, Job]]:
    """Derivatives in JAX: of cellgen's function, of ``lax.scan``."""
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ["CELLGEN_NUM_THREADS"] = "1"
    import jax
    import jax.numpy as jnp

    from benchmarks.jax_calls import CELL, by_cellgen, by_scan

    given = {n: jnp.asarray(a) for n, a in arrays_of(CELL.layout, shape).items()}
    x = given["x"]

    def jobs(run: Cell) -> dict[str, Job]:
        def loss(x: Any) -> Any:
            return (run({**given, "x": x})[0] ** 2).sum()

        def of_row(w: Any, x: Any, h: Any) -> Any:
            return (run({**given, "w_n": w, "x": x[:, None], "h_prev": h[None]})[0] ** 2).sum()

        gradient = jax.grad(loss)
        made = {
            "gradient": jax.jit(gradient),
            "JVP": jax.jit(lambda x: jax.jvp(loss, (x,), (x,))),
            "HVP": jax.jit(lambda x: jax.jvp(gradient, (x,), (x,))),
        }
        rows = jax.jit(jax.vmap(jax.grad(of_row), (None, 1, 0)))
        found: dict[str, Job] = {
            name: lambda f=f: jax.block_until_ready(f(x)) for name, f in made.items()
        }
        found["by row"] = lambda: jax.block_until_ready(rows(given["w_n"], x, given["h_prev"]))
        return found

    mine, other = jobs(by_cellgen), jobs(by_scan)
    return {name: (mine[name], other[name]) for name in mine}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("framework", choices=["torch", "jax"])
    parser.add_argument("--shape", default="20,32,64,64")
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    (shape,) = parse_shapes([options.shape])
    jobs = in_torch(shape) if options.framework == "torch" else in_jax(shape)
    least = {name: [float("inf")] * 2 for name in jobs}
    for turn in range(options.rounds + 1):
        for name, pair in jobs.items():
            for place, job in enumerate(pair):
                begun = time.process_time()
                job()
                if turn:  # the first one compiles
                    took = (time.process_time() - begun) * 1e3
                    least[name][place] = min(least[name][place], took)
    print(f"| {options.framework}, {shape.text}, ms | cellgen | its own loop | ratio |")
    print("|---|---|---|---|")
    for name, (mine, other) in least.items():
        print(f"| {name} | {mine:.2f} | {other:.2f} | {other / mine:.1f} |")


if __name__ == "__main__":
    main()
