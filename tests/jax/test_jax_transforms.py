"""Transforms of JAX and derivatives of any order, beside the same cell by ``lax.scan``."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.jax.arrays import SHIPPED, call, drawn, function, loop

Arrays = dict[str, jax.Array]
Run = Callable[[Arrays], tuple[jax.Array, jax.Array]]
WEIGHTS = {"elman": ("w", "u", "b"), "gru": ("w_z", "u_n", "b_z")}


def given(seed: int = 0, name: str = "gru", **sizes: int) -> Arrays:
    return jax.tree.map(jnp.asarray, drawn(function(name), seed=seed, **sizes))


class Problem:
    """A cell by its kernel or by ``lax.scan``, and a loss."""

    def __init__(self, name: str, run: Run) -> None:
        self.name, self.run = name, run
        self.weights = WEIGHTS[name]

    def given(self, seed: int = 0) -> Arrays:
        return given(seed, self.name)

    def inputs(self) -> jax.Array:
        return jnp.stack([self.given(seed)["x"] for seed in range(3)])

    def loss(self, arrays: Arrays) -> jax.Array:
        over_time, last = self.run(arrays)
        return jnp.sin(over_time).sum() + jnp.cos(last).sum()

    def of(self, *names: str) -> tuple[Callable[..., jax.Array], list[jax.Array]]:
        """The loss as a function of some arrays, and these."""
        arrays = self.given()

        def some(*values: jax.Array) -> jax.Array:
            return self.loss(arrays | dict(zip(names, values, strict=True)))

        return some, [arrays[name] for name in names]


def hessian(p: Problem, how: Callable[..., Callable[..., object]]) -> object:
    f, (x,) = p.of("x")
    return how(f)(x)


def hvp(p: Problem) -> object:
    names = (*p.weights[:2], "h_prev")
    f, values = p.of(*names)
    return jax.jvp(jax.grad(f, (0, 1, 2)), values, [p.given(1)[name] for name in names])


def penalty(p: Problem) -> object:
    norm = lambda own: (jax.grad(lambda x: p.loss(own | {"x": x}))(own["x"]) ** 2).sum()
    return jax.grad(norm)(p.given())


def third(p: Problem) -> object:
    f, (b,) = p.of(p.weights[2])
    return jax.jit(jax.grad(lambda b: (jax.hessian(f)(b) ** 2).sum()))(b)


def remade(p: Problem) -> object:
    """The gradient of a Hessian-vector product whose values are computed once more."""
    f, (b,) = p.of(p.weights[2])
    product = jax.checkpoint(lambda b: jax.jvp(jax.grad(f), (b,), (jnp.cos(b),))[1])
    return jax.grad(lambda b: (product(b) ** 2).sum())(b)


def weights(p: Problem) -> object:
    many, x = jax.tree.map(lambda a: jnp.stack([a, 2 * a]), p.given()), p.given()["x"]
    return jax.vmap(lambda own: p.run(own | {"x": x}))(many)


def per_sample(p: Problem) -> object:
    arrays, name = p.given(), p.weights[0]

    def one(w: jax.Array, x: jax.Array, h: jax.Array) -> jax.Array:
        return p.loss(arrays | {name: w, "x": x[:, None], "h_prev": h[None]})

    found = jax.vmap(jax.grad(one), in_axes=(None, 1, 0))
    return jax.jit(found)(arrays[name], arrays["x"], arrays["h_prev"])


def over_samples(p: Problem) -> object:
    """Derivatives of what is made of per-sample gradients, in both modes."""
    arrays, name = p.given(), p.weights[1]

    def squares(x: jax.Array) -> jax.Array:
        def one(u: jax.Array, x: jax.Array, h: jax.Array) -> jax.Array:
            return p.loss(arrays | {name: u, "x": x[:, None], "h_prev": h[None]})

        each = jax.vmap(jax.grad(one), in_axes=(None, 1, 0))(arrays[name], x, arrays["h_prev"])
        return (each**2).sum((1, 2))

    x = arrays["x"]
    return jax.jacrev(squares)(x), jax.jvp(squares, (x,), (x,)), jax.vmap(squares)(p.inputs())


def of_vmap(p: Problem) -> object:
    f = lambda own: jax.vmap(lambda x: p.loss(own | {"x": x}))(p.inputs()).sum()
    return jax.grad(f)(p.given())


def vmap_of_hvp(p: Problem) -> object:
    f, (x,) = p.of("x")
    return jax.vmap(lambda v: jax.jvp(jax.grad(f), (x,), (v,))[1])(p.inputs())


def scanned(p: Problem) -> object:
    def f(arrays: Arrays) -> jax.Array:
        step = lambda h, x: p.run(arrays | {"x": x, "h_prev": h})[::-1]
        last, over_time = jax.lax.scan(step, arrays["h_prev"], p.inputs())
        return jnp.sin(over_time).sum() + last.sum()

    return jax.jit(jax.value_and_grad(f))(p.given())


def along_x(p: Problem) -> object:
    f = lambda x: p.run(p.given() | {"x": x})
    return jax.jvp(f, (p.given()["x"],), (p.given(1)["x"],))


CASES: dict[str, Callable[[Problem], object]] = {
    "grad": lambda p: jax.grad(p.loss)(p.given()),
    "jit of value_and_grad": lambda p: jax.jit(jax.value_and_grad(p.loss))(p.given()),
    "grad of one output": lambda p: jax.grad(lambda a: p.run(a)[1].sum())(p.given()),
    "jvp": lambda p: jax.jvp(p.run, (p.given(),), (p.given(1),)),
    "jvp along x": along_x,
    "linearize": lambda p: jax.linearize(p.run, p.given())[1](p.given(1)),
    "checkpoint": lambda p: jax.grad(jax.checkpoint(p.loss))(p.given()),
    "scan": scanned,
    "hessian": lambda p: hessian(p, jax.hessian),
    "reverse over reverse": lambda p: hessian(p, lambda f: jax.jacrev(jax.grad(f))),
    "reverse over forward": lambda p: hessian(p, lambda f: jax.jacrev(jax.jacfwd(f))),
    "forward over forward": lambda p: hessian(p, lambda f: jax.jacfwd(jax.jacfwd(f))),
    "Hessian-vector product": hvp,
    "gradient penalty": penalty,
    "vmap over rows": lambda p: jax.vmap(lambda x: p.run(p.given() | {"x": x}))(p.inputs()),
    "vmap over weights": weights,
    "per-sample gradients": per_sample,
    "over per-sample gradients": over_samples,
    "grad of vmap": of_vmap,
    "vmap of Hessian-vector products": vmap_of_hvp,
    "third derivatives": third,
    "checkpoint of Hessian-vector products": remade,
}
SAMPLED = ("gru", 1), ("delta_net", 2)
STATED = ("alif", "izhikevich", "lif", "phased_lstm")
"""Cells whose derivatives are stated, or that have steps: differences tell another story."""
EAGER = ("grad", "jvp", "linearize", "checkpoint", "vmap over rows", "vmap over weights")
"""Cases that run outside of a program, an operator after the other, each of which is compiled."""
QUICK = ("grad", "Hessian-vector product", "per-sample gradients")
"""Cases of the GRU whose tangents compile soon."""
COMPOSED = (
    *("reverse over reverse", "reverse over forward", "forward over forward"),
    *("over per-sample gradients", "vmap of Hessian-vector products"),
    "checkpoint of Hessian-vector products",
)
"""Other orders of what "hessian", "third derivatives" and the transforms alone go through."""


@pytest.mark.parametrize(
    ("name", "case"),
    [
        pytest.param(name, case, marks=[pytest.mark.slow] * (name == "gru" or case in COMPOSED))
        for name in ("elman", "gru")
        for case in CASES
    ],
)
def test_transforms_give_what_they_give_for_a_loop(name: str, case: str) -> None:
    same(name, case)


@pytest.mark.parametrize("case", QUICK)
def test_transforms_of_a_gated_cell(case: str) -> None:
    same("gru", case)


def same(name: str, case: str) -> None:
    """What a loop gives is computed by one program; so is what a cell gives, but for some cases."""
    cell = function(name)
    ours = Problem(name, lambda arrays: tuple(call(cell, arrays)))
    theirs = Problem(name, lambda arrays: loop(name, arrays))
    found = CASES[case](ours) if case in EAGER else jax.jit(lambda: CASES[case](ours))()
    close(found, jax.jit(lambda: CASES[case](theirs))())


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


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        pytest.param(*case, marks=() if case in SAMPLED else pytest.mark.slow)
        for case in product(("gru", "lstm", "delta_net"), (1, 2))
    ],
)
def test_per_sample_gradients_are_one_call(name: str, rows: int) -> None:
    cell, arrays = function(name), given(name=name, B=3 * rows)
    axes = {i.name: i.shape.index("B") for i in cell.layout.theta if "B" in i.shape}
    shared = {n: a for n, a in arrays.items() if n not in axes}
    own = {n: jnp.stack(jnp.split(a, 3, axes[n])) for n, a in arrays.items() if n in axes}
    lengths = jnp.arange(3 * rows).reshape(3, rows) % 4

    def loss(shared: Arrays, own: Arrays, lengths: jax.Array) -> jax.Array:
        return sum(jnp.sin(a).sum() for a in call(cell, shared | own, lengths=lengths))

    every = jax.vmap(jax.grad(loss, argnums=(0, 1)), in_axes=(None, 0, 0))
    run, alone = jax.jit(every), jax.jit(jax.grad(loss, argnums=(0, 1)))
    text = run.lower(shared, own, lengths).as_text()
    assert text.count("stablehlo.custom_call @cellgen_call") == 2
    assert "stablehlo.while" not in text
    found = run(shared, own, lengths)
    for member in range(3):
        one = {n: a[member] for n, a in own.items()}
        wanted = alone(shared, one, lengths[member])
        close(jax.tree.map(lambda a, m=member: a[m], found), wanted)


def test_gradients_that_nobody_wants_are_not_formed() -> None:
    cell, arrays = function("lstm"), given(name="lstm")
    loss = lambda u: call(cell, arrays | {"u_f": u}).h.sum()
    text = jax.jit(jax.grad(loss)).lower(arrays["u_f"]).as_text()
    backward = next(line for line in text.splitlines() if '"sequence_backward"' in line)
    wanted = [item for item in cell.layout.gradients if not item.optional or item.name == "d_u_f"]
    assert len(wanted) < 5
    assert len(backward.rpartition("->")[2].split("tensor<")) - 1 == len(wanted)
    close(jax.grad(loss)(arrays["u_f"]), jax.grad(lambda a: call(cell, a).h.sum())(arrays)["u_f"])


def kernels(run: Callable[[jax.Array], object], x: jax.Array) -> list[str]:
    """The cell and function of each kernel that a compiled program calls."""
    lines = jax.jit(run).lower(x).compile().as_text().splitlines()
    calls = [line for line in lines if 'custom_call_target="cellgen_call"' in line]
    of = lambda line, name: line.partition(f'{name} = "')[2].partition('"')[0]
    return [f"{of(line, 'cell')} {of(line, 'function')}" for line in calls]


def test_forward_mode_computes_outputs_and_gradients_with_their_derivatives() -> None:
    cell, arrays = function("elman"), given(name="elman")
    loss = lambda x: (call(cell, arrays | {"x": x}).h ** 2).sum()
    grad = jax.grad(loss)
    forward, backward = "elman/by:x sequence_forward", "elman/by:x sequence_backward"
    x = arrays["x"]
    assert kernels(lambda x: jax.jvp(loss, (x,), (x,)), x) == [forward]
    assert kernels(lambda x: jax.jvp(grad, (x,), (x,)), x) == [forward, backward]
    assert kernels(lambda x: jax.linearize(loss, x)[0], x) == ["elman sequence_forward"]


def test_forward_mode_saves_nothing_that_only_gradients_read() -> None:
    cell, arrays = function("gru"), given()
    lowered = jax.jit(lambda x: jax.jvp(lambda x: call(cell, arrays | {"x": x}), (x,), (x,)))
    text = lowered.lower(arrays["x"]).as_text()
    line = next(line for line in text.splitlines() if "@cellgen_call" in line)
    assert len(line.rpartition("->")[2].split("tensor<")) - 1 == 4  # h, h_last, directions of both


def test_a_gradient_needs_no_tangent_and_a_penalty_one_along_inputs() -> None:
    from cellgen.jax.registry import REGISTRY

    cell, arrays = function("ind_rnn"), given(name="ind_rnn")
    jax.grad(lambda a: call(cell, a).h.sum())(arrays)
    assert not [text for text in REGISTRY.texts() if text.startswith("ind_rnn/")]
    norm = lambda x: (jax.grad(lambda x: call(cell, arrays | {"x": x}).h.sum())(x) ** 2).sum()
    jax.grad(norm)(arrays["x"])
    assert [text for text in REGISTRY.texts() if text.startswith("ind_rnn/")] == ["ind_rnn/by:x"]


def test_truncated_gradients_are_not_differentiated() -> None:
    cell, arrays = function("elman"), given(name="elman")
    first = jax.grad(lambda x: call(cell, arrays | {"x": x}, window=2).h.sum())
    with pytest.raises(TypeError, match="window is 2, expected 0 in forward mode"):
        jax.jit(jax.grad(lambda x: first(x).sum()))(arrays["x"])


def second(name: str, **options: object) -> None:
    """Second derivatives beside differences of first ones."""
    cell = function(name)
    arrays, along = given(name=name), given(3, name)
    learns = {cell.layout.theta[place].name for place in cell.layout.learns}
    along = {n: a if n in learns else jnp.zeros_like(a) for n, a in along.items()}
    f = lambda a: sum(jnp.sin(y).sum() for y in call(cell, a, **options))
    grad = jax.jit(jax.grad(f))
    moved = lambda step: grad(
        {n: np.asarray(a) + step * np.asarray(along[n]) for n, a in arrays.items()}
    )
    ahead, behind = moved(1e-6), moved(-1e-6)
    by_differences = {n: (np.asarray(a) - np.asarray(behind[n])) / 2e-6 for n, a in ahead.items()}
    _, found = jax.jit(lambda a, v: jax.jvp(grad, (a,), (v,)))(arrays, along)
    dots = lambda a: sum(jax.tree.leaves(jax.tree.map(lambda g, v: (g * v).sum(), grad(a), along)))
    backward = jax.jit(jax.grad(dots))(arrays)
    for one in (found, backward):
        for name_, wanted in by_differences.items():
            np.testing.assert_allclose(one[name_], wanted, rtol=1e-5, atol=1e-7, err_msg=name_)


@pytest.mark.parametrize("name", ["elman", pytest.param("lstm", marks=pytest.mark.slow)])
def test_second_derivatives_are_differences_of_first_ones(name: str) -> None:
    second(name)


@pytest.mark.parametrize("name", ["gru"])
def test_second_derivatives_follow_which_steps_count(name: str) -> None:
    mask = jnp.array([[True, False], [True, True], [False, True]])
    second(name, mask=mask, lengths=jnp.array([3, 2]), reverse=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*SHIPPED} - {*STATED}))
def test_second_derivatives_of_every_cell_are_differences_of_first_ones(name: str) -> None:
    second(name)


def test_vmap_of_no_calls_is_empty() -> None:
    arrays = given()
    gru = function("gru")
    for name in ("x", "w_z"):
        none = jnp.stack([arrays[name]])[:0]

        def run(a: jax.Array, name: str = name) -> jax.Array:
            return call(gru, arrays | {name: a}).h

        assert jax.vmap(run)(none).shape == (0, *run(arrays[name]).shape)
        alone = jax.grad(lambda a, run=run: run(a).sum())
        assert jax.vmap(alone)(none).shape == none.shape


def test_derivatives_where_jit_is_disabled() -> None:
    arrays = given()
    f = lambda x: call(function("gru"), arrays | {"x": x}).h.sum()
    wanted = jax.grad(f)(arrays["x"])
    with jax.disable_jit():
        np.testing.assert_array_equal(jax.jit(jax.grad(f))(arrays["x"]), wanted)
