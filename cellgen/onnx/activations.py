"""The activations of ONNX's recurrent operators: one row each, read by export and import alike.

Source: the operators RNN, GRU and LSTM of ONNX; what they do where the text leaves it open is as
onnxruntime does it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import sympy
from sympy import Expr

from cellgen.language.ops import (
    absolute,
    clip,
    expm1,
    hard_sigmoid,
    keep,
    leaky_relu,
    relu,
    sigmoid,
    softplus,
    tanh,
    where,
)


@dataclass(frozen=True)
class Activation:
    """One row: its name in ONNX, and what it is of ``x`` with numbers ``a`` and ``b``.

    ``text`` is what an author would write, with places {x}, {a}, {b}; ``forms`` are expressions
    that are it. ``alpha`` and ``beta`` are the defaults of the numbers, None where it has none.
    Of one that ``is_open`` onnxruntime takes 0 where the text of ONNX has other defaults, or none.
    ``stands_alone``: it is an operator of ONNX too.
    """

    name: str
    text: str
    forms: tuple[Callable[[Expr, Expr, Expr], Expr], ...]
    alpha: float | None = None
    beta: float | None = None
    is_open: bool = False
    stands_alone: bool = True


_ROWS = (
    Activation("Tanh", "tanh({x})", (lambda x, a, b: tanh(x),)),
    Activation("Sigmoid", "sigmoid({x})", (lambda x, a, b: sigmoid(x),)),
    Activation("Relu", "relu({x})", (lambda x, a, b: relu(x),)),
    Activation("Softplus", "softplus({x})", (lambda x, a, b: softplus(x),)),
    Activation("Softsign", "{x} / (1 + abs({x}))", (lambda x, a, b: x / (1 + absolute(x)),)),
    Activation(
        "HardSigmoid",
        "clip({a} * {x} + {b}, 0, 1)",
        (lambda x, a, b: clip(a * x + b, sympy.Integer(0), sympy.Integer(1)),),
        0.2,
        0.5,
    ),
    Activation("LeakyRelu", "leaky_relu({x}, {a})", (lambda x, a, b: leaky_relu(x, a),), 0.01),
    Activation(
        "ThresholdedRelu",
        "where({x} > {a}, {x}, 0)",
        (lambda x, a, b: where(x > a, x, 0),),
        1.0,
        is_open=True,
    ),
    Activation(
        "ScaledTanh",
        "{a} * tanh({b} * {x})",
        (lambda x, a, b: a * tanh(b * x),),
        1.0,
        1.0,
        is_open=True,
        stands_alone=False,
    ),
    Activation(
        "Elu",
        "where({x} > 0, {x}, {a} * expm1({x}))",
        (
            lambda x, a, b: where(x > 0, x, a * expm1(x)),
            lambda x, a, b: where(x > 0, x, expm1(x)),
        ),
        1.0,
    ),
    Activation(
        "Affine",
        "{a} * {x} + {b}",
        (lambda x, a, b: keep(x),),
        1.0,
        0.0,
        is_open=True,
        stands_alone=False,
    ),
)
ACTIVATIONS: Mapping[str, Activation] = {row.name.lower(): row for row in _ROWS}
"""Rows by name in small letters, as onnxruntime reads them."""

SIXTH = (1 / 6, 0.5)
"""The numbers of a HardSigmoid that is the language's own."""


@dataclass(frozen=True)
class Applied:
    """An activation with its numbers."""

    row: Activation
    alpha: float | None = None
    beta: float | None = None

    @property
    def numbers(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Its values of ``activation_alpha`` and ``activation_beta``: none where it has none."""
        pairs = (self.row.alpha, self.alpha), (self.row.beta, self.beta)
        first, second = (
            () if default is None else (default if value is None else value,)
            for default, value in pairs
        )
        return first, second


def forms(x: Expr, a: Expr, b: Expr) -> Iterator[tuple[Applied, Expr]]:
    """Every activation as an expression of ``x``, its numbers being the symbols ``a`` and ``b``."""
    for row in _ROWS:
        for form in row.forms:
            yield Applied(row), form(x, a, b)
    yield Applied(ACTIVATIONS["hardsigmoid"], *SIXTH), hard_sigmoid(x)
