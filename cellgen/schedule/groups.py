"""Group the products of a step: one pass over packed weights, pointwise work in the epilogue.

Products that are added to each other form a chain; chains of one phase with equally many units form
a group. A group's tile holds, for a block of units, one slot per chain and gate, so that everything
a unit needs lies side by side when its pointwise equations run on the tile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeAlias

from sympy import Expr

from cellgen.language.value import Shape
from cellgen.schedule.schedule import (
    Buffer,
    BufferKind,
    Loop,
    PlannedFunction,
    Product,
    Routine,
    Stage,
    Store,
    View,
)


@dataclass(frozen=True)
class Slot:
    """One column of a tile per unit: where its values would lie in memory."""

    view: View
    needs_memory: bool

    def __str__(self) -> str:
        return f"{self.view}{' (stored)' if self.needs_memory else ''}"


@dataclass(frozen=True)
class Weight:
    """The weights of one operand in one slot: (K, units), or (units, K) where transposed.

    Of heads, ``head`` is the shape of one head's weights.
    """

    slot: int
    view: View
    transposed: bool
    head: Shape = ()


WIDEST = 8
"""Vectors side by side that a tile has at most (``CELLGEN_TILE_ROWS_MAX``)."""


@dataclass(frozen=True)
class Term:
    """One operand of a group and the slots that it contributes to, as runs of neighbours.

    ``inner`` is the contracted length: of one head, where each has weights of its own
    (``by_head``).
    """

    operand: View
    inner: Expr
    weights: tuple[Weight, ...]

    @property
    def by_head(self) -> bool:
        """Whether each head has weights of its own."""
        return bool(self.weights[0].head)

    @property
    def runs(self) -> tuple[tuple[Weight, ...], ...]:
        """Neighbouring slots, as many as a tile has at most, so that each run is one panel."""
        ordered = sorted(self.weights, key=lambda weight: weight.slot)
        keyed = groupby(enumerate(ordered), key=lambda pair: pair[1].slot - pair[0])
        wholes = [tuple(weight for _, weight in neighbours) for _, neighbours in keyed]
        return tuple(
            whole[at : at + WIDEST] for whole in wholes for at in range(0, len(whole), WIDEST)
        )


@dataclass(frozen=True)
class Group:
    """Chains of products computed tile by tile, and the loops that run on each tile.

    With ``heads``, the units are those of so many heads side by side, and no tile spans two.
    """

    units: Expr
    slots: tuple[Slot, ...]
    terms: tuple[Term, ...]
    loops: tuple[Loop, ...]
    heads: Expr | None = None

    def slot_of(self, view: View) -> int | None:
        """The slot that a loop's operand is, or None if it lies in memory."""
        for index, slot in enumerate(self.slots):
            if slot.view == view:
                return index
        return None

    def __str__(self) -> str:
        terms = ", ".join(f"{t.operand} -> {[w.slot for w in t.weights]}" for t in self.terms)
        head = f"    group of {len(self.slots)} slots x {self.units} units: {terms}"
        return "\n".join([head, *(str(loop) for loop in self.loops)])


GroupedStage: TypeAlias = Group | Loop | Product | Routine


@dataclass(frozen=True)
class _SumChain:
    target: View
    products: tuple[Product, ...]

    @property
    def heads(self) -> Expr | None:
        return next((p.heads for p in self.products if p.heads is not None), None)


def group_products(
    function: PlannedFunction, *, one_by_one: bool = False
) -> tuple[GroupedStage, ...]:
    """Replace the row-wise products of a planned step by groups with fused loops.

    ``one_by_one``: results that nothing reads have a group each, so that each can be left out.
    """
    alone = _unread_results(function) if one_by_one else frozenset()
    stages: list[GroupedStage] = []
    for is_chain, neighbours in groupby(
        _chained(function.stages), key=lambda s: isinstance(s, _SumChain)
    ):
        if is_chain:
            chains = [stage for stage in neighbours if isinstance(stage, _SumChain)]
            for level in _levels(chains):
                stages += _groups(level, function, alone)
        else:
            for stage in neighbours:
                assert not isinstance(stage, _SumChain)
                _append(stages, stage)
    return tuple(_with_memory(stages, function))


