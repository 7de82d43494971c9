"""Check a plan of a device: what is read has been written, and is still there.

Input: ``DeviceTimePlan``. ``rules`` say what single passes leave behind. Launches are followed over
a sequence of three steps, address by address: an array, a step, a range of columns; packed weights
rectangle by rectangle (``panels``). Four rules hold:

- nothing is read before it is written, in memory of the workspace or in a result of the caller;
- nothing is overwritten while it is live: what is read is the value that was written there last,
  and a sum is read when all of its products have been added up, and never added to after that;
- every result is written whole: at all steps, in all columns;
- in a kernel over all steps, a barrier stands between a write and what another thread reads or
  writes there, and between a read and what another thread writes there; of one that keeps memories
  in registers, ``verify_held`` says so; where blocks stay on the device together, no thread touches
  what another one writes, but through a channel that a stage before has published, a state's ahead
  once no product of the step reads it any more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from sympy import Add, Expr, expand

from cellgen.errors import DerivationError
from cellgen.language.value import T, Value
from cellgen.schedule.device.accesses import (
    AnyStage,
    MemoryAccess,
    accesses,
    accesses_in_tier,
    at_least,
    meet,
    of_view,
    rows_of,
)
from cellgen.schedule.device.persistent import Channel, Persistent, PersistentStage
from cellgen.schedule.device.places import ZERO, Moment, RowsOfArray, row_width
from cellgen.schedule.device.plan import DeviceState, DeviceTimePlan
from cellgen.schedule.device.row_values import MOST_TOLD, RowSums, RowValue
from cellgen.schedule.device.rules import AFTER_FOLLOWING, BEFORE_FOLLOWING, Rule
from cellgen.schedule.device.stages import DeviceProduct
from cellgen.schedule.device.tiers import Tier, TierKind, TierLoop
from cellgen.schedule.schedule import Buffer, BufferKind, Store, View, fault_of_plan

STEPS = 3
"""Of the sequence that is followed: a first, a middle and a last one."""
UNWRITTEN = "not written before"
StepOfArray = tuple[str, bool, int]
"""An array, whether it is the caller's, and a step of it."""


def verify_for_device(plan: DeviceTimePlan) -> None:
    """Check lifetimes and barriers.

    Raises:
        DerivationError: naming the function, the stage and the array.
    """
    _verify_rules(plan, BEFORE_FOLLOWING)
    memory = _PlanMemory(plan)
    for stage in (*plan.prologue, *plan.packed, *plan.ahead):
        memory.follow(stage, 0)
    for state in plan.states if plan.is_backward else ():
        whole = memory.whole[state.link.passed]
        memory.write(replace(_carried(state, Moment.END, writes=True), products=whole), 0)
    for step in _steps(plan):
        for work in plan.steps:
            memory.follow(work, step)
    for access in (access for state in plan.states for access in _left(state)):
        memory.read(access, 0, "what follows the last step")
    for later in (*plan.deferred, *plan.epilogue):
        memory.follow(later, 0)
    _verify_results(plan, memory)
    if plan.tier.tier is not None:
        _verify_barriers(plan, plan.tier.tier, memory)
    if plan.persistent.persistent is not None:
        _verify_channels(plan, plan.persistent.persistent)
        _verify_values_of_rows(plan, plan.persistent.persistent)
        _verify_own(plan, plan.persistent.persistent, memory)
        _verify_left_behind(plan, plan.persistent.persistent)
    _verify_rules(plan, AFTER_FOLLOWING)


def _verify_rules(plan: DeviceTimePlan, rules: Iterable[Rule]) -> None:
    for what in (what for rule in rules for what in rule(plan)):
        raise _fault(plan, what)


def _verify_results(plan: DeviceTimePlan, memory: _PlanMemory) -> None:
    """Check that every output and what is saved, or every gradient, is written whole."""
    programs = plan.options.programs
    handed_out = {link.passed for link in programs.links}
    wanted = (*programs.outputs, *programs.saved)
    if plan.is_backward:
        wanted = tuple(value for value in programs.gradients if value not in handed_out)
    for value in wanted:
        shape = Buffer(value, BufferKind.RESULT).shape
        width = shape[-1] if shape else None
        rows = RowsOfArray(str(value.name), width or ZERO, of_caller=True)
        access = MemoryAccess(rows, value, writes=False, width=width)
        what = memory.lack(access, 0)
        if what:
            what = "never written" if what == UNWRITTEN else what
            raise _fault(plan, f"{value}, a result, is {what}")


def _carried(state: DeviceState, at: Moment | None, *, writes: bool) -> MemoryAccess:
    """The gradient between two steps."""
    passed = state.link.passed
    return MemoryAccess(state.carried(at), passed, writes, width=row_width(passed))


