"""Spell the time loop of a cell in C: stages of a step, packing, memory and the loops over time.

Input: ``SequenceSchedule``. Output: contexts for ``sequence.j2``. Every stage becomes a function of
a step, a range of rows and a share of the units; the drivers decide who calls it with which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import groupby, takewhile

from sympy import Expr

from cellgen.language.names import Names
from cellgen.language.value import Role, Value
from cellgen.program.over_time import StateLink
from cellgen.runtime.abi import Function as Signature
from cellgen.runtime.abi import c_dim
from cellgen.runtime.names import LOCALS, c_member
from cellgen.schedule import Buffer, Kind, Loop, Product, Routine, Store
from cellgen.schedule import Function as PlannedFunction
from cellgen.schedule.groups import Group, GroupedStage, Term, Weight, views_read
from cellgen.schedule.over_time import (
    Part,
    SequenceSchedule,
    Storage,
    deferred_meetings,
    meetings,
    mixes_rows,
    products_together,
    row_by_row,
    summed_over_rows,
    waits_for_no_state,
)
from cellgen.schedule.stage import Line, View, describe, flat
from cellgen.targets.c.loops import (
    LoopLines,
    LoopWriter,
    TileRow,
    column_of,
    leaves_out_rows,
    offset_of,
    routine_call,
)
from cellgen.targets.c.printer import c_axis, c_factor, c_start
from cellgen.targets.c.step import LoopContext, ProductContext, StepWriter, c_count

# --- contexts ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PackContext:
    """Weights of one slot into their place in a panel.

    ``by_units``: whether each thread packs what it computes, multiples of ``grain``. Of ``heads``
    side by side, those of the next head are ``head_weights`` further on, and so is their panel by
    ``head_panel``.
    """

    inner: str
    weights: str
    stride: str
    transposed: int
    units: str
    by_units: str
    grain: str
    slots: int
    slot: int
    widest: int
    panel: str
    heads: str
    head_weights: str
    head_panel: str


@dataclass(frozen=True)
class SlotProductContext:
    """An operand times the weights of one slot, where they lie: those of ``head``, if any."""

    inner: str
    operand: str
    stride: str
    weights: str
    weights_stride: str
    transposed: int
    slot: int
    accumulate: int


@dataclass(frozen=True)
class RunContext:
    """An operand times one packed panel."""

    inner: str
    operand: str
    stride: str
    panel: str
    slots: int
    first_slot: int
    hoisted: str


@dataclass(frozen=True)
class TileContext:
    """One call of a tile kernel: runs that fill the same slots, as one chain."""

    runs: list[RunContext]
    slots: int
    first_slot: int
    accumulate: int


@dataclass(frozen=True)
class OuterContext:
    """One weight gradient: the products' left and right operand by number, and where it lies."""

    left: int
    right: int
    place: str
    stride: str
    accumulate: str


@dataclass(frozen=True)
class OutersContext:
    """Weight gradients over the same rows, of every one of ``heads``.

    ``lefts`` and ``rights`` are C initialisers of the operands: a thread's rows, or all columns,
    address, stride, and the memory that a left one is packed into.
    """

    heads: str
    lefts: list[str]
    rights: list[str]
    outers: list[OuterContext]


@dataclass(frozen=True)
class StageContext:
    """One stage as a C function.

    ``ahead`` declares the operand of a product that can be formed for a window of steps; shares of
    units are multiples of ``grain``, the same in all stages of a part; ``units`` are those of one
    of the ``heads``, where a group has any. Where weights are not packed, ``products`` fill the
    array ``whole``: each row holds ``all_units`` of every slot. ``depth`` counts the rows of all
    panels, each as often as it has slots. A group ``is_free`` where nothing in it waits for a
    state. ``coming``: calls that name the rows of arrays over time that its tiles fetch, under the
    condition ``coming_when``, while they go through ``fetching_depth`` k. ``written_in_place``:
    rows of the results that tiles of many steps write where they belong.
    """

    name: str
    kind: str
    comment: str
    prelude: list[str]
    units: str
    grain: str
    ahead: list[str] = field(default_factory=list)
    slots: int = 0
    widest: int = 0
    zeroed: list[int] = field(default_factory=list)
    loops: list[LoopLines] = field(default_factory=list)
    call: str = ""
    heads: str = ""
    depth: str = ""
    products: list[SlotProductContext] = field(default_factory=list)
    whole: str = ""
    all_units: str = ""
    is_free: bool = False
    tiles: list[TileContext] = field(default_factory=list)
    coming: list[str] = field(default_factory=list)
    coming_when: str = ""
    fetching_depth: str = ""
    outers: OutersContext | None = None
    written_in_place: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class MemoryContext:
    """One array of the workspace: its name, element count, purpose, type, and when it is needed."""

    name: str
    count: str
    note: str
    kind: str = "real"
    when: str = "1"


@dataclass(frozen=True)
class SeriesContext:
    """One array over time, (T, B, width) at the caller's strides.

    ``staged``: steps read a copy where some do not count; ``across``: the deferred part reads it
    over many steps; ``delivered``: the deferred part writes it. Its two strides are at ``place`` of
    all, if it has any (saved arrays lie in the order of computation without gaps). An output that
    ``is_shown`` is no state: a step that does not count repeats the one before, or shows zeros; its
    gradient ``is_repeated``: those of steps that repeat one are added to that one's.
    """

    name: str
    width: str
    place: int = 0
    has_strides: bool = False
    is_output: bool = False
    is_shown: bool = False
    is_repeated: bool = False
    staged: bool = False
    across: bool = False
    delivered: bool = False


@dataclass(frozen=True)
class KeptContext:
    """One value that has a row for each of a chunk of steps."""

    name: str
    width: str


@dataclass(frozen=True)
class OnceContext:
    """What one thread does once a sequence, on weights alone: run-time scalars, then stages."""

    name: str
    scalars: list[str]
    stages: list[ProductContext | LoopContext]


@dataclass(frozen=True)
class RowsContext:
    """Neighbouring stages by number; if they are ``by_rows``, no row of theirs needs another."""

    stages: list[int]
    by_rows: bool


@dataclass(frozen=True)
class SumContext:
    """A sum over the rows of all steps: the total, how long it is, and those of groups of rows."""

    total: str
    count: str
    groups: str


@dataclass(frozen=True)
class StepsContext:
    """The gradient of what is constant over time: its total, the share of each step, its width."""

    place: str
    share: str
    width: str


@dataclass(frozen=True)
class TotalContext:
    """A sum over all steps: ``place`` of a band, and as a ``member`` of one.

    A product begins it, or zeros do. One ``is_batched`` has a row for each of the batch; of others
    every band of rows but the first has an array of its ``own`` in place of the caller's.
    """

    name: str
    place: str
    member: str
    count: str
    begun: bool
    is_batched: bool
    own: str


@dataclass(frozen=True)
class RowArrayContext:
    """An array of the caller with rows ``width`` apart that no stride says: of a step, or saved."""

    name: str
    width: str


@dataclass(frozen=True)
class PartContext:
    """The stages of one part and the packing they need.

    ``meets_after``: the stages after which threads meet, those of a step only where they share
    units; ``runs``: those of many steps, by neighbours that a group of rows goes through at a time;
    ``free_shares``: among how many threads the units can be shared where no product waits for a
    state, else 0.
    """

    name: str
    stages: list[StageContext]
    packs: list[PackContext]
    panel_sizes: list[str]
    can_split_units: bool
    meets_after: list[bool]
    runs: list[RowsContext]
    free_shares: str


