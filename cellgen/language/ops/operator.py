"""What a row is, for operators that look across elements, and how shapes agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from sympy import Expr, Integer

from cellgen.accept import quoted
from cellgen.errors import DeclarationError
from cellgen.language.value import (
    B,
    Shape,
    Value,
    format_axis,
    format_shape,
)

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

AdjointRule: TypeAlias = Callable[
    [Value, Value, Sequence[Value], Sequence[Expr]], tuple[Expr | None, ...]
]
"""Maps (result, its adjoint, operands, attributes) to one contribution per operand.

A contribution may be any expression of these values, over several operators; 0 where there is none,
None where none is known: a gradient that needs it is refused.
"""
TangentRule: TypeAlias = Callable[
    [Value, Sequence[Value | None], Sequence[Value], Sequence[Expr]], tuple[Expr, ...]
]
"""Maps (result, tangents of the operands, operands, attributes) to the terms of its tangent.

The tangent of an operand that does not move is None; a term may be any expression of the values.
"""


class Motion(Enum):
    """How a result moves with its operands, where a word says it: the tangent of most rows."""

    LINEAR = "linear in all operands at once: its own tangent"
    STILL = "does not move with its operands, except in jumps"


class Form(Enum):
    """Which factor of a product is transposed, by the letters that BLAS has for it."""

    NN = "nn"
    """``a w``"""
    NT = "nt"
    """``a w^T``"""
    TN = "tn"
    """``a^T b``, a sum over rows"""


@dataclass(frozen=True)
class Contraction:
    """What is particular to a product.

    ``plain`` is the row of the same product without a seed, ``mirrored`` that of the one that reads
    its weight transposed (nothing where there is none). A product ``by_head`` is one for each head;
    one that is ``onto`` is added to its first operand.
    """

    form: Form
    plain: str
    mirrored: str = ""
    by_head: bool = False
    onto: bool = False

    @property
    def grown(self) -> str:
        """The row of the same product, added onto a seed."""
        return f"{self.plain}_onto"

    @property
    def is_matmul(self) -> bool:
        """Whether it is ``a @ w`` as it is written: one for all heads, onto nothing."""
        return self.form is Form.NN and not self.by_head and not self.onto


@dataclass(frozen=True)
class Running:
    """What a routine does at each unit, from the first to the last, or back (``is_reversed``).

    ``total`` is carried from unit to unit, into the first ``begins``. ``result`` is what a unit
    gives and ``carried`` what it hands on, expressions of C over ``{total}``, operands ``{a}``,
    ``{b}`` and the result ``{y}``, with the ``cg_`` functions of the runtime header. ``numpy`` maps
    (total, *operands) to both. ``says`` is that in words. Where the step is associative,
    ``combine`` is it as an expression of what units before gave and what later ones did; ``adds``
    says that it is their sum.
    """

    says: str
    begins: Expr
    result: str
    carried: str
    numpy: Callable[..., tuple[Array, Array]]
    is_reversed: bool = False
    adds: bool = False
    combine: Callable[[Expr, Expr], Expr] | None = None

    @property
    def is_written(self) -> bool:
        """Whether authors write it; others come of derivatives alone."""
        return self.combine is not None and not self.is_reversed


def _one_axis(attributes: Sequence[Expr]) -> int:
    return 1


def _no_axis(attributes: Sequence[Expr]) -> int:
    return 0


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What passes ask of an operator; pointwise work has none of these.

    ``mixes_units``: an element of the result reads several units of an operand. Operators that do
    not, form nothing: ``is_part`` (attributes: axis, start, size), ``is_join`` (axis),
    ``is_transpose``, ``is_reshape`` (other axes, the same elements). ``is_sum`` adds up over axes
    to the shape in its attributes. ``is_indicator``: the result is 0 or 1. ``tangent``: how the
    result moves, in a word or as a rule. ``is_routine``: a routine over the units of each
    row and head computes it; ``unit_axes`` tells from the attributes how many axes those units
    have, ``axes_after`` how many stand behind them. ``running``: what it does at each unit, where
    it carries a number from one to the next. ``fill`` is a number that the result may hold
    whatever the operands are. ``is_solve``: it solves a triangle of steps. ``is_repeatable``:
    computing it again costs next to nothing. ``stem`` begins the names of results that an author
    gave none; ``text`` and ``latex`` are templates over the operands; one that
    ``prints_attributes`` names them behind its operands.
    """

    product: Contraction | None = None
    tangent: Motion | TangentRule | None = None
    mixes_units: bool = False
    is_part: bool = False
    is_join: bool = False
    is_transpose: bool = False
    is_reshape: bool = False
    is_sum: bool = False
    is_indicator: bool = False
    is_routine: bool = False
    running: Running | None = None
    fill: Expr | None = None
    is_solve: bool = False
    prints_attributes: bool = False
    is_repeatable: bool = False
    unit_axes: Callable[[Sequence[Expr]], int] = _one_axis
    axes_after: Callable[[Sequence[Expr]], int] = _no_axis
    stem: str = ""
    text: str = ""
    latex: str = ""

    @property
    def is_product(self) -> bool:
        """Whether it is a product of matrices."""
        return self.product is not None

    @property
    def is_matmul(self) -> bool:
        """Whether it is the plain product ``a @ b``."""
        return self.product is not None and self.product.is_matmul

    @property
    def is_linear(self) -> bool:
        """Whether it is linear in all operands at once."""
        return self.tangent is Motion.LINEAR

    @property
    def is_still(self) -> bool:
        """Whether it does not move with its operands, except in jumps."""
        return self.tangent is Motion.STILL

    @property
    def is_onto(self) -> bool:
        """Whether it is a product that grows in the memory of its first operand."""
        return self.product is not None and self.product.onto

    @property
    def is_view(self) -> bool:
        """Whether the result lies in the memory of its operand."""
        return self.is_part or self.is_transpose or self.is_reshape

    @property
    def is_place(self) -> bool:
        """Whether it only tells where values lie in each other."""
        return self.is_part or self.is_join or self.is_reshape


