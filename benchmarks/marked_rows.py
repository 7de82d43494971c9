"""How often gates by key are so strong that rows are marked, and done again without plain products.

    python benchmarks/marked_rows.py

A line for each law of gates: the share of chunks, and that of rows and heads over a sequence, in
which the logarithms of some key's decay add up to less than ``LIMIT`` within a chunk. Laws are
those that cells are begun with, of projections whose deviation is that of a layer with uniform
weights (1/sqrt(3); 1/3 where it has two), and the same with projections that have grown. "Held":
half of their variance is the same at all steps, as of a gate that stays shut. Sums are formed in
float32, of numbers as float32 and as bfloat16 hold them. Nothing here needs a device.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from cellgen.runtime.device.arrays import to_bfloat16

LIMIT = -120.0
"""``LIMIT`` of ``templates/triton/memory_head.py.j2``."""
ROWS, HEADS, STEPS = 4, 16, 2048
ONE, TWO = 3**-0.5, 1 / 3
Numbers: TypeAlias = npt.NDArray[np.float64]
Law: TypeAlias = Callable[[Numbers, np.random.Generator], Numbers]
"""Logarithms of decays (rows, heads, steps, keys), of projections of that shape."""


def log_sigmoid(x: Numbers) -> Numbers:
    """The logarithm of a sigmoid."""
    return -np.logaddexp(0, -x)


def gla(z: Numbers, numbers: np.random.Generator) -> Numbers:
    """A sixteenth of the logarithm of a sigmoid."""
    return log_sigmoid(z) / 16


def hgrn2(z: Numbers, numbers: np.random.Generator) -> Numbers:
    """That of a sigmoid, of a lowest layer, where no gate has a lower bound."""
    return log_sigmoid(z)


def kda(z: Numbers, numbers: np.random.Generator) -> Numbers:
    """Mamba-2's ranges, with steps by key: rates of 1 to 16 a head, steps of 1e-3 to 1e-1."""
    rate = numbers.uniform(1, 16, (1, z.shape[1], 1, 1))
    dt = np.exp(numbers.uniform(np.log(1e-3), np.log(1e-1), (1, z.shape[1], 1, z.shape[3])))
    return -rate * np.logaddexp(0, z + np.log(np.expm1(dt)))


def rwkv6(z: Numbers, numbers: np.random.Generator) -> Numbers:
    """``-exp(w)``, w from -6 to -1 over a layer's channels, as in its middle layers."""
    heads, keys = z.shape[1], z.shape[3]
    place = np.linspace(0, 1, heads * keys).reshape(1, heads, 1, keys)
    return -np.exp(-6 + 5 * place**1.35 + z)


def rwkv7(z: Numbers, numbers: np.random.Generator) -> Numbers:
    """``-exp(-1/2) sigmoid(w)``: bounded, never marked."""
    return -np.exp(-0.5) / (1 + np.exp(-z))


LAWS: tuple[tuple[str, Law, tuple[float, ...]], ...] = (
    ("gla", gla, (TWO, 2.0, 4.0)),
    ("kda, gated_delta_net_2", kda, (TWO, ONE, 1.0, 2.0)),
    ("rwkv6", rwkv6, (0.1, 0.5, 1.0)),
    ("hgrn2", hgrn2, (ONE, 1.0, 2.0, 3.0)),
    ("rwkv7", rwkv7, (4.0,)),
)


def projections(deviation: float, held: bool, keys: int, numbers: np.random.Generator) -> Numbers:
    """Normal numbers; half of their variance is the same at all steps where it is held."""
    z = numbers.standard_normal((ROWS, HEADS, STEPS, keys))
    if held:
        z = (z + numbers.standard_normal((ROWS, HEADS, 1, keys))) * 0.5**0.5
    return deviation * z


def marked(log_decay: Numbers, chunk: int) -> tuple[float, float]:
    """The share of chunks that mark, and that of rows and heads that are marked."""
    sums = log_decay.reshape(ROWS, HEADS, -1, chunk, log_decay.shape[3]).sum(3)
    marks = sums.min(3) < LIMIT
    return float(marks.mean()), float(marks.any(2).mean())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keys", type=int, default=64, help="keys of a head")
    parser.add_argument(
        "--chunks", type=int, nargs="*", default=[64, 32, 16], help="steps of a chunk"
    )
    chosen = parser.parse_args()
    print("law | deviation | held | type | " + " | ".join(f"chunks of {c}" for c in chosen.chunks))
    for name, law, deviations in LAWS:
        for deviation in deviations:
            for held in (False, True):
                numbers = np.random.default_rng(0)
                drawn = law(projections(deviation, held, chosen.keys, numbers), numbers)
                exact = np.maximum(drawn, -80.0).astype(np.float32)
                narrow = (to_bfloat16(exact).astype(np.uint32) << 16).view(np.float32)
                for kind, decays in (("float32", exact), ("bfloat16", narrow)):
                    shares = [marked(decays, chunk) for chunk in chosen.chunks]
                    text = " | ".join(f"{a:.2%} / {b:.2%}" for a, b in shares)
                    print(f"{name} | {deviation:.2f} | {held} | {kind} | {text}", flush=True)


if __name__ == "__main__":
    main()
