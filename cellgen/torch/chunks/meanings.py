"""Operators across elements on tensors: a row for each of the language's.

Input: tensors, then attributes. ``taken`` says which whole numbers a call is written with:
attributes as lengths of axes, most often. Products are told whether their operands are rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from sympy import Expr
from torch import Tensor

from cellgen.torch.chunks import products, scans

Attribute: TypeAlias = "Expr | int | tuple[Expr | int, ...]"


def _as_they_are(attributes: Sequence[Expr]) -> tuple[Attribute, ...]:
    return tuple(attributes)


def _together(attributes: Sequence[Expr]) -> tuple[Attribute, ...]:
    return (tuple(attributes),)


def _behind(attributes: Sequence[Expr]) -> tuple[Attribute, ...]:
    """How many axes stand behind the one along which an operator goes."""
    return (attributes[0] if attributes else 0,)


def _summed(attributes: Sequence[Expr]) -> tuple[Attribute, ...]:
    """The axes that remain, and which of these are of length 1 whatever the sizes are."""
    ones = tuple(axis for axis, length in enumerate(attributes) if length == 1)
    return len(attributes), ones


def _largest(attributes: Sequence[Expr]) -> tuple[Attribute, ...]:
    """How many axes hold the units, and how many stand behind them."""
    return (attributes[0], attributes[1] if len(attributes) > 1 else 0)


@dataclass(frozen=True)
class TorchRow:
    """What an operator is in torch."""

    meaning: Callable[..., Tensor]
    taken: Callable[[Sequence[Expr]], tuple[Attribute, ...]] = _as_they_are
    is_product: bool = False


# --- where values lie in each other --------------------------------------------------------------


def concat(*of: Tensor | int) -> Tensor:
    """Join values along an axis, which comes last."""
    *tensors, axis = of
    return torch.cat([x for x in tensors if isinstance(x, Tensor)], int(axis))


def stacked(*of: Tensor) -> Tensor:
    """Put values beside each other, behind the rows."""
    return torch.stack(of, 1)


def into_entry(x: Tensor, at: int, count: int) -> Tensor:
    """One of so many values, the others 0."""
    return torch.stack([x if n == at else torch.zeros_like(x) for n in range(count)], 1)


def _into_row(x: Tensor, before: int, after: int) -> Tensor:
    zeros = [x.new_zeros((*x.shape[:-2], count, x.shape[-1])) for count in (before, after)]
    return torch.cat((zeros[0], x, zeros[1]), -2)


# --- sums and where the largest stands -----------------------------------------------------------


def sum_to(x: Tensor, rank: int, ones: tuple[int, ...]) -> Tensor:
    """Sum over axes in front, and over those that are of length 1 in the result."""
    extra = x.dim() - rank
    x = x.sum(tuple(range(extra))) if extra else x
    return x.sum(ones, keepdim=True) if ones else x


def first_max(x: Tensor, units: int, after: int) -> Tensor:
    """1 where the largest unit stands, the first of equal ones, else 0."""
    end = x.dim() - after
    flat = x.detach().flatten(end - units, end - 1)
    place = flat.argmax(end - units, keepdim=True)
    chosen = torch.zeros_like(flat).scatter(end - units, place, 1.0)
    return chosen.reshape(x.shape)


# --- along units ---------------------------------------------------------------------------------


def _along(function: Callable[[Tensor, int], Tensor]) -> Callable[[Tensor, int], Tensor]:
    return lambda x, behind: function(x, x.dim() - 1 - behind)


def _onto(product: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda seed, a, b, narrow: seed + product(a, b, narrow)


_PLAIN: Mapping[str, Callable[..., Tensor]] = {
    "matmul": products.matmul,
    "matmul_transposed": products.matmul_transposed,
    "outer_sum": products.outer_sum,
    "matmul_heads": products.matmul_heads,
    "matmul_heads_transposed": products.matmul_heads_transposed,
    "outer_sum_heads": products.outer_sum_heads,
}
_OF_CHUNKS: Mapping[str, Callable[..., Tensor]] = {
    "chunk_nn": products.chunk_nn,
    "chunk_nt": products.chunk_nt,
    "chunk_tn": products.chunk_tn,
    "decayed_nt": products.decayed_nt,
    "decayed_nn": products.decayed_nn,
    "decayed_tn": products.decayed_tn,
}

MEANINGS: Mapping[str, TorchRow] = {
    **{name: TorchRow(row, is_product=True) for name, row in {**_PLAIN, **_OF_CHUNKS}.items()},
    **{f"{name}_onto": TorchRow(_onto(row), is_product=True) for name, row in _PLAIN.items()},
    "transpose": TorchRow(lambda x: x.mT),
    "concat": TorchRow(concat),
    "part": TorchRow(torch.narrow),
    "reshape": TorchRow(lambda x, shape: x.reshape(shape), _together),
    "sum_to": TorchRow(sum_to, _summed),
    "first_max": TorchRow(first_max, _largest),
    "cumsum": TorchRow(_along(torch.cumsum), _behind),
    "cumsum_reversed": TorchRow(
        _along(lambda x, axis: x.flip(axis).cumsum(axis).flip(axis)), _behind
    ),
    "cumprod": TorchRow(_along(torch.cumprod), _behind),
    "cummax": TorchRow(_along(lambda x, axis: x.cummax(axis).values), _behind),
    "logcumsumexp": TorchRow(_along(torch.logcumsumexp), _behind),
    "shifted": TorchRow(scans.shifted, _behind),
    "shifted_from_1": TorchRow(lambda x, behind: scans.shifted(x, behind, 1.0), _behind),
    "shifted_from_least": TorchRow(
        lambda x, behind: scans.shifted(x, behind, float("-inf")), _behind
    ),
    "shifted_back": TorchRow(scans.shifted_back, _behind),
    "linear_scan": TorchRow(scans.linear_scan, _behind),
    "linear_scan_transposed": TorchRow(scans.linear_scan_transposed, _behind),
    "coupled_scan": TorchRow(scans.coupled_scan),
    "coupled_scan_transposed": TorchRow(scans.coupled_scan_transposed),
    "max_scan": TorchRow(scans.max_scan),
    "unit_lower_solve": TorchRow(scans.unit_lower_solve),
    "unit_lower_solve_transposed": TorchRow(scans.unit_lower_solve_transposed),
    "lower": TorchRow(torch.tril),
    "strictly_lower": TorchRow(lambda x: torch.tril(x, -1)),
    "first_row": TorchRow(lambda x: x[..., :1, :]),
    "last_row": TorchRow(lambda x: x[..., -1:, :]),
    "into_first_row": TorchRow(lambda x, count: _into_row(x, 0, count - 1)),
    "into_last_row": TorchRow(lambda x, count: _into_row(x, count - 1, 0)),
    "stacked": TorchRow(stacked),
    "entry": TorchRow(lambda x, at: x.select(1, at)),
    "into_entry": TorchRow(into_entry),
}
