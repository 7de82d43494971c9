"""Hand-written forwards of cells that keep a matrix for each row, and of state spaces.

Heads are gone through one by one, and matrices by ``einsum``; see ``truths``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from cellgen.proof.logistic import Array, larger, sigmoid, softplus

Arrays: TypeAlias = Mapping[str, Array]
Truth: TypeAlias = Callable[[Arrays], dict[str, Array]]


def _into(x: Array, w: Array) -> Array:
    """(B, I) by (I, N, D): the product of each head."""
    heads: Array = np.einsum("bi,ind->bnd", x, w)
    return heads


def _outer(a: Array, b: Array) -> Array:
    product: Array = np.einsum("bni,bnj->bnij", a, b)
    return product


def _read(s: Array, k: Array) -> Array:
    """A matrix of each head times a vector."""
    read: Array = np.einsum("bnij,bnj->bni", s, k)
    return read


def mlstm(a: Arrays) -> dict[str, Array]:
    """C = f C' + i v k^T; n = f n' + i k; h = o (C q) / max(|n q|, e^-m)."""
    x = a["x"]
    q, v = _into(x, a["w_q"]) + a["b_q"], _into(x, a["w_v"]) + a["b_v"]
    k = _into(x, a["w_k"]) / np.sqrt(a["w_k"].shape[-1]) + a["b_k"]
    i_bar, f_bar = _into(x, a["w_i"]) + a["b_i"], _into(x, a["w_f"]) + a["b_f"]
    o = sigmoid(_into(x, a["w_o"]) + a["b_o"])
    log_f = np.log(sigmoid(f_bar)) + a["m_prev"]
    m = larger(log_f, i_bar)
    i, f = np.exp(i_bar - m), np.exp(log_f - m)
    c = f[..., None] * a["c_prev"] + i[..., None] * _outer(v, k)
    n = f * a["n_prev"] + i * k
    read = (n * q).sum(-1, keepdims=True)
    below = larger(np.where(read.real < 0, -read, read), np.exp(-m))
    return {"h": o * _read(c, q) / below, "c": c, "n": n, "m": m}


def _silu(a: Array) -> Array:
    smooth: Array = a * sigmoid(a)
    return smooth


def _feature(a: Array) -> Array:
    """SiLU, then to length 1."""
    u = _silu(a)
    feature: Array = u * ((u * u).sum(-1, keepdims=True) + 1e-6) ** -0.5
    return feature


def _delta(a: Arrays, kept: Array) -> dict[str, Array]:
    """S = R (1 - beta k k^T) + beta v k^T of what is kept, R; h = S q."""
    x = a["x"]
    q, k = _feature(_into(x, a["w_q"])), _feature(_into(x, a["w_k"]))
    v, beta = _silu(_into(x, a["w_v"])), sigmoid(_into(x, a["w_b"]))[..., None]
    s = kept - beta * np.einsum("bnij,bnjl->bnil", kept, _outer(k, k)) + beta * _outer(v, k)
    return {"h": _read(s, q), "s": s}


def delta_net(a: Arrays) -> dict[str, Array]:
    """Keep all of S'."""
    return _delta(a, a["s_prev"])


def gated_delta_net(a: Arrays) -> dict[str, Array]:
    """Keep alpha S', alpha = e^(-e^a_log softplus(x w_a + b_a))."""
    alpha = np.exp(-np.exp(a["a_log"]) * softplus(_into(a["x"], a["w_a"]) + a["b_a"]))
    return _delta(a, alpha[..., None] * a["s_prev"])


def _faded(a: Arrays) -> Array:
    """S' diag(alpha), alpha = e^(-e^a_log softplus(x w_a + b_a)): a number for each key."""
    rate = np.exp(a["a_log"]) * softplus(_into(a["x"], a["w_a"]) + a["b_a"])
    kept: Array = np.einsum("bndk,bnk->bndk", a["s_prev"], np.exp(-rate))
    return kept


def kda(a: Arrays) -> dict[str, Array]:
    """Keep S' diag(alpha)."""
    return _delta(a, _faded(a))


