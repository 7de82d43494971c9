"""Cells whose state is a matrix, beside bare passes over it and beside other libraries' loops.

    python -m benchmarks.memories --peers none            (NumPy alone)
    python -m benchmarks.memories --peers jax             (in an environment with JAX)
    python -m benchmarks.memories --peers torch           (in an environment with PyTorch)

The cells are bare steps: queries, keys, values and gates are inputs; no projection is timed.
`pass` is one read and one write of the state, as a copy of as many bytes within the memory that
holds it, once a step. Forward passes show the outputs of the last step alone, so that no state goes
to memory. `reverse part` is a backward pass of a segment alone, for as many rows as keep what its
forward pass saves in a core's cache, and counted for all rows; `backward, checkpoints` runs forward
over each segment first. `training` is a forward pass that saves and its backward pass. A segment
has about the root of T steps. Float32; calls of a kind take turns; a figure is the least processor
time of all rounds, that of all threads.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import cellgen
from cellgen import Cell, Input, State
from cellgen.bench.device import describe
from cellgen.language.ops import exp, expand_dims, outer
from cellgen.language.value import Dim

D, K = Dim("D"), Dim("K")
SHAPES = ((1000, 8, 64, 64), (256, 32, 128, 128))
HEAD = "| cell | T, B, D, K | what | us a step | passes | by the peer |"
IN_CACHE = 768 << 10
Run = Callable[[], object]
Arrays = dict[str, np.ndarray]


class GatedDelta(Cell):
    """The step of a gated delta rule (arXiv:2412.06464, equation 10)."""

    q, k, v = Input(K), Input(K), Input(D)
    alpha, beta, s_prev = Input(1), Input(1), State(D, K)
    r = expand_dims(alpha, -1) * s_prev
    s = r + outer(beta * (v - r @ k), k)
    h = s @ q
    outputs = h, s


class GatedLinear(Cell):
    """The step of gated linear attention (arXiv:2312.06635, section 4)."""

    q, k, v, alpha, s_prev = Input(K), Input(K), Input(D), Input(K), State(K, D)
    s = expand_dims(alpha, -1) * s_prev + outer(k, v)
    h = q @ s
    outputs = h, s


class SelectiveScan(Cell):
    """The step of a selective state space, diagonal (arXiv:2312.00752, equation 2)."""

    q, k, v, dt, s_prev = Input(K), Input(K), Input(D), Input(D), State(D, K)
    s = s_prev * exp(-expand_dims(dt, -1)) + outer(dt * v, k)
    h = s @ q
    outputs = h, s


CELLS: dict[str, type[Cell]] = {
    "gated delta rule": GatedDelta,
    "gated linear attention": GatedLinear,
    "selective scan": SelectiveScan,
}


def step(name: str, lib: Any, s: Any, x: dict[str, Any]) -> tuple[Any, Any]:
    """The same step by another library's arrays; rows are the first axis."""
    if name == "gated delta rule":
        r = x["alpha"][:, :, None] * s
        read = lib.einsum("bdk,bk->bd", r, x["k"])
        s = r + (x["beta"] * (x["v"] - read))[:, :, None] * x["k"][:, None, :]
    elif name == "gated linear attention":
        s = s * x["alpha"][:, :, None] + x["k"][:, :, None] * x["v"][:, None, :]
        return s, lib.einsum("bkd,bk->bd", s, x["q"])
    else:
        decay = lib.exp(-x["dt"])[:, :, None]
        s = s * decay + (x["dt"] * x["v"])[:, :, None] * x["k"][:, None, :]
    return s, lib.einsum("bdk,bk->bd", s, x["q"])


def drawn(kernel: Any, shape: tuple[int, ...]) -> Arrays:
    """Inputs (T, B, ..), gates between 0 and 1, keys of length 1; the state starts at zero."""
    sizes = dict(zip("TBDK", shape, strict=True)) | {"1": 1}
    rng = np.random.default_rng(0)
    given: Arrays = {}
    for item in kernel.sequence_forward.function.arguments:
        array = rng.standard_normal([sizes[axis] for axis in item.shape]).astype(np.float32)
        if item.name in ("alpha", "beta", "dt"):
            array = 1 / (1 + np.exp(-array - 2))
        if item.name == "k":
            array /= np.linalg.norm(array, axis=-1, keepdims=True)
        given[item.name] = np.ascontiguousarray(array, np.float32)
    given["s_prev"][...] = 0
    return given


