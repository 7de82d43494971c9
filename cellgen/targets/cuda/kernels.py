"""Spell planned loops as kernels and as the launches that run them.

Input: ``DeviceLoop`` and the words of a dialect. Output: ``KernelContext`` for the template, lines
of host code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cellgen.language.names import Names
from cellgen.language.value import Dim, Value
from cellgen.runtime.names import LOCALS
from cellgen.schedule.device.loops import suffix
from cellgen.schedule.device.places import BeforeSteps, DevicePlace, Matrix, Over
from cellgen.schedule.device.stages import DeviceLoop, LaunchedOver, LoopKernel
from cellgen.schedule.device.tiers import TierLoop
from cellgen.schedule.schedule import Access, Buffer, BufferKind, Line, Load, Store, Walk
from cellgen.targets.c.loops import comments_of
from cellgen.targets.c.nests import entries, read_lengths
from cellgen.targets.c_expressions import c_axis, c_expression
from cellgen.targets.cuda.dialect import DeviceDialect
from cellgen.targets.cuda.nests import added_up, place_in_nest, places_of_axes, shared_length
from cellgen.targets.cuda.places import (
    address,
    initial_of,
    launched,
    moved,
    offset,
    pointer,
    stride,
)


@dataclass(frozen=True)
class SumContext:
    """A sum of a kernel: its accumulator, where it goes."""

    name: str
    target: str


@dataclass(frozen=True)
class KernelContext:
    """One kernel; ``kind``: elements, each_row, each_chunk or entries, macros of the template.

    ``by_chunk``: entries are added up chunk by chunk of rows.
    """

    name: str
    kind: str
    comments: list[str]
    parameters: list[str]
    loads: list[str]
    body: list[str]
    sums: list[SumContext]
    by_chunk: bool = False


@dataclass
class SpelledStages:
    """Kernels of some stages, and the host lines that launch them."""

    kernels: list[KernelContext] = field(default_factory=list)
    launches: list[str] = field(default_factory=list)

    def add(self, kernels: list[KernelContext], launches: list[str]) -> None:
        """Add what follows."""
        self.kernels += kernels
        self.launches += launches


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel, its argument, and its name if it is rows of an array.

    ``is_length``: the host has a local of that name.
    """

    declared: str
    argument: str
    rows: str = ""
    is_length: bool = False


@dataclass(frozen=True)
class AheadLoad:
    """A value that a step reads from memory, as C texts: where it lies, and how it is read.

    ``rows`` names the parameter of its place; ``ahead`` an array of it for some steps. ``at`` is
    what a routine that reads it is given.
    """

    name: str
    rows: str
    ahead: str
    at: str
    text: str
    steady: bool
    buffer: Buffer
    place: str = ""

    @property
    def declared(self) -> str:
        """The line that declares it where it is read."""
        return f"const real {self.name} = {self.text};"


@dataclass(frozen=True)
class PlaceLine:
    """The line that declares a place, and the name of the rows that it is of, if it is rows."""

    rows: str
    line: str


@dataclass(frozen=True)
class ElementLines:
    """What a loop does for one row and unit, for a kernel that declares its places itself.

    ``reads`` are its loads, ``others`` the places that are not theirs. ``body`` forms and stores,
    one after the other; ``formed`` is the former, ``stored`` the latter.
    """

    comments: list[str]
    units: str
    places: list[PlaceLine]
    body: list[str]
    formed: list[str]
    stored: list[str]
    reads: list[AheadLoad]

    @property
    def loads(self) -> list[str]:
        """The lines that read."""
        return [read.declared for read in self.reads]

    @property
    def others(self) -> list[str]:
        """The lines of places that are no load's."""
        of_reads = {read.rows for read in self.reads}
        return [place.line for place in self.places if place.rows not in of_reads]


NO_SUMS: Mapping[Value, str] = {}


def spell_loop(stage: DeviceLoop, words: DeviceDialect, validity: str) -> SpelledStages:
    """Spell the kernels of a loop; ``validity`` is the C text of the table of valid rows."""
    spelled = SpelledStages()
    for part in stage.kernels:
        writer = KernelWriter(stage, part, words, validity if stage.leaves_out else "")
        spelled.add([writer.context()], writer.launches())
    return spelled


