"""Where parameters start: a rule for each role, and what the field does for particular cells.

| parameter | starts as |
|---|---|
| weights of inputs | Glorot & Bengio (2010), uniform, each gate by itself |
| weights of states (S, k S) | orthogonal (Saxe, McClelland & Ganguli 2014), each gate by itself |
| other matrices | Glorot & Bengio, uniform, each head by itself |
| weights of one axis | uniform within 1 / sqrt(length) |
| biases | 0, those of forget gates 1 (Jozefowicz, Zaremba & Sutskever 2015) |
| what does not learn (``gradient=False``) | nothing: its numbers, or a rule, are in ``initial`` |

``CELLS`` lists what differs. A bias that is named ``b_f`` is that of a forget gate.

Input: the interface of a kernel. Output: a ``Rule`` for each parameter, which says of a shape what
to draw; NumPy, torch and JAX each draw that with generators of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from cellgen.runtime.abi import Argument, Function, axis_terms
from cellgen.runtime.call.faults import shape_text
from cellgen.runtime.results import Array

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Numbers:
    """These numbers, which broadcast to the shape; nothing is drawn."""

    values: Array


@dataclass(frozen=True)
class Uniform:
    """Numbers between two, or with ``log`` their logarithms. A rule, too."""

    low: float
    high: float
    log: bool = False

    def of(self, shape: Shape) -> Draw:
        """What to draw for a shape."""
        return self


@dataclass(frozen=True)
class Orthogonal:
    """Square orthogonal matrices side by side, or uniform numbers where they are not square.

    A rule, too.
    """

    gates: int = 1

    def of(self, shape: Shape) -> Draw:
        """What to draw for a shape (..., S, k S)."""
        rows, columns = shape[-2:]
        return self if rows * self.gates == columns and rows else Glorot(self.gates).of(shape)


Draw: TypeAlias = Numbers | Uniform | Orthogonal
"""What stands in a parameter, of a shape that is known."""


class Rule(Protocol):
    """How a parameter starts, of whatever shape."""

    def of(self, shape: Shape) -> Draw:
        """What to draw for a shape."""


@dataclass(frozen=True)
class Constant:
    """One number everywhere."""

    value: float

    def of(self, shape: Shape) -> Draw:
        """What stands in a shape."""
        return Numbers(np.array(self.value))


@dataclass(frozen=True)
class OneGate:
    """0 but for the ``place``-th of ``gates`` that a bias is of."""

    place: int
    gates: int
    value: float

    def of(self, shape: Shape) -> Draw:
        """What stands in a shape (..., k S)."""
        values = np.zeros(shape)
        np.array_split(values, self.gates, axis=-1)[self.place][...] = self.value
        return Numbers(values)


@dataclass(frozen=True)
class Glorot:
    """Uniform numbers by which a gate keeps the variance of what it reads.

    ``first``: a product reads along the first axis, as that of (I, heads, units) does.
    """

    gates: int = 1
    first: bool = False

    def of(self, shape: Shape) -> Draw:
        """What to draw for a shape (..., rows, k columns), or (rows, ..., k columns)."""
        rows, columns = shape[0 if self.first else -2], shape[-1]
        bound = math.sqrt(6 / max(rows + columns / self.gates, 1))
        return Uniform(-bound, bound)


class WithinRoot:
    """Uniform numbers within 1 / sqrt(length)."""

    def of(self, shape: Shape) -> Draw:
        """What to draw for a shape (length,)."""
        bound = 1 / math.sqrt(max(shape[0], 1))
        return Uniform(-bound, bound)


class Retention:
    """The decays of the heads of a RetNet, 1 - 2^-5, 1 - 2^-6 ... (equation 8)."""

    def of(self, shape: Shape) -> Draw:
        """What stands in a shape (heads, ...)."""
        heads = np.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1))
        return Numbers(1 - 2.0 ** (-5 - heads))


@dataclass(frozen=True)
class Ramp:
    """Rates from slow to fast over the channels of all heads: low + (high - low) (n / last)^power.

    Those of a first layer of RWKV, in the authors' code.
    """

    low: float
    high: float
    power: float

    def of(self, shape: Shape) -> Draw:
        """What stands in a shape (heads, K)."""
        channels = np.arange(math.prod(shape)) / max(math.prod(shape) - 1, 1)
        rates = self.low + (self.high - self.low) * channels**self.power
        return Numbers(rates.reshape(shape))


class Identity:
    """A unit matrix of each head."""

    def of(self, shape: Shape) -> Draw:
        """What stands in a shape (..., S, S)."""
        return Numbers(np.eye(shape[-1]))


class Counted:
    """The logarithms of 1, 2, 3 ... along the last axis (S4D-Real; Gu et al. 2022)."""

    def of(self, shape: Shape) -> Draw:
        """What stands in a shape (..., K)."""
        return Numbers(np.log(np.arange(1, shape[-1] + 1)))


ONES, ZEROS = Constant(1.0), Constant(0.0)
RATES = Uniform(1.0, 16.0, log=True)
STEPS = Uniform(math.log(math.expm1(0.001)), math.log(math.expm1(0.1)))
"""Biases whose softplus lies between 0.001 and 0.1, of every order of magnitude alike (Mamba)."""
DECAY = {"a_log": RATES, "b_a": STEPS}

CELLS: Mapping[str, Mapping[str, Rule]] = {
    "lstm_projection": {"b": OneGate(1, 4, 1.0)},
    "multiplicative_lstm": {"b_f": Constant(1.0)},
    "layer_norm_lstm": {"alpha": Constant(1.0), "b": OneGate(0, 4, 1.0)},
    "layer_norm_gru": {"alpha": Constant(1.0)},
    "mgu": {"b_f": Constant(0.0)},
    "cfc": {"b_f": Constant(0.0)},
    "ind_rnn": {"u": Uniform(0.0, 1.0)},
    "ind_rnn_relu": {"u": Uniform(0.0, 1.0)},
    "fast_grnn": {"zeta": Constant(1.0), "nu": Constant(-4.0)},
    "ltc": {"tau": Constant(1.0), "a": Uniform(-1.0, 1.0)},
    "recurrent_highway_3": {"b_t_": Constant(-2.0)},
    "recurrent_highway_2_full": {"b_t_": Constant(-2.0)},
    "lru": {
        "nu_log": Uniform(0.001, 0.1, log=True),
        "theta_log": Uniform(0.001, math.pi / 10, log=True),
        "gamma_log": Constant(math.log(0.3)),
    },
    "retnet": {"gamma": Retention()},
    "rwkv6": {"w_0": Ramp(-6.0, -1.0, 0.7), "w_a": ZEROS, "w_b": Uniform(-0.01, 0.01)},
    "rwkv7": {
        "w_0": Ramp(-6.5, -1.5, 0.85),
        "a_0": ZEROS,
        "xi": Constant(0.85),
        "alpha": ONES,
        "w_a": ZEROS,
        "a_a": ZEROS,
    },
    "mamba": {"a_log": Counted(), "w_t": WithinRoot(), "b_t": STEPS, "d": ONES},
    "mamba2": {"a_log": RATES, "b_t": STEPS, "d": ONES},
    "mamba3": {
        **{f"{kind}_{of}_{part}": ONES for kind in "go" for of in "bc" for part in ("re", "im")},
        "b_t": STEPS,
        "d": ONES,
    },
    "gated_delta_net": DECAY,
    "gated_delta_net_2": DECAY,
    "kda": DECAY,
    "comba": {**DECAY, "b_bar": ONES, "d": ONES},
    "m2rnn": {"a_log": RATES, "b_f": STEPS, "u": Identity(), "d": ONES},
}
"""What differs, by cell and the first letters of a parameter's name."""


