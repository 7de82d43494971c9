"""Spell the time loop of a cell in C: stages of a step, packing, memory and the loops over time.

Input: ``SequenceSchedule``. Output: contexts for ``sequence.j2``. Every stage becomes a function of
a step, a range of rows and a share of the units; the drivers decide who calls it with which.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from sympy import Expr

from cellgen.abi import Argument, c_dim
from cellgen.abi import Function as Signature
from cellgen.cell import Definition
from cellgen.printer import c_axis, c_expression, c_factor
from cellgen.program import Names
from cellgen.schedule import Access, Buffer, Kind, Load, Loop, Product, Store
from cellgen.schedule.groups import Group, GroupedStage, Term, Weight
from cellgen.schedule.plan import Line, View, describe
from cellgen.schedule.sequence import Part, SequenceSchedule, Storage
from cellgen.schedule.unroll import StateLink
from cellgen.value import Dim, Role, T, Value, format_axis

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
class LoopLines:
    """The inside of a loop over rows and units."""

    comments: list[str]
    row_start: list[str]
    body: list[str]
    row_end: list[str]
    before: list[str]
    after: list[str]


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


# --- interface -----------------------------------------------------------------------------------


def sequence_signatures(schedule: SequenceSchedule) -> tuple[Signature, Signature]:
    """Return the plain-data interfaces of ``sequence_forward`` and ``sequence_backward``."""
    return _forward_signature(schedule), _backward_signature(schedule)


def _argument(
    value: Value,
    definition: Definition,
    *,
    name: str = "",
    over_time: bool = False,
    text: str = "",
    optional: bool = False,
    used: bool = True,
    saved: bool = False,
) -> Argument:
    shape = tuple(format_axis(axis) for axis in value.shape)
    return Argument(
        name=name or str(value.name),
        shape=("T", *shape) if over_time else shape,
        text=text or value.role.value,
        default=definition.defaults.get(str(value.name)) if value.role is Role.SCALAR else None,
        optional=optional,
        used=used,
        saved=saved,
    )


def _dims(definition: Definition) -> tuple[str, ...]:
    return tuple(str(dim) for dim in (T, *definition.dims))


def _forward_signature(schedule: SequenceSchedule) -> Signature:
    programs, definition = schedule.programs, schedule.programs.definition
    arguments = [
        _argument(v, definition, over_time=v.role is Role.INPUT)
        for v in definition.declared
        if v in programs.forward.arguments or v.role is Role.STATE
    ]
    results = [_argument(v, definition, over_time=True, text="output") for v in programs.outputs]
    results += [
        _argument(link.next, definition, name=f"{link.next.name}_last", text="final state")
        for link in programs.links
    ]
    results += [
        _argument(v, definition, over_time=True, text="saved for the backward pass", saved=True)
        for v in programs.saved
    ]
    return Signature(
        "sequence_forward",
        _dims(definition),
        tuple(arguments),
        tuple(results),
        True,
        "Compute all steps of a sequence.",
        team=True,
    )


def _backward_signature(schedule: SequenceSchedule) -> Signature:
    programs, definition = schedule.programs, schedule.programs.definition
    read = _read_by_backward(schedule)
    arguments = [
        _argument(v, definition, over_time=v.role is Role.INPUT, used=v in read)
        for v in definition.declared
        if v in programs.forward.arguments or v.role is Role.STATE
    ]
    arguments += [
        _argument(v, definition, over_time=True, text="output", used=v in read)
        for v in programs.outputs
    ]
    arguments += [
        _argument(v, definition, over_time=True, text="saved by sequence_forward", saved=True)
        for v in programs.saved
    ]
    arguments += [
        _argument(
            a, definition, over_time=True, text=f"upstream gradient of {v.name}", optional=True
        )
        for v, a in programs.upstream.items()
    ]
    arguments += [
        _argument(
            link.next,
            definition,
            name=f"d_{link.next.name}_last",
            text="upstream gradient of the final state",
            optional=True,
        )
        for link in programs.links
    ]
    results = [
        _argument(v, definition, over_time=v.is_batched, text=_gradient_text(v))
        for v in programs.deferred.results
    ]
    states = [
        _argument(link.passed, definition, text=_gradient_text(link.passed))
        for link in programs.links
    ]
    inputs = [r for r in results if r.shape[:1] == ("T",)]
    others = [r for r in results if r.shape[:1] != ("T",)]
    return Signature(
        "sequence_backward",
        _dims(definition),
        tuple(arguments),
        (*inputs, *states, *others),
        True,
        "Compute every gradient of a sequence; upstream gradients left out are 0.",
        team=True,
    )


def _gradient_text(value: Value) -> str:
    return f"gradient of {str(value.name).removeprefix('d_')}"


def _read_by_backward(schedule: SequenceSchedule) -> set[Value]:
    """Forward values that the two backward parts find in memory."""
    programs = schedule.programs
    read = {*programs.reverse.arguments, *programs.deferred.arguments}
    following = {link.previous: link.next for link in programs.links}
    return (
        read | {following[v] for v in read if v in following} | {v for v in following if v in read}
    )


# --- functions -----------------------------------------------------------------------------------


def render_sequence(
    schedule: SequenceSchedule, signatures: tuple[Signature, Signature]
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
            chunk_rows=CHUNK_ROWS,
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

    def add_memory(self, name: str, count: str, note: str) -> str:
        self.memory.setdefault(name, MemoryContext(name, count, note))
        return f"m->{name}"

    def _part(self, name: str) -> PartContext:
        part: Part = getattr(self.schedule, name)
        writer = _PartWriter(self, name, part)
        stages = [writer.stage(index, stage) for index, stage in enumerate(part.stages, start=1)]
        return PartContext(
            name, stages, writer.packs, writer.panel_sizes, part.can_split_units
        )

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

Place: TypeAlias = tuple[str, str]
"""A pointer to the first row of a step, and the stride between rows."""


class _PartWriter:
    """Spells the stages of one part."""

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
            return [f"const real {buffer.name} = m->args->{buffer.name};"]
        if buffer.kind is Kind.OPTIONAL:
            return self._optional(buffer, f"m->args->{buffer.name}")
        if storage is Storage.CARRY_IN:
            return self._carry_in(buffer)
        return [f"{const}real *{name} = {self._place(buffer, storage)};"]

    def _optional(self, buffer: Buffer, base: str) -> list[str]:
        name, stride = self.rows[buffer], self.strides[buffer]
        return [
            f"const real *{name} = {base} ? {self._step(base, buffer)} : m->zeros;",
            f"const int64_t {stride} = {base} ? {self._width(buffer)} : 0;",
        ]

    def _carry_in(self, buffer: Buffer) -> list[str]:
        link = next(k for k in self.schedule.programs.links if k.carry == buffer.value)
        pair, last = f"m->{link.passed.name}_pair", f"m->args->d_{link.next.name}_last"
        name, stride, width = self.rows[buffer], self.strides[buffer], self._width(buffer)
        return [
            f"const real *{name} = step < nT - 1 ? {pair} + (step + 1) % 2 * nB * {width}",
            f"    : {last} ? {last} : m->zeros;",
            f"const int64_t {stride} = step < nT - 1 || {last} ? {width} : 0;",
        ]

    def _place(self, buffer: Buffer, storage: Storage) -> str:
        base = f"m->args->{buffer.name}"
        if storage is Storage.TIME:
            return self._time(buffer)
        if storage is Storage.PREVIOUS:
            link = next(k for k in self.schedule.programs.links if k.previous == buffer.value)
            return f"step == 0 ? {base} : {self._state(link.next, buffer, 'step - 1')}"
        if storage is Storage.CARRY_OUT:
            pair = f"m->{buffer.name}_pair"
            return f"step == 0 ? {base} : {pair} + step % 2 * nB * {self._width(buffer)}"
        if storage is Storage.SCRATCH:
            rows = "m->chunk_rows" if self.name == "deferred" else "nB"
            count = f"{rows} * {self._width(buffer)}".replace("m->", "")
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
        return self._step(f"m->args->{buffer.name}", buffer)

    def _state(self, value: Value, buffer: Buffer, step: str) -> str:
        """A value over time that the caller may not have asked for."""
        programs, width = self.schedule.programs, self._width(buffer)
        inner = f"({step})" if " " in step else step
        base = f"m->args->{value.name}"
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
        if Store.ADD_ALL in stores:
            split = "one"
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
            loops=[self._loop(loop, None)],
            call="",
            split=split,
        )

    def _product(self, name: str, stage: Product) -> StageContext:
        """A weight gradient: threads share the rows of the result."""
        rows, columns = stage.target.shape
        a, b, c = stage.a, stage.b, stage.target
        call = (
            f"cg_gemm_tn(units, {c_axis(columns)}, row_end - row_begin, "
            f"{self._matrix(a)} + first, {c_axis(a.row_stride)}, {self._matrix(b)}, "
            f"{c_axis(b.row_stride)}, {self._matrix(c)} + first * {c_factor(c.row_stride)}, "
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

    def _matrix(self, view: View) -> str:
        """Address of a view's first element in the current step."""
        offset = ""
        if len(view.start) == 2:
            if view.start[0] != 0:
                offset += f" + {c_factor(view.start[0])} * {c_factor(view.row_stride)}"
            if view.start[1] != 0:
                offset += f" + {c_axis(view.start[1])}"
        elif view.start and view.start[0] != 0:
            offset += f" + {c_axis(view.start[0])}"
        return f"{self.rows[view.buffer]}{offset}"

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
        runs = [
            replace(r, accumulate=int(i > 0)) for i, r in enumerate(runs)
        ]
        if self._can_hoist(group):
            runs[0] = replace(runs[0], hoisted=self._hoisted(name, group, runs[0]))
        loops = [self._loop(loop, group) for loop in group.loops]
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
            operand=self._matrix(term.operand),
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
        offset = self._matrix(view).removeprefix(self.rows[view.buffer])
        return f"m->args->{view.buffer.name}{offset}"

    def _copies(self, group: Group) -> LoopLines:
        """Write the slots that something else reads to memory."""
        row_start, body, comments = [], [], []
        for index, slot in enumerate(group.slots):
            if not slot.needs_memory:
                continue
            pointer = f"{self.pointers[slot.view.buffer.value]}_{index}"
            row_start.append(f"const real *tile_{index} = {_tile_row(index)};")
            row_start.append(f"real *{pointer} = {self._row(slot.view)} + first;")
            body.append(f"{pointer}[unit] = tile_{index}[unit];")
            comments.append(f"{slot.view} = slot {index}")
        return LoopLines(comments, row_start, body, [], [], [])

    # --- loops ---

    def _row(self, view: View) -> str:
        """Address of a view in the current row."""
        buffer = view.buffer
        strided = buffer.kind is Kind.OPTIONAL or self.part.storage[buffer] is Storage.CARRY_IN
        stride = self.strides[buffer] if strided else c_factor(view.row_stride)
        column = ""
        if len(view.start) == 2 and view.start[1] != 0:
            column = f" + {c_axis(view.start[1])}"
        return f"{self.rows[buffer]} + row * {stride}{column}"

    def _loop(self, loop: Loop, group: Group | None) -> LoopLines:
        row_start: list[str] = []
        body: list[str] = []
        row_end: list[str] = []
        before: list[str] = []
        after: list[str] = []
        for load in loop.loads:
            self._load(load, group, row_start, body)
        for line in loop.lines:
            if line.view is not None:
                self._store(line, row_start, row_end, before, after)
            body += self._line(line)
        comments = [
            describe(line.origin)
            for line in loop.lines
            if line.origin.target.role is not Role.TEMPORARY or line.store is not Store.LOCAL
        ]
        return LoopLines(comments, row_start, body, row_end, before, after)

    def _load(self, load: Load, group: Group | None, row_start: list[str], body: list[str]) -> None:
        name, pointer = load.value.name, self.pointers[load.value]
        slot = group.slot_of(load.view) if group is not None else None
        if slot is not None:
            row_start.append(f"const real *{pointer} = {_tile_row(slot)};")
            body.append(f"const real {name} = {pointer}[unit];")
        elif load.view.buffer.kind is Kind.SCALAR:
            return
        elif load.access is Access.SCALAR:
            row_start.append(f"const real {name} = *({self._matrix(load.view)});")
        elif load.access is Access.ROW:
            row_start.append(f"const real {name} = *({self._row(load.view)});")
        else:
            by_row = load.access is Access.ELEMENT
            start = self._row(load.view) if by_row else self._matrix(load.view)
            row_start.append(f"const real *{pointer} = {start} + first;")
            body.append(f"const real {name} = {pointer}[unit];")

    def _store(
        self,
        line: Line,
        row_start: list[str],
        row_end: list[str],
        before: list[str],
        after: list[str],
    ) -> None:
        assert line.view is not None
        name, pointer = line.statement.target.name, self.pointers[line.statement.target]
        if line.store is Store.WRITE:
            row_start.append(f"real *{pointer} = {self._row(line.view)} + first;")
        elif line.store is Store.ADD_ROWS:
            before.append(f"real *{pointer} = {self._matrix(line.view)} + first;")
        elif line.store is Store.ADD_UNITS:
            row_start.append(f"real {name} = 0;")
            row_end.append(f"*({self._row(line.view)}) = {name};")
        else:
            before.append(f"real {name} = 0;")
            after.append(f"*({self._matrix(line.view)}) += {name};")

    def _line(self, line: Line) -> list[str]:
        name, value = line.statement.target.name, c_expression(line.statement.expression)
        pointer = self.pointers[line.statement.target]
        if line.store is Store.LOCAL:
            return [f"const real {name} = {value};"]
        if line.store is Store.WRITE:
            if line.used:
                return [f"const real {name} = {value};", f"{pointer}[unit] = {name};"]
            return [f"{pointer}[unit] = {value};"]
        if line.store is Store.ADD_ROWS:
            return [f"{pointer}[unit] += {value};"]
        return [f"{name} += {value};"]


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


def dims_of(definition: Definition) -> tuple[Dim, ...]:
    """The dimensions of a function over time, T first."""
    return (T, *definition.dims)
