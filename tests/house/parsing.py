"""Sources of the package as trees: each is parsed once for all the tests that read it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

INSIDE = (ast.stmt, ast.excepthandler, ast.match_case)
"""What has statements in it; expressions have none."""


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def statements_of(node: ast.AST) -> Iterator[ast.AST]:
    """Those that stand in a node itself, and what holds others: handlers, cases."""
    return (child for child in ast.iter_child_nodes(node) if isinstance(child, INSIDE))


def every_statement(node: ast.AST) -> Iterator[ast.AST]:
    """Those of a node, and those that stand in them."""
    for child in statements_of(node):
        yield child
        yield from every_statement(child)
