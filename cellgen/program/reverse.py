"""Write the adjoint of a step for a loop: what is formed in reverse, and what waits for many rows.

Input and output: programs of one step. ``over_time`` says what is cut where.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sympy import Integer

from cellgen.language.names import Names
from cellgen.language.ops import part
from cellgen.language.value import Apply, Shape, Value
from cellgen.program.ssa import Program, Statement


def copy_shared(
    full: Program,
    passed: Sequence[Value],
    waiting: Sequence[Value],
    known: Sequence[Value],
    names: Names,
) -> Program:
    """Let what is formed in reverse and serves twice be a value of its own, ``<name>_step``.

    A gradient that is returned at the end is then a copy of it, and so is one that is handed to the
    previous state while what is deferred reads it at every step.
    """
    formed = {statement.target for statement in full.restrict("reverse", passed, known).statements}
    deferred = full.restrict("deferred", waiting, (*known, *formed))
    shared = [v for v in waiting if v in formed] + [v for v in passed if v in deferred.arguments]
    swap = {value: like(value, names.fresh(f"{value.name}_step")) for value in shared}
    statements = [
        Statement(swap.get(s.target, s.target), s.expression.xreplace(swap))
        for s in full.statements
    ]
    copies = [Statement(value, step) for value, step in swap.items()]
    return full.with_statements((*statements, *copies))


def sum_rows_first(deferred: Program, names: Names) -> Program:
    """Let the gradient of a number be a sum over rows, ``<name>_units``, then over units.

    One chain over all rows and units would keep a single thread busy, an addition at a time. The
    gradient of matrices has entries enough: it is one sum.
    """
    statements: list[Statement] = []
    for statement in deferred.statements:
        target, operands = statement.target, statement.operands
        if statement.traits.is_sum and operands[0].is_batched and not target.is_batched:
            inner = operands[0].shape[1:]
            is_aligned = len(target.shape) == 1 + len(inner)  # (1, H), of (B, H)
            shape = (Integer(1), *inner) if is_aligned else inner
            if target.shape != shape and not _keeps_matrix(inner, target.shape):
                units = like(target, names.fresh(f"{target.name}_units"), shape)
                statements.append(Statement(units, Apply("sum_to", operands, shape)))
                statement = Statement(target, Apply("sum_to", (units,), target.shape))
        statements.append(statement)
    return deferred.with_statements(statements)


def _keeps_matrix(inner: Shape, target: Shape) -> bool:
    """Whether a sum over outer axes keeps the last two, of more than one entry each."""
    return len(inner) > 2 and inner[-2:] == target[-2:] and Integer(1) not in target[-2:]


def cut_epilogue(deferred: Program) -> tuple[Program, Program | None]:
    """Take what has no rows out of the deferred part: it waits for sums over all steps."""
    known, late = set(deferred.arguments), set[Value]()
    for statement in deferred.statements:
        operands = statement.operands
        if statement.target.is_batched or any(v.is_batched for v in operands):
            continue
        is_place = statement.traits.is_join and not late.intersection(operands)
        is_view = statement.traits.is_part and known.issuperset(operands)
        if not is_place and not is_view:
            late.add(statement.target)
    last = [v for v in deferred.results if v in late]
    if not last:
        return deferred, None
    formed = {s.target for s in deferred.statements if s.target not in late}
    epilogue = deferred.restrict("epilogue", last, formed)
    first = [v for v in deferred.results if v not in late]
    first += [v for v in epilogue.arguments if v in formed and v not in first]
    return deferred.restrict("deferred", first, ()), epilogue


def read_through_joins(deferred: Program, reverse: Program) -> Program:
    """Read an adjoint that is kept inside a joined one as a part of that."""
    reads = set(deferred.arguments)
    parts: dict[Value, Statement] = {}
    for statement in reverse.statements:
        if not statement.traits.is_join or statement.target not in reads:
            continue
        axis, start = int(statement.expression.attributes[0]), Integer(0)
        for piece in statement.expression.operands:
            size = piece.shape[axis]
            if piece in reads:
                parts.setdefault(piece, Statement(piece, part(statement.target, axis, start, size)))
            start = start + size
    arguments = tuple(v for v in deferred.arguments if v not in parts)
    statements = (*parts.values(), *deferred.statements)
    program = replace(deferred, arguments=arguments, statements=statements)
    program.verify()
    return program


def like(value: Value, name: str, shape: Shape | None = None) -> Value:
    """A value of another name, and maybe of another shape."""
    return Value(name, shape or value.shape, value.role, value.owner, value.order)