@dataclass(frozen=True)
class LinkContext:
    """What the drivers do for one state, ``name`` after a step and ``previous`` before it.

    ``over_time`` is where a step's new value lies, ``series`` all of them (None: not kept),
    ``is_output`` whether the caller sees it; ``now`` and ``across``: a step, or the deferred part,
    reads the state before. ``upstream`` is the gradient of the output, if it is one. ``initial`` is
    where the state starts, spelled in C, or empty for 0.
    """

    name: str
    previous: str
    passed: str
    width: str
    over_time: str
    series: str | None
    is_output: bool
    now: bool
    across: bool
    upstream: str
    initial: str


@dataclass(frozen=True)
class SequenceContext:
    """One function over time: ``forward``, or ``backward`` with its two parts."""

    stem: str
    text: str
    parameters: str
    dims: list[str]
    required: list[str]
    memory: list[MemoryContext]
    panels: list[MemoryContext]
    packs_from: list[str]
    zeros: str
    parts: list[PartContext]
    links: list[LinkContext]
    series: list[SeriesContext]
    flag_strides: int
    kept: list[KeptContext]
    totals: list[TotalContext]
    sums: list[SumContext]
    totals_of_steps: list[StepsContext]
    prologue: OnceContext | None
    epilogue: OnceContext | None
    reads_previous: bool
    constants: list[KeptContext]
    is_backward: bool
    row_arrays: list[RowArrayContext]
    band_dims: list[str]


# --- functions -----------------------------------------------------------------------------------


def sequence_functions(
    schedule: SequenceSchedule, signatures: tuple[Signature, ...]
) -> list[SequenceContext]:
    """Return the contexts of the two functions over time."""
    forward, backward = signatures
    return [
        _Function(schedule, forward, ("forward",)).context(),
        _Function(schedule, backward, ("reverse", "deferred")).context(),
    ]


