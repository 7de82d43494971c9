"""A regularised cell: a subclass that declares masks and states some equations anew."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import cast

from sympy import Expr

from cellgen import accept
from cellgen.errors import DeclarationError
from cellgen.language.cell import (
    Cell,
    Declaration,
    Definition,
    Input,
    Static,
    Weight,
    definition_of,
)
from cellgen.language.names import Names
from cellgen.language.value import B, Shape, format_axis
from cellgen.runtime.masks import Kind, Mask, Varies

_DECLARE: Mapping[Varies, Callable[..., Declaration]] = {
    Varies.STEP_AND_ROW: partial(Input, gradient=False),
    Varies.ROW: Static,
    Varies.NEVER: partial(Weight, gradient=False),
}


def masks_of(cell: type[Cell]) -> tuple[Mask, ...]:
    """List the masks that a regularised cell takes, in the order in which they were added.

    Raises:
        DeclarationError: what was given is no complete cell.
    """
    definition_of(cell)
    masks: tuple[Mask, ...] = getattr(cell, "__masks__", ())
    return masks


class MaskedCell:
    """The class body of a regularised cell: masks first, then the equations that differ."""

    def __init__(self, cell: type[Cell], prefix: str, name: str) -> None:
        definition = definition_of(cell)
        self.cell = cell
        name = accept.word(prefix, "name", name, "a text", error=DeclarationError)
        self.class_name = f"{prefix}{definition.class_name}"
        self.name = name or f"{_snake(prefix)}_{definition.name}"
        self.doc = f"{_DOCS[prefix]} of: {' '.join(definition.doc.split())}"
        values = (*definition.declared, *(e.target for e in definition.equations))
        self._names = Names([*(str(value.name) for value in values), *definition.aliases])
        self.masks: list[tuple[Mask, Declaration]] = []

    def fresh(self, name: str) -> str:
        """Return a name that the cell does not have."""
        return self._names.fresh(name)

    def mask(self, name: str, masked: Shape, kind: Kind, varies: Varies) -> None:
        """Declare a mask for the units, or the weights, of what has a shape."""
        dims = masked[1:] if B in masked else masked
        shape = tuple(format_axis(axis) for axis in dims)
        mask = Mask(self.fresh(name), shape, kind, varies)
        self.masks.append((mask, _DECLARE[varies](*dims)))

    def make(self, state: Callable[[dict[str, object], Sequence[Expr]], None]) -> type[Cell]:
        """Make the subclass; ``state`` states the equations that differ, given the masks."""

        def body(ns: dict[str, object]) -> None:
            ns["__doc__"] = self.doc
            ns["__masks__"] = (*masks_of(self.cell), *(mask for mask, _ in self.masks))
            for mask, declaration in self.masks:
                ns[mask.name] = declaration
            state(ns, [cast(Expr, ns[mask.name]) for mask, _ in self.masks])

        cell = types.new_class(self.class_name, (self.cell,), {"name": self.name}, body)
        return cast("type[Cell]", cell)


_DOCS = {
    "VariationalDropout": "Variational dropout (Gal & Ghahramani 2016)",
    "RecurrentDropout": "Recurrent dropout (Semeniuta, Severyn & Barth 2016)",
    "Dropconnect": "Dropconnect (Wan et al. 2013)",
    "Zoneout": "Zoneout (Krueger et al. 2017)",
}


def _snake(prefix: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in prefix).lstrip("_")


def restate(
    ns: dict[str, object],
    definition: Definition,
    swap: Mapping[Expr, Expr],
    leave: Iterable[str] = (),
) -> None:
    """State every equation that reads a swapped value anew."""
    left = set(leave)
    for equation in definition.equations:
        changed = equation.expression.xreplace(dict(swap))
        if changed != equation.expression and str(equation.target.name) not in left:
            ns[str(equation.target.name)] = changed
