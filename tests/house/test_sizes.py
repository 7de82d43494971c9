"""Sizes: a file has at most 500 lines, a class 250, a function 60, a macro of a template 80.

C that is written by hand has the same limits as Python.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.house.parsing import parsed, statements_of

ROOT = Path(__file__).parents[2]

FILE, CLASS, FUNCTION, MACRO = 500, 250, 60, 80
C_NAME = re.compile(r"(?:\b[A-Z]\w*\()?(\w+)\)? *\(")

ABOVE: dict[str, int] = {}
"""What is larger, and by how much: it may shrink alone, and leaves the list at its limit."""


def sizes_of_python() -> Iterator[tuple[str, int, int]]:
    """Name, lines and limit of every module, class and function of the package."""
    package = ROOT / "cellgen"
    for path in sorted(package.rglob("*.py")):
        text, name = path.read_text(encoding="utf-8"), path.relative_to(package).as_posix()
        yield name, text.count("\n"), FILE
        yield from _within(parsed(path), name, " ")


def _within(tree: ast.AST, name: str, between: str) -> Iterator[tuple[str, int, int]]:
    """The classes and functions of a module, a class or a function, those inside them too."""
    for node in statements_of(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            own = f"{name}{between}{node.name}"
            limit = CLASS if isinstance(node, ast.ClassDef) else FUNCTION
            yield own, node.end_lineno - node.lineno + 1, limit
            yield from _within(node, own, ".")
        else:
            yield from _within(node, name, between)


def sizes_of_macros() -> Iterator[tuple[str, int, int]]:
    """Name, lines and limit of every macro."""
    for path in sorted((ROOT / "templates").rglob("*.j2")):
        text, name = path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()
        for found in re.finditer(r"{%-? macro (\w+).*?endmacro -?%}", text, re.DOTALL):
            yield f"{name} {found[1]}", found[0].count("\n") + 1, MACRO


def sizes_of_c() -> Iterator[tuple[str, int, int]]:
    """Name, lines and limit of every file and function of C and CUDA that is written by hand."""
    for folder in ("cellgen", "generated/include"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".c", ".h", ".cuh"):
                lines = path.read_text(encoding="utf-8").splitlines()
                name = path.relative_to(ROOT).as_posix()
                yield name, len(lines), FILE
                yield from _functions_of_c(lines, name)


def _functions_of_c(lines: list[str], name: str) -> Iterator[tuple[str, int, int]]:
    """Functions begin where a line is a brace alone; the signature before it is indented after its
    first line."""
    for body in (at for at, line in enumerate(lines) if line == "{"):
        begin = next(at for at in range(body - 1, -1, -1) if not lines[at].startswith(" "))
        found = C_NAME.findall(" ".join(lines[begin:body]))
        yield f"{name} {found[-1]}", lines.index("}", body) - begin + 1, FUNCTION


@cache
def sizes() -> list[tuple[str, int, int]]:
    return [*sizes_of_python(), *sizes_of_macros(), *sizes_of_c()]


def test_nothing_is_larger_than_its_limit() -> None:
    found = {name: (lines, limit) for name, lines, limit in sizes() if lines > limit}
    larger = {
        name: f"{lines} lines, at most {ABOVE.get(name, limit)}"
        for name, (lines, limit) in found.items()
        if lines > ABOVE.get(name, limit)
    }
    assert larger == {}


def test_what_is_within_its_limit_has_left_the_list() -> None:
    largest: dict[str, int] = {}
    for name, lines, limit in sizes():  # an overloaded function stands more than once
        largest[name] = max(largest.get(name, 0), lines - limit)
    assert sorted(name for name in ABOVE if largest.get(name, 0) <= 0) == []
