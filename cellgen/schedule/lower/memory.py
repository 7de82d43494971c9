"""Memory of a function over time: collected while its parts are lowered."""

from __future__ import annotations

from dataclasses import replace

from sympy import Expr, Integer

from cellgen.language.value import Shape, Value
from cellgen.schedule.lower.plan import Rows, When, WorkspaceArray


def length(shape: Shape) -> Expr:
    """How many elements an array of a shape has."""
    product: Expr = Integer(1)
    for axis in shape:
        product = product * axis
    return product


def row_length(value: Value) -> Expr:
    """How many elements one row of a batched value has."""
    return length(value.shape[1:])


class Workspace:
    """The arrays that a function needs beside the caller's, by name."""

    def __init__(self) -> None:
        self._items: dict[str, WorkspaceArray] = {}

    def add(
        self, name: str, rows: Rows, width: Expr, note: str, *, when: When = When.ALWAYS
    ) -> str:
        """Ask for an array; one of that name may be there already. Returns the name."""
        self._items.setdefault(name, WorkspaceArray(name, rows, width, note, when))
        return name

    def put(self, item: WorkspaceArray) -> str:
        """Add an array of products or panels. Returns its name."""
        self._items.setdefault(item.name, item)
        return item.name

    def keep_packed(self, name: str) -> None:
        """Let an array be part of what is packed for many calls."""
        self._items[name] = replace(self._items[name], packed=True)

    @property
    def items(self) -> tuple[WorkspaceArray, ...]:
        """The arrays, in order."""
        return tuple(self._items.values())
