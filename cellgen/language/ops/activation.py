"""Pointwise functions that authors define."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sympy import Expr, sympify

from cellgen.errors import DeclarationError
from cellgen.language.c_fragment import fault_of
from cellgen.language.lines import located
from cellgen.language.misuse import ExpressionError
from cellgen.language.names import check_name
from cellgen.language.ops.function import Derivative, Pointwise, PointwiseRow
from cellgen.language.ops.operator import Array
from cellgen.language.ops.pointwise import POINTWISE, define_pointwise
from cellgen.language.ops.sympy_functions import from_sympy
from cellgen.language.value import (
    Role,
    Value,
)


@located
def activation(
    name: str,
    *,
    numpy: Callable[..., Array],
    derivative: Derivative | Sequence[Derivative],
    c: str,
    latex: str = "",
    stated: bool = False,
    kinks: bool = False,
) -> type[Pointwise]:
    """Define a pointwise function of your own, to be used like ``tanh`` in equations.

    For example::

        softsign = activation(
            "softsign", numpy=lambda x: x / (1 + np.sqrt(x * x)), c="{0} / (1 + cg_abs({0}))",
            derivative=lambda y, x: 1 / (1 + abs(x)) ** 2)

    ``numpy`` takes float and complex arrays; ``derivative`` (one function, or one for each
    argument) takes the result and the arguments and may be written through either; ``c`` may use
    the ``cg_`` functions of the runtime header. ``stated`` marks a derivative that is declared
    rather than true, ``kinks`` a function that has them. A function made of known ones needs none
    of this: ``def mish(x): return x * tanh(softplus(x))``.

    Raises:
        DeclarationError: a name that is taken or no identifier, or a C expression that does not
            read every argument.
    """
    check_name(name, "activation")
    if name in POINTWISE:
        raise DeclarationError(
            f"activation {name!r} is in the operator table already; choose another name",
            code="declaration.activation",
        )
    stated_ones = tuple(derivative) if isinstance(derivative, Sequence) else (derivative,)
    derivatives = tuple(_in_rows(stated_one) for stated_one in stated_ones)
    unread = [f"{{{k}}}" for k in range(len(derivatives)) if f"{{{k}}}" not in c]
    if unread:
        raise DeclarationError(
            f"activation {name!r}: its C expression {c!r} does not read {', '.join(unread)}; write "
            f"{{0}} for the first argument, {{1}} for the second, ...",
            code="declaration.activation",
        )
    row = PointwiseRow(
        name, numpy, derivatives, c, stated=stated, kinks=kinks, latex=latex, jumps=stated
    )
    _check_activation(row)
    return define_pointwise(row)


def _in_rows(derivative: Derivative) -> Derivative:
    """A derivative that an author wrote, with SymPy's functions and constants in our rows."""

    def formed(*arguments: Expr) -> Expr:
        expression = sympify(derivative(*arguments))
        return from_sympy(expression) if isinstance(expression, Expr) else expression

    return formed


def _check_activation(row: PointwiseRow) -> None:
    """Spell the function and form its derivatives once, so that a mistake shows where it is made.

    Raises:
        DeclarationError: a C expression with other places than arguments, a derivative that does
            not take symbols.
    """
    count = len(row.derivatives)
    places = ", ".join(f"{{{index}}}" for index in range(count))
    try:
        filled = row.c.format(*["x"] * count)
    except (IndexError, KeyError, ValueError) as error:
        raise DeclarationError(
            f"activation {row.name!r}: its C expression {row.c!r} cannot be filled in ({error}); "
            f"expected no places but {places}, and braces of C doubled",
            code="declaration.activation",
        ) from None
    fault = fault_of(filled)
    if fault:
        raise DeclarationError(
            f"activation {row.name!r}: its C expression {row.c!r} is not one whole expression: "
            f"{fault}; write one that could stand in brackets",
            code="declaration.activation",
        )
    symbols = [Value(name, (), Role.LOCAL) for name in ("y", *(f"x_{k}" for k in range(count)))]
    for derivative in row.derivatives:
        try:
            formed = sympify(derivative(*symbols))
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            if isinstance(error, ExpressionError):
                said = Exception.__str__(error).partition("\n")[0]
            raise DeclarationError(
                f"activation {row.name!r}: its derivative cannot be formed of symbols "
                f"({said}); it takes the result and {count} "
                f"argument{'s' * (count != 1)}, and is written with functions of cellgen",
                code="declaration.activation",
            ) from None
        if not isinstance(formed, Expr):
            raise DeclarationError(
                f"activation {row.name!r}: its derivative gives {formed}, expected an expression; "
                f"write one of y and the arguments",
                code="declaration.activation",
            )