def _left(state: DeviceState) -> Iterator[MemoryAccess]:
    """What is handed out after all steps: the last state, or the gradient of the first."""
    if state.last is None:
        yield _carried(state, None, writes=False)
        return
    value = state.link.next
    for rows, _ in rows_of(state.last):
        yield MemoryAccess(rows, value, writes=False, width=row_width(value))


def _steps(plan: DeviceTimePlan) -> Iterable[int]:
    return reversed(range(STEPS)) if plan.is_backward else range(STEPS)


@dataclass
class _Columns:
    """A range of columns, and the value that was written there last."""

    start: Expr
    end: Expr | None
    value: Value | str
    products: int = 0
    is_read: bool = False


@dataclass
class _PlanMemory:
    """What lies where, while a plan is followed."""

    plan: DeviceTimePlan
    written: dict[StepOfArray, list[_Columns]] = field(default_factory=dict)
    known: dict[int, tuple[Sequence[MemoryAccess], str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        links = self.plan.options.programs.links
        self.same: dict[Value | str, Value] = {k.previous: k.next for k in links}
        self.same |= {k.carry: k.passed for k in links}
        self.whole = defaultdict[Value | str, int](int)
        self.products = defaultdict[Value | str, int](int)
        for total in self.plan.sums:
            value = self.same.get(total.value, total.value)
            self.whole[value] = total.products
            self.products[value] = 0 if total.begun else total.products
        self.over_time = {a.name for a in self.plan.memory if a.extent.lengths[:1] == (T,)}
        stages = (
            *self.plan.prologue,
            *self.plan.ahead,
            *self.plan.steps,
            *self.plan.deferred,
            *self.plan.epilogue,
        )
        touched = [access for stage in stages for access in accesses(stage)]
        self.results = {a.rows.array for a in touched if a.writes and a.rows.of_caller}

    def cells(self, access: MemoryAccess, step: int) -> Iterator[StepOfArray]:
        """The steps of an array that an access touches at a step."""
        rows = access.rows
        if rows.at is not None:
            numbers = {
                Moment.BEFORE: step - 1,
                Moment.NOW: step,
                Moment.AFTER: step + 1,
                Moment.LAST: STEPS - 1,
                Moment.END: STEPS,
            }
            number = numbers[rows.at]
            yield rows.array, rows.of_caller, number % 2 if rows.by_turns else number
        elif rows.of_caller or rows.array in self.over_time:
            yield from ((rows.array, rows.of_caller, number) for number in range(STEPS))
        else:
            yield rows.array, rows.of_caller, 0

    def _known(self, stage: AnyStage) -> tuple[Sequence[MemoryAccess], str]:
        """What a stage touches and how it is called, which are the same at each step."""
        if id(stage) not in self.known:
            self.known[id(stage)] = list(accesses(stage)), _name(stage)
        return self.known[id(stage)]

    def follow(self, stage: AnyStage, step: int, manner: str = "") -> None:
        """Follow a stage: its reads, then its writes."""
        touched, name = self._known(stage)
        name = f"{manner}{name}"
        for access in touched:
            if not access.writes:
                self.read(access, step, name)
        for access in touched:
            if access.writes:
                self.add_to(access, step, name)
                self.write(access, step)

    def there(self, cell: StepOfArray, access: MemoryAccess) -> list[_Columns]:
        """What lies in the columns of an access."""
        return [written for written in self.written.get(cell, []) if meet(written, access)]

    def value_of(self, access: MemoryAccess) -> Value | str:
        """Its value, by the name that the step which writes it has for it."""
        return self.same.get(access.value, access.value)

    def add_to(self, access: MemoryAccess, step: int, stage: str) -> None:
        """Check that nobody has read a sum before all of it is there."""
        for cell in self.cells(access, step) if access.adds else ():
            if any(written.is_read for written in self.there(cell, access)):
                what = f"{stage} adds to {access.value} in {access.rows.array}"
                raise _fault(self.plan, f"{what}, which has been read as it was before")

    def write(self, access: MemoryAccess, step: int) -> None:
        """Put a value into its place; what lay there is no more."""
        value = self.value_of(access)
        for cell in self.cells(access, step):
            there = self.there(cell, access)
            kept = [w for w in self.written.get(cell, []) if w not in there]
            products = self.products[value] if access.products is None else access.products
            if access.adds:
                products += min((w.products for w in there), default=0)
            self.written[cell] = [*kept, _Columns(access.start, access.end, value, products)]

    def read(self, access: MemoryAccess, step: int, stage: str) -> None:
        """Check that what is read is there."""
        rows = access.rows
        of_call = rows.of_caller and rows.array not in self.results
        if of_call or (access.later and rows.at is Moment.BEFORE and step == 0):
            return
        what = self.lack(access, step)
        if what:
            value = self.value_of(access)
            raise _fault(self.plan, f"{stage} reads {value} in {rows.array}, which is {what}")

    def lack(self, access: MemoryAccess, step: int) -> str:
        """What is wrong with what lies where an access reads, or nothing; it counts as read."""
        value = self.value_of(access)
        for cell in self.cells(access, step):
            there = self.there(cell, access)
            own = [w for w in there if w.value == value]
            if not _covers(own, access):
                others = sorted({str(w.value) for w in there if w.value != value})
                return f"overwritten by {', '.join(others)}" if others else UNWRITTEN
            if access.adds:
                continue
            products, whole = min(w.products for w in own), self.whole[value]
            if products < whole:
                return f"the sum of {products} of {whole} products"
            for written in own:
                written.is_read = True
        return ""


def _covers(there: list[_Columns], access: MemoryAccess) -> bool:
    """Whether ranges cover what is read; those that touch are one."""
    start, end = access.start, access.end
    if end is None or any(w.end is None for w in there):
        return bool(there)
    joined = [(w.start, w.end) for w in there if w.end is not None]
    for _ in there:
        joined += [
            (one, further)
            for one, stop in joined
            for other, further in joined
            if at_least(stop, other) and at_least(other, one) and at_least(further, stop)
        ]
        joined = list(dict.fromkeys(joined))
    return any(at_least(start, one) and at_least(stop, end) for one, stop in joined)


def _name(stage: AnyStage) -> str:
    return f"`{str(stage)[:60]}`"


def _verify_barriers(plan: DeviceTimePlan, tier: Tier, memory: _PlanMemory) -> None:
    """Check that threads meet where one needs what another wrote, or has read."""
    since: list[tuple[StepOfArray, MemoryAccess]] = []
    for step in _steps(plan):
        for stage in tier.stages:
            touched = [
                (cell, access)
                for access in accesses_in_tier(stage.work)
                if not (access.later and access.rows.at is Moment.BEFORE and step == 0)
                for cell in memory.cells(access, step)
            ]
            for cell, access in touched:
                if any(cell == other and _races(before, access) for other, before in since):
                    raise _fault(
                        plan,
                        f"in a kernel over all steps {_name(stage.work)} "
                        f"{'writes' if access.writes else 'reads'} {access.value} in {cell[0]}, "
                        f"which another thread touches, without a barrier between",
                    )
            since += touched
            if stage.barrier and tier.kind is TierKind.BLOCK:
                since = []


def _verify_channels(plan: DeviceTimePlan, own: Persistent) -> None:
    """Check that what products receive is published before, and is all that they read."""
    published: list[Channel] = []
    for stage in own.stages:
        for held in stage.products:
            for channel in held.channels:
                if channel.initial is None and channel not in published:
                    raise _fault(
                        plan,
                        f"{_name(held.product)} waits for {channel.value}, "
                        "which no stage before it publishes",
                    )
            received = [channel.value for channel in held.channels]
            needed = list(_operands(plan, own, held.product))
            if held.channels and received != needed:
                names = [", ".join(str(value) for value in values) for values in (received, needed)]
                raise _fault(plan, f"{_name(held.product)} receives {names[0]}, not {names[1]}")
            read = Add(*(channel.units for channel in held.channels))
            if expand(read - held.product.inner) != 0:
                raise _fault(
                    plan, f"{_name(held.product)} receives {read} of {held.product.inner} factors"
                )
        published += stage.publishes
    _verify_turns(plan, own)
    for channel in own.channels:
        if published.count(channel) != 1:
            raise _fault(
                plan,
                f"{channel.value} is published {published.count(channel)} times "
                "in a step, not once",
            )


def _verify_turns(plan: DeviceTimePlan, own: Persistent) -> None:
    """Check that a value is published once it is formed, and that no step reads a state after."""
    formed: set[Value] = set()
    ahead: set[Value] = set()
    for stage in own.stages:
        for held in stage.products:
            for value in (c.value for c in held.channels if c.value in ahead):
                what = f"reads {value}, which a stage before it publishes for the next step"
                raise _fault(plan, f"{_name(held.product)} {what}")
        formed |= stage.formed
        for channel in stage.publishes:
            if channel.value not in formed:
                raise _fault(plan, f"{channel.value} is published before it is formed")
        ahead |= {channel.value for channel in stage.publishes if channel.initial is not None}


def _verify_values_of_rows(plan: DeviceTimePlan, own: Persistent) -> None:
    """Check that sums over units are received once, behind their parts and before readers."""
    waiting: list[RowSums] = []
    there: list[RowValue] = []
    for stage in own.stages:
        for sums in stage.receives:
            if waiting.count(sums) != 1:
                raise _fault(plan, f"{sums} is received before its parts are told, or once more")
            waiting.remove(sums)
            there += sums.sums
        for name in (str(n) for n, one in stage.of_row.items() if one not in there):
            raise _fault(plan, f"{name}, a value of a row, is read before threads have it")
        lines = stage.loop.loop.lines if stage.loop is not None else ()
        added = [x.statement.target for x in lines if x.store is Store.ADD_UNITS]
        parts = [one.value for sums in stage.tells for one in sums.sums]
        if parts != added:
            raise _fault(plan, f"the parts of {parts} are told where {added} are formed")
        if any(len(sums.sums) > MOST_TOLD for sums in stage.tells):
            raise _fault(plan, f"more than {MOST_TOLD} sums over units are told at once")
        waiting += stage.tells
        there += stage.by_row
    if waiting:
        raise _fault(plan, f"{waiting[0]}, whose parts are told, is received by no stage")


def _operands(plan: DeviceTimePlan, own: Persistent, product: DeviceProduct) -> Iterator[Value]:
    """The values that lie in a product's operands, side by side."""
    after = {link.previous: link.next for link in plan.options.programs.links}
    formed: dict[tuple[Buffer, Expr], tuple[View, Value]] = {}
    for stage in own.stages:
        views = [view for held in stage.products for view in held.product.targets]
        there = [(view, view.buffer.value) for view in views]
        lines = stage.loop.loop.lines if stage.loop is not None else ()
        there += [(x.view, x.statement.target) for x in lines if x.view]
        formed |= {(view.buffer, expand(view.start[-1])): (view, value) for view, value in there}
    for view in (term.operand for term, _ in product.terms):
        if view.buffer.value in after:
            yield after[view.buffer.value]
            continue
        at, end = expand(view.start[-1]), expand(view.start[-1] + view.shape[-1])
        while at != end and (view.buffer, at) in formed:
            part, value = formed[view.buffer, at]
            yield value
            at = expand(at + part.shape[-1])


def _verify_own(plan: DeviceTimePlan, own: Persistent, memory: _PlanMemory) -> None:
    """Check that no thread touches what a thread of another row or unit writes."""
    since: list[tuple[StepOfArray, MemoryAccess]] = []
    for step in _steps(plan):
        for stage in own.stages:
            works: list[DeviceProduct | TierLoop] = [held.product for held in stage.products]
            works = works if stage.loop is None else [stage.loop]
            for access in (*_of_rows(stage), *(a for w in works for a in accesses_in_tier(w))):
                if stage.by_row and not access.writes:  # by all threads of a row
                    access = replace(access, by_unit=False)
                if isinstance(works[0], DeviceProduct) and access.product is None:
                    continue  # operands come through channels, weights are held
                if access.later and access.rows.at is Moment.BEFORE and step == 0:
                    continue
                for cell in memory.cells(access, step):
                    if any(cell == other and _of_others(before, access) for other, before in since):
                        raise _fault(
                            plan,
                            f"where blocks stay on the device {_name(works[0])} touches "
                            f"{access.value} in {cell[0]}, which another thread writes",
                        )
                    since.append((cell, access))


def _of_rows(stage: PersistentStage) -> Iterator[MemoryAccess]:
    """What one thread of a row stores of the sums that a stage receives."""
    for one in (one for sums in stage.receives for one in sums.sums):
        yield from of_view(one.view, one.place, writes=True, by_unit=True)


def _verify_left_behind(plan: DeviceTimePlan, own: Persistent) -> None:
    """Check that what is read after all steps is no sum that staying blocks keep to themselves."""
    held = [held.product for stage in own.stages if stage.loop for held in stage.products]
    kept = [(product.sums, product.terms) for product in held]
    memory = _PlanMemory(plan)
    for work in (*plan.prologue, *plan.packed, *plan.ahead, *plan.steps):
        is_kept = isinstance(work, DeviceProduct) and (work.sums, work.terms) in kept
        sums = work.sums.place.source if isinstance(work, DeviceProduct) and is_kept else None
        for step, access in product(_steps(plan), accesses(work)):
            if access.writes and access.rows != sums:
                memory.write(access, step)
    for later in (*plan.deferred, *plan.epilogue):
        memory.follow(later, 0, "where blocks stay on the device ")


def _of_others(before: MemoryAccess, after: MemoryAccess) -> bool:
    """Whether threads of different rows or units may touch the same, and one of them writes."""
    if not (before.writes or after.writes) or not meet(before, after):
        return False
    place = (before.start, before.width)
    return not (before.by_unit and after.by_unit and place == (after.start, after.width))


def _races(before: MemoryAccess, after: MemoryAccess) -> bool:
    if not (before.writes or after.writes) or before.is_of_same_thread(after):
        return False
    return meet(before, after)


def _fault(plan: DeviceTimePlan, what: str) -> DerivationError:
    return fault_of_plan(f"{plan.cell}.{plan.function} on a device", what)
