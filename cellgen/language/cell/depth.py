"""How deep operations nest: everything that walks an expression calls itself once a level or more.

Input: equations by name. Output: an error that says which of them is too deep for Python.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sympy import Basic, Expr

from cellgen.errors import DeclarationError

DEEPER = 10
"""By what the limit is multiplied in the advice."""
FRAMES = 20
"""Calls that a level takes at most: a RecursionError at fewer levels has another cause."""


@contextmanager
def depth_explained(class_name: str, expressions: Mapping[str, Expr]) -> Iterator[None]:
    """Say which equation nests too deep where the body ends in a RecursionError.

    Raises DeclarationError.
    """
    try:
        yield
    except RecursionError:
        depths = {name: depth(expression) for name, expression in expressions.items()}
        limit = sys.getrecursionlimit()
        name = max(depths, key=depths.__getitem__, default=None)
        if name is None or depths[name] * FRAMES < limit:
            raise
        raise DeclarationError(
            f"{class_name}: {depths[name]} operations of {name} nest, too many to walk within "
            f"Python's recursion limit of {limit}; give parts of it names, each an equation of "
            f"its own, or raise the limit before the class: "
            f"sys.setrecursionlimit({DEEPER * limit})",
            code="declaration.depth",
        ) from None


def depth(expression: Basic) -> int:
    """Count the levels of a tree, without calling itself."""
    level, levels = {id(expression): expression}, 0
    while level:
        level = {id(argument): argument for node in level.values() for argument in node.args}
        levels += 1
    return levels
