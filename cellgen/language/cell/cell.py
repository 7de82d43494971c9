"""Declare a cell: a class whose body is the system of equations.

Input: the author's class body. Output: ``Cell.definition``, a frozen ``Definition`` with values,
equations in dependency order, outputs and gradients.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeGuard, cast

from cellgen import accept
from cellgen.errors import DeclarationError
from cellgen.language.cell.binding import finish
from cellgen.language.cell.body import Namespace
from cellgen.language.cell.definition import Definition
from cellgen.language.cell.depth import depth_explained
from cellgen.language.cell.draft import Draft
from cellgen.language.lines import located
from cellgen.language.names import cell_name, check_identifier
from cellgen.runtime.notebook import html_of, latex_of


def _is_cell(cls: type) -> TypeGuard[CellMeta]:
    return isinstance(cls, CellMeta) and "definition_owner" in cls.__dict__


_OWN_ATTRIBUTES = ("definition", "definition_owner", "replaced", "mro", "reference")
"""Attributes of a cell class that a value of that name does not replace."""


def _class_name(
    class_name: str, name: object, unknown: Mapping[str, object], renamed: object
) -> str | None:
    """The ``name`` of ``class X(Cell, name=...)``, where nothing else may stand.

    ``renamed`` is what ``replaced`` puts there.
    """
    words = renamed if isinstance(renamed, tuple) else (renamed,)
    if renamed is not None and not (len(words) == 2 and all(isinstance(w, str) for w in words)):
        unknown = {**unknown, "renamed": renamed}
    if unknown:
        raise DeclarationError(
            f"{class_name}: unknown {', '.join(unknown)} in the class statement, expected name "
            f"alone: class {class_name}(Cell, name='...')",
            code="declaration.cell",
        )
    if name is None or isinstance(name, str):
        return name
    raise DeclarationError(
        f"{class_name}: name is {accept.quoted(name)}, expected a text, such as "
        f"name={cell_name(class_name)!r}; leave it out for that one",
        code="declaration.name",
    )


class CellMeta(type):
    """Build a ``Definition`` from a class body."""

    definition: Definition
    definition_owner: str

    @classmethod
    def __prepare__(
        mcls,  # noqa: N804 - of a metaclass
        class_name: str,
        bases: tuple[type, ...],
        /,
        **options: object,
    ) -> Namespace:
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get("__name__") == "types":
            frame = frame.f_back
        owner = f"{frame.f_globals.get('__name__', '?')}:{class_name}"
        cells = [base for base in bases if _is_cell(base)]
        ancestors = [c.definition_owner for base in bases for c in base.__mro__ if _is_cell(c)]
        states = [str(state.name) for base in cells for state in base.definition.states]
        return Namespace(class_name, owner, ancestors, states)

    def __new__(
        mcls,
        class_name: str,
        bases: tuple[type, ...],
        namespace: Namespace,
        /,
        *,
        name: str | None = None,
        renamed: tuple[str, str] | None = None,
        **unknown: object,
    ) -> CellMeta:
        """Make the class, and its definition from what the body recorded."""
        name, partial = _class_name(class_name, name, unknown, renamed), renamed is not None
        members = {key: item for key, item in namespace.items() if key not in namespace.lines}
        cls = super().__new__(mcls, class_name, bases, members)
        if not bases:
            return cls
        cls.definition_owner = namespace.owner
        parents = [base.definition for base in bases if _is_cell(base)]
        if len(parents) > 1:
            listed = " and ".join(parent.class_name for parent in parents)
            raise DeclarationError(
                f"{class_name}: a cell varies one parent, found {listed}; subclass one of them and "
                f"state the other's equations",
                code="declaration.parents",
            )
        draft = Draft.merge(parents, namespace, renamed)
        with depth_explained(class_name, draft.equations):
            cls.definition = finish(draft, class_name, name or cell_name(class_name), partial)
        values = [*cls.definition.declared, *(e.target for e in cls.definition.equations)]
        named = {str(value.name): value for value in values}
        named |= {alias: named[target] for alias, target in cls.definition.aliases.items()}
        for called, value in named.items():
            if called not in _OWN_ATTRIBUTES:
                setattr(cls, called, value)
        return cls

    def __init__(
        cls, class_name: str, bases: tuple[type, ...], namespace: Any, **_: object
    ) -> None:
        super().__init__(class_name, bases, dict(namespace))

    def _repr_html_(cls) -> str:
        return html_of(cls)

    def _repr_latex_(cls) -> str | None:
        """The equations, for what shows LaTeX and no HTML, such as a printed notebook."""
        return latex_of(cls)

    def __repr__(cls) -> str:
        return f"<cell {cls.definition.name}>" if _is_cell(cls) else "<class Cell>"


class Cell(metaclass=CellMeta):
    """Base of all cells. Subclass it and state the equations in the class body.

    Raises:
        DeclarationError: at class creation, pointing at the author's line.
    """

    @classmethod
    @located
    def replaced(cls, old: str, new: str) -> type[Cell]:
        """Return this cell with the equation of ``old`` stored under ``new``.

        Other equations still refer to ``old``, which a subclass then states anew::

            Raw = GRU.replaced("h", "h_raw")
            class ZoneoutGRU(Raw):
                keep_old = Static(H)
                h = where(keep_old > 0, Raw.h_prev, Raw.h_raw)
        """
        for name in (old, new):
            if not isinstance(name, str):
                raise DeclarationError(
                    f"{cls.__name__}.replaced: {accept.quoted(name)} is no name, expected two, "
                    f"such as replaced('h', 'h_raw')",
                    code="declaration.replaced",
                )
            check_identifier(name, "value")
        options = {"renamed": (old, new)}
        name = f"{cls.__name__}Without{old.title().replace('_', '')}"
        return cast("type[Cell]", types.new_class(name, (cls,), options))


def definition_of(cell: type[Cell]) -> Definition:
    """Return a cell's definition.

    Raises:
        DeclarationError: what was given is not a subclass of ``Cell``, or is only partial.
    """
    if not _is_cell(cell):
        raise DeclarationError(
            f"expected a subclass of cellgen.Cell, found {accept.quoted(cell)}; pass a class, "
            f"`class MyCell(Cell):`; cells that ship are loaded by name: cellgen.load('gru')",
            code="declaration.cell",
        )
    definition = cell.definition
    if definition.is_partial:
        raise DeclarationError(
            f"{definition.class_name} is unfinished (made by replaced()): subclass it and state "
            f"the equation that it lacks",
            code="declaration.cell",
        )
    return definition


def renamed(definition: Definition, name: str) -> Definition:
    """Return a definition under another cell name."""
    return replace(definition, name=name)