def fixed_of(functions: tuple[Function, ...]) -> frozenset[str]:
    """The parameters of a cell that do not learn: no function gives a gradient of them."""
    learned = {item.of for one in functions for item in one.results if item.role == "gradient"}
    items = {item.name for one in functions for item in one.arguments if item.is_weight}
    return frozenset(items - learned)


@dataclass(frozen=True)
class ReadAxes:
    """Axes that products read along: last ones of ``inputs``; ``vectors`` have no heads.

    These are of inputs, of states (B, H), and of what a matrix of weights makes of either.
    """

    inputs: frozenset[str]
    vectors: frozenset[str]


def read_axes(arguments: Iterable[Argument]) -> ReadAxes:
    """Find the axes that products read along, from the values of a cell."""
    items = tuple(arguments)
    of_inputs = [item for item in items if item.role == "input"]
    inputs = {axis for item in of_inputs for axis in item.shape[-1:] if axis not in {"T", "B"}}
    states = [item.shape[1:] for item in items if item.role == "state"]
    heads = {shape[0] for shape in states if len(shape) > 1}
    vectors = inputs | {shape[0] for shape in states if len(shape) == 1}
    matrices = [i.shape for i in items if i.is_weight and len(i.shape) == 2]
    vectors |= {columns for rows, columns in matrices if rows in vectors}
    return ReadAxes(frozenset(inputs), frozenset(vectors - heads))


