"""Check packed weights: each product finds every weight of it in the panel, where it reads it.

Input: ``DeviceTimePlan``. Copies fill rectangles of a panel, or slots of one of heads, and no two
share an entry. A product reads its terms' weights one above the other, its slots' side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from sympy import Expr, expand

from cellgen.schedule.device.accesses import at_least
from cellgen.schedule.device.places import ZERO
from cellgen.schedule.device.plan import DeviceTimePlan
from cellgen.schedule.device.stages import DeviceProduct, PanelCopy
from cellgen.schedule.schedule import View


@dataclass(frozen=True)
class Rectangle:
    """Rows and columns of a panel, or of a slot of it, and the weights that lie there."""

    above: Expr
    rows: Expr
    beside: Expr
    columns: Expr
    stride: Expr
    slot: int
    weights: View
    transposed: bool

    def meets(self, other: Rectangle) -> bool:
        """Whether two rectangles of a panel may share an entry."""
        if self.slot != other.slot:
            return False
        for one, two in ((self, other), (other, self)):
            below = at_least(one.above, two.above + two.rows)
            if below or at_least(one.beside, two.beside + two.columns):
                return False
        return True


def panel_faults(plan: DeviceTimePlan) -> Iterator[str]:
    """Say which weights are not where a product reads them, and which copies overlap."""
    panels: dict[str, list[Rectangle]] = {}
    for copy in plan.packed:
        panels.setdefault(copy.panel, []).append(_filled(copy))
    for name, filled in panels.items():
        for one, two in combinations(filled, 2):
            if one.meets(two):
                yield f"{one.weights} and {two.weights} share entries of {name}"
    for stage in (*plan.ahead, *plan.steps, *plan.deferred):
        if isinstance(stage, DeviceProduct) and isinstance(stage.panel.place, str):
            there = panels.get(stage.panel.place, [])
            for part in _read(stage):
                if part not in there:
                    yield (
                        f"`{str(stage)[:60]}` reads {part.weights} in {stage.panel.place}, "
                        f"which is not written before"
                    )


def _filled(copy: PanelCopy) -> Rectangle:
    return Rectangle(
        expand(copy.above),
        expand(copy.rows),
        expand(copy.beside),
        expand(copy.columns),
        expand(copy.stride),
        copy.slot,
        copy.source.view,
        copy.transposed,
    )


def _read(product: DeviceProduct) -> Iterator[Rectangle]:
    """Where a product reads its weights: of heads, each slot's as they lie."""
    above: Expr = ZERO
    for term, weights in product.terms:
        beside: Expr = ZERO
        for slot, weight in enumerate(weights):
            view = weight.view
            if product.heads is not None:
                rows, columns = (expand(length) for length in view.shape)
                yield Rectangle(ZERO, rows, ZERO, columns, columns, slot, view, transposed=False)
                continue
            columns = expand(view.shape[0 if weight.transposed else 1])
            rows, stride = expand(term.inner), expand(product.panel.stride)
            yield Rectangle(above, rows, beside, columns, stride, 0, view, weight.transposed)
            beside = expand(beside + columns)
        above = expand(above + term.inner)
