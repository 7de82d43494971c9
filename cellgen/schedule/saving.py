"""Choose what the forward pass keeps for the backward pass: an exact minimum cut over the step.

A forward value that the adjoint reads is saved, or recomputed from values that are. Products and
sums are never recomputed, pointwise work may be. The cheapest set of values to save is a minimum
vertex cut between the values that cannot be recomputed and those that are read, weighted by bytes;
among cuts of equal weight the one nearest to the readers is taken, which recomputes least.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from sympy import Expr

from cellgen.program import Program
from cellgen.value import B, Role, Value

NOMINAL_UNITS = 256
"""Stands for every dimension when weights are compared; the choice must not depend on a shape."""

_ENDLESS = 10**15


def saved_values(
    forward: Program, read: Iterable[Value], in_memory: Iterable[Value]
) -> tuple[Value, ...]:
    """Return the forward values to save, in program order.

    ``read`` are the forward values that the adjoint uses, ``in_memory`` those that are kept anyway
    (inputs, outputs, states that are outputs). A state argument that is read and not in memory is
    among the candidates: saving it means saving the state over time.
    """
    free = set(in_memory)
    network = _Network()
    for value in forward.values:
        if value in free or not value.is_batched:
            continue
        network.connect((value, "in"), (value, "out"), _weight(forward, value))
        if _is_fixed(forward, value):
            network.connect("source", (value, "in"), _ENDLESS)
    for statement in forward.statements:
        target = statement.target
        if target in free or not target.is_batched or _is_fixed(forward, target):
            continue
        for operand in statement.operands:
            if operand not in free and operand.is_batched:
                network.connect((operand, "out"), (target, "in"), _ENDLESS)
    for value in read:
        if value not in free and value.is_batched:
            network.connect((value, "out"), "sink", _ENDLESS)
    cut = network.cut_nearest_sink()
    return tuple(v for v in forward.values if ((v, "in"), (v, "out")) in cut)


def _is_fixed(forward: Program, value: Value) -> bool:
    """Values that nothing can give back: states, products, sums."""
    definition = forward.definitions.get(value)
    if definition is None:
        return value.role is Role.STATE
    return not definition.is_pointwise and definition.op not in ("part", "concat", "spread")


def _weight(forward: Program, value: Value) -> int:
    definition = forward.definitions.get(value)
    if definition is not None and definition.op in ("part", "concat"):
        return _ENDLESS  # a view of something else: save that, or what is computed from it
    weight = 1
    for axis in value.shape:
        weight *= 1 if axis == B else _units(axis)
    return weight


def _units(axis: Expr) -> int:
    return int(axis.subs(dict.fromkeys(axis.free_symbols, NOMINAL_UNITS)))


class _Network:
    """A flow network small enough for shortest augmenting paths (Edmonds & Karp 1972)."""

    def __init__(self) -> None:
        self.capacity: dict[object, dict[object, int]] = {"source": {}, "sink": {}}

    def connect(self, start: object, end: object, capacity: int) -> None:
        edges = self.capacity.setdefault(start, {})
        edges[end] = max(edges.get(end, 0), capacity)
        self.capacity.setdefault(end, {}).setdefault(start, 0)

    def cut_nearest_sink(self) -> set[tuple[object, object]]:
        """Saturate the network; return the full edges into the part that reaches the sink."""
        residual = {node: dict(edges) for node, edges in self.capacity.items()}
        while True:
            parents = _search(residual, "source")
            if "sink" not in parents:
                break
            path: list[tuple[object, object]] = []
            node: object = "sink"
            while node != "source":
                path.append((parents[node], node))
                node = parents[node]
            flow = min(residual[start][end] for start, end in path)
            for start, end in path:
                residual[start][end] -= flow
                residual[end][start] += flow
        backwards: dict[object, dict[object, int]] = {node: {} for node in residual}
        for start, edges in residual.items():
            for end, left in edges.items():
                backwards[end][start] = left
        reaching = set(_search(backwards, "sink")) | {"sink"}
        return {
            (start, end)
            for start, edges in self.capacity.items()
            for end, capacity in edges.items()
            if capacity and start not in reaching and end in reaching
        }


def _search(residual: Mapping[object, Mapping[object, int]], root: object) -> dict[object, object]:
    """Breadth first along edges that have capacity left; returns each node's predecessor."""
    parents: dict[object, object] = {}
    queue = deque([root])
    while queue:
        node = queue.popleft()
        for end, left in residual[node].items():
            if left > 0 and end not in parents and end != root:
                parents[end] = node
                queue.append(end)
    return parents
