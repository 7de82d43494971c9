"""Which rows a deferred loop leaves out."""

from __future__ import annotations

from sympy import Pow

from cellgen.language.ops import Pointwise
from cellgen.schedule.schedule import Line, Loop


def leaves_out_rows(loop: Loop) -> bool:
    """Whether a deferred loop leaves out rows of masked steps.

    Outputs are zeros there, and zero times infinity is no zero.
    """
    return len(loop.space) == 2 and any(map(may_be_infinite, loop.lines))


def may_be_infinite(line: Line) -> bool:
    """Whether zeros among the operands of a line may make it infinite, or no number.

    So they may where it divides, takes a logarithm, or a power that is no whole number.
    """
    expression = line.statement.expression
    powers = any(not (p.exp.is_Integer and p.exp > 0) for p in expression.atoms(Pow))
    return powers or any(f.row.is_singular for f in expression.atoms(Pointwise))