def elements_of(
    item: TierLoop,
    words: DeviceDialect,
    sums: Mapping[Value, str] = NO_SUMS,
    of_row: Mapping[Value, str] = NO_SUMS,
    *,
    onto: bool = False,
) -> ElementLines:
    """Spell a loop inside a kernel over all steps; of a sum over units, the term.

    ``sums`` are C texts of values that products have formed for it, ``of_row`` of those that all
    threads of a row have; ``onto``: memory has a part of the former.
    """
    part = LoopKernel(LaunchedOver.ELEMENTS, item.loop.lines)
    writer = KernelWriter(item.stage, part, words, "", item)
    writer.take_sums(sums, onto=onto)
    writer.take_sums(of_row, onto=False)
    kernel = writer.context()
    places = [
        PlaceLine(p.rows, f"const {p.declared} = {p.argument};")
        for p in writer.taken
        if not p.is_length
    ]
    at = {place.rows: place.line for place in places}
    return ElementLines(
        comments=kernel.comments,
        units=c_axis(item.units),
        places=places,
        body=kernel.body,
        formed=[*writer.begins, *writer.formed],
        stored=writer.stored,
        reads=[replace(read, place=at[read.rows]) for read in writer.reads],
    )


_INDICES = {
    Access.ELEMENT: ("row", "unit"),
    Access.COLUMN: ("unit", "row"),
    Access.UNIT: ("0", "unit"),
    Access.ROW: ("row", "0"),
    Access.SCALAR: ("0", "0"),
}
"""Row and column of an operand's memory, by how a loop walks it."""


def _has_rows(load: Load) -> bool:
    """Whether each row of a loop reads a row of its own."""
    if load.walk is not None:
        return load.walk.rows
    return load.access in (Access.ELEMENT, Access.ROW)


