"""The rows of operators across elements by name, and the shape of any expression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sympy import Basic, Expr

from cellgen.accept import quoted
from cellgen.errors import DeclarationError
from cellgen.language.ops.chunk_scans import SCANS
from cellgen.language.ops.chunks import CHUNKS
from cellgen.language.ops.decayed import DECAYED
from cellgen.language.ops.operator import Operator, broadcast
from cellgen.language.ops.products import PRODUCTS
from cellgen.language.ops.reductions import REDUCTIONS
from cellgen.language.ops.running import RUNNING
from cellgen.language.ops.views import VIEWS
from cellgen.language.value import (
    Apply,
    Dim,
    Shape,
    Value,
)

OPERATORS: Mapping[str, Operator] = {
    row.name: row for row in (*PRODUCTS, *VIEWS, *REDUCTIONS, *RUNNING, *CHUNKS, *SCANS, *DECAYED)
}


def operator_of(node: Apply) -> Operator:
    """The row of an operator that is applied."""
    return OPERATORS[node.op]


_SHAPES: dict[int, tuple[Basic, Shape]] = {}
"""Shapes that are known, by the identity of nodes: comparing equal expressions that are not one
object takes as long as their trees are large."""
_MOST_SHAPES = 65536


def shape_of(expression: Expr) -> Shape:
    """Infer the shape of an expression; constants, scalars and dimensions are ``()``.

    Raises:
        DeclarationError: operands whose shapes do not agree, or an unknown node.
    """
    known = _SHAPES.get(id(expression))
    if known is not None:
        return known[1]
    if len(_SHAPES) > _MOST_SHAPES:
        _SHAPES.clear()
    pending = [expression]
    while pending:
        node = pending[-1]
        if not isinstance(node, Basic):
            raise _no_shape(node)
        operands = node.operands if isinstance(node, Apply) else node.args
        missing = [operand for operand in operands if id(operand) not in _SHAPES]
        if missing:
            pending += missing
            continue
        shapes = [_SHAPES[id(operand)][1] for operand in operands]
        _SHAPES[id(node)] = node, _shape_of(node, shapes)
        pending.pop()
    return _SHAPES[id(expression)][1]


def _shape_of(node: Expr, shapes: Sequence[Shape]) -> Shape:
    """The shape of one node, from those of its operands."""
    if isinstance(node, Value):
        return node.shape
    if isinstance(node, Dim) or node.is_Number:
        return ()
    if isinstance(node, Apply):
        return operator_of(node).shape(shapes, node.attributes)
    if node.args:
        return broadcast(shapes)
    raise _no_shape(node)


def _no_shape(node: object) -> DeclarationError:
    return DeclarationError(
        f"{quoted(node)} ({type(node).__name__}) has no shape; use values declared in this "
        f"cell, numbers and functions of cellgen",
        code="declaration.foreign",
    )
