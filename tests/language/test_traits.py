"""Traits of the operator table: passes ask a row what it does, never what it is called."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import cellgen
from cellgen.language.ops import OPERATORS, POINTWISE
from tests.house.parsing import parsed

SOURCES = Path(cellgen.__file__).parent
ELSEWHERE = ("language/ops/", "language/misuse.py", "cells/", "compat/", "torch/recurrent.py")
"""The table itself; words of authors and arguments of other libraries, "tanh" or "relu"."""
SPELLS_EVERY_ROW = "targets/python/loop.py"
"""It may look a row up by name, in a table of spellings; so does a target."""
OF_TEXT = ("startswith", "endswith", "removeprefix", "removesuffix", "replace", "partition")


def questions(tree: ast.AST, names: frozenset[str]) -> Iterator[ast.AST]:
    """Where a source asks what an operator is called, or what its name begins or ends with."""
    nodes = [*ast.walk(tree)]
    tables = {
        target.id: node.value
        for node in nodes
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }

    def texts(node: ast.expr) -> set[str]:
        """The names that an expression holds, or that a constant of the module does."""
        node = tables.get(node.id, node) if isinstance(node, ast.Name) else node
        if isinstance(node, ast.Constant):
            return {node.value} & names if isinstance(node.value, str) else set()
        items = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
        return {text for item in items if item is not None for text in texts(item)}

    def is_name(node: ast.expr) -> bool:
        """``node.op`` or ``function.row.name``."""
        of_row = isinstance(node, ast.Attribute) and node.attr == "name"
        return isinstance(node, ast.Attribute) and (
            node.attr == "op" or (of_row and ast.unparse(node.value).endswith("row"))
        )

    def asks_for_text(function: ast.expr, arguments: list[ast.expr]) -> bool:
        """A method of texts, called for a name or for how one begins or ends; or of a table."""
        if not isinstance(function, ast.Attribute):
            return False
        if function.attr not in OF_TEXT:
            return function.attr == "get" and bool(texts(function.value))
        asked = [a.value for a in arguments[:1] if isinstance(a, ast.Constant)]
        affix = [t for t in asked if isinstance(t, str) and t.strip("_")]
        begins = any(name.startswith(t) or name.endswith(t) for t in affix for name in names)
        return begins or is_name(function.value)

    for node in nodes:
        if isinstance(node, ast.Compare):
            asks = any(is_name(side) or texts(side) for side in (node.left, *node.comparators))
        elif isinstance(node, ast.Call):
            asks = asks_for_text(node.func, node.args)
        else:
            asks = isinstance(node, ast.MatchValue | ast.Subscript) and bool(texts(node.value))
        if asks:
            yield node


ASKING = (
    'statement.op == "matmul"',
    'op in ("part", "concat")',
    "node.op != other",
    "function.row.name in KNOWN",
    'KNOWN = ("gt", "ge")\nfound = name in KNOWN',
    'op.endswith("_onto")',
    'op.removesuffix("_transposed")',
    'op.startswith("outer")',
    '{"matmul": "nn", "outer_sum": "tn"}[stage.form]',
    'TABLE = {"matmul": 1}\nfound = TABLE.get(op)',
    'match op:\n    case "sum_to":\n        pass',
)
NOT_ASKING = (
    'Apply("matmul", (a, b))',
    "statement.traits.is_part",
    'function == "backward"',
    'text.replace("*", "")',
    'f"cg_{stage.row.name}"',
)


@pytest.mark.parametrize("source", ASKING)
def test_a_source_that_asks_for_a_name_is_found(source: str) -> None:
    assert list(questions(ast.parse(source), frozenset({*OPERATORS, *POINTWISE})))


@pytest.mark.parametrize("source", NOT_ASKING)
def test_a_source_that_names_an_operator_to_apply_it_asks_for_no_name(source: str) -> None:
    assert not list(questions(ast.parse(source), frozenset({*OPERATORS, *POINTWISE})))


def test_only_the_operator_table_asks_what_an_operator_is_called() -> None:
    """Everyone else asks a row for a trait, so that a new operator is one row."""
    names = frozenset({*OPERATORS, *POINTWISE})
    asked = []
    for path in sorted(SOURCES.rglob("*.py")):
        place = path.relative_to(SOURCES).as_posix()
        if place.startswith(ELSEWHERE):
            continue
        found = questions(parsed(path), names)
        asked += [
            f"{place}:{node.lineno}: {ast.unparse(node)}"
            for node in found
            if place != SPELLS_EVERY_ROW or not isinstance(node, ast.Call)
        ]
    assert asked == []
