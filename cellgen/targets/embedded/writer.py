"""Spell one export: fill in what its templates read.

Input: a layout and what was asked for. Output: the texts of the header and the body.
"""

from __future__ import annotations

from collections.abc import Mapping

from cellgen.language.value import Role, Value
from cellgen.schedule import Buffer
from cellgen.schedule.lower.plan import How
from cellgen.schedule.schedule import views
from cellgen.targets.embedded.contexts import (
    EmbeddedBody,
    EmbeddedHeader,
    FrameText,
    FunctionText,
    MemberText,
    StructText,
    TrainingBody,
    TrainingHeader,
)
from cellgen.targets.embedded.functions import definitions
from cellgen.targets.embedded.layout import MemoryLayout
from cellgen.targets.embedded.loops import WEIGHTS, StageWriter, StructMember, StructPlace
from cellgen.targets.embedded.optimisers import OPTIMISERS
from cellgen.targets.embedded.plan import StaticFunction
from cellgen.targets.embedded.request import Array, ExportRequest
from cellgen.targets.embedded.spelling import Lengths, NotationC99, number
from cellgen.targets.target import PlannedCell
from cellgen.targets.templates import fill

_WHAT = {
    "prologue": "What is formed of weights alone.",
    "step": "One step.",
    "forward": "One step of a window, which keeps what its gradients need.",
    "reverse": "The gradients that one step hands to the step before.",
    "deferred": "The share of one step in the gradients of weights.",
    "epilogue": "Gradients that follow from sums over all steps.",
}
FRAME, WORK = "frame", "work"
"""Structs of what a step is given and gives, and of what a function needs while it runs."""
_NAMES = "training loss rate memory state weights context steps value each"
_TAKEN = frozenset(_NAMES.split())
"""Names that an export's functions have beside a cell's own."""


