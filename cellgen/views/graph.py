"""Draw the dataflow graph of a cell's step as SVG.

Input: a ``Definition``. Output: SVG text. Boxes are values under the author's names with their
equations, coloured by role; round nodes are operators on whole vectors; parameters are tags on what
reads them. A cell with heads is drawn by its author's equations alone, from top to bottom: its
operators are many, and most of them only lay out axes. The layout is ``graph_layout``'s; the same
cell always gives the same bytes.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.sax.saxutils import escape

from cellgen.language.cell import Definition
from cellgen.language.notation import text
from cellgen.language.value import Apply, Role, Value, format_shape
from cellgen.program.derive import forward
from cellgen.program.ssa import Program, Statement
from cellgen.views.graph_layout import Arrangement, Box, Edge, Point, arrange

COLOURS = {
    Role.INPUT: ("#dbeafe", "#2563eb"),
    Role.STATE: ("#ffedd5", "#ea580c"),
    Role.STATIC: ("#e0f2fe", "#0284c7"),
    Role.WEIGHT: ("#dcfce7", "#15803d"),
    Role.BIAS: ("#ecfccb", "#4d7c0f"),
    Role.SCALAR: ("#fce7f3", "#be185d"),
    Role.LOCAL: ("#f8fafc", "#475569"),
    Role.TEMPORARY: ("#ede9fe", "#6d28d9"),
}
"""Fill and stroke."""

NAMES = {
    Role.INPUT: "input",
    Role.STATE: "state",
    Role.STATIC: "constant over time",
    Role.WEIGHT: "weight",
    Role.BIAS: "bias",
    Role.SCALAR: "run-time number",
    Role.LOCAL: "value",
    Role.TEMPORARY: "operator",
}

MARGIN = 28.0
HEADER = 64.0
FOOTER = 46.0
LETTER = 7.9
"""Width of a letter of a title; smaller text scales with it."""
SMALL = 6.7
WRAP = 34
TITLE_LINE, SMALL_LINE, TAG_LINE = 20.0, 15.0, 19.0
PADDING = 11.0
GAP = 12.0
"""Between boxes of a row, from top to bottom."""
FONTS = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace"


@dataclass(frozen=True)
class _Node:
    """One node: its heading, lines below it, tags of parameters, and how it is drawn."""

    key: str
    role: Role
    title: str
    lines: tuple[str, ...] = ()
    tags: tuple[Value, ...] = ()
    returned: bool = False
    last: bool = False

    @property
    def is_round(self) -> bool:
        return self.role is Role.TEMPORARY

    @property
    def width(self) -> float:
        """Width with tags."""
        return max(self.body_width, *(_tag_width(value) for value in self.tags), 0.0)

    @property
    def body_width(self) -> float:
        texts = [len(self.title) * LETTER, *(len(line) * SMALL for line in self.lines)]
        return max(*texts, 14.0) + 2 * PADDING

    @property
    def body(self) -> float:
        """Height without tags."""
        return 10 + TITLE_LINE + SMALL_LINE * len(self.lines)

    @property
    def height(self) -> float:
        return self.body + TAG_LINE * len(self.tags)

    @property
    def box(self) -> Box:
        rise = (self.height - self.body) / 2
        return Box(self.key, self.width, self.height, self.body_width / 2, rise, self.last)

    @property
    def box_from_top(self) -> Box:
        """With width and height exchanged; edges meet it above, and below its tags."""
        return Box(self.key, self.height, self.width + GAP, self.height / 2, 0.0, self.last)


def draw(definition: Definition) -> str:
    """Return the picture of one step, forward, as an SVG document."""
    if has_heads(definition):
        nodes, edges = _equations(definition)
        placed = _from_top(arrange([node.box_from_top for node in nodes], edges))
        routes = [_curve_down(points, str(edge[1])) for edge, points in placed.routes.items()]
        pieces = ['<g class="edges">', *routes, "</g>"]
        for node in nodes:
            pieces += _drawn(node, placed.centres[node.key])
        return _document(definition, placed, nodes, pieces)
    nodes, edges = graph_lines(definition, forward(definition))
    placed = arrange([node.box for node in nodes], edges)
    pieces = _routes(placed, edges)
    for node in nodes:
        pieces += _drawn(node, placed.centres[node.key])
    return _document(definition, placed, nodes, pieces)


def has_heads(definition: Definition) -> bool:
    """Whether a value of a row is more than a vector."""
    return any(len(equation.target.shape) > 2 for equation in definition.equations)


# --- the author's equations ----------------------------------------------------------------------


def _equations(definition: Definition) -> tuple[list[_Node], list[Edge]]:
    """What flows into a step, and a box for each equation."""
    read = {value for e in definition.equations for value in e.expression.atoms(Value)}
    flowing = [v for v in definition.declared if v in read and not _is_tag(v)]
    nodes = [_Node(str(v), v.role, str(v), (format_shape(v.shape),)) for v in flowing]
    edges: list[Edge] = []
    returned = {str(value.name) for value in definition.outputs}
    for equation in definition.equations:
        target = equation.target
        operands = sorted(equation.expression.atoms(Value), key=lambda value: value.order)
        tags = tuple(value for value in operands if _is_tag(value))
        title = f"{target}  {format_shape(target.shape)}"
        lines = _wrapped_equation(text(equation.expression))
        key, is_returned = str(target.name), str(target.name) in returned
        nodes.append(_Node(key, Role.LOCAL, title, lines, tags, is_returned))
        edges += [(str(v.name), key) for v in operands if not _is_tag(v)]
    for state in definition.states:
        nodes.append(_next_state(definition, state))
        edges.append((str(definition.next_state(state).name), nodes[-1].key))
    return nodes, list(dict.fromkeys(edges))


def _from_top(placed: Arrangement) -> Arrangement:
    """An arrangement whose columns are rows."""
    centres = {key: (y, x) for key, (x, y) in placed.centres.items()}
    routes = {edge: tuple((y, x) for x, y in points) for edge, points in placed.routes.items()}
    return Arrangement(centres, routes, placed.height, placed.width)


def _curve_down(points: Sequence[Point], target: str) -> str:
    """A smooth line that leaves and enters every point vertically."""
    carried = ' class="carried"' if target.startswith("next ") else ""
    pieces = [f"M{points[0][0]:.1f},{points[0][1]:.1f}"]
    for (x0, y0), (x1, y1) in pairwise(points):
        half = (y1 - y0) / 2
        pieces.append(f"C{x0:.1f},{y0 + half:.1f} {x1:.1f},{y1 - half:.1f} {x1:.1f},{y1:.1f}")
    return f'<path{carried} d="{" ".join(pieces)}"/>'


# --- the graph -----------------------------------------------------------------------------------


def graph_lines(definition: Definition, program: Program) -> tuple[list[_Node], list[Edge]]:
    """Values and operators; an operator that only one other reads is drawn as part of it."""
    merged = _merged(program)
    flowing = (Role.INPUT, Role.STATE, Role.STATIC)
    nodes = [
        _Node(str(v), v.role, str(v), (format_shape(v.shape),))
        for v in program.arguments
        if v.role in flowing
    ]
    edges: list[Edge] = []
    for statement in program.statements:
        if statement.target in merged:
            continue
        operands = _operands(statement, program, merged)
        tags = tuple(value for value in operands if _is_tag(value))
        nodes.append(_computed(definition, statement, tags, _prefix(statement, program, merged)))
        edges += [(str(v), str(statement.target)) for v in operands if not _is_tag(v)]
    for state in definition.states:
        nodes.append(_next_state(definition, state))
        edges.append((str(definition.next_state(state)), nodes[-1].key))
    return nodes, edges


def _merged(program: Program) -> set[Value]:
    """Operators that only one statement reads, whose node shows them anyway."""
    targets = set()
    for statement in program.statements:
        readers = program.uses[statement.target]
        alone = statement.target.role is Role.TEMPORARY and len(readers) == 1
        if alone and _shows(readers[0], statement):
            targets.add(statement.target)
    return targets


def _shows(reader: Statement, operand: Statement) -> bool:
    """Tell whether a reader's own node says enough: an author's equation, or ``concat @``."""
    written = reader.target.role is Role.LOCAL and reader.is_pointwise
    return (
        operand.traits.is_part
        or (operand.traits.is_join and reader.traits.is_matmul)
        or (operand.is_pointwise and written)
    )


def _operands(statement: Statement, program: Program, merged: set[Value]) -> tuple[Value, ...]:
    """What a statement reads, looking through what is drawn as part of it."""
    operands: dict[Value, None] = {}
    for value in statement.operands:
        source = program.definition_of(value)
        through = value in merged and source is not None
        inner = _operands(source, program, merged) if through and source else (value,)
        operands.update(dict.fromkeys(inner))
    return tuple(operands)


def _prefix(statement: Statement, program: Program, merged: set[Value]) -> str:
    joined = (program.definition_of(value) for value in statement.operands if value in merged)
    return "concat " if any(source and source.traits.is_join for source in joined) else ""


def _computed(
    definition: Definition, statement: Statement, tags: tuple[Value, ...], prefix: str
) -> _Node:
    target = statement.target
    if target.role is Role.TEMPORARY:
        return _Node(str(target), Role.TEMPORARY, prefix + _symbol(statement), (), tags)
    equations = {str(e.target.name): text(e.expression) for e in definition.equations}
    equation = equations.get(str(target.name), text(statement.expression))
    lines = _wrapped_equation(equation)
    title = f"{target}  {format_shape(target.shape)}"
    returned = str(target.name) in {str(value.name) for value in definition.outputs}
    return _Node(str(target), Role.LOCAL, title, lines, tags, returned)


def _wrapped_equation(words: str) -> tuple[str, ...]:
    return tuple(textwrap.wrap(f"= {words}", WRAP, subsequent_indent="  ", break_on_hyphens=False))


def _symbol(statement: Statement) -> str:
    """What a round node says: ``@``, ``concat``, the slice of a part, or a short formula."""
    if statement.traits.is_matmul:
        return "@"
    if statement.traits.is_part:
        printed = text(statement.expression)
        return printed[printed.rindex("[") :]
    if isinstance(statement.expression, Apply):
        return statement.expression.op
    return text(statement.expression)


def _is_tag(value: Value) -> bool:
    return value.role.is_parameter or value.role is Role.SCALAR


def _tag(value: Value) -> str:
    return f"{value} {format_shape(value.shape)}" if value.shape else str(value)


def _tag_width(value: Value) -> float:
    return len(_tag(value)) * SMALL + 14


def _next_state(definition: Definition, state: Value) -> _Node:
    new = definition.next_state(state)
    return _Node(f"next {state}", Role.STATE, str(new), (f"the next step's {state}",), last=True)


# --- drawing -------------------------------------------------------------------------------------


def _routes(placed: Arrangement, edges: Sequence[Edge]) -> list[str]:
    drawn = []
    for edge in edges:
        points = placed.routes[edge]
        carried = ' class="carried"' if edge[1].startswith("next ") else ""
        drawn.append(f'<path{carried} d="{_curve(points)}"/>')
    return ['<g class="edges">', *drawn, "</g>"]


def _curve(points: Sequence[Point]) -> str:
    """A smooth line that leaves and enters every point horizontally."""
    pieces = [f"M{points[0][0]:.1f},{points[0][1]:.1f}"]
    for (x0, y0), (x1, y1) in pairwise(points):
        half = (x1 - x0) / 2
        pieces.append(f"C{x0 + half:.1f},{y0:.1f} {x1 - half:.1f},{y1:.1f} {x1:.1f},{y1:.1f}")
    return " ".join(pieces)


def _drawn(node: _Node, centre: Point) -> list[str]:
    fill, stroke = COLOURS[node.role]
    left, top = centre[0] - node.body_width / 2, centre[1] - node.height / 2
    radius = node.body / 2 if node.is_round else 7.0
    dash = ' stroke-dasharray="5 3"' if node.last else ""
    weight = 2.6 if node.returned else 1.3
    pieces = [
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{node.body_width:.1f}" '
        f'height="{node.body:.1f}" rx="{radius:.1f}" fill="{fill}" '
        f'stroke="{stroke}" stroke-width="{weight}"{dash}/>'
    ]
    y = top + 5 + TITLE_LINE - 6
    pieces.append(_text(centre[0], y, node.title, "title", stroke if node.is_round else "#0f172a"))
    for line in node.lines:
        y += SMALL_LINE
        pieces.append(_text(left + PADDING, y, line, "line", "#475569", "start"))
    for index, value in enumerate(node.tags):
        pieces += _drawn_tag(value, centre[0], top + node.body + TAG_LINE * index)
    return pieces


def _drawn_tag(value: Value, x: float, top: float) -> list[str]:
    fill, stroke = COLOURS[value.role]
    width = _tag_width(value)
    return [
        f'<rect x="{x - width / 2:.1f}" y="{top + 2:.1f}" width="{width:.1f}" height="16" rx="8" '
        f'fill="{fill}" stroke="{stroke}" stroke-width="0.8"/>',
        _text(x, top + 14, _tag(value), "line", stroke),
    ]


def _text(x: float, y: float, words: str, style: str, colour: str, anchor: str = "middle") -> str:
    attributes = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"'
    return f'<text class="{style}" {attributes} xml:space="preserve">{escape(words)}</text>'


def _document(
    definition: Definition, placed: Arrangement, nodes: Sequence[_Node], pieces: Sequence[str]
) -> str:
    legend, legend_width = _legend(nodes)
    width = max(placed.width, legend_width, len(definition.name) * 12 + 260) + 2 * MARGIN
    height = placed.height + HEADER + FOOTER + MARGIN
    shift = (width - placed.width) / 2
    heading = f"{definition.name}: one step, forward"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" role="img">',
            f"<title>{escape(heading)}</title>",
            f"<style>text {{ font-family: {FONTS}; }} "
            ".head { font-size: 18px; font-weight: 600; } "
            ".title { font-size: 13px; font-weight: 600; } .line { font-size: 11px; } "
            ".edges path { fill: none; stroke: #94a3b8; stroke-width: 1.4; "
            "marker-end: url(#tip); } .edges path.carried { stroke: #ea580c; }</style>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto"><path d="M0,0.5 L8,4 L0,7.5 Z" fill="#64748b"/>'
            "</marker></defs>",
            f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
            _text(MARGIN, MARGIN + 10, heading, "head", "#0f172a", "start"),
            f'<g transform="translate({shift:.1f} {HEADER:.1f})">',
            *pieces,
            "</g>",
            f'<g transform="translate({MARGIN:.1f} {height - FOOTER + 8:.1f})">',
            *legend,
            "</g>",
            "</svg>",
            "",
        ]
    )


def _legend(nodes: Sequence[_Node]) -> tuple[list[str], float]:
    """Samples of the roles that the picture shows."""
    present = {node.role for node in nodes} | {v.role for node in nodes for v in node.tags}
    pieces, x = [], 0.0
    for role in (role for role in COLOURS if role in present):
        fill, stroke = COLOURS[role]
        round_ = 8 if role is Role.TEMPORARY or role.is_parameter or role is Role.SCALAR else 3
        pieces.append(
            f'<rect x="{x:.1f}" y="0" width="22" height="15" rx="{round_}" fill="{fill}" '
            f'stroke="{stroke}" stroke-width="1.2"/>'
        )
        pieces.append(_text(x + 28, 12, NAMES[role], "line", "#475569", "start"))
        x += 28 + len(NAMES[role]) * SMALL + 22
    if any(node.returned for node in nodes):
        pieces.append(
            f'<rect x="{x:.1f}" y="0" width="22" height="15" rx="3" fill="#f8fafc" '
            f'stroke="#475569" stroke-width="2.6"/>'
        )
        pieces.append(_text(x + 28, 12, "returned by forward", "line", "#475569", "start"))
        x += 28 + 19 * SMALL
    return pieces, x
