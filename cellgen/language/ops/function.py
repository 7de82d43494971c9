"""What a row is, for pointwise functions, and the SymPy functions that carry one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TypeAlias

from sympy import Expr, Function, sympify

from cellgen.language.lines import located
from cellgen.language.misuse import ExpressionError
from cellgen.language.ops.operator import Array
from cellgen.language.value import Arithmetic, as_operand

Derivative: TypeAlias = Callable[..., Expr]


class Sign(IntEnum):
    """What is known of a value's sign; ``POSITIVE`` keeps a distance from 0."""

    UNKNOWN = 0
    NOT_NEGATIVE = 1
    POSITIVE = 2


class Growth(Enum):
    """How far a function reaches where its arguments are finite, infinite, or no number."""

    AS_ARGUMENTS = "as far as the arguments"
    STEP = "one of few numbers, whatever the arguments are"
    BOUNDED = "finite, of infinity too"
    OVERFLOWS = "infinite, of large numbers"
    OSCILLATES = "finite, and no number of infinity"
    ANYTHING = "anything"


def _unknown(signs: Sequence[Sign]) -> Sign:
    return Sign.UNKNOWN


@dataclass(frozen=True, kw_only=True)
class FunctionTraits:
    """What passes ask of a pointwise function; most have few of these, a sum or a product none.

    ``comparison`` is how one is written. ``sign`` gives the sign of the result
    from those of the arguments, ``growth`` how far it reaches; below the sign ``domain`` of the
    first argument it is no number. ``affine_in`` are the arguments in which it is affine while the
    others stand still. A choice (``is_choice``) has a condition and two branches. ``carries_zero``:
    it is 0 where an argument is; ``underflows``: it is 0 far below 0; ``is_strong``: its
    derivatives may be 0 by a branch though it has no kink. ``is_singular``: near 0 it has no finite
    value or derivative; ``turns_at_zero``: its kink is where its argument is 0. ``jump``: the
    argument at the jump that is nearest to one; ``jumps``: it may have any, as comparisons have,
    roundings, and what an author declares a derivative for. ``is_upper_bound``: no argument exceeds
    it; ``never_positive``: it does not exceed 0.
    """

    comparison: str = ""
    sign: Callable[[Sequence[Sign]], Sign] = _unknown
    growth: Growth = Growth.AS_ARGUMENTS
    domain: Sign = Sign.UNKNOWN
    affine_in: tuple[int, ...] = ()
    is_choice: bool = False
    carries_zero: bool = False
    underflows: bool = False
    is_strong: bool = False
    is_singular: bool = False
    turns_at_zero: bool = False
    jump: Callable[[Expr], Expr] | None = None
    jumps: bool = False
    is_upper_bound: bool = False
    never_positive: bool = False


@dataclass(frozen=True)
class PointwiseRow(FunctionTraits):
    """One pointwise function.

    ``derivatives[k]`` takes the result ``y`` and the arguments and gives the derivative by argument
    ``k``; writing it through ``y`` lets the backward pass reuse the forward value. ``numpy`` takes
    float or complex arrays. ``stated`` marks a derivative that is declared rather than true
    (straight-through, surrogate, stop_gradient): in complex mode such a function evaluates to
    f(Re) + i f'(Re) Im. ``c`` is a format string over printed arguments: a call such as
    ``"cg_tanh({0})"``, or any C expression; ``latex`` is a name, or a template over the arguments,
    ``condition`` being the first without the brackets of a comparison.
    """

    name: str
    numpy: Callable[..., Array]
    derivatives: tuple[Derivative, ...]
    c: str
    stated: bool = False
    kinks: bool = False
    transcendental: bool = True
    latex: str = ""

    @property
    def arity(self) -> int:
        """How many arguments it takes."""
        return len(self.derivatives)


class Pointwise(Arithmetic, Function):  # type: ignore[misc]
    """Base of the pointwise SymPy functions; each subclass carries its row of the table."""

    row: PointwiseRow

    @located
    def __new__(cls, *operands: object, **how: object) -> Expr:
        """Apply a function; raises ExpressionError for what is no operand, or too many or few."""
        if len(operands) != cls.row.arity:
            few = "an operand" if cls.row.arity == 1 else f"{cls.row.arity} operands"
            raise ExpressionError(f"{cls.__name__} takes {few}, found {len(operands)}")
        return super().__new__(cls, *map(as_operand, operands), **how)

    def fdiff(self, argindex: int = 1) -> Expr:
        """Differentiate by an argument, counted from 1."""
        return sympify(self.row.derivatives[argindex - 1](self, *self.args))
