"""Spell kernels that keep the memory of a head in registers through all steps.

Input: ``HeldTier``. Output: ``HeldContext`` for ``held.j2``. How many threads a block has and how
many entries each is the ``frame``, a type of ``cellgen_cuda_held.cuh``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from sympy import Mul

from cellgen.language.names import Names
from cellgen.language.value import Value
from cellgen.runtime.abi import Function as Signature
from cellgen.runtime.abi import c_dim
from cellgen.runtime.names import LOCALS
from cellgen.schedule.device.held import (
    HeldArray,
    HeldLoad,
    HeldLoop,
    HeldRenewed,
    HeldShares,
    HeldStage,
    HeldState,
    HeldSum,
    HeldTaken,
    HeldTier,
    Holder,
    Origin,
)
from cellgen.schedule.device.places import DevicePlace, IfGiven, RowsOfArray
from cellgen.schedule.device.plan import DeviceTimePlan
from cellgen.schedule.schedule import Buffer, Line, Store
from cellgen.targets.c.loops import comments_of
from cellgen.targets.c_expressions import c_axis, c_expression, c_factor
from cellgen.targets.cuda.dialect import DeviceDialect
from cellgen.targets.cuda.options import OptionLines
from cellgen.targets.cuda.places import pointer, pointer_of, rows_at, stride, stride_of
from cellgen.targets.cuda.step import ArrayContext

_PLACES = {0: "", 1: "[unit]", 2: "[tile_1][tile_2]"}
"""Where a thread has what it holds or owns, by how many axes that has."""


_OVER = {0: "thread", 1: "unit", 2: "entry"}
"""Which threads do something for each element of what has so many axes."""


@dataclass(frozen=True)
class Piece:
    """What threads do, as C texts; ``over`` names a macro of the template that says which do it.

    ``length`` is that of a vector whose units they have.
    """

    over: str
    lines: list[str]
    length: str = ""


@dataclass(frozen=True)
class HeldStageLines:
    """A stage, as C texts."""

    pieces: list[Piece]
    comments: list[str] = field(default_factory=list)
    barrier: bool = False


@dataclass(frozen=True)
class HeldContext:
    """A ``HeldTier``, as C texts."""

    name: str
    arguments: str
    dims: list[str]
    memory: list[ArrayContext]
    strides: list[tuple[str, str]]
    axes: tuple[str, str]
    heads: str
    lengths: list[str]
    vectors: list[str]
    shares: list[str]
    declared: list[str]
    once: list[Piece]
    ahead: list[Piece]
    entries_ahead: list[Piece]
    stages: list[HeldStageLines]
    last: list[Piece]
    backward: bool

    @property
    def call(self) -> str:
        """The arguments of a launch after those of the tier."""
        return ", ".join([*self.dims, "*args", *(array.name for array in self.memory)])


def spell_held(
    plan: DeviceTimePlan,
    signature: Signature,
    memory: Iterable[ArrayContext],
    words: DeviceDialect,
) -> HeldContext | None:
    """Spell the kernel of a plan that keeps memories in registers, if it has one."""
    tier = plan.tier.held
    if tier is None:
        return None
    part = "reverse" if plan.is_backward else "forward"
    strides, writer = OptionLines(plan.options).strides(), HeldWriter(tier, plan.is_backward, words)
    read = [array for array in tier.of(Origin.STEP) if _is_ahead(array)]
    return HeldContext(
        name=f"{plan.cell}_{part}_held",
        arguments=f"{plan.cell}_{words.name}_{plan.function}_args",
        dims=[c_dim(dim) for dim in signature.dims],
        memory=[array for array in memory if array.name in tier.names],
        strides=[(name, strides[name]) for name in plan.strides_of_tier],
        axes=(c_axis(tier.axes[0]), c_axis(tier.axes[1])),
        heads=c_axis(tier.heads),
        lengths=[c_axis(length) for length in tier.lengths],
        vectors=[writer.held[a.buffer] for a in tier.arrays.values() if a.is_shared],
        shares=[writer.share[total.buffer] for total in tier.shares],
        declared=list(writer.declared()),
        once=[*writer.once(), *writer.first()],
        ahead=[writer.read_ahead(a) for a in read if a.holder is not Holder.ENTRIES],
        entries_ahead=[writer.read_ahead(a) for a in read if a.holder is Holder.ENTRIES],
        stages=[writer.stage(stage) for stage in tier.stages],
        last=[writer.left(state) for state in tier.states if state.last is not None],
        backward=plan.is_backward,
    )


class HeldWriter:
    """Spells the stages of a kernel."""

    def __init__(self, tier: HeldTier, backward: bool, words: DeviceDialect) -> None:
        self.tier, self.arrays, self.backward, self.words = tier, tier.arrays, backward, words
        values = [buffer.value for buffer in self.arrays]
        values += [load.value for loop in tier.loops for load in loop.loads]
        values += [line.statement.target for loop in tier.loops for line in loop.lines]
        names = Names([*(str(value.name) for value in values), *LOCALS])
        self.held = {b: names.fresh(f"{b.name}_held") for b in self.arrays}
        self.read = {b: names.fresh(f"{b.name}_ahead") for b in self.arrays}
        self.share = {s.buffer: names.fresh(f"{s.buffer.name}_shares") for s in tier.shares}
        sums = [total.buffer for loop in tier.loops for total in loop.sums]
        self.total = {buffer: names.fresh(f"{buffer.name}_total") for buffer in sums}

    # --- what a thread declares ---

    def declared(self) -> Iterator[str]:
        """Registers of a thread."""
        for array in self.arrays.values():
            if _is_ahead(array):
                yield f"real {self.read[array.buffer]}{_size(array)};"
            in_register = array.holder is not Holder.BLOCK and array.origin is not Origin.CALL
            if array.is_held and in_register:
                yield f"real {self.held[array.buffer]}{_size(array)};"

    def once(self) -> Iterator[Piece]:
        """What is read before the first step."""
        for array in self.tier.of(Origin.CONSTANT):
            yield self._each(array, f"{self._mine(array)} = {self._loaded(array)};")
        for state in self.tier.states:
            array = self.arrays[state.read]
            text = f"cg_load({_rows_in(state.first)}, row, {self._unit(array)})"
            yield self._each(array, f"{self._mine(array)} = {text};")

    def first(self) -> Iterator[Piece]:
        """What is read at the first step alone: where what it follows is to have been."""
        for array in self.tier.of(Origin.STEP):
            if array.follows is not None:
                at = self._mine(self.arrays[array.follows])
                yield self._each(array, f"{at} = {self._loaded(array)};")

    def read_ahead(self, array: HeldArray) -> Piece:
        """Read what a step that comes needs."""
        return self._each(array, f"{self._ahead(array)} = {self._loaded(array)};")

    def left(self, state: HeldState) -> Piece:
        """Store what the last step leaves."""
        assert state.last is not None
        array = self.arrays[state.read]
        at, value = _rows_out(state.last), self._mine(array)
        return self._each(array, *self._stored(array, at, value))

    # --- stages ---

    def stage(self, stage: HeldStage) -> HeldStageLines:
        """Spell a stage of a step."""
        comments: list[str] = []
        if isinstance(stage, HeldTaken):
            held = [buffer for buffer in stage.buffers if self.arrays[buffer].is_held]
            pieces = [piece for buffer in held for piece in self._taken(buffer)]
        elif isinstance(stage, HeldRenewed):
            pieces = [self._renewed(state) for state in stage.states]
        elif isinstance(stage, HeldShares):
            pieces = [self._added_up(total, stage) for total in stage.sums]
        else:
            comments = comments_of(stage.lines)
            pieces = list(self._of_loop(stage))
        return HeldStageLines(pieces, comments, stage.barrier)

    def _taken(self, buffer: Buffer) -> Iterator[Piece]:
        """Take what was read ahead; what follows another takes what that was first."""
        array, place = self.arrays[buffer], self.arrays[buffer].place
        if array.holder is Holder.ENTRIES:
            followed = array.follows and self._mine(self.arrays[array.follows])
            text = f"{self._mine(array)} = {followed or self._ahead(array)};"
            yield self._each(array, f"if (frame::ahead) {text}")
            return
        lines = [f"{self._mine(array)} = {self._ahead(array)};"]
        if place is not None and place.kept is not None:  # both passes go on with the same number
            lines = [f"{self._mine(array)} = cg_as_stored<store>({self._ahead(array)});"]
            lines += self._stored(array, _rows(place.kept), self._mine(array), optional=True)
        yield self._each(array, *lines)

    def _renewed(self, state: HeldState) -> Piece:
        read, new = self.arrays[state.read], self.arrays[state.new]
        cut = "cellgen_cuts(args->options.window, step) ? real(0) : " if self.backward else ""
        return self._each(read, f"{self._mine(read)} = {cut}{self._mine(new)};")

    def _added_up(self, total: HeldSum, stage: HeldShares) -> Piece:
        """Add up what the warps of a block have of a sum."""
        array, name = self.arrays[total.buffer], str(total.line.statement.target.name)
        at, apart = self.share[total.buffer], "1"
        if total.along:
            at, apart = f"{at} + unit", "frame::last"
        lines = [f"const real {name} = cellgen_shares_total<frame::warps>({at}, {apart});"]
        return self._each(array, *lines, *self._formed(array, name))

    def _of_loop(self, stage: HeldLoop) -> Iterator[Piece]:
        over = _OVER[len(stage.axes)]
        length = c_axis(stage.axes[0]) if len(stage.axes) == 1 else ""
        loads = [self._load(load, stage) for load in stage.loads]
        if len(stage.axes) == 1 and stage.sums:
            yield from self._units_summed(stage, loads, length)
            if not stage.formed:
                return
        sums = {total.line: total for total in stage.sums} if len(stage.axes) == 2 else {}
        wanted = [
            line for line in stage.lines if line in sums or line.statement.target in stage.formed
        ]
        kept = with_needed(stage.lines, wanted)
        lines = [text for line in kept for text in self._line(line, stage, sums)]
        yield Piece("thread", [self._begun(total) for total in sums.values()])
        yield Piece(over, [*self._needed(loads, kept, stage), *lines], length)
        for total in sums.values():
            yield self._ended(total)

    def _units_summed(self, stage: HeldLoop, loads: list[str], length: str) -> Iterator[Piece]:
        """Each warp adds up all units of a vector, so that each thread has the sum."""
        for total in stage.sums:
            array, name = self.arrays[total.buffer], str(total.line.statement.target.name)
            sum_of, kept = self.total[total.buffer], with_needed(stage.lines, [total.line])
            lines = [_declared(line) for line in kept if line is not total.line]
            lines.append(f"{sum_of} += {c_expression(total.line.statement.expression)};")
            yield Piece("thread", [f"real {sum_of} = 0;"])
            yield Piece("warp", [*self._needed(loads, kept, stage), *lines], length)
            end = [f"const real {name} = cellgen_warp_total({sum_of});"]
            yield Piece("thread", ["{", *end, *self._formed(array, name), "}"])

    def _needed(self, loads: list[str], kept: Iterable[Line], stage: HeldLoop) -> list[str]:
        read = {v for line in kept for v in line.statement.operands}
        return [t for t, load in zip(loads, stage.loads, strict=True) if load.value in read]

    def _line(self, line: Line, stage: HeldLoop, sums: Mapping[Line, HeldSum]) -> list[str]:
        if line in sums:
            total = sums[line]
            places = ("[tile_1 % frame::classes][tile_2]", "[tile_1]")
            at = places[total.along[0] == 0] if total.along else ""
            value = c_expression(line.statement.expression)
            return [f"{self.total[total.buffer]}{at} += {value};"]
        target = line.statement.target
        lines = [_declared(line)]
        if target in stage.formed:
            lines += self._formed(self.arrays[stage.formed[target]], str(target.name))
        return lines

    def _begun(self, total: HeldSum) -> str:
        sizes = ("[frame::classes][frame::columns]", "[frame::rows]")
        size = f"{sizes[total.along[0] == 0]} = {{}}" if total.along else " = 0"
        return f"real {self.total[total.buffer]}{size};"

    def _ended(self, total: HeldSum) -> Piece:
        """What a warp does with its part of a sum over entries."""
        array, sum_of = self.arrays[total.buffer], self.total[total.buffer]
        if not total.along:
            share = f"{self.share[total.buffer]}[my.warp]"
            return Piece(
                "thread",
                [
                    f"{sum_of} = cellgen_warp_total({sum_of});",
                    f"if (my.lane == 0) {share} = {sum_of};",
                ],
            )
        if total.along == (1,):
            share = f"{self.share[total.buffer]}[my.warp * frame::last + axis2]"
            return Piece("column", [f"{share} = cellgen_classes_total({sum_of}, tile_2);"])
        name = str(total.line.statement.target.name)
        return Piece(
            "row",
            [
                f"const real {name} = cellgen_warp_total({sum_of}[tile_1]);",
                "if (my.lane == 0 && axis1 < axes1) {",
                *self._formed(array, name, "axis1"),
                "}",
            ],
        )

    # --- values ---

    def _formed(self, array: HeldArray, name: str, unit: str = "unit") -> list[str]:
        """Keep what is formed, and store it where memory has it."""
        value = f"cg_as_stored<store>({name})" if array.is_stored else name
        lines = [f"{self._mine(array, unit)} = {value};"] if array.is_held else []
        if array.place is None:
            return lines
        at, optional = _rows(array.place), array.place.optional or is_optional(array.place)
        return lines + self._stored(array, at, name, optional=optional, unit=unit)

    def _stored(
        self, array: HeldArray, at: str, value: str, *, optional: bool = False, unit: str = "unit"
    ) -> list[str]:
        routine = "cg_store_if" if optional else "cg_store"
        text = f"{routine}({at}, row, {self._unit(array, unit)}, {value});"
        return [f"if (thread == 0) {text}" if array.holder is Holder.THREAD else text]

    def _load(self, load: HeldLoad, stage: HeldLoop) -> str:
        """Read what a stage needs of what is held."""
        array, name = self.arrays[load.buffer], str(load.value.name)
        if array.holder is Holder.ENTRIES and not array.is_held:
            return f"const real {name} = {self._loaded(array)};"
        if array.holder is Holder.ENTRIES and array.origin is Origin.STEP:
            read = f"frame::ahead ? {self._mine(array)} : {self._loaded(array)}"
            return f"const real {name} = {read};"
        if array.holder is not Holder.BLOCK:
            return f"const real {name} = {self._mine(array)};"
        at = "unit" if len(stage.axes) == 1 else f"axis{load.along[0] + 1}"
        return f"const real {name} = {self.held[load.buffer]}[{at}];"

    def _mine(self, array: HeldArray, unit: str = "unit") -> str:
        """What a thread holds of an array, or its own unit of a vector."""
        if array.origin is Origin.CALL:
            assert array.place is not None
            return pointer(array.place)
        at = f"[{unit}]" if array.holder is Holder.BLOCK else _PLACES[len(array.axes)]
        return f"{self.held[array.buffer]}{at}"

    def _ahead(self, array: HeldArray) -> str:
        at = _PLACES[2] if array.holder is Holder.ENTRIES else ""
        return f"{self.read[array.buffer]}{at}"

    def _each(self, array: HeldArray, *lines: str) -> Piece:
        """Do something for each element of an array of a head."""
        over = _OVER[len(array.axes)]
        return Piece(over, list(lines), c_axis(array.axes[0]) if len(array.axes) == 1 else "")

    def _unit(self, array: HeldArray, unit: str = "unit") -> str:
        """Where an element lies in its row."""
        own = ("", unit, "(axis1 * axes2 + axis2)")[len(array.axes)]
        first = f"head * ({c_axis(Mul(*array.axes))})" if array.by_head else ""
        return " + ".join(part for part in (first, own) if part) or "0"

    def _loaded(self, array: HeldArray) -> str:
        """Read an element of memory."""
        assert array.place is not None
        routine = "cg_load_or_zero" if array.place.optional else "cg_load"
        at = f"cg_in({pointer(array.place)}, {stride(array.place)})"
        return f"{routine}({at}, {'row' if array.by_row else '0'}, {self._unit(array)})"


def _is_ahead(array: HeldArray) -> bool:
    """Whether a step's value is read while the step before it runs."""
    return array.origin is Origin.STEP and array.follows is None and array.is_held


