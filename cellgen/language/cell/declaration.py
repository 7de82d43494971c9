"""Declare the values of a cell: ``x = Input(I)``, ``h_prev = State(H)``, ``w = Weight(I, H)``.

Output: a ``Declaration``, which gets its name from the assignment that it stands in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from sympy import Expr, sympify

from cellgen import accept
from cellgen.errors import DeclarationError
from cellgen.language.constants import DOUBLE, exact_constant, nearest
from cellgen.language.graph import symbols_in
from cellgen.language.lines import located
from cellgen.language.names import check_dim
from cellgen.language.value import B, Dim, Role, Shape, T, format_shape

LONGEST = 2**31 - 1
"""The longest axis that a declaration may state as a number."""


@dataclass(frozen=True)
class Declaration:
    """What ``Input(I)``, ``State(H)``, ... return; the assignment gives it its name."""

    role: Role
    dims: Shape
    default: float | None = None
    gradient: bool = True
    initial: float = 0.0

    def __post_init__(self) -> None:
        for dim in self.dims:
            if dim.has(B, T):
                raise DeclarationError(
                    f"{self.role.value} of shape {format_shape(self.dims)}: B and T are added by "
                    f"cellgen; give the unit axes only",
                    code="declaration.dims",
                )
            terms = dim.as_coefficients_dict().items()
            if not all(
                (term == 1 or isinstance(term, Dim)) and count.is_Integer and 0 < count <= LONGEST
                for term, count in terms
            ):
                raise DeclarationError(
                    f"{self.role.value}: {dim} is no axis length; use I, H, Dim('D'), integers, "
                    f"their sums and integer multiples",
                    code="declaration.dims",
                )
            for symbol in sorted(dim.free_symbols, key=str):
                check_dim(str(symbol))

    @property
    def shape(self) -> Shape:
        """Its axes, B first where every row has its own."""
        batched = self.role in (Role.INPUT, Role.STATE, Role.STATIC)
        return (B, *self.dims) if batched else self.dims

    @located
    def _unnamed(self, *_: object) -> Expr:
        raise DeclarationError(
            f"name the {self.role.value} first, then use it: a declaration such as Input(I) gets "
            f"its name from its own assignment",
            code="declaration.unnamed",
        )

    __matmul__ = __rmatmul__ = __add__ = __radd__ = __sub__ = __rsub__ = __neg__ = _unnamed
    __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __pow__ = __rpow__ = _sympy_ = _unnamed
    __lt__ = __le__ = __gt__ = __ge__ = _unnamed


def _check_flag(kind: str, gradient: object) -> None:
    if not isinstance(gradient, bool):
        raise DeclarationError(
            f"{kind}(..., gradient={accept.quoted(gradient)}): expected True or False",
            code="declaration.gradients",
        )


def _declaration(
    role: Role, dims: tuple[Expr | int, ...], minimum: int = 1, gradient: bool = True
) -> Declaration:
    if len(dims) < minimum:
        raise DeclarationError(
            f"{role.value.capitalize()}() needs at least {minimum} axis length"
            f"{'s' if minimum > 1 else ''}, for example {role.value.capitalize()}(H)",
            code="declaration.dims",
        )
    _check_flag(role.value.capitalize(), gradient)
    for dim in dims:
        if not isinstance(dim, Expr) and not accept.is_whole(dim, -LONGEST, LONGEST):
            raise DeclarationError(
                f"{role.value}: {accept.quoted(dim)} is no axis length; use I, H, Dim('D'), "
                f"integers, their sums and integer multiples",
                code="declaration.dims",
            )
    axes = (dim if isinstance(dim, Expr) else sympify(accept.plain(dim)) for dim in dims)
    return Declaration(role, tuple(axes), gradient=gradient)


@located
def Input(*dims: Expr | int, gradient: bool = True) -> Declaration:  # noqa: N802 - a declaration
    """Declare a per-step input: ``Input(I)`` has shape (B, I) at every step.

    With ``gradient=False`` (a mask, an elapsed time) its gradient is not formed.
    """
    return _declaration(Role.INPUT, dims, gradient=gradient)


@located
def State(*dims: Expr | int, initial: float = 0.0) -> Declaration:  # noqa: N802
    """Declare a carried state named ``<value>_prev``.

    ``h_prev = State(H)`` has shape (B, H). ``initial`` is where it starts where nobody says
    otherwise, and after a reset: a number, or ``-math.inf`` for a running maximum.
    """
    start = accept.number(initial)
    if start is None or not _starts_everywhere(start):
        raise DeclarationError(
            f"State(..., initial={accept.quoted(initial)}): expected a Python number that float32 "
            f"holds, or an infinity, such as -math.inf",
            code="declaration.state",
        )
    return replace(_declaration(Role.STATE, dims), initial=start)


def _starts_everywhere(number: float) -> bool:
    """Whether it is a number, or an infinity, in every precision."""
    return number in (math.inf, -math.inf) or abs(number) <= float(np.finfo(np.float32).max)


@located
def Static(*dims: Expr | int, gradient: bool = False) -> Declaration:  # noqa: N802
    """Declare a per-row value that is constant over time (a dropout mask, a context): (B, H).

    With ``gradient=True`` (a context that learns) its gradient is formed, over time that of all
    steps.
    """
    return _declaration(Role.STATIC, dims, gradient=gradient)


@located
def Weight(*dims: Expr | int, gradient: bool = True) -> Declaration:  # noqa: N802
    """Declare a weight shared by rows and steps: ``Weight(I, H)`` has shape (I, H).

    With ``gradient=False`` (a mask, a fixed matrix) its gradient is not formed.
    """
    return _declaration(Role.WEIGHT, dims, gradient=gradient)


@located
def Bias(*dims: Expr | int) -> Declaration:  # noqa: N802
    """Declare a rank-1 weight; differs from ``Weight(H)`` in its usual initial value, zero."""
    return _declaration(Role.BIAS, dims)


@located
def Scalar(default: float | Expr, *, gradient: bool = False) -> Declaration:  # noqa: N802
    """Declare a run-time number with a default, such as a forget bias.

    A constant such as ``sympy.pi`` is rounded to float64, as every number that is given at run
    time.

    With ``gradient=True`` its gradient is formed, over time that of all steps and rows.
    """
    _check_flag("Scalar", gradient)
    plain = default if isinstance(default, Expr) else accept.plain(default)
    if plain is None or isinstance(plain, bool) or symbols_in(number := sympify(plain)):
        raise DeclarationError(
            f"Scalar({accept.quoted(default)}): the default must be a finite number",
            code="declaration.scalar",
        )
    try:
        exact = exact_constant(number)
    except DeclarationError as error:
        why = Exception.__str__(error).removeprefix("an equation holds ")
        raise DeclarationError(
            f"Scalar({accept.quoted(default)}): the default must be a finite number, found {why}",
            code="declaration.scalar",
        ) from None
    return Declaration(Role.SCALAR, (), nearest(exact, DOUBLE), gradient)


DECLARATIONS: dict[object, str] = {
    Input: "Input(I)",
    State: "State(H)",
    Static: "Static(H)",
    Weight: "Weight(I, H)",
    Bias: "Bias(H)",
    Scalar: "Scalar(1.0)",
}
"""What declares a value, and how it is written."""
