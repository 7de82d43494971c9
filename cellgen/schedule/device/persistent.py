"""Decide whether a part's layer can stay on a device, and what its blocks tell each other.

Input: what a part does in every step (products, loops), as values. Output: ``PersistentChoice``.
Blocks of one launch share the units of a layer and take rows through all steps together. What a
loop reads is of its own row and unit, so it stays with the thread that has them; what a product
reads of all units goes through a ``Channel``, and every product that reads one is a level. A state
goes through its channel one step ahead, behind the last product of the step that reads it, the
initial one before the first: in a cluster a channel has two buffers. Sums over units are a level of
their own, and so are values of a row every thread's (``row_values``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sympy import Expr, expand

from cellgen.language.value import B, T, Value
from cellgen.program.over_time import StateLink
from cellgen.schedule.device.places import (
    AddMemory,
    BeforeStep,
    Element,
    Extent,
    NeededWhen,
    RowsOfArray,
    row_width,
)
from cellgen.schedule.device.row_values import (
    RowSums,
    RowValue,
    RowValueError,
    RowValues,
    told_at_once,
)
from cellgen.schedule.device.stages import DeviceLoop, DeviceProduct, StepStage
from cellgen.schedule.device.tiers import Passed, TierLoop, refusal
from cellgen.schedule.schedule import Access, Buffer, Store, View

MOST_OCTETS = 4
"""Octets of units, and of threads, that a block may have: each thread then has 128 registers."""
MANY_NUMBERS = (45, 95)
"""Where a thread keeps more numbers than that in a step (``Persistent.numbers``; LSTM has 43), a
block has an octet less, and a thread 168 registers; two less, and 255. Less would spill."""
GROUP_LESS_ONE, FACTORS_LESS_ONE, OCTET_LESS_ONE = 15, 31, 7
"""By how many rows and units at most a channel is longer, to be whole groups, blocks and octets."""


@dataclass(frozen=True)
class Channel:
    """A value that blocks tell each other in every step, of so many ``units`` of a head.

    ``memory`` is the array of the workspace where it lies. Of a state, ``initial`` is where the
    first one lies; then a step publishes what the next one reads.
    """

    value: Value
    units: Expr
    memory: str
    initial: RowsOfArray | None = None

    def __str__(self) -> str:
        ahead = ", a step ahead" if self.initial is not None else ""
        return f"{self.value}{ahead}"


@dataclass(frozen=True)
class HeldProduct:
    """A product whose weights blocks hold, and the channels of its factors, in their order."""

    product: DeviceProduct
    channels: tuple[Channel, ...]


@dataclass(frozen=True)
class PersistentStage:
    """Products of the same sums, the loop that reads them, and what is published then.

    ``sums`` are the values of the loop that are sums, by slot. Without a loop the sums go to
    memory. ``units`` are those that a thread has one of. What it ``publishes`` it forms, or a stage
    before it, if it is a state that its products read. It ``receives`` sums over units, which all
    threads of a row then have, and ``tells`` those of which its loop forms the terms. ``of_row``
    are the values of a row that its loop reads, ``by_row`` those that it forms: all threads of a
    row then run it alike.
    """

    products: tuple[HeldProduct, ...]
    loop: TierLoop | None
    sums: Mapping[Value, int]
    publishes: tuple[Channel, ...]
    units: Expr
    receives: tuple[RowSums, ...] = ()
    tells: tuple[RowSums, ...] = ()
    of_row: Mapping[Value, RowValue] = field(default_factory=dict)
    by_row: tuple[RowValue, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """Arrays of the workspace and strides that it names."""
        names = [held.product.names_in_tier for held in self.products]
        if self.loop is not None:
            names.append(self.loop.names)
        names += [one.place.names for sums in self.receives for one in sums.sums]
        return frozenset[str]().union(*names)

    @property
    def formed(self) -> frozenset[Value]:
        """What its products and its loop form."""
        sums = {view.buffer.value for held in self.products for view in held.product.targets}
        lines = self.loop.loop.lines if self.loop is not None else ()
        return frozenset(sums | {line.statement.target for line in lines})


@dataclass(frozen=True)
class Persistent:
    """A kernel whose blocks are on the device together; ``passed`` as in ``Tier``."""

    stages: tuple[PersistentStage, ...]
    channels: tuple[Channel, ...]
    passed: tuple[Passed, ...] = ()
    heads: Expr | None = None
    head_units: Expr | None = None

    @property
    def levels(self) -> int:
        """How often blocks wait for each other in a step."""
        return sum(bool(s.products) + bool(s.receives) for s in self.stages)

    @property
    def sums(self) -> tuple[RowSums, ...]:
        """Sums over units that blocks tell each other in a step."""
        return tuple(sums for stage in self.stages for sums in stage.tells)

    @property
    def exchanged(self) -> list[str]:
        """Arrays of the workspace in which blocks tell each other."""
        sums = [each.memory for each in self.sums]
        return [channel.memory for channel in self.channels] + sums

    @property
    def row_values(self) -> tuple[RowValue, ...]:
        """Values of a row that threads have in a step."""
        sums = [one for each in self.sums for one in each.sums]
        return (*sums, *(one for stage in self.stages for one in stage.by_row))

    @property
    def widths(self) -> tuple[Expr, ...]:
        """Units of each stage and of what it publishes, each once."""
        return tuple({expand(stage.units): stage.units for stage in self.stages}.values())

    @property
    def numbers(self) -> int:
        """What a thread keeps in registers through a step, about.

        Four sums of each slot, what loops read and write, where channels and widths lie, and what
        is of a row.
        """
        slots = max(held.product.slots for stage in self.stages for held in stage.products)
        loops = [stage.loop.loop for stage in self.stages if stage.loop is not None]
        read = sum(len(loop.loads) for loop in loops)
        written = sum(line.view is not None for loop in loops for line in loop.lines)
        of_rows = 4 * len(self.sums) + len(self.row_values)
        return 4 * slots + read + written + 4 * len(self.channels) + 8 * len(self.widths) + of_rows

    @property
    def most_octets(self) -> int:
        """Octets of threads that a block may have, so that nothing spills."""
        return MOST_OCTETS - sum(self.numbers > many for many in MANY_NUMBERS)

    @property
    def written(self) -> frozenset[Buffer]:
        """What a step writes to memory."""
        loops = [stage.loop.loop for stage in self.stages if stage.loop is not None]
        sums = [held.product for s in self.stages if s.loop is None for held in s.products]
        return frozenset(
            {line.view.buffer for loop in loops for line in loop.lines if line.view is not None}
            | {view.buffer for product in sums for view in product.targets}
        )

    @property
    def names(self) -> frozenset[str]:
        """Arrays of the workspace and strides that it reads and writes."""
        names = [stage.names for stage in self.stages]
        names.append(frozenset(self.exchanged))
        names += [one.rows.names for one in self.passed]
        return frozenset[str]().union(*names)


@dataclass(frozen=True)
class PersistentChoice:
    """The kernel whose blocks stay on the device, or why there is none."""

    persistent: Persistent | None = None
    reason: str = ""


def choose_persistent(
    stages: Sequence[StepStage],
    links: Sequence[StateLink],
    passed: Sequence[Passed],
    add_memory: AddMemory,
    kept: Collection[Value],
) -> PersistentChoice:
    """Plan the kernel whose blocks stay on the device, or say why a part has none.

    ``kept`` are values of a step that are read behind all steps.
    """
    products = [stage for stage in stages if isinstance(stage, DeviceProduct)]
    if not products:
        return PersistentChoice(None, "no product reads what the step before it formed")
    if reason := refusal(stages, together=True):
        return PersistentChoice(None, reason)
    first = products[0]
    heads = first.heads
    units = first.units if heads is not None else None
    planner = _PersistentPlanner(links, add_memory, heads, units, kept)
    try:
        planned = planner.stages(stages)
    except (_NotPlannedError, RowValueError) as error:
        return PersistentChoice(None, str(error))
    cuts = tuple(Passed(p.rows, p.units if units is None else units) for p in passed)
    channels = tuple(planner.channels.values())
    return PersistentChoice(Persistent(planned, channels, cuts, heads, units))


class _NotPlannedError(Exception):
    """Why a part has no such kernel."""


@dataclass
class _PersistentPlanner:
    """Plans stages one after the other; ``channels`` by the value that they carry."""

    links: Sequence[StateLink]
    add_memory: AddMemory
    heads: Expr | None
    head_units: Expr | None
    kept: Collection[Value]

    def __post_init__(self) -> None:
        self.channels: dict[Value, Channel] = {}
        self.written: list[tuple[View, Value]] = []

    def stages(self, stages: Sequence[StepStage]) -> tuple[PersistentStage, ...]:
        """Plan the stages, then what each of them publishes."""
        planned: list[PersistentStage] = []
        links = self.links
        carried = {value for k in links for value in (k.previous, k.next, k.carry, k.passed)}
        self.rows = RowValues(carried, stages)
        for number, stage in enumerate(stages):
            if isinstance(stage, DeviceProduct):
                self._product(planned, stage)
            elif isinstance(stage, DeviceLoop):
                self._loop(planned, stage, stages[:number], stages[number + 1 :])
        planned = _with_sums_received(_with_units_of_rows(planned))
        published = {channel.value: channel for channel in self.channels.values()}
        formed = [value for stage in planned for value in stage.formed]
        for value in published:
            if formed.count(value) != 1:
                raise _NotPlannedError(f"{value}, which products read, is not formed by one stage")
        by = {channel: self._publisher(planned, channel) for channel in published.values()}
        return tuple(
            replace(stage, publishes=tuple(channel for channel, n in by.items() if n == number))
            for number, stage in enumerate(planned)
        )

    def _publisher(self, planned: Sequence[PersistentStage], channel: Channel) -> int:
        """The stage that publishes a channel: what forms it, or what reads it last, if later."""
        number = next(n for n, stage in enumerate(planned) if channel.value in stage.formed)
        if expand(channel.units - planned[number].units) != 0:
            raise _NotPlannedError(f"{channel.value} is formed over other units than are read")
        if channel.initial is None:
            return number
        reads = [any(channel in held.channels for held in stage.products) for stage in planned]
        return max(number, *(n for n, is_read in enumerate(reads) if is_read))

    def _product(self, planned: list[PersistentStage], product: DeviceProduct) -> None:
        views = [term.operand for term, _ in product.terms]
        channels = (c for view in views for c in self._channels_of(view, product))
        held = HeldProduct(product, tuple(channels))
        before = planned[-1] if planned else None
        self.written += [(view, view.buffer.value) for view in product.targets]
        if before is not None and before.loop is None and _adds_to(before.products[-1], product):
            planned[-1] = replace(before, products=(*before.products, held))
            return
        planned.append(PersistentStage((held,), None, {}, (), product.units))

    def _loop(
        self,
        planned: list[PersistentStage],
        stage: DeviceLoop,
        before: Sequence[StepStage],
        after: Sequence[StepStage],
    ) -> None:
        units = self.head_units or stage.loop.space[-1]
        by_row, of_row = self.rows.is_by_row(stage), self.rows.read(stage)
        own = self.rows.form(stage)
        if self.heads is not None and (own or of_row):
            raise _NotPlannedError("values of a row are formed of the units of all heads")
        loop = TierLoop(stage, stage.places, units, in_registers=frozenset(of_row))
        if by_row:
            planned.append(PersistentStage((), loop, {}, (), units, of_row=of_row, by_row=own))
            return
        self._require_own(stage, of_row)
        lines = (line for line in stage.loop.lines if line.store is Store.WRITE)
        self.written += [(x.view, x.statement.target) for x in lines if x.view]
        tells = tuple(self._told(at_once, units) for at_once in told_at_once(own))
        sums = self._sums(planned[-1], loop, (*before, *after)) if planned else None
        if sums is None:
            planned.append(PersistentStage((), loop, {}, (), units, tells=tells, of_row=of_row))
            return
        loop = replace(loop, in_registers=frozenset({*sums, *of_row}))
        planned[-1] = replace(planned[-1], loop=loop, sums=sums, tells=tells, of_row=of_row)

    def _told(self, sums: tuple[RowValue, ...], units: Expr) -> RowSums:
        """Sums that are told at once: of a row, 16 bytes for each octet of units."""
        extent = Extent((T, B + GROUP_LESS_ONE, units + OCTET_LESS_ONE), NeededWhen.TOGETHER)
        memory = self.add_memory(f"{sums[0].value.name}_told", Element.REAL, extent)
        return RowSums(sums, units, memory)

    def _require_own(self, stage: DeviceLoop, of_row: Collection[Value]) -> None:
        """Check that what a step has formed is read by the thread of its row and unit alone."""
        formed = {view.buffer for view, _ in self.written}
        there = {view for view, _ in self.written}
        carried = {k.previous for k in self.links} | {k.carry for k in self.links}
        for load in (load for load in stage.loop.loads if load.value not in of_row):
            view, is_own = load.view, load.access is Access.ELEMENT
            if view.buffer in formed and not (is_own and view in there):
                raise _NotPlannedError(f"{load.value} is read by threads of other units or rows")
            if view.buffer.value in carried and not (is_own and view.shape == view.buffer.shape):
                raise _NotPlannedError(f"{load.value} is read by threads of other units or rows")

    def _sums(
        self, stage: PersistentStage, loop: TierLoop, others: Sequence[StepStage]
    ) -> Mapping[Value, int] | None:
        """The sums that a loop takes from the products before it; None: through memory."""
        if stage.loop is not None or not stage.products:
            return None
        if expand(stage.units - loop.units) != 0:
            return None
        slots = {view: n for n, view in enumerate(stage.products[0].product.targets)}
        buffers = {view.buffer for view in slots}
        sums = {}
        for load in loop.loop.loads:
            if load.view.buffer not in buffers:
                continue
            if load.view not in slots or load.access is not Access.ELEMENT:
                return None
            sums[load.value] = slots[load.view]
        read = {v.buffer for s in others if isinstance(s, DeviceLoop) for v in _read(s)}
        read |= {
            t.operand.buffer for s in others if isinstance(s, DeviceProduct) for t, _ in s.terms
        }
        read |= {buffer for buffer in buffers if buffer.value in self.kept}
        kept_whole = buffers & read or not _is_scratch(stage.products[0].product)
        if kept_whole or set(sums.values()) != set(slots.values()):
            return None
        return sums

    def _channels_of(self, operand: View, product: DeviceProduct) -> Iterator[Channel]:
        """The channels of an operand, those of its first columns first."""
        if isinstance(product.operand.place.source, BeforeStep):
            link = next(k for k in self.links if k.previous == operand.buffer.value)
            if operand.start[-1] != 0 or expand(operand.shape[-1] - operand.buffer.shape[-1]) != 0:
                raise _NotPlannedError(f"a product reads a part of {link.previous}")
            first = RowsOfArray(str(link.previous.name), row_width(link.previous), of_caller=True)
            yield self._channel(link.next, self.head_units or operand.shape[-1], first)
            return
        start, end = operand.start[-1], operand.start[-1] + operand.shape[-1]
        there = {
            expand(view.start[-1]): (view, value)
            for view, value in self.written
            if view.buffer == operand.buffer
        }
        while expand(end - start) != 0:
            if expand(start) not in there:
                raise _NotPlannedError(
                    f"a product reads {operand}, which no loop of the step forms"
                )
            view, value = there[expand(start)]
            yield self._channel(value, self.head_units or view.shape[-1], None)
            start = start + view.shape[-1]

    def _channel(self, value: Value, units: Expr, initial: RowsOfArray | None) -> Channel:
        if value not in self.channels:
            rows, heads = B + GROUP_LESS_ONE, self.heads or 1
            lengths = (T + 1, rows, heads * (units + FACTORS_LESS_ONE))
            extent = Extent(lengths, NeededWhen.TOGETHER)
            memory = self.add_memory(f"{value.name}_told", Element.STORE, extent)
            self.channels[value] = Channel(value, units, memory, initial)
        channel = self.channels[value]
        if channel.initial != initial:
            raise _NotPlannedError(f"{value} is read in its own step and in the next one")
        return channel


def _with_units_of_rows(planned: Sequence[PersistentStage]) -> list[PersistentStage]:
    """Give what is of rows to the threads of the units whose loops tell or read values of a row."""
    if not any(stage.by_row or stage.tells for stage in planned):
        return list(planned)
    users = [stage for stage in planned if not stage.by_row and (stage.tells or stage.of_row)]
    widths = {expand(stage.units): stage.units for stage in users}
    if len(widths) != 1:
        raise _NotPlannedError("values of a row are read over units of several widths")
    units = next(iter(widths.values()))
    return [replace(stage, units=units) if stage.by_row else stage for stage in planned]


def _with_sums_received(planned: Sequence[PersistentStage]) -> list[PersistentStage]:
    """Let the first stage that reads a sum over units wait for those that are told with it."""
    received: list[PersistentStage] = []
    waiting: list[RowSums] = []
    for stage in planned:
        read = set(stage.of_row.values())
        there = tuple(sums for sums in waiting if read & set(sums.sums))
        waiting = [sums for sums in waiting if sums not in there]
        received.append(replace(stage, receives=there))
        waiting += stage.tells
    if waiting:
        raise _NotPlannedError(f"{waiting[0]}, a sum over units, is read by no loop of its step")
    return received


def _is_scratch(product: DeviceProduct) -> bool:
    """Whether nobody reads the sums of a product after the step."""
    source = product.sums.place.source
    return isinstance(source, RowsOfArray) and not source.of_caller and not source.by_turns


def _read(stage: DeviceLoop) -> Iterator[View]:
    return (load.view for load in stage.loop.loads)


def _adds_to(held: HeldProduct, product: DeviceProduct) -> bool:
    """Whether a product adds to the sums of the one before it, and to nothing else."""
    return (
        product.onto
        and held.product.sums == product.sums
        and (held.product.targets == product.targets)
    )