def rule_of(cell: str, item: Argument, axes: ReadAxes, fixed: frozenset[str]) -> Rule | None:
    """The rule by which a parameter starts; None for one that does not learn and has none.

    ``axes`` are those that products read along, by which weights of inputs are known.
    """
    own = [rule for start, rule in CELLS.get(cell, {}).items() if _means(start, item.name)]
    if own:
        return own[0]
    if item.name in fixed:
        return None
    if item.role == "bias":
        return Constant(1.0 if item.name == "b_f" else 0.0)
    if item.is_scalar:
        return Constant(item.default or 0.0)
    if len(item.shape) == 1:
        return WithinRoot()
    return _of_matrix(item, axes)


def _of_matrix(item: Argument, axes: ReadAxes) -> Rule:
    rows, columns = (axis_terms(axis) for axis in item.shape[-2:])
    gates = columns[0][0] if len(columns) == 1 and columns[0][1] else 1
    first = item.shape[0]
    parts = {first, *(dim for _, dim in axis_terms(first))}
    if len(item.shape) > 2 and (axes.inputs & parts or first in axes.vectors):
        return Glorot(gates, first=True)
    squares = len(columns) == 1 and rows == ((1, columns[0][1]),)
    return Orthogonal(gates) if squares and item.shape[-2] not in axes.inputs else Glorot(gates)


def must_be_given(label: str, item: Argument, numbers: str) -> str:
    """What every door says of a parameter without a rule; ``numbers``: what it takes for them."""
    return (
        f"{label}: {item.name} {shape_text(item)} does not learn (it is declared with "
        f"gradient=False), so that its numbers must be given; pass "
        f"initial={{{item.name!r}: {numbers}}}"
    )


def _means(start: str, name: str) -> bool:
    """Whether a row is of a parameter: of that name, or of that name and a number."""
    return name == start or (name.startswith(start) and name[len(start) :].isdigit())


def drawn(draw: Draw, shape: Shape, rng: np.random.Generator) -> Array:
    """Draw in float64 with a generator of NumPy's."""
    if isinstance(draw, Numbers):
        return np.array(np.broadcast_to(draw.values, shape), np.float64, order="C")
    if isinstance(draw, Uniform):
        numbers: Array = rng.uniform(draw.low, draw.high, shape)
        return np.log(numbers) if draw.log else numbers
    rows = shape[-2]
    q, r = np.linalg.qr(rng.standard_normal((*shape[:-2], draw.gates, rows, rows)))
    q = q * np.sign(np.diagonal(r, axis1=-2, axis2=-1))[..., None, :]
    squares: Array = np.moveaxis(q, -3, -2).reshape(shape)
    return squares
