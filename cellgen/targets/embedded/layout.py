"""Lay out the memory of an export: structs of arrays, and how many bytes each has.

Input: ``ExportPlan``. Output: ``MemoryLayout``. Every struct holds arrays of one type and nothing
else, so that its size is the sum of theirs on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from sympy import Integer

from cellgen.language.value import Shape, T, Value, format_shape
from cellgen.program.interpret import axis_size
from cellgen.targets.embedded.optimisers import OPTIMISERS
from cellgen.targets.embedded.plan import ExportPlan, StaticFunction
from cellgen.targets.embedded.request import ExportRequest
from cellgen.targets.embedded.spelling import BYTES

Counted = Callable[[Shape], int]
"""How many elements a shape has, for given sizes."""


@dataclass(frozen=True)
class StructArray:
    """One array of a struct."""

    name: str
    shape: Shape

    @property
    def text(self) -> str:
        """Its shape, for a comment."""
        return format_shape(self.shape)


@dataclass(frozen=True)
class Struct:
    """A named struct of arrays; ``what`` says what it is."""

    name: str
    what: str
    members: tuple[StructArray, ...]

    def count(self, of: Counted) -> int:
        """How many elements it has."""
        return sum(of(member.shape) for member in self.members)


def _members(values: Iterable[Value], steps: Shape = ()) -> tuple[StructArray, ...]:
    return tuple(StructArray(str(v.name), (*steps, *v.shape)) for v in values)


@dataclass(frozen=True)
class MemoryLayout:
    """The structs of an export; those without members are left out where they are written."""

    cell: ExportPlan
    optimizer: str = ""
    """Of a training step, if there is one."""

    @cached_property
    def weights(self) -> Struct:
        """Weights, biases, scalars that learn; C has no struct without a member."""
        members = _members(self.cell.parameters)
        if not members:
            nothing = StructArray("nothing", (Integer(1),))
            return Struct("weights", "This cell has no weights.", (nothing,))
        return Struct("weights", "Weights and biases.", members)

    @cached_property
    def state(self) -> Struct:
        """What a step hands to the next, by the names of the new values."""
        links = self.cell.programs.links
        members = tuple(StructArray(str(one.next.name), one.previous.shape) for one in links)
        return Struct("state", "What a step hands to the next one.", members)

    @cached_property
    def outputs(self) -> Struct:
        """What a step gives."""
        return Struct("outputs", "What a step gives.", _members(self.cell.programs.outputs))

    @cached_property
    def fixed(self) -> Struct:
        """What is formed of weights alone."""
        return Struct(
            "fixed", "What is formed of weights alone, once.", _members(self.cell.programs.fixed)
        )

    @cached_property
    def window(self) -> Struct:
        """Outputs of all steps of a window."""
        members = _members(self.cell.programs.outputs, (T,))
        return Struct("window", "Outputs of all steps of a window, or their gradients.", members)

    @cached_property
    def gradients(self) -> Struct:
        """Gradients of what learns."""
        what = "Of all that learns: gradients, or what the optimiser keeps."
        return Struct("gradients", what, _members(self.cell.learning))

    @cached_property
    def saved(self) -> Struct:
        """What the steps of a window keep for their backward pass."""
        values = self.cell.train.programs.saved if self.cell.train else ()
        what = "What the steps of a window keep for its gradients."
        return Struct("saved", what, _members(values, (T,)))

    @cached_property
    def kept(self) -> Struct:
        """What a backward step keeps for gradients of weights, and sums over the steps."""
        if self.cell.train is None:
            return Struct("backward", "", ())
        programs = self.cell.train.programs
        carried = [v for link in programs.links for v in (link.carry, link.passed)]
        members = _members(dict.fromkeys((*carried, *programs.kept)))
        return Struct("backward", "Gradients on their way from step to step.", members)

    @cached_property
    def totals(self) -> Struct:
        """Sums over all steps of which gradients are made."""
        values = self.cell.train.programs.totals if self.cell.train else ()
        return Struct("totals", "Sums over a window of which gradients are made.", _members(values))

    def work(self, function: StaticFunction) -> Struct:
        """Memory that a function uses while it runs."""
        return Struct(
            f"{function.name}_work",
            f"What `{function.name}` needs while it runs.",
            _members(buffer.value for buffer in function.work),
        )

    @cached_property
    def of_step(self) -> tuple[Struct, ...]:
        """Work of what runs a cell: of these one at a time."""
        return self._works(f for f in self.cell.functions if f.name in ("prologue", "step"))

    @cached_property
    def of_training(self) -> tuple[Struct, ...]:
        """Work of what trains a cell: of these one at a time."""
        return self._works(f for f in self.cell.functions if f.name != "step")

    def _works(self, functions: Iterable[StaticFunction]) -> tuple[Struct, ...]:
        works = (self.work(function) for function in functions)
        return tuple(work for work in works if work.members)

    @property
    def moments(self) -> tuple[str, ...]:
        """Names of what an optimiser keeps of every gradient."""
        return OPTIMISERS[self.optimizer].moments if self.optimizer else ()

    @property
    def powers(self) -> tuple[str, ...]:
        """Numbers that an optimiser keeps beside them."""
        return OPTIMISERS[self.optimizer].powers if self.optimizer else ()

    @cached_property
    def parts_of_memory(self) -> tuple[Struct, ...]:
        """Structs within the memory of a cell, in order, but for its work."""
        return tuple(s for s in (self.state, self.outputs, self.fixed) if s.members)

    @cached_property
    def parts_of_training(self) -> tuple[tuple[str, Struct], ...]:
        """Structs within the memory of a training step by name, in order, but for its work."""
        parts = [("state", self.state), ("gradients", self.gradients)]
        parts += [(name, self.gradients) for name in self.moments]
        parts += [("outputs", self.window), ("d_outputs", self.window), ("saved", self.saved)]
        parts += [("fixed", self.fixed), ("backward", self.kept), ("totals", self.totals)]
        return tuple((name, struct) for name, struct in parts if struct.members)

    def bytes_of(self, request: ExportRequest) -> Mapping[str, int]:
        """Bytes of weights, memory and, where there is one, training, for given sizes."""
        sizes = {**request.sizes, "T": request.window}

        def of(shape: Shape) -> int:
            count = 1
            for axis in shape:
                count *= axis_size(axis, sizes)
            return count

        memory = sum(part.count(of) for part in self.parts_of_memory)
        memory += max((work.count(of) for work in self.of_step), default=0)
        counts = {"weights": self.weights.count(of), "memory": memory}
        if self.cell.train is not None:
            training = sum(part.count(of) for _, part in self.parts_of_training)
            training += max((work.count(of) for work in self.of_training), default=0)
            counts["training"] = training + len(self.powers)
        return {name: count * BYTES[request.dtype] for name, count in counts.items()}