@dataclass
class _Function:
    """Spells one function over time and collects the memory that it needs."""

    schedule: SequenceSchedule
    signature: Signature
    part_names: tuple[str, ...]
    memory: dict[str, MemoryContext] = field(default_factory=dict)
    panels: list[MemoryContext] = field(default_factory=list)
    product_rows: list[str] = field(default_factory=list)

    def context(self) -> SequenceContext:
        definition = self.schedule.programs.definition
        prologue = self._once("prologue", self.schedule.prologue)
        parts = [self._part(name) for name in self.part_names]
        epilogue = self._once("epilogue", self.schedule.epilogue) if self.is_backward else None
        links = [self._link(link) for link in self.schedule.programs.links]
        series = self._series()
        outputs = {str(value.name) for value in self.schedule.programs.outputs}
        required = [
            a.name
            for a in (*self.signature.struct_members, *self.signature.results)
            if not a.is_scalar
            and not a.optional
            and not (a.saved and a in self.signature.results)
            and not (a in self.signature.results and a.name in outputs)
        ]
        zeros = self._zeros()
        totals = self._totals()
        self._add_product_block()
        self._add_tables()
        return SequenceContext(
            stem=f"{definition.name}_{self.signature.name}",
            text=self.signature.text,
            parameters=", ".join(f"int64_t {c_dim(dim)}" for dim in self.signature.dims),
            dims=[c_dim(dim) for dim in self.signature.dims],
            required=required,
            memory=[item for item in self.memory.values() if item not in self.panels],
            panels=self.panels,
            packs_from=[a.name for a in self.signature.struct_members if a.is_weight],
            zeros=zeros,
            parts=parts,
            links=links,
            series=series,
            flag_strides=sum(2 for item in series if item.has_strides),
            kept=self._kept() if self.is_backward else [],
            totals=totals,
            sums=self._sums() if self.is_backward else [],
            totals_of_steps=self._totals_of_steps() if self.is_backward else [],
            prologue=prologue,
            epilogue=epilogue,
            reads_previous=self._reads_previous(),
            constants=self._constants() if self.is_backward else [],
            is_backward=self.is_backward,
            row_arrays=self._row_arrays(),
            band_dims=["rows" if dim == "B" else c_dim(dim) for dim in self.signature.dims],
        )

    def _series(self) -> list[SeriesContext]:
        """Every array over time of the call, and the memory that some options need for it."""
        programs = self.schedule.programs
        outputs = {str(value.name) for value in programs.outputs}
        inputs = {str(v.name) for v in programs.definition.with_role(Role.INPUT)}
        states = {str(link.next.name) for link in programs.links}
        first: Part = getattr(self.schedule, self.part_names[0])
        across = self._read_across() if self.is_backward else set()
        found: list[SeriesContext] = []
        members = [*self.signature.struct_members, *self.signature.results]
        timed = [a for a in members if a.shape[:1] == ("T",) and not a.saved]
        for place, item in enumerate(timed):
            width = c_mul(" * ".join(c_mul(c_axis_text(axis)) for axis in item.shape[2:]))
            is_repeated = self.is_repeated(item.name)
            staged = (item.name in inputs or is_repeated) and _reads(first, item.name)
            is_read = staged or item.name in across
            context = SeriesContext(
                name=item.name,
                width=width,
                place=2 * place,
                has_strides=True,
                is_output=item.name in outputs and not self.is_backward,
                is_shown=item.name in outputs - states and not self.is_backward,
                is_repeated=is_repeated and is_read,
                staged=staged,
                across=item.name in across,
                delivered=self.is_delivered(item.name) and item in self.signature.results,
            )
            found.append(context)
            self._add_series_memory(context)
        states_after = {link.next for link in programs.links}
        for value in programs.saved if self.is_backward else ():
            is_across = self.is_saved_across(value)
            if value in states_after or is_across:
                name, width = str(value.name), c_mul(_row_length(value))
                found.append(SeriesContext(name, width, across=is_across))
                self._add_series_memory(found[-1])
        return found

    def is_delivered(self, name: str) -> bool:
        """Whether rows of many steps of a result are copied to where they belong: those that
        something else than a tile writes, or that something reads."""
        return self.is_backward and name not in self.written_in_place

    @cached_property
    def written_in_place(self) -> frozenset[str]:
        """Results over time that only groups of the deferred part write, from their tiles."""
        if not self.is_backward:
            return frozenset()
        part = self.schedule.deferred
        others = _read_from_memory(part.stages)
        for stage in part.stages:
            rows = {view.buffer for view in _views_written(stage) if len(view.shape) == 2}
            others |= set(_writes(stage)) - rows
        results = {b for b in part.function.of_kind(Kind.RESULT) if part.storage[b] is Storage.TIME}
        return frozenset(buffer.name for buffer in results - others)

    def is_saved_across(self, value: Value) -> bool:
        """Whether the deferred part reads a saved array, of which a band's rows lie apart."""
        return value in self.schedule.programs.saved and str(value.name) in self._read_across()

    def _add_series_memory(self, item: SeriesContext) -> None:
        name, width = item.name, item.width
        if item.staged:
            self.add_memory(f"stage_{name}", f"nB * {width}", "of one step, zeros", when="tables")
        if item.is_repeated:
            note = "gradients of steps that repeat an earlier one"
            self.add_memory(f"later_{name}", f"nB * {width}", note, when="tables")
        if item.is_output:
            self.add_memory(f"only_{name}", f"nB * {width}", "of the last step", when="last")
        if item.across or item.delivered:
            self.add_memory(
                f"rows_{name}", f"chunk_rows * {width}", "rows of many steps", when="gathered"
            )

    def is_repeated(self, name: str) -> bool:
        """Whether an argument is the gradient of an output over time that is no state."""
        programs = self.schedule.programs
        states = {link.next for link in programs.links}
        given = {str(g.name) for output, g in programs.upstream.items() if output not in states}
        return self.is_backward and name in given

    def _read_across(self) -> set[str]:
        """Names of the arrays over time that the deferred part reads."""
        deferred = self.schedule.deferred
        return {
            str(buffer.value.name)
            for buffer, place in deferred.storage.items()
            if place is Storage.TIME and buffer.kind is not Kind.RESULT
        }

    def _kept(self) -> list[KeptContext]:
        kept = self.schedule.programs.kept
        return [KeptContext(str(value.name), c_mul(_row_length(value))) for value in kept]

    def _add_tables(self) -> None:
        """What says which steps count; see ``cellgen_fill_tables``."""
        kind = "unsigned char"
        self.add_memory("counts", "nT * nB", "which steps count", kind=kind, when="tables")
        self.add_memory("fresh", "nT * nB", "which start from zero", kind=kind, when="tables")
        if self.is_backward:
            note = "the step whose state each starts from"
            self.add_memory("before", "nT * nB", note, kind="int32_t", when="tables")

    @property
    def is_backward(self) -> bool:
        return len(self.part_names) == 2

    def _zeros(self) -> str:
        """Length of a row of zeros for upstream gradients that are left out."""
        shapes = [a.shape[a.shape.index("B") + 1 :] for a in self.signature.arguments if a.optional]
        terms = list(dict.fromkeys(_units_of(shape) for shape in shapes))
        return " + ".join(terms)

    def _totals(self) -> list[TotalContext]:
        """Every sum over all steps."""
        if not self.is_backward:
            return []
        part = self.schedule.deferred
        buffers = (b for b, place in part.storage.items() if place is Storage.TOTAL)
        over_rows = [self._total(b, begins_with_product(part, b)) for b in buffers]
        contexts = (b for b in part.storage if b.value in self.schedule.programs.contexts)
        return over_rows + [self._total(buffer, begun=False) for buffer in contexts]

    def _totals_of_steps(self) -> list[StepsContext]:
        """What each chunk of steps adds to the gradients of what is constant over time."""
        return [
            StepsContext(self.place_of(value), f"deferred_{value.name}", c_mul(_row_length(value)))
            for value in self.schedule.programs.contexts
        ]

    def _total(self, buffer: Buffer, begun: bool) -> TotalContext:
        name, count = str(buffer.name), _count(buffer.shape)
        place, own = self.place_of(buffer.value), ""
        is_callers = place.startswith("memory->args->")
        if is_callers and not buffer.value.is_batched:
            own = f"own_{name}"
            self.add_memory(own, count, "of a band of rows", when="own")
        return TotalContext(
            name=name,
            place=place.replace("memory->args->", "args->"),
            member=place.replace("memory->args->", "args.").replace("memory->", "memory."),
            count=count,
            begun=begun,
            is_batched=buffer.value.is_batched,
            own=own,
        )

    def _row_arrays(self) -> list[RowArrayContext]:
        """What the caller gives or gets with a row for each of the batch: once, or saved."""
        found = []
        for item in (*self.signature.struct_members, *self.signature.results):
            units = item.shape[1:] if item.shape[:1] == ("B",) else item.shape[2:]
            if item.shape[:1] == ("B",) or (item.saved and item.shape[:2] == ("T", "B")):
                width = c_mul(" * ".join(c_mul(c_axis_text(axis)) for axis in units)) or "1"
                found.append(RowArrayContext(item.name, width))
        return found

    def _sums(self) -> list[SumContext]:
        stages = self.schedule.deferred.stages
        buffers = dict.fromkeys(b for stage in stages for b in summed_over_rows(stage))
        return [
            SumContext(self.place_of(b.value), _count(b.shape), self.sums_of_groups(b))
            for b in buffers
        ]

    def sums_of_groups(self, total: Buffer) -> str:
        """Memory for the sums over groups of rows of a chunk, and of one that another shares."""
        count = f"cellgen_sum_groups(chunk_rows) * cellgen_sum_stride({_count(total.shape)})"
        return self.add_memory(f"sums_{total.name}", count, "sums over groups of rows")

    def place_of(self, value: Value) -> str:
        """Where a value that is the same at every step lies: the caller's, or the function's."""
        programs = self.schedule.programs
        for kind, own in (("fixed", programs.fixed), ("total", programs.totals)):
            if value in own:
                note = {"fixed": "of weights alone", "total": "summed over all steps"}[kind]
                place = self.add_memory(f"{kind}_{value.name}", _count(value.shape), note)
                if kind == "fixed":
                    self.keep_packed(f"fixed_{value.name}")
                return place
        return f"memory->args->{c_member(str(value.name))}"

    def _once(self, name: str, function: PlannedFunction | None) -> OnceContext | None:
        if function is None:
            return None
        writer = _OnceWriter(self, function)
        scalars = [buffer.name for buffer in function.of_kind(Kind.SCALAR)]
        return OnceContext(name, scalars, [writer.stage(stage) for stage in function.stages])

    def has_strides(self, value: Value) -> bool:
        """Whether the caller says how far the steps and rows of an array over time are apart."""
        members = (*self.signature.struct_members, *self.signature.results)
        return any(a.name == str(value.name) and not a.saved for a in members)

    def _reads_previous(self) -> bool:
        return Storage.PREVIOUS in self.schedule.deferred.storage.values()

    def _constants(self) -> list[KeptContext]:
        """What is the same at every step and has a row for each of the batch: the deferred part
        reads it over many steps, from copies for each of a chunk."""
        storage = self.schedule.deferred.storage.items()
        values = [b.value for b, place in storage if place is Storage.CONSTANT]
        return [KeptContext(str(v.name), c_mul(_row_length(v))) for v in values if v.is_batched]

    def add_memory(
        self, name: str, count: str, note: str, *, kind: str = "real", when: str = "1"
    ) -> str:
        self.memory.setdefault(name, MemoryContext(name, count, note, kind, when))
        return f"memory->{name}"

    def _add_product_block(self) -> None:
        if self.product_rows:
            count = f"{c_mul(' + '.join(self.product_rows))} * cellgen_depth_of(chunk_rows)"
            self.add_memory("product_block", count, "packed operands of weight gradients")

    def product_block(self, rows: str) -> str:
        """Where threads pack an operand of so many rows: a place of its own, since no meeting keeps
        one of them from packing the next while another still reads this."""
        before = " + ".join(self.product_rows)
        self.product_rows.append(rows)
        depth = f" + {c_mul(before)} * cellgen_depth_of(memory->chunk_steps * nB)"
        return f"memory->product_block{depth if before else ''}"

    def keep_packed(self, name: str) -> None:
        """Let an array of the workspace be part of what is packed for many calls."""
        item = self.memory[name]
        if item not in self.panels:
            self.panels.append(item)

    def _part(self, name: str) -> PartContext:
        part: Part = getattr(self.schedule, name)
        writer = _PartWriter(self, name, part)
        if name == "deferred":
            runs = products_together(part.stages)
            meets = deferred_meetings(runs)
        else:
            runs = tuple((stage,) for stage in part.stages)
            meets = meetings(part, self.schedule.programs)
        stages = [writer.stage(index, run) for index, run in enumerate(runs, start=1)]
        return PartContext(
            name,
            stages,
            writer.packs,
            writer.panel_sizes,
            part.can_split_units,
            meets_after=list(meets),
            runs=_rows_of(runs, meets) if name == "deferred" else [],
            free_shares=self._free_shares(part, stages),
        )

    def _free_shares(self, part: Part, stages: list[StageContext]) -> str:
        if not waits_for_no_state(part, self.schedule.programs):
            return "0"
        group = next(stage for stage in stages if stage.kind == "group")
        return f"({group.units} + {group.grain} - 1) / {group.grain}"

    def _link(self, link: StateLink) -> LinkContext:
        programs = self.schedule.programs
        name, width = str(link.next.name), c_mul(_row_length(link.next))
        previous = str(link.previous.name)
        is_output = link.next in programs.outputs
        kept = is_output or (self.is_backward and link.next in programs.saved)
        over_time = ""
        if not self.is_backward and not is_output:
            over_time = f"{self.state_pair(link.next)} + step % 2 * nB * {width}"
        now, across = not self.is_backward, False
        if self.is_backward:
            note = "gradient between two steps"
            self.add_memory(f"{link.passed.name}_pair", f"2 * nB * {width}", note)
            now = link.previous in self.schedule.programs.reverse.arguments
            across = link.previous in self.schedule.programs.deferred.arguments
        if now:
            note = "state before a step"
            self.add_memory(f"now_{previous}", f"nB * {width}", note, when="guarded")
        if across:
            note = "states before many steps"
            self.add_memory(f"rows_{previous}", f"chunk_rows * {width}", note, when="gathered")
        return LinkContext(
            name=name,
            previous=previous,
            passed=str(link.passed.name),
            width=width,
            over_time=over_time,
            series=f"series_{name}" if kept else None,
            is_output=is_output,
            now=now,
            across=across,
            upstream=str(programs.upstream[link.next].name) if is_output else "",
            initial=c_start(programs.definition.initial_of(link.previous)),
        )

    def state_pair(self, state: Value) -> str:
        """Two steps of a state that nobody asked for at every step."""
        return self.add_memory(
            f"{state.name}_pair", f"2 * nB * {c_mul(_row_length(state))}", "state, two steps"
        )