@dataclass(frozen=True)
class Operator(Traits):
    """One operator that looks across elements.

    ``shape`` maps operand shapes and attributes to the result's shape and raises
    ``DeclarationError`` on a mismatch. ``numpy`` takes arrays, attributes and a function that
    evaluates a dimension. ``adjoint`` and ``tangent`` are what ``AdjointRule``, ``TangentRule`` and
    ``Motion`` say; neither may be left out.

    Raises:
        DeclarationError: a row that does not state its tangent or its adjoint.
    """

    name: str
    shape: Callable[[Sequence[Shape], Sequence[Expr]], Shape]
    numpy: Callable[[Sequence[Array], Sequence[Expr], Callable[[Expr], int]], Array]
    adjoint: AdjointRule

    def __post_init__(self) -> None:
        if not isinstance(self.tangent, Motion) and not callable(self.tangent):
            raise self._unstated(
                "tangent",
                "give tangent=Motion.LINEAR where it is linear in all operands at once, "
                "Motion.STILL where it moves in jumps alone, or a function of (result, tangents, "
                "operands, attributes) that returns the terms of its tangent",
            )
        if not callable(self.adjoint):
            raise self._unstated(
                "adjoint",
                "give a function of (result, its adjoint, operands, attributes) that returns one "
                "contribution per operand",
            )

    def _unstated(self, column: str, advice: str) -> DeclarationError:
        stated = quoted(getattr(self, column))
        return DeclarationError(
            f"operator {self.name}: its {column} is not stated, found {stated}; {advice}",
            code="declaration.operator",
        )


def mismatch(what: str) -> DeclarationError:
    """The error for shapes that do not agree."""
    return DeclarationError(f"shapes do not agree: {what}", code="declaration.shape")


def matrix(shape: Shape, what: str) -> tuple[Expr, Expr]:
    """The two axes of a matrix. Raises DeclarationError where it has other axes."""
    if len(shape) != 2:
        raise mismatch(f"{what} needs two axes, found {format_shape(shape)}")
    return shape[0], shape[1]


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """Combine shapes as NumPy does, aligned at the last axis.

    Raises:
        DeclarationError: two axes that are neither equal nor 1.
    """
    return _broadcast(tuple(shapes))


@lru_cache(maxsize=65536)
def _broadcast(shapes: tuple[Shape, ...]) -> Shape:
    rank = max((len(shape) for shape in shapes), default=0)
    result: list[Expr] = [Integer(1)] * rank
    for shape in shapes:
        for position, axis in enumerate(shape, start=rank - len(shape)):
            if axis == 1:
                continue
            if result[position] not in (1, axis):
                listed = " and ".join(
                    dict.fromkeys(format_shape(other) for other in shapes if len(other))
                )
                one_a_row = rank == 3 and any(other == (B, 1) for other in shapes)
                raise mismatch(
                    f"{listed} ({format_axis(result[position])} against {format_axis(axis)})"
                    + ("; beside heads a number for each row is Input(1, 1)" if one_a_row else "")
                )
            result[position] = axis
    return tuple(result)
