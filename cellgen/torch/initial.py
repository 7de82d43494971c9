"""Parameters of layers of torch: filled in place, by torch's generator.

``cellgen.runtime.initial`` lists the rules by which they start, those of NumPy's and JAX's too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from cellgen import accept
from cellgen.runtime.abi import Argument
from cellgen.runtime.initial import Draw, Numbers, Uniform, must_be_given, read_axes
from cellgen.runtime.initial import rule_of as shared_rule
from cellgen.torch.errors import KindError, TensorError
from cellgen.torch.roles import Roles

Rule: TypeAlias = Callable[[Tensor], object]
"""Fills a parameter in place; no gradient is recorded meanwhile."""


def copied(numbers: Tensor, tensor: Tensor) -> object:
    """Fill with numbers of the same shape. Raises TensorError for those of another."""
    if numbers.shape != tensor.shape:
        raise TensorError(
            f"initial: numbers of shape {tuple(numbers.shape)} are given for a parameter of shape "
            f"{tuple(tensor.shape)}, expected the same; pass those of one layer"
        )
    return tensor.copy_(numbers)


def check_rules(label: str, roles: Roles, initial: object) -> dict[str, Rule]:
    """Look at rules by name, as a caller gives them. Raises KindError."""
    names = [item.name for item in roles.parameters]
    if initial is None:
        return {}
    if not isinstance(initial, Mapping):
        raise KindError(
            f"{label}: initial is {accept.quoted(initial)}, expected a dict of rules by the names "
            f"of parameters ({', '.join(names)})"
        )
    rules: dict[str, Rule] = {}
    for name, rule in initial.items():
        if name not in names:
            raise KindError(
                f"{label}: initial has {accept.quoted(name)}, which is no parameter; expected "
                f"names among {', '.join(names)}"
            )
        if not (callable(rule) or isinstance(rule, Tensor)):
            raise KindError(
                f"{label}: the rule of {name} in initial is {accept.quoted(rule)}, expected a "
                f"tensor, or a function that fills one in place, such as torch.nn.init.zeros_"
            )
        rules[name] = partial(copied, rule.detach().clone()) if isinstance(rule, Tensor) else rule
    return rules


def rule_of(roles: Roles, item: Argument) -> Rule:
    """The rule by which a parameter starts. Raises KindError for one that does not learn."""
    axes = read_axes((roles.input, *roles.shared, *roles.states, *roles.parameters))
    rule = shared_rule(roles.cell, item, axes, roles.fixed)
    if rule is None:
        numbers = "a tensor, or a function that fills one in place"
        raise KindError(must_be_given(f"module({roles.cell})", item, numbers))
    return lambda tensor: fill(tensor, rule.of(tuple(tensor.shape)))


def fill(tensor: Tensor, draw: Draw) -> object:
    """Fill a tensor with what a rule says of its shape."""
    if isinstance(draw, Numbers):
        return tensor.copy_(torch.from_numpy(draw.values))
    if isinstance(draw, Uniform):
        drawn = tensor.uniform_(draw.low, draw.high)
        return drawn.log_() if draw.log else drawn
    rows, columns = tensor.shape[-2:]
    for matrix in tensor.reshape(-1, rows, columns) if tensor.dim() > 2 else (tensor,):
        for block in matrix.split(rows, dim=1):
            square = torch.empty(rows, rows, dtype=torch.float64)
            block.copy_(torch.nn.init.orthogonal_(square))
    return tensor
