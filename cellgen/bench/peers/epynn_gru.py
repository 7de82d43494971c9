"""EpyNN: its GRU layer, reset before the product, batch first and in float64."""

from __future__ import annotations

import numpy as np
from epynn.gru.models import GRU

from cellgen.bench.peers import Prepared
from cellgen.bench.problem import Array, Arrays, Mode, Problem

NAMES = {
    "w_z": "Uz",
    "u_z": "Vz",
    "b_z": "bz",
    "w_r": "Ur",
    "u_r": "Vr",
    "b_r": "br",
    "w_n": "Uhh",
    "u_n": "Vhh",
    "b_n": "bhh",
}


def prepare(problem: Problem, mode: Mode, threads: int) -> Prepared:
    """The layer starts from zero states, which is what the problem has."""
    arrays = {name: array.astype(np.float64) for name, array in problem.draw().items()}
    x, d_h = (np.ascontiguousarray(np.swapaxes(arrays[n], 0, 1)) for n in ("x", "d_h"))
    layer = GRU(problem.shape.H, sequences=True, se_hPars={})
    layer.p = {
        theirs: np.atleast_2d(arrays[ours]) if ours.startswith("b") else arrays[ours]
        for ours, theirs in NAMES.items()
    }

    def forward() -> Array:
        return np.asarray(layer.forward(x))

    def both() -> tuple[Array, Array]:
        h, d_x = layer.forward(x), layer.backward(d_h)
        layer.compute_gradients()
        return h, d_x

    def results(outcome: object) -> Arrays:
        if not isinstance(outcome, tuple):
            return {"h": np.swapaxes(np.asarray(outcome), 0, 1)}
        h, d_x = (np.swapaxes(a, 0, 1) for a in outcome)
        gradients = {f"d_{n}": layer.g[f"d{m}"].reshape(arrays[n].shape) for n, m in NAMES.items()}
        d_h_prev = layer.bc["dh"][:, 0]  # what step 0 sends to the state before it
        return {"h": h, "d_x": d_x, "d_h_prev": d_h_prev, **gradients}

    return Prepared(both if mode is Mode.BOTH else forward, results)