def reverse_part(kernel: Any, shape: tuple[int, ...], threads: int) -> tuple[Run, float]:
    """A backward pass from values in cache, and how often it is the steps and rows of a shape."""
    steps, one = round(shape[0] ** 0.5), 4 * shape[2] * shape[3]
    rows = max(1, min(shape[1], IN_CACHE // (steps * one)))
    given = drawn(kernel, (steps, rows, *shape[2:]))
    run = kernel.sequence_forward(**given, save=True, threads=threads)
    reads = {item.name for item in kernel.sequence_backward.function.arguments}
    kept = {name: a for name, a in run._asdict().items() if name in reads}
    how = {**given, **kept, "saved": run.saved, "d_h": np.ones_like(run.h), "threads": threads}
    return kernel.sequence_backward.bind(**how), shape[0] * shape[1] / (steps * rows)


def ours(cell: type[Cell], shape: tuple[int, ...], threads: int) -> tuple[dict[str, Run], Arrays]:
    """The calls of a kernel: passes, and a training step with and without checkpoints."""
    kernel = cellgen.compile(cell)
    given = drawn(kernel, shape)
    above = np.ones((shape[0], *shape[1:3]), np.float32)
    forward, backward = kernel.sequence_forward, kernel.sequence_backward

    def trained(**how: object) -> object:
        run = forward(**given, save=True, threads=threads, **how)
        kept = {} if how else {"h": run.h, "s": run.s}  # checkpoints stand for them
        names = {item.name for item in backward.function.arguments}
        kept = {name: array for name, array in kept.items() if name in names}
        return backward(**given, **kept, saved=run.saved, d_h=above, threads=threads)

    segments: dict[str, Any] = {"last_only": True, "checkpoint": round(shape[0] ** 0.5)}
    saved = forward(**given, save=True, threads=threads, **segments).saved
    calls: dict[str, Run] = {
        "forward": partial(forward, **given, last_only=True, threads=threads),
        "backward, checkpoints": partial(
            backward, **given, saved=saved, d_h=above, threads=threads
        ),
        "training": trained,
        "training, checkpoints": partial(trained, **segments),
    }
    return calls, given


def repeated(call: Run, times: int) -> None:
    """A short call so many times."""
    for _ in range(times):
        call()


def bare_pass(shape: tuple[int, ...]) -> Run:
    """One read and one write of the state for every step."""
    source = np.ones(shape[1:], np.float32)
    target = np.empty_like(source)

    def run() -> None:
        for _ in range(shape[0]):
            np.copyto(target, source)

    return run


def by_jax(name: str, given: Arrays) -> dict[str, Run]:
    """``lax.scan`` in one compiled program."""
    import jax
    import jax.numpy as jnp

    arrays = {n: jnp.asarray(a) for n, a in given.items() if n != "s_prev"}
    start = jnp.asarray(given["s_prev"])

    def shown(arrays: Any, start: Any) -> Any:
        return jax.lax.scan(lambda s, x: step(name, jnp, s, x), start, arrays)

    loss = jax.jit(jax.grad(lambda a, s: shown(a, s)[1].sum(), argnums=(0, 1)))
    forward = jax.jit(shown)
    return {
        "forward": lambda: jax.block_until_ready(forward(arrays, start)),
        "training": lambda: jax.block_until_ready(loss(arrays, start)),
    }


def by_torch(name: str, given: Arrays) -> dict[str, Run]:
    """A loop over a compiled step, and its autograd."""
    import torch

    arrays = {n: torch.from_numpy(a).requires_grad_() for n, a in given.items() if n != "s_prev"}
    start = torch.from_numpy(given["s_prev"]).requires_grad_()
    one = torch.compile(partial(step, name, torch))

    def loop() -> Any:
        s, shown = start, []
        parts = {n: a.unbind(0) for n, a in arrays.items()}
        for t in range(len(parts["q"])):
            s, h = one(s, {n: part[t] for n, part in parts.items()})
            shown.append(h)
        return torch.stack(shown)

    def forward() -> None:
        with torch.no_grad():
            loop()

    def training() -> None:
        torch.autograd.grad(loop().sum(), [*arrays.values(), start])

    return {"forward": forward, "training": training}


PEERS = {"jax": by_jax, "torch": by_torch}


def timed(calls: dict[str, Run], rounds: int) -> dict[str, float]:
    """The least processor time of each call, in turn, after one that is not counted."""
    best = dict.fromkeys(calls, float("inf"))
    for turn in range(rounds + 1):
        for name, call in calls.items():
            before = time.process_time()
            call()
            if turn:
                best[name] = min(best[name], time.process_time() - before)
        print(f"\r{turn}/{rounds}", end="", file=sys.stderr, flush=True)
    print("\r", end="", file=sys.stderr)
    return best


def table(name: str, shape: tuple[int, ...], peer: str, threads: int, rounds: int) -> list[str]:
    """The rows of one cell at one shape."""
    calls, given = ours(CELLS[name], shape, threads)
    calls["pass"] = bare_pass(shape)
    reverse, times = reverse_part(cellgen.compile(CELLS[name]), shape, threads)
    calls["reverse part"] = partial(repeated, reverse, 20)
    weight = {"reverse part": times / 20}
    others = PEERS[peer](name, given) if peer != "none" else {}
    calls |= {f"{what} by {peer}": call for what, call in others.items()}
    best: dict[str, float] = {}
    passes = ("forward", "reverse", "backward")  # do not pay for what training lets go of
    for kind in (passes, ("training",)):
        found = timed({n: c for n, c in calls.items() if n.startswith((*kind, "pass"))}, rounds)
        best |= {n: min(seconds, best.get(n, seconds)) for n, seconds in found.items()}
    best = {name: seconds * weight.get(name, 1) for name, seconds in best.items()}
    rows = []
    for what in calls:
        us = 1e6 * best[what] / shape[0]
        rival = best.get(f"{what.partition(',')[0]} by {peer}")
        ratio = f"{rival / best[what]:.2f}" if rival else ""
        label = ", ".join(map(str, shape))
        rows.append(
            f"| {name} | {label} | {what} | {us:.2f} | {best[what] / best['pass']:.2f} | {ratio} |"
        )
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cells", nargs="*", help=f"of {', '.join(CELLS)}")
    parser.add_argument("--peers", choices=("none", *PEERS), default="none")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--small", action="store_true", help="a shape for a first look")
    asked = parser.parse_args()
    print(describe(("numpy",)))
    print(HEAD)
    print("|---|---|---|---|---|---|")
    for name in asked.cells or CELLS:
        for shape in ((50, 2, 16, 16),) if asked.small else SHAPES:
            print("\n".join(table(name, shape, asked.peers, asked.threads, asked.rounds)))


if __name__ == "__main__":
    main()
