"""Hand-written forwards of gated and spiking cells with times, orders and memories of their own.

See ``truths``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from cellgen.proof.logistic import Array, sigmoid, softplus

Arrays: TypeAlias = Mapping[str, Array]
Truth: TypeAlias = Callable[[Arrays], dict[str, Array]]


def _bar(a: Arrays, gate: str) -> Array:
    """Form x w + h' u + b."""
    bar: Array = a["x"] @ a[f"w_{gate}"] + a["h_prev"] @ a[f"u_{gate}"] + a[f"b_{gate}"]
    return bar


def rg_lru(a: Arrays) -> dict[str, Array]:
    """Form h = a h' + sqrt(1 - a^2) (i x), a = e^(-8 r softplus(lam))."""
    x = a["x"]
    r, i = sigmoid(x @ a["w_a"] + a["b_a"]), sigmoid(x @ a["w_x"] + a["b_x"])
    log_a = -8 * softplus(a["lam"]) * r
    return {"h": np.exp(log_a) * a["h_prev"] + np.sqrt(-np.expm1(2 * log_a)) * i * x}


def _normal(a: Array) -> Array:
    """The share of a normal distribution below a number."""
    below: Array = np.vectorize(math.erfc, otypes=[float])(-a.real / math.sqrt(2)) / 2
    if np.iscomplexobj(a):
        below = below + 1j * a.imag * np.exp(-(a.real**2) / 2) / math.sqrt(2 * math.pi)
    return below


def hawk(a: Arrays) -> dict[str, Array]:
    """Give an RG-LRU the convolution of x w_u over four steps; y = (gelu(x w_g) h) w_y."""
    x, u_1 = a["x"], a["x"] @ a["w_u"]
    taps = (u_1, a["u_1_prev"], a["u_2_prev"], a["u_3_prev"])
    c = sum(a[f"k_{n}"] * u for n, u in enumerate(taps)) + a["b"]
    own = {"x": c} | {n: a[n] for n in ("h_prev", "w_a", "w_x", "b_a", "b_x", "lam")}
    h = rg_lru(own)["h"]
    side = x @ a["w_g"]
    return {
        "y": (side * _normal(side) * h) @ a["w_y"],
        "h": h,
        **{f"u_{n + 1}": u for n, u in enumerate(taps[:3])},
    }


def gru_d(a: Arrays) -> dict[str, Array]:
    """A GRU of values and states that fade by the time since they were seen."""

    def fading(bar: Array) -> Array:
        decay: Array = np.exp(-np.where(bar.real > 0, bar, 0))
        return decay

    m, seen = a["m"], a["x_seen_prev"]
    gamma_x = fading(a["delta"] * a["w_gx"] + a["b_gx"])
    h_prev = fading(a["delta"] @ a["w_gh"] + a["b_gh"]) * a["h_prev"]
    missing = gamma_x * seen + (1 - gamma_x) * a["x_mean"]
    x = m * a["x"] + (1 - m) * missing
    z = sigmoid(x @ a["w_z"] + h_prev @ a["u_z"] + m @ a["v_z"] + a["b_z"])
    r = sigmoid(x @ a["w_r"] + h_prev @ a["u_r"] + m @ a["v_r"] + a["b_r"])
    h_tilde = np.tanh(x @ a["w"] + (r * h_prev) @ a["u"] + m @ a["v"] + a["b"])
    return {"h": h_prev + z * (h_tilde - h_prev), "x_seen": m * a["x"] + (1 - m) * seen}


def phased_lstm(a: Arrays) -> dict[str, Array]:
    """The LSTM with peephole connections, of which a time gate k takes a share."""
    c_prev = a["c_prev"]
    i = sigmoid(_bar(a, "i") + a["p_i"] * c_prev)
    f = sigmoid(_bar(a, "f") + a["p_f"] * c_prev)
    c_new = f * c_prev + i * np.tanh(_bar(a, "c"))
    h_new = sigmoid(_bar(a, "o") + a["p_o"] * c_new) * np.tanh(c_new)
    since = (a["t"] - a["s"]) / a["tau"]
    phi = since - np.floor(since.real)
    r_on = a["r_on"]
    opening, closing = phi.real < r_on / 2, phi.real < r_on
    k = np.where(opening, phi / r_on, np.where(closing, 1 - phi / r_on, a["alpha"] * phi / 2)) * 2
    return {"h": a["h_prev"] + k * (h_new - a["h_prev"]), "c": c_prev + k * (c_new - c_prev)}


def on_lstm(a: Arrays) -> dict[str, Array]:
    """Form c = f^ c' + i^ tanh(...), where the master gates, sums of shares, overlap."""

    def shares(bar: Array) -> Array:
        """Each unit the share of those up to it."""
        powers = np.exp(bar - bar.real.max(axis=1, keepdims=True))
        cumulative: Array = np.cumsum(powers, axis=1) / powers.sum(axis=1, keepdims=True)
        return cumulative

    f, i, o = (sigmoid(_bar(a, gate)) for gate in "fio")
    f_master, i_master = shares(_bar(a, "mf")), 1 - shares(_bar(a, "mi"))
    both = f_master * i_master
    c = (f * both + f_master - both) * a["c_prev"]
    c = c + (i * both + i_master - both) * np.tanh(_bar(a, "c"))
    return {"h": o * np.tanh(c), "c": c}


