"""Which memory the stages of a plan touch: ranges of columns, at which steps.

Input: stages with their places. Output: ``MemoryAccess``. What is a copy for masked steps counts
with what it is a copy of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Protocol, TypeAlias

from sympy import Expr, expand

from cellgen.language.value import Value
from cellgen.schedule.device.places import (
    ZERO,
    BeforeStep,
    DevicePlace,
    IfGiven,
    Matrix,
    Moment,
    RowsOfArray,
    Source,
    row_width,
)
from cellgen.schedule.device.stages import (
    Cleared,
    DeferredStage,
    DeviceLoop,
    DeviceProduct,
    DeviceRoutine,
    OnceStage,
    PanelCopy,
    StepsShare,
    StepStage,
    WeightGradients,
    WholeProduct,
)
from cellgen.schedule.device.tiers import TierLoop
from cellgen.schedule.schedule import Access, Buffer, BufferKind, Line, Load, View

AnyStage: TypeAlias = OnceStage | StepStage | DeferredStage | Cleared | PanelCopy | TierLoop


@dataclass(frozen=True)
class MemoryAccess:
    """Columns of an array that a stage reads or writes, of ``value``; all where there is no width.

    ``by_unit``: a thread touches those of its own row and unit alone. ``later``: not at the first
    step. ``product`` names the group of a product, ``group`` that of the products whose sums a
    loop reads: there alone a thread of either has the same units. ``adds``: of a sum that is added
    to; ``products``: so many of them are written, or added.
    """

    rows: RowsOfArray
    value: Value | str
    writes: bool
    start: Expr = ZERO
    width: Expr | None = None
    by_unit: bool = False
    later: bool = False
    product: str | None = None
    group: str = ""
    adds: bool = False
    products: int | None = None

    @cached_property
    def end(self) -> Expr | None:
        """The column behind the last one; None where there is no width."""
        return None if self.width is None else self.start + self.width

    def is_of_same_thread(self, other: MemoryAccess) -> bool:
        """Whether the thread of a row and unit touches the same columns in both."""
        if not self.by_unit or not other.by_unit:
            return False
        for one, two in ((self, other), (other, self)):
            if one.product is not None and two.product is None and one.product != two.group:
                return False
        if None not in (self.product, other.product) and self.product != other.product:
            return False
        return (self.start, self.width) == (other.start, other.width)


class Columns(Protocol):
    """A range of columns; all where there is no ``end``."""

    @property
    def start(self) -> Expr:
        """The first of them."""

    @property
    def end(self) -> Expr | None:
        """The one behind the last of them."""


def meet(one: Columns, two: Columns) -> bool:
    """Whether two ranges of columns of one array may share one."""
    if one.end is None or two.end is None:
        return True
    return not (at_least(one.start, two.end) or at_least(two.start, one.end))


@lru_cache(maxsize=1 << 16)
def at_least(length: Expr, other: Expr) -> bool:
    """Whether a length is never less than another, whatever the dimensions are."""
    gap = expand(length - other)
    return all(count >= 0 for count in gap.as_coefficients_dict().values())


def accesses(stage: AnyStage) -> Iterator[MemoryAccess]:
    """What a stage touches, reads first."""
    if isinstance(stage, DeviceProduct):
        return _of_product(stage, stage.operand)
    if isinstance(stage, DeviceLoop | TierLoop):
        return _of_kernels(stage)
    if isinstance(stage, DeviceRoutine):
        return _of_views(stage.places, stage.routine.operands, stage.routine.target)
    if isinstance(stage, WholeProduct):
        product = stage.product
        onto = [product.target] if product.accumulate else []
        return _of_views(stage.places, [product.a, product.b, *onto], product.target)
    if isinstance(stage, WeightGradients):
        return _of_gradients(stage)
    return _of_copy(stage)


def _of_kernels(stage: DeviceLoop | TierLoop) -> Iterator[MemoryAccess]:
    if isinstance(stage, TierLoop):
        yield from _of_loop(stage.stage, stage.places, stage.loads, stage.written)
        return
    for kernel in stage.kernels:
        lines = (*kernel.written, *kernel.summed)
        yield from _of_loop(stage, stage.places, kernel.loads(stage.loop), lines)


def _of_views(
    places: Mapping[Buffer, DevicePlace], read: Sequence[View], target: View
) -> Iterator[MemoryAccess]:
    for view in read:
        yield from of_view(view, places[view.buffer], writes=False)
    yield from of_view(target, places[target.buffer], writes=True)


def _of_copy(stage: Cleared | PanelCopy | StepsShare) -> Iterator[MemoryAccess]:
    if isinstance(stage, StepsShare):
        for rows, later in rows_of(stage.shares.source):
            yield MemoryAccess(rows, stage.buffer.value, writes=False, later=later)
        value = stage.buffer.value
        result = RowsOfArray(str(value.name), row_width(value), of_caller=True)
        yield MemoryAccess(result, value, writes=True)
        return
    if isinstance(stage, Cleared):
        rows, value = RowsOfArray(stage.array, stage.stride), stage.view.buffer.value
        yield MemoryAccess(rows, value, True, stage.column, stage.width, products=0)
        return
    yield from of_view(stage.source.view, stage.source.place, writes=False, whole=True)
    yield MemoryAccess(RowsOfArray(stage.panel, stage.stride), stage.panel, writes=True)


def accesses_in_tier(work: DeviceProduct | TierLoop) -> Iterator[MemoryAccess]:
    """What a stage of a kernel over all steps touches."""
    if isinstance(work, DeviceProduct):
        yield from _of_product(work, work.in_tier)
    else:
        yield from accesses(work)


def _of_product(stage: DeviceProduct, operand: Matrix) -> Iterator[MemoryAccess]:
    yield from _side_by_side([term.operand for term, _ in stage.terms], operand.place)
    if isinstance(stage.panel.place, str):
        rows = RowsOfArray(stage.panel.place, stage.panel.stride)
        yield MemoryAccess(rows, stage.panel.place, writes=False)
    else:
        at = stage.panel.place
        yield from of_view(at.view, at.place, writes=False, whole=True)
    for writes in (False, True) if stage.onto else (True,):
        for rows, later in rows_of(stage.sums.place.source):
            start = rows.column + stage.sums.view.start[-1]
            for target in stage.targets:
                value = target.buffer.value
                access = MemoryAccess(rows, value, writes, start, stage.width, True, later)
                products = len(stage.terms)
                yield replace(access, product=stage.group, adds=stage.onto, products=products)
                start = expand(start + stage.width)


def _of_loop(
    stage: DeviceLoop,
    places: Mapping[Buffer, DevicePlace],
    loads: Sequence[Load],
    lines: Sequence[Line],
) -> Iterator[MemoryAccess]:
    plain = not stage.loop.is_nest and bool(stage.loop.space)
    for load in loads:
        if load.view.buffer.kind is BufferKind.SCALAR:
            continue
        place = places[load.view.buffer]
        own = plain and load.access is Access.ELEMENT
        for access in of_view(load.view, place, writes=False, by_unit=own, whole=not own):
            yield replace(access, group=stage.group)
        if place.kept is not None:
            yield from of_view(load.view, place.kept, writes=True, by_unit=own)
    for line in lines:
        if line.view is not None:
            place = places[line.view.buffer]
            for access in of_view(line.view, place, writes=True, by_unit=plain):
                yield replace(access, group=stage.group)


def _of_gradients(stage: WeightGradients) -> Iterator[MemoryAccess]:
    yield from of_view(stage.left.view, stage.left.place, writes=False)
    yield from _side_by_side([product.b for product in stage.products], stage.right.place)
    for target in stage.targets:
        yield from of_view(target.view, target.place, writes=True)


def _side_by_side(views: Sequence[View], place: DevicePlace) -> Iterator[MemoryAccess]:
    """Operands that lie one behind the other, from the first one's place on."""
    for rows, later in rows_of(place.source):
        start = rows.column + views[0].start[-1]
        for view in views:
            width = view.shape[-1]
            yield MemoryAccess(rows, view.buffer.value, False, start, width, later=later)
            start = expand(start + width)


def of_view(
    view: View, place: DevicePlace, *, writes: bool, by_unit: bool = False, whole: bool = False
) -> Iterator[MemoryAccess]:
    """The columns of a view; all of its buffer's where ``whole``."""
    for rows, later in rows_of(place.source):
        start, width = rows.column, view.buffer.shape[-1] if view.buffer.shape else None
        if not whole and len(view.start) == 2 and view.start[0] == 0:
            start, width = rows.column + view.start[-1], view.shape[-1]
        yield MemoryAccess(rows, view.buffer.value, writes, start, width, by_unit, later)


def rows_of(source: Source) -> Iterator[tuple[RowsOfArray, bool]]:
    """The rows that a place may be, and which of them it is not at the first step."""
    if isinstance(source, RowsOfArray):
        yield source, False
    elif isinstance(source, IfGiven):
        yield source.rows, False
        if source.other is not None:
            yield source.other, False
    elif isinstance(source, BeforeStep):
        yield from ((rows, True) for rows, _ in rows_of(source.rows))
    else:
        yield RowsOfArray(source.left, source.stride, of_caller=True, at=Moment.BEFORE), True
