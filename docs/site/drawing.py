"""Draw the folders of the package: what each imports, and what the compiler hands on between them.

Imports are read from the source, values that pass between folders from the calls and annotations of
``pipeline.py`` and ``api.py``. ``python -m docs.site.drawing`` writes the picture.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import cache
from html import escape
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "cellgen"
PICTURE = ROOT / "docs" / "explanation" / "architecture.svg"
HIDDEN = {"__init__", "__main__", "_data"}
Edge = tuple[str, str]


# --- what imports what ---------------------------------------------------------------------------


def folder_of(path: Path) -> str:
    """The folder, or module beside the folders, that a file belongs to."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported(tree: ast.AST) -> Iterator[str]:
    """Names of cellgen's modules that a module reads when it runs, not for its types alone."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            continue  # an expression has no import
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        yield from imported(node)


@cache
def imports() -> dict[str, set[str]]:
    """For each folder the others that it imports."""
    found: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        own = folder_of(path)
        if own in HIDDEN:
            continue
        names = (name.split(".") for name in imported(ast.parse(path.read_text("utf-8"))))
        others = {parts[1] for parts in names if parts[0] == "cellgen" and len(parts) > 1}
        found.setdefault(own, set()).update(others - {own})
    return {own: others & set(found) for own, others in found.items()}


def reached(start: str, skip: Edge | None = None) -> set[str]:
    """Every folder that one imports, directly or not."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        own = waiting.pop()
        new = {other for other in imports()[own] if (own, other) != skip} - seen
        seen |= new
        waiting += sorted(new)
    return seen


def order() -> list[str]:
    """Folders, each after all that it imports; of those that may come next by name.

    Raises:
        ValueError: folders import each other in a circle.
    """
    left, placed = dict(imports()), []
    while left:
        ready = sorted(own for own, others in left.items() if others <= set(placed))
        if not ready:
            raise ValueError(f"folders import each other: {', '.join(sorted(left))}")
        placed.append(min(ready, key=lambda own: (len(reached(own)), own)))
        del left[placed[-1]]
    return placed


def import_edges() -> list[Edge]:
    """Imports that do not follow from other imports."""
    return [
        (own, other)
        for own in order()
        for other in sorted(imports()[own])
        if other not in reached(own, (own, other))
    ]


# --- what is handed on ---------------------------------------------------------------------------


def handed_on() -> dict[Edge, list[str]]:
    """Types of the values that the compiler passes between folders: (from, to), and their names."""
    import cellgen.api
    import cellgen.pipeline

    names = {**vars(cellgen.pipeline), **vars(cellgen.api)}
    found: dict[Edge, list[str]] = {}
    for module in (cellgen.pipeline, cellgen.api):
        for function in _functions(module):
            for source, target, name in _passed(function, names):
                kinds = found.setdefault((source, target), [])
                if name not in kinds:
                    kinds.append(name)
    return found


def _functions(module: ModuleType) -> Iterator[ast.FunctionDef]:
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.FunctionDef):
            yield node