class ExportWriter:
    """Spells the header and the body of one export."""

    def __init__(self, planned: PlannedCell, layout: MemoryLayout, request: ExportRequest) -> None:
        self.planned, self.layout, self.request = planned, layout, request
        self.cell, self.real = layout.cell, request.dtype
        self.name = request.name or planned.definition.name
        self.prefix = self.name.upper()
        self.lengths = Lengths(self.prefix)
        self.notation = NotationC99(self.real, self.lengths, self.name)
        self.bytes = layout.bytes_of(request)
        self.signatures = ExportSignatures(layout, self.name, self.real, self.lengths)
        self.places = ArrayPlaces(layout)

    def header(self) -> str:
        """The text of the header."""
        layout, signatures = self.layout, self.signatures
        structs = [layout.weights, *layout.parts_of_memory, *layout.of_step]
        if layout.cell.train is not None:
            structs += [part for _, part in layout.parts_of_training]
            structs += layout.of_training
        distinct = {struct.name: struct for struct in structs if struct.members}
        context = EmbeddedHeader(
            head=self.planned.head,
            name=self.name,
            prefix=self.prefix,
            real=self.real,
            sizes=self._sizes(),
            structs=[StructText.of(struct, self.lengths) for struct in distinct.values()],
            memory=[struct.name for struct in layout.parts_of_memory],
            works=[struct.name for struct in layout.of_step],
            constant=bool(self.request.weights),
            prologue=self.cell.prologue is not None,
            start=signatures.start,
            step=signatures.step,
            sequence=signatures.sequence,
            start_call=", ".join(["&weights", "&memory", *signatures.scalars_of_start]),
            step_call=", ".join(["&weights", "&memory", *signatures.names]),
            training=self._training_header(),
        )
        return fill("embedded/cell.h.j2", context)

    def body(self) -> str:
        """The text of the body."""
        functions = {f.name: self._function(f) for f in self.cell.functions}
        training = self._training_body(functions)
        frame, signatures = self._frame(), self.signatures
        called = definitions(self.notation.calls, self.real, self.name)
        prologue = functions.get("prologue")
        scalars = signatures.scalars_of_start
        context = EmbeddedBody(
            head=self.planned.head,
            name=self.name,
            prefix=self.prefix,
            real=self.real,
            frame=frame,
            math=called,
            functions=list(functions.values()),
            states=self._states(),
            outputs=StructText.of(self.layout.outputs, self.lengths).members,
            prologue=self._call(prologue, "memory") if prologue else "",
            prologue_frame=scalars if prologue and FRAME in prologue.structs else [],
            start=signatures.start,
            step=signatures.step,
            sequence=signatures.sequence,
            run_step=self._call(functions["step"], "memory"),
            step_reads_weights=WEIGHTS in functions["step"].structs,
            step_of_sequence=signatures.step_of_sequence,
            training=training,
            values=self._values(),
        )
        return fill("embedded/cell.c.j2", context)

    def _sizes(self) -> list[tuple[str, int, str]]:
        sizes = [(self.lengths.name(n), s, f"dimension {n}") for n, s in self.request.sizes.items()]
        if self.cell.train is not None:
            sizes.append((f"{self.prefix}_T", self.request.window, "steps of a training window"))
        for what, count in self.bytes.items():
            text = f"bytes of {self.name}_{what}"
            sizes.append((f"{self.prefix}_{what.upper()}_BYTES", count, text))
        return sizes

    def _states(self) -> list[MemberText]:
        initials = [self.planned.definition.initial_of(s) for s in self.planned.definition.states]
        members = StructText.of(self.layout.state, self.lengths).members
        return [
            MemberText(m.name, m.length, m.factor, m.shape, number(start, self.real) * bool(start))
            for m, start in zip(members, initials, strict=True)
        ]

    def _values(self) -> list[tuple[str, list[str]]]:
        if not self.request.weights:
            return []
        values = self.request.values_of(self.planned.definition.name, self.cell.parameters)
        return [(name, _rows(array, self.real)) for name, array in values.items()]

    # --- functions of a step ----------------------------------------------------------------

    def _function(self, function: StaticFunction) -> FunctionText:
        place = self.places.of(function)
        writer = StageWriter(self.request, self.notation, place, function.sums)
        lines = writer.function(function.stages)
        types = self._types(function)
        touched = {place(view.buffer).struct for s in function.stages for view in views(s)}
        structs = tuple(name for name in types if name in touched)
        return FunctionText(
            function.name,
            f"{self.name}_run_{function.name}",
            _WHAT[function.name],
            ", ".join(f"{types[name]}{name}" for name in structs) or "void",
            structs,
            lines,
        )

    def _types(self, function: StaticFunction) -> Mapping[str, str]:
        """Parameters that a function may have, and their types."""
        own, is_first = f"{self.name}_", function is self.cell.prologue
        return {
            "weights": f"const {own}weights *",
            "fixed": f"{'' if is_first else 'const '}{own}fixed *",
            "frame": f"const {own}frame *",
            "gradients": f"{own}gradients *",
            "totals": f"{own}totals *",
            "work": f"{own}{function.name}_work *",
        }

    def _call(self, function: FunctionText, memory: str) -> str:
        """Spell the call of a function whose structs lie in ``memory``."""
        work = f"&{memory}->work.{function.kind}_work"
        places = {WEIGHTS: WEIGHTS, FRAME: "&frame", WORK: work}
        arguments = [places.get(name, f"&{memory}->{name}") for name in function.structs]
        return f"{function.name}({', '.join(arguments)})"

    def _frame(self) -> list[FrameText]:
        """The arrays of steps that lie in no struct of a function's, in order."""
        pointers: dict[str, FrameText] = {}
        for function in self.cell.functions:
            place = self.places.of(function)
            for buffer in function.buffers:
                if place(buffer).struct == FRAME and buffer.name not in pointers:
                    pointers[buffer.name] = self._pointer(buffer.value, function.place(buffer).how)
        return list(pointers.values())

    def _pointer(self, value: Value, how: How) -> FrameText:
        name = str(value.name)
        if how is How.SCALAR or (how is How.MEMBER and value.role is Role.SCALAR):
            return FrameText(name, f"{self.real} ", parameter(name), parameter(name))
        at_step, in_training, is_written = self.places.in_memory(value, how, self.lengths)
        kind = f"{self.real} *" if is_written else f"const {self.real} *"
        return FrameText(name, kind, at_step, in_training)

    # --- training ---------------------------------------------------------------------------

    def _training_header(self) -> TrainingHeader | None:
        if self.cell.train is None:
            return None
        signatures = self.signatures
        call = ["&weights", "&training", *signatures.names, "loss", "context", "rate"]
        return TrainingHeader(
            parts=[(name, struct.name) for name, struct in self.layout.parts_of_training],
            powers=list(self.layout.powers),
            works=[work.name for work in self.layout.of_training],
            gradients=signatures.gradients,
            train=signatures.train,
            call=", ".join(call),
            rule=OPTIMISERS[self.layout.optimizer].rule,
        )

    def _training_body(self, functions: Mapping[str, FunctionText]) -> TrainingBody | None:
        if self.cell.train is None:
            return None
        signatures, optimiser = self.signatures, OPTIMISERS[self.layout.optimizer]
        calls = {name: self._call(one, "training") for name, one in functions.items()}
        links = self.cell.programs.links
        return TrainingBody(
            powers=list(self.layout.powers),
            place=signatures.place,
            placed=", ".join(["training", *signatures.names]),
            gradients=signatures.gradients,
            train=signatures.train,
            passed=", ".join(["weights", "training", *signatures.names, "loss", "context"]),
            prologue=calls.get("prologue", ""),
            forward=calls["forward"],
            reverse=calls["reverse"],
            deferred=calls["deferred"],
            epilogue=calls.get("epilogue", ""),
            has_totals=bool(self.layout.totals.members),
            has_backward=bool(self.layout.kept.members),
            carries=[(str(one.carry.name), str(one.passed.name)) for one in links],
            optimiser=self.layout.optimizer,
            updates=[
                optimiser.call(self.name, member.name, self.lengths.product(member.shape))
                for member in self.layout.gradients.members
            ],
        )