def begins_with_product(part: Part, total: Buffer) -> bool:
    """Whether only products write a sum over all steps: the first of them writes it whole."""
    written = {stage: _writes(stage) for stage in part.stages}
    return all(isinstance(stage, Product) for stage in written if total in written[stage])


def _writes(stage: GroupedStage) -> list[Buffer]:
    if isinstance(stage, Product | Routine):
        return [stage.target.buffer]
    if isinstance(stage, Loop):
        return _stored(stage)
    stored = [slot.view.buffer for slot in stage.slots if slot.needs_memory]
    return stored + [buffer for loop in stage.loops for buffer in _stored(loop)]


def _up_to_group(stages: Sequence[GroupedStage]) -> Iterator[GroupedStage]:
    return takewhile(lambda stage: not isinstance(stage, Group), stages)


def _fetching_depth(runs: Sequence[RunContext]) -> str:
    """How many k a tile goes through in products of more than one vector, which fetch: an only slot
    is one vector where the widest operand has three slots or more (``CELLGEN_SLOT_VECTORS``)."""
    widest = max(run.slots for run in runs)
    wide = [run.inner for run in runs if run.slots > 1 or widest < 3]
    return " + ".join(wide) or "0"


def _read_by(stages: Iterable[GroupedStage]) -> dict[Buffer, None]:
    return dict.fromkeys(view.buffer for stage in stages for view in views_read(stage))


def _views_written(stage: GroupedStage) -> list[View]:
    """What a group writes from its tiles, row by row."""
    if not isinstance(stage, Group):
        return []
    lines = [line for loop in stage.loops for line in loop.lines]
    views = [line.view for line in lines if line.view and line.store is Store.WRITE]
    return [slot.view for slot in stage.slots if slot.needs_memory] + views


def _read_from_memory(stages: Iterable[GroupedStage]) -> set[Buffer]:
    """The buffers that stages read; what a loop finds in the tile of its group is none."""
    return {
        view.buffer
        for stage in stages
        for view in views_read(stage)
        if not isinstance(stage, Group) or stage.slot_of(view) is None
    }


_SUMS_OVER_UNITS = frozenset((Store.ADD_UNITS, Store.ADD_ALL))


def _written_beside_sums(stages: Iterable[GroupedStage]) -> set[Buffer]:
    """The buffers that a loop writes unit by unit while it adds units up."""
    found: set[Buffer] = set()
    for stage in stages:
        loops = stage.loops if isinstance(stage, Group) else [stage]
        for loop in loops:
            if isinstance(loop, Loop) and not _SUMS_OVER_UNITS.isdisjoint(
                line.store for line in loop.lines
            ):
                found.update(_stored(loop))
    return found


def _rows_of(stages: Sequence[Sequence[GroupedStage]], meets: Sequence[bool]) -> list[RowsContext]:
    """Neighbouring stages that a group of rows goes through at a time, and others one by one."""
    return [
        RowsContext(list(run), not mixes_rows(stages[run[0]][0]))
        for run in row_by_row([stage[0] for stage in stages], meets)
    ]


def _reads(part: Part, name: str) -> bool:
    return any(
        str(buffer.value.name) == name and buffer.kind is not Kind.RESULT for buffer in part.storage
    )


def _units_of(shape: Sequence[str]) -> str:
    """Spell how many units a row of an array of an interface has."""
    if len(shape) == 1:
        return c_axis_text(shape[0])
    return " * ".join(c_mul(c_axis_text(axis)) for axis in shape)


def _row_length(value: Value) -> str:
    return c_count(value.shape[1:])


def c_mul(text: str) -> str:
    return f"({text})" if " " in text else text


def c_axis_text(axis: str) -> str:
    """Spell an axis length of an interface in C."""
    terms = []
    for term in axis.split(" + "):
        factors = [c_dim(f) if f[0].isalpha() else f for f in term.split("*")]
        terms.append(" * ".join(factors))
    return " + ".join(terms)


def _count(shape: Iterable[Expr]) -> str:
    return " * ".join(c_factor(axis) for axis in shape) or "1"


# --- stages --------------------------------------------------------------------------------------


class _OnceWriter(StepWriter):
    """Spells what runs once a sequence: as a step, its arrays in the function's memory."""

    def __init__(self, owner: _Function, function: PlannedFunction) -> None:
        super().__init__(function)
        for buffer in function.buffers:
            self.memory[buffer] = owner.place_of(buffer.value)
            if buffer.kind is Kind.WORKSPACE:
                name = f"{function.name}_{buffer.name}"
                self.memory[buffer] = owner.add_memory(name, _count(buffer.shape), "of weights")
                if function.name == "prologue":
                    owner.keep_packed(name)


