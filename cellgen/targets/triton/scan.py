"""Spell work unit by unit over all steps, forward and back.

Input: ``RowKernel``. Output: ``RowKernelSource``. A kernel runs the equations of the step in
registers; its backward pass runs them again and then their adjoint, from the last step back.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from cellgen.language.value import Value
from cellgen.program.chunks.layers import LinearScan
from cellgen.program.derive import adjoint
from cellgen.program.ssa import Program
from cellgen.targets.triton.expressions import triton_number
from cellgen.targets.triton.names import triton_name
from cellgen.targets.triton.rows import RowKernel, is_by_row, unit_axes
from cellgen.targets.triton.scan_text import (
    Once,
    RowAccess,
    RowArrays,
    RowKernelSource,
    RowKernelText,
    StateNames,
    equations_of,
    lines_of_program,
    spell,
    sums_of,
)
from cellgen.targets.triton.segments import (
    Segment,
    formed_apart,
    segment_of,
    whole,
    whole_back,
    whole_back_text,
    whole_text,
)


class RowSpelling:
    """Spells the kernels of some work unit by unit.

    ``scan`` and its ``streams`` are those of states that are a linear scan by themselves.
    """

    def __init__(self, kernel: RowKernel, scan: LinearScan | None, streams: Program | None) -> None:
        self.kernel, self.step = kernel, kernel.step
        self.segment: Segment | None = None
        if scan is not None and streams is not None:
            self.segment = segment_of(kernel, scan, streams)
        full, self.adjoints = adjoint(self.step, self.step.results, self.step.arguments)
        wanted = tuple(self.adjoints[v] for v in self.step.arguments)
        self.back = full.restrict(f"{kernel.name}_back", wanted, ())
        upstream = full.arguments[len(self.step.arguments) :]
        self.upstream = dict(zip(self.step.results, upstream, strict=True))
        """Gradients by results."""

    # --- forward ---

    def forward(self, saved: Set[Value]) -> RowKernelSource:
        """The kernel of the step; ``saved`` are new states that the backward pass alone reads."""
        arrays, text = self._forward(saved)
        flags = ["SPLIT"] if text.ends else []
        return spell("triton/scan.j2", text, arrays, [self.step], [*flags, *_saves(text)])

    def forward_once(self, saved: Set[Value]) -> RowKernelSource | None:
        """The same with each segment read once; None where the states are no linear scan."""
        if self.segment is None:
            return None
        arrays, text = self._forward(saved)
        first = whole_text(self.kernel, self.segment, RowArrays(self.kernel.axes))
        once = self.segment.once(first, [(names.name, names.first) for names in text.states])
        programs = [self.step, self.segment.program]
        formed = formed_apart(self.step, self.kernel.states)
        return self._once("triton/scan_once.j2", text, once, arrays, programs, formed)

    def _once(
        self,
        template: str,
        text: RowKernelText,
        once: Once,
        arrays: RowArrays,
        programs: Sequence[Program],
        formed: int,
    ) -> RowKernelSource:
        of = f"{self.kernel.name}.{'back_' if text.is_back else ''}"
        arrays.by_pointer |= {"starts_ptr": f"{of}starts", "told_ptr": f"{of}told"}
        before = [*dict.fromkeys([*text.before, *once.first.before])]
        whole = replace(text, name=f"{text.name}_once", before=before, once=once)
        spelled = spell(template, whole, arrays, programs, _saves(text))
        return replace(spelled, formed=formed)

    def _forward(self, saved: Set[Value]) -> tuple[RowArrays, RowKernelText]:
        kernel, arrays = self.kernel, RowArrays(self.kernel.axes)
        arrays.read((*kernel.weights, *kernel.streams))
        pairs = list(zip(kernel.states, kernel.following, strict=True))
        states = [self._state(*pair, arrays.width) for pair in pairs]
        arrays.by_pointer |= {n.first: str(v) for n, (v, _) in zip(states, pairs, strict=True)}
        written = (*kernel.following, *kernel.roots)
        stores = [arrays.access(value, saved=value in saved) for value in written]
        arrays.by_pointer |= {a.pointer: str(v) for a, v in zip(stores, written, strict=True)}
        arrays.by_pointer |= {
            n.last: f"{following}_last" for n, (_, following) in zip(states, pairs, strict=True)
        }
        ends = self.segment.starts(kernel.states) if self.segment else None
        if ends is not None:
            arrays.by_pointer["ends_ptr"] = f"{kernel.name}.ends"
        before, lines, _ = lines_of_program(self.step)
        text = RowKernelText(
            kernel.name,
            equations=equations_of(self.step.statements),
            before=before,
            lines=lines,
            states=states,
            stores=stores,
            saves=bool(saved),
            ends=ends,
        )
        return arrays, text

    def _state(self, state: Value, following: Value, width: str) -> StateNames:
        name, new = triton_name(state), triton_name(following)
        initial = self.initial_of(state)
        return StateNames(name, new, f"{name}_first_ptr", f"{new}_last_ptr", width, initial=initial)

    def initial_of(self, state: Value) -> str:
        """The number that a state begins anew with."""
        numbers = dict(zip(self.kernel.states, self.kernel.initials, strict=True))
        return triton_number(numbers[state])

    def whole(self) -> RowKernelSource | None:
        """What a segment of steps does as a whole; None where the states are no linear scan."""
        return whole(self.kernel, self.segment) if self.segment else None

    # --- back ---

    def backward(self, reached: Set[Value], summed: Set[Value]) -> RowKernelSource:
        """The adjoint; gradients reach results in ``reached``, and have reached ``summed`` before.

        What is read with fewer units than the kernel has gets shares a unit, ``rows_1.d_x.wide``.
        """
        arrays, text = self._backward(reached, summed)
        flags = ["SPLIT"] if text.ends else []
        return spell("triton/scan_back.j2", text, arrays, [self.back], flags)

    def backward_once(self, reached: Set[Value], summed: Set[Value]) -> RowKernelSource | None:
        """The same with each segment read once; None where ``whole_back`` is."""
        whole = self._whole_back()
        if self.segment is None or whole is None:
            return None
        arrays, text = self._backward(reached, summed)
        own = RowArrays(self.kernel.axes)
        first = whole_back_text(self.kernel, whole, self.upstream, reached, own)
        once = self.segment.once_back(first, [(names.carry, names.last) for names in text.states])
        programs = [self.back, whole]
        carries = [self.upstream[following] for following in self.kernel.following]
        formed = formed_apart(self.back, (*self.kernel.states, *carries))
        return self._once("triton/scan_once_back.j2", text, once, arrays, programs, formed)

    def _backward(self, reached: Set[Value], summed: Set[Value]) -> tuple[RowArrays, RowKernelText]:
        kernel, arrays = self.kernel, RowArrays(self.kernel.axes)
        needed = {v for s in self.back.statements for v in s.operands} | {*self.back.results}
        arrays.read(v for v in (*kernel.weights, *kernel.streams) if v in needed)
        opening = self._upstream(arrays, reached, needed)
        states = self._states_back(arrays, reached, needed)
        stores, shares = self._gradients(arrays, summed)
        arrays.by_pointer |= {
            names.first_gradient: f"d_{state}"
            for names, state in zip(states, kernel.states, strict=True)
        }
        ends = None
        if self.segment is not None and self.segment.is_back:
            ends = self.segment.starts_back([names.carry for names in states])
            arrays.by_pointer["ends_ptr"] = f"{kernel.name}.ends"
            arrays.by_pointer["back_ends_ptr"] = f"{kernel.name}.back_ends"
        before, lines, after = lines_of_program(self.back)
        own = len(set(self.step.statements).intersection(self.back.statements))
        text = RowKernelText(
            f"{kernel.name}_back",
            equations=equations_of(self.back.statements[own:]),
            before=[*opening, *before],
            lines=lines,
            after=after,
            states=states,
            stores=stores,
            shares=shares,
            sums=sums_of(self.back),
            ends=ends,
            is_back=True,
        )
        return arrays, text

    def _upstream(self, arrays: RowArrays, reached: Set[Value], needed: Set[Value]) -> list[str]:
        """Read what reaches roots; where nothing does, lines that say so."""
        lines = []
        for result in self.kernel.roots:
            gradient = self.upstream[result]
            if gradient not in needed:
                continue
            name = triton_name(gradient)
            if result in reached:
                arrays.stream(name, f"d_{result}")
            else:
                lines.append(f"{name} = tl.zeros([UNITS], ACC)")
        return lines

    def _states_back(
        self, arrays: RowArrays, reached: Set[Value], needed: Set[Value]
    ) -> list[StateNames]:
        states = []
        for state, following in zip(self.kernel.states, self.kernel.following, strict=True):
            name, gradient = triton_name(state), triton_name(self.upstream[following])
            result = triton_name(self.adjoints[state])
            names = StateNames(
                name,
                triton_name(following),
                f"{name}_first_ptr",
                f"{gradient}_last_ptr",
                arrays.width,
                carry=f"{gradient}_carry",
                gradient=gradient,
                result=result,
                first_gradient=f"{result}_ptr",
                above=f"{gradient}_above" if following in reached else "",
                is_read=state in needed,
                initial=self.initial_of(state),
            )
            if names.is_read:
                arrays.stream(name, str(following), f"{names.following}_ptr", shifted=True)
            if names.above:
                arrays.stream(names.above, f"d_{following}")
            arrays.by_pointer |= {names.first: str(state), names.last: f"d_{following}_last"}
            states.append(names)
        return states

    def _gradients(
        self, arrays: RowArrays, summed: Set[Value]
    ) -> tuple[list[RowAccess], list[RowAccess]]:
        """What is written at each step, and after the last: shares of gradients of weights."""
        stores, shares = [], []
        for value in self.step.arguments:
            name = triton_name(self.adjoints[value])
            if value in self.kernel.states:
                continue
            if not is_by_row(value):
                shares.append(arrays.write(name, f"{self.kernel.name}.d_{value}.shares", name))
            elif unit_axes(value) != arrays.axes:
                stores.append(arrays.write(name, f"{self.kernel.name}.d_{value}.wide", name))
            elif value in summed:
                arrays.stream(f"{name}_so_far", f"d_{value}", f"{name}_ptr")
                stores.append(arrays.write(name, f"d_{value}", f"{name} + {name}_so_far"))
            else:
                stores.append(arrays.write(name, f"d_{value}", name))
        return stores, shares

    def whole_back(self, reached: Set[Value]) -> RowKernelSource | None:
        """What a segment hands to the steps before it; None where that hangs on states."""
        program = self._whole_back()
        if program is None:
            return None
        return whole_back(self.kernel, program, self.upstream, reached)

    def _whole_back(self) -> Program | None:
        if self.segment is None or not self.segment.is_back:
            return None
        states = [self.adjoints[state] for state in self.kernel.states]
        return self.back.restrict(f"{self.kernel.name}_whole_back", states, ())


def _saves(text: RowKernelText) -> list[str]:
    return ["SAVE"] if text.saves else []
