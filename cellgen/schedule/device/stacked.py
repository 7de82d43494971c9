"""Stack the matrix products of a group, and the weights that they need side by side.

Input: a ``Group`` or ``Product`` stages, and where operands and results lie. Output: runs,
products, panels of weights. Neighbouring columns of one memory are one product: gates that lie side
by side, and operands that lie side by side with their weights stacked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeAlias

from sympy import Add, Expr, Integer

from cellgen.schedule.device.places import (
    AddMemory,
    DevicePlace,
    Element,
    Extent,
    Matrix,
    Places,
)
from cellgen.schedule.device.stages import DeviceProduct, Panel, PanelCopy
from cellgen.schedule.groups import Group, Term, Weight
from cellgen.schedule.schedule import Product, View

Reached: TypeAlias = tuple[tuple[Term, tuple[Weight, ...]], ...]


@dataclass(frozen=True)
class Column:
    """Columns of one memory: where they start there, and how wide they are."""

    memory: str
    start: Expr
    width: Expr


@dataclass(frozen=True)
class StackedProduct:
    """One product: an operand, or neighbours of one memory; weights for neighbouring slots."""

    terms: tuple[Term, ...]
    weights: tuple[tuple[Weight, ...], ...]
    onto: bool

    @property
    def slots(self) -> tuple[int, ...]:
        """The slots that it forms, in order."""
        return tuple(weight.slot for weight in self.weights[0])

    @property
    def by_head(self) -> bool:
        """Whether each head has weights of its own."""
        return self.terms[0].by_head

    @property
    def reached(self) -> Reached:
        """Its terms, each with the weights of the slots."""
        return tuple(zip(self.terms, self.weights, strict=True))


def planned_product(
    group: Group,
    run: StackedProduct,
    panel: Panel,
    operand: DevicePlace,
    sums: DevicePlace,
    *,
    all_steps: bool = True,
    name: str = "",
) -> DeviceProduct:
    """Plan a run of a group, from where its operand lies to where its sums do.

    It is of ``all_steps`` or of one; ``name`` is the group's.
    """
    view, targets = run.terms[0].operand, tuple(group.slots[slot].view for slot in run.slots)
    return DeviceProduct(
        terms=run.reached,
        width=group.units,
        heads=group.heads if run.by_head else None,
        operand=Matrix(view, operand),
        panel=panel,
        sums=Matrix(targets[0], sums),
        targets=targets,
        onto=run.onto,
        all_steps=all_steps,
        group=name,
    )


@dataclass
class WeightPanels:
    """Weights that have to lie side by side, and the copies that put them there."""

    add_memory: AddMemory
    known: dict[Reached, Panel]
    packed: list[PanelCopy] = field(default_factory=list)

    @staticmethod
    def of(add_memory: AddMemory, products: Iterable[DeviceProduct]) -> WeightPanels:
        """Go on from the panels of some products."""
        return WeightPanels(add_memory, {product.terms: product.panel for product in products})

    def panel(self, name: str, run: StackedProduct, places: Places) -> Panel:
        """Find the weights of a run, or pack them.

        Those of heads are [slot][head][K][units], or [slot][head][units][K].
        """
        first = run.weights[0][0]
        by_head, alone = run.by_head, len(run.terms) == 1 and _lie_side_by_side(run.weights[0])
        if (by_head and len(run.slots) == 1) or (not by_head and alone):
            place = places(first.view.buffer)
            stride = first.head[1] if by_head else first.view.row_stride
            return Panel(Matrix(first.view, place), stride, first.transposed)
        if run.reached not in self.known:
            pack = self._pack_heads if by_head else self._pack
            self.known[run.reached] = pack(name, run, places)
        return self.known[run.reached]

    def _pack_heads(self, name: str, run: StackedProduct, places: Places) -> Panel:
        first = run.weights[0][0]
        heads, width = first.view.shape
        extent = Extent((Integer(len(run.slots)), heads, width))
        panel = self.add_memory(name, Element.STORE, extent)
        for slot, weight in enumerate(run.weights[0]):
            source = Matrix(weight.view, places(weight.view.buffer))
            self.packed.append(
                PanelCopy(panel, source, heads, width, width, slot=slot, by_head=True)
            )
        return Panel(panel, first.head[1], first.transposed)

    def _pack(self, name: str, run: StackedProduct, places: Places) -> Panel:
        total = Add(*(_units(weight) for weight in run.weights[0]))
        inner = Add(*(term.inner for term in run.terms))
        panel = self.add_memory(name, Element.STORE, Extent((inner, total)))
        above: Expr = Integer(0)
        for term, weights in zip(run.terms, run.weights, strict=True):
            beside: Expr = Integer(0)
            for weight in weights:
                source, units = Matrix(weight.view, places(weight.view.buffer)), _units(weight)
                self.packed.append(
                    PanelCopy(
                        panel, source, term.inner, units, total, above, beside, weight.transposed
                    )
                )
                beside = beside + units
            above = above + term.inner
        return Panel(panel, total, transposed=False)


def _units(weight: Weight) -> Expr:
    return weight.view.shape[0 if weight.transposed else 1]


def _lie_side_by_side(weights: Sequence[Weight]) -> bool:
    """Whether slots' weights are neighbours in one array already."""
    for before, after in pairwise(weights):
        axis = 0 if before.transposed else 1
        end = before.view.start[axis] + before.view.shape[axis]
        same = before.view.buffer == after.view.buffer and before.transposed == after.transposed
        other = 1 - axis
        level = before.view.start[other] == after.view.start[other]
        if not same or not level or after.view.start[axis] != end:
            return False
    return True


