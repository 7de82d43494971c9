"""Explain segments of time side by side: whether a cell can have them, and when they pay.

Input: a cell and its recurrence, for figures the interface of a forward pass and a shape. Output: a
section of an explanation; of a device, lines.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from cellgen.language.cell import Definition
from cellgen.program.jumps import jump_of
from cellgen.program.recurrence import Recurrence, RecurrenceClass
from cellgen.runtime.abi import Function
from cellgen.runtime.call.arguments import lengths
from cellgen.runtime.call.segments import (
    DEVICE_STEPS,
    DEVICE_UNITS,
    PAYS_STEPS,
    PAYS_UNITS,
    TOLERANT_STEPS,
    TOLERANT_UNITS,
    Segmentation,
)
from cellgen.runtime.options import FORWARD
from cellgen.views.explanation import ChoiceRow, ExplainedShape, Section

TITLE = "segments of time side by side: parallel='segments' of sequence_forward"


def segments_section(
    definition: Definition,
    recurrence: Recurrence,
    functions: list[Function],
    shape: ExplainedShape | None,
) -> Section:
    """Say whether rows can be cut in time; of a shape, into how many segments, and if it pays."""
    jump = jump_of(definition)
    if jump:
        return Section(
            TITLE,
            (
                ChoiceRow(
                    f"refused: `{jump}` jumps",
                    "a difference in the last bit of a state becomes one of a whole step there, "
                    "which no segment forgets",
                ),
            ),
        )
    row = ChoiceRow(
        "the bits of step by step, for any cell and any weights",
        "a segment whose start is not the end of the one before runs again; what is left after "
        "some sweeps is stepped",
    )
    rows = [row]
    if recurrence.kind is RecurrenceClass.DENSE:
        rows.append(
            ChoiceRow(
                "units read each other: from some 64 units on a tolerance ends it sooner",
                "among many units differences in the last bit do not die",
            )
        )
    if shape is not None:
        forward = next(f for f in functions if f.name == FORWARD)
        rows.append(_of_shape(forward, shape, recurrence.kind))
    return Section(TITLE, tuple(rows))


def on_device(
    definition: Definition, functions: Iterable[Function], sizes: Mapping[str, int]
) -> list[str]:
    """Say of a shape on a GPU whether segments of time pay, as lines."""
    head = ("segments of time side by side: parallel='segments' of cellgen.torch and cellgen.jax",)
    jump = jump_of(definition)
    if jump:
        return [*head, f"  refused: `{jump}` jumps"]
    forward = next(f for f in functions if f.name == FORWARD)
    units = sizes["B"] * _units(forward, sizes)
    pays = sizes["T"] >= DEVICE_STEPS and units < DEVICE_UNITS
    count = Segmentation().count(sizes["T"], units)
    by_call = "" if count > 1 else "; segments=N cuts this shape, which is one where left out"
    verdict = f"they pay where the cell forgets within a segment{by_call}"
    return [
        *head,
        f"  {verdict if pays else 'they do not pay'}",
        f"    - by a model of an H100, not timed: from {DEVICE_STEPS:,} steps on, below some "
        f"{DEVICE_UNITS:,} numbers of a state over all rows ({units:,} here)",
    ]


def _units(forward: Function, sizes: Mapping[str, int]) -> int:
    """The numbers of the largest state of a row."""
    states = (a for a in forward.arguments if a.role == "state")
    return max((math.prod(lengths(a, dict(sizes))[1:]) for a in states), default=1)


def _of_shape(forward: Function, shape: ExplainedShape, kind: RecurrenceClass) -> ChoiceRow:
    """The segments of a shape, and whether they pay."""
    sizes = dict(shape.sizes)
    steps, rows = sizes["T"], sizes["B"]
    units = _units(forward, sizes)
    count = Segmentation().count(steps, units)
    if count == 1:
        return ChoiceRow("at this shape: one segment, step by step", "few steps, or many units")
    what = f"at this shape: {count} segments of {steps // count:,} steps a row"
    fewest, most = TOLERANT_UNITS
    if kind is RecurrenceClass.DENSE and rows == 1 and fewest <= units <= most:
        pays = steps >= TOLERANT_STEPS
        verdict = "with tolerance=1e-6 it pays where the cell forgets within a segment"
        return ChoiceRow(
            f"{what}; {verdict if pays else 'it does not pay'}",
            f"on CPUs it pays from {TOLERANT_STEPS:,} steps on for a row of {fewest} to {most} "
            "units that read each other: segments read the matrix of a product once for all; "
            "without a tolerance they end in steps",
        )
    pays = steps >= PAYS_STEPS and rows * units <= PAYS_UNITS
    verdict = "it pays where the cell forgets within a segment" if pays else "it does not pay"
    return ChoiceRow(
        f"{what}; {verdict}",
        f"on CPUs it pays from {PAYS_STEPS:,} steps on for up to {PAYS_UNITS} units over all rows; "
        f"more of them fill the vectors of a step by themselves",
    )
