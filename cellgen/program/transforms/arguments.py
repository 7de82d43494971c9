"""Names that a regulariser is given: of inputs, states, weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cellgen import accept
from cellgen.errors import DeclarationError
from cellgen.language.cell import (
    Definition,
)
from cellgen.language.cell.definition import next_name
from cellgen.language.value import Role, Value

_ROLES: Mapping[str, Role] = {"inputs": Role.INPUT, "states": Role.STATE}


def chosen_values(
    definition: Definition,
    function: str,
    kind: str,
    names: Iterable[str] | None,
    read: set[Value],
) -> list[Value]:
    """The inputs or states that are named; those that products read where none is."""
    values = definition.with_role(_ROLES[kind])
    if names is None:
        return [value for value in values if value in read]
    known = {str(value.name): value for value in values}
    known |= {state_name(value): value for value in values if value.role is Role.STATE}
    listed = (
        (names,) if isinstance(names, str) else _gone_through(definition, function, kind, names)
    )
    chosen: list[Value] = []
    for name in (
        checked_name(definition, function, f"an entry of {kind}", item) for item in listed
    ):
        if name not in known:
            own = ", ".join(str(value.name) for value in values)
            raise fault(definition, function, f"{name} is not among its {kind} ({own})")
        if known[name] not in read:
            raise fault(definition, function, f"no product reads {known[name]}; leave it out")
        chosen.append(known[name])
    return chosen


def _gone_through(
    definition: Definition, function: str, kind: str, names: object
) -> tuple[object, ...]:
    if isinstance(names, Iterable) and not isinstance(names, Mapping):
        try:
            return tuple(names)
        except Exception as error:  # of what cannot be gone through, although it says so
            raise fault(
                definition, function, f"{kind} cannot be gone through ({accept.reason(error)})"
            ) from error
    raise fault(
        definition, function, f"{kind} is {accept.quoted(names)}, expected names, in a tuple"
    )


def checked_name(definition: Definition, function: str, what: str, name: object) -> str:
    """Return a name. Raises DeclarationError for what is none."""
    if isinstance(name, str | Value):
        return str(name)
    raise fault(definition, function, f"{what} is {accept.quoted(name)}, expected its name")


def state_name(value: Value) -> str:
    """The name of a value; of a state, that of its new value."""
    return next_name(value) if value.role is Role.STATE else str(value.name)


def fault(definition: Definition, function: str, what: str) -> DeclarationError:
    """The error of a regulariser."""
    return DeclarationError(
        f"{function}({definition.class_name}): {what}", code="declaration.regulariser"
    )
