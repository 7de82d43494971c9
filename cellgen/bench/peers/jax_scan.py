"""JAX: a compiled ``lax.scan`` with the input product before it, gradients by ``jax.vjp``."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
from jax import numpy as jnp

from cellgen.bench.gates import GATES, stack, unstack
from cellgen.bench.peers import Prepared
from cellgen.bench.problem import Arrays, Mode, Problem

Tree = dict[str, jax.Array]
Carry = tuple[jax.Array, ...]
Step = Callable[[Tree, Carry, jax.Array], tuple[Carry, jax.Array]]


def lstm(p: Tree, state: Carry, a: jax.Array) -> tuple[Carry, jax.Array]:
    """One step of the LSTM."""
    h, c = state
    i, f, g, o = jnp.split(a + h @ p["u"], 4, axis=1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (h, c), h


def gru(p: Tree, state: Carry, a: jax.Array) -> tuple[Carry, jax.Array]:
    """One step of the GRU, reset gate after the product."""
    (h,) = state
    H = h.shape[1]
    product = h @ p["u"]
    z, r = jnp.split(jax.nn.sigmoid(a[:, : 2 * H] + product[:, : 2 * H]), 2, axis=1)
    n = jnp.tanh(a[:, 2 * H :] + r * (product[:, 2 * H :] + p["c_n"]))
    h = n + z * (h - n)
    return (h,), h


def gru_reset_before(p: Tree, state: Carry, a: jax.Array) -> tuple[Carry, jax.Array]:
    """One step of the GRU, reset gate before the product."""
    (h,) = state
    H = h.shape[1]
    z, r = jnp.split(jax.nn.sigmoid(a[:, : 2 * H] + h @ p["u_zr"]), 2, axis=1)
    n = jnp.tanh(a[:, 2 * H :] + (r * h) @ p["u_n"])
    h = n + z * (h - n)
    return (h,), h


STEPS: dict[str, Step] = {"lstm": lstm, "gru": gru, "gru_reset_before": gru_reset_before}


def prepare(problem: Problem, mode: Mode, threads: int) -> Prepared:
    """Compile the whole sequence; threads are set by the environment and by affinity."""
    step, states = STEPS[problem.cell], tuple(name for name, _ in problem.states)
    arrays = problem.draw()
    d_h = jnp.asarray(arrays["d_h"])
    leaves = {n: jnp.asarray(a) for n, a in _leaves(problem.cell, arrays, states).items()}

    def sequence(p: Tree) -> jax.Array:
        a = p["x"] @ p["w"] + p["b"]
        _, h = jax.lax.scan(lambda s, a: step(p, s, a), tuple(p[n] for n in states), a)
        return h

    def with_gradients(p: Tree, upstream: jax.Array) -> tuple[jax.Array, Tree]:
        h, back = jax.vjp(sequence, p)
        return h, back(upstream)[0]

    forward, both = jax.jit(sequence), jax.jit(with_gradients)

    def results(outcome: object) -> Arrays:
        if isinstance(outcome, tuple):
            return {"h": np.asarray(outcome[0]), **_named(problem.cell, outcome[1], states)}
        return {"h": np.asarray(outcome)}

    if mode is Mode.BOTH:
        return Prepared(lambda: jax.block_until_ready(both(leaves, d_h)), results)
    return Prepared(lambda: jax.block_until_ready(forward(leaves)), results)


def _leaves(cell: str, arrays: Arrays, states: tuple[str, ...]) -> Arrays:
    gates = GATES[cell]
    leaves = {name: arrays[name] for name in ("x", *states)}
    leaves |= {"w": stack(arrays, "w", gates), "b": stack(arrays, "b", gates)}
    if cell == "gru_reset_before":
        return {**leaves, "u_zr": stack(arrays, "u", "zr"), "u_n": arrays["u_n"]}
    leaves["u"] = stack(arrays, "u", gates)
    return {**leaves, "c_n": arrays["c_n"]} if cell == "gru" else leaves


def _named(cell: str, gradients: Tree, states: tuple[str, ...]) -> Arrays:
    gates, d = GATES[cell], {name: np.asarray(a) for name, a in gradients.items()}
    named = {f"d_{name}": d[name] for name in ("x", *states)}
    named |= {**unstack(d["w"], "w", gates), **unstack(d["b"], "b", gates)}
    if cell == "gru_reset_before":
        return {**named, **unstack(d["u_zr"], "u", "zr"), "d_u_n": d["u_n"]}
    named |= unstack(d["u"], "u", gates)
    return {**named, "d_c_n": d["c_n"]} if cell == "gru" else named
