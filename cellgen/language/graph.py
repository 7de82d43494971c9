"""Expressions as graphs: an expression that stands in two places is one node.

Walked as trees, ``y = y + tanh(y) * (1 - y)`` doubles at every round. Every walk here visits a node
once, and ``Sharing`` gives names to nodes that are read more than once, so that what is made of an
equation afterwards (statements, text, C) grows with the graph.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sympy import Add, Basic, Expr, Float, Integer, Mul, Number, Pow

from cellgen.language.value import Apply, Value

LARGE = 10
"""Nodes of an expression that gets a name where it is read twice; a smaller one is written out."""

WRITTEN_AS_PRODUCT = 4
"""Powers up to this one are printed as products in C, and read their base as often."""


_LATEST = 4
"""How many earlier sums with a term are looked at: beside ``y`` there may be ``1 - y``."""

_DOUBLE_BITS = 53
"""Precision of the floats that people write."""


class Graph:
    """The nodes of an expression, each once, operands before what reads them.

    Equal nodes are one, whether or not they are the same object: nodes are told apart by the places
    of their operands, never by comparing trees.
    """

    def __init__(self, expression: Basic) -> None:
        self.nodes: list[Basic] = []
        self.operands: list[tuple[int, ...]] = []
        self._places: dict[int, int] = {}
        self._known: dict[tuple[object, ...], int] = {}
        pending = [expression]
        while pending:
            node = pending[-1]
            missing = [a for a in node.args if id(a) not in self._places]
            if missing:
                pending += missing
                continue
            pending.pop()
            self.add(node)

    def add(self, node: Basic) -> None:
        """Add an expression whose operands are here."""
        operands = tuple(self._places[id(argument)] for argument in node.args)
        key: tuple[object, ...] = (type(node), operands or node)
        if key not in self._known:
            self._known[key] = len(self.nodes)
            self.nodes.append(node)
            self.operands.append(operands)
        self._places[id(node)] = self._known[key]

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[tuple[Basic, tuple[int, ...]]]:
        return zip(self.nodes, self.operands, strict=True)

    def rebuilt(self, rule: Callable[[Basic, Sequence[Basic]], Basic]) -> Basic:
        """Make every node anew of what its operands became."""
        values: list[Basic] = []
        for node, operands in self:
            values.append(rule(node, [values[place] for place in operands]))
        return values[-1]


def values_in(expression: Basic) -> set[Value]:
    """The values that an expression reads."""
    return {node for node in Graph(expression).nodes if isinstance(node, Value)}


def symbols_in(expression: Basic) -> set[Basic]:
    """Values and dimensions that an expression reads."""
    return {node for node in Graph(expression).nodes if node.is_Symbol}


def replaced(expression: Expr, swap: Mapping[Basic, Basic]) -> Expr:
    """Put other nodes in the place of some; what they are made of is not looked into."""

    def rule(node: Basic, operands: Sequence[Basic]) -> Basic:
        if node in swap:
            return swap[node]
        same = all(a is b for a, b in zip(operands, node.args, strict=True))
        return node if same else node.func(*operands)

    return Graph(expression).rebuilt(rule)


class Sharing:
    """Names what equations read more than once.

    A node gets a name where it is read twice and has more than ``LARGE`` nodes written out; what is
    left of an equation is then at most so many times its graph. A sum that holds all terms of
    another is written as that one and the rest: SymPy joins ``(a + b) + c`` to one sum, in which
    what was shared can no longer be seen. Products likewise.
    """

    def __init__(self) -> None:
        self._named: dict[Basic, Value] = {}

    def rest(self, expression: Expr, name: Callable[[Expr], Value]) -> Expr:
        """Return what is left of an expression.

        ``name`` states a part of it, those that it reads first, and returns its value.
        """
        graph = Graph(expression)
        reads = [_reads(node, own) for node, own in graph]
        joined = _join_sums(graph, reads)
        times = Counter[int]()
        for read in reads:
            times.update(read)
        written_parts: list[_Written] = []
        for place, (node, own) in enumerate(graph):
            written = _written(node, reads[place], own, written_parts, joined.get(place))
            short = written.node
            if written.size > LARGE and written.reads_values and isinstance(short, Expr):
                is_shared = times[place] > 1 and place < len(graph) - 1
                if short not in self._named and is_shared:
                    self._named[short] = name(short)
                if short in self._named:
                    written = _Written(self._named[short], 1, True, True)
            written_parts.append(written)
        rest: Expr = written_parts[-1].node
        return rest


class _Written(NamedTuple):
    """A node with named values in the place of what has a name."""

    node: Any
    size: int
    reads_values: bool
    is_changed: bool


def _written(
    node: Basic,
    reads: Mapping[int, int],
    own: Sequence[int],
    written_parts: Sequence[_Written],
    joined: _Joined | None,
) -> _Written:
    size = sum(times * written_parts[place].size for place, times in reads.items())
    size += isinstance(node, Expr)
    reads_values = isinstance(node, Value) or any(
        written_parts[place].reads_values for place in reads
    )
    if all(
        written_parts[place].node is argument
        for place, argument in zip(own, node.args, strict=True)
    ):
        return _Written(node, size, reads_values, False)
    places, first = list(own), []
    if joined is not None and (joined.times == 1 or written_parts[joined.place].is_changed):
        places = [place for place in reads if place != joined.place]
        first = [joined.times * written_parts[joined.place].node]
    return _Written(
        node.func(*first, *(written_parts[place].node for place in places)),
        size,
        reads_values,
        True,
    )


def _reads(node: Basic, own: Sequence[int]) -> Counter[int]:
    """How often a node reads each operand: small powers are products.

    Names and attributes of operators are not read.
    """
    reads = Counter(own[1:2] if isinstance(node, Apply) else own)
    if isinstance(node, Pow) and node.exp.is_Integer:
        reads[own[0]] += _factors(abs(int(node.exp))) - 1
    return reads


def _factors(exponent: int) -> int:
    return exponent if exponent <= WRITTEN_AS_PRODUCT else 1


class _Joined(NamedTuple):
    """An earlier sum or product that a later one holds, and the number it is multiplied by."""

    place: int
    times: Expr


def _join_sums(graph: Graph, reads: list[Counter[int]]) -> dict[int, _Joined]:
    """Let sums and products read the largest earlier one of whose terms they hold all."""
    latest: defaultdict[tuple[object, ...], deque[int]] = defaultdict(lambda: deque(maxlen=_LATEST))
    terms: dict[int, dict[tuple[object, ...], Expr]] = {}
    joined: dict[int, _Joined] = {}
    for place, (node, own) in enumerate(graph):
        if not isinstance(node, Add | Mul):
            continue
        read = list(_terms(graph, node, own))
        terms[place] = {key: number for _, key, number in read}
        others = {other for _, key, _ in read for other in latest[key]}
        for other in sorted(others, key=lambda other: (len(terms[other]), other)):
            ratio = _ratio(terms[place], terms[other])
            if ratio is not None:
                joined[place] = _Joined(other, ratio)
        if place in joined:
            held = terms[joined[place].place]
            rest = [term for term, key, _ in read if key not in held]
            reads[place] = Counter([joined[place].place, *rest])
        for key in terms[place]:
            latest[key].append(place)
    return joined


def _terms(
    graph: Graph, node: Basic, own: Sequence[int]
) -> Iterator[tuple[int, tuple[object, ...], Expr]]:
    """The terms of a sum: where they are, what they are without their numbers, and these.

    Factors of a product have the number of the whole.
    """
    if isinstance(node, Mul):
        numbers = [graph.nodes[place] for place in own if isinstance(graph.nodes[place], Number)]
        for place in own:
            if not isinstance(graph.nodes[place], Number):
                yield place, (Mul, place), Mul(*numbers)
        return
    for place in own:
        factors = graph.operands[place]
        if not isinstance(graph.nodes[place], Mul):
            yield place, (Add, place), Integer(1)
        elif isinstance(graph.nodes[factors[0]], Number):
            yield place, (Add, *factors[1:]), graph.nodes[factors[0]]
        else:
            yield place, (Add, *factors), Integer(1)


def _ratio(
    whole: Mapping[tuple[object, ...], Expr], part: Mapping[tuple[object, ...], Expr]
) -> Expr | None:
    """By which number all terms of a part are multiplied in a whole, if by the same.

    SymPy has multiplied floats out, which rounds each product once.
    """
    if len(part) < 2 or not whole.keys() >= part.keys():
        return None
    pairs = [(whole[key], number) for key, number in part.items()]
    ratio: Expr = pairs[0][0] / pairs[0][1]
    if float(ratio) == 1:
        ratio = Integer(1)
    elif ratio.is_Float:
        ratio = Float(ratio, precision=_DOUBLE_BITS)
    for product, number in pairs:
        error = abs(ratio * number - product)
        if error > (abs(product) * Float(2) ** (2 - _DOUBLE_BITS) if ratio.is_Float else 0):
            return None
    return ratio
