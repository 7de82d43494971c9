"""Lay out a directed acyclic graph in columns, left to right (Sugiyama, Tagawa & Toda 1981).

Input: boxes with sizes, edges. Output: centres and routes. Longest-path layers, orders by
barycentres, positions by least squares under the order; nothing is random.
Not supported: cycles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

Point = tuple[float, float]
Edge = tuple[str, str]

COLUMN_GAP = 40.0
ROW_GAP = 16.0
LANE = 10.0
"""Height that an edge takes in a column it passes through."""
SWEEPS = 24
RELAXATIONS = 30


@dataclass(frozen=True)
class Box:
    """Something to place: its key, its size, and where edges meet it.

    They do so ``reach`` left and right of its centre, ``rise`` above it. ``last`` puts it into the
    last column.
    """

    key: str
    width: float
    height: float
    reach: float
    rise: float = 0.0
    last: bool = False


@dataclass(frozen=True)
class Arrangement:
    """Where everything is: centres of boxes, points that each edge passes, the whole size."""

    centres: Mapping[str, Point]
    routes: Mapping[Edge, tuple[Point, ...]]
    width: float
    height: float


def arrange(boxes: Sequence[Box], edges: Sequence[Edge]) -> Arrangement:
    """Place boxes so that every edge runs from left to right, with few crossings."""
    layer = _layers(boxes, edges)
    chains = {edge: _chain(edge, layer) for edge in edges}
    sizes = {box.key: (box.width, box.height) for box in boxes}
    for chain in chains.values():
        sizes.update(dict.fromkeys(chain[1:-1], (0.0, LANE)))
        layer.update({lane: layer[chain[0]] + i for i, lane in enumerate(chain[:-1]) if i})
    links = [link for chain in chains.values() for link in pairwise(chain)]
    columns = _ordered(_columns(sizes, layer), links)
    ys = _heights(columns, links, sizes)
    widths = [max(sizes[key][0] for key in column) for column in columns]
    xs = _abscissae(widths)
    top = min(ys[key] - sizes[key][1] / 2 for key in sizes)
    bottom = max(ys[key] + sizes[key][1] / 2 for key in sizes)
    centres = {box.key: (xs[layer[box.key]], ys[box.key] - top) for box in boxes}
    by_key = {box.key: box for box in boxes}
    routes = {}
    for edge, chain in chains.items():
        start, end = (
            _port(by_key[key], centres, side) for key, side in zip(edge, (1, -1), strict=True)
        )
        heights = [start[1], *(ys[lane] - top for lane in chain[1:-1]), end[1]]
        points = [start]
        for place, (lane, y) in enumerate(zip(chain, heights, strict=True)):
            middle, half = xs[layer[lane]], widths[layer[lane]] / 2
            points += [(middle - half, y)] if place else []
            points += [(middle + half, y)] if place < len(chain) - 1 else []
        routes[edge] = tuple(dict.fromkeys((*points, end)))
    return Arrangement(centres, routes, xs[-1] + widths[-1] / 2, bottom - top)


def _port(box: Box, centres: Mapping[str, Point], side: int) -> Point:
    x, y = centres[box.key]
    return x + side * box.reach, y - box.rise


def _layers(boxes: Sequence[Box], edges: Sequence[Edge]) -> dict[str, int]:
    """Longest path from the sources; sources move next to what reads them first."""
    layer = {box.key: 0 for box in boxes}
    for _ in boxes:
        for source, target in edges:
            layer[target] = max(layer[target], layer[source] + 1)
    final = max(layer.values()) + (0 if all(box.last for box in _deepest(boxes, layer)) else 1)
    layer.update({box.key: final for box in boxes if box.last})
    entered = {target for _, target in edges}
    for box in boxes:
        readers = [layer[target] for source, target in edges if source == box.key]
        if box.key not in entered and readers:
            layer[box.key] = min(readers) - 1
    return layer


def _deepest(boxes: Sequence[Box], layer: Mapping[str, int]) -> list[Box]:
    deepest = max(layer.values())
    return [box for box in boxes if layer[box.key] == deepest]


def _chain(edge: Edge, layer: Mapping[str, int]) -> tuple[str, ...]:
    """The edge's source, one lane for each column that it passes, its target."""
    source, target = edge
    between = range(layer[source] + 1, layer[target])
    return (source, *(f"{source} -> {target} @ {column}" for column in between), target)