def with_needed(lines: Iterable[Line], chosen: Iterable[Line]) -> list[Line]:
    """Some lines and those whose values they read, in order."""
    kept, needed = set(map(id, chosen)), set[Value]()
    ordered = list(lines)
    for line in reversed(ordered):
        is_value = line.store is not Store.ADD_UNITS
        if id(line) in kept or (is_value and line.statement.target in needed):
            kept.add(id(line))
            needed |= line.statement.expression.atoms(Value)
    return [line for line in ordered if id(line) in kept]


def is_optional(place: DevicePlace) -> bool:
    """Whether the caller may leave an array out: what stands for it is not wanted."""
    return isinstance(place.source, IfGiven)


def _declared(line: Line) -> str:
    return f"const real {line.statement.target.name} = {c_expression(line.statement.expression)};"


def _size(array: HeldArray) -> str:
    return "[frame::rows][frame::columns]" if array.holder is Holder.ENTRIES else ""


def _rows(place: DevicePlace) -> str:
    """Rows of an array to write: of the caller's alone where it may be left out."""
    source = place.source
    if isinstance(source, IfGiven):
        source = IfGiven(source.rows)
    return f"cg_rows({pointer_of(source)}, {stride_of(source)})"


def _rows_in(rows: RowsOfArray) -> str:
    return f"cg_in({rows_at(rows)}, {c_factor(rows.stride)})"


def _rows_out(rows: RowsOfArray) -> str:
    return f"cg_rows({rows_at(rows)}, {c_factor(rows.stride)})"
