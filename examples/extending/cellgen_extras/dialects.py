"""The layout of a library whose GRU keeps one matrix over inputs and state, gates n r z."""

import numpy as np

from cellgen.weights import Dialect, PackedWeight

Array = np.ndarray


def gru(use_bias: bool = True) -> Dialect:
    """Its arrays: ``matrix`` (I + H, 3 H), ``offset`` (3 H,)."""
    arrays = [PackedWeight("matrix", (("w_n", "w_r", "w_z"), ("u_n", "u_r", "u_z")))]
    if use_bias:
        arrays.append(PackedWeight("offset", (("b_n", "b_r", "b_z"),)))
    return Dialect("extras.GRU", "gru_reset_before", tuple(arrays), step=step)


def step(arrays: dict[str, Array], x: Array, states: tuple[Array, ...]) -> tuple[Array, ...]:
    """The library's own equations, by which ``convert(..., prove=True)`` compares."""
    (h,) = states
    offset = arrays.get("offset", np.zeros(3 * h.shape[1]))
    over_x, over_h = np.split(arrays["matrix"], [x.shape[1]])
    n_x, r_x, z_x = np.split(x @ over_x + offset, 3, axis=1)
    u_n, u_r, u_z = np.split(over_h, 3, axis=1)
    r, z = 1 / (1 + np.exp(-(r_x + h @ u_r))), 1 / (1 + np.exp(-(z_x + h @ u_z)))
    return ((1 - z) * np.tanh(n_x + (r * h) @ u_n) + z * h,)
