"""How deep operations nest: everything that walks an expression calls itself once a level or more.

Input: equations by name. Output: the error that says which of them is too deep for Python.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from sympy import Basic, Expr

from cellgen.errors import DeclarationError

DEEPER = 10
"""By what the limit is multiplied in the advice."""


def too_deep(class_name: str, expressions: Mapping[str, Expr]) -> DeclarationError:
    """Say that a RecursionError came of how deep the operations of one equation nest."""
    name = max(expressions, key=lambda name: depth(expressions[name]))
    limit = sys.getrecursionlimit()
    return DeclarationError(
        f"{class_name}: {depth(expressions[name])} operations of {name} nest, too many to walk "
        f"within Python's recursion limit of {limit}; give parts of it names, each an equation of "
        f"its own, or raise the limit before the class: sys.setrecursionlimit({DEEPER * limit})",
        code="declaration.depth",
    )


def depth(expression: Basic) -> int:
    """Count the levels of a tree, without calling itself."""
    level, found = {id(expression): expression}, 0
    while level:
        level = {id(argument): argument for node in level.values() for argument in node.args}
        found += 1
    return found