def gated_delta_net_2(a: Arrays) -> dict[str, Array]:
    """S = R (1 - (b k) k^T) + (w v) k^T, R = S' diag(alpha); h = S q."""
    x, kept = a["x"], _faded(a)
    q, k = _feature(_into(x, a["w_q"])), _feature(_into(x, a["w_k"]))
    v, b, w = _silu(_into(x, a["w_v"])), sigmoid(_into(x, a["w_b"])), sigmoid(_into(x, a["w_w"]))
    erased = np.einsum("bnij,bnjl->bnil", kept, _outer(b * k, k))
    s = kept - erased + _outer(w * v, k)
    return {"h": _read(s, q), "s": s}


def delta_product(a: Arrays) -> dict[str, Array]:
    """Take both steps one after the other, beta = 2 sigmoid(x w_b)."""
    s = a["s_prev"]
    for n in (1, 2):
        k, v = _feature(_into(a["x"], a[f"w_k_{n}"])), _silu(_into(a["x"], a[f"w_v_{n}"]))
        beta = 2 * sigmoid(_into(a["x"], a[f"w_b_{n}"]))
        turn = np.eye(k.shape[-1]) - beta[..., None] * _outer(k, k)
        s = np.einsum("bnij,bnjl->bnil", s, turn) + _outer(beta * v, k)
    return {"h": _read(s, _feature(_into(a["x"], a["w_q"]))), "s": s}


def comba(a: Arrays) -> dict[str, Array]:
    """S = S' (alpha - b beta k k^T) + beta v k^T, b = sigmoid(b_bar); h = S (q - d k)."""
    x, old = a["x"], a["s_prev"]
    q, k = _feature(_into(x, a["w_q"])), _feature(_into(x, a["w_k"]))
    v, beta = _silu(_into(x, a["w_v"])), sigmoid(_into(x, a["w_b"]))
    alpha = np.exp(-np.exp(a["a_log"]) * softplus(_into(x, a["w_a"]) + a["b_a"]))
    erased = np.einsum("bnij,bnjl->bnil", old, _outer(sigmoid(a["b_bar"]) * beta * k, k))
    s = alpha[..., None] * old - erased + _outer(beta * v, k)
    return {"h": _read(s, q) - a["d"] * _read(s, k), "s": s}


def titans(a: Arrays) -> dict[str, Array]:
    """S = eta S' - theta grad |M' k - v|^2, M = (1 - alpha) M' + S; h = M q."""
    x = a["x"]
    q, k = _feature(_into(x, a["w_q"])), _feature(_into(x, a["w_k"]))
    v = _silu(_into(x, a["w_v"]))
    alpha, eta, theta = (
        sigmoid(_into(x, a[f"w_{g}"]) + a[f"b_{g}"])[..., None] for g in ("a", "e", "t")
    )
    slope = 2 * (np.einsum("bnij,bnjl->bnil", a["m_prev"], _outer(k, k)) - _outer(v, k))
    s = eta * a["s_prev"] - theta * slope
    m = a["m_prev"] - alpha * a["m_prev"] + s
    return {"h": _read(m, q), "m": m, "s": s}


def mlstm_sigmoid(a: Arrays) -> dict[str, Array]:
    """C = f C' + i v k^T; n = f n' + i k; h = o (C q) / max(|n q|, 1)."""
    x = a["x"]
    q, v = _into(x, a["w_q"]) + a["b_q"], _into(x, a["w_v"]) + a["b_v"]
    k = _into(x, a["w_k"]) / np.sqrt(a["w_k"].shape[-1]) + a["b_k"]
    i, f, o = (sigmoid(_into(x, a[f"w_{g}"]) + a[f"b_{g}"]) for g in "ifo")
    c = f[..., None] * a["c_prev"] + _outer(i * v, k)
    n = f * a["n_prev"] + i * k
    read = np.einsum("bnk,bnk->bn", n, q)[..., None]
    below = larger(np.where(read.real < 0, -read, read), np.ones_like(read))
    return {"h": o * _read(c, q) / below, "c": c, "n": n}