def lmu(a: Arrays) -> dict[str, Array]:
    """Form m = A m' + B u, u = e_x x + e_h h' + e_m m'; h = tanh(W_x x + W_h h' + W_m m)."""
    u = a["x"] @ a["e_x"] + a["h_prev"] @ a["e_h"] + a["m_prev"] @ a["e_m"]
    m = a["m_prev"] @ a["a"] + u * a["b"]
    return {"h": np.tanh(a["x"] @ a["w_x"] + a["h_prev"] @ a["w_h"] + m @ a["w_m"]), "m": m}


def nested_lstm(a: Arrays) -> dict[str, Array]:
    """Take for c the state of an inner LSTM of input i g and state f c'."""

    def inner(gate: str) -> Array:
        bar: Array = entered @ a[f"v_{gate}"] + kept @ a[f"r_{gate}"] + a[f"a_{gate}"]
        return bar

    entered = sigmoid(_bar(a, "i")) * np.tanh(_bar(a, "c"))
    kept = sigmoid(_bar(a, "f")) * a["c_prev"]
    c_inner = sigmoid(inner("f")) * a["c_inner_prev"] + sigmoid(inner("i")) * np.tanh(inner("c"))
    c = sigmoid(inner("o")) * np.tanh(c_inner)
    return {"h": sigmoid(_bar(a, "o")) * np.tanh(c), "c": c, "c_inner": c_inner}


def _spike(over: Array, at_0: float = 0.0) -> Array:
    """1 above 0, with a triangle as derivative."""
    s: Array = np.heaviside(over.real, at_0)
    if np.iscomplexobj(over):
        s = s + 0.3j * over.imag * np.maximum(0, 1 - np.abs(over.real))
    return s


def alif(a: Arrays) -> dict[str, Array]:
    """Let v fade and be lowered by spikes; thresholds rise by beta a."""
    before, threshold = a["s_prev"], a["threshold"]
    v = a["decay"] * a["v_prev"] + a["x"] @ a["w"] + before @ a["u"] + a["b"]
    v = v - threshold * before
    raised = a["rho"] * a["a_prev"] + before
    return {"s": _spike((v - threshold - a["beta"] * raised) / threshold), "v": v, "a": raised}


def izhikevich(a: Arrays) -> dict[str, Array]:
    """Follow v' = 0.04 v^2 + 5 v + 140 - r + I and r' = a (b v - r), one step of Euler's."""
    v, r, dt = a["v_prev"], a["r_prev"], a["dt"]
    current = a["x"] @ a["w"] + a["s_prev"] @ a["u"] + a["b_in"]
    v_new = v + dt * (0.04 * v**2 + 5 * v + 140 - r + current)
    r_new = r + dt * a["a"] * (a["b"] * v - r)
    above = v_new.real >= 30
    after = {"v": np.where(above, a["c"], v_new), "r": np.where(above, r_new + a["d"], r_new)}
    return {"s": _spike((v_new - 30) / 30, 1.0), **after}


def _diagonal(a: Arrays, gate: str, read: Array) -> Array:
    """Form x w + a h' + b, unit by unit of the state."""
    bar: Array = np.einsum("bi,ih->bh", a["x"], a[f"w_{gate}"]) + read @ np.diag(a[f"a_{gate}"])
    return bar + a[f"b_{gate}"]


def para_gru(a: Arrays) -> dict[str, Array]:
    """Keep h' where z is shut, take tanh(x w + A (r h') + b) where it is open; A is diagonal."""
    h_prev = a["h_prev"]
    z, r = sigmoid(_diagonal(a, "z", h_prev)), sigmoid(_diagonal(a, "r", h_prev))
    return {"h": h_prev + z * (np.tanh(_diagonal(a, "n", r * h_prev)) - h_prev)}


def para_lstm(a: Arrays) -> dict[str, Array]:
    """C = f c' + (1 - f) g, with peepholes: f looks at c', o at c; all of A are diagonal."""
    h_prev, c_prev = a["h_prev"], a["c_prev"]
    f = sigmoid(_diagonal(a, "f", h_prev) + c_prev * a["p_f"])
    g = np.tanh(_diagonal(a, "g", h_prev))
    c = g + f * (c_prev - g)
    return {"h": sigmoid(_diagonal(a, "o", h_prev) + c * a["p_o"]) * np.tanh(c), "c": c}


GATES: Mapping[str, Truth] = {
    "rg_lru": rg_lru,
    "hawk": hawk,
    "gru_d": gru_d,
    "phased_lstm": phased_lstm,
    "on_lstm": on_lstm,
    "lmu": lmu,
    "nested_lstm": nested_lstm,
    "alif": alif,
    "izhikevich": izhikevich,
    "para_gru": para_gru,
    "para_lstm": para_lstm,
}
"""The forwards of this module, by the cell's name."""
