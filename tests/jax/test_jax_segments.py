"""Segments of time side by side through JAX: what is refused, and transforms."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cellgen.errors import ArgumentError
from tests.jax.arrays import call, drawn, function

SEGMENTS = {"parallel": "segments", "segments": 3, "sweeps": 9}


@pytest.mark.parametrize(
    ("cell", "how", "said"),
    [
        ("lif", {}, r"`s = spike\(v - threshold\)` jumps"),
        ("elman", {"mask": np.ones((9, 2), bool)}, "and mask is given"),
        ("elman", {"every": 2}, "and every is given"),
        ("elman", {"checkpoint": 4}, "and checkpoint is given"),
        ("elman", {"parallel": None}, "segments is 3 and parallel is None"),
        ("elman", {"dtype": "float16"}, "the arrays are float16, expected float32 or float64"),
    ],
)
def test_what_does_not_go_with_segments_is_refused(
    cell: str, how: dict[str, Any], said: str
) -> None:
    options = {**SEGMENTS, **how}
    given = drawn(function(cell), options.pop("dtype", "float32"), T=9)
    with pytest.raises(ArgumentError, match=said):
        call(function(cell), given, **options)


def test_transforms_give_what_those_of_steps_give() -> None:
    cell = function("sru")
    given = drawn(cell, "float32", T=9, I=3)

    def loss(x: jax.Array, **how: Any) -> jax.Array:
        return (call(cell, {**given, "x": x}, **how)[0] ** 2).sum()

    def cut(x: jax.Array) -> jax.Array:
        return loss(x, **SEGMENTS)

    x = jnp.asarray(given["x"])
    pairs = jnp.stack([x, x + 1])
    for transform, operand in (
        (jax.grad, x),
        (jax.vmap, pairs),
        (lambda f: jax.vmap(jax.grad(f)), pairs),
        (lambda f: lambda one: jax.jvp(f, (one,), (one,))[1], x),
        (lambda f: lambda one: jax.jvp(jax.grad(f), (one,), (one,))[1], x),
    ):
        found, wanted = (jax.jit(transform(f))(operand) for f in (cut, loss))
        np.testing.assert_array_equal(found, wanted)
