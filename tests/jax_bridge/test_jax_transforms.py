"""Transforms of JAX and derivatives of any order, beside the same cell by ``lax.scan``."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import SHIPPED, call, drawn, function, loop

Arrays = dict[str, jax.Array]
Run = Callable[[Arrays], tuple[jax.Array, jax.Array]]


def given(seed: int = 0, name: str = "gru", **sizes: int) -> Arrays:
    return jax.tree.map(jnp.asarray, drawn(function(name), seed=seed, **sizes))


def loss(run: Run, arrays: Arrays) -> jax.Array:
    over_time, last = run(arrays)
    return jnp.sin(over_time).sum() + jnp.cos(last).sum()


def of(run: Run, *names: str) -> tuple[Callable[..., jax.Array], list[jax.Array]]:
    """The loss as a function of some arrays, and these."""
    arrays = given()

    def some(*values: jax.Array) -> jax.Array:
        return loss(run, arrays | dict(zip(names, values, strict=True)))

    return some, [arrays[name] for name in names]


def hessian(run: Run, how: Callable[..., Callable[..., object]]) -> object:
    f, (x,) = of(run, "x")
    return how(f)(x)


def directions(*names: str) -> list[jax.Array]:
    arrays = given(1)
    return [arrays[name] for name in names]


def hvp(run: Run) -> object:
    f, values = of(run, "w_z", "u_n", "h_prev")
    return jax.jvp(jax.grad(f, (0, 1, 2)), values, directions("w_z", "u_n", "h_prev"))


def penalty(run: Run) -> object:
    arrays = given()
    norm = lambda own: (jax.grad(lambda x: loss(run, own | {"x": x}))(own["x"]) ** 2).sum()
    return jax.grad(norm)(arrays)


def third(run: Run) -> object:
    f, (b,) = of(run, "b_z")
    return jax.jit(jax.grad(lambda b: (jax.hessian(f)(b) ** 2).sum()))(b)


def rows(run: Run) -> object:
    arrays, many = given(), jnp.stack([given(k)["x"] for k in range(3)])
    return jax.vmap(lambda x: run(arrays | {"x": x}))(many)


def weights(run: Run) -> object:
    many = jax.tree.map(lambda a: jnp.stack([a, 2 * a]), given())
    x = given()["x"]
    return jax.vmap(lambda own: run(own | {"x": x}))(many)


def per_sample(run: Run) -> object:
    arrays = given()

    def one(w: jax.Array, x: jax.Array, h: jax.Array) -> jax.Array:
        return loss(run, arrays | {"w_z": w, "x": x[:, None], "h_prev": h[None]})

    found = jax.vmap(jax.grad(one), in_axes=(None, 1, 0))
    return jax.jit(found)(arrays["w_z"], arrays["x"], arrays["h_prev"])


def of_vmap(run: Run) -> object:
    arrays, many = given(), jnp.stack([given(k)["x"] for k in range(3)])
    f = lambda own: jax.vmap(lambda x: loss(run, own | {"x": x}))(many).sum()
    return jax.grad(f)(arrays)


def vmap_of_hvp(run: Run) -> object:
    f, (x,) = of(run, "x")
    many = jnp.stack([given(k)["x"] for k in range(3)])
    return jax.vmap(lambda v: jax.jvp(jax.grad(f), (x,), (v,))[1])(many)


def scanned(run: Run) -> object:
    many = jnp.stack([given(k)["x"] for k in range(3)])

    def f(arrays: Arrays) -> jax.Array:
        step = lambda h, x: run(arrays | {"x": x, "h_prev": h})[::-1]
        last, over_time = jax.lax.scan(step, arrays["h_prev"], many)
        return jnp.sin(over_time).sum() + last.sum()

    return jax.jit(jax.value_and_grad(f))(given())


CASES: dict[str, Callable[[Run], object]] = {
    "grad": lambda run: jax.grad(lambda a: loss(run, a))(given()),
    "jit of value_and_grad": lambda run: jax.jit(jax.value_and_grad(lambda a: loss(run, a)))(
        given()
    ),
    "grad of one output": lambda run: jax.grad(lambda a: run(a)[1].sum())(given()),
    "jvp": lambda run: jax.jvp(run, (given(),), (given(1),)),
    "jvp along x": lambda run: jax.jvp(
        lambda x: run(given() | {"x": x}), (given()["x"],), (given(1)["x"],)
    ),
    "linearize": lambda run: jax.linearize(run, given())[1](given(1)),
    "checkpoint": lambda run: jax.grad(jax.checkpoint(lambda a: loss(run, a)))(given()),
    "scan": scanned,
    "hessian": lambda run: hessian(run, jax.hessian),
    "reverse over reverse": lambda run: hessian(run, lambda f: jax.jacrev(jax.grad(f))),
    "reverse over forward": lambda run: hessian(run, lambda f: jax.jacrev(jax.jacfwd(f))),
    "forward over forward": lambda run: hessian(run, lambda f: jax.jacfwd(jax.jacfwd(f))),
    "Hessian-vector product": hvp,
    "gradient penalty": penalty,
    "vmap over rows": rows,
    "vmap over weights": weights,
    "per-sample gradients": per_sample,
    "grad of vmap": of_vmap,
    "vmap of Hessian-vector products": vmap_of_hvp,
    "third derivatives": third,
}
SLOW = ("third derivatives",)


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=pytest.mark.slow if c in SLOW else ()) for c in CASES]
)
def test_transforms_give_what_they_give_for_a_loop(case: str) -> None:
    cell = function("gru")
    found = CASES[case](lambda arrays: tuple(call(cell, arrays)))
    wanted = CASES[case](lambda arrays: loop("gru", arrays))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-13)


def close(found: object, wanted: object) -> None:
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-13)


def test_rows_of_a_batch_of_calls_are_rows_of_one_call() -> None:
    cell, arrays = function("gru"), given()
    many = jnp.stack([given(k)["x"] for k in range(3)])
    run = lambda x: call(cell, arrays | {"x": x}, mask=jnp.ones((3, 2), bool))
    text = str(jax.make_jaxpr(jax.vmap(run))(many))
    assert text.count("cellgen_forward") == 1
    assert "scan" not in text
    close(jax.vmap(run)(many).h, jnp.stack([run(x).h for x in many]))


def test_a_gradient_needs_no_tangent_and_a_penalty_one_along_inputs() -> None:
    from cellgen.jax.registry import REGISTRY

    cell, arrays = function("mgu"), given(name="mgu")
    jax.grad(lambda a: call(cell, a).h.sum())(arrays)
    assert not [text for text in REGISTRY.texts() if text.startswith("mgu/")]
    norm = lambda x: (jax.grad(lambda x: call(cell, arrays | {"x": x}).h.sum())(x) ** 2).sum()
    jax.grad(norm)(arrays["x"])
    assert [text for text in REGISTRY.texts() if text.startswith("mgu/")] == ["mgu/by:x"]


def test_truncated_gradients_are_not_differentiated() -> None:
    cell, arrays = function("elman"), given(name="elman")
    first = jax.grad(lambda x: call(cell, arrays | {"x": x}, window=2).h.sum())
    with pytest.raises(TypeError, match="window is 2, expected 0 in forward mode"):
        jax.jit(jax.grad(lambda x: first(x).sum()))(arrays["x"])


def second(name: str, **options: object) -> None:
    """Second derivatives beside differences of first ones."""
    cell = function(name)
    arrays, along = given(name=name), given(3, name)
    f = lambda a: sum(jnp.sin(y).sum() for y in call(cell, a, **options))
    grad = jax.jit(jax.grad(f))
    moved = lambda step: grad(jax.tree.map(lambda a, v: a + step * v, arrays, along))
    by_differences = jax.tree.map(lambda a, b: (a - b) / 2e-6, moved(1e-6), moved(-1e-6))
    _, found = jax.jvp(grad, (arrays,), (along,))
    dots = lambda a: sum(jax.tree.leaves(jax.tree.map(lambda g, v: (g * v).sum(), grad(a), along)))
    backward = jax.grad(dots)(arrays)
    for one in (found, backward):
        for name_, wanted in by_differences.items():
            np.testing.assert_allclose(one[name_], wanted, rtol=1e-5, atol=1e-7, err_msg=name_)


@pytest.mark.parametrize("name", ["elman", "lstm"])
def test_second_derivatives_are_differences_of_first_ones(name: str) -> None:
    second(name)


@pytest.mark.parametrize("name", ["gru"])
def test_second_derivatives_follow_which_steps_count(name: str) -> None:
    mask = jnp.array([[True, False], [True, True], [False, True]])
    second(name, mask=mask, lengths=jnp.array([3, 2]), reverse=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*SHIPPED} - {"lif"}))
def test_second_derivatives_of_every_cell_are_differences_of_first_ones(name: str) -> None:
    second(name)
