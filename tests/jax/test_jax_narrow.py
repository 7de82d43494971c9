"""Arrays of 16 bits in JAX: the numbers of the kernel's own calls, to the bit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cellgen
from cellgen.errors import ArgumentError
from tests.cover import each_time
from tests.doors.narrow import CELLS, MASK, OPTIONS, SIZES, cell_of, of_backward
from tests.jax.arrays import SHIPPED, call, drawn, function

DTYPES = ("bfloat16", "float16")


def narrow(name: str, dtype: str, **sizes: int) -> dict[str, np.ndarray]:
    """Arrays of a call in 16 bits."""
    made = drawn(function(name), "float32", **(SIZES | sizes))
    return {n: np.asarray(jnp.asarray(array, dtype)) for n, array in made.items()}


def assert_same(found: Any, wanted: np.ndarray, name: str) -> None:
    """Of one type and equal bits; of what is no number, that it is none."""
    assert found.dtype == wanted.dtype, name
    wide = (np.asarray(array).astype(np.float32) for array in (found, wanted))
    np.testing.assert_array_equal(*wide, err_msg=name)


def as_the_kernel_does(name: str, given: dict[str, np.ndarray], how: dict[str, Any]) -> None:
    """Values and gradients beside the kernel's own functions on the same arrays."""
    kernel, cell = cellgen.load(name), function(name)
    scalars = {n: float(array) for n, array in given.items() if array.ndim == 0}
    plain = {n: array for n, array in given.items() if n not in scalars} | scalars
    run = kernel.sequence_forward(**plain, save=True, **how)
    dtype = given["x"].dtype if "x" in given else next(iter(given.values())).dtype
    first = next(item.name for item in cell.layout.outputs if getattr(run, item.name) is not None)
    up = np.random.default_rng(1).normal(size=getattr(run, first).shape).astype(dtype)

    def both(arrays: dict[str, Any]) -> Any:
        found, pull = jax.vjp(lambda own: call(cell, own, **how), arrays)
        ups = type(found)(*(None if a is None else jnp.zeros_like(a) for a in found))
        return found, pull(ups._replace(**{first: jnp.asarray(up)}))[0]

    known = {**plain, **run._asdict(), f"d_{first}": up}
    read = [a.name for a in kernel.sequence_backward.function.arguments if not a.saved]
    kept = {} if run.saved.run.checkpoint else {n: known[n] for n in read if n in run._fields}
    given_back = {n: known[n] for n in read if n in known and n not in run._fields} | kept
    expected = kernel.sequence_backward(**given_back, saved=run.saved, **of_backward(how))
    for found, gradients in (both(given), jax.jit(both)(given)):
        for field, array in found._asdict().items():
            if array is not None:
                assert_same(array, getattr(run, field), field)
        for item in cell.layout.gradients:
            of = item.name.removeprefix("d_")
            truth = np.asarray(getattr(expected, item.name)).astype(given[of].dtype)
            assert_same(gradients[of], truth, item.name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", each_time(CELLS, SHIPPED))
def test_results_are_those_of_the_kernels_own_calls(name: str, dtype: str) -> None:
    as_the_kernel_does(name, narrow(name, dtype), {"mask": MASK})


@pytest.mark.parametrize("how", OPTIONS, ids="-".join)
def test_options_mean_what_they_mean_to_the_kernel(how: dict[str, Any]) -> None:
    name = cell_of(how)
    as_the_kernel_does(name, narrow(name, "bfloat16"), how)


def test_a_part_of_the_outputs() -> None:
    cell, kernel, given = function("sru"), cellgen.load("sru"), narrow("sru", "bfloat16")
    for how in ({"every": 7}, {"last_only": True, "mask": MASK}):
        found, wanted = call(cell, given, **how), kernel.sequence_forward(**given, **how)
        trained, _ = jax.vjp(lambda own, how=how: call(cell, own, **how), given)
        for field, array in wanted._asdict().items():
            if array is not None and field != "saved":
                assert_same(getattr(found, field), array, field)
                assert_same(getattr(trained, field), array, field)


def test_rows_of_a_batch_of_calls_and_gradients_of_samples() -> None:
    cell, given = function("gru"), narrow("gru", "bfloat16")
    fixed = {n: array for n, array in given.items() if n not in ("x", "h_prev")}

    def run(own: dict[str, Any], x: Any, h: Any) -> Any:
        return call(cell, {**own, "x": x[:, None], "h_prev": h[None]}).h

    rows = jax.vmap(run, (None, 1, 0), 1)(fixed, given["x"], given["h_prev"])
    assert_same(rows[:, :, 0], np.asarray(call(cell, given).h), "h")
    single = jax.jit(jax.grad(lambda *a: run(*a).astype("float32").sum()))
    each = jax.vmap(single, (None, 1, 0))(fixed, given["x"], given["h_prev"])
    for row in range(3):
        alone = single(fixed, given["x"][:, row], given["h_prev"][row])
        for name, array in alone.items():
            assert_same(each[name][row], np.asarray(array), name)


def test_derivatives_of_any_order_are_near_those_of_float32() -> None:
    cell, found = function("elman"), []
    given = narrow("elman", "bfloat16", T=5)
    dots = {n: np.random.default_rng(2).normal(size=a.shape) for n, a in given.items()}
    dots = {n: dot.astype(given[n].dtype) for n, dot in dots.items()}
    for dtype in (jnp.bfloat16, jnp.float32):
        own, along = ({n: jnp.asarray(a, dtype) for n, a in b.items()} for b in (given, dots))

        def loss(arrays: dict[str, Any]) -> Any:
            return jnp.sin(call(cell, arrays).h.astype("float32")).sum()

        def norm(arrays: dict[str, Any], loss: Any = loss) -> Any:
            return sum((g.astype("float32") ** 2).sum() for g in jax.grad(loss)(arrays).values())

        moved = jax.jit(lambda a, v: jax.jvp(lambda each: call(cell, each).h, (a,), (v,))[1])
        found.append([moved(own, along), *jax.jit(jax.grad(norm))(own).values()])
    for mine, truth in zip(*found, strict=True):
        assert mine.dtype == jnp.bfloat16
        wide, truth = np.asarray(mine).astype("float32"), np.asarray(truth)
        assert np.linalg.norm(wide - truth) < 0.05 * np.linalg.norm(truth)  # units of 2^-8


def test_scalars_that_do_not_learn_are_not_rounded() -> None:
    name = next(n for n in SHIPPED if function(n).layout.scalars)
    cell, kernel, given = function(name), cellgen.load(name), narrow(name, "bfloat16")
    own = {item.name: 0.3 for item in cell.layout.scalars}
    wanted = kernel.sequence_forward(**given, **own)
    found = call(cell, {**given, **own})
    for field, array in found._asdict().items():
        assert_same(array, getattr(wanted, field), field)


def test_mixtures_are_refused_in_words() -> None:
    cell, given = function("gru"), narrow("gru", "bfloat16")
    with pytest.raises(
        ArgumentError, match=r"w_z is float32, expected bfloat16, as x is; pass w_z"
    ):
        call(cell, {**given, "w_z": given["w_z"].astype("float32")})
    with pytest.raises(ArgumentError, match=r"w_z is float16, expected bfloat16, as x is"):
        jax.jit(lambda a: call(cell, a))({**given, "w_z": given["w_z"].astype("float16")})


def test_training_in_bfloat16_learns() -> None:
    cell, numbers = function("elman"), np.random.default_rng(0)
    x = jnp.asarray(numbers.normal(size=(20, 32, 2)), jnp.bfloat16)
    truth = jnp.tanh(jnp.cumsum(x[..., :1].astype("float32"), 0))
    shapes = cell.shapes(I=2, H=8) | {"tell": (8, 1)}
    params = {n: jnp.asarray(numbers.normal(size=s) * 0.3, "float32") for n, s in shapes.items()}

    @jax.jit
    def step(params: dict[str, Any]) -> Any:
        def loss(params: dict[str, Any]) -> Any:
            low = {n: array.astype(jnp.bfloat16) for n, array in params.items()}
            tell = low.pop("tell")
            return jnp.mean((cell(low, x).h @ tell - truth) ** 2)

        value, gradients = jax.value_and_grad(loss)(params)
        return value, {n: p - 0.2 * gradients[n] for n, p in params.items()}

    losses = []
    for _ in range(60):
        value, params = step(params)
        losses.append(float(value))
    assert losses[-1] < 0.3 * losses[0]
