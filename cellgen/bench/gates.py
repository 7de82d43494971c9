"""One matrix per gate and one matrix for all gates: how libraries lay out the same weights."""

from __future__ import annotations

import numpy as np

from cellgen.bench.problem import Array, Arrays

GATES = {"lstm": "ifgo", "gru": "zrn", "gru_reset_before": "zrn"}
"""Gates of the cells that have peers, in cellgen's order."""


def stack(arrays: Arrays, kind: str, gates: str) -> Array:
    """Return ``w_z, w_r`` (I, H) as (I, 2 H), biases ``b_z, b_r`` (H,) as (2 H,)."""
    return np.concatenate([arrays[f"{kind}_{gate}"] for gate in gates], axis=-1)


def unstack(gradient: Array, kind: str, gates: str) -> Arrays:
    """Undo ``stack`` for a gradient: ``d_w_z``, ``d_w_r``."""
    parts = np.split(gradient, len(gates), axis=-1)
    return {f"d_{kind}_{gate}": part for gate, part in zip(gates, parts, strict=True)}
