"""Spell planned loops as CUDA kernels and as the launches that run them.

Input: a ``Loop`` and where its operands lie. Output: ``KernelContext`` for the template, lines of
host code. A loop becomes one kernel for what it writes, and one for each kind of sum over rows:
sums have a fixed order and no atomics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cellgen.errors import DerivationError
from cellgen.language.names import Names
from cellgen.language.value import Dim, Value
from cellgen.runtime.names import LOCALS
from cellgen.schedule import Access, BufferKind, Load, Loop, Store
from cellgen.schedule.schedule import Line, View, Walk
from cellgen.targets.c.loops import comments_of
from cellgen.targets.c.nests import entries, read_lengths
from cellgen.targets.c_expressions import c_axis, c_expression
from cellgen.targets.cuda.nests import (
    added_up,
    place_in_nest,
    places_of_axes,
    shared_length,
)
from cellgen.targets.cuda.places import (
    AddMemory,
    DevicePlace,
    Over,
    Places,
    address,
    moved,
    offset_of,
)


@dataclass(frozen=True)
class SumContext:
    """A sum of a kernel: its accumulator, where it goes."""

    name: str
    target: str


@dataclass(frozen=True)
class KernelContext:
    """One kernel; ``kind``: elements, each_row, each_chunk or entries, macros of the template."""

    name: str
    kind: str
    comments: list[str]
    parameters: list[str]
    loads: list[str]
    body: list[str]
    sums: list[SumContext]


@dataclass(frozen=True)
class Spelled:
    """The kernels of a loop, the host lines that launch them, and what these name."""

    kernels: list[KernelContext]
    launches: list[str]
    uses: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Part:
    """The lines of one kernel: what it is launched over and what it adds up.

    ``walk`` is that of the sums of a nest: a thread adds up one entry of each.
    """

    kind: str
    lines: tuple[Line, ...]
    sums: Store | None
    walk: Walk | None = None
    number: int = 0

    @property
    def suffix(self) -> str:
        return f"_sums{self.number}" if self.walk else _SUFFIXES[self.sums]

    def adds(self, line: Line) -> bool:
        """Whether a line is one of the sums."""
        return line.store is self.sums and line.walk == (self.walk or line.walk)


def spell_loop(
    stem: str,
    loop: Loop,
    places: Places,
    add_memory: AddMemory,
    steps: str = "",
    validity: str = "",
) -> Spelled:
    """Spell one loop.

    ``steps`` is the C text of a number of steps that one launch covers, ``validity`` of the
    table of their rows: what masked ones make is zero.

    Raises:
        DerivationError: with code ``cuda.loop``, for an index space of more than two axes.
    """
    if len(loop.space) > 2:
        raise DerivationError(
            f"{stem}: a loop over {len(loop.space)} axes is not rendered for CUDA yet",
            code="cuda.loop",
        )
    kernels: list[KernelContext] = []
    launches: list[str] = []
    uses: set[str] = set()
    for part in _parts_of_nest(loop) if loop.is_nest else _parts(loop):
        writer = _KernelWriter(f"{stem}{part.suffix}", loop, part, places, steps)
        writer.validity = validity
        kernels.append(writer.context())
        launches += writer.launches(add_memory)
        uses |= writer.uses
    return Spelled(kernels, launches, frozenset(uses))


@dataclass(frozen=True)
class AheadLoad:
    """A value that a step reads from memory, as C texts: where it lies, and how it is read.

    ``rows`` names the parameter of its place; ``ahead`` an array of it for some steps.
    """

    name: str
    rows: str
    ahead: str
    text: str
    steady: bool
    place: str = ""


@dataclass(frozen=True)
class ElementLines:
    """What a loop does for one row and unit, for a kernel that declares its places itself.

    ``reads`` are its loads as parts, ``others`` the places that are not theirs.
    """

    comments: list[str]
    units: str
    places: list[str]
    loads: list[str]
    body: list[str]
    uses: frozenset[str]
    reads: list[AheadLoad]
    others: list[str]


def elements_of(
    stem: str, loop: Loop, places: Places, in_registers: set[Value], unwritten: set[Value]
) -> ElementLines:
    """Spell a loop without sums: it loads none ``in_registers``, and stores none ``unwritten``."""
    part = _Part("elements", loop.lines, None)
    writer = _KernelWriter(stem, loop, part, places, "")
    writer.in_registers, writer.unwritten = frozenset(in_registers), frozenset(unwritten)
    kernel = writer.context()
    given = zip(writer.parameters, writer.arguments, strict=True)
    declared = {p: f"const {p} = {a};" for p, a in given if p != f"int64_t {a}"}
    reads = [replace(read, place=declared[read.rows]) for read in writer.reads]
    of_reads = {read.rows for read in reads}
    return ElementLines(
        comments=kernel.comments,
        units=c_axis(loop.space[-1]),
        places=list(declared.values()),
        loads=[line for line in kernel.loads if line],
        body=kernel.body,
        uses=frozenset(writer.uses),
        reads=reads,
        others=[line for parameter, line in declared.items() if parameter not in of_reads],
    )


_SUFFIXES = {
    None: "",
    Store.ADD_UNITS: "",
    Store.ADD_ROWS: "_over_rows",
    Store.ADD_ALL: "_over_all",
}
_SUMS = ((Store.ADD_ROWS, "each_chunk"), (Store.ADD_ALL, "each_chunk"))


def _parts(loop: Loop) -> list[_Part]:
    """Split a loop by what becomes of its values."""
    writes = [line for line in loop.lines if line.store is Store.WRITE]
    unit_sums = [line for line in loop.lines if line.store is Store.ADD_UNITS]
    parts = []
    if unit_sums:
        lines = _with_needed(loop, [*writes, *unit_sums])
        parts.append(_Part("each_row", lines, Store.ADD_UNITS))
    elif writes:
        parts.append(_Part("elements", _with_needed(loop, writes), None))
    for kind, launch in _SUMS:
        chosen = [line for line in loop.lines if line.store is kind]
        if chosen:
            parts.append(_Part(launch, _with_needed(loop, chosen), kind))
    return parts


def _parts_of_nest(loop: Loop) -> list[_Part]:
    """Split a nest by what becomes of its values.

    A kernel for what it writes, and one for sums along the same axes.
    """
    writes = [line for line in loop.lines if line.store is Store.WRITE]
    parts = [_Part("elements", _with_needed(loop, writes), None)] if writes else []
    sums = [line for line in loop.lines if line.store not in (Store.LOCAL, Store.WRITE)]
    alike = dict.fromkeys((line.store, line.walk) for line in sums)
    for number, (store, walk) in enumerate(alike, start=1):
        chosen = [line for line in sums if (line.store, line.walk) == (store, walk)]
        parts.append(_Part("entries", _with_needed(loop, chosen), store, walk, number))
    return parts


def _with_needed(loop: Loop, chosen: Sequence[Line]) -> tuple[Line, ...]:
    """The chosen lines and those whose values they read, in order."""
    kept = set(map(id, chosen))
    needed: set[Value] = set()
    for line in reversed(loop.lines):
        is_value = line.store in (Store.LOCAL, Store.WRITE)
        if id(line) in kept or (is_value and line.statement.target in needed):
            kept.add(id(line))
            needed |= line.statement.expression.atoms(Value)
    return tuple(line for line in loop.lines if id(line) in kept)


_INDICES = {
    Access.ELEMENT: ("row", "unit"),
    Access.COLUMN: ("unit", "row"),
    Access.UNIT: ("0", "unit"),
    Access.ROW: ("row", "0"),
    Access.SCALAR: ("0", "0"),
}
"""Row and column of an operand's memory, by how a loop walks it."""


