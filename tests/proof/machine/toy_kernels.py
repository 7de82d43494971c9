"""Kernels that tests of the checks compile: a copy, and a chain of products."""

import triton
import triton.language as tl


@triton.jit
def copied(x_p, y_p, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    on = at < N
    tl.store(y_p + at, tl.load(x_p + at, mask=on), mask=on)


@triton.jit
def chained(q_p, k_p, o_p, T, D: tl.constexpr, BT: tl.constexpr):
    """o = (lower triangle of q k') k, and what chunks before gave: a memory in registers."""
    row = tl.program_id(0)
    d = tl.arange(0, D)
    c = tl.arange(0, BT)
    S = tl.zeros([D, D], tl.float32)
    for start in range(0, T, BT):
        at = (row * T + start + c)[:, None] * D + d[None, :]
        on = (start + c < T)[:, None] & (d >= 0)[None, :]
        q = tl.load(q_p + at, mask=on, other=0.0)
        k = tl.load(k_p + at, mask=on, other=0.0)
        P = tl.where(c[:, None] >= c[None, :], tl.dot(q, tl.trans(k)), 0.0)
        o = tl.dot(P.to(k.dtype), k) + tl.dot(q, S.to(k.dtype))
        tl.store(o_p + at, o.to(o_p.dtype.element_ty), mask=on)
        S += tl.dot(tl.trans(k), k)