class _PartWriter(LoopWriter):
    """Spells the stages of one part."""

    first = " + first"

    def __init__(self, function: _Function, name: str, part: Part) -> None:
        self.function = function
        self.schedule = function.schedule
        self.name = name
        self.part = part
        self.packs: list[PackContext] = []
        self.panel_sizes: list[str] = []
        names = Names([*LOCALS, *(str(v.name) for v in part.function.program.values)])
        self.rows = {b: names.fresh(f"{b.name}_rows") for b in part.function.buffers}
        self.strides = {b: names.fresh(f"{b.name}_stride") for b in part.function.buffers}
        self.pointers = {v: names.fresh(f"{v.name}_row") for v in part.function.program.values}
        self.double = {link.next for link in self.schedule.programs.links}
        self.for_caller = self._for_caller()
        slots = [_widest(s) for s in part.stages if isinstance(s, Group)]
        self.shared_slots = None if name == "deferred" else min(slots, default=0)

    # --- places over time ---

    def _width(self, buffer: Buffer) -> str:
        return c_factor(buffer.shape[-1]) if buffer.shape else "1"

    def _prelude(self, buffer: Buffer, written: bool) -> list[str]:
        """Declare a pointer to a buffer's first row in the current step."""
        storage = self.part.storage[buffer]
        name, const = self.rows[buffer], "" if written else "const "
        if buffer.kind is Kind.SCALAR:
            return [f"const real {buffer.name} = memory->args->{c_member(buffer.name)};"]
        if self._is_in_place(buffer):
            return []
        if self.is_series(buffer):
            return self._over_time(buffer, const=not written)
        if storage is Storage.PREVIOUS:
            return self._previous(buffer)
        if storage is Storage.CARRY_IN:
            return self._carry_in(buffer)
        return [f"{const}real *{name} = {self._place(buffer, storage)};"]

    def _over_time(self, buffer: Buffer, *, const: bool) -> list[str]:
        """Declare the rows of an array over time in the current step, and their distance."""
        name, stride, series = self.rows[buffer], self.strides[buffer], self._series(buffer)
        rows, row = f"{series}.rows + step * {series}.step", f"{series}.row"
        if buffer.kind is Kind.OPTIONAL:
            rows = f"{series}.rows ? {rows} : memory->zeros"
            row = f"{series}.rows ? {row} : 0"
        return [
            f"{'const ' if const else ''}real *{name} = {rows};",
            f"const int64_t {stride} = {row};",
        ]

    def _series(self, buffer: Buffer) -> str:
        """The array as this part finds it: for steps, or for rows of many steps."""
        if self.name == "deferred":
            return f"memory->across_{buffer.name}"
        staged = buffer.kind is Kind.ARGUMENT and buffer.value.role is Role.INPUT
        staged = staged or self.function.is_repeated(str(buffer.value.name))
        return f"memory->{'step' if staged else 'series'}_{buffer.name}"

    def _previous(self, buffer: Buffer) -> list[str]:
        """Declare the rows of a state before the current step, and their distance."""
        link = next(k for k in self.schedule.programs.links if k.previous == buffer.value)
        name, stride, width = self.rows[buffer], self.strides[buffer], self._width(buffer)
        gathered = "rows" if self.name == "deferred" else "now"
        copy = f"memory->{gathered}_{buffer.name}"
        condition = "memory->gather" if self.name == "deferred" else "memory->guarded"
        before, row = self._state_before(link.next, width)
        return [
            f"const real *{name} = {condition} ? {copy}",
            f"    : step == 0 ? memory->args->{c_member(buffer.name)} : {before};",
            f"const int64_t {stride} = {condition} || step == 0 ? {width} : {row};",
        ]

    def _state_before(self, value: Value, width: str) -> tuple[str, str]:
        """Where the state after the step before lies, and the distance of its rows."""
        programs = self.schedule.programs
        if value in programs.outputs:
            series = f"memory->series_{value.name}"
            row = f"{series}.row"
            if self.name == "deferred":
                row = f"(nB == 1 ? {series}.step : {series}.row)"
            return f"{series}.rows + (step - 1) * {series}.step", row
        return self._state(value, width, "(step - 1)"), width

    def _carry_in(self, buffer: Buffer) -> list[str]:
        link = next(k for k in self.schedule.programs.links if k.carry == buffer.value)
        pair = f"memory->{link.passed.name}_pair"
        last = f"memory->args->{c_member(f'd_{link.next.name}_last')}"
        name, stride, width = self.rows[buffer], self.strides[buffer], self._width(buffer)
        return [
            f"const real *{name} = step < nT - 1 ? {pair} + (step + 1) % 2 * nB * {width}",
            f"    : {last} ? {last} : memory->zeros;",
            f"const int64_t {stride} = step < nT - 1 || {last} ? {width} : 0;",
        ]

    def _place(self, buffer: Buffer, storage: Storage) -> str:
        if storage is Storage.TIME:
            return self._time(buffer)
        if storage is Storage.CARRY_OUT:
            pair = f"memory->{buffer.name}_pair"
            first = f"memory->args->{c_member(buffer.name)}"
            return f"step == 0 ? {first} : {pair} + step % 2 * nB * {self._width(buffer)}"
        if storage is Storage.SCRATCH:
            rows = "memory->chunk_rows" if self.name == "deferred" else "nB"
            count = f"{rows} * {self._width(buffer)}".replace("memory->", "")
            return self.function.add_memory(
                f"{self.name}_{buffer.name}", count, "of one step" if rows == "nB" else "of a chunk"
            )
        if self.name == "deferred" and storage is Storage.CONSTANT and buffer.value.is_batched:
            count = f"chunk_rows * {self._width(buffer)}"
            return self.function.add_memory(
                f"rows_{buffer.name}", count, "for each step of a chunk"
            )
        return self.function.place_of(buffer.value)

    def is_series(self, buffer: Buffer) -> bool:
        """Whether rows of a buffer over time lie at strides: the caller's, or those of a band."""
        if self.part.storage[buffer] is not Storage.TIME or buffer.kind is Kind.SCALAR:
            return False
        if self.name == "deferred" and self.function.is_saved_across(buffer.value):
            return True
        return self.function.has_strides(buffer.value)

    def _time(self, buffer: Buffer) -> str:
        """An array over time of the function's own, or a saved one."""
        programs, value, width = self.schedule.programs, buffer.value, self._width(buffer)
        if self.name == "forward" and buffer.kind is Kind.RESULT:
            return self._state(value, width, "step")
        base = f"memory->args->{c_member(buffer.name)}"
        if value in programs.kept:
            note, count = "kept for a chunk of steps", f"chunk_rows * {width}"
            base = self.function.add_memory(f"{value.name}_time", count, note)
            return f"{base} + step % memory->chunk_steps * nB * {width}"
        return f"{base} + step * memory->batch * {width}"

    def _state(self, value: Value, width: str, step: str) -> str:
        """A value over time that is no output: saved if the caller asks for that."""
        base = f"memory->args->{c_member(str(value.name))}"
        if value in self.double and self.name == "forward":
            own = f"{self.function.state_pair(value)} + {step} % 2 * nB * {width}"
        elif self.name == "forward":
            own = self.function.add_memory(f"forward_{value.name}", f"nB * {width}", "of one step")
        else:
            return f"{base} + {step} * memory->batch * {width}"
        if value not in self.schedule.programs.saved:
            return own
        return f"{base} ? {base} + {step} * nB * {width} : {own}"

    # --- stages ---

    def stage(self, index: int, run: Sequence[GroupedStage]) -> StageContext:
        name = f"{self.name}_{index}"
        products = [stage for stage in run if isinstance(stage, Product)]
        if products:
            return self._products(name, products)
        (stage,) = run
        if isinstance(stage, Group):
            return self._group(name, stage)
        if isinstance(stage, Loop):
            return self._loop_stage(name, stage)
        assert isinstance(stage, Routine)
        return self._routine(name, stage)

    def _for_caller(self) -> frozenset[Buffer]:
        """What a forward pass saves and reads from memory in no step: written only if asked for.

        Forward pass without saving, two threads, by the same that writes what nobody reads: GRU
        0.90 (1000, 16, 64, 64) and 0.97 (100, 32, 128, 256). Not beside a sum over units: GCC makes
        no second loop there, and masked stores took 1.6 times as long (layer-norm LSTM, AVX2).
        """
        if self.name != "forward":
            return frozenset()
        saved, read = self.schedule.programs.saved, _read_from_memory(self.part.stages)
        beside = _written_beside_sums(self.part.stages)
        return frozenset(
            buffer
            for buffer in self.part.function.buffers
            if buffer.value in saved
            and buffer.value not in self.double
            and buffer not in read
            and buffer not in beside
        )

    def condition(self, view: View) -> str:
        return "if (keeps) " if view.buffer in self.for_caller else ""

    def _keeps(self, written: Iterable[Buffer]) -> list[str]:
        """Declare whether the caller wants any of what is written for nobody else; where that is so
        and one of them is not given, that one goes to scratch memory."""
        wanted = [buffer for buffer in dict.fromkeys(written) if buffer in self.for_caller]
        asked = " || ".join(f"memory->args->{c_member(buffer.name)} != 0" for buffer in wanted)
        return [f"const int keeps = {asked}; /* for a backward pass */"] if wanted else []

    def _grain(self, slots: int) -> str:
        """Units that a thread takes at a time: as many in all stages of a step, so that its units
        stay its own."""
        return f"CELLGEN_GRAIN({slots if self.shared_slots is None else self.shared_slots})"

    def _preludes(self, reads: Iterable[Buffer], writes: Iterable[Buffer]) -> list[str]:
        written = list(dict.fromkeys(writes))
        lines = []
        for buffer in dict.fromkeys([*reads, *written]):
            lines += self._prelude(buffer, buffer in written)
        return lines

    def _loop_stage(self, name: str, loop: Loop) -> StageContext:
        sums = summed_over_rows(loop)
        written = [buffer for buffer in _stored(loop) if buffer not in sums]
        return StageContext(
            name=name,
            kind="loop",
            comment="",
            prelude=[
                *self._preludes(_loaded(loop), written),
                *map(self._sum_of_group, sums),
                *self._keeps(written),
            ],
            units=c_axis(loop.space[-1]),
            grain=self._grain(0),
            loops=[replace(self.loop(loop), down=bool(sums))],  # as chunks of steps come
        )

    def _sum_of_group(self, total: Buffer) -> str:
        """Declare a pointer to the sum over the group that the rows of a stage are of."""
        group = "(step * nB + row_begin) / CELLGEN_SUM_ROWS"
        slot = f"{group} % cellgen_sum_groups(memory->chunk_rows)"
        stride = f"cellgen_sum_stride({_count(total.shape)})"
        place = f"{self.function.sums_of_groups(total)} + {slot} * {stride}"
        return f"real *{self.rows[total]} = {place};"

    def _products(self, name: str, products: list[Product]) -> StageContext:
        """Weight gradients: threads share the rows of each result, or of every head's."""
        views = [(stage.a, stage.b, stage.target) for stage in products]
        return StageContext(
            name=name,
            kind="products",
            comment="\n     * ".join(f"{c} += {a}.T @ {b}" for a, b, c in views),
            prelude=self._preludes(
                [view.buffer for a, b, _ in views for view in (a, b)],
                [c.buffer for _, _, c in views],
            ),
            units="",
            grain=self._grain(0),
            outers=self._outers(products),
        )

    def _outers(self, products: list[Product]) -> OutersContext:
        """Every operand once, and the products of which it is part."""
        heads = products[0].heads
        lefts: dict[tuple[str, str, str], str] = {}
        rights: dict[tuple[str, str, str], str] = {}
        outers: list[OuterContext] = []
        for stage in products:
            a, b, c = stage.a, stage.b, stage.target
            rows, columns = c.shape if heads is None else stage.weights
            stride = c.row_stride if heads is None else columns
            steps = [c_factor(rows), c_factor(columns), f"{c_factor(rows)} * {c_factor(columns)}"]
            at = [self.address(view) for view in (a, b, c)]
            if heads is not None:
                at = [f"{place} + head * {step}" for place, step in zip(at, steps, strict=True)]
            left = (c_axis(rows), at[0], self.stride(a))
            right = (c_axis(columns), at[1], self.stride(b))
            lefts.setdefault(left, c_factor(rows))
            rights.setdefault(right, ", ".join(right))
            begins = not stage.accumulate and begins_with_product(self.part, c.buffer)
            onto = "step * nB + row_end < nT * nB" if begins else "1"
            numbers = list(lefts).index(left), list(rights).index(right)
            outers.append(OuterContext(*numbers, at[2], c_axis(stride), onto))
        return OutersContext(
            heads=c_axis(heads) if heads is not None else "",
            lefts=[
                f"cellgen_share({rows}, part, parts, {self._grain(0)}), "
                f"cellgen_share({rows}, part + 1, parts, {self._grain(0)}), {place}, {stride}, "
                + self.function.product_block(length)
                for (rows, place, stride), length in lefts.items()
            ],
            rights=list(rights.values()),
            outers=outers,
        )

    def _routine(self, name: str, stage: Routine) -> StageContext:
        """A routine over rows; every thread takes whole rows."""
        at = {
            v: f"{self.address(v)} + row_begin * {self.stride(v)}" for v in (stage.a, stage.target)
        }
        a, y = at[stage.a] if stage.walk[0] else self.address(stage.a), at[stage.target]
        rows = "row_end - row_begin"
        call = routine_call(stage, rows, a, self.stride(stage.a), y, self.stride(stage.target))
        return StageContext(
            name=name,
            kind="routine",
            comment=describe(stage.statement),
            prelude=self._preludes([stage.a.buffer], [stage.target.buffer]),
            units=c_axis(stage.units),
            grain=self._grain(0),
            call=call,
        )

    def address(self, view: View) -> str:
        return f"{self.rows[view.buffer]}{offset_of(view)}"

    def _is_in_place(self, buffer: Buffer) -> bool:
        """Whether each row of many steps is written where it belongs."""
        return self.name == "deferred" and buffer.name in self.function.written_in_place

    def row(self, view: View) -> str:
        buffer = view.buffer
        if self._is_in_place(buffer):
            return f"cg_row_of(memory->series_{buffer.name}, nB, step, row){column_of(view)}"
        return f"{self.rows[buffer]} + row * {self.stride(view)}{column_of(view)}"

    def stride(self, view: View) -> str:
        """Spell the distance of two rows."""
        buffer = view.buffer
        moving = self.part.storage[buffer] in (Storage.CARRY_IN, Storage.PREVIOUS)
        if moving or self.is_series(buffer):
            return self.strides[buffer]
        return c_factor(view.row_stride)

    def begin_total(self, line: Line, pointer: str) -> list[str]:
        assert line.view is not None
        return [f"real *{pointer} = {self.address(line.view)}{self.first};"]

    def sum_of_all(self, line: Line, lines: LoopLines) -> None:
        """Row by row, so that nothing depends on how many rows a stage is given."""
        assert line.view is not None
        name = line.statement.target.name
        lines.row_start.append(f"real {name} = 0;")
        lines.row_end.append(f"*({self.address(line.view)}) += {name};")

    def loop(self, loop: Loop, tile_row: TileRow = lambda view: None) -> LoopLines:
        """Spell a loop. The table of rows that count stands before it: where each row reads it
        anew, GCC makes two loops of one, which add up units in different orders."""
        lines = super().loop(loop, tile_row)
        if self.name == "deferred" and leaves_out_rows(loop):
            rows = [line.view for line in loop.lines if line.store is Store.ADD_UNITS]
            lines.before.extend(
                [
                    "const unsigned char *const cellgen_counts =",
                    "    memory->counts ? memory->counts + step * nB : 0;",
                ]
            )
            lines.row_start.extend(
                [
                    "if (cellgen_counts && cellgen_counts[row] != CELLGEN_COUNTS) {",
                    *(
                        f"    cg_copy_row({self.pointers[line.statement.target]}, 0, units);"
                        for line in loop.lines
                        if line.store is Store.WRITE
                    ),
                    *(f"    *({self.row(view)}) = 0;" for view in rows if view is not None),
                    "    continue;",
                    "}",
                ]
            )
        return lines

    # --- groups ---

    def _group(self, name: str, group: Group) -> StageContext:
        runs = []
        for index, term in enumerate(group.terms):
            for run_index, run in enumerate(term.runs):
                panel = f"{name}_panel_{index + 1}" + (f"_{run_index + 1}" if run_index else "")
                runs.append(self._run(group, term, run, panel))
        # Slots that the first run does not fill start from zero.
        first_slots = {s for r in runs[:1] for s in range(r.first_slot, r.first_slot + r.slots)}
        zeroed = [s for s in range(len(group.slots)) if s not in first_slots]
        if self._can_hoist(group):
            runs[0] = replace(runs[0], hoisted=self._hoisted(name, group, runs[0]))
        loops = [self.loop(loop, partial(_tile_row_of, group)) for loop in group.loops]
        stored = [slot for slot in group.slots if slot.needs_memory]
        if stored:
            loops.insert(0, self._copies(group))
        reads = [t.operand.buffer for t in group.terms]
        in_tile = {slot.view.buffer for slot in group.slots if not slot.needs_memory}
        reads += [b for loop in group.loops for b in _loaded(loop) if b not in in_tile]
        writes = [b for loop in group.loops for b in _stored(loop)]
        writes += [slot.view.buffer for slot in stored]
        is_free = len(runs) == 1 and bool(runs[0].hoisted)
        return StageContext(
            name=name,
            kind="group",
            comment="; ".join(_term_comment(group, term) for term in group.terms),
            prelude=[*self._preludes(reads, writes), *self._keeps(writes)],
            ahead=self._ahead(group),
            units=c_axis(_units_of_head(group)),
            grain=self._grain(_widest(group)),
            slots=len(group.slots),
            widest=max(r.slots for r in runs),
            zeroed=zeroed,
            loops=loops,
            heads=c_factor(group.heads) if group.heads is not None else "",
            depth=_depth(runs),
            products=self._slot_products(group),
            whole=self._whole(name, group),
            all_units=c_factor(group.units),
            is_free=is_free,
            tiles=_tiles(runs),
            coming=[] if is_free else self._coming(group),
            coming_when=" && !memory->hoist && step + 1 < nT" if self.name == "forward" else "",
            fetching_depth=_fetching_depth(runs),
            written_in_place=[
                f"{self.row(view)}{self.first}"
                for view in _views_written(group)
                if self._is_in_place(view.buffer)
            ],
        )

    def _coming(self, group: Group) -> list[str]:
        """Name the rows that this group's tiles fetch, as calls; those that must come first."""
        if self.name == "deferred":
            return []
        rows = self._written_next(group) if self.name == "forward" else self._read_next(group)
        return [self._expect(value, later) for value, later in dict.fromkeys(rows)]

    def _written_next(self, group: Group) -> list[tuple[Value, int]]:
        """Of a forward step: what this group and the loops behind it write in the next one, and
        the inputs that are read there first."""
        stages, at = self.part.stages, self.part.stages.index(group)
        own = [group, *_up_to_group(stages[at + 1 :])]
        before = stages[:at]
        is_first = not any(isinstance(stage, Group) for stage in before)
        near = {} if is_first else _read_by(before)
        read = _read_by([*before, *own] if is_first else own)
        inputs = [b for b in read if b.kind is Kind.ARGUMENT and b not in near]
        inputs = [b for b in inputs if self.part.storage[b] is Storage.TIME]
        written = [buffer for stage in own for buffer in _writes(stage)]
        return self._rows_of([*written, *inputs], 1, self.part)

    def _read_next(self, group: Group) -> list[tuple[Value, int]]:
        """Of a reverse step: what is read behind this group up to the next group's own equations;
        by the last group, what the next step reads up to there, and then the deferred part."""
        stages, at = self.part.stages, self.part.stages.index(group)
        behind = list(_up_to_group(stages[at + 1 :]))
        following = [stage for stage in stages[at + 1 :] if isinstance(stage, Group)][:1]
        rows = self._rows_of(_read_by([*behind, *following]), 0, self.part)
        if not following:
            first = next(stage for stage in stages if isinstance(stage, Group))
            rows += self._rows_of(_read_by([*_up_to_group(stages), first]), -1, self.part)
            deferred = self.schedule.deferred
            rows += self._rows_of(_read_by(deferred.stages), 0, deferred)
        came = self._rows_of(_read_by(stages[: at + 1]), 0, self.part)
        came += self._rows_of(_read_by(stages), 1, self.part)  # by the reverse step before
        return [row for row in rows if row not in came]

    def _rows_of(
        self, buffers: Iterable[Buffer], later: int, part: Part
    ) -> list[tuple[Value, int]]:
        """Arrays over time, of more than a number a row, and how many steps later their rows are
        needed: a state before a step is the one after the step before."""
        links = {link.previous: link.next for link in self.schedule.programs.links}
        found = []
        for buffer in buffers:
            value, place = buffer.value, part.storage[buffer]
            kept = value in self.schedule.programs.saved or self.function.has_strides(value)
            if self._width(buffer) == "1":
                continue
            if place is Storage.PREVIOUS:
                found.append((links[value], later - 1))
            elif place is Storage.TIME and kept:
                found.append((value, later))
        return found

    def _expect(self, value: Value, later: int) -> str:
        """A call that names the rows of an array over time, so many steps later."""
        width = c_factor(flat(value.shape)[-1])
        step = f"step {'+' if later > 0 else '-'} {abs(later)}" if later else "step"
        if self.function.has_strides(value):
            array = f"series(&coming, memory->series_{value.name}, {width}"
        else:
            batch = "nB" if self.name == "forward" else "memory->batch"
            member = c_member(str(value.name))
            array = f"saved(&coming, memory->args->{member}, {width}, {batch}"
        return f"cg_expect_{array}, {step}, row_begin, row_end)"

    def _slot_products(self, group: Group) -> list[SlotProductContext]:
        """Each operand times each slot's weights; the first one of a slot begins its sum."""
        begun: set[int] = set()
        products = []
        for term in group.terms:
            inner = c_axis(term.inner)
            for weight in (weight for run in term.runs for weight in run):
                products.append(
                    SlotProductContext(
                        inner=inner,
                        operand=self._operand(term),
                        stride=self.stride(term.operand),
                        weights=self._weights(weight.view)
                        + (f" + head * {_head_step(group, weight)}" if group.heads else ""),
                        weights_stride=c_axis(_weights_stride(weight)),
                        transposed=int(weight.transposed),
                        slot=weight.slot,
                        accumulate=int(weight.slot in begun),
                    )
                )
                begun.add(weight.slot)
        return products

    def _operand(self, term: Term) -> str:
        head = f" + head * {c_mul(c_axis(term.inner))}" if term.by_head else ""
        return self.address(term.operand) + head

    def _whole(self, name: str, group: Group) -> str:
        """Memory for the products of one step, all slots of a row side by side."""
        rows = "chunk_rows" if self.name == "deferred" else "nB"
        count = f"{rows} * {len(group.slots)} * {c_factor(group.units)}"
        memory = f"{name}_whole"
        self.function.add_memory(memory, count, "products of one step", when="plan->unpacked")
        return memory

    def _run(self, group: Group, term: Term, weights: Sequence[Weight], panel: str) -> RunContext:
        inner, widest = c_axis(term.inner), _widest(group)
        units = c_axis(_units_of_head(group))
        count = f"cg_panels_size({inner}, {len(weights)}, {units}, CELLGEN_SLOT_VECTORS({widest}))"
        packs = [
            self._pack(
                group,
                weight,
                PackContext(
                    inner=inner,
                    weights=self._weights(weight.view),
                    stride=c_axis(_weights_stride(weight)),
                    transposed=int(weight.transposed),
                    units=units,
                    by_units="0" if self.name == "deferred" else "memory->by_units",
                    grain=self._grain(widest),
                    slots=len(weights),
                    slot=position,
                    widest=widest,
                    panel=panel,
                    heads="",
                    head_weights="",
                    head_panel=count,
                ),
            )
            for position, weight in enumerate(weights)
        ]
        self.packs += packs
        if group.heads is not None:
            count = f"{c_factor(group.heads)} * {count}"
        self.function.panels.append(MemoryContext(panel, count, "packed weights"))
        self.panel_sizes.append(count)
        return RunContext(
            inner=inner,
            operand=self._operand(term),
            stride=self.stride(term.operand),
            panel=panel,
            slots=len(weights),
            first_slot=weights[0].slot,
            hoisted="",
        )

    def _pack(self, group: Group, weight: Weight, whole: PackContext) -> PackContext:
        """Say where the weights of each head are; ``whole`` where a group has none."""
        if group.heads is None:
            return whole
        step = _head_step(group, weight)
        return replace(whole, heads=c_axis(group.heads), head_weights=step)

    def _can_hoist(self, group: Group) -> bool:
        """Whether the first operand is an input, so that no state has to be waited for."""
        operand = group.terms[0].operand.buffer
        is_input = self.part.storage[operand] is Storage.TIME and operand.kind is Kind.ARGUMENT
        waits = any(term.operand.buffer != operand for term in group.terms)
        return self.name == "forward" and is_input and (waits or len(group.terms) == 1)

    def _ahead(self, group: Group) -> list[str]:
        """Declare the first operand over a window of steps, whose rows lie evenly."""
        if not self._can_hoist(group):
            return []
        buffer = group.terms[0].operand.buffer
        series, stride = self._series(buffer), self.strides[buffer]
        return [
            f"const real *{self.rows[buffer]} = {series}.rows + step * {series}.step;",
            f"const int64_t {stride} = nB == 1 ? {series}.step : {series}.row;",
        ]

    def _hoisted(self, name: str, group: Group, run: RunContext) -> str:
        """Memory for the product of an input over a window of steps, in the layout of tiles."""
        blocks = (
            f"cg_panels_size(1, {run.slots}, {c_axis(_units_of_head(group))}, "
            f"CELLGEN_SLOT_VECTORS({_widest(group)}))"
        )
        if group.heads is not None:
            blocks = f"{c_factor(group.heads)} * {blocks}"
        memory = f"{name}_hoisted"
        self.function.add_memory(memory, f"window_rows * {blocks}", "products of a window of steps")
        return memory

    def _weights(self, view: View) -> str:
        return f"{self.function.place_of(view.buffer.value)}{offset_of(view)}"

    def _copies(self, group: Group) -> LoopLines:
        """Write the slots that something else reads, a backward pass perhaps, to memory."""
        row_start, body, comments = [], [], []
        for index, slot in enumerate(group.slots):
            if not slot.needs_memory:
                continue
            pointer = f"{self.pointers[slot.view.buffer.value]}_{index}"
            row_start.append(f"const real *tile_{index} = {_tile_row(index)};")
            row_start.append(f"real *{pointer} = {self.row(slot.view)}{self.first};")
            body.append(f"{self.condition(slot.view)}{pointer}[unit] = tile_{index}[unit];")
            comments.append(f"{slot.view} = slot {index}")
        return LoopLines(comments=comments, row_start=row_start, body=body)


