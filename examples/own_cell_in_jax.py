"""Train a cell of one's own in JAX, and the same equations by ``lax.scan``: the same curve.

Data: the licence that comes with Python, or pages of its manual. Model: a gated unit over embedded
characters that predicts the next one. Training: gradient descent with momentum, 200 steps on the
same pieces of text, from the same weights.

    python examples/own_cell_in_jax.py
"""

from __future__ import annotations

import pydoc_data.topics
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import cellgen.jax
from cellgen import Bias, Cell, H, I, Input, State, Weight, sigmoid, tanh

STEPS, T, B, WIDE, HIDDEN = 200, 48, 16, 32, 96

Params = dict[str, jax.Array]
Run = Callable[[Params, jax.Array], jax.Array]


class Leaky(Cell):
    """A gated unit whose candidate is leaked into the state by a gate of the input alone."""

    x, h_prev = Input(I), State(H)
    w_f, b_f = Weight(I, H), Bias(H)
    w_c, u_c, b_c = Weight(I, H), Weight(H, H), Bias(H)

    f = sigmoid(x @ w_f + b_f)
    c = tanh(x @ w_c + h_prev @ u_c + b_c)
    h = (1 - f) * h_prev + f * c


def by_scan(p: Params, x: jax.Array) -> jax.Array:
    """The same equations in JAX."""

    def step(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        f = jax.nn.sigmoid(x @ p["w_f"] + p["b_f"])
        c = jnp.tanh(x @ p["w_c"] + h @ p["u_c"] + p["b_c"])
        h = (1 - f) * h + f * c
        return h, h

    return jax.lax.scan(step, jnp.zeros((x.shape[1], HIDDEN), x.dtype), x)[1]


def by_cellgen(leaky: cellgen.jax.CellFunction) -> Run:
    """The kernel that is compiled from the declaration."""

    def run(p: Params, x: jax.Array) -> jax.Array:
        h: jax.Array = leaky({name: p[name] for name in leaky.params}, x).h
        return h

    return run


def text() -> np.ndarray:
    """The characters of the text as numbers."""
    file = Path(sysconfig.get_path("stdlib"), "LICENSE.txt")
    pages = (pydoc_data.topics.topics[name] for name in ("execmodel", "objects"))
    written = file.read_text(encoding="utf-8") if file.is_file() else "\n".join(pages)
    letters = sorted(set(written))
    return np.array([letters.index(letter) for letter in written], np.int32)


def pieces(characters: np.ndarray) -> np.ndarray:
    """Pieces of text for every step: (STEPS, T + 1, B)."""
    starts = np.random.default_rng(0).integers(0, len(characters) - T - 1, (STEPS, B))
    return characters[starts[:, None, :] + np.arange(T + 1)[None, :, None]]


def start(letters: int, leaky: cellgen.jax.CellFunction) -> Params:
    """The weights before the first step."""
    of_cell, of_embedding, of_readout = jax.random.split(jax.random.key(1), 3)
    drawn = jax.nn.initializers.glorot_uniform()
    around = {
        "embed": jax.random.normal(of_embedding, (letters, WIDE)) * letters**-0.5,
        "read": drawn(of_readout, (HIDDEN, letters)),
        "offset": jnp.zeros(letters),
    }
    return {**leaky.init(of_cell, I=WIDE, H=HIDDEN), **around}


def train(run: Run, params: Params, data: np.ndarray) -> tuple[list[float], float]:
    """The curve of the loss, and seconds of all steps but the first, which compiles."""

    def loss(p: Params, piece: jax.Array) -> jax.Array:
        logits = run(p, p["embed"][piece[:-1]]) @ p["read"] + p["offset"]
        scores = jax.nn.log_softmax(logits)
        return -jnp.take_along_axis(scores, piece[1:, :, None], -1).mean()

    @jax.jit
    def step(p: Params, speed: Params, piece: jax.Array) -> tuple[jax.Array, Params, Params]:
        value, gradients = jax.value_and_grad(loss)(p, piece)
        speed = jax.tree.map(lambda v, g: 0.9 * v - 0.2 * g, speed, gradients)
        return value, jax.tree.map(jnp.add, p, speed), speed

    speed, curve, begun = jax.tree.map(np.zeros_like, params), [], time.perf_counter()
    for number, piece in enumerate(data):
        value, params, speed = step(params, speed, piece)
        curve.append(float(value))
        begun = time.perf_counter() if number == 0 else begun
    return curve, time.perf_counter() - begun


def curves() -> tuple[list[float], list[float], float, float]:
    """Both curves, and the seconds of both."""
    leaky, characters = cellgen.jax.function(Leaky), text()
    params = jax.jit(lambda: start(int(characters.max()) + 1, leaky))()  # one program draws all
    data = pieces(characters)
    ours, seconds = train(by_cellgen(leaky), params, data)
    scan, of_scan = train(by_scan, params, data)
    return ours, scan, seconds, of_scan


def main() -> None:
    ours, scan, seconds, of_scan = curves()
    print("step   cellgen  lax.scan")
    for number in (*range(0, STEPS, 40), STEPS - 1):
        print(f"{number:4}   {ours[number]:7.4f}  {scan[number]:8.4f}")
    apart = max(abs(a - b) for a, b in zip(ours, scan, strict=True))
    print(f"largest difference {apart:.1e}; {seconds:.2f} s and {of_scan:.2f} s")
    sys.exit(0 if apart < 1e-3 and ours[-1] < ours[0] else 1)


if __name__ == "__main__":
    main()