def _attended(a: Arrays, q: Array, k: Array, kept: Array) -> dict[str, Array]:
    """S = R + k v^T; h = S^T q."""
    s = kept + _outer(k, _into(a["x"], a["w_v"]))
    return {"h": np.einsum("bnij,bni->bnj", s, q), "s": s}


def gla(a: Arrays) -> dict[str, Array]:
    """S = diag(alpha) S' + k v^T, alpha = sigmoid(x w_a + b_a)^(1/16)."""
    alpha = sigmoid(_into(a["x"], a["w_a"]) + a["b_a"]) ** (1 / 16)
    q = _into(a["x"], a["w_q"]) / np.sqrt(a["w_q"].shape[-1])
    return _attended(a, q, _into(a["x"], a["w_k"]), alpha[..., None] * a["s_prev"])


def hgrn2(a: Arrays) -> dict[str, Array]:
    """S = diag(f) S' + (1 - f) i^T, f between its bound and 1; h = S^T o."""
    low, o = sigmoid(a["b_l"]), _silu(_into(a["x"], a["w_o"]))
    kept_not = (1 - low) * sigmoid(-_into(a["x"], a["w_f"]))
    s = a["s_prev"] - kept_not[..., None] * a["s_prev"]
    s = s + _outer(kept_not, _into(a["x"], a["w_i"]))
    return {"h": np.einsum("bnkd,bnk->bnd", s, o), "s": s}


def retnet(a: Arrays) -> dict[str, Array]:
    """S = gamma S' + k v^T."""
    k = _into(a["x"], a["w_k"]) / np.sqrt(a["w_k"].shape[-1])
    return _attended(a, _into(a["x"], a["w_q"]), k, a["gamma"] * a["s_prev"])


def mamba(a: Arrays) -> dict[str, Array]:
    """Form s = e^(dt A) s' + dt x B, channel by channel; y = s C + d x, with A = -e^a_log."""
    x = a["x"]
    b, c = x @ a["w_b"], x @ a["w_c"]
    dt = softplus((x @ a["w_r"]) @ a["w_t"] + a["b_t"])
    channels = [
        np.exp(-dt[:, [n]] * np.exp(a["a_log"][n])) * a["s_prev"][:, n] + (dt * x)[:, [n]] * b
        for n in range(x.shape[1])
    ]
    y = np.stack([(s * c).sum(axis=1) for s in channels], axis=1) + a["d"] * x
    return {"y": y, "s": np.stack(channels, axis=1)}


def mamba2(a: Arrays) -> dict[str, Array]:
    """S = e^(dt a) S' + dt u B^T, a and dt one number a head; y = S C + d u."""
    x = a["x"]
    u, dt = _into(x, a["w_x"]), softplus(_into(x, a["w_t"]) + a["b_t"])
    b, c = (_into(x, a[name])[:, 0] for name in ("w_b", "w_c"))
    kept = np.exp(-np.exp(a["a_log"]) * dt)[..., None] * a["s_prev"]
    s = kept + np.einsum("bnd,bk->bndk", dt * u, b)
    return {"y": np.einsum("bndk,bk->bnd", s, c) + a["d"] * u, "s": s}


def _shifted(a: Arrays, gate: str) -> Array:
    """The input, mixed with the one before."""
    mix = a[f"mu_{gate}"]
    mixed: Array = mix * a["x"] + (1 - mix) * a["x_shift_prev"]
    return mixed


def rwkv4(a: Arrays) -> dict[str, Array]:
    """Form wkv of all pairs: (e^p' a' + e^(u + k) v) / (e^p' b' + e^(u + k)); both then fade."""
    r, k, v = (_shifted(a, gate) @ a[f"w_{gate}"] for gate in "rkv")
    q = larger(a["u"] + k, a["p_prev"])
    old, new = np.exp(a["p_prev"] - q), np.exp(a["u"] + k - q)
    wkv = (old * a["a_prev"] + new * v) / (old * a["b_prev"] + new)
    fading = a["p_prev"] - np.exp(a["decay"])
    p = larger(fading, k)
    old, new = np.exp(fading - p), np.exp(k - p)
    states = {"a": old * a["a_prev"] + new * v, "b": old * a["b_prev"] + new, "p": p}
    return {"h": (sigmoid(r) * wkv) @ a["w_o"], "x_shift": a["x"], **states}