class _KernelWriter:
    """Spells one kernel of a loop."""

    in_registers: frozenset[Value] = frozenset()
    unwritten: frozenset[Value] = frozenset()
    validity = ""

    def __init__(self, name: str, loop: Loop, part: _Part, places: Places, steps: str) -> None:
        self.name, self.loop, self.part, self.steps = name, loop, part, steps
        self.places = places
        values = [load.value for load in loop.loads]
        values += [line.statement.target for line in loop.lines]
        self.names = Names([*(str(v.name) for v in values), *LOCALS])
        self.rows = {v: self.names.fresh(f"{v.name}_rows") for v in dict.fromkeys(values)}
        self.is_valid = self.names.fresh("is_valid")
        self.parameters: list[str] = []
        self.arguments: list[str] = []
        self.uses: set[str] = set()
        self.reads: list[AheadLoad] = []
        self.stores: list[str] = []

    def _at(self, view: View) -> DevicePlace:
        """Where an operand lies, which the kernel's arguments name."""
        place = self.places(view.buffer)
        self.uses |= place.uses
        return place

    @property
    def _written(self) -> tuple[Line, ...]:
        """Lines whose value this kernel stores element by element."""
        if self.part.kind in ("each_chunk", "entries"):
            return ()
        written = [line for line in self.part.lines if line.store is Store.WRITE]
        return tuple(line for line in written if line.statement.target not in self.unwritten)

    @property
    def _summed(self) -> tuple[Line, ...]:
        return tuple(line for line in self.part.lines if self.part.adds(line))

    def context(self) -> KernelContext:
        """Spell the kernel; also gathers the arguments of its launch."""
        read = {v for line in self.part.lines for v in line.statement.expression.atoms(Value)}
        dims = {d for line in self.part.lines for d in line.statement.expression.atoms(Dim)}
        loaded = [load for load in self.loop.loads if load.value in read]
        loads = [self._load(load) for load in loaded]
        over = {self.places(load.view.buffer).over for load in loaded}
        lengths = {c_axis(dim) for dim in dims} | ({"nB"} if over - {Over.ROWS} else set())
        lengths |= {c_axis(d) for length in read_lengths(self.loop) for d in length.atoms(Dim)}
        for name in sorted(lengths):
            self._take(f"int64_t {name}", name)
        lines = [text for line in self.part.lines for text in self._line(line)]
        body = [*self.stores, *lines]
        if self.validity:
            table = self.names.fresh("validity")
            self._take(f"const unsigned char *{table}", self.validity)
            loads.append(f"const bool {self.is_valid} = !{table} || {table}[row] == CELLGEN_VALID;")
        sums = [self._sum(line) for line in self._summed]
        if self.loop.is_nest:
            inner, walk = [*filter(None, loads), *body], self.part.walk
            loads = places_of_axes(self.loop.axes, walk)
            body = inner if walk is None else self._entry(walk, inner, sums)
        counted = ["int64_t nest_rows"] if self.part.walk is not None and self._over_rows else []
        return KernelContext(
            name=self.name,
            kind=self.part.kind,
            comments=comments_of(self.part.lines),
            parameters=["int64_t rows", "int64_t units", *counted, *self.parameters],
            loads=loads,
            body=body,
            sums=sums,
        )

    def launches(self, add_memory: AddMemory) -> list[str]:
        """Host lines that launch the kernel, and what adds up its chunks."""
        rows, units = self._lengths()
        arguments = list(self.arguments)
        after = []
        if self.part.walk is not None:
            return self._launches_of_entries(add_memory)
        if self.part.kind == "each_chunk":
            for line in self._summed:
                assert line.view is not None
                name = f"{self.name}_{line.statement.target.name}_chunks"
                chunks = add_memory(name, "real", f"CELLGEN_CHUNKS({rows}) * ({units})")
                arguments.append(chunks)
                place = self._at(line.view)
                target = f"cg_rows({address(line.view, place)}, {place.stride})"
                routine = "cg_add_chunks" if self.part.sums is Store.ADD_ROWS else "cg_add_all"
                after.append(f"{routine}(&run, {rows}, {units}, {chunks}, {target});")
        macro = {
            "elements": "CELLGEN_ELEMENTS",
            "each_row": "CELLGEN_EACH_ROW",
            "each_chunk": "CELLGEN_EACH_CHUNK",
        }[self.part.kind]
        listed = ",\n    ".join([f"{rows}, {units}", *arguments])
        call = f"{macro}(&run, CELLGEN_CUDA_NAME({self.name}), {listed});"
        return [call, *after]

    def _lengths(self) -> tuple[str, str]:
        space = self.loop.space
        units = c_axis(space[-1]) if space else "(int64_t)1"
        rows = c_axis(space[0]) if len(space) == 2 else "(int64_t)1"
        units = "(int64_t)1" if units == "1" else units
        rows = "(int64_t)1" if rows == "1" else rows
        return (f"{self.steps} * {rows}" if self.steps else rows), units

    # --- nests ---

    def _entry(self, walk: Walk, inner: list[str], sums: list[SumContext]) -> list[str]:
        """What a thread does for one entry of the sums of a nest."""
        begun = [f"real {found.name} = 0;" for found in sums]
        added = added_up(self.loop.axes, walk, inner, over_rows=self._over_rows)
        return [*begun, *added, *(text for found in sums for text in self._stored(found))]

    def _stored(self, found: SumContext) -> list[str]:
        """Write a sum: that of a chunk of rows, or what the threads of an entry have together."""
        if self._over_rows:
            return [f"{found.target}[chunk * units + entry] = {found.name};"]
        return [
            f"{found.name} = cellgen_entry_total({found.name});",
            f"if (is_mine && threadIdx.x == 0) cg_store({found.target}, row, entry, {found.name});",
        ]

    @property
    def _over_rows(self) -> bool:
        return self.part.sums is not Store.ADD_UNITS

    def _launches_of_entries(self, add_memory: AddMemory) -> list[str]:
        """Host lines for the sums of a nest, those over rows chunk by chunk first."""
        rows, _ = self._lengths()
        walk = self.part.walk
        assert walk is not None
        count = f"(int64_t)({entries(walk, self.loop.axes)})"
        arguments, after = list(self.arguments), []
        for line in self._summed if self._over_rows else ():
            assert line.view is not None
            name = f"{self.name}_{line.statement.target.name}_chunks"
            chunks = add_memory(name, "real", f"CELLGEN_CHUNKS({rows}) * {count}")
            arguments.append(chunks)
            place = self._at(line.view)
            target = f"cg_rows({address(line.view, place)}, {place.stride})"
            after.append(f"cg_add_chunks(&run, {rows}, {count}, {chunks}, {target});")
        if self._over_rows:
            macro, lengths = "CELLGEN_ELEMENTS", f"(int64_t)(CELLGEN_CHUNKS({rows})), {count}"
            arguments = [rows, *arguments]
        else:
            shared = shared_length(self.loop.axes, walk)
            macro, lengths = "CELLGEN_ENTRIES", f"(int64_t)({rows}), {count}, {shared}"
        listed = ",\n    ".join([lengths, *arguments])
        return [f"{macro}(&run, CELLGEN_CUDA_NAME({self.name}), {listed});", *after]

    # --- operands ---

    def _take(self, parameter: str, argument: str) -> None:
        self.parameters.append(parameter)
        self.arguments.append(argument)

    def _load(self, load: Load) -> str:
        """Declare a value read from memory; takes the parameters that it needs."""
        name, rows, view = str(load.value.name), self.rows[load.value], load.view
        if load.value in self.in_registers:
            return ""
        place = self._at(view)
        if view.buffer.kind is BufferKind.SCALAR:
            self._take(f"real {name}", place.pointer)
            return ""
        offset = offset_of(view, place)
        row, unit = _INDICES[load.access] if load.walk is None else place_in_nest(load.walk)
        kind = f"cellgen_rows<const {place.element}>"
        if place.over is Over.PREVIOUS and row == "row":
            before = self.names.fresh(f"{name}_initial")
            self._take(f"{kind} {before}", f"cg_in({place.initial}{offset}, {place.stride})")
            self._take(f"{kind} {rows}", f"cg_in({place.pointer}{offset}, {place.stride})")
            return f"const real {name} = cg_load_previous({before}, {rows}, row, {unit}, nB);"
        if place.over is Over.BATCH and row == "row":
            row = "row % nB"
        self._take(f"{kind} {rows}", f"cg_in({moved(place, offset)}, {place.stride})")
        routine = "cg_load_or_zero" if place.optional else "cg_load"
        text, ahead = f"{routine}({rows}, {row}, {unit})", self.names.fresh(f"{name}_ahead")
        if place.kept is not None:  # both passes go on with the same number
            text = f"cg_as_stored<store>({text})"
            self._keep(load, place.kept)
        self.reads.append(AheadLoad(name, f"{kind} {rows}", ahead, text, place.steady))
        return f"const real {name} = {text};"

    def _keep(self, load: Load, place: DevicePlace) -> None:
        """Store a value that is read, where somebody wants it."""
        rows, name = self.names.fresh(f"{load.value.name}_kept"), str(load.value.name)
        self.uses |= place.uses
        self._take(
            f"cellgen_rows<{place.element}> {rows}", f"cg_rows({place.pointer}, {place.stride})"
        )
        self.stores.append(f"cg_store_if({rows}, row, unit, {self._if_valid(name)});")

    def _line(self, line: Line) -> list[str]:
        name, value = str(line.statement.target.name), c_expression(line.statement.expression)
        if line in self._summed:
            return [f"{self._accumulator(line)} += {self._if_valid(value)};"]
        lines = [f"const real {name} = {value};"]
        if line in self._written:
            assert line.view is not None
            place, rows = self._at(line.view), self.rows[line.statement.target]
            pointer = moved(place, offset_of(line.view, place))
            self._take(
                f"cellgen_rows<{place.element}> {rows}", f"cg_rows({pointer}, {place.stride})"
            )
            routine = "cg_store_if" if place.optional else "cg_store"
            lines.append(f"{routine}({rows}, row, unit, {self._if_valid(name)});")
        return lines

    def _if_valid(self, value: str) -> str:
        return f"{self.is_valid} ? {value} : real(0)" if self.validity else value

    def _accumulator(self, line: Line) -> str:
        return f"{line.statement.target.name}"

    def _sum(self, line: Line) -> SumContext:
        """Take the place of a sum: rows for sums over units, totals of chunks otherwise."""
        name, rows = self._accumulator(line), self.rows[line.statement.target]
        if self.part.kind == "each_chunk" or (self.part.walk is not None and self._over_rows):
            self.parameters.append(f"real *{rows}")
            return SumContext(name, rows)
        assert line.view is not None
        place = self._at(line.view)
        pointer = moved(place, offset_of(line.view, place))
        self._take(f"cellgen_rows<{place.element}> {rows}", f"cg_rows({pointer}, {place.stride})")
        return SumContext(name, rows)