def _chained(stages: Sequence[Stage]) -> list[_SumChain | Stage]:
    """Gather products into one view at the place of the last of them."""
    by_target: dict[View, list[Product]] = {}
    for stage in stages:
        if isinstance(stage, Product) and not stage.is_outer:
            by_target.setdefault(stage.target, []).append(stage)
    result: list[_SumChain | Stage] = []
    for stage in stages:
        if isinstance(stage, Product) and not stage.is_outer:
            products = by_target[stage.target]
            if stage is products[-1]:
                result.append(_SumChain(stage.target, tuple(products)))
        else:
            result.append(stage)
    return result


def _levels(chains: Sequence[_SumChain]) -> list[list[_SumChain]]:
    """Split chains where one reads what another before it forms."""
    levels: list[list[_SumChain]] = []
    for chain in chains:
        read = {product.a.buffer for product in chain.products}
        formed = {other.target.buffer for other in levels[-1]} if levels else set()
        if not levels or read & formed:
            levels.append([])
        levels[-1].append(chain)
    return levels


def _unread_results(function: PlannedFunction) -> frozenset[Buffer]:
    """Results that no stage reads."""
    read = {view.buffer for stage in function.stages for view in views_read(stage)}
    results = {buffer for buffer in function.buffers if buffer.kind is BufferKind.RESULT}
    return frozenset(results - read)


def _groups(
    chains: Sequence[_SumChain], function: PlannedFunction, alone: Collection[Buffer]
) -> list[GroupedStage]:
    """Put chains with the same number of units and a common order of operands together."""
    groups: dict[tuple[Expr, Expr | None, int], list[_SumChain]] = {}
    for chain in chains:
        width = _slot_width(chain, function)
        turn = 0
        is_alone = chain.target.buffer in alone
        while members := groups.get((width, chain.heads, turn)):
            if not is_alone and not _is_of(members, alone) and _fits(members, chain):
                break
            turn += 1
        groups.setdefault((width, chain.heads, turn), []).append(chain)
    return [_group(width, heads, members) for (width, heads, _), members in groups.items()]


def _is_of(members: Sequence[_SumChain], buffers: Collection[Buffer]) -> bool:
    return any(member.target.buffer in buffers for member in members)


def _fits(members: Sequence[_SumChain], chain: _SumChain) -> bool:
    """Whether a chain meets the operands of the others in one order, each once and each alike.

    Alike: head by head, or whole.
    """
    by_head = {p.a: p.heads is not None for member in members for p in member.products}
    if any(by_head.get(p.a, p.heads is not None) != (p.heads is not None) for p in chain.products):
        return False
    order: list[View] = []
    for member in (*members, chain):
        own = [product.a for product in member.products]
        if len(set(own)) != len(own):
            return not members
        known = [view for view in own if view in order]
        if [view for view in order if view in own] != known:
            return False
        order += [view for view in own if view not in order]
    return True


def _slot_width(chain: _SumChain, function: PlannedFunction) -> Expr:
    """Units of a slot: the width in which loops read the chain, if they all read it in one."""
    total = chain.target.shape[-1]
    widths = {
        load.view.shape[-1]
        for stage in function.stages
        if isinstance(stage, Loop)
        for load in stage.loads
        if load.view.buffer == chain.target.buffer
    }
    if len(widths) != 1:
        return total
    width = widths.pop()
    count = total / width
    return width if count.is_Integer else total


