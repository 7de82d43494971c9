"""What authors call: operators that go along units, from the first to the last."""

from __future__ import annotations

from sympy import Expr, Integer

from cellgen.errors import DeclarationError
from cellgen.language.lines import located
from cellgen.language.ops.author import axes_of
from cellgen.language.ops.table import shape_of
from cellgen.language.value import Apply, as_operand, format_shape


@located
def cumsum(a: Expr, axis: object = None) -> Apply:
    """Running sum along the units (the last axis): unit k gives the sum of units 1 to k.

    With heads along the units of each head; ``axis=K`` goes along a dimension by name.
    """
    return _along("cumsum", "running sum", a, axis)


@located
def cumprod(a: Expr, axis: object = None) -> Apply:
    """Running product along the units: unit k gives the product of units 1 to k; as ``cumsum``.

    Its derivatives are right at units that are 0 as well.
    """
    return _along("cumprod", "running product", a, axis)


@located
def cummax(a: Expr, axis: object = None) -> Apply:
    """Running maximum along the units: unit k gives the largest of units 1 to k; as ``cumsum``.

    The derivative goes to the last of equal units, as PyTorch's; a NaN counts as the largest.
    """
    return _along("cummax", "running maximum", a, axis)


@located
def logcumsumexp(a: Expr, axis: object = None) -> Apply:
    """Logarithm of the running sum of the units' exponentials, with no overflow; as ``cumsum``.

    Where that is infinite, the derivative goes to the last unit that is.
    """
    return _along("logcumsumexp", "running sum", a, axis)


def _along(name: str, what: str, a: Expr, axis: object) -> Apply:
    """Apply an operator that goes along one axis.

    Raises:
        DeclarationError: what is no expression, an axis that the value does not have, several, a
            scalar.
    """
    operand = as_operand(a)
    shape = shape_of(operand)
    along = axes_of(name, shape, axis) if shape else (0,)
    if len(along) > 1:
        raise DeclarationError(
            f"{name}(..., axis={axis}) of {format_shape(shape)}: a {what} goes along one axis",
            code="declaration.axis",
        )
    behind = len(shape) - 1 - along[0]
    node = Apply(name, (operand,), [Integer(behind)] if behind > 0 else [])
    shape_of(node)
    return node
