"""Spell kernels whose blocks stay on the device together, and how the host chooses them.

Input: ``Persistent``. Output: ``PersistentContext`` for ``persist.j2``. What threads do is that of
kernels in blocks; what is told between blocks is that of ``cellgen_persist.cuh``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sympy import Expr, expand

from cellgen.runtime.abi import Function as Signature
from cellgen.runtime.abi import c_dim
from cellgen.schedule.device.persistent import (
    Channel,
    HeldProduct,
    Persistent,
    PersistentStage,
)
from cellgen.schedule.device.places import ZERO, Element, Moment, row_width
from cellgen.schedule.device.plan import DeviceState, DeviceTimePlan
from cellgen.schedule.device.row_values import RowSums, RowValue
from cellgen.schedule.schedule import Buffer
from cellgen.targets.c_expressions import c_axis, c_factor, c_start
from cellgen.targets.cuda.dialect import DeviceDialect
from cellgen.targets.cuda.kernels import AheadLoad, ElementLines, elements_of
from cellgen.targets.cuda.options import OptionLines
from cellgen.targets.cuda.places import matrix, moved, pointer_of, rows_at, stride
from cellgen.targets.cuda.products import panel
from cellgen.targets.cuda.step import ArrayContext
from cellgen.targets.cuda.tiers import PassedLines, steps_of


@dataclass(frozen=True)
class ChannelLines:
    """A channel, as C texts; ``initial`` loads the first state, where it is one."""

    name: str
    memory: str
    units: str
    tile: int
    initial: str


@dataclass(frozen=True)
class ToldLines:
    """Sums over units that blocks tell each other, as C texts."""

    name: str
    memory: str
    units: str


@dataclass(frozen=True)
class ReceivedLines:
    """Sums over units that a stage receives: into which variables, and where one thread stores.

    ``stores`` are (variable, how the sum is read, routine, rows).
    """

    name: str
    stores: list[tuple[str, str, str, str]]


@dataclass(frozen=True)
class HeldLines:
    """The weights of a product that meet the factors of one channel; ``elements``: how many."""

    name: str
    channel: str
    weights: tuple[str, str]
    transposed: bool
    slots: int
    units: str
    first: str
    inner: str
    all_inner: str
    elements: str


@dataclass(frozen=True)
class SharedStageLines:
    """A stage: what it receives and holds, its loop or where its sums go, what it publishes.

    ``published`` are (channel, C name of the value, whether a step ahead), ``kept`` (variable, C
    name of the value) of what a later stage publishes, ``late`` (channel, variable, tile) of that.
    ``ahead`` is read a step before it is needed, while blocks wait for each other: nothing in the
    kernel writes it. ``places`` and ``loads`` are those of the loop that are read in the step.
    ``gathered`` are sums over units that it waits for, ``tells`` (name, C names of the terms) of
    those that it tells. ``of_row`` are (variable, C text) where all threads of a row run the loop.
    """

    number: int
    comments: list[str]
    tile: int
    slots: int
    received: list[str]
    held: list[HeldLines]
    loop: ElementLines | None
    ahead: list[AheadLoad]
    sums: tuple[str, str]
    onto: bool
    width: str
    published: list[tuple[str, str, bool]]
    kept: list[tuple[str, str]]
    late: list[tuple[str, str, int]]
    gathered: list[ReceivedLines]
    tells: list[tuple[str, list[str]]]
    of_row: list[tuple[str, str]]

    @property
    def places(self) -> list[str]:
        """Where lies what the loop reads in the step, and what it writes."""
        ahead = {read.rows for read in self.ahead}
        places = self.loop.places if self.loop else []
        return [place.line for place in places if place.rows not in ahead]

    @property
    def loads(self) -> list[str]:
        """What the loop reads in the step."""
        reads = self.loop.reads if self.loop else []
        return [read.declared for read in reads if read not in self.ahead]


@dataclass(frozen=True)
class MaskedLines:
    """A state behind a step that may be masked, or its gradient, as C texts.

    ``now`` is what the step began with, where ``next`` is what it leaves; of a gradient what it
    passes on, where ``next`` is what reached it. ``upstream`` is the series of gradients of
    outputs, for the host.
    """

    tile: int
    width: str
    now: str
    next: str
    is_output: bool
    start: str
    channel: str
    upstream: str
    upstream_name: str

    @property
    def upstream_of_step(self) -> str:
        """The upstream gradient of the step."""
        at = "args->options.reverse ? nT - 1 - step : step"
        if not self.upstream:
            return "cg_in((const store *)nullptr, 0)"
        return f"cellgen_shown_at({self.upstream_name}, {at})"


@dataclass(frozen=True)
class PersistentContext:
    """A ``Persistent``, as C texts."""

    name: str
    arguments: str
    dims: list[str]
    memory: list[ArrayContext]
    strides: list[tuple[str, str]]
    tiles: list[str]
    channels: list[ChannelLines]
    sums: list[ToldLines]
    row_values: list[str]
    stages: list[SharedStageLines]
    passed: list[tuple[PassedLines, int]]
    masked: list[MaskedLines]
    element: str
    flag: str
    validity: str
    resets: str
    after: list[str]
    backward: bool
    heads: str
    head_units: str
    levels: int
    most_octets: int
    launches: int
    others: str

    @property
    def sizes(self) -> dict[str, str]:
        """What the model asks of the layer."""
        return sizes_of(self)

    @property
    def exchanged(self) -> list[str]:
        """Arrays of the workspace in which blocks tell each other."""
        sums = [each.memory for each in self.sums]
        return [channel.memory for channel in self.channels] + sums

    @property
    def steps(self) -> str:
        """The head of the loop over steps."""
        return steps_of(self.backward)

    @property
    def held(self) -> list[HeldLines]:
        """Weights of all products."""
        return [held for stage in self.stages for held in stage.held]

    @property
    def most_slots(self) -> int:
        """Sums of the widest product."""
        return max(stage.slots for stage in self.stages)

    @property
    def call(self) -> str:
        """The arguments of a launch after how it is there."""
        series = (state.upstream for state in self.masked if state.upstream)
        memory = (array.name for array in self.memory)
        return ", ".join([*self.dims, "*args", "guarded", *series, *memory])


def spell_persistent(
    plan: DeviceTimePlan,
    signature: Signature,
    memory: Iterable[ArrayContext],
    words: DeviceDialect,
    others: str,
) -> PersistentContext | None:
    """Spell the kernel whose blocks are on the device together, if a plan has one.

    ``others``: the nanoseconds of a step in what runs otherwise.
    """
    own = plan.persistent.persistent
    if own is None:
        return None
    options = OptionLines(plan.options)
    strides = options.strides()
    part = "reverse" if plan.is_backward else "forward"
    speller = _PersistentSpeller(own, words, options)
    copies = {copy for _, copy in plan.options.before}
    names = own.names | copies | {options.validity, options.resets}
    return PersistentContext(
        name=f"{plan.cell}_{part}_persistent",
        arguments=f"{plan.cell}_{words.name}_{plan.function}_args",
        dims=[c_dim(dim) for dim in signature.dims],
        memory=[array for array in memory if array.name in names],
        strides=[(name, strides[name]) for name in plan.strides_of_persistent],
        tiles=[c_axis(units) for units in own.widths],
        channels=[speller.channel(channel) for channel in own.channels],
        sums=[speller.row_sums(each) for each in own.sums],
        row_values=list(speller.row_values.values()),
        stages=[speller.stage(number, stage) for number, stage in enumerate(own.stages, start=1)],
        passed=[
            (
                PassedLines(rows_at(one.rows), c_factor(one.rows.stride), c_axis(one.units)),
                speller.tile(one.units),
            )
            for one in own.passed
        ],
        masked=[speller.masked(number, s) for number, s in enumerate(plan.states, start=1)],
        element=words.elements[Element.STORE],
        flag=words.elements[Element.FLAG],
        validity=options.validity,
        resets=options.resets,
        after=_left_out(plan, options),
        backward=plan.is_backward,
        heads=c_factor(own.heads) if own.heads is not None else "",
        head_units=c_axis(own.head_units) if own.head_units is not None else "",
        levels=own.levels,
        most_octets=own.most_octets,
        launches=len(plan.steps),
        others=others,
    )


class _PersistentSpeller:
    """Spells the parts of one kernel; remembers what a step has received."""

    def __init__(self, own: Persistent, words: DeviceDialect, options: OptionLines) -> None:
        self.own, self.words, self.options = own, words, options
        self.names = {c: f"channel_{n}" for n, c in enumerate(own.channels, start=1)}
        self.sums = {each: f"sums_{n}" for n, each in enumerate(own.sums, start=1)}
        self.row_values = {one: f"of_row_{n}" for n, one in enumerate(own.row_values, start=1)}
        self.there: set[Channel] = set()

    def row_sums(self, sums: RowSums) -> ToldLines:
        """Spell sums over units that blocks tell each other."""
        return ToldLines(self.sums[sums], sums.memory, c_axis(sums.units))

    def tile(self, units: Expr) -> int:
        """The number of the tile of a width."""
        widths = [expand(width) for width in self.own.widths]
        return widths.index(expand(units)) + 1

    def channel(self, channel: Channel) -> ChannelLines:
        """Spell a channel."""
        initial = ""
        if channel.initial is not None:
            rows = channel.initial
            links = self.options.options.programs.links
            link = next(k for k in links if str(k.previous.name) == rows.array)
            copy = self.options.options.copy_of(link.previous)
            at = f"cg_in(guarded ? {copy} : {rows_at(rows)}, {c_axis(rows.stride)})"
            initial = f"cg_load({at}, row, unit)"
        return ChannelLines(
            self.names[channel],
            channel.memory,
            c_axis(channel.units),
            self.tile(channel.units),
            initial,
        )

    def masked(self, number: int, state: DeviceState) -> MaskedLines:
        """Spell what follows a step that may be masked."""
        link, name = state.link, f"upstream_{number}"
        is_backward = self.options.is_backward
        value = link.passed if is_backward else link.next
        width, upstream, channel = row_width(value), "", ""
        tile = self.tile(width if self.own.head_units is None else self.own.head_units)
        if is_backward:
            now, after = (rows_at(state.carried(m)) for m in (Moment.NOW, Moment.AFTER))
            upstream = self.options.upstream(link)
        else:
            assert state.left is not None
            now, after = self.options.options.copy_of(link.previous), pointer_of(state.left)
            own = next((c for c in self.own.channels if c.value == link.next), None)
            channel = self.names[own] if own and own.initial is not None else ""
        start = c_start(self.options.options.programs.definition.initial_of(link.previous))
        is_output = link.next in self.options.options.programs.outputs
        return MaskedLines(
            tile,
            c_factor(width),
            now,
            after,
            is_output,
            start or "real(0)",
            channel,
            upstream,
            name,
        )

    def stage(self, number: int, stage: PersistentStage) -> SharedStageLines:
        """Spell a stage, the products before the loop."""
        read = list(dict.fromkeys(c for held in stage.products for c in held.channels))
        received = [self.names[c] for c in read if c not in self.there]
        self.there |= set(read)
        held = [line for product in stage.products for line in self._held(product)]
        held = [_named(line, f"held_{number}_{n}") for n, line in enumerate(held, start=1)]
        product = stage.products[0].product if stage.products else None
        loop = self._loop(stage)
        return SharedStageLines(
            number=number,
            comments=[str(one.product) for one in stage.products],
            tile=self.tile(stage.units),
            slots=product.slots if product else 0,
            received=received,
            held=held,
            loop=loop,
            ahead=self._ahead(stage, loop),
            sums=matrix(product.sums) if product else ("", ""),
            onto=product.onto if product else False,
            width=c_axis(product.width) if product else "",
            published=[
                (self.names[c], _name_in(stage, c), c.initial is not None)
                for c in stage.publishes
                if c.value in stage.formed
            ],
            kept=[
                (self._variable(c), _name_in(stage, c))
                for c in self.own.channels
                if c.value in stage.formed and c not in stage.publishes
            ],
            late=[
                (self.names[c], self._variable(c), self.tile(c.units))
                for c in stage.publishes
                if c.value not in stage.formed
            ],
            gathered=[self._received(sums) for sums in stage.receives],
            tells=[
                (self.sums[sums], [str(one.value.name) for one in sums.sums])
                for sums in stage.tells
            ],
            of_row=[
                (self.row_values[one], _as_stored(one, str(one.value.name))) for one in stage.by_row
            ],
        )

    def _ahead(self, stage: PersistentStage, loop: ElementLines | None) -> list[AheadLoad]:
        """What is read a step before it is needed: of each unit, and written by no step."""
        if loop is None or stage.by_row:
            return []
        return [read for read in loop.reads if not self._is_written(read.buffer)]

    def _received(self, sums: RowSums) -> ReceivedLines:
        """Spell the sums that a stage waits for."""
        stores = []
        for number, one in enumerate(sums.sums):
            rows = f"cg_rows({moved(one.view, one.place)}, {stride(one.place)})"
            routine = "cg_store_if" if one.place.optional else "cg_store"
            total = _as_stored(one, f"totals[{number}]")
            stores.append((self.row_values[one], total, routine, rows))
        return ReceivedLines(self.sums[sums], stores)

    def _loop(self, stage: PersistentStage) -> ElementLines | None:
        if stage.loop is None:
            return None
        onto = bool(stage.products) and stage.products[0].product.onto
        sums = {value: f"sum[{slot}]" for value, slot in stage.sums.items()}
        of_row = {value: self.row_values[one] for value, one in stage.of_row.items()}
        return elements_of(stage.loop, self.words, sums, of_row, onto=onto)

    def _is_written(self, buffer: Buffer) -> bool:
        """Whether a step writes what a step reads."""
        links = self.options.options.programs.links
        carried = {link.carry for link in links}
        if not self.options.is_backward:
            carried |= {link.previous for link in links}
        return buffer.value in carried or buffer in self.own.written

    def _variable(self, channel: Channel) -> str:
        """What a thread keeps its number in, where a later stage publishes it."""
        return f"{self.names[channel]}_next"

    def _held(self, held: HeldProduct) -> Iterable[HeldLines]:
        product, start = held.product, ZERO
        for channel in held.channels:
            yield HeldLines(
                "",
                self.names[channel],
                panel(product.panel),
                product.panel.transposed,
                product.slots,
                c_axis(product.units),
                c_axis(start),
                c_axis(channel.units),
                c_axis(product.inner),
                f"{product.slots} * {c_factor(product.units)} * {c_factor(channel.units)}",
            )
            start = start + channel.units


def _as_stored(one: RowValue, text: str) -> str:
    """What threads go on with of a value of a row: what memory would hold of it."""
    return f"cg_as_stored<store>({text})" if one.place.element is Element.STORE else text


def _name_in(stage: PersistentStage, channel: Channel) -> str:
    """The C name of a channel's value in the stage that forms it."""
    if stage.loop is not None:
        return str(channel.value.name)
    targets = [view.buffer.value for view in stage.products[0].product.targets]
    return f"sum[{targets.index(channel.value)}]"


