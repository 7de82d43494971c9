"""The order of statements: products that share operands stand together."""

from __future__ import annotations

from cellgen.language.ops import Form
from cellgen.language.value import Value
from cellgen.program.ssa import Program, Statement


def gather_products(program: Program) -> Program:
    """State what products read first, then sums over rows of products, then products by row.

    Each statement is the same work wherever it stands. Neighbouring products of one kind read each
    operand once: the tangent's weight gradients share those of its cell.
    """
    waiting = list(program.statements)
    formed: set[Value] = set(program.arguments)
    ordered: list[Statement] = []
    while waiting:
        for kind in (False, True, None):
            taken = _ready(waiting, formed, kind)
            ordered += taken
            waiting = [statement for statement in waiting if statement.target not in formed]
    return program.with_statements(ordered)


def _ready(waiting: list[Statement], formed: set[Value], kind: bool | None) -> list[Statement]:
    """Statements of one kind whose operands are formed, each marked as formed itself."""
    ready = []
    for statement in waiting:
        if _is_outer(statement) is kind and formed.issuperset(statement.operands):
            ready.append(statement)
            formed.add(statement.target)
    return ready


def _is_outer(statement: Statement) -> bool | None:
    """Whether it is a sum over rows of products; None for any other product."""
    product = statement.traits.product
    if product is None:
        return False
    return True if product.form is Form.TN else None
