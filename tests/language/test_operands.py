"""What is handed to an operator and is no operand is named, with what to write instead."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from sympy import sympify

import cellgen
from cellgen.errors import DeclarationError
from cellgen.language.value import B, H, Role, Value

X = Value("x", (B, H), Role.INPUT)

NO_OPERANDS = {
    "a list": ([1, 2], r"\[1, 2\] \(list\) .*; write the operands one by one"),
    "a tuple": ((1, 2), "one by one"),
    "a dict": ({}, "one by one"),
    "a set": ({1}, "one by one"),
    "nothing": (None, r"None \(NoneType\) .*; leave it out"),
    "a text": ("x", "write the name without quotes"),
    "an array": (np.ones(2), r"an array \(2,\) of float64 .*; an array is a Weight"),
    "a function": (cellgen.tanh, "stands where an operand is expected"),
    "an object": (object(), "stands where an operand is expected"),
}
TAKING = {
    "sigmoid": lambda a: cellgen.sigmoid(a),
    "maximum": lambda a: cellgen.maximum(X, a),
    "clip": lambda a: cellgen.clip(X, a, 1),
    "where": lambda a: cellgen.where(X > 0, a, X),
    "condition": lambda a: cellgen.where(a, X, X + 1),
    "matmul": lambda a: cellgen.matmul(X, a),
    "concat": lambda a: cellgen.concat(X, a),
    "concat of one": lambda a: cellgen.concat(a),
    "split": lambda a: cellgen.split(a, 2),
    "mean": lambda a: cellgen.mean(a),
    "cumsum": lambda a: cellgen.cumsum(a),
    "cumprod": lambda a: cellgen.cumprod(a),
    "cummax": lambda a: cellgen.cummax(a),
    "logcumsumexp": lambda a: cellgen.logcumsumexp(a),
    "softmax": lambda a: cellgen.softmax(a),
    "hardmax": lambda a: cellgen.hardmax(a),
    "transpose": lambda a: cellgen.transpose(a),
    "heads": lambda a: cellgen.heads(a, 2),
    "outer": lambda a: cellgen.outer(X, a),
    "leaky_relu": lambda a: cellgen.leaky_relu(X, a),
    "rms_norm": lambda a: cellgen.rms_norm(a),
}


@pytest.mark.parametrize("kind", NO_OPERANDS)
@pytest.mark.parametrize("function", TAKING)
def test_what_is_no_operand_is_named_with_what_to_write(function: str, kind: str) -> None:
    given, message = NO_OPERANDS[kind]
    with pytest.raises(DeclarationError, match=message) as caught:
        TAKING[function](given)
    assert f'File "{__file__}"' in str(caught.value)


@pytest.mark.parametrize("number", [1, 0.5, True, np.float32(0.5), np.int64(2), Fraction(1, 2)])
def test_numbers_of_every_kind_are_operands(number: object) -> None:
    assert cellgen.maximum(X, number).args[1] == sympify(number)


@pytest.mark.parametrize(
    ("function", "operands"), [("tanh", ()), ("tanh", (1, 2)), ("maximum", (1,))]
)
def test_too_many_or_few_operands_are_counted(function: str, operands: tuple[int, ...]) -> None:
    with pytest.raises(DeclarationError, match=f"{function} takes .*, found {len(operands)}"):
        getattr(cellgen, function)(*operands)