class Neighbours:
    """Which operands lie side by side, in the order of a joint memory."""

    def __init__(self, order: Sequence[View] = ()) -> None:
        self.order = list(order)

    def follow(self, before: View, after: View) -> bool:
        """Whether one operand lies right behind another."""
        if before not in self.order or after not in self.order:
            return False
        return self.order.index(after) == self.order.index(before) + 1

    def position(self, view: View) -> int:
        """Where an operand stands in the order, or -1."""
        return self.order.index(view) if view in self.order else -1


def ordered_slots(group: Group, first: int) -> Group:
    """Put the slots that only the first terms reach first, those that only others reach last.

    So what either kind of term reaches are neighbours.
    """
    early = {weight.slot for term in group.terms[:first] for weight in term.weights}
    late = {weight.slot for term in group.terms[first:] for weight in term.weights}
    order = sorted(range(len(group.slots)), key=lambda slot: (slot in late) - (slot in early))
    number = {slot: place for place, slot in enumerate(order)}
    terms = tuple(
        replace(term, weights=tuple(replace(w, slot=number[w.slot]) for w in term.weights))
        for term in group.terms
    )
    return replace(group, slots=tuple(group.slots[slot] for slot in order), terms=terms)


def stack(
    group: Group,
    columns: Sequence[Column],
    neighbours: Neighbours,
    begun: Iterable[int] = (),
) -> list[StackedProduct]:
    """Make the runs of a group: as few products as the places of slots and operands allow.

    ``begun`` are slots that hold something already, to which products add.
    """
    runs: list[StackedProduct] = []
    formed = set(begun)
    for terms in _merged(group.terms, neighbours):
        ordered = [sorted(term.weights, key=lambda weight: weight.slot) for term in terms]
        start = 0
        for end in range(1, len(ordered[0]) + 1):
            if end < len(ordered[0]) and _continue(ordered[0], end, columns, formed):
                continue
            weights = tuple(tuple(row[start:end]) for row in ordered)
            runs.append(StackedProduct(tuple(terms), weights, ordered[0][start].slot in formed))
            start = end
        formed |= {weight.slot for weight in ordered[0]}
    return runs


def _continue(
    weights: Sequence[Weight], at: int, columns: Sequence[Column], formed: set[int]
) -> bool:
    before, after = weights[at - 1].slot, weights[at].slot
    left, right = columns[before], columns[after]
    beside = left.memory == right.memory and right.start == left.start + left.width
    alike = weights[at - 1].transposed == weights[at].transposed or not weights[at].head
    return after == before + 1 and beside and alike and (before in formed) == (after in formed)


def _merged(terms: Sequence[Term], neighbours: Neighbours) -> list[list[Term]]:
    """Put terms together whose operands lie side by side and that reach the same slots.

    Those of heads stay alone, since the columns of one head lie apart.
    """
    alone = [t for t in terms if t.by_head or neighbours.position(t.operand) < 0]
    joint = [term for term in terms if term not in alone]
    joint.sort(key=lambda term: neighbours.position(term.operand))
    merged: list[list[Term]] = [[term] for term in alone]
    for term in joint:
        last = merged[-1][-1] if merged else None
        if (
            last is not None
            and neighbours.follow(last.operand, term.operand)
            and _slots(last) == _slots(term)
        ):
            merged[-1].append(term)
        else:
            merged.append([term])
    return merged


def _slots(term: Term) -> list[int]:
    return sorted(weight.slot for weight in term.weights)


def outer_products(
    products: Sequence[Product], neighbours: Neighbours
) -> list[tuple[Product, ...]]:
    """Put weight gradients together whose left operand is the same.

    Their right ones lie side by side.
    """
    ordered = sorted(products, key=lambda p: (_first(products, p.a), neighbours.position(p.b), 0))
    runs: list[list[Product]] = []
    for product in ordered:
        last = runs[-1][-1] if runs else None
        flat = last is not None and last.heads is None and product.heads is None
        if last and flat and last.a == product.a and neighbours.follow(last.b, product.b):
            runs[-1].append(product)
        else:
            runs.append([product])
    return [tuple(run) for run in runs]


def _first(products: Sequence[Product], view: View) -> int:
    return next(index for index, product in enumerate(products) if product.a == view)
