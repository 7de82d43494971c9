"""Where parameters start: a rule for each role, and what the field does for particular cells.

| parameter | starts as |
|---|---|
| weights of inputs | Glorot & Bengio (2010), uniform, each gate by itself |
| weights of states (S, k S) | orthogonal (Saxe, McClelland & Ganguli 2014), each gate by itself |
| other matrices | Glorot & Bengio, uniform |
| weights of one axis | uniform within 1 / sqrt(length) |
| biases | 0, those of forget gates 1 (Jozefowicz, Zaremba & Sutskever 2015) |
| what does not learn (``gradient=False``) | nothing: its numbers, or a rule, are in ``initial`` |

``CELLS`` lists what differs. A bias that is named ``b_f`` is that of a forget gate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from cellgen import accept
from cellgen.runtime.abi import Argument
from cellgen.runtime.call.faults import shape_text
from cellgen.torch.errors import KindError, TensorError
from cellgen.torch.roles import Roles

Rule: TypeAlias = Callable[[Tensor], object]
"""Fills a parameter in place; no gradient is recorded meanwhile."""


def ones(tensor: Tensor) -> object:
    """Fill with 1, as gains of a normalisation."""
    return tensor.fill_(1.0)


def constant(value: float, tensor: Tensor) -> object:
    """Fill with a number."""
    return tensor.fill_(value)


def gate(place: int, of: int, value: float, tensor: Tensor) -> object:
    """Fill with 0 but for the ``place``-th of ``of`` gates that a bias is of."""
    tensor.zero_()
    return tensor.chunk(of)[place].fill_(value)


def uniform(low: float, high: float, tensor: Tensor) -> object:
    """Fill with numbers between two."""
    return tensor.uniform_(low, high)


def log_uniform(low: float, high: float, tensor: Tensor) -> object:
    """Fill with logarithms of numbers between two."""
    return tensor.uniform_(low, high).log_()


def copied(numbers: Tensor, tensor: Tensor) -> object:
    """Fill with numbers of the same shape. Raises TensorError for those of another."""
    if numbers.shape != tensor.shape:
        raise TensorError(
            f"initial: numbers of shape {tuple(numbers.shape)} are given for a parameter of shape "
            f"{tuple(tensor.shape)}, expected the same; pass those of one layer"
        )
    return tensor.copy_(numbers)


def retention(tensor: Tensor) -> object:
    """Fill with the decays of the heads of a RetNet, 1 - 2^-5, 1 - 2^-6 ... (equation 8)."""
    heads = torch.arange(tensor.shape[0], dtype=torch.float64)
    return tensor.copy_((1 - 2 ** (-5 - heads)).reshape(tensor.shape))


FORGETS: Rule = partial(constant, 1.0)

CELLS: Mapping[str, Mapping[str, Rule]] = {
    "lstm_projection": {"b": partial(gate, 1, 4, 1.0)},
    "multiplicative_lstm": {"b_f": FORGETS},
    "layer_norm_lstm": {"alpha": ones, "b": partial(gate, 0, 4, 1.0)},
    "layer_norm_gru": {"alpha": ones},
    "mgu": {"b_f": partial(constant, 0.0)},
    "cfc": {"b_f": partial(constant, 0.0)},
    "ind_rnn": {"u": partial(uniform, 0.0, 1.0)},
    "ind_rnn_relu": {"u": partial(uniform, 0.0, 1.0)},
    "fast_grnn": {"zeta": ones, "nu": partial(constant, -4.0)},
    "ltc": {"tau": ones, "a": partial(uniform, -1.0, 1.0)},
    "recurrent_highway_3": {"b_t_": partial(constant, -2.0)},
    "recurrent_highway_2_full": {"b_t_": partial(constant, -2.0)},
    "lru": {
        "nu_log": partial(log_uniform, 0.001, 0.1),
        "theta_log": partial(log_uniform, 0.001, math.pi / 10),
        "gamma_log": partial(constant, math.log(0.3)),
    },
    "retnet": {"gamma": retention},
}
"""What differs, by cell and the first letters of a parameter's name."""


def check_rules(where: str, roles: Roles, initial: object) -> dict[str, Rule]:
    """Look at rules by name, as a caller gives them. Raises KindError."""
    names = [item.name for item in roles.parameters]
    if initial is None:
        return {}
    if not isinstance(initial, Mapping):
        raise KindError(
            f"{where}: initial is {accept.shown(initial)}, expected a dict of rules by the names "
            f"of parameters ({', '.join(names)})"
        )
    found: dict[str, Rule] = {}
    for name, rule in initial.items():
        if name not in names:
            raise KindError(
                f"{where}: initial has {accept.shown(name)}, which is no parameter; expected names "
                f"among {', '.join(names)}"
            )
        if not (callable(rule) or isinstance(rule, Tensor)):
            raise KindError(
                f"{where}: the rule of {name} in initial is {accept.shown(rule)}, expected a "
                f"tensor, or a function that fills one in place, such as torch.nn.init.zeros_"
            )
        found[name] = partial(copied, rule.detach().clone()) if isinstance(rule, Tensor) else rule
    return found


def rule_of(roles: Roles, item: Argument) -> Rule:
    """The rule by which a parameter starts. Raises KindError for one that does not learn."""
    own = [rule for start, rule in CELLS.get(roles.cell, {}).items() if _means(start, item.name)]
    if own:
        return own[0]
    if item.name in roles.fixed:
        raise KindError(
            f"module({roles.cell}): {item.name} {shape_text(item)} does not learn (it is declared "
            f"with gradient=False), so that its numbers must be given; pass initial={{"
            f"{item.name!r}: ...}}, a tensor or a function that fills one in place"
        )
    if item.role == "bias":
        return FORGETS if item.name == "b_f" else partial(constant, 0.0)
    if item.is_scalar:
        return partial(constant, item.default or 0.0)
    if len(item.shape) == 1:
        return _within_root
    fed = {axis for given in (roles.input, *roles.given) for axis in given.shape[2:]}
    return _glorot if item.shape[-2] in fed and item.shape[-2] != item.shape[-1] else _recurrent


def _means(start: str, name: str) -> bool:
    """Whether a row is of a parameter: of that name, or of that name and a number."""
    return name == start or (name.startswith(start) and name[len(start) :].isdigit())


def _within_root(tensor: Tensor) -> object:
    bound = 1 / math.sqrt(max(tensor.shape[0], 1))
    return tensor.uniform_(-bound, bound)


def _glorot(tensor: Tensor) -> object:
    rows, columns = tensor.shape[-2:]
    if not tensor.numel():
        return tensor
    gates = columns // rows if rows and columns % rows == 0 and columns > rows else 1
    bound = math.sqrt(6 / (rows + columns / gates))
    return tensor.uniform_(-bound, bound)


def _recurrent(tensor: Tensor) -> object:
    """Orthogonal for each gate, and head, of as many columns as rows; else Glorot's."""
    rows, columns = tensor.shape[-2:]
    if not rows or columns % rows:
        return _glorot(tensor)
    for matrix in tensor.reshape(-1, rows, columns) if tensor.dim() > 2 else (tensor,):
        for block in matrix.split(rows, dim=1):
            drawn = torch.empty(rows, rows, dtype=torch.float64)
            block.copy_(torch.nn.init.orthogonal_(drawn))
    return tensor
