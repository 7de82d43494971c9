"""JAX: any cell as a compiled ``lax.scan``, written from its equations, with ``jax.vjp``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from cellgen.bench.peers import Prepared
from cellgen.bench.problem import Arrays, Mode, Problem
from cellgen.targets.python.loop import Functions, loop_of
from cellgen.views.find import find_one

Tree = dict[str, jax.Array]
Values = tuple[jax.Array, ...]


def _compared(test: Callable[[Any, Any], jax.Array]) -> Callable[[Any, Any], jax.Array]:
    return lambda a, b: test(a, b).astype(jnp.float32)


def _first_max(a: jax.Array, axes: int) -> jax.Array:
    flat = a.reshape(*a.shape[: a.ndim - axes], -1)
    return jax.nn.one_hot(jnp.argmax(flat, axis=-1), flat.shape[-1], dtype=a.dtype).reshape(a.shape)


FUNCTIONS: Functions = {
    "cg_exp": jnp.exp,
    "cg_expm1": jnp.expm1,
    "cg_log": jnp.log,
    "cg_log1p": jnp.log1p,
    "cg_tanh": jnp.tanh,
    "cg_sigmoid": jax.nn.sigmoid,
    "cg_softplus": jax.nn.softplus,
    "cg_log_sigmoid": jax.nn.log_sigmoid,
    "cg_erf": jax.lax.erf,
    "cg_sqrt": jnp.sqrt,
    "cg_sin": jnp.sin,
    "cg_cos": jnp.cos,
    "cg_pow": jnp.power,
    "cg_abs": jnp.abs,
    "cg_sign": jnp.sign,
    "cg_floor": jnp.floor,
    "cg_round": jnp.round,
    "cg_atan2": jnp.arctan2,
    "cg_relu": jax.nn.relu,
    "cg_hard_sigmoid": jax.nn.hard_sigmoid,
    "cg_maximum": jnp.maximum,
    "cg_minimum": jnp.minimum,
    "cg_clip": jnp.clip,
    "cg_gt": _compared(jnp.greater),
    "cg_ge": _compared(jnp.greater_equal),
    "cg_lt": _compared(jnp.less),
    "cg_le": _compared(jnp.less_equal),
    "cg_where": lambda condition, a, b: jnp.where(condition != 0, a, b),
    "cg_stop": jax.lax.stop_gradient,
    "cg_concat": jnp.concatenate,
    "cg_sum": lambda a, axes: jnp.sum(a, axis=axes, keepdims=True),
    "cg_first_max": _first_max,
    "cg_cumsum": lambda a, axis: jnp.cumsum(a, axis=axis),
    "cg_cumprod": lambda a, axis: jnp.cumprod(a, axis=axis),
    "cg_cummax": lambda a, axis: jax.lax.cummax(a, axis=axis % a.ndim),
    "cg_logcumsumexp": lambda a, axis: jax.lax.cumlogsumexp(a, axis=axis % a.ndim),
    "cg_into_heads": lambda a, w: jnp.tensordot(a, w, axes=1),
    "cg_heads": lambda a, w: jnp.einsum("...kd,kde->...ke", a, w),
}


def prepare(problem: Problem, mode: Mode, threads: int) -> Prepared:
    """Compile the whole sequence; threads are set by the environment and by affinity."""
    arrays = {name: jnp.asarray(array) for name, array in problem.draw().items()}
    upstream = tuple(arrays.pop(name) for name, _ in problem.upstream)
    sequence = _sequence(problem, arrays)
    wanted = [name.removeprefix("d_") for name, _ in problem.gradients]
    leaves = {name: arrays[name] for name in wanted}

    def with_gradients(p: Tree, d: Values) -> tuple[Values, Tree]:
        outputs, back = jax.vjp(sequence, p)
        return outputs, back(d)[0]

    forward, both = jax.jit(sequence), jax.jit(with_gradients)

    def results(outcome: object) -> Arrays:
        assert isinstance(outcome, tuple)
        outputs = outcome[0] if mode is Mode.BOTH else outcome
        names = problem.compared[mode][: len(outputs)]
        named = {name: np.asarray(array) for name, array in zip(names, outputs, strict=True)}
        gradients: Mapping[str, jax.Array] = outcome[1] if mode is Mode.BOTH else {}
        return named | {f"d_{name}": np.asarray(array) for name, array in gradients.items()}

    if mode is Mode.BOTH:
        return Prepared(lambda: jax.block_until_ready(both(leaves, upstream)), results)
    return Prepared(lambda: jax.block_until_ready(forward(leaves)), results)


def _sequence(problem: Problem, arrays: Tree) -> Callable[[Tree], Values]:
    outputs = problem.compared[Mode.FORWARD]
    loop = loop_of(find_one(problem.selector).definition, problem.sizes, outputs)
    before, step = loop.functions(FUNCTIONS)

    def sequence(moving: Tree) -> Values:
        p = arrays | moving
        ahead = before(*(p[name] for name in loop.arguments))
        each, fixed = ahead[: len(loop.each)], ahead[len(loop.each) :]

        def body(states: Values, now: Values) -> tuple[Values, Values]:
            results = step(*now, *states, *fixed)
            return results[len(outputs) :], results[: len(outputs)]

        _, over_time = jax.lax.scan(body, tuple(p[name] for name in loop.states), each)
        by_name = dict(zip(loop.outputs, over_time, strict=True))
        return tuple(by_name[name] for name in outputs)

    return sequence
