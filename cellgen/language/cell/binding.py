"""Bind a draft: its symbols to this cell, its equations in the order of their computation."""

from __future__ import annotations

from sympy import Expr

from cellgen.errors import DeclarationError
from cellgen.language.cell.checks import (
    check_counts,
    check_dims,
    check_gradients,
    check_last,
    check_outputs,
    check_spellings,
    check_splits,
    check_states,
    check_told,
    check_used,
    chosen,
    reached,
)
from cellgen.language.cell.definition import ORDER_STEP, Definition, Equation, next_name
from cellgen.language.cell.draft import Draft
from cellgen.language.graph import Sharing, replaced, values_in
from cellgen.language.lines import SourceLine
from cellgen.language.names import Names, check_cell_name
from cellgen.language.ops import shape_of
from cellgen.language.value import Role, Value


def finish(draft: Draft, class_name: str, name: str, partial: bool) -> Definition:
    """Bind every symbol to this cell, order the equations and check the whole."""
    try:
        check_cell_name(name)
        draft.promote_aliases()
        declared = draft.declared()
        equations = _ordered_equations(draft, declared, partial)
        bound = {str(v.name): v for v in (*declared, *(e.target for e in equations))}
        outputs = chosen(draft, "outputs", draft.outputs, bound, partial)
        check_outputs(draft, outputs or ())
        gradients = chosen(draft, "gradients", draft.gradients, bound, partial)
        check_spellings(draft, bound)
        check_dims(draft, bound.values())
        check_last(draft, bound)
        if not partial:
            check_states(draft, declared, bound, outputs)
            equations = reached(draft, equations, bound, outputs)
            if not draft.derived:
                check_splits(draft, equations)
            check_gradients(draft, gradients, declared, equations)
            declared = check_used(draft, declared, equations)
            check_told(draft, declared)
    except DeclarationError as error:
        message = Exception.__str__(error)
        raise DeclarationError(f"{class_name}: {message}", code=error.code) from None
    if outputs is None:
        outputs = tuple(
            bound[n] for v in declared if v.role is Role.STATE and (n := next_name(v)) in bound
        )
    return Definition(
        name=name,
        class_name=class_name,
        origin=draft.owner,
        doc=draft.doc,
        declared=declared,
        equations=equations,
        outputs=outputs,
        gradients=gradients,
        defaults={n: d.default for n, d in draft.declarations.items() if d.default is not None},
        lines=dict(draft.lines),
        aliases={a: t for a, t in draft.aliases.items() if t in bound},
        states_outputs=draft.outputs is not None,
        is_partial=partial,
        fixed=tuple(v for v in declared if not draft.declarations[str(v.name)].gradient),
        initials={n: d.initial for n, d in draft.declarations.items() if d.initial != 0},
        directions=dict(draft.directions),
    )


def _ordered_equations(
    draft: Draft, declared: tuple[Value, ...], partial: bool
) -> tuple[Equation, ...]:
    bound: dict[str, Value] = {str(value.name): value for value in declared}
    ordered: list[Equation] = []
    sharing, names = Sharing(), Names([*bound, *draft.equations, *draft.aliases, *draft.lines])
    for name in _topological_order(draft, partial):
        expression = draft.equations[name]
        line = draft.lines[name]
        swap = {
            v: bound[draft.target(v)] for v in values_in(expression) if draft.target(v) in bound
        }

        def state(name: str, expression: Expr, line: SourceLine = line) -> Value:
            order = (len(declared) + len(ordered)) * ORDER_STEP
            target = Value(name, shape_of(expression), Role.LOCAL, draft.owner, order)
            bound[name] = target
            ordered.append(Equation(target, expression, line))
            check_counts(ordered[-1])
            return target

        def state_part(expression: Expr, name: str = name, line: SourceLine = line) -> Value:
            part = names.fresh(f"{name}_inner")
            draft.lines[part] = line
            return state(part, expression)

        try:
            state(name, sharing.rest(replaced(expression, swap), state_part))
        except DeclarationError as error:
            raise DeclarationError(
                f"{Exception.__str__(error)}\n  {line}", code=error.code
            ) from None
    return tuple(ordered)


def _topological_order(draft: Draft, partial: bool) -> list[str]:
    """Depth first in the order of writing; raises on a cycle or an undefined name."""
    done: dict[str, None] = {}
    path: list[str] = []

    def visit(name: str) -> None:
        if name in done or name in draft.declarations:
            return
        if name in path:
            raise _cycle(draft, path[path.index(name) :])
        if name not in draft.equations:
            if partial:
                return
            raise DeclarationError(
                f"{name} has no equation; state `{name} = ...` in the class body",
                code="declaration.undefined",
            )
        path.append(name)
        for value in sorted(values_in(draft.equations[name]), key=lambda v: (v.order, str(v))):
            visit(draft.target(value))
        path.pop()
        done[name] = None

    for name in draft.equations:
        visit(name)
    return list(done)


def _cycle(draft: Draft, names: list[str]) -> DeclarationError:
    chain = " -> ".join([*names, names[0]])
    where = "\n".join(f"  {draft.lines[name]}" for name in names)
    name = names[0]
    hint = (
        f"; to re-state {name} in terms of the parent's, subclass "
        f"Parent.replaced({name!r}, '{name}_raw') and use its {name}_raw"
        if name in draft.own
        else ""
    )
    return DeclarationError(
        f"the equations are cyclic: {chain}; rename one of them{hint}\n{where}",
        code="declaration.cycle",
    )
