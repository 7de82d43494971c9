"""Options that say what is shown and kept: values and gradients of the kernels, to the bit."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cellgen
import cellgen.jax
from cellgen.errors import ArgumentError
from cellgen.jax.shown import last_step
from tests.jax.arrays import call, drawn, function

MASK = np.array([[1, 0], [1, 1], [0, 1]] * 2 + [[1, 0]], bool)
TABLES: Mapping[str, Mapping[str, object]] = {
    "all": {},
    "lengths": {"lengths": np.array([7, 4])},
    "mask": {"mask": MASK, "reverse": True},
}
OPTIONS: Mapping[str, Mapping[str, object]] = {
    "checkpoint": {"checkpoint": 3},
    "limit": {"memory_limit": 900},
    "every": {"every": 2},
    "every, checkpoint": {"every": 3, "checkpoint": 2},
    "outputs, checkpoint": {"outputs": ("h",), "checkpoint": 3},
    "products": {"products": "bf16"},
    "products, checkpoint": {"products": "bf16", "checkpoint": 2},
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(("name", "tables"), [("gru", "all"), ("sru", "lengths"), ("sru", "mask")])
def test_values_and_gradients_are_those_of_the_kernel(name: str, option: str, tables: str) -> None:
    cell, kernel = function(name), cellgen.load(name)
    options = {**TABLES[tables], **OPTIONS[option]}
    given = drawn(cell, "float32", T=7)
    wanted = kernel.sequence_forward(**given, save=True, **options)
    shown = {n: a for n, a in wanted._asdict().items() if n != "saved" and a is not None}
    for found in (call(cell, given, **options), jax.jit(lambda a: call(cell, a, **options))(given)):
        assert {n for n, a in found._asdict().items() if a is not None} == {*shown}
        for field, array in shown.items():
            np.testing.assert_array_equal(getattr(found, field), array, err_msg=field)
    numbers = np.random.default_rng(1)
    ups = {n: numbers.normal(size=a.shape).astype("float32") for n, a in shown.items()}

    def run(arrays: dict[str, jax.Array]) -> dict[str, jax.Array]:
        found = call(cell, arrays, **options)._asdict()
        return {n: found[n] for n in ups}

    gradients = jax.jit(lambda a: jax.vjp(run, a)[1](ups))(given)[0]
    read = {a.name for a in kernel.sequence_backward.function.arguments}
    part = "every" in options or "outputs" in options or wanted.saved.run.checkpoint
    kept = {} if part else {n: a for n, a in shown.items() if n in read}
    how = {n: v for n, v in options.items() if n == "products"}
    upstream = {f"d_{n}": up for n, up in ups.items() if f"d_{n}" in read}
    expected = kernel.sequence_backward(**given, **kept, saved=wanted.saved, **upstream, **how)
    for item in cell.layout.gradients:
        array = np.asarray(gradients[item.name.removeprefix("d_")])
        np.testing.assert_array_equal(array, getattr(expected, item.name), err_msg=item.name)


@pytest.mark.parametrize("checkpoint", [0, 3])
@pytest.mark.parametrize("tables", TABLES)
def test_of_the_last_step_alone(tables: str, checkpoint: int) -> None:
    cell, steps = function("sru"), TABLES[tables]
    given = drawn(cell, T=7)
    options = {**steps, "last_only": True, "checkpoint": checkpoint}
    found = call(cell, given, **options)
    wanted = cellgen.load("sru").sequence_forward(**given, **steps, last_only=True)
    assert found.c is None
    np.testing.assert_array_equal(found.h, wanted.h)
    np.testing.assert_array_equal(found.c_last, wanted.c_last)

    def asked(arrays: dict[str, jax.Array]) -> jax.Array:
        y = call(cell, arrays, **options)
        return (y.h**2).sum() + (y.c_last**2).sum()

    def plain(arrays: dict[str, jax.Array]) -> jax.Array:
        y = call(cell, arrays, **steps)
        h = last_step(y.h, {n: jnp.asarray(v) for n, v in steps.items()}, tables == "mask")
        return (h**2).sum() + (y.c_last**2).sum()

    for name, gradient in jax.grad(asked)(given).items():
        np.testing.assert_array_equal(gradient, jax.grad(plain)(given)[name])


@pytest.mark.parametrize("option", ["every, checkpoint", "outputs, checkpoint", "every", "limit"])
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
        for one, other in zip(
            jax.tree.leaves(run(asked)), jax.tree.leaves(run(plain)), strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12)


def test_arrays_batch_first() -> None:
    cell = function("sru")
    given = drawn(cell, T=7)
    turned = {**given, "x": given["x"].swapaxes(0, 1)}
    for options in ({"every": 2}, {"last_only": True}, {"outputs": ("h",)}):
        wanted = call(cell, given, **options)
        found = call(cell, turned, **options, batch_first=True)
        for one, other in zip(wanted, found, strict=True):
            if one is not None:
                other = other.swapaxes(0, 1) if other.ndim == 3 else other
                np.testing.assert_array_equal(one, other)


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
