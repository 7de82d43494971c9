"""What a plan adds up over rows and steps, and what has a row for each of many steps."""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Expr

from cellgen.schedule.schedule import Buffer, Product


@dataclass(frozen=True)
class Total:
    """A sum over all steps, in member or memory ``of``.

    ``begun`` by a product, else by zeros; ``own``: a row block's in place of the caller's.
    ``wants``: of one in memory, the gradients for which alone it is formed; none: always.
    """

    name: str
    of: str
    in_memory: bool
    count: Expr
    begun: bool
    batched: bool
    own: str
    wants: tuple[str, ...] = ()


@dataclass(frozen=True)
class RowSum:
    """A sum over the rows of all steps, in groups of rows first."""

    of: str
    in_memory: bool
    count: Expr
    groups: str


@dataclass(frozen=True)
class StepsTotal:
    """The gradient of what is constant over time, and the summand of each step."""

    of: str
    in_memory: bool
    summand: str
    width: Expr


@dataclass(frozen=True)
class RowArray:
    """What has a row for each of a chunk of steps; ``member``: copied from there."""

    memory: str
    width: Expr
    member: str = ""


@dataclass(frozen=True)
class Operand:
    """One operand of weight gradients: a rectangle of a buffer, of each head if there are any.

    ``packed_after``: rows of the operands that are packed before it.
    """

    buffer: Buffer
    offset: Expr | None
    length: Expr
    head_step: Expr | None
    packed_after: Expr | None = None


@dataclass(frozen=True)
class Outer:
    """One weight gradient; ``begins``: the first chunk writes it whole."""

    left: int
    right: int
    product: Product
    offset: Expr | None
    stride: Expr
    head_step: Expr | None
    begins: bool

    @property
    def target(self) -> Buffer:
        """The array of which it is a rectangle."""
        return self.product.target.buffer

    @property
    def text(self) -> str:
        """What it adds up."""
        return f"{self.product.target} += {self.product.a}.T @ {self.product.b}"