class KernelWriter:
    """Spells one kernel of a loop, or a loop inside a kernel over all steps (``tier``)."""

    def __init__(
        self,
        stage: DeviceLoop,
        part: LoopKernel,
        words: DeviceDialect,
        validity: str,
        tier: TierLoop | None = None,
    ) -> None:
        self.stage, self.part, self.words, self.tier = stage, part, words, tier
        self.loop, self.validity = stage.loop, validity
        self.name = f"{stage.name}{suffix(part)}"
        self.places = stage.places if tier is None else tier.places
        values = [load.value for load in self.loop.loads]
        values += [line.statement.target for line in self.loop.lines]
        self.names = Names([*(str(v.name) for v in values), *LOCALS])
        self.rows = {v: self.names.fresh(f"{v.name}_rows") for v in dict.fromkeys(values)}
        self.is_valid = self.names.fresh("is_valid")
        self.taken: list[Parameter] = []
        self.totals: list[str] = []
        self.reads: list[AheadLoad] = []
        self.begins: list[str] = []
        self.keeps: list[str] = []
        self.formed: list[str] = []
        self.stored: list[str] = []
        self.written = part.written if tier is None else tier.written
        self.begun: list[str] = []

    def take_sums(self, sums: Mapping[Value, str], *, onto: bool) -> None:
        """Declare values that are sums in registers; what they begin with is read before them."""
        for load in self.loop.loads:
            if load.value not in sums:
                continue
            name, place, text = (
                str(load.value.name),
                self.places[load.view.buffer],
                sums[load.value],
            )
            if onto:
                begun, rows = self.names.fresh(f"{name}_begun"), self.rows[load.value]
                self._take_rows(rows, place, moved(load.view, place), const=True)
                at = f"{rows}, row, unit"
                read = f"cg_load({at})"
                ahead = AheadLoad(begun, rows, begun, at, read, place.steady, load.view.buffer)
                self.begun.append(ahead.declared)
                self.reads.append(ahead)
                text = f"{begun} + {text}"
            if place.kept is not None:
                text = f"cg_as_stored<store>({text})"
                self._keep(load, place.kept)
            self.begins.insert(0, f"const real {name} = {text};")

    def context(self) -> KernelContext:
        """Spell the kernel; also gathers the arguments of its launch."""
        dims = {d for line in self.part.lines for d in line.statement.expression.atoms(Dim)}
        read = self.part.loads(self.loop)
        loaded = read if self.tier is None else self.tier.loads
        loads = [*self.begun, *(text for load in loaded for text in self._load(load))]
        over = {self.places[load.view.buffer].over for load in read}
        lengths = {c_axis(dim) for dim in dims} | ({"nB"} if over - {Over.ROWS} else set())
        lengths |= {c_axis(d) for length in read_lengths(self.loop) for d in length.atoms(Dim)}
        for name in sorted(lengths):
            self.taken.append(Parameter(f"int64_t {name}", name, is_length=True))
        lines = [text for line in self.part.lines for text in self._line(line)]
        body = [*self.begins, *self.keeps, *lines]
        if self.validity:
            table = self.names.fresh("validity")
            self._take(f"const unsigned char *{table}", self.validity)
            loads.append(f"const bool {self.is_valid} = !{table} || {table}[row] == CELLGEN_VALID;")
        sums = [self._sum(line) for line in self.part.summed]
        walk = self.part.walk
        if self.loop.is_nest:
            inner = [*loads, *body]
            loads = places_of_axes(self.loop.axes, walk)
            body = inner if walk is None else self._entry(walk, inner, sums)
        by_chunk = walk is not None and self.part.over_rows
        return KernelContext(
            name=self.name,
            kind=self.part.kind.value,
            comments=comments_of(self.part.lines),
            parameters=[
                "int64_t rows",
                "int64_t units",
                *(["int64_t nest_rows"] if by_chunk else []),
                *(parameter.declared for parameter in self.taken),
                *self.totals,
            ],
            loads=loads,
            body=body,
            sums=sums,
            by_chunk=by_chunk,
        )

    def launches(self) -> list[str]:
        """Host lines that launch the kernel, and what adds up its chunks."""
        rows, units = self._rows, launched(self.loop.space[-1:]) or "(int64_t)1"
        walk, over_rows = self.part.walk, self.part.over_rows
        if walk is not None:
            units = f"(int64_t)({entries(walk, self.loop.axes)})"
        arguments = [parameter.argument for parameter in self.taken]
        after = []
        for line, chunks in zip(
            self.part.summed if over_rows else (), self.part.chunks, strict=True
        ):
            arguments.append(chunks)
            assert line.view is not None
            place = self.places[line.view.buffer]
            target = f"cg_rows({address(Matrix(line.view, place))}, {stride(place)})"
            routine = "cg_add_all" if self._adds_everything else "cg_add_chunks"
            after.append(f"{routine}(&run, {rows}, {units}, {chunks}, {target});")
        macro, lengths = self.words.launch[self.part.kind], f"{rows}, {units}"
        if walk is not None and over_rows:
            macro = self.words.launch[LaunchedOver.ELEMENTS]
            lengths = f"(int64_t)(CELLGEN_CHUNKS({rows})), {units}"
            arguments = [rows, *arguments]
        elif walk is not None:
            lengths = f"(int64_t)({rows}), {units}, {shared_length(self.loop.axes, walk)}"
        listed = ",\n    ".join([lengths, *arguments])
        return [f"{macro}(&run, {self.words.of_type(self.name)}, {listed});", *after]

    @property
    def _adds_everything(self) -> bool:
        return self.part.walk is None and self.part.sums is Store.ADD_ALL

    @property
    def _rows(self) -> str:
        space = self.loop.space
        rows = launched(space[:1]) if len(space) == 2 else "(int64_t)1"
        return f"nT * {rows}" if self.stage.all_steps else rows

    # --- nests ---

    def _entry(self, walk: Walk, inner: list[str], sums: list[SumContext]) -> list[str]:
        """What a thread does for one entry of the sums of a nest."""
        begun = [f"real {total.name} = 0;" for total in sums]
        over_rows = self.part.over_rows
        added = added_up(self.loop.axes, walk, inner, self.words, over_rows=over_rows)
        return [*begun, *added, *(text for total in sums for text in self._stored(total))]

    def _stored(self, total: SumContext) -> list[str]:
        """Write a sum: that of a chunk of rows, or what the threads of an entry have together."""
        if self.part.over_rows:
            return [f"{total.target}[chunk * units + entry] = {total.name};"]
        first = f"is_mine && {self.words.thread[0]} == 0"
        return [
            f"{total.name} = cellgen_entry_total({total.name});",
            f"if ({first}) cg_store({total.target}, row, entry, {total.name});",
        ]

    # --- operands ---

    def _take(self, declared: str, argument: str, rows: str = "") -> None:
        self.taken.append(Parameter(declared, argument, rows))

    def _take_rows(self, rows: str, place: DevicePlace, at: str, *, const: bool = False) -> None:
        """Take rows of an array as a parameter."""
        element = f"{'const ' if const else ''}{self.words.elements[place.element]}"
        argument = f"{'cg_in' if const else 'cg_rows'}({at}, {stride(place)})"
        self._take(f"cellgen_rows<{element}> {rows}", argument, rows)

    def _load(self, load: Load) -> list[str]:
        """Declare a value read from memory; takes the parameters that it needs."""
        name, rows, view = str(load.value.name), self.rows[load.value], load.view
        place = self.places[view.buffer]
        if view.buffer.kind is BufferKind.SCALAR:
            self._take(f"real {name}", pointer(place))
            return []
        row, unit = _INDICES[load.access] if load.walk is None else place_in_nest(load.walk)
        if isinstance(place.source, BeforeSteps) and _has_rows(load):
            assert self.tier is None, "a kernel over all steps reads a state step by step"
            before, by = self.names.fresh(f"{name}_initial"), offset(view, place)
            self._take_rows(before, place, f"{initial_of(place.source)}{by}", const=True)
            self._take_rows(rows, place, f"{pointer(place)}{by}", const=True)
            return [f"const real {name} = cg_load_previous({before}, {rows}, row, {unit}, nB);"]
        if place.over is Over.BATCH and _has_rows(load):
            row = "row % nB"
        self._take_rows(rows, place, moved(view, place), const=True)
        routine = "cg_load_or_zero" if place.optional else "cg_load"
        at, ahead = f"{rows}, {row}, {unit}", self.names.fresh(f"{name}_ahead")
        text = f"{routine}({at})"
        if place.kept is not None:  # both passes go on with the same number
            text = f"cg_as_stored<store>({text})"
            self._keep(load, place.kept)
        self.reads.append(AheadLoad(name, rows, ahead, at, text, place.steady, view.buffer))
        return [self.reads[-1].declared]

    def _keep(self, load: Load, place: DevicePlace) -> None:
        """Store a value that is read, where somebody wants it."""
        rows, name = self.names.fresh(f"{load.value.name}_kept"), str(load.value.name)
        self._take_rows(rows, place, pointer(place))
        self.stored.append(f"cg_store_if({rows}, row, unit, {self._if_valid(name)});")
        self.keeps.append(self.stored[-1])

    def _line(self, line: Line) -> list[str]:
        name, value = str(line.statement.target.name), c_expression(line.statement.expression)
        if line in self.part.summed:
            self.formed.append(f"{name} += {self._if_valid(value)};")
            return self.formed[-1:]
        self.formed.append(f"const real {name} = {value};")
        lines = self.formed[-1:]
        if line in self.written:
            assert line.view is not None
            place, rows = self.places[line.view.buffer], self.rows[line.statement.target]
            self._take_rows(rows, place, moved(line.view, place))
            routine = "cg_store_if" if place.optional else "cg_store"
            self.stored.append(f"{routine}({rows}, row, unit, {self._if_valid(name)});")
            lines.append(self.stored[-1])
        return lines

    def _if_valid(self, value: str) -> str:
        return f"{self.is_valid} ? {value} : real(0)" if self.validity else value

    def _sum(self, line: Line) -> SumContext:
        """Take the place of a sum: rows for sums over units, totals of chunks otherwise."""
        name, rows = str(line.statement.target.name), self.rows[line.statement.target]
        if self.part.over_rows:
            self.totals.append(f"real *{rows}")
            return SumContext(name, rows)
        assert line.view is not None
        place = self.places[line.view.buffer]
        self._take_rows(rows, place, moved(line.view, place))
        return SumContext(name, rows)
