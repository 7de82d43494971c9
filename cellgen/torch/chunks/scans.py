"""Operators that go through the steps of a chunk: scans by doubling, solves of unit triangles.

A scan joins each step with the one 1, 2, 4, ... steps before it, so that C steps take log2(C)
operations of torch, and every derivative of them is torch's.
"""

from __future__ import annotations

import torch
from torch import Tensor

STEPS = -2
"""The axis of the steps of a chunk."""


def _unhidden(factor: Tensor, before: Tensor) -> Tensor:
    """What is multiplied by a factor of 0 shows in nothing, if it is no finite number too."""
    return torch.where((factor == 0) & ~torch.isfinite(before), 0.0, before)


def _parts(x: Tensor, axis: int, by: int) -> tuple[Tensor, Tensor, Tensor]:
    """The first steps, those that have one so many steps before, and these."""
    count = x.shape[axis]
    rest = count - by
    return x.narrow(axis, 0, by), x.narrow(axis, by, rest), x.narrow(axis, 0, rest)


def shifted(x: Tensor, behind: int = 0, fill: float = 0.0) -> Tensor:
    """Each step what stands at the one before, the first ``fill``."""
    axis = x.dim() - 1 - behind
    first = torch.full_like(x.narrow(axis, 0, 1), fill)
    return torch.cat((first, x.narrow(axis, 0, x.shape[axis] - 1)), axis)


def shifted_back(x: Tensor, behind: int = 0) -> Tensor:
    """Each step what stands at the one after, the last 0."""
    axis = x.dim() - 1 - behind
    last = torch.zeros_like(x.narrow(axis, 0, 1))
    return torch.cat((x.narrow(axis, 1, x.shape[axis] - 1), last), axis)


def linear_scan(a: Tensor, b: Tensor, behind: int = 0) -> Tensor:
    """``y_k = a_k y_(k-1) + b_k``; an a_k of 0 begins anew."""
    axis = b.dim() - 1 - behind
    by = 1
    while by < b.shape[axis]:
        first, own, before = _parts(b, axis, by)
        head, factor, factor_before = _parts(a, axis, by)
        b = torch.cat((first, own + factor * _unhidden(factor, before)), axis)
        a = torch.cat((head, factor * factor_before), axis)
        by *= 2
    return b


def linear_scan_transposed(a: Tensor, b: Tensor, behind: int = 0) -> Tensor:
    """``y_k = b_k + a_(k+1) y_(k+1)``, from the last on."""
    axis = b.dim() - 1 - behind
    return linear_scan(shifted_back(a, behind).flip(axis), b.flip(axis), behind).flip(axis)


def coupled_scan(a: Tensor, b: Tensor) -> Tensor:
    """``x_t = b_t + a_t x_(t - 1)`` of n values, (B, n, ..., C, K), a (B, n, n, ..., C, K)."""
    by = 1
    while by < b.shape[STEPS]:
        first, own, before = _parts(b, STEPS, by)
        head, factor, factor_before = _parts(a, STEPS, by)
        held = before.unsqueeze(1)
        moved = (factor * _unhidden(factor, held.expand_as(factor))).sum(2)
        joined = (factor.unsqueeze(3) * factor_before.unsqueeze(1)).sum(2)
        b = torch.cat((first, own + moved), STEPS)
        a = torch.cat((head, joined), STEPS)
        by *= 2
    return b


def coupled_scan_transposed(a: Tensor, b: Tensor) -> Tensor:
    """``x_t = b_t + a_(t + 1)^T x_(t + 1)``."""
    turned = shifted_back(a, 1).transpose(1, 2)
    return coupled_scan(turned.flip(STEPS), b.flip(STEPS)).flip(STEPS)


def max_scan(rise: Tensor, other: Tensor, moved_first: int) -> Tensor:
    """``x_t = max(x_(t - 1) + rise_t, other_t)``, from other_0; what moved wins with the flag."""
    by = 1
    while by < other.shape[STEPS]:
        first, own, before = _parts(other, STEPS, by)
        head, risen, risen_before = _parts(rise, STEPS, by)
        moved = before + risen
        is_taken = moved >= own if moved_first else moved > own
        other = torch.cat((first, torch.where(is_taken, moved, own)), STEPS)
        rise = torch.cat((head, risen + risen_before), STEPS)
        by *= 2
    return other


# --- solves --------------------------------------------------------------------------------------


def unit_lower_solve(lower: Tensor, y: Tensor) -> Tensor:
    """``(I + L)^-1 y``, of the strict lower triangle of L; of blocks where L couples n values."""
    return _solved(lower, y, is_transposed=False)


def unit_lower_solve_transposed(lower: Tensor, y: Tensor) -> Tensor:
    """The same of the triangle transposed."""
    return _solved(lower, y, is_transposed=True)


def _solved(lower: Tensor, y: Tensor, *, is_transposed: bool) -> Tensor:
    if lower.dim() == y.dim():
        return _solved_one(lower, y, is_transposed=is_transposed)
    # Blocks of rows as rows of blocks: one triangle, of strictly lower triangles in blocks.
    count, steps = y.shape[1], y.shape[STEPS]
    triangle = torch.tril(lower, -1).movedim((1, 2), (-3, -1))
    triangle = triangle.reshape(*triangle.shape[:-4], steps * count, steps * count)
    flat = y.movedim(1, -2)
    solved = _solved_one(triangle, flat.flatten(-3, -2), is_transposed=is_transposed)
    return solved.unflatten(-2, (steps, count)).movedim(-2, 1)


def _solved_one(lower: Tensor, y: Tensor, *, is_transposed: bool) -> Tensor:
    triangle = lower.mT if is_transposed else lower
    return torch.linalg.solve_triangular(triangle, y, upper=is_transposed, unitriangular=True)
