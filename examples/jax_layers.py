"""Any cell as a layer of Flax (nnx) and of Equinox: thin, since a cell is a pure function.

python examples/jax_layers.py
"""

from __future__ import annotations

import sys
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from flax import nnx

import cellgen.jax
from cellgen.cells import GRU


class FlaxLayer(nnx.Module):
    """A cell over time with its weights as ``nnx.Param``, by the names of the declaration."""

    def __init__(self, cell: Any, *, rngs: nnx.Rngs, **sizes: int) -> None:
        self.cell = cellgen.jax.function(cell)
        for name, array in self.cell.init(rngs.params(), **sizes).items():
            setattr(self, name, nnx.Param(array))

    def __call__(self, x: jax.Array, state: Any = None, **options: Any) -> Any:
        params = {n: getattr(self, n)[...] for n in self.cell.params if hasattr(self, n)}
        return self.cell(params, x, state, **options)


class EquinoxLayer(eqx.Module):
    """A cell over time with its weights as leaves, by the names of the declaration."""

    params: dict[str, jax.Array]
    cell: cellgen.jax.CellFunction = eqx.field(static=True)

    def __init__(self, cell: Any, *, key: jax.Array, **sizes: int) -> None:
        self.cell = cellgen.jax.function(cell)
        self.params = self.cell.init(key, **sizes)

    def __call__(self, x: jax.Array, state: Any = None, **options: Any) -> Any:
        return self.cell(self.params, x, state, **options)


def main() -> None:
    x = jax.random.normal(jax.random.key(0), (20, 8, 5))  # (T, B, I)

    def loss(layer: Any) -> jax.Array:
        return ((layer(x).h_last - 0.5) ** 2).mean()

    flax = FlaxLayer(GRU, I=5, H=16, rngs=nnx.Rngs(0))
    equinox = EquinoxLayer(GRU, I=5, H=16, key=jax.random.key(0))
    first = float(loss(flax)), float(loss(equinox))
    of_flax, of_equinox = nnx.jit(nnx.grad(loss)), eqx.filter_jit(eqx.filter_grad(loss))
    for _ in range(50):
        state = jax.tree.map(lambda w, g: w - 0.5 * g, nnx.state(flax, nnx.Param), of_flax(flax))
        nnx.update(flax, state)
        descent = jax.tree.map(lambda g: -0.5 * g, of_equinox(equinox))
        equinox = eqx.apply_updates(equinox, descent)
    last = float(loss(flax)), float(loss(equinox))
    print(f"loss of Flax's layer     {first[0]:.4f} -> {last[0]:.4f}")
    print(f"loss of Equinox's layer  {first[1]:.4f} -> {last[1]:.4f}")
    sys.exit(0 if max(last) < 0.1 * min(first) and jnp.isfinite(jnp.array(last)).all() else 1)


if __name__ == "__main__":
    main()
