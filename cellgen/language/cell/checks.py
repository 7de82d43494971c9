"""Check a draft as a whole; each message points at the author's line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sympy import Basic, Expr

from cellgen.errors import DeclarationError
from cellgen.language.cell.definition import Equation, next_name
from cellgen.language.cell.draft import Draft
from cellgen.language.names import check_argument
from cellgen.language.notation import text
from cellgen.language.ops import operator_of, shape_of
from cellgen.language.value import Apply, B, Dim, Role, T, Value, format_axis, format_shape
from cellgen.runtime.names import spelled


def chosen(
    draft: Draft,
    what: str,
    chosen: tuple[Value, ...] | None,
    bound: Mapping[str, Value],
    partial: bool,
) -> tuple[Value, ...] | None:
    """Bind a list of values, ``outputs`` or ``gradients``; None where the class has none."""
    if chosen is None:
        return None
    names = [draft.target(value) for value in chosen]
    missing = [name for name in names if name not in bound]
    if partial:
        return tuple(bound.get(name, value) for name, value in zip(names, chosen, strict=True))
    if missing:
        raise DeclarationError(
            f"{what} lists {', '.join(missing)}, which this cell does not define; list names "
            f"of this cell{draft.where(what)}",
            code=f"declaration.{what}",
        )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        others = [alias for alias, target in draft.aliases.items() if target == twice]
        known = f" ({' and '.join(others)}: another name of it)" if others else ""
        raise DeclarationError(
            f"{what} lists {twice} twice{known}; a value has one place there: list it once"
            f"{draft.where(what)}",
            code=f"declaration.{what}",
        )
    values = tuple(bound[name] for name in names)
    wrong = [v for v in values if what == "outputs" and v.role is not Role.LOCAL]
    if wrong:
        raise DeclarationError(
            f"outputs lists {wrong[0].name}, a declared {wrong[0].role.value}; outputs are "
            f"values that the equations compute{draft.where('outputs')}",
            code="declaration.outputs",
        )
    return values


def check_last(draft: Draft, bound: Mapping[str, Value]) -> None:
    """Refuse names that results of functions over time have: the final states."""
    for state in (value for value in bound.values() if value.role is Role.STATE):
        taken = f"{next_name(state)}_last"
        if taken in bound:
            raise DeclarationError(
                f"{taken} is the name of the final state of {next_name(state)} over time; "
                f"rename the value, for example to {f'{taken}_value'!r}\n"
                f"  {draft.lines.get(taken, '')}",
                code="declaration.name",
            )


def check_outputs(draft: Draft, outputs: Iterable[Value]) -> None:
    """Outputs are arguments of the backward functions."""
    for value in outputs:
        try:
            check_argument(str(value.name), "output")
        except DeclarationError as error:
            raise DeclarationError(
                f"{Exception.__str__(error)}\n  {draft.lines[str(value.name)]}", code=error.code
            ) from None


def check_spellings(draft: Draft, bound: Mapping[str, Value]) -> None:
    """Two spellings of one name must not name two values."""
    names: dict[str, str] = {}
    for name in bound:
        first = names.setdefault(spelled(name), name)
        if first != name:
            raise DeclarationError(
                f"{first} and {name} are two spellings of one name; spell it {first} in both "
                f"places, or rename one. First assigned at\n  {draft.lines[first]}\nand again "
                f"at\n  {draft.lines[name]}",
                code="declaration.twice",
            )


def check_dims(draft: Draft, values: Iterable[Value]) -> None:
    """A value must not have the name of a dimension, nor two dimensions one name."""
    values = tuple(values)
    dims = sorted({str(d) for v in values for axis in v.shape for d in axis.free_symbols})
    taken = {spelled(str(dim)): str(dim) for dim in (T, B)}
    for dim in dims:
        first = taken.setdefault(spelled(dim), dim)
        if first != dim:
            raise DeclarationError(
                f"the dimensions {first} and {dim} are two spellings of one name; use one",
                code="declaration.name",
            )
    for value in values:
        if spelled(str(value.name)) in taken:
            raise DeclarationError(
                f"{value.role.value} {value.name} has the name of a dimension; rename it, for "
                f"example to '{spelled(str(value.name)).lower()}_value'\n"
                f"  {draft.lines[str(value.name)]}",
                code="declaration.name",
            )


_COUNTS = {
    B: "B counts rows; a row's result does not depend on it",
    T: "T counts steps; a step's result does not depend on how many there are",
}
"""Dimensions that are no numbers of an equation, and why."""


def check_counts(equation: Equation) -> None:
    """Refuse the numbers of rows and steps as numbers: each is computed alone."""
    pending: list[Basic] = [equation.expression]
    known: set[int] = set()
    while pending:
        node = pending.pop()
        if isinstance(node, Dim) and node in _COUNTS:
            raise DeclarationError(
                f"{_COUNTS[node]}: give the number that is meant as a Scalar, or a dimension such "
                f"as H",
                code="declaration.dims",
            )
        if id(node) not in known:
            known.add(id(node))
            pending += node.operands if isinstance(node, Apply) else node.args


def check_told(draft: Draft, declared: tuple[Value, ...]) -> None:
    """Every dimension must follow from the shapes of a call: H + K alone tells neither."""
    axes = [axis.free_symbols for value in declared for axis in value.shape]
    bound: set[Dim] = set()
    while single := [axis - bound for axis in axes if len(axis - bound) == 1]:
        bound.update(*single)
    for value in declared:
        for axis in value.shape:
            unknown = sorted(axis.free_symbols - bound, key=str)
            if unknown:
                raise DeclarationError(
                    f"{value.name} {format_shape(value.shape)}: no shape of this cell tells "
                    f"{' or '.join(map(str, unknown))} alone; use one dimension for "
                    f"{format_axis(axis)}\n  {draft.lines[str(value.name)]}",
                    code="declaration.dims",
                )


def check_states(
    draft: Draft,
    declared: tuple[Value, ...],
    bound: Mapping[str, Value],
    outputs: tuple[Value, ...] | None,
) -> None:
    """Refuse a cell without a state, and a state without a new value of its shape."""
    if not any(value.role is Role.STATE for value in declared):
        raise DeclarationError(
            "a recurrent cell needs a state: h_prev = State(H), and equations in the class body "
            "itself, not in methods such as __init__ or forward",
            code="declaration.state",
        )
    for state in declared:
        if state.role is not Role.STATE:
            continue
        name, line = next_name(state), draft.lines[str(state.name)]
        if name not in bound:
            raise DeclarationError(
                f"state {state.name} has no equation for its new value; state `{name} = ...`\n"
                f"  {line}",
                code="declaration.state",
            )
        if bound[name].role is not Role.LOCAL:
            raise DeclarationError(
                f"the new value of state {state.name} would be {name}, which is declared as "
                f"{bound[name].role.value}, expected an equation; to hand a value on, name the "
                f"state otherwise: c_prev = State(...) and c = {name}\n  {line}",
                code="declaration.state",
            )
        if bound[name].shape != state.shape:
            raise DeclarationError(
                f"shapes do not agree: {state.name} is {format_shape(state.shape)}, its new "
                f"value {name} is {format_shape(bound[name].shape)}\n  {draft.lines[name]}",
                code="declaration.shape",
            )
        if outputs is not None and bound[name] not in outputs:
            raise DeclarationError(
                f"outputs leaves out {name}, the new value of {state.name}, which the next "
                f"step needs; add it{draft.where('outputs')}",
                code="declaration.outputs",
            )


def reached(
    draft: Draft,
    equations: tuple[Equation, ...],
    bound: Mapping[str, Value],
    outputs: tuple[Value, ...] | None,
) -> tuple[Equation, ...]:
    """Keep what the new states and the outputs need.

    A parent's equation that a variant no longer needs goes; one that this body states must be of
    use.
    """
    states = [value for value in bound.values() if value.role is Role.STATE]
    needed = {bound[name] for state in states if (name := next_name(state)) in bound}
    needed.update(outputs or ())
    kept = []
    for equation in reversed(equations):
        target = equation.target
        if target in needed:
            kept.append(equation)
            needed.update(equation.expression.atoms(Value))
        elif target.name in draft.own:
            is_part = _is_part(equation.expression)
            what = "a part of a split that is never" if is_part else "computed and never"
            raise DeclarationError(
                f"{target.name} is {what} used; use it, list it in outputs, or drop it\n"
                f"  {equation.line}",
                code="declaration.split" if is_part else "declaration.unused",
            )
    return tuple(reversed(kept))


def check_gradients(
    draft: Draft,
    gradients: tuple[Value, ...] | None,
    declared: tuple[Value, ...],
    equations: tuple[Equation, ...],
) -> None:
    """Refuse a gradient of what no output depends on."""
    used = {v for e in equations for v in e.expression.atoms(Value)}
    reached = used | {equation.target for equation in equations}
    for value in gradients or ():
        if value not in reached and value.role is not Role.STATE:
            raise DeclarationError(
                f"gradients lists {value.name}, which no output depends on; leave it out"
                f"{draft.where('gradients')}",
                code="declaration.gradients",
            )


def check_splits(draft: Draft, equations: tuple[Equation, ...]) -> None:
    """Every part of a split must be used; an unused one is a typo or wasted work."""
    parts: dict[Expr, dict[Expr, Equation]] = {}
    for equation in equations:
        for node in equation.expression.atoms(Apply):
            if _is_part(node):
                _, start, size = node.attributes
                parts.setdefault(node.operands[0], {})[(start, size)] = equation
    for source, places in parts.items():
        total = shape_of(source)[-1]
        covered = sum(size for _, size in places)
        if covered != total:
            equation = next(iter(places.values()))
            raise DeclarationError(
                f"a split of {text(source)} has unused parts: {format_axis(covered)} of "
                f"{format_axis(total)} units are used; use every part or split off less\n"
                f"  {equation.line}",
                code="declaration.split",
            )


def check_used(
    draft: Draft, declared: tuple[Value, ...], equations: tuple[Equation, ...]
) -> tuple[Value, ...]:
    """Refuse what is declared and not used; returns what is used."""
    used = {v for e in equations for v in e.expression.atoms(Value)}
    for value in declared:
        if value not in used and value.role is not Role.STATE and value.name in draft.own:
            raise DeclarationError(
                f"{value.role.value} {value.name} is declared and never used; use it or drop "
                f"it\n"
                f"  {draft.lines[str(value.name)]}",
                code="declaration.unused",
            )
    moving = (Role.INPUT, Role.STATE, Role.WEIGHT, Role.BIAS)
    if not any(value.role in moving for value in used):
        raise DeclarationError(
            "the equations read no input, no state and no weight, so that nothing has a "
            "gradient; read one of them",
            code="declaration.unused",
        )
    return tuple(v for v in declared if v in used or v.role is Role.STATE)


def _is_part(expression: Expr) -> bool:
    return isinstance(expression, Apply) and operator_of(expression).is_part