def _passed(function: ast.FunctionDef, names: dict[str, object]) -> Iterator[tuple[str, str, str]]:
    """For each argument of a call that another call made: its folder, the callee's, its type."""
    values: dict[str, ast.expr] = {
        node.targets[0].id: node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for call in ast.walk(function):
        target = _home(_object(call.func, names)) if isinstance(call, ast.Call) else None
        if target is None:
            continue
        for argument in call.args:
            inner = argument.value if isinstance(argument, ast.Attribute) else argument
            made = values.get(inner.id) if isinstance(inner, ast.Name) else inner
            if isinstance(made, ast.Call) and (kind := _result(made, names)):
                source = _home(kind)
                if source not in {None, target}:
                    yield str(source), target, kind.__name__


def _object(expression: ast.expr, names: dict[str, object]) -> object:
    """What a name, or an attribute of one, stands for."""
    if isinstance(expression, ast.Name):
        return names.get(expression.id)
    if isinstance(expression, ast.Attribute):
        return getattr(_object(expression.value, names), expression.attr, None)
    return None


def _result(call: ast.Call, names: dict[str, object]) -> type | None:
    """The class of cellgen that a call returns, by its annotation."""
    callee = _object(call.func, names)
    callee = inspect.unwrap(callee) if callable(callee) else None
    text = str(getattr(callee, "__annotations__", {}).get("return", "")).partition(" |")[0]
    scope = {**getattr(callee, "__globals__", {}), **names}
    found = scope.get(text)
    return found if isinstance(found, type) and _home(found) else None


def _home(thing: object) -> str | None:
    """The folder that defines a class or a function; none for the compiler's own two modules."""
    parts = str(getattr(thing, "__module__", "") or "").split(".")
    if parts[0] != "cellgen" or len(parts) < 2 or parts[1] in {"pipeline", "api"}:
        return None
    return parts[1]


# --- the picture ---------------------------------------------------------------------------------

ROW, TOP, LEFT, BOX = 52, 62, 110, 560
LETTERS, LINES = 86, 2
"""Of a line, and lines of a box."""
WIDTH = 900
FONT = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace"
STYLE = (
    f"text {{ font-family: {FONT}; }} .name {{ font-size: 13px; font-weight: 600; }} "
    ".text { font-size: 10.5px; paint-order: stroke; stroke: #fff; stroke-width: 3px; } "
    ".head { font-size: 12px; } "
    "path { fill: none; stroke-width: 1.3; marker-end: url(#tip); } "
    ".imports { stroke: #94a3b8; } .values { stroke: #ea580c; stroke-width: 1.8; }"
)


def sentence(folder: str) -> list[str]:
    """The first sentence of what a folder says of itself, in whole words.

    Raises:
        ValueError: it does not fit its box.
    """
    path = PACKAGE / folder
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    said = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    line = " ".join(said.split("\n\n")[0].split()).split(". ")[0].rstrip(".").replace("``", "")
    lines = textwrap.wrap(line, LETTERS)
    if len(lines) > LINES:
        raise ValueError(f"{folder}: its first sentence is longer than {LINES} lines: {line}")
    return lines


def draw() -> str:
    """The picture as SVG; the same code gives the same bytes."""
    rows = {folder: number for number, folder in enumerate(order())}
    height = TOP + ROW * len(rows) + 20
    middle = {folder: TOP + ROW * number + 15 for folder, number in rows.items()}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>folders, their imports, and the values that pass between them</title>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0,0.5 L8,4 L0,7.5 Z" '
        'style="fill:#64748b;stroke:none"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff"/>',
        _text("head", LEFT - 12, 34, "imports", "end", "#64748b"),
        _text("head", LEFT + BOX + 12, 34, "hands on", "start", "#ea580c"),
        *(part for folder in rows for part in _box(folder, middle[folder])),
        *(_left(middle[a], middle[b], rows[a] - rows[b]) for a, b in import_edges()),
        *_values(middle, rows),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _text(kind: str, x: float, y: float, text: str, anchor: str, fill: str) -> str:
    return (
        f'<text class="{kind}" x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{fill}">'
        f"{escape(text)}</text>"
    )


def _box(folder: str, y: float) -> Iterator[str]:
    yield (
        f'<rect x="{LEFT}" y="{y - 22:.0f}" width="{BOX}" height="44" rx="5" fill="#f8fafc" '
        'stroke="#cbd5e1"/>'
    )
    lines = sentence(folder)
    top = y - 8 if len(lines) > 1 else y - 2
    yield _text("name", LEFT + 12, top, folder, "start", "#0f172a")
    for number, line in enumerate(lines):
        yield _text("text", LEFT + 12, top + 13 * (number + 1), line, "start", "#475569")


def _left(start: float, end: float, span: int) -> str:
    """An import: an arc on the left, the wider the more rows it passes."""
    reach = min(22 + 9.5 * span, LEFT - 14)
    return (
        f'<path class="imports" d="M{LEFT},{start + 4:.0f} C{LEFT - reach:.1f},{start + 4:.0f} '
        f'{LEFT - reach:.1f},{end - 4:.0f} {LEFT - 2},{end - 4:.0f}"/>'
    )


def _values(middle: dict[str, float], rows: dict[str, int]) -> Iterator[str]:
    """What is handed on: arcs on the right, each with the names of its types."""
    right = LEFT + BOX
    taken: list[float] = []
    labels = []
    for (source, target), kinds in handed_on().items():
        start, end = middle[source], middle[target]
        down = 5 if end > start else -5
        reach = 40 + 16 * abs(rows[source] - rows[target])
        x, far = right + 0.75 * reach, right + reach
        yield (
            f'<path class="values" d="M{right},{start + down:.0f} C{far},{start + down:.0f} '
            f'{far},{end - down:.0f} {right + 2},{end - down:.0f}"/>'
        )
        for line in kinds:
            y = (start + end) / 2 + 4
            while any(abs(y - other) < 15 for other in taken):
                y += 15
            taken.append(y)
            labels.append(_text("text", x + 8, y, line, "start", "#9a3412"))
    yield from labels


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
    print(PICTURE.relative_to(ROOT))
