"""What computing a value again costs and what keeping it, in pointwise operations on a vector."""

from __future__ import annotations

from functools import cache

from sympy import Expr, Pow, preorder_traversal

from cellgen.language.ops import Pointwise
from cellgen.language.value import B, Value
from cellgen.program.ssa import Statement

NOMINAL_UNITS = 256
"""Stands for every dimension when costs are compared; the choice must not depend on a shape."""

KEEPING = 4
"""Writing a vector into the second-level cache and reading it again."""

SAVING = 24
"""Writing a vector over all steps and reading it again in the backward pass.

FastGRNN saves z and h_bar, not the one sum of both: its backward pass takes 0.93 to 0.95 of the
time, its forward pass no longer (1000,16,64,64, AVX2). A layer-norm LSTM that saves its gates
beside what is normalised takes 0.92 to 0.95 backward and 1.00 to 1.02 forward. With JANET, where it
is also one array more for two functions less, forward and backward add up to 0.99 and 1.01.
"""

FUNCTION = 12
"""tanh, sigmoid, exp: 13 cycles for a vector, of which an operation takes one."""

DIVISION = 8


def elements(value: Value) -> int:
    """Count the elements of a row, where every dimension has ``NOMINAL_UNITS``."""
    count = 1
    for axis in value.shape:
        count *= 1 if axis == B else _units(axis)
    return count


@cache
def _units(axis: Expr) -> int:
    return int(axis.subs(dict.fromkeys(axis.free_symbols, NOMINAL_UNITS)))


def cost_of(statement: Statement) -> int:
    """Count the operations of a vector of the result; 0 for what is no pointwise work."""
    if not statement.is_pointwise:
        return 0
    return sum(map(_node_cost, preorder_traversal(statement.expression)))


def _node_cost(node: Expr) -> int:
    if isinstance(node, Value) or not node.args:
        return 0
    if isinstance(node, Pointwise):
        return FUNCTION if node.row.transcendental else 1
    if isinstance(node, Pow):
        return DIVISION if node.exp.is_negative or not node.exp.is_integer else int(node.exp) - 1
    return len(node.args) - 1
