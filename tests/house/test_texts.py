"""No text is searched after it is written: what a target knows is a value."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "cellgen"
FOLDERS = ("targets", "schedule", "runtime/device")
SEARCHES = frozenset(
    {"sub", "subn", "findall", "finditer", "search", "match", "fullmatch"}
    | {"partition", "rpartition", "splitlines", "startswith", "endswith"}
)
WORD = re.compile(r"\w+")
READS = {
    "targets/c/source.py": "a plan's text, line by line, to show it",
    "targets/c_expressions.py": "how a row of the operator table is spelled",
    "targets/cuda/source.py": "codes of errors",
    "targets/embedded/spelling.py": "how a row of the operator table is spelled",
    "targets/head.py": "the equations and the docstring of an author",
    "targets/running.py": "how a row of the operator table is spelled",
    "targets/triton/expressions.py": "how a row of the operator table is spelled",
    "targets/triton/memory.py": "blank lines, which are left out where parts spelled nothing",
    "targets/triton/names.py": "templates by hand, for the names that they take",
    "targets/triton/source.py": "codes of errors",
    "runtime/device/arrays.py": "names of modules",
    "runtime/device/assemblers.py": "what a program says of its version",
    "runtime/device/backend.py": "what a program says of its version",
    "runtime/device/nvcc.py": "an environment variable",
    "runtime/device/nvrtc.py": "names of architectures, and what a compiler says",
}
"""The files that take a text apart, and which: none that cellgen writes."""


def searches(path: Path) -> Iterator[str]:
    """The places of a file that look into a text."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr in SEARCHES:
            yield f"{path.name}:{node.lineno} {ast.unparse(called)}"
        if isinstance(node, ast.Compare) and _looks_for_a_text(node):
            yield f"{path.name}:{node.lineno} {ast.unparse(node)}"


def _looks_for_a_text(node: ast.Compare) -> bool:
    """Whether it asks if a piece of a text, which is no name, is in something."""
    piece, of = node.left, node.ops[0]
    is_piece = isinstance(piece, ast.Constant) and isinstance(piece.value, str)
    return is_piece and isinstance(of, ast.In | ast.NotIn) and not WORD.fullmatch(piece.value)


def test_no_text_is_searched_after_it_is_written() -> None:
    paths = [path for folder in FOLDERS for path in (PACKAGE / folder).rglob("*.py")]
    found = {str(path.relative_to(PACKAGE)): list(searches(path)) for path in paths}
    others = {path: calls for path, calls in found.items() if calls and path not in READS}
    assert not others, (
        f"{others}: give what is looked for as a value beside the text; where the text is not "
        f"cellgen's own, say in READS whose it is"
    )
    assert all(found[path] for path in READS), "a row of READS that is not needed"


def test_a_search_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "spelling.py"
    path.write_text("import re\nhas = re.search('cg_', text)\nis_sum = ' + ' in text\n")
    assert list(searches(path)) == ["spelling.py:2 re.search", "spelling.py:3 ' + ' in text"]
