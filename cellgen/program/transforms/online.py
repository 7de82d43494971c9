"""Real-time gradients of a cell, a cell again: what a loss at each step gives the parameters.

Input: a cell class. Output: a subclass whose states hold, beside the cell's own, a trace for every
parameter that reaches a state, the derivative of the state by it, and the gradient of the loss
by every parameter so far. A step takes the gradient of its own loss by the outputs. Nothing is
passed backward in time.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import cast

from cellgen import accept
from cellgen.errors import DeclarationError
from cellgen.language.cell import Cell, Definition, definition_of
from cellgen.language.lines import located
from cellgen.language.names import is_taken_for_cells
from cellgen.language.value import Role, Value
from cellgen.program.transforms.online_body import OnlineBody, online_fault
from cellgen.program.transforms.traces import APPROXIMATIONS, E_PROP, EXACT, SNAP_1, Traces

_WORDS = {
    EXACT: ("", "", "Online gradients of: "),
    E_PROP: ("EProp", "_e_prop", "Approximate online gradients (e-prop, Bellec et al. 2020) of: "),
    SNAP_1: ("SnAp1", "_snap_1", "Approximate online gradients (SnAp-1, Menick et al. 2021) of: "),
}
"""By approximation: what names of classes and cells have, and how their docs begin."""


@located
def online(
    cell: type[Cell],
    *,
    outputs: Iterable[str | Value] | None = None,
    by: Iterable[str | Value] | None = None,
    approximation: str = EXACT,
    name: str = "",
) -> type[Cell]:
    """Return the cell that also computes, step by step, the gradient of a loss by its parameters.

    At each step it takes ``grad_<output>`` (B, H), the gradient of this step's loss by the output
    of this step, and has two kinds of states more, both 0 at first: ``trace_<parameter>`` (B, I, H)
    and ``grad_<parameter>``, the gradient of all losses so far for each row of the batch, (B, I, H)
    for a weight (I, H): their sum over rows is what a backward pass over time returns.

    ``outputs`` are those that the loss reads, ``by`` the parameters that learn; left out, all of
    them. Gradients are exact where each unit of a state reads its own past alone. Other cells need
    ``approximation="e-prop"`` or ``approximation="snap-1"``, and their names say it.

    Raises:
        DeclarationError: units of a state read each other, and no approximation is asked for; a
            name that the cell does not have; an unknown approximation.
    """
    definition = definition_of(cell)
    name = accept.word("online", "name", name, "a text", error=DeclarationError)
    if approximation not in _WORDS:
        listed = ", ".join(map(repr, APPROXIMATIONS))
        raise online_fault(
            definition,
            f"approximation is {accept.quoted(approximation)}, expected one of {listed}; leave it "
            f"out for exact gradients",
        )
    learning = definition.learning(Role.WEIGHT, Role.BIAS)
    parameters = _chosen(definition, "by", by, (*learning, *definition.requested))
    read = _chosen(definition, "outputs", outputs, definition.outputs)
    return _online(cell, parameters, read, approximation, name)


def gradients_of(cell: type[Cell]) -> Mapping[str, str]:
    """Return the gradients of an online cell by the names of its parameters: ``{"w": "grad_w"}``.

    Raises:
        DeclarationError: what was given is no complete cell, or no online cell.
    """
    definition = definition_of(cell)
    stored: Mapping[str, str] | None = getattr(cell, "__gradients__", None)
    if stored is None:
        raise DeclarationError(
            f"{definition.class_name} is no online cell; pass what online(Cell) returned",
            code="declaration.online",
        )
    return stored


def approximation_of(cell: type[Cell]) -> str:
    """Return the approximation that made an online cell; of any other cell an empty text."""
    stored: str = getattr(cell, "__approximation__", EXACT)
    return stored


def _chosen(
    definition: Definition,
    what: str,
    names: Iterable[str | Value] | None,
    every: Sequence[Value],
) -> tuple[Value, ...]:
    known = {str(value.name): value for value in every}
    if names is None:
        listed: Sequence[object] = tuple(known)
    elif isinstance(names, str | Value):
        listed = (names,)
    elif isinstance(names, Iterable) and not isinstance(names, Mapping):
        listed = tuple(names)
    else:
        raise online_fault(
            definition, f"{what} is {accept.quoted(names)}, expected names, in a tuple"
        )
    for item in listed:
        if not isinstance(item, str | Value) or str(item) not in known:
            raise online_fault(
                definition,
                f"{what} lists {accept.quoted(item)}, expected names among {', '.join(known)}",
            )
    if not listed:
        expected = f"expected names among {', '.join(known)}" if known else "and nothing learns"
        raise online_fault(definition, f"{what} is empty, {expected}")
    return tuple(value for name, value in known.items() if name in {str(item) for item in listed})


@lru_cache(maxsize=256)
def _online(
    cell: type[Cell],
    parameters: tuple[Value, ...],
    outputs: tuple[Value, ...],
    approximation: str,
    name: str,
) -> type[Cell]:
    """The online cell: the same class for the same question, derived and compiled once."""
    definition = definition_of(cell)
    prefix, suffix, says = _WORDS[approximation]
    body = OnlineBody(Traces(definition, parameters, outputs, approximation), says)
    named = f"{definition.name}_online{suffix}"
    options = {"name": name or (f"{named}_cell" if is_taken_for_cells(named) else named)}
    class_name = f"Online{prefix}{definition.class_name}"
    return cast("type[Cell]", types.new_class(class_name, (cell,), options, body.state))
