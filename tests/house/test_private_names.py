"""Tests look at what the package shows: its private names stand in few lines of theirs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.house.parsing import parsed

TESTS = Path(__file__).parents[1]
MOST = 60
"""Lines of tests with a private name, with some room. What several tests need of one stands in
``tests/within.py``."""
PRIVATE = re.compile(r"_[A-Za-z]\w*(?<!__)")
OF_OTHERS = frozenset({"torch", "ctypes", "sys", "os", "native", "core", "interpreter", "tl"})
"""Modules, and names of theirs in tests, whose private names are not the package's."""
PUBLIC = frozenset(
    (
        *("_asdict", "_fields", "_replace", "_make", "_repr_html_", "_repr_latex_", "_type_"),
        *(
            "_mpf_",
            "_NodeTestCases",
            "_use_count",
            "_overloadname",
            "_SpectralNorm",
            "_power_method",
        ),
        *("_recurrent_kernel_", "_recurrent_kernel_ext2int", "_recurrent_kernel_int2ext"),
        *("_bias_", "_bias_ext2int", "_bias_int2ext", "_convert_rnn_weights", "_process_batch"),
        *("_efficientzerotensor", "_patch_attr", "_LangPatchScope", "_unwrap_shape", "_parameters"),
        *("_fields_", "_thread"),
    )
)
"""Of named tuples and notebooks; of other libraries."""


def private_lines(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Lines that read a private attribute of something, or replace one by its name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            root = _root(node)
            if root not in {"self", "cls"} | OF_OTHERS and _is_private(node.attr):
                yield node.end_lineno or 0, node.attr
        elif isinstance(node, ast.Call) and _name(node.func) in ("setattr", "getattr", "object"):
            for word in node.args[:2]:
                if isinstance(word, ast.Constant) and isinstance(word.value, str):
                    name = word.value.rpartition(".")[2]
                    if _is_private(name):
                        yield word.lineno, name


def _is_private(name: str) -> bool:
    return PRIVATE.fullmatch(name) is not None and name not in PUBLIC


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _root(node: ast.expr) -> str:
    """The name that an attribute begins with; nothing where a call or another value is first."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def test_few_lines_of_tests_know_private_names() -> None:
    known = {
        f"{path.relative_to(TESTS)}:{line}: {name}"
        for path in TESTS.rglob("*.py")
        for line, name in private_lines(parsed(path))
    }
    assert len(known) <= MOST, "\n".join(sorted(known))


def test_attributes_and_names_that_are_replaced_are_counted() -> None:
    source = 'a.b._c\nself._d\ntorch._C.e\nrun._asdict()\nmonkeypatch.setattr(a, "_f", 1)\n'
    assert {*private_lines(ast.parse(source))} == {(1, "_c"), (5, "_f")}
