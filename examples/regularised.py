"""Train a regularised GRU on the adding problem, then repeat a part of the run, bit for bit.

Each sequence holds random numbers, two of them marked; the answer is their sum (Hochreiter &
Schmidhuber 1997). The cell is made by two functions from cell to cell; its masks are drawn anew at
every training step, and drawn again when steps are repeated.

    python examples/regularised.py
"""

import sys
from dataclasses import dataclass

import numpy as np

import cellgen
from cellgen.cells import GRU
from cellgen.masks import draw_masks
from cellgen.regularise import masks_of, variational_dropout, zoneout

CELL = zoneout(variational_dropout(GRU, inputs=()))
RATES = {"mask_h": 0.1, "keep_h": 0.1}
SIZES = {"B": 64, "I": 2, "H": 32}
STEPS, SEED, LEARNING_RATE = 20, 0, 0.01


@dataclass(frozen=True)
class Run:
    """Weights (the last two of a linear read-out) and Adam's two averages of their gradients."""

    weights: dict[str, np.ndarray]
    first: dict[str, np.ndarray]
    second: dict[str, np.ndarray]
    step: int = 0


def start() -> Run:
    rng, weights = np.random.default_rng(SEED), {}
    for value in CELL.definition.parameters:
        shape = tuple(SIZES[str(axis)] for axis in value.shape)
        scale = 1 / np.sqrt(SIZES["H"]) if len(shape) == 2 else 0.0
        weights[str(value)] = (scale * rng.standard_normal(shape)).astype(np.float32)
    weights["v"] = (rng.standard_normal(SIZES["H"]) / np.sqrt(SIZES["H"])).astype(np.float32)
    weights["a"] = np.zeros(1, np.float32)
    zeros = {name: np.zeros_like(array) for name, array in weights.items()}
    return Run(weights, zeros, zeros)


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers and marks (T, B, 2), and the sums (B,), of one training step."""
    rng = np.random.default_rng([SEED, step])
    x = np.zeros((STEPS, SIZES["B"], 2), np.float32)
    x[..., 0] = rng.random((STEPS, SIZES["B"]))
    rows = np.arange(SIZES["B"])
    for half in (rng.integers(0, STEPS // 2, SIZES["B"]), rng.integers(STEPS // 2, STEPS, 64)):
        x[half, rows, 1] = 1
    return x, (x[..., 0] * x[..., 1]).sum(axis=0)


def arguments_of(run: Run, x: np.ndarray, training: bool) -> dict[str, np.ndarray]:
    masks = draw_masks(
        masks_of(CELL), SIZES, RATES, seed=SEED, step=run.step, steps=STEPS, training=training
    )
    cell = {name: array for name, array in run.weights.items() if name not in "va"}
    start = np.zeros((SIZES["B"], SIZES["H"]), np.float32)
    return {"x": x, "h_prev": start, **cell, **masks}


def error_of(kernel: cellgen.Kernel, run: Run, step: int) -> float:
    """Mean squared error at inference, where the masks are their means."""
    x, sums = batch(step)
    h = kernel.sequence_forward(**arguments_of(run, x, training=False)).h_last
    return float(np.mean((h @ run.weights["v"] + run.weights["a"] - sums) ** 2))


def trained(kernel: cellgen.Kernel, run: Run) -> Run:
    """One step of Adam (Kingma & Ba 2015)."""
    x, sums = batch(run.step)
    arguments = arguments_of(run, x, training=True)
    y = kernel.sequence_forward(**arguments, save=True)
    d_y = 2 / SIZES["B"] * (y.h_last @ run.weights["v"] + run.weights["a"] - sums)
    d_h_last = np.outer(d_y, run.weights["v"]).astype(np.float32)
    found = kernel.sequence_backward(**arguments, h=y.h, saved=y.saved, d_h_last=d_h_last)
    gradients = {n: getattr(found, f"d_{n}") for n in run.weights if n not in "va"}
    gradients |= {"v": y.h_last.T @ d_y, "a": d_y.sum(keepdims=True)}
    count = run.step + 1
    weights, first, second = {}, {}, {}
    for name, gradient in gradients.items():
        first[name] = 0.9 * run.first[name] + 0.1 * gradient
        second[name] = 0.999 * run.second[name] + 0.001 * gradient**2
        spread = np.sqrt(second[name] / (1 - 0.999**count)) + 1e-8
        move = LEARNING_RATE * first[name] / (1 - 0.9**count) / spread
        weights[name] = (run.weights[name] - move).astype(np.float32)
    return Run(weights, first, second, count)


def main() -> None:
    kernel = cellgen.compile(CELL)
    run = kept = start()
    for _ in range(600):
        if run.step % 100 == 0:
            print(f"step {run.step:4}  error {error_of(kernel, run, 10**6):.4f}")
        if run.step == 500:
            kept = run
        run = trained(kernel, run)
    error = error_of(kernel, run, 10**6)
    again = kept
    while again.step < run.step:
        again = trained(kernel, again)
    same = all(np.array_equal(again.weights[n], a) for n, a in run.weights.items())
    print(f"step {run.step:4}  error {error:.4f}; the mean of all sums would give {1 / 6:.4f}")
    print(f"steps {kept.step} to {run.step} again: {'the same bits' if same else 'DIFFERENT'}")
    sys.exit(0 if same and error < 1 / 60 else 1)


if __name__ == "__main__":
    main()
