"""Names of values: what a value is, not when it came to be."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

from tests.house.parsing import parsed

PACKAGE = Path(__file__).parents[2] / "cellgen"
NEVER = frozenset({"found", "given", "made", "shown", "asked", "told", "where", "Given"})
"""Words that say when a value came to be, and ``where``: the language's function of that name."""

LIMITS = {
    "language/cell": 2,
    "language/ops": 1,
    "program": 1,
    "program/chunks": 1,
    "torch/chunks": 1,
}
"""The most names of these words that a folder has, each once for each function: those of ``where``
as a condition, and of where something was written. They may only fall."""


def names_of_moments(path: Path) -> set[tuple[str, str]]:
    """The names of these words that a file binds: in which scope, and which."""
    bound: set[tuple[str, str]] = set()

    def look(node: ast.AST, scope: str) -> None:
        for child in ast.iter_child_nodes(node):
            is_scope = isinstance(child, ast.FunctionDef | ast.ClassDef)
            inner = f"{scope}.{child.name}" if is_scope else scope
            for name in _bound(child):
                if name in NEVER:
                    bound.add((inner, name))
            look(child, inner)

    look(parsed(path), "")
    return bound


def _bound(node: ast.AST) -> tuple[str, ...]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return (node.id,)
    if isinstance(node, ast.arg):
        return (node.arg,)
    return (node.name,) if isinstance(node, ast.FunctionDef | ast.ClassDef) else ()


def folder_of(path: Path) -> str:
    """The part of the package: two folders where it has such."""
    parts = path.relative_to(PACKAGE).parts[:-1]
    return "/".join(parts[:2]) or "."


def test_no_folder_has_more_names_that_say_when_a_value_came_to_be() -> None:
    counted: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        counted[folder_of(path)] += len(names_of_moments(path))
    assert {*LIMITS} <= {*counted}, "limits are of folders with Python"
    above = {folder: n for folder, n in counted.items() if n > LIMITS.get(folder, 0)}
    assert not above, f"name what a value is: {above}, expected at most {LIMITS}"


def test_a_name_is_counted_once_for_each_function(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    source.write_text(
        "def found(given: int) -> int:\n    made = given\n    for made in (1, 2):\n        pass\n"
        "    return made\n\n\ndef other() -> int:\n    match = [shown for shown in ()]\n"
    )
    names = names_of_moments(source)
    assert {(".found", name) for name in ("found", "given", "made")} <= names
    assert (".other", "shown") in names
    assert len(names) == 4
