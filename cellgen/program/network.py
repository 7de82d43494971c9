"""A minimum cut in a small network, which decides what is stored and what is computed again."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

ENDLESS = 10**15
"""A capacity that no cut can afford."""


class Network:
    """A flow network small enough for shortest augmenting paths (Edmonds & Karp 1972)."""

    def __init__(self) -> None:
        self.capacity: dict[object, dict[object, int]] = {"source": {}, "sink": {}}

    def connect(self, start: object, end: object, capacity: int) -> None:
        """Add an edge, or capacity to one."""
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