def m2rnn(a: Arrays) -> dict[str, Array]:
    """S = f S' + (1 - f) tanh(S' u + k v^T), f = e^(-e^a_log softplus(x w_f + b_f)); y = S^T q."""
    x, old = a["x"], a["s_prev"]
    q, k, v = (_silu(_into(x, a[f"w_{g}"])) for g in "qkv")
    f = np.exp(-np.exp(a["a_log"]) * softplus(_into(x, a["w_f"]) + a["b_f"]))[..., None]
    z = np.tanh(np.einsum("bnkd,nde->bnke", old, a["u"]) + _outer(k, v))
    s = z + f * (old - z)
    return {"y": np.einsum("bnkd,bnk->bnd", s, q) + a["d"] * v, "s": s}


def _complex(a: Arrays, g: str, phi: Array) -> tuple[Array, Array]:
    """Give e^(i phi) (g z / |z| + o), |z| the root mean square of all parts of z = x w."""
    re, im = (_into(a["x"], a[f"w_{g}_{part}"]) for part in ("re", "im"))
    size = np.sqrt((re * re + im * im).sum(-1, keepdims=True) / (2 * re.shape[-1]) + 1e-5)
    re, im = (
        a[f"g_{g}_re"] * re / size + a[f"o_{g}_re"],
        a[f"g_{g}_im"] * im / size + a[f"o_{g}_im"],
    )
    return re * np.cos(phi) - im * np.sin(phi), im * np.cos(phi) + re * np.sin(phi)


def mamba3(a: Arrays) -> dict[str, Array]:
    """S = e^(-r dt) (S' + (1 - l) dt u' b'^T) + l dt u b^T; y = Re(S conj(c)) + d u."""
    x = a["x"]
    u, dt = _into(x, a["w_u"]), softplus(_into(x, a["w_t"]) + a["b_t"])
    lam = sigmoid(_into(x, a["w_l"]))
    phi = a["phi_prev"] + np.pi * np.tanh(_into(x, a["w_phi"])) * dt
    b, c = _complex(a, "b", phi), _complex(a, "c", phi)
    decay = np.exp(-softplus(_into(x, a["w_a"])) * dt)[..., None]
    out, y = {"u": u, "phi": phi}, a["d"] * u
    for part, b_part, c_part in zip(("re", "im"), b, c, strict=True):
        old = a[f"s_{part}_prev"] + _outer((1 - lam) * dt * a["u_prev"], a[f"b_{part}_prev"])
        s = decay * old + _outer(lam * dt * u, b_part)
        y = y + _read(s, c_part)
        out |= {f"s_{part}": s, f"b_{part}": b_part}
    return {"y": y, **out}


def rwkv6(a: Arrays) -> dict[str, Array]:
    """S = diag(w) S' + k v^T; o = r (S' + diag(u) k v^T)."""
    moved = {g: a["x"] + a[f"mu_{g}"] * (a["x_shift_prev"] - a["x"]) for g in "rkvw"}
    r, k, v = (_into(moved[g], a[f"w_{g}"]) for g in "rkv")
    w = np.exp(-np.exp(a["w_0"] + _into(np.tanh(moved["w"] @ a["w_a"]), a["w_b"])))
    s = w[..., None] * a["s_prev"] + _outer(k, v)
    o = np.einsum("bni,bnij->bnj", r, a["s_prev"]) + (r * a["u"] * k).sum(-1, keepdims=True) * v
    return {"o": o, "s": s, "x_shift": a["x"]}


