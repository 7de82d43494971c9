"""Lower one function over time: its arrays, states, sums and parts.

Input: ``SequenceSchedule`` and the function's interface. Output: ``TimePlan``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from sympy import Expr

from cellgen.language.value import Value
from cellgen.program.over_time import StateLink
from cellgen.runtime.abi import Function as Signature
from cellgen.schedule.lower.arrays import CallerArrays
from cellgen.schedule.lower.memory import Workspace, length, row_length
from cellgen.schedule.lower.part import lower_part
from cellgen.schedule.lower.plan import (
    RowArray,
    Rows,
    RowSum,
    State,
    StepsTotal,
    TimePlan,
    Total,
    When,
)
from cellgen.schedule.lower.touched import (
    begins_with_product,
)
from cellgen.schedule.lower.verify import verify
from cellgen.schedule.on_request import skipped_with
from cellgen.schedule.over_time import Part, SequenceSchedule, Storage, summed_over_rows
from cellgen.schedule.schedule import Buffer, BufferKind, PlannedFunction


def lower(schedule: SequenceSchedule, signatures: Sequence[Signature]) -> tuple[TimePlan, TimePlan]:
    """Lower the two functions over time, forward and backward, and verify both.

    Raises:
        DerivationError: a fault of the compiler, found by the verifier.
    """
    forward, backward = signatures
    plans = (
        Lowering(schedule, forward, forward, ("forward",)).plan(),
        Lowering(schedule, backward, forward, ("reverse", "deferred")).plan(),
    )
    for plan in plans:
        verify(plan)
    return plans


@dataclass
class Lowering:
    """Lowers one function; collects the memory that it needs on the way."""

    schedule: SequenceSchedule
    signature: Signature
    forward: Signature
    part_names: tuple[str, ...]
    workspace: Workspace = field(default_factory=Workspace)
    product_rows: list[Expr] = field(default_factory=list)
    once: dict[Buffer, tuple[str, bool]] = field(default_factory=dict)

    @property
    def is_backward(self) -> bool:
        """Whether it is the backward function, which has two parts."""
        return len(self.part_names) == 2

    @cached_property
    def arrays(self) -> CallerArrays:
        """The arrays of the caller."""
        stepped = self.part(self.part_names[0])
        return CallerArrays(
            self.schedule, self.signature, stepped, self.is_backward, self.workspace
        )

    @cached_property
    def requested(self) -> frozenset[Value]:
        """Results without which stages that form nothing else are skipped."""
        return skipped_with(self.schedule) if self.is_backward else frozenset()

    def part(self, name: str) -> Part:
        """The part of a name."""
        part: Part = getattr(self.schedule, name)
        return part

    def plan(self) -> TimePlan:
        """Lower the function."""
        schedule, programs = self.schedule, self.schedule.programs
        self._place_once(schedule.prologue)
        parts = tuple(lower_part(self, name) for name in self.part_names)
        self._place_once(schedule.epilogue if self.is_backward else None)
        states = tuple(self._state(link) for link in programs.links)
        series = self.arrays.series()
        totals, sums = self._totals(), self._sums()
        return TimePlan(
            cell=programs.definition.name,
            function=self.signature.name,
            text=self.signature.text,
            backward=self.is_backward,
            memory=self.workspace.items,
            series=series,
            states=states,
            parts=parts,
            zeros=self.arrays.zeros(),
            product_rows=sum(self.product_rows[1:], start=self.product_rows[0])
            if self.product_rows
            else None,
            reads_before=self.is_backward
            and Storage.PREVIOUS in schedule.deferred.storage.values(),
            required=self.arrays.required(),
            row_arrays=self.arrays.row_arrays(),
            summed=self.arrays.summed(),
            packs_from=tuple(a.name for a in self.signature.struct_members if a.is_weight),
            kept=tuple(RowArray(f"{v.name}_time", row_length(v)) for v in programs.kept)
            if self.is_backward
            else (),
            constants=self._constants(),
            totals=totals,
            sums=sums,
            steps_totals=self._steps_totals(),
            made=self._made(),
            runs_again=self.is_backward and self._runs_again(),
            prologue=schedule.prologue,
            epilogue=schedule.epilogue if self.is_backward else None,
            once_places=tuple((b, of, inside) for b, (of, inside) in self.once.items()),
        )

    def _made(self) -> tuple[str, ...]:
        found = {a.name for a in self.forward.results if a.shape[:1] == ("T",)}
        members = (*self.signature.struct_members, *self.signature.results)
        return tuple(a.name for a in members if a.name in found)

    def _runs_again(self) -> bool:
        """Whether a backward pass has what a forward pass takes."""
        given = {a.name for a in self.signature.arguments}
        takes = {a.name for a in self.forward.arguments}
        return takes <= given and self.forward.dims == self.signature.dims

    def _state(self, link: StateLink) -> State:
        programs, workspace = self.schedule.programs, self.workspace
        width, previous = row_length(link.next), str(link.previous.name)
        output, saved = link.next in programs.outputs, link.next in programs.saved
        pair, now, across = "", not self.is_backward, False
        if self.is_backward:
            note = "gradient between two steps"
            pair = workspace.add(f"{link.passed.name}_pair", Rows.TWO_BATCHES, width, note)
            now = link.previous in programs.reverse.arguments
            across = link.previous in programs.deferred.arguments
        elif not output:
            pair = self.state_pair(link.next)
        if now:
            note = "state before a step"
            workspace.add(f"now_{previous}", Rows.BATCH, width, note, when=When.GUARDED)
        if across:
            note = "states before many steps"
            workspace.add(f"rows_{previous}", Rows.CHUNK, width, note, when=When.GATHERED)
        return State(
            name=str(link.next.name),
            previous=previous,
            passed=str(link.passed.name),
            width=width,
            output=output,
            saved=saved and not self.is_backward,
            series=str(link.next.name) if output or (self.is_backward and saved) else "",
            now=now,
            across=across,
            pair=pair,
            upstream=str(programs.upstream[link.next].name) if output else "",
            start=programs.definition.initial_of(link.previous),
        )

    def state_pair(self, state: Value) -> str:
        """Two steps of a state that nobody asked for at every step."""
        return self.workspace.add(
            f"{state.name}_pair", Rows.TWO_BATCHES, row_length(state), "state, two steps"
        )

    def place_of(self, value: Value) -> tuple[str, bool]:
        """Where a value that is the same at every step lies: a member's name, or memory's."""
        programs = self.schedule.programs
        for kind, own in (("fixed", programs.fixed), ("total", programs.totals)):
            if value in own:
                note = {"fixed": "of weights alone", "total": "summed over all steps"}[kind]
                name = f"{kind}_{value.name}"
                self.workspace.add(name, Rows.ONE, length(value.shape), note)
                if kind == "fixed":
                    self.workspace.keep_packed(name)
                return name, True
        return str(value.name), False

    def _place_once(self, function: PlannedFunction | None) -> None:
        """Give what prologue and epilogue form its memory."""
        for buffer in function.buffers if function else ():
            if buffer.kind is not BufferKind.WORKSPACE:
                self.once[buffer] = self.place_of(buffer.value)
                continue
            assert function is not None
            name = f"{function.name}_{buffer.name}"
            self.workspace.add(name, Rows.ONE, length(buffer.shape), "of weights")
            if function.name == "prologue":
                self.workspace.keep_packed(name)
            self.once[buffer] = (name, True)

    def _totals(self) -> tuple[Total, ...]:
        """Every sum over all steps."""
        if not self.is_backward:
            return ()
        part, contexts = self.schedule.deferred, self.schedule.programs.contexts
        found = [
            self._total(b, begins_with_product(part, b))
            for b, place in part.storage.items()
            if place is Storage.TOTAL
        ]
        found += [self._total(b, begun=False) for b in part.storage if b.value in contexts]
        return tuple(found)

    def _total(self, buffer: Buffer, begun: bool) -> Total:
        name, batched = str(buffer.name), buffer.value.is_batched
        of, in_memory = self.place_of(buffer.value)
        count, own = length(buffer.shape[1:] if batched else buffer.shape), ""
        if not in_memory and not batched:
            note = "of a row block"
            own = self.workspace.add(f"own_{name}", Rows.ONE, count, note, when=When.ROW_BLOCK)
        return Total(name, of, in_memory, count, begun, batched, own)

    def _sums(self) -> tuple[RowSum, ...]:
        stages = self.schedule.deferred.stages if self.is_backward else ()
        buffers = dict.fromkeys(b for stage in stages for b in summed_over_rows(stage))
        return tuple(
            RowSum(*self.place_of(b.value), length(b.shape), self.sums_of_groups(b))
            for b in buffers
        )

    def sums_of_groups(self, total: Buffer) -> str:
        """Memory for the sums over groups of rows of a chunk, and of one that another shares."""
        note = "sums over groups of rows"
        return self.workspace.add(f"sums_{total.name}", Rows.GROUPS, length(total.shape), note)

    def _steps_totals(self) -> tuple[StepsTotal, ...]:
        """What each chunk of steps adds to the gradients of what is constant over time."""
        if not self.is_backward:
            return ()
        return tuple(
            StepsTotal(*self.place_of(value), f"deferred_{value.name}", row_length(value))
            for value in self.schedule.programs.contexts
        )

    def _constants(self) -> tuple[RowArray, ...]:
        """What is the same at every step and has a row for each of the batch.

        The deferred part reads it over many steps, from copies for each of a chunk.
        """
        if not self.is_backward:
            return ()
        storage = self.schedule.deferred.storage.items()
        values = [b.value for b, place in storage if place is Storage.CONSTANT]
        return tuple(
            RowArray(f"rows_{v.name}", row_length(v), str(v.name)) for v in values if v.is_batched
        )

    def product_block(self, rows: Expr) -> Expr | None:
        """Rows of operands packed before this one.

        Each has a place of its own, since no barrier keeps a thread from packing the next while
        another still reads this.
        """
        before = self.product_rows
        found = sum(before[1:], start=before[0]) if before else None
        self.product_rows.append(rows)
        return found
