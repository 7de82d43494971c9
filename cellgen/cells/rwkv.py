"""Time mixing of RWKV."""

import math

import sympy

from cellgen.language.cell import Cell, Input, State, Weight
from cellgen.language.ops import (
    exp,
    expand_dims,
    keep,
    l2_normalise,
    maximum,
    outer,
    sigmoid,
    tanh,
)
from cellgen.language.value import Dim, H

N, D, K, R = Dim("N"), Dim("D"), Dim("K"), Dim("R")


class RWKV4(Cell, name="rwkv4"):
    """Time mixing of RWKV-4: a weighted mean of values, kept finite by its largest exponent p,
    which starts at -infinity (Peng et al. 2023, arXiv:2305.13048, section 3.1, appendix D)."""

    x, x_shift_prev, a_prev, b_prev = Input(H), State(H), State(H), State(H)
    p_prev = State(H, initial=-math.inf)
    mu_r, mu_k, mu_v = Weight(H), Weight(H), Weight(H)
    w_r, w_k, w_v, w_o = Weight(H, H), Weight(H, H), Weight(H, H), Weight(H, H)
    decay, u = Weight(H), Weight(H)

    x_shift = keep(x)
    x_r = mu_r * x + (1 - mu_r) * x_shift_prev
    x_k = mu_k * x + (1 - mu_k) * x_shift_prev
    x_v = mu_v * x + (1 - mu_v) * x_shift_prev
    r, k, v = x_r @ w_r, x_k @ w_k, x_v @ w_v
    q = maximum(u + k, p_prev)
    e_old, e_new = exp(p_prev - q), exp(u + k - q)
    wkv = (e_old * a_prev + e_new * v) / (e_old * b_prev + e_new)
    fading = p_prev - exp(decay)
    p = maximum(fading, k)
    f_old, f_new = exp(fading - p), exp(k - p)
    a = f_old * a_prev + f_new * v
    b = f_old * b_prev + f_new
    h = (sigmoid(r) * wkv) @ w_o

    outputs = h, x_shift, a, b, p


class RWKV6(Cell, name="rwkv6"):
    """Time mixing of RWKV-6 (Finch), N heads: a matrix that decays by key, as the input says, and a
    bonus u of the present key; what is read, before norm, gate and projection (Peng et al. 2024,
    arXiv:2404.05892, section 4.2; the shifts' own low-rank parts left out)."""

    x, x_shift_prev, s_prev = Input(H), State(H), State(N, K, D)
    mu_r, mu_k, mu_v, mu_w = Weight(H), Weight(H), Weight(H), Weight(H)
    w_r, w_k, w_v = Weight(H, N, K), Weight(H, N, K), Weight(H, N, D)
    w_0, w_a, w_b, u = Weight(N, K), Weight(H, R), Weight(R, N, K), Weight(N, K)

    x_shift = keep(x)
    r = (x + mu_r * (x_shift_prev - x)) @ w_r
    k = (x + mu_k * (x_shift_prev - x)) @ w_k
    v = (x + mu_v * (x_shift_prev - x)) @ w_v
    low = tanh((x + mu_w * (x_shift_prev - x)) @ w_a)
    w = exp(-exp(w_0 + low @ w_b))
    kv = outer(k, v)
    s = expand_dims(w, -1) * s_prev + kv
    o = r @ (s_prev + expand_dims(u, -1) * kv)

    outputs = o, s, x_shift


class RWKV7(Cell, name="rwkv7"):
    """Time mixing of RWKV-7 (Goose), N heads: a matrix that decays by key and forgets what it holds
    for a removal key, at a rate a that the input says; what is read, before norm, bonus, gate and
    projection (Peng et al. 2025, arXiv:2503.14456; no values of a first layer)."""

    x, x_shift_prev, s_prev = Input(H), State(H), State(N, D, K)
    mu_r, mu_k, mu_v, mu_w, mu_a = Weight(H), Weight(H), Weight(H), Weight(H), Weight(H)
    w_r, w_k, w_v = Weight(H, N, K), Weight(H, N, K), Weight(H, N, D)
    w_0, w_a, w_b = Weight(N, K), Weight(H, R), Weight(R, N, K)
    a_0, a_a, a_b = Weight(N, K), Weight(H, R), Weight(R, N, K)
    xi, alpha = Weight(N, K), Weight(N, K)

    x_shift = keep(x)
    r = (x + mu_r * (x_shift_prev - x)) @ w_r
    k = (x + mu_k * (x_shift_prev - x)) @ w_k
    v = (x + mu_v * (x_shift_prev - x)) @ w_v
    low_w = tanh((x + mu_w * (x_shift_prev - x)) @ w_a)
    w = exp(-sympy.exp(-sympy.Rational(1, 2)) * sigmoid(w_0 + low_w @ w_b))
    low_a = (x + mu_a * (x_shift_prev - x)) @ a_a
    a = sigmoid(a_0 + low_a @ a_b)
    removed = l2_normalise(k * xi)
    kept = k * (1 + (a - 1) * alpha)
    s = expand_dims(w, -2) * s_prev - outer(s_prev @ removed, a * removed) + outer(v, kept)
    o = s @ r

    outputs = o, s, x_shift
