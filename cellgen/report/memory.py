"""Bytes of a training step by the number of steps T: what is saved, and what a kernel works in.

Input: the schedule of the time loop, lengths of dimensions, and the compiled kernel where there is
one. Output: ``MemoryPart``. Sizes are those of the generated interface; workspace is what the
kernel's own function answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from cellgen.program.ssa import Program
from cellgen.report.chart import ChartLine, line_class, log_chart
from cellgen.runtime.abi import Argument, Function, axis_length
from cellgen.runtime.build.library import DIMS
from cellgen.runtime.call.arguments import DTYPES
from cellgen.runtime.call.checkpoints import step_bytes
from cellgen.runtime.kernel import Kernel
from cellgen.runtime.options import Options
from cellgen.schedule.over_time import SequenceSchedule
from cellgen.views.explanation import bytes_of
from cellgen.views.figures import row_values

STEPS = (1, 10, 100, 1000, 10000)
DTYPE = "float32"


@dataclass(frozen=True)
class LegendEntry:
    """A line's name and the class of its colour."""

    name: str
    style: str


@dataclass(frozen=True)
class MemoryPart:
    """A chart, its legend, and its numbers: a row for each line, a column for each T."""

    chart: Markup
    legend: tuple[LegendEntry, ...]
    heads: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    shape: str


def memory_part(lines: Sequence[ChartLine], shape: str, label: str) -> MemoryPart:
    """Draw lines of bytes over T."""
    chart = log_chart(lines, "steps T", lambda t: f"{t:,.0f}", _bytes, label)
    return MemoryPart(
        chart=chart,
        legend=tuple(
            LegendEntry(line.name, line_class(number, line.dashed))
            for number, line in enumerate(lines)
        ),
        heads=tuple(f"{steps:,}" for steps in STEPS),
        rows=tuple((line.name, tuple(_bytes(y) for _, y in line.points)) for line in lines),
        shape=shape,
    )


def memory_lines(
    schedule: SequenceSchedule,
    functions: Sequence[Function],
    sizes: Mapping[str, int],
    kernel: Kernel | None,
) -> tuple[ChartLine, ...]:
    """The lines of one cell; a line that would be 0 bytes is left out."""
    forward, _ = functions
    saved = [item for item in forward.results if item.saved]
    over_time = [item for item in forward.results if not item.saved and "T" in item.shape]
    every = _values_of(schedule.programs.forward, sizes)
    rows = sizes["B"] * np.dtype(DTYPE).itemsize
    lines = [
        ChartLine("saved for the backward pass", _over_steps(saved, sizes)),
        ChartLine("the same from checkpoints", _from_checkpoints(forward, sizes)),
        ChartLine("outputs", _over_steps(over_time, sizes)),
        ChartLine(
            "every value of the equations", tuple((t, every * rows * t) for t in STEPS), True
        ),
    ]
    if kernel is not None:
        lines += [_workspace(kernel, function, sizes) for function in functions]
    return tuple(line for line in lines if line.points and min(y for _, y in line.points) > 0)


def saved_line(name: str, functions: Sequence[Function], sizes: Mapping[str, int]) -> ChartLine:
    """What one cell keeps of a forward pass: saved values and outputs."""
    kept = [item for item in functions[0].results if item.saved or "T" in item.shape]
    return ChartLine(name, _over_steps(kept, sizes))


def _bytes(number: float) -> str:
    return bytes_of(round(number))


def _over_steps(
    items: Sequence[Argument], sizes: Mapping[str, int]
) -> tuple[tuple[float, float], ...]:
    size = np.dtype(DTYPE).itemsize
    return tuple(
        (steps, size * sum(_elements(item, {**sizes, "T": steps}) for item in items))
        for steps in STEPS
    )


def _from_checkpoints(
    forward: Function, sizes: Mapping[str, int]
) -> tuple[tuple[float, float], ...]:
    """The fewest bytes that ``memory_limit`` allows: states some sqrt(T) steps apart, a segment."""
    size, points = np.dtype(DTYPE).itemsize, []
    for steps in STEPS:
        per_step = step_bytes(forward, {**sizes, "T": steps}, size, Options())
        points.append((steps, min(per_step.whole, per_step.total(per_step.least))))
    return tuple(points)


def _elements(item: Argument, sizes: dict[str, int]) -> int:
    count = 1
    for axis in item.shape:
        count *= axis_length(axis, sizes)
    return count


def _values_of(program: Program, sizes: Mapping[str, int]) -> int:
    """Elements of a row of all that the equations form: what keeping everything would take."""
    targets = [s.target for s in program.statements if s.target.is_batched]
    total = row_values(targets)
    return int(total.xreplace({dim: sizes[str(dim)] for dim in total.free_symbols}))


def _workspace(kernel: Kernel, function: Function, sizes: Mapping[str, int]) -> ChartLine:
    """Bytes that a call works in besides, for one thread."""
    library = kernel.library()
    entry = library.entry(function.name, DTYPES[np.dtype(DTYPE)][0])
    points = []
    for steps in STEPS:
        dims = [({**sizes, "T": steps})[name] for name in function.dims]
        points.append((steps, entry.size(library.ffi.make(DIMS, dims), library.ffi.NULL)))
    direction = "forward" if function.name == "sequence_forward" else "backward"
    return ChartLine(f"workspace, {direction}", tuple(points))
