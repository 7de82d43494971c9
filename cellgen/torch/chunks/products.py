"""Products on tensors: plain ones, of rows of a chunk, of rows whose keys decay between steps.

With ``narrow`` operands are rounded to bfloat16, summed in float32; a result is rounded once more.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

BLOCK = 16
"""Steps of a chunk within which a decay is formed for each pair of steps and each key."""


def _matmul(a: Tensor, b: Tensor, narrow: bool) -> Tensor:
    if narrow:
        return torch.matmul(a.to(torch.bfloat16), b.to(torch.bfloat16)).to(a.dtype)
    return torch.matmul(a, b)


# --- of rows and weights -------------------------------------------------------------------------


def matmul(a: Tensor, w: Tensor, narrow: bool) -> Tensor:
    """``a w``: (R, K) by (K, ...)."""
    return _matmul(a, w.flatten(1), narrow).unflatten(1, w.shape[1:])


def matmul_transposed(a: Tensor, w: Tensor, narrow: bool) -> Tensor:
    """``a w^T``: (R, ...) by (K, ...), summed over all axes but the first."""
    return _matmul(a.flatten(1), w.flatten(1).mT, narrow)


def outer_sum(a: Tensor, b: Tensor, narrow: bool) -> Tensor:
    """``a^T b``, summed over rows."""
    return _matmul(a.mT, b.flatten(1), narrow).unflatten(1, b.shape[1:])


def matmul_heads(a: Tensor, w: Tensor, narrow: bool) -> Tensor:
    """``a w`` head by head: (R, N, D) by (N, D, E)."""
    return _matmul(a.transpose(0, 1), w, narrow).transpose(0, 1)


def matmul_heads_transposed(a: Tensor, w: Tensor, narrow: bool) -> Tensor:
    """``a w^T`` head by head."""
    return matmul_heads(a, w.mT, narrow)


def outer_sum_heads(a: Tensor, b: Tensor, narrow: bool) -> Tensor:
    """``a^T b`` head by head, summed over rows."""
    return _matmul(a.permute(1, 2, 0), b.transpose(0, 1), narrow)


# --- of the rows of a chunk ----------------------------------------------------------------------


def chunk_nn(a: Tensor, b: Tensor, narrow: bool) -> Tensor:
    """``a b``."""
    return _matmul(a, b, narrow)


def chunk_nt(a: Tensor, b: Tensor, narrow: bool) -> Tensor:
    """``a b^T``."""
    return _matmul(a, b.mT, narrow)


def chunk_tn(a: Tensor, b: Tensor, narrow: bool) -> Tensor:
    """``a^T b``."""
    return _matmul(a.mT, b, narrow)


# --- of rows whose keys decay --------------------------------------------------------------------


def _decays(g: Tensor, h: Tensor, strict: int) -> Tensor:
    """``exp(g[t, k] - h[i, k])`` for i up to t (before t), else 0: (..., t, i, K)."""
    gap = g.unsqueeze(-2) - h.unsqueeze(-3)
    steps = torch.arange(g.shape[-2], device=g.device)
    outside = steps.unsqueeze(-1) <= steps if strict else steps.unsqueeze(-1) < steps
    return torch.exp(gap.masked_fill(outside.unsqueeze(-1), -math.inf))


def _pairs(a: Tensor, b: Tensor, g: Tensor, h: Tensor, strict: int) -> Tensor:
    decays = _decays(g, h, strict)
    return (a.unsqueeze(-2) * b.unsqueeze(-3) * decays).sum(-1)


def decayed_nt(a: Tensor, b: Tensor, g: Tensor, h: Tensor, strict: int, narrow: bool) -> Tensor:
    """``y[t, i] = sum_k a[t, k] b[i, k] exp(g[t, k] - h[i, k])`` for i up to t (before t).

    Blocks of few steps pair by pair; between blocks, both exponents count from what stands just
    before the later block, so that neither is above 0 and the rest is one product.
    """
    count = a.shape[-2]
    rows = []
    for start in range(0, count, BLOCK):
        size = min(BLOCK, count - start)
        own = [x.narrow(-2, start, size) for x in (a, b, g, h)]
        within = _pairs(own[0], own[1], own[2], own[3], strict)
        row = [within]
        if start:
            edge = h.narrow(-2, start - 1, 1)
            later = own[0] * torch.exp(own[2] - edge)
            earlier = b.narrow(-2, 0, start) * torch.exp(edge - h.narrow(-2, 0, start))
            row.insert(0, _matmul(later, earlier.mT, narrow))
        if start + size < count:
            shape = (*within.shape[:-1], count - start - size)
            row.append(within.new_zeros(shape))
        rows.append(torch.cat(row, -1))
    return torch.cat(rows, -2)


def decayed_nn(a: Tensor, b: Tensor, g: Tensor, h: Tensor, strict: int, narrow: bool) -> Tensor:
    """``y[t, k] = sum_i a[t, i] b[i, k] exp(g[t, k] - h[i, k])``."""
    return (a.unsqueeze(-1) * b.unsqueeze(-3) * _decays(g, h, strict)).sum(-2)


def decayed_tn(a: Tensor, b: Tensor, g: Tensor, h: Tensor, strict: int, narrow: bool) -> Tensor:
    """``y[i, k] = sum_t a[t, i] b[t, k] exp(g[t, k] - h[i, k])``."""
    return (a.unsqueeze(-1) * b.unsqueeze(-2) * _decays(g, h, strict)).sum(-3)
