"""The door of JAX: the function of a cell, called, compiled, and differentiated."""

from __future__ import annotations

import jax
import numpy as np

import cellgen.jax
from tests.doors import Case, Results
from tests.jax.arrays import call


def function(case: Case) -> Results:
    """``cellgen.jax.function``, by itself and compiled by XLA."""
    cell, names = cellgen.jax.function(case.cell), tuple(case.upstream)

    def run(arrays: dict[str, jax.Array]) -> dict[str, jax.Array | None]:
        return call(cell, arrays, **case.options)._asdict()

    shown, compiled = run(case.arguments), jax.jit(run)(case.arguments)
    for name, array in shown.items():
        assert array is compiled[name] or np.array_equal(array, compiled[name]), name

    def of_upstream(arrays: dict[str, jax.Array]) -> dict[str, jax.Array]:
        found = run(arrays)
        return {name: found[name] for name in names}

    pull = jax.jit(lambda a: jax.vjp(of_upstream, a)[1](case.upstream))
    gradients = {n: np.asarray(g) for n, g in pull(case.arguments)[0].items()}
    learned = {item.name.removeprefix("d_") for item in cell.layout.gradients}
    return Results(
        {n: None if a is None else np.asarray(a) for n, a in shown.items()},
        {n: g for n, g in gradients.items() if n in learned},
    )
