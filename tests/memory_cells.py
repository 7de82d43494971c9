"""Cells with a memory for each head, drawn: what is erased, gates, keys and reads of many kinds."""

from __future__ import annotations

import random

import cellgen
from cellgen import Cell

GATES = (
    "sigmoid(g_n + b_g)",
    "sigmoid(g_k + tanh(k))",
    "exp(-0.5 * sigmoid(g_k)) * sigmoid(g_n + b_g)",
    "tanh(g_d)",
    "0.9",
)
READ = (
    "0",
    "sum(s_prev * k, axis=(K,))",
    "beta * sum(s_prev * tanh(k) * g_k, axis=(K,))",
    "sum(s_prev, axis=(K,)) * sigmoid(g_n)",
)
WHOLE = ("0", "sum(s * s, axis=(K, D))", "sum(q * s * g_d, axis=(K, D))")
SECOND = ("", "n = sigmoid(g_n) * n_prev + tanh(k)", "n = beta * n_prev + q * g_k")


def drawn(seed: int) -> type[Cell]:
    """The cell of a seed."""
    pick = random.Random(seed).choice
    second, lines = pick(SECOND), ["x, s_prev = Input(I), State(N, K, D)"]
    lines += [f"{n} = Input(N, {axes})" for n, axes in (("g_n", "1, 1"), ("g_d", "1, D"))]
    lines += ["g_k, b_g = Input(N, K, 1), Bias(N, 1, 1)"]
    lines += ["w_k, w_v, w_q = Weight(I, N, K, 1), Weight(I, N, 1, D), Weight(I, N, K, 1)"]
    lines += ["n_prev = State(N, K, 1)"] if second else []
    lines += ["k, v, q = x @ w_k, x @ w_v, x @ w_q", "beta = sigmoid(g_n * 2 + b_g)"]
    lines += [f"u = v - {pick(READ)}", f"s = {pick(GATES)} * s_prev + k * u"]
    lines += [second] if second else []
    norm = " / (1 + abs(sum(q * n, axis=(K,))))" if second else ""
    rest = f"0.1 * ({pick(WHOLE)}) + g_d * beta + sum(g_k, axis=(K,))"
    lines += [f"y = sum(q * s, axis=(K,)){norm} + {rest}"]
    lines += [f"outputs = y, s{', n' if second else ''}"]
    names = {name: cellgen.Dim(name) for name in ("N", "K", "D")}
    names |= {name: getattr(cellgen, name) for name in cellgen.__all__ if name not in names}
    body = "\n".join(f"    {line}" for line in lines)
    exec(f"class Memory{seed}(Cell):\n{body}\n", names)
    cell: type[Cell] = names[f"Memory{seed}"]
    return cell