class ArrayPlaces:
    """Says where the arrays of functions lie: in which struct, or where a frame points to."""

    def __init__(self, layout: MemoryLayout) -> None:
        self.cell = layout.cell
        train = self.cell.train
        self.gradients: dict[Value, str] = {}
        if train is not None:
            pairs = train.programs.gradients_of.items()
            self.gradients = {gradient: str(value.name) for value, gradient in pairs}
        self.totals = set(train.programs.totals) if train else set[Value]()

    def of(self, function: StaticFunction) -> StructPlace:
        """Where each buffer of a function lies."""

        def place(buffer: Buffer) -> StructMember:
            value, name = buffer.value, buffer.name
            if value in self.cell.parameters:
                return StructMember(WEIGHTS, name)
            if value in self.gradients:
                return StructMember("gradients", self.gradients[value])
            if function.place(buffer).how is not How.MEMORY:
                return StructMember(FRAME, name)
            if value in self.cell.programs.fixed:
                return StructMember("fixed", name)
            return StructMember("totals" if value in self.totals else WORK, name)

        return place

    def in_memory(self, value: Value, how: How, lengths: Lengths) -> tuple[str, str, bool]:
        """Where an array of a step is when a cell runs, and in training; whether it is written."""
        name, each = str(value.name), f"step * {lengths.bracketed(value.shape)}"
        programs = self.cell.programs
        if how is How.BEFORE:
            own = next(str(k.next.name) for k in programs.links if k.previous == value)
            before = f"training->outputs.{own} + (step - 1) * {lengths.bracketed(value.shape)}"
            at = f"step > 0 ? {before} : training->state.{own}"
            return f"memory->state.{own}", at, False
        if how is How.SAVED:
            return "", f"training->saved.{name} + {each}", True
        if how in (How.KEPT, How.CARRY, How.PASSED):
            return "", f"training->backward.{name}", True
        if value in programs.outputs:
            return f"memory->outputs.{name}", f"training->outputs.{name} + {each}", True
        if value in self.cell.arguments:
            own = parameter(name)
            return own, f"{own} + {each}" if how is How.SERIES else own, False
        output = next(v for v, upstream in programs.upstream.items() if upstream == value)
        return "", f"training->d_outputs.{output.name} + {each}", False


class ExportSignatures:
    """Parameters of the functions of an export, and the names of what a cell is given."""

    def __init__(self, layout: MemoryLayout, name: str, real: str, lengths: Lengths) -> None:
        cell = layout.cell
        self.arguments, self.lengths, self.own, self.real = cell.arguments, lengths, name, real
        read = cell.prologue.arguments if cell.prologue else ()
        scalars = [v for v in cell.arguments if v in read]
        self.scalars_of_start = [parameter(str(v.name)) for v in scalars]
        arguments = [self._declared(v) for v in cell.arguments]
        runs = [f"const {name}_weights *weights", f"{name}_memory *memory"]
        loss = [f"{name}_loss loss", "void *context"]
        results = [f"{real} *{parameter(str(v.name))}" for v in cell.programs.outputs]
        trains = f"{name}_training *training"
        self.start = ", ".join([*runs, *(self._declared(v) for v in scalars)])
        self.step = ", ".join([*runs, *arguments])
        self.sequence = ", ".join([*runs, "int steps", *arguments, *results])
        self.place = ", ".join([trains, *arguments, "int step", f"{name}_frame *frame"])
        self.gradients = ", ".join([f"const {name}_weights *weights", trains, *arguments, *loss])
        self.train = ", ".join(
            [f"{name}_weights *weights", trains, *arguments, *loss, f"{real} rate"]
        )

    @property
    def names(self) -> list[str]:
        """What a step is given, by name."""
        return [parameter(str(v.name)) for v in self.arguments]

    @property
    def step_of_sequence(self) -> str:
        """The arguments of one step within a sequence."""
        arguments = [
            f"{parameter(str(v.name))} + step * {self.lengths.bracketed(v.shape)}"
            if v.role is Role.INPUT
            else parameter(str(v.name))
            for v in self.arguments
        ]
        return ", ".join(["weights", "memory", *arguments])

    def _declared(self, value: Value) -> str:
        name = parameter(str(value.name))
        return f"{self.real} {name}" if value.role is Role.SCALAR else f"const {self.real} *{name}"


def parameter(name: str) -> str:
    """The name of a value as a parameter: its own, unless the export's functions have that."""
    return f"{name}_" if name in _TAKEN else name


def _rows(array: Array, real: str, width: int = 88) -> list[str]:
    """The elements of an array as lines of literals."""
    lines, line = [], ""
    for value in array.ravel().tolist():
        piece = f"{number(value, real)}, "
        if len(line) + len(piece) > width:
            lines.append(line.rstrip())
            line = ""
        line += piece
    return [*lines, line.rstrip()]