def rwkv7(a: Arrays) -> dict[str, Array]:
    """S = S' (diag(w) - z^T (a z)) + v^T k (1 + (a - 1) alpha), z = k xi / |k xi|; o = S r."""
    moved = {g: a["x"] + a[f"mu_{g}"] * (a["x_shift_prev"] - a["x"]) for g in "rkvwa"}
    r, k, v = (_into(moved[g], a[f"w_{g}"]) for g in "rkv")
    decay = 1 / (1 + np.exp(-a["w_0"] - _into(np.tanh(moved["w"] @ a["w_a"]), a["w_b"])))
    w = np.exp(-decay / np.sqrt(np.e))
    rate = 1 / (1 + np.exp(-a["a_0"] - _into(moved["a"] @ a["a_a"], a["a_b"])))
    z = k * a["xi"]
    z = z / np.sqrt((z * z).sum(-1, keepdims=True))
    change = w[..., None, :] * np.eye(w.shape[-1]) - _outer(z, rate * z)
    s = np.einsum("bnij,bnjk->bnik", a["s_prev"], change)
    s = s + _outer(v, k * (1 + (rate - 1) * a["alpha"]))
    return {"o": np.einsum("bnij,bnj->bni", s, r), "s": s, "x_shift": a["x"]}


def ttt_linear(a: Arrays) -> dict[str, Array]:
    """S = S' - eta grad |k + norm(S' k) - v|^2 / 2, by the norm's Jacobian; h = q + norm(S q)."""

    def norm(u: Array) -> tuple[Array, Array]:
        size, centring = u.shape[-1], np.eye(u.shape[-1]) - 1 / u.shape[-1]
        centred = u @ centring
        deviation = np.sqrt((centred * centred).sum(-1, keepdims=True) / size + 1e-6)
        n = centred / deviation
        jacobian = (centring - _outer(n, n) / size) / deviation[..., None]
        return a["gamma"] * n + a["beta"], a["gamma"][..., None] * jacobian

    q, k, v = (_into(a["x"], a[f"w_{g}"]) for g in "qkv")
    eta = 1 / (1 + np.exp(-_into(a["x"], a["w_eta"]) - a["b_eta"]))
    normed, jacobian = norm(np.einsum("bnij,bnj->bni", a["s_prev"], k))
    downhill = np.einsum("bni,bnij->bnj", k + normed - v, jacobian)
    s = a["s_prev"] - _outer(eta * downhill, k)
    return {"h": q + norm(np.einsum("bnij,bnj->bni", s, q))[0], "s": s}


def s5(a: Arrays) -> dict[str, Array]:
    """Form s = e^(l step) s' + (e^(l step) - 1) / l B x; y = 2 Re(C s) + d x.

    In pairs of real numbers: complex steps leave no room for complex states.
    """
    x, step = a["x"], np.exp(a["log_step"])
    l_re, l_im = -np.exp(a["l_re"]), a["l_im"]
    size = np.exp(l_re * step)
    a_re, a_im = size * np.cos(l_im * step), size * np.sin(l_im * step)
    below = l_re**2 + l_im**2
    g_re = ((a_re - 1) * l_re + a_im * l_im) / below
    g_im = (a_im * l_re - (a_re - 1) * l_im) / below
    u_re, u_im = x @ a["b_re"], x @ a["b_im"]
    old_re, old_im = a["s_re_prev"], a["s_im_prev"]
    s_re = a_re * old_re - a_im * old_im + g_re * u_re - g_im * u_im
    s_im = a_re * old_im + a_im * old_re + g_re * u_im + g_im * u_re
    y = 2 * (s_re @ a["c_re"] - s_im @ a["c_im"]) + a["d"] * x
    return {"y": y, "s_re": s_re, "s_im": s_im}


MEMORIES: Mapping[str, Truth] = {
    "mlstm": mlstm,
    "delta_net": delta_net,
    "gated_delta_net": gated_delta_net,
    "kda": kda,
    "gated_delta_net_2": gated_delta_net_2,
    "delta_product": delta_product,
    "mlstm_sigmoid": mlstm_sigmoid,
    "hgrn2": hgrn2,
    "comba": comba,
    "mamba3": mamba3,
    "m2rnn": m2rnn,
    "titans": titans,
    "ttt_linear": ttt_linear,
    "gla": gla,
    "retnet": retnet,
    "mamba": mamba,
    "mamba2": mamba2,
    "rwkv4": rwkv4,
    "rwkv6": rwkv6,
    "rwkv7": rwkv7,
    "s5": s5,
}
"""The forwards of this module, by the cell's name."""
