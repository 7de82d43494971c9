"""NumPy by hand: vectorised forward and back-propagation through time, BLAS used well.

What can be one product over all steps is one: inputs before the loop, gradients of weights and
inputs after it. All gates of a step are one product. Arrays that a caller does not see are
allocated once, gradients of pre-activations overwrite the gates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from cellgen.bench.gates import stack, unstack
from cellgen.bench.peers import Prepared
from cellgen.bench.problem import Array, Arrays, Mode, Problem


class StackedGradients(NamedTuple):
    """Of the input, the initial states, and stacked parameters."""

    x: Array
    states: tuple[Array, ...]
    w: Array
    u: Array
    b: Array
    c_n: Array | None = None


@dataclass(frozen=True)
class HandWrittenLayer:
    """Stacked parameters of a cell, arguments of a call, memory kept from call to call."""

    x: Array
    h_0: Array
    c_0: Array
    d_h: Array
    w: Array
    u: Array
    b: Array
    c_n: Array
    kept: Arrays = field(default_factory=dict)

    @property
    def units(self) -> int:
        """Units of the layer."""
        return int(self.h_0.shape[1])

    def memory(self, name: str, *lengths: int) -> Array:
        """Return memory of these lengths, the same for every call."""
        if name not in self.kept:
            self.kept[name] = np.empty(lengths, np.float32)
        return self.kept[name]

    def input_product(self) -> Array:
        """X w + b for all steps and gates: (T, B, gates H)."""
        T, B, I = self.x.shape
        a = self.memory("a", T, B, self.w.shape[1])
        np.matmul(self.x.reshape(T * B, I), self.w, out=a.reshape(T * B, -1))
        a += self.b
        return a

    def states(self, first: Array) -> Array:
        """States before and after every step (T + 1, B, H), new in every call: they are results."""
        states = np.empty((len(self.x) + 1, *first.shape), np.float32)
        states[0] = first
        return states

    def gradients(self, h: Array, d_a: Array, d_r: Array, *d_states: Array) -> StackedGradients:
        """All products that can wait: ``d_a`` belongs to x w, ``d_r`` to h_prev u."""
        rows = self.x.shape[0] * self.x.shape[1]
        d_a, d_r = d_a.reshape(rows, -1), d_r.reshape(rows, -1)
        ones = np.ones(rows, np.float32)
        return StackedGradients(
            x=(d_a @ self.w.T).reshape(self.x.shape),
            states=d_states,
            w=self.x.reshape(rows, -1).T @ d_a,
            u=h[:-1].reshape(rows, -1).T @ d_r,
            b=ones @ d_a,
        )


def sigmoid(a: Array) -> None:
    """In place, by way of tanh, which neither overflows nor needs a division."""
    a *= np.float32(0.5)
    np.tanh(a, out=a)
    a *= np.float32(0.5)
    a += np.float32(0.5)


def columns(gates: Array, H: int) -> list[Array]:
    """Views of the gates of a step, (B, H) each."""
    return [gates[:, start : start + H] for start in range(0, gates.shape[1], H)]


def lstm_forward(layer: HandWrittenLayer) -> tuple[Array, Array, Array]:
    """Gates in the order i f o g: three sigmoids side by side."""
    H, gates = layer.units, layer.input_product()
    h, c = layer.states(layer.h_0), layer.states(layer.c_0)
    product = layer.memory("product", *gates.shape[1:])
    for t, a in enumerate(gates):
        a += np.matmul(h[t], layer.u, out=product)
        sigmoid(a[:, : 3 * H])
        np.tanh(a[:, 3 * H :], out=a[:, 3 * H :])
        i, f, o, g = columns(a, layer.units)
        np.multiply(f, c[t], out=c[t + 1])
        c[t + 1] += i * g
        np.tanh(c[t + 1], out=h[t + 1])
        h[t + 1] *= o
    return h, c, gates


def lstm_backward(layer: HandWrittenLayer, h: Array, c: Array, gates: Array) -> StackedGradients:
    """Differentiate the LSTM, from its outputs and gates."""
    u_t = np.ascontiguousarray(layer.u.T)
    d_h_next, d_c = np.zeros_like(layer.h_0), np.zeros_like(layer.c_0)
    for t in reversed(range(len(gates))):
        i, f, o, g = columns(gates[t], layer.units)
        d_h = layer.d_h[t] + d_h_next
        squashed = np.tanh(c[t + 1])
        d_c += d_h * o * (1 - squashed * squashed)
        d_o = d_h * squashed * o * (1 - o)
        d_f = d_c * c[t] * f * (1 - f)
        d_i, d_g = d_c * g * i * (1 - i), d_c * i * (1 - g * g)
        d_c *= f
        i[...], f[...], o[...], g[...] = d_i, d_f, d_o, d_g
        d_h_next = gates[t] @ u_t
    return layer.gradients(h, gates, gates, d_h_next, d_c)


def gru_forward(layer: HandWrittenLayer) -> tuple[Array, Array, Array]:
    """Reset after the product. Gates in the order z r n; s = h_prev u_n + c_n is kept."""
    H, gates = layer.units, layer.input_product()
    h, s = layer.states(layer.h_0), layer.memory("s", *layer.x.shape[:2], layer.units)
    product = layer.memory("product", *gates.shape[1:])
    for t, a in enumerate(gates):
        np.matmul(h[t], layer.u, out=product)
        np.add(product[:, 2 * H :], layer.c_n, out=s[t])
        a[:, : 2 * H] += product[:, : 2 * H]
        sigmoid(a[:, : 2 * H])
        z, r, n = columns(a, layer.units)
        n += r * s[t]
        np.tanh(n, out=n)
        np.subtract(h[t], n, out=h[t + 1])
        h[t + 1] *= z
        h[t + 1] += n
    return h, s, gates


def gru_backward(layer: HandWrittenLayer, h: Array, s: Array, gates: Array) -> StackedGradients:
    """``d_r`` differs from ``d_a`` in the columns of n: there it is r times as large."""
    u_t = np.ascontiguousarray(layer.u.T)
    recurrent = layer.memory("recurrent", *gates.shape)
    d_h_next = np.zeros_like(layer.h_0)
    for t in reversed(range(len(gates))):
        z, r, n = columns(gates[t], layer.units)
        d_h = layer.d_h[t] + d_h_next
        d_n = d_h * (1 - z) * (1 - n * n)
        d_z = d_h * (h[t] - n) * z * (1 - z)
        d_s, d_r = d_n * r, d_n * s[t] * r * (1 - r)
        kept = d_h * z
        z[...], r[...], n[...] = d_z, d_r, d_n
        np.concatenate([d_z, d_r, d_s], axis=1, out=recurrent[t])
        d_h_next = recurrent[t] @ u_t
        d_h_next += kept
    gradients = layer.gradients(h, gates, recurrent, d_h_next)
    rows, H = len(gates) * gates.shape[1], layer.units
    return gradients._replace(
        c_n=np.ones(rows, np.float32) @ recurrent.reshape(rows, -1)[:, 2 * H :]
    )


def before_forward(layer: HandWrittenLayer) -> tuple[Array, Array, Array]:
    """Reset before the product. Gates in the order z r n; r h_prev is kept."""
    H, gates = layer.units, layer.input_product()
    u_zr, u_n = _split_recurrent(layer)
    h, reset = layer.states(layer.h_0), layer.memory("reset", *layer.x.shape[:2], layer.units)
    product = layer.memory("product", layer.x.shape[1], 2 * H)
    for t, a in enumerate(gates):
        a[:, : 2 * H] += np.matmul(h[t], u_zr, out=product)
        sigmoid(a[:, : 2 * H])
        z, r, n = columns(a, layer.units)
        np.multiply(r, h[t], out=reset[t])
        n += reset[t] @ u_n
        np.tanh(n, out=n)
        np.subtract(h[t], n, out=h[t + 1])
        h[t + 1] *= z
        h[t + 1] += n
    return h, reset, gates


def before_backward(
    layer: HandWrittenLayer, h: Array, reset: Array, gates: Array
) -> StackedGradients:
    """Differentiate the GRU with the reset gate before the product."""
    H = layer.units
    u_zr_t, u_n_t = (np.ascontiguousarray(u.T) for u in _split_recurrent(layer))
    d_h_next = np.zeros_like(layer.h_0)
    for t in reversed(range(len(gates))):
        z, r, n = columns(gates[t], layer.units)
        d_h = layer.d_h[t] + d_h_next
        d_n = d_h * (1 - z) * (1 - n * n)
        d_z = d_h * (h[t] - n) * z * (1 - z)
        d_reset = d_n @ u_n_t
        kept = d_h * z + d_reset * r
        d_r = d_reset * h[t] * r * (1 - r)
        z[...], r[...], n[...] = d_z, d_r, d_n
        d_h_next = gates[t, :, : 2 * H] @ u_zr_t
        d_h_next += kept
    gradients = layer.gradients(h, gates, gates[:, :, : 2 * H], d_h_next)
    return _with_reset(gradients, reset, gates)


def _split_recurrent(layer: HandWrittenLayer) -> tuple[Array, Array]:
    """Contiguous parts of u for z, r and for n, made once: weights are kept so between calls."""
    if "u_zr" not in layer.kept:
        layer.kept["u_zr"] = np.ascontiguousarray(layer.u[:, : 2 * layer.units])
        layer.kept["u_n"] = np.ascontiguousarray(layer.u[:, 2 * layer.units :])
    return layer.kept["u_zr"], layer.kept["u_n"]


def _with_reset(gradients: StackedGradients, reset: Array, d_a: Array) -> StackedGradients:
    """The gradient of u_n belongs to r h_prev rather than to h_prev."""
    H = reset.shape[2]
    rows = reset.size // H
    d_u_n = reset.reshape(rows, H).T @ d_a.reshape(rows, -1)[:, 2 * H :]
    return gradients._replace(u=np.concatenate([gradients.u, d_u_n], axis=1))


Forward = Callable[[HandWrittenLayer], tuple[Array, Array, Array]]
Backward = Callable[[HandWrittenLayer, Array, Array, Array], StackedGradients]

CELLS: dict[str, tuple[str, tuple[str, ...], Forward, Backward]] = {
    "lstm": ("ifog", ("h_prev", "c_prev"), lstm_forward, lstm_backward),
    "gru": ("zrn", ("h_prev",), gru_forward, gru_backward),
    "gru_reset_before": ("zrn", ("h_prev",), before_forward, before_backward),
}
"""Gates in the order of the columns, states, and the two passes."""


def prepare(problem: Problem, mode: Mode, threads: int) -> Prepared:
    """Stack the weights once; what is timed starts from stacked weights."""
    gates, states, forward, backward = CELLS[problem.cell]
    layer = _layer(problem.draw(), gates)

    def both() -> tuple[Array, StackedGradients]:
        done = forward(layer)
        return done[0], backward(layer, *done)

    def results(outcome: object) -> Arrays:
        assert isinstance(outcome, tuple)
        named: Arrays = {"h": outcome[0][1:]}
        return named | _named(outcome[1], states, gates) if mode is Mode.BOTH else named

    return Prepared(both if mode is Mode.BOTH else lambda: forward(layer), results)


def _named(gradients: StackedGradients, states: tuple[str, ...], gates: str) -> Arrays:
    named = {"d_x": gradients.x}
    named |= {f"d_{name}": a for name, a in zip(states, gradients.states, strict=True)}
    for kind, stacked in (("w", gradients.w), ("u", gradients.u), ("b", gradients.b)):
        named |= unstack(stacked, kind, gates)
    return named if gradients.c_n is None else {**named, "d_c_n": gradients.c_n}


def _layer(arrays: Arrays, gates: str) -> HandWrittenLayer:
    return HandWrittenLayer(
        x=arrays["x"],
        h_0=arrays["h_prev"],
        c_0=arrays.get("c_prev", arrays["h_prev"]),
        d_h=arrays["d_h"],
        w=stack(arrays, "w", gates),
        u=stack(arrays, "u", gates),
        b=stack(arrays, "b", gates),
        c_n=arrays.get("c_n", np.zeros(0, np.float32)),
    )


def sgemm(n: int, threads: int) -> Callable[[], object]:
    """NumPy's BLAS; its threads are set by the environment."""
    a, b, c = (np.full((n, n), value, np.float32) for value in (0.5, 0.25, 0))
    return lambda: np.matmul(a, b, out=c)
