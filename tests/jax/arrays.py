"""Arrays for a call of any cell, drawn, and two cells as loops of JAX's own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import cellgen.jax
from cellgen.api import shipped_names
from cellgen.jax import CellFunction

SIZES = {"T": 3, "B": 2, "I": 2, "H": 3, "K": 2, "D": 2, "M": 3, "P": 2}
SHIPPED = shipped_names()
POSITIVE = ("tau", "ts", "n_prev")


def function(name: str) -> CellFunction:
    return cellgen.jax.function(name)


def drawn(
    cell: CellFunction, dtype: str = "float64", seed: int = 0, **sizes: int
) -> dict[str, np.ndarray]:
    """Arrays of a call by name: small numbers, positive where a cell divides by them."""
    numbers, made = np.random.default_rng(seed), {}
    own = {dim: SIZES.get(dim, 2) for dim in cell.layout.dims} | sizes
    for item in cell.layout.theta:
        value = numbers.normal(size=cell.layout.shape(item.name, own)) * 0.4
        if item.name in POSITIVE:
            value = abs(value) + 0.5
        made[item.name] = np.asarray(value, dtype)
    return made


def call(cell: CellFunction, arrays: dict[str, object], **options: object) -> tuple:
    """A call with all arrays by name."""

    def some(names: tuple[str, ...]) -> dict[str, object]:
        return {name: arrays[name] for name in names if name in arrays}

    return cell(some(cell.params), some(cell.inputs), some(cell.states), **options)


def loop(cell: str, arrays: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """The GRU of cuDNN's kind, and Elman's network, by ``lax.scan``."""
    p, sigmoid = arrays, jax.nn.sigmoid

    def elman(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = jnp.tanh(x @ p["w"] + h @ p["u"] + p["b"])
        return h, h

    def gru(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        z = sigmoid(x @ p["w_z"] + h @ p["u_z"] + p["b_z"])
        r = sigmoid(x @ p["w_r"] + h @ p["u_r"] + p["b_r"])
        n = jnp.tanh(x @ p["w_n"] + p["b_n"] + r * (h @ p["u_n"] + p["c_n"]))
        h = (1 - z) * n + z * h
        return h, h

    last, over_time = jax.lax.scan({"elman": elman, "gru": gru}[cell], p["h_prev"], p["x"])
    return over_time, last
