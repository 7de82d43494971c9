"""Options that say what is shown and kept: derivatives, transforms, and misuse.

Values and gradients of each option are those of the kernel: ``tests/doors``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cellgen
import cellgen.jax
from cellgen.errors import ArgumentError
from tests.awkward_cells import cell_of_states
from tests.doors import OPTIONS
from tests.jax.arrays import call, drawn, function


def in_one_program(
    run: Callable[[Callable[[jax.Array], jax.Array]], object], f: Callable[[jax.Array], jax.Array]
) -> list[jax.Array]:
    """What is made of a function, compiled at once: operators are compiled one by one otherwise."""
    return jax.tree.leaves(jax.jit(lambda: run(f))())


@pytest.mark.parametrize(
    "option",
    [
        *("every, checkpoint", "limit"),
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("outputs, checkpoint", "every")),
    ],
)
def test_second_derivatives_and_transforms(option: str) -> None:
    cell, options = function("sru"), OPTIONS[option]
    given = drawn(cell, T=5)
    every = options.get("every", 1)

    def asked(x: jax.Array) -> jax.Array:
        y = call(cell, {**given, "x": x}, **options)
        return sum((v**2).sum() for v in y if v is not None)

    def plain(x: jax.Array) -> jax.Array:
        y = call(cell, {**given, "x": x})
        over_time = [y.h] if "outputs" in options else [y.h, y.c]
        return sum((v[every - 1 :: every] ** 2).sum() for v in over_time) + (y.c_last**2).sum()

    x, v = jnp.asarray(given["x"]), jnp.ones_like(given["x"])
    for run in (
        lambda f: jax.jvp(f, (x,), (v,)),
        lambda f: jax.jvp(jax.grad(f), (x,), (v,)),
        lambda f: jax.grad(lambda x: (jax.grad(f)(x) ** 2).sum())(x),
        lambda f: jax.vmap(jax.grad(f))(jnp.stack([x, 2 * x])),
    ):
        for one, other in zip(in_one_program(run, asked), in_one_program(run, plain), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every is 0, expected a number of steps, 1 for all or more"),
        ({"outputs": "h"}, "outputs is 'h', expected a tuple of some of h, c"),
        ({"products": "int8"}, "products is 'int8', which calls of frameworks do not have"),
        ({"products": "bf16"}, "products is 'bf16' and the arrays are float64"),
        ({"memory_limit": 10}, "memory_limit is 10 bytes, expected"),
        ({"last_only": True, "every": 2}, "are both given"),
    ],
)
def test_what_cannot_be_asked_for(options: Mapping[str, object], message: str) -> None:
    cell = function("sru")
    with pytest.raises(ArgumentError, match=message):
        call(cell, drawn(cell), **options)


def test_a_part_of_more_results_than_bits_of_a_number() -> None:
    for count in (40, 70):
        cell = cellgen.jax.function(cell_of_states(count))
        params = {f"b_h{k}": np.full(4, k / count) for k in range(count)}
        x, state = np.ones((3, 2, 4)), tuple(np.full((2, 4), k / count) for k in range(count))
        every = cell(params, x, state)._asdict()
        for options in ({"outputs": ("h3",)}, {"last_only": True}):
            if count > 63:
                with pytest.raises(ArgumentError, match=r"of 70 outputs some are left out"):
                    cell(params, x, state, **options)
                continue
            part = cell(params, x, state, **options)._asdict()
            formed = {name for name, array in part.items() if array is not None}
            assert formed == {n for n in every if n in options.get("outputs", ())} | {
                n for n in every if n.endswith("_last")
            }
            assert all(np.array_equal(part[name], every[name]) for name in formed)
