"""Simplify a program by named rewrites, in the two orders that the pipeline uses.

Input and output: a verified ``Program``. No rewrite changes the value of an expression by more than
the order of a sum: no ``simplify()``, no ``expand()``, no common subexpressions behind the author's
back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from cellgen.program.rewrites.copies import materialize
from cellgen.program.rewrites.inlined import inline_sums, inline_temporaries
from cellgen.program.rewrites.parts import narrow_parts, unwrap_parts
from cellgen.program.rewrites.products import (
    accumulate_products,
    distribute_concat,
    transposed_products,
)
from cellgen.program.rewrites.unused import drop_copies, drop_dead, merge_equal
from cellgen.program.rewrites.zeros import drop_zeros
from cellgen.program.ssa import Program

Rewrite: TypeAlias = Callable[[Program], Program]


def simplify(program: Program, rewrites: Sequence[Rewrite]) -> Program:
    """Apply rewrites in order, verifying after each."""
    for rewrite in rewrites:
        rewritten = rewrite(program)
        if rewritten != program:
            rewritten.verify()
        program = rewritten
    return program


FORWARD: tuple[Rewrite, ...] = (
    merge_equal,
    transposed_products,
    distribute_concat,
    drop_zeros,
    inline_sums,
    drop_dead,
)
"""What the forward program goes through before it is differentiated."""

LOWER: tuple[Rewrite, ...] = (
    merge_equal,
    drop_copies,
    unwrap_parts,
    accumulate_products,
    narrow_parts,
    unwrap_parts,
    inline_temporaries,
    drop_dead,
    materialize,
)
"""What every function goes through before it is scheduled."""
