"""Compare the tangent of a cell with complex steps through its outputs and through its gradients.

The truth is the cell's own: outputs and gradients, interpreted at complex arguments. Nothing of the
tangent takes part in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cellgen.errors import BuildError
from cellgen.language.value import Value
from cellgen.pipeline import programs_of
from cellgen.program.derive import forward
from cellgen.program.interpret import STEP, interpret
from cellgen.program.step import CellPrograms
from cellgen.program.transforms.tangent import directions_of, tangent
from cellgen.proof.check.errors import FLOAT64_BAR, error_of
from cellgen.proof.check.gradients import CONDITION, run_all, tame_point
from cellgen.proof.check.points import Arguments, Array, Point, Subject
from cellgen.proof.check.report import Row, judged
from cellgen.proof.rounding import largest


def prove_tangent(subject: Subject, rng: np.random.Generator) -> list[Row]:
    """Compare derivatives of outputs along a direction, and gradients of those."""
    made = tangent(subject.cell)
    names, programs = directions_of(made), programs_of(made)
    note = BuildError("the tangent's kernel is not needed here")
    both = Subject(made, programs, forward(made.definition), note)
    point, known, scales = tame_point(both, programs.functions, rng, 1.0)

    def error(found: str, stepped: Array) -> float:
        truth = np.imag(stepped) / STEP
        return error_of(known[found], truth, max(largest(truth), scales[found] / CONDITION))

    moved = _moved(point, names, [str(value.name) for value in subject.definition.outputs])
    plain = interpret(subject.plain, moved.arguments, point.sizes)
    first = {names[name]: error(names[name], array) for name, array in plain.items()}
    gradients = run_all(subject.programs, moved)
    own, others = _named(subject.programs), _named(programs)
    second = {
        others[name]: error(others[name], gradients[own[name]])
        for name in own
        if own[name] in gradients and others.get(name) in known
    }
    return [
        judged("tangent by complex step", first, FLOAT64_BAR, ", ".join(first)),
        judged(
            "second derivatives by complex step",
            second,
            FLOAT64_BAR,
            f"the tangent's backward: {', '.join(second)}",
        ),
    ]


def _moved(point: Point, names: Mapping[str, str], outputs: Sequence[str]) -> Point:
    """The cell's arguments and upstream gradients, with the directions as imaginary parts."""

    def along(name: str, array: Array) -> Array:
        dot = names.get(name)
        return array + 1j * STEP * point.arguments[dot] if dot in point.arguments else array

    arguments: Arguments = {
        name: along(name, array)
        for name, array in point.arguments.items()
        if name not in names.values()
    }
    upstream = {
        f"d_{name}": point.upstream[f"d_{names[name]}"] + 1j * STEP * point.upstream[f"d_{name}"]
        for name in outputs
    }
    return Point(point.sizes, arguments, upstream, point.near_kinks)


def _named(programs: CellPrograms) -> dict[str, str]:
    """Names of gradients by the names of the declared values that they belong to."""
    declared: list[Value] = [v for v in programs.definition.declared if v in programs.adjoints]
    return {str(value.name): str(programs.adjoints[value].name) for value in declared}
