"""MyGrad: ``nnet.layers.gru``, reset before the product."""

from __future__ import annotations

import mygrad
import numpy as np
from mygrad.nnet.layers import gru

from cellgen.bench.peers import Prepared
from cellgen.bench.problem import Array, Arrays, Mode, Problem

NAMES = ("w_z", "u_z", "b_z", "w_r", "u_r", "b_r", "w_n", "u_n", "b_n")
"""In the order of MyGrad's arguments Uz, Wz, bz, Ur, Wr, br, Uh, Wh, bh."""


def prepare(problem: Problem, mode: Mode, threads: int) -> Prepared:
    """Its states include the initial one; ``backward`` overwrites what it is given."""
    arrays = problem.draw()
    tensors = [mygrad.tensor(arrays[name]) for name in ("x", *NAMES)]
    upstream = np.concatenate([np.zeros_like(arrays["h_prev"])[None], arrays["d_h"]])

    def forward() -> Array:
        with mygrad.no_autodiff:
            return np.asarray(gru(*tensors, s0=arrays["h_prev"]))

    def both() -> Array:
        states = gru(*tensors, s0=arrays["h_prev"])
        states.backward(upstream.copy())
        return np.asarray(states.data)

    def results(outcome: object) -> Arrays:
        named = {"h": np.asarray(outcome)[1:]}
        if mode is Mode.BOTH:
            named |= {f"d_{n}": t.grad for n, t in zip(("x", *NAMES), tensors, strict=True)}
        return named

    return Prepared(both if mode is Mode.BOTH else forward, results)