def _depth(runs: Sequence[RunContext]) -> str:
    """How many rows of one slot the panels of a block of units hold."""
    counts: Counter[str] = Counter()
    for run in runs:
        counts[run.inner] += run.slots
    return " + ".join(f"{count} * {inner}" for inner, count in counts.items())


def _tiles(runs: Sequence[RunContext]) -> list[TileContext]:
    """Neighbouring runs that fill the same slots, in one call each."""
    found: list[TileContext] = []
    for (first_slot, slots), same in groupby(runs, key=lambda run: (run.first_slot, run.slots)):
        found.append(TileContext(list(same), slots, first_slot, int(bool(found))))
    return found


def _tile_row_of(group: Group, view: View) -> str | None:
    slot = group.slot_of(view)
    return None if slot is None else _tile_row(slot)


def _tile_row(slot: int) -> str:
    return f"tile + (row - top) * slots * width + {slot} * width"


def _weights_stride(weight: Weight) -> Expr:
    """Elements from one row of a weight, or of a head's weights, to the next."""
    return weight.head[1] if weight.head else weight.view.row_stride


def _head_step(group: Group, weight: Weight) -> str:
    """Elements from the weights of one head to the next: whole matrices, or columns (transposed:
    rows) of all heads side by side."""
    factors = weight.head or (_units_of_head(group),)
    if weight.transposed and not weight.head:
        factors = (*factors, weight.view.row_stride)
    return " * ".join(c_factor(axis) for axis in factors)


def _units_of_head(group: Group) -> Expr:
    """The units of one head; all of them where there are none."""
    return group.units if group.heads is None else group.units / group.heads


def _widest(group: Group) -> int:
    return max(len(run) for term in group.terms for run in term.runs)


def _term_comment(group: Group, term: Term) -> str:
    weights = ", ".join(f"{w.view}{'.T' if w.transposed else ''}" for w in term.weights)
    return f"{term.operand} @ [{weights}]"


def _loaded(loop: Loop) -> list[Buffer]:
    return [load.view.buffer for load in loop.loads]


def _stored(loop: Loop) -> list[Buffer]:
    return [line.view.buffer for line in loop.lines if line.view is not None]
