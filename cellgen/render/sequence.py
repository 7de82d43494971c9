"""Spell the time loop of a cell in C: stages of a step, packing, memory and the loops over time.

Input: ``SequenceSchedule``. Output: contexts for ``sequence.j2``. Every stage becomes a function of
a step, a range of rows and a share of the units; the drivers decide who calls it with which.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from sympy import Expr

from cellgen.abi import Function as Signature
from cellgen.abi import c_dim
from cellgen.printer import c_axis, c_factor
from cellgen.program import Names
from cellgen.render.loops import LoopLines, LoopWriter, column_of, offset_of
from cellgen.schedule import Buffer, Kind, Loop, Product, Store
from cellgen.schedule.groups import Group, GroupedStage, Term, Weight
from cellgen.schedule.plan import Line, View
from cellgen.schedule.sequence import Part, SequenceSchedule, Storage
from cellgen.schedule.unroll import StateLink
from cellgen.value import Value

WINDOW_ROWS = 192
"""Rows of one window of hoisted products: enough for full tiles, few enough to stay in cache."""

CHUNK_ROWS = 768
"""Rows of one chunk of the deferred part: the operands of a weight gradient stay in cache."""


# --- contexts ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PackContext:
    """Weights of one slot into their place in a panel."""

    inner: str
    weights: str
    stride: str
    transposed: int
    units: str
    slots: int
    slot: int
    widest: int
    panel: str


@dataclass(frozen=True)
class RunContext:
    """One call of a tile kernel: an operand times one packed panel, and what is packed there."""

    packs: list[PackContext]
    inner: str
    operand: str
    stride: str
    panel: str
    slots: int
    first_slot: int
    accumulate: int
    hoisted: str


@dataclass(frozen=True)
class StageContext:
    """One stage as a C function; ``split`` says how threads share it: rows, units or one."""

    name: str
    kind: str
    comment: str
    prelude: list[str]
    units: str
    slots: int
    widest: int
    zeroed: list[int]
    runs: list[RunContext]
    loops: list[LoopLines]
    call: str
    split: str


@dataclass(frozen=True)
class MemoryContext:
    """One array of the workspace: its name, element count and purpose."""

    name: str
    count: str
    note: str


@dataclass(frozen=True)
class PartContext:
    """The stages of one part and the packing they need."""

    name: str
    stages: list[StageContext]
    packs: list[PackContext]
    panel_sizes: list[str]
    can_split_units: bool


@dataclass(frozen=True)
class LinkContext:
    """What the drivers do for one state."""

    width: str
    initial: str
    last: str
    over_time: str
    is_double: bool
    gradient: str
    gradient_last: str
    carry: str


@dataclass(frozen=True)
class SequenceContext:
    """One function over time: ``forward``, or ``backward`` with its two parts."""

    stem: str
    text: str
    parameters: str
    dims: list[str]
    required: list[str]
    memory: list[MemoryContext]
    zeros: str
    parts: list[PartContext]
    links: list[LinkContext]
    totals: list[tuple[str, str]]
    reads_previous: bool
    chunk_rows: int
    window_rows: int


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

    def context(self) -> SequenceContext:
        definition = self.schedule.programs.definition
        parts = [self._part(name) for name in self.part_names]
        links = [self._link(link) for link in self.schedule.programs.links]
        required = [
            a.name
            for a in (*self.signature.struct_members, *self.signature.results)
            if not a.is_scalar and not a.optional and not (a.saved and a in self.signature.results)
        ]
        zeros = self._zeros()
        return SequenceContext(
            stem=f"{definition.name}_{self.signature.name}",
            text=self.signature.text,
            parameters=", ".join(f"int64_t {c_dim(dim)}" for dim in self.signature.dims),
            dims=[c_dim(dim) for dim in self.signature.dims],
            required=required,
            memory=list(self.memory.values()),
            zeros=zeros,
            parts=parts,
            links=links,
            totals=self._totals(),
            reads_previous=self._reads_previous(),
            chunk_rows=self._chunk_rows(),
            window_rows=WINDOW_ROWS,
        )

    @property
    def is_backward(self) -> bool:
        return len(self.part_names) == 2

    def _zeros(self) -> str:
        """Length of a row of zeros for upstream gradients that are left out."""
        widths = [a.shape[-1] for a in self.signature.arguments if a.optional]
        terms = list(dict.fromkeys(c_axis_text(width) for width in widths))
        return " + ".join(terms)

    def _totals(self) -> list[tuple[str, str]]:
        if not self.is_backward:
            return []
        part = self.schedule.deferred
        return [
            (f"args->{b.name}", _count(b.shape))
            for b, place in part.storage.items()
            if place is Storage.TOTAL
        ]

    def _reads_previous(self) -> bool:
        return Storage.PREVIOUS in self.schedule.deferred.storage.values()

    def _chunk_rows(self) -> int:
        """Rows of a deferred chunk; one step where a batched array is the same at every step."""
        storage = self.schedule.deferred.storage.items()
        constant = (b.value for b, place in storage if place is Storage.CONSTANT)
        return 1 if any(value.is_batched for value in constant) else CHUNK_ROWS

    def add_memory(self, name: str, count: str, note: str) -> str:
        self.memory.setdefault(name, MemoryContext(name, count, note))
        return f"memory->{name}"

    def _part(self, name: str) -> PartContext:
        part: Part = getattr(self.schedule, name)
        writer = _PartWriter(self, name, part)
        stages = [writer.stage(index, stage) for index, stage in enumerate(part.stages, start=1)]
        return PartContext(name, stages, writer.packs, writer.panel_sizes, part.can_split_units)

    def _link(self, link: StateLink) -> LinkContext:
        programs = self.schedule.programs
        name, width = str(link.next.name), _row_length(link.next)
        over_time = f"args->{name}"
        is_double = False
        if link.next not in programs.outputs and not self.is_backward:
            over_time, is_double = self.state_pair(link.next), True
        carry = ""
        if self.is_backward:
            carry = self.add_memory(
                f"{link.passed.name}_pair", f"2 * nB * {c_mul(width)}", "gradient between two steps"
            )
        return LinkContext(
            width=width,
            initial=f"args->{link.previous.name}",
            last=f"args->{name}_last",
            over_time=over_time,
            is_double=is_double,
            gradient=f"args->{link.passed.name}",
            gradient_last=f"args->d_{name}_last",
            carry=carry,
        )

    def state_pair(self, state: Value) -> str:
        """Two steps of a state that nobody asked for at every step."""
        return self.add_memory(
            f"{state.name}_pair", f"2 * nB * {c_mul(_row_length(state))}", "state, two steps"
        )


def _row_length(value: Value) -> str:
    return c_axis(value.shape[-1])


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
        names = Names([str(v.name) for v in part.function.program.values])
        self.rows = {b: names.fresh(f"{b.name}_rows") for b in part.function.buffers}
        self.strides = {b: names.fresh(f"{b.name}_stride") for b in part.function.buffers}
        self.pointers = {v: names.fresh(f"{v.name}_row") for v in part.function.program.values}
        self.double = {link.next for link in self.schedule.programs.links}

    # --- places over time ---

    def _width(self, buffer: Buffer) -> str:
        return c_factor(buffer.shape[-1]) if buffer.shape else "1"

    def _step(self, base: str, buffer: Buffer, step: str = "step") -> str:
        return f"{base} + {step} * nB * {self._width(buffer)}"

    def _prelude(self, buffer: Buffer, written: bool) -> list[str]:
        """Declare a pointer to a buffer's first row in the current step."""
        storage = self.part.storage[buffer]
        name, const = self.rows[buffer], "" if written else "const "
        if buffer.kind is Kind.SCALAR:
            return [f"const real {buffer.name} = memory->args->{buffer.name};"]
        if buffer.kind is Kind.OPTIONAL:
            return self._optional(buffer, f"memory->args->{buffer.name}")
        if storage is Storage.CARRY_IN:
            return self._carry_in(buffer)
        return [f"{const}real *{name} = {self._place(buffer, storage)};"]

    def _optional(self, buffer: Buffer, base: str) -> list[str]:
        name, stride = self.rows[buffer], self.strides[buffer]
        return [
            f"const real *{name} = {base} ? {self._step(base, buffer)} : memory->zeros;",
            f"const int64_t {stride} = {base} ? {self._width(buffer)} : 0;",
        ]

    def _carry_in(self, buffer: Buffer) -> list[str]:
        link = next(k for k in self.schedule.programs.links if k.carry == buffer.value)
        pair, last = f"memory->{link.passed.name}_pair", f"memory->args->d_{link.next.name}_last"
        name, stride, width = self.rows[buffer], self.strides[buffer], self._width(buffer)
        return [
            f"const real *{name} = step < nT - 1 ? {pair} + (step + 1) % 2 * nB * {width}",
            f"    : {last} ? {last} : memory->zeros;",
            f"const int64_t {stride} = step < nT - 1 || {last} ? {width} : 0;",
        ]

    def _place(self, buffer: Buffer, storage: Storage) -> str:
        base = f"memory->args->{buffer.name}"
        if storage is Storage.TIME:
            return self._time(buffer)
        if storage is Storage.PREVIOUS:
            link = next(k for k in self.schedule.programs.links if k.previous == buffer.value)
            return f"step == 0 ? {base} : {self._state(link.next, buffer, 'step - 1')}"
        if storage is Storage.CARRY_OUT:
            pair = f"memory->{buffer.name}_pair"
            return f"step == 0 ? {base} : {pair} + step % 2 * nB * {self._width(buffer)}"
        if storage is Storage.SCRATCH:
            rows = "memory->chunk_rows" if self.name == "deferred" else "nB"
            count = f"{rows} * {self._width(buffer)}".replace("memory->", "")
            return self.function.add_memory(
                f"{self.name}_{buffer.name}", count, "of one step" if rows == "nB" else "of a chunk"
            )
        return base

    def _time(self, buffer: Buffer) -> str:
        """An array over time: an argument, a result, or the function's own."""
        programs, value = self.schedule.programs, buffer.value
        if self.name == "forward" and value not in programs.outputs and buffer.kind is Kind.RESULT:
            return self._state(value, buffer, "step")
        if value in programs.kept:
            base = self.function.add_memory(
                f"{value.name}_time", f"nT * nB * {self._width(buffer)}", "kept at every step"
            )
            return self._step(base, buffer)
        return self._step(f"memory->args->{buffer.name}", buffer)

    def _state(self, value: Value, buffer: Buffer, step: str) -> str:
        """A value over time that the caller may not have asked for."""
        programs, width = self.schedule.programs, self._width(buffer)
        inner = f"({step})" if " " in step else step
        base = f"memory->args->{value.name}"
        if value in programs.outputs:
            return f"{base} + {inner} * nB * {width}"
        if value in self.double:
            own = f"{self.function.state_pair(value)} + {inner} % 2 * nB * {width}"
        else:
            own = self.function.add_memory(f"forward_{value.name}", f"nB * {width}", "of one step")
        if value not in programs.saved:
            return own
        return f"{base} ? {base} + {inner} * nB * {width} : {own}"

    # --- stages ---

    def stage(self, index: int, stage: GroupedStage) -> StageContext:
        name = f"{self.name}_{index}"
        if isinstance(stage, Group):
            return self._group(name, stage)
        if isinstance(stage, Loop):
            return self._loop_stage(name, stage)
        return self._product(name, stage)

    def _preludes(self, reads: Iterable[Buffer], writes: Iterable[Buffer]) -> list[str]:
        written = list(dict.fromkeys(writes))
        lines = []
        for buffer in dict.fromkeys([*reads, *written]):
            lines += self._prelude(buffer, buffer in written)
        return lines

    def _loop_stage(self, name: str, loop: Loop) -> StageContext:
        stores = {line.store for line in loop.lines}
        split = "rows"
        if Store.ADD_ALL in stores or {Store.ADD_ROWS, Store.ADD_UNITS} <= stores:
            split = "one"  # a sum over rows needs all rows, a sum over units whole rows
        elif Store.ADD_ROWS in stores:
            split = "units"
        return StageContext(
            name=name,
            kind="loop",
            comment="",
            prelude=self._preludes(_loaded(loop), _stored(loop)),
            units=c_axis(loop.space[-1]),
            slots=0,
            widest=0,
            zeroed=[],
            runs=[],
            loops=[self.loop(loop)],
            call="",
            split=split,
        )

    def _product(self, name: str, stage: Product) -> StageContext:
        """A weight gradient: threads share the rows of the result."""
        rows, columns = stage.target.shape
        a, b, c = stage.a, stage.b, stage.target
        call = (
            f"cg_gemm_tn(units, {c_axis(columns)}, row_end - row_begin, "
            f"{self.address(a)} + first, {c_axis(a.row_stride)}, {self.address(b)}, "
            f"{c_axis(b.row_stride)}, {self.address(c)} + first * {c_factor(c.row_stride)}, "
            f"{c_axis(c.row_stride)}, 1)"
        )
        return StageContext(
            name=name,
            kind="product",
            comment=f"{c} += {a}.T @ {b}",
            prelude=self._preludes([a.buffer, b.buffer], [c.buffer]),
            units=c_axis(rows),
            slots=0,
            widest=0,
            zeroed=[],
            runs=[],
            loops=[],
            call=call,
            split="units",
        )

    def address(self, view: View) -> str:
        return f"{self.rows[view.buffer]}{offset_of(view)}"

    def row(self, view: View) -> str:
        buffer = view.buffer
        strided = buffer.kind is Kind.OPTIONAL or self.part.storage[buffer] is Storage.CARRY_IN
        stride = self.strides[buffer] if strided else c_factor(view.row_stride)
        return f"{self.rows[buffer]} + row * {stride}{column_of(view)}"

    def begin_total(self, line: Line, pointer: str) -> list[str]:
        assert line.view is not None
        return [f"real *{pointer} = {self.address(line.view)}{self.first};"]

    def end_total(self, line: Line) -> str:
        assert line.view is not None
        return f"*({self.address(line.view)}) += {line.statement.target.name};"

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
        runs = [replace(r, accumulate=int(i > 0)) for i, r in enumerate(runs)]
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
        return StageContext(
            name=name,
            kind="group",
            comment="; ".join(_term_comment(group, term) for term in group.terms),
            prelude=self._preludes(reads, writes),
            units=c_axis(group.units),
            slots=len(group.slots),
            widest=max(r.slots for r in runs),
            zeroed=zeroed,
            runs=runs,
            loops=loops,
            call="",
            split="rows",
        )

    def _run(self, group: Group, term: Term, weights: Sequence[Weight], panel: str) -> RunContext:
        inner = c_axis(term.inner)
        packs = [
            PackContext(
                inner=inner,
                weights=self._weights(weight.view),
                stride=c_axis(weight.view.row_stride),
                transposed=int(weight.transposed),
                units=c_axis(group.units),
                slots=len(weights),
                slot=position,
                widest=_widest(group),
                panel=panel,
            )
            for position, weight in enumerate(weights)
        ]
        self.packs += packs
        widest = _widest(group)
        count = (
            f"cg_panels_size({inner}, {len(weights)}, {c_axis(group.units)}, "
            f"CELLGEN_SLOT_VECTORS({widest}))"
        )
        self.function.add_memory(panel, count, "packed weights")
        self.panel_sizes.append(count)
        return RunContext(
            packs=packs,
            inner=inner,
            operand=self.address(term.operand),
            stride=c_axis(term.operand.row_stride),
            panel=panel,
            slots=len(weights),
            first_slot=weights[0].slot,
            accumulate=1,
            hoisted="",
        )

    def _can_hoist(self, group: Group) -> bool:
        """Whether the first operand is an input, so that no state has to be waited for."""
        operand = group.terms[0].operand.buffer
        is_input = self.part.storage[operand] is Storage.TIME and operand.kind is Kind.ARGUMENT
        return self.name == "forward" and is_input and len(group.terms) > 1

    def _hoisted(self, name: str, group: Group, run: RunContext) -> str:
        """Memory for the product of an input over a window of steps, in the layout of tiles."""
        blocks = (
            f"cg_panels_size(1, {run.slots}, {c_axis(group.units)}, "
            f"CELLGEN_SLOT_VECTORS({_widest(group)}))"
        )
        memory = f"{name}_hoisted"
        self.function.add_memory(memory, f"window_rows * {blocks}", "products of a window of steps")
        return memory

    def _weights(self, view: View) -> str:
        return f"memory->args->{view.buffer.name}{offset_of(view)}"

    def _copies(self, group: Group) -> LoopLines:
        """Write the slots that something else reads to memory."""
        row_start, body, comments = [], [], []
        for index, slot in enumerate(group.slots):
            if not slot.needs_memory:
                continue
            pointer = f"{self.pointers[slot.view.buffer.value]}_{index}"
            row_start.append(f"const real *tile_{index} = {_tile_row(index)};")
            row_start.append(f"real *{pointer} = {self.row(slot.view)}{self.first};")
            body.append(f"{pointer}[unit] = tile_{index}[unit];")
            comments.append(f"{slot.view} = slot {index}")
        return LoopLines(comments=comments, row_start=row_start, body=body)


def _tile_row_of(group: Group, view: View) -> str | None:
    slot = group.slot_of(view)
    return None if slot is None else _tile_row(slot)


def _tile_row(slot: int) -> str:
    return f"tile + (row - top) * slots * width + {slot} * width"


def _widest(group: Group) -> int:
    return max(len(run) for term in group.terms for run in term.runs)


def _term_comment(group: Group, term: Term) -> str:
    weights = ", ".join(f"{w.view}{'.T' if w.transposed else ''}" for w in term.weights)
    return f"{term.operand} @ [{weights}]"


def _loaded(loop: Loop) -> list[Buffer]:
    return [load.view.buffer for load in loop.loads]


def _stored(loop: Loop) -> list[Buffer]:
    return [line.view.buffer for line in loop.lines if line.view is not None]