def _columns(sizes: Mapping[str, Point], layer: Mapping[str, int]) -> list[list[str]]:
    columns: list[list[str]] = [[] for _ in range(max(layer.values()) + 1)]
    for key in sizes:
        columns[layer[key]].append(key)
    return columns


# --- order ---------------------------------------------------------------------------------------


def _ordered(columns: list[list[str]], links: Sequence[Edge]) -> list[list[str]]:
    """Sweep to and fro, sorting each column by the mean place of its neighbours; keep the best."""
    best, fewest = columns, _crossings(columns, links)
    left, right = _neighbours(links)
    for sweep in range(SWEEPS):
        forth = sweep % 2 == 0
        current = [list(column) for column in columns]
        order = range(1, len(current)) if forth else range(len(current) - 2, -1, -1)
        for index in order:
            beside = current[index - 1] if forth else current[index + 1]
            places = {key: place for place, key in enumerate(beside)}
            around = left if forth else right
            current[index] = _sorted_by_mean(current[index], places, around)
        columns = current
        crossings = _crossings(columns, links)
        if crossings < fewest:
            best, fewest = columns, crossings
    return best


def _neighbours(links: Sequence[Edge]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    left: dict[str, list[str]] = {}
    right: dict[str, list[str]] = {}
    for source, target in links:
        left.setdefault(target, []).append(source)
        right.setdefault(source, []).append(target)
    return left, right


def _sorted_by_mean(
    column: Sequence[str], places: Mapping[str, int], around: Mapping[str, Sequence[str]]
) -> list[str]:
    def mean(item: tuple[int, str]) -> tuple[float, int]:
        own, key = item
        positions = [places[other] for other in around.get(key, ())]
        return (fmean(positions) if positions else own, own)

    return [key for _, key in sorted(enumerate(column), key=mean)]


def _crossings(columns: Sequence[Sequence[str]], links: Sequence[Edge]) -> int:
    place = {key: (c, p) for c, column in enumerate(columns) for p, key in enumerate(column)}
    by_column: dict[int, list[Point]] = {}
    for source, target in links:
        by_column.setdefault(place[source][0], []).append((place[source][1], place[target][1]))
    return sum(
        (a[0] - b[0]) * (a[1] - b[1]) < 0
        for pairs in by_column.values()
        for i, a in enumerate(pairs)
        for b in pairs[:i]
    )


# --- places --------------------------------------------------------------------------------------


def _heights(
    columns: Sequence[Sequence[str]], links: Sequence[Edge], sizes: Mapping[str, Point]
) -> dict[str, float]:
    """Pull every box towards its neighbours' mean height, keeping order and distance."""
    left, right = _neighbours(links)
    ys = dict.fromkeys(sizes, 0.0)
    for column in columns:
        ys.update(_separated(column, dict.fromkeys(column, 0.0), sizes))
    for step in range(RELAXATIONS):
        sides = (left, right) if step % 2 == 0 else (right, left)
        order = columns if step % 2 == 0 else columns[::-1]
        for column in order:
            wanted = {}
            for key in column:
                near = [ys[o] for o in sides[0].get(key, ())]
                far = [ys[o] for o in sides[1].get(key, ())] if step > RELAXATIONS // 2 else []
                wanted[key] = fmean(near + far) if near + far else ys[key]
            ys.update(_separated(column, wanted, sizes))
    return ys


def _separated(
    column: Sequence[str], wanted: Mapping[str, float], sizes: Mapping[str, Point]
) -> dict[str, float]:
    """Places nearest to the wanted ones, in least squares, at which nothing overlaps.

    Minus the room that the boxes before it need, a place may not decrease: isotonic regression by
    pooling adjacent violators.
    """
    offsets, offset = [], 0.0
    for index, key in enumerate(column):
        if index:
            before = sizes[column[index - 1]][1]
            offset += (before + sizes[key][1]) / 2 + ROW_GAP
        offsets.append(offset)
    pools: list[list[float]] = []
    for key, shift in zip(column, offsets, strict=True):
        pools.append([wanted[key] - shift])
        while len(pools) > 1 and fmean(pools[-2]) > fmean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    levels = [fmean(pool) for pool in pools for _ in pool]
    return {key: lv + sh for key, lv, sh in zip(column, levels, offsets, strict=True)}


def _abscissae(widths: Sequence[float]) -> list[float]:
    """Centre of each column."""
    centres, edge = [], 0.0
    for width in widths:
        centres.append(edge + width / 2)
        edge += width + COLUMN_GAP
    return centres