def _left_out(plan: DeviceTimePlan, options: OptionLines) -> list[str]:
    """What the host does behind the kernel: adjoints of masked steps count nothing."""
    return [
        f"if (guarded) cg_leave_out(&run, nT * nB, {c_factor(kept.stride)}, {kept.memory}, "
        f"{options.validity});"
        for kept in (plan.kept, plan.terms)
        if kept.order
    ]


def _named(line: HeldLines, name: str) -> HeldLines:
    return replace(line, name=name)


def staying_explained(plans: Iterable[DeviceTimePlan]) -> list[str]:
    """Say for each function over time whether blocks may stay on the device, and why not."""
    lines = []
    for plan in plans:
        own = plan.persistent.persistent
        if own is None:
            why = plan.persistent.reason
            lines.append(f"{plan.function}: no blocks stay on the device together, because {why}")
            continue
        levels = f"{own.levels} level{'s' if own.levels > 1 else ''}"
        summed = " and of sums over units" if own.sums else ""
        values = ", ".join([*(str(channel.value) for channel in own.channels), *map(str, own.sums)])
        lines.append(
            f"{plan.function}: blocks stay on the device together, {levels} of products{summed} in "
            f"a step, of all types but float64, where their weights fit and the model says it is "
            f"faster (compute capability 9.0), or a call asks for it; they tell each other {values}"
        )
    return lines


def sizes_of(own: PersistentContext) -> dict[str, str]:
    """C texts of what the model asks of a layer."""
    octets = "0"
    for units in own.tiles:
        octets = f"(int)cellgen_larger({octets}, cellgen_octets({units}))"
    factors = " + ".join(f"cellgen_factors({c.units})" for c in own.channels)
    heads = own.heads or "1"
    products = " + ".join(held.elements for held in own.held)
    return {
        "octets": octets,
        "operands": f"(int64_t)({factors}) * CELLGEN_GROUP * (int64_t)sizeof(store)",
        "products": f"(int64_t){heads} * ({products})",
    }
