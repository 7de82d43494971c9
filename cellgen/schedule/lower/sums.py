"""What a plan adds up over rows and steps, and what has a row for each of many steps."""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Expr


@dataclass(frozen=True)
class Total:
    """A sum over all steps, in member or memory ``of``.

    ``begun`` by a product, else by zeros; ``own``: a row block's in place of the caller's.
    """

    name: str
    of: str
    in_memory: bool
    count: Expr
    begun: bool
    batched: bool
    own: str


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
