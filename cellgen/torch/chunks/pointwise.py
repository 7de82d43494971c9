"""Pointwise functions on tensors: a row for each of the language's.

An argument may be a number. Where a function has a kink or a stated derivative, torch's derivative
of what stands here is the one that the language's row says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

TensorOrNumber: TypeAlias = Tensor | float

SOFT = 40.0
"""Above it ``softplus(x)`` is x to the last bit of float64."""


def softplus(x: Tensor) -> Tensor:
    """``log(1 + exp(x))``, without overflow."""
    return functional.softplus(x, 1.0, SOFT)


def log(x: Tensor) -> Tensor:
    """Logarithm, whose derivative is 0 at 0: what follows there is a floor."""
    is_zero = x == 0
    return torch.where(is_zero, -math.inf, torch.log(torch.where(is_zero, 1.0, x)))


def _like(*values: TensorOrNumber) -> Tensor:
    return next(value for value in values if isinstance(value, Tensor))


def _tensor(value: TensorOrNumber, like: Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else like.new_full((), value)


def _is_nan(value: TensorOrNumber) -> Tensor | bool:
    return torch.isnan(value) if isinstance(value, Tensor) else math.isnan(value)


def maximum(a: TensorOrNumber, b: TensorOrNumber) -> Tensor:
    """The larger; the first of equal ones."""
    return torch.where((a >= b) | _is_nan(a), a, b)


def minimum(a: TensorOrNumber, b: TensorOrNumber) -> Tensor:
    """The smaller; the first of equal ones."""
    return torch.where((a <= b) | _is_nan(a), a, b)


def clip(x: Tensor, low: TensorOrNumber, high: TensorOrNumber) -> Tensor:
    """Limit to [low, high], with the derivative of the branch that is taken."""
    return maximum(minimum(x, high), low)


def clip_straight_through(x: Tensor, low: TensorOrNumber, high: TensorOrNumber) -> Tensor:
    """The same with the derivative of x."""
    return x + (clip(x, low, high) - x).detach()


def where(condition: TensorOrNumber, a: TensorOrNumber, b: TensorOrNumber) -> Tensor:
    """Choose where a condition is not 0."""
    like = _like(condition, a, b)
    chosen = condition != 0 if isinstance(condition, Tensor) else like.new_full((), condition) != 0
    return torch.where(chosen, _tensor(a, like), _tensor(b, like))


def strong_product(a: TensorOrNumber, b: TensorOrNumber) -> Tensor:
    """Product that is 0 where either factor is 0."""
    like = _like(a, b)
    first, second = _tensor(a, like), _tensor(b, like)
    return torch.where((first == 0) | (second == 0), 0.0, first * second)


def _compared(test: Callable[[TensorOrNumber, TensorOrNumber], Tensor]) -> Callable[..., Tensor]:
    """Compare: 1 or 0 in the type of the tensors."""
    return lambda a, b: test(a, b).to(_like(a, b).dtype)


def power(base: TensorOrNumber, exponent: TensorOrNumber) -> Tensor:
    """One of the two may be a number."""
    return torch.pow(base, exponent)


def atan2(y: TensorOrNumber, x: TensorOrNumber) -> Tensor:
    """The angle of a point."""
    like = _like(y, x)
    return torch.atan2(_tensor(y, like), _tensor(x, like))


POINTWISE: Mapping[str, Callable[..., Tensor]] = {
    "exp": torch.exp,
    "expm1": torch.expm1,
    "log": log,
    "log1p": torch.log1p,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softplus": softplus,
    "log_sigmoid": lambda x: -softplus(-x),
    "sqrt": torch.sqrt,
    "sin": torch.sin,
    "cos": torch.cos,
    "erf": torch.erf,
    "pow": power,
    "abs": torch.abs,
    "sign": torch.sign,
    "floor": torch.floor,
    "round": torch.round,
    "atan2": atan2,
    "relu": torch.relu,
    "hard_sigmoid": lambda x: clip(x / 6 + 0.5, 0.0, 1.0),
    "maximum": maximum,
    "minimum": minimum,
    "clip_exact": clip,
    "clip_straight_through": clip_straight_through,
    "stop_gradient": lambda x: x.detach(),
    "keep": lambda x: x,
    "zeros_like": torch.zeros_like,
    "gt": _compared(lambda a, b: a > b),
    "ge": _compared(lambda a, b: a >= b),
    "lt": _compared(lambda a, b: a < b),
    "le": _compared(lambda a, b: a <= b),
    "where": where,
    "strong_product": strong_product,
}