def _group(width: Expr, heads: Expr | None, chains: Sequence[_SumChain]) -> Group:
    operands = list(dict.fromkeys(p.a for chain in chains for p in chain.products))
    pieces = []
    for chain in chains:
        used = tuple(sorted(operands.index(p.a) for p in chain.products))
        count = int(chain.target.shape[-1] / width)
        pieces += [(used, chain, index) for index in range(count)]
    # x only, x and h, h only: then the slots of each operand are neighbours.
    pieces.sort(key=lambda piece: piece[0])
    slots = [
        Slot(chain.target.part(len(chain.target.shape) - 1, index * width, width), False)
        for _, chain, index in pieces
    ]
    terms = []
    for operand in operands:
        weights = []
        for position, (_, chain, index) in enumerate(pieces):
            for product in chain.products:
                if product.a == operand:
                    weights.append(_weight(position, product, index * width, width))
        product = next(p for chain in chains for p in chain.products if p.a == operand)
        inner = product.a.shape[-1]
        if product.heads is not None:
            inner = product.weights[1 if product.is_transposed else 0]
        terms.append(Term(operand, inner, tuple(weights)))
    return Group(width, tuple(slots), tuple(terms), (), heads)


def _weight(slot: int, product: Product, start: Expr, width: Expr) -> Weight:
    transposed = product.is_transposed
    if product.heads is not None:
        return Weight(slot, product.b, transposed, product.weights)
    return Weight(slot, product.b.part(0 if transposed else 1, start, width), transposed)


def _append(stages: list[GroupedStage], stage: Stage) -> None:
    """Add a stage; a loop goes into the epilogue of the group that it completes, if it may."""
    if isinstance(stage, Loop):
        for position in range(len(stages) - 1, -1, -1):
            group = stages[position]
            if not isinstance(group, Group):
                if not isinstance(group, Product) and _depends(stage, group):
                    break
                continue
            if _completes(stage, group):
                stages[position] = replace(group, loops=(*group.loops, stage))
                return
            if _depends(stage, group):
                break
    stages.append(stage)


def _completes(loop: Loop, group: Group) -> bool:
    """Whether a loop is elementwise over the group's units and reads its tile."""
    if loop.is_nest or len(loop.space) != 2 or loop.space[-1] != group.units:
        return False
    if any(line.store not in (Store.LOCAL, Store.WRITE) for line in loop.lines):
        return False
    # What the group forms is there for the units of the tile; at another place it may not be yet.
    own = {line.view for inner in group.loops for line in inner.lines}
    own |= {slot.view for slot in group.slots}
    written = set(_written(group))
    if any(load.view.buffer in written and load.view not in own for load in loop.loads):
        return False
    return any(group.slot_of(load.view) is not None for load in loop.loads)


def _depends(loop: Loop, stage: GroupedStage) -> bool:
    written = set(_written(stage))
    return any(load.view.buffer in written for load in loop.loads)


def _written(stage: GroupedStage) -> Iterable[object]:
    if isinstance(stage, Product | Routine):
        return [stage.target.buffer]
    if isinstance(stage, Loop):
        return [line.view.buffer for line in stage.lines if line.view is not None]
    loops = [buffer for loop in stage.loops for buffer in _written(loop)]
    return [slot.view.buffer for slot in stage.slots] + loops


def _with_memory(
    stages: Sequence[GroupedStage], function: PlannedFunction
) -> Iterable[GroupedStage]:
    """Mark the slots whose values something outside the group's own loops reads."""
    for position, stage in enumerate(stages):
        if not isinstance(stage, Group):
            yield stage
            continue
        others = [s for index, s in enumerate(stages) if index != position]
        read = {view.buffer for other in others for view in views_read(other)}
        slots = tuple(
            Slot(
                slot.view,
                slot.view.buffer in read or slot.view.buffer.kind is BufferKind.RESULT,
            )
            for slot in stage.slots
        )
        yield replace(stage, slots=slots)


def loops_of(stages: Iterable[GroupedStage]) -> Iterator[Loop]:
    """The loops of some stages, those of groups too."""
    for stage in stages:
        loops = stage.loops if isinstance(stage, Group) else (stage,)
        yield from (loop for loop in loops if isinstance(loop, Loop))


def views_read(stage: GroupedStage) -> Iterable[View]:
    """What a stage reads, also from the tile of its group (``slot_of``)."""
    if isinstance(stage, Product):
        return [stage.a, stage.b]
    if isinstance(stage, Routine):
        return stage.operands
    if isinstance(stage, Loop):
        return [load.view for load in stage.loads]
    return [term.operand for term in stage.terms] + [
        view for loop in stage.loops for view in views_read(loop)
    ]
