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
from cellgen.proof.check.errors import FLOAT64_BAR, error_of, raise_to
from cellgen.proof.check.gradients import CONDITION, run_all, tame_point
from cellgen.proof.check.points import Arguments, Array, Point, Subject
from cellgen.proof.check.report import Row, judged
from cellgen.proof.rounding import largest

UPSTREAM = ""
"""The direction of upstream gradients, which is no argument's."""


def prove_tangent(subject: Subject, rng: np.random.Generator) -> list[Row]:
    """Compare derivatives of outputs along a direction, and gradients of those."""
    with_tangents = tangent(subject.cell)
    names, programs = directions_of(with_tangents), programs_of(with_tangents)
    note = BuildError("the tangent's kernel is not needed here")
    both = Subject(with_tangents, programs, forward(with_tangents.definition), note)
    point, known, scales = tame_point(both, programs.functions, rng, 1.0)

    def error(actual: Array, stepped: Array, scale: float) -> float:
        truth = np.imag(stepped) / STEP
        return error_of(actual, truth, max(largest(truth), scale / CONDITION))

    outputs = [str(value.name) for value in subject.definition.outputs]
    own, others = _named(subject.programs), _named(programs)
    first, second = dict[str, float](), dict[str, float]()
    directions = [dot for name, dot in names.items() if dot in point.arguments]
    for alone in (None, *directions, UPSTREAM):
        along = _along(point, directions, outputs, alone)
        along_it = known if alone is None else run_all(programs, along)
        moved = _moved(along, names, outputs)
        for name, array in interpret(subject.plain, moved.arguments, point.sizes).items():
            dot = names[name]
            raise_to(first, dot, error(along_it[dot], array, scales[dot]))
        gradients = run_all(subject.programs, moved)
        for name in own:
            if own[name] in gradients and others.get(name) in along_it:
                dot_of = others[name]
                raise_to(
                    second, dot_of, error(along_it[dot_of], gradients[own[name]], scales[dot_of])
                )
    said = "along all directions, and along each alone"
    return [
        judged("tangent by complex step", first, FLOAT64_BAR, f"{', '.join(first)}; {said}"),
        judged(
            "second derivatives by complex step",
            second,
            FLOAT64_BAR,
            f"the tangent's backward: {', '.join(second)}; {said}",
        ),
    ]


def _along(
    point: Point, directions: Sequence[str], outputs: Sequence[str], alone: str | None
) -> Point:
    """The same point, its directions 0 but for one; None: as it is.

    Upstream gradients move along one direction more (``UPSTREAM``).
    """
    if alone is None:
        return point
    still = {dot for dot in directions if dot != alone}
    arguments = {n: 0 * a if n in still else a for n, a in point.arguments.items()}
    moves = {f"d_{name}" for name in outputs if alone != UPSTREAM}
    upstream = {n: 0 * a if n in moves else a for n, a in point.upstream.items()}
    return Point(point.sizes, arguments, upstream, point.near_kinks)


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
