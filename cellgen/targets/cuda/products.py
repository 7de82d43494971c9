"""Stack the matrix products of a group, and spell them as calls of ``cg_gemm_*``.

Input: a ``Group`` or ``Product`` stages, and where operands and results lie. Output: lines of host
code, and the packing of weights that they need. Neighbouring columns of one memory are one product:
gates that lie side by side, and operands that lie side by side with their weights stacked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from sympy import Add, Expr, Integer

from cellgen.language.ops import Form
from cellgen.schedule import Product
from cellgen.schedule.groups import Group, Term, Weight
from cellgen.schedule.schedule import View
from cellgen.targets.c_expressions import c_axis, c_factor
from cellgen.targets.cuda.places import AddMemory, DevicePlace, Over, Places, address, factor


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

    def heads(self, group: Group) -> Expr | None:
        """How many heads have weights of their own, or None."""
        return group.heads if self.by_head else None


@dataclass(frozen=True)
class Panel:
    """The weights of a run, as C texts; ``transposed`` where they lie (units, K).

    ``uses`` are the workspace arrays that the pointer names.
    """

    pointer: str
    stride: str
    transposed: bool
    uses: frozenset[str]


@dataclass
class WeightPanels:
    """Weights that have to lie side by side, and the lines that put them there."""

    add_memory: AddMemory
    lines: list[str] = field(default_factory=list)
    _known: dict[tuple[object, ...], Panel] = field(default_factory=dict)

    def panel(self, name: str, run: StackedProduct, places: Places) -> Panel:
        """Find the weights of a run, or pack them.

        Those of heads are [slot][head][K][units], or [slot][head][units][K].
        """
        if run.by_head:
            return self._heads_panel(name, run, places)
        if len(run.terms) == 1 and _lie_side_by_side(run.weights[0]):
            first = run.weights[0][0]
            place = places(first.view.buffer)
            return Panel(address(first.view, place), place.stride, first.transposed, place.uses)
        key = (run.terms, run.weights)
        if key not in self._known:
            self._known[key] = self._pack(name, run, places)
        return self._known[key]

    def _heads_panel(self, name: str, run: StackedProduct, places: Places) -> Panel:
        first = run.weights[0][0]
        stride = c_axis(first.head[1])
        if len(run.slots) == 1:
            place = places(first.view.buffer)
            return Panel(address(first.view, place), stride, first.transposed, place.uses)
        key = (run.terms, run.weights)
        if key not in self._known:
            heads, width = first.view.shape
            rows, count = c_axis(heads), f"{c_factor(heads)} * {c_factor(width)}"
            panel = self.add_memory(name, "store", f"{len(run.slots)} * {count}")
            for slot, weight in enumerate(run.weights[0]):
                at = f"{panel} + {slot} * {count}" if slot else panel
                place = places(weight.view.buffer)
                self.lines.append(
                    f"cg_copy(&run, {rows}, {c_axis(width)}, cg_rows({at}, {c_axis(width)}), "
                    f"cg_in({address(weight.view, place)}, {place.stride}));"
                )
            self._known[key] = Panel(panel, stride, first.transposed, frozenset({panel}))
        return self._known[key]

    def _pack(self, name: str, run: StackedProduct, places: Places) -> Panel:
        total = Add(*(_units(weight) for weight in run.weights[0]))
        inner, width = Add(*(term.inner for term in run.terms)), c_axis(total)
        panel = self.add_memory(name, "store", f"{c_factor(inner)} * {factor(width)}")
        above = Integer(0)
        for term, weights in zip(run.terms, run.weights, strict=True):
            beside = Integer(0)
            for weight in weights:
                place = places(weight.view.buffer)
                rows, units = c_axis(term.inner), c_axis(_units(weight))
                at = panel
                if above != 0:
                    at += f" + {c_factor(above)} * {factor(width)}"
                if beside != 0:
                    at += f" + {c_axis(beside)}"
                routine = "cg_transpose" if weight.transposed else "cg_copy"
                self.lines.append(
                    f"{routine}(&run, {rows}, {units}, cg_rows({at}, {width}), "
                    f"cg_in({address(weight.view, place)}, {place.stride}));"
                )
                beside = beside + _units(weight)
            above = above + term.inner
        return Panel(panel, width, False, frozenset({panel}))


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


def gemm(
    routine: str,
    sizes: tuple[str, str, str],
    a: tuple[str, str],
    b: tuple[str, str],
    c: tuple[str, str],
    onto: bool,
) -> str:
    """Spell one call: rows, columns and inner length; pointer and stride of each matrix."""
    operands = ", ".join([*sizes, *a, *b, *c, str(int(onto))])
    return f"cg_gemm_{routine}(&run, {operands});"


def gemm_heads(
    routine: str,
    slots: int,
    heads: Expr,
    sizes: tuple[str, str, str],
    a: tuple[str, str],
    b: tuple[str, str],
    c: tuple[str, str],
    onto: bool,
) -> str:
    """Spell the products of so many heads, of so many slots side by side; sizes are of one head."""
    operands = ", ".join([str(slots), c_axis(heads), *sizes, *a, *b, *c, str(int(onto))])
    return f"cg_gemm_heads_{routine}(&run, {operands});"


def whole_product(stage: Product, places: Places) -> list[str]:
    """Spell one product of a single step."""
    if stage.heads is not None:
        return [_product_of_heads(stage, stage.heads, places)]
    rows, columns = stage.target.shape
    inner = stage.a.shape[0] if stage.is_outer else stage.a.shape[1]
    routine = stage.form.value
    sizes = (c_axis(rows), c_axis(columns), c_axis(inner))
    matrices = [
        (address(view, places(view.buffer)), places(view.buffer).stride)
        for view in (stage.a, stage.b, stage.target)
    ]
    return [gemm(routine, sizes, matrices[0], matrices[1], matrices[2], stage.accumulate)]


def _product_of_heads(stage: Product, heads: Expr, places: Places) -> str:
    """Spell the products of all heads in a single step."""
    first, second = stage.weights
    batch = stage.a.shape[0]
    sizes = {
        Form.NN: (batch, second, first),
        Form.NT: (batch, first, second),
        Form.TN: (first, second, batch),
    }[stage.form]
    a, b, c = (
        (address(view, places(view.buffer)), places(view.buffer).stride)
        for view in (stage.a, stage.b, stage.target)
    )
    tight = c_axis(second)
    b, c = (b, (c[0], tight)) if stage.is_outer else ((b[0], tight), c)
    rows, columns, inner = (c_axis(size) for size in sizes)
    routine, onto = stage.form.value, stage.accumulate
    return gemm_heads(routine, 1, heads, (rows, columns, inner), a, b, c, onto)


def summed_over_steps(
    sizes: tuple[str, str],
    a: tuple[View, DevicePlace],
    b: tuple[View, DevicePlace],
    c: tuple[str, str],
    heads: Expr | None = None,
) -> list[str]:
    """Spell ``c = sum over steps of a.T @ b``, one product over all rows where they lie so.

    With heads, sizes are of one head.
    """

    def summed(rows: str, left: tuple[str, str], right: tuple[str, str], onto: bool) -> str:
        """Spell the sum over some rows."""
        if heads is None:
            return gemm("tn", (*sizes, rows), left, right, c, onto)
        tight = (c[0], sizes[1])
        return gemm_heads("tn", 1, heads, (*sizes, rows), left, right, tight, onto)

    (a_view, a_place), (b_view, b_place) = a, b
    a_at, b_at = address(a_view, a_place), address(b_view, b_place)
    right = (b_at, b_place.stride)
    if a_place.over is Over.PREVIOUS and b_place.over is Over.ROWS:
        initial = address(a_view, DevicePlace(a_place.initial, a_place.stride, a_place.element))
        later = f"{b_at} + nB * {factor(b_place.stride)}"
        return [
            summed("(nT > 0 ? nB : 0)", (initial, a_place.stride), right, False),
            "if (nT > 1)",
            "    " + summed("(nT - 1) * nB", (a_at, a_place.stride), (later, b_place.stride), True),
        ]
    if a_place.over is b_place.over is Over.ROWS:
        return [summed("nT * nB", (a_at, a_place.stride), right, False)]
    rows = sizes[0] if heads is None else f"{c_factor(heads)} * {factor(sizes[0])}"
    stride = c[1] if heads is None else sizes[1]
    lines = [f"cg_clear(&run, {rows}, {sizes[1]}, cg_rows({c[0]}, {stride}));"]
    at_step = [_at_step(view, place) for view, place in (a, b)]
    lines.append("for (int64_t step = 0; step < nT; ++step)")
    lines.append("    " + summed("nB", at_step[0], at_step[1], True))
    return lines


def _at_step(view: View, place: DevicePlace) -> tuple[str, str]:
    """A matrix of one step, inside a loop over steps."""
    at = address(view, place)
    stride = factor(place.stride)
    if place.over is Over.BATCH:
        return at, place.stride
    if place.over is Over.PREVIOUS:
        initial = address(view, DevicePlace(place.initial, place.stride, place.element))
        return f"(step ? {at} + (step - 1) * nB * {stride} : {initial})", place.stride
    return f"{at} + step * nB * {stride}", place.stride
