"""Compare interpreted gradients with complex steps through the forward program."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np

from cellgen.language.names import Names
from cellgen.language.value import Role, Value
from cellgen.program.identity import once_for_each
from cellgen.program.interpret import STEP, interpret, shape_sizes
from cellgen.program.rewrites.unused import merge_equal
from cellgen.program.ssa import Program, Statement
from cellgen.program.step import CellPrograms
from cellgen.proof.check.errors import FLOAT64_BAR, error_of, raise_to
from cellgen.proof.check.kinks import kinks_of
from cellgen.proof.check.points import (
    GRADIENT_SIZES,
    SCALAR_FACTORS,
    Arguments,
    Array,
    Point,
    Subject,
    draw_point,
)
from cellgen.proof.check.report import Row, judged
from cellgen.proof.rounding import Nudge, largest, scales_of

CONDITION = 32
"""How far one rounding may spread, in largest entries of a gradient, within the bar's own room.

With the points that are drawn (``DRAWS``) the cells that ship stay below it, but for the sLSTM with
heads, which divides by a sum whose terms cancel, and the liquid time-constant network, whose
sub-steps divide by small sums: up to 92 and 60 with eight seeds. A report says so where it is more.
"""

DRAWS = 8
"""Points, all beyond ``CONDITION``, of which the one counts where a rounding spreads least."""


_of_one_each = once_for_each(merge_equal)


@lru_cache(maxsize=256)
def _bumped(program: Program, values: tuple[Value, ...]) -> tuple[Program, Mapping[Value, Value]]:
    """Add a bump to computed values: ``v = v_plain + v_bump``, with ``v_bump`` an argument."""
    names = Names(str(value.name) for value in program.values)
    bumps: dict[Value, Value] = {}
    statements: list[Statement] = []
    for statement in program.statements:
        target = statement.target
        if target not in values:
            statements.append(statement)
            continue
        plain = Value(names.fresh(f"{target.name}_plain"), target.shape, Role.TEMPORARY, "", 0)
        bumps[target] = Value(names.fresh(f"{target.name}_bump"), target.shape, Role.ADJOINT, "", 0)
        statements += [
            Statement(plain, statement.expression),
            Statement(target, plain + bumps[target]),
        ]
    bumped = replace(
        program,
        arguments=(*program.arguments, *bumps.values()),
        optional=(*program.optional, *bumps.values()),
        statements=tuple(statements),
    )
    bumped.verify()
    return bumped, bumps


def prove_gradients(subject: Subject, rng: np.random.Generator) -> list[Row]:
    """Compare every gradient with complex steps, at tame points."""
    functions = [p for p in subject.programs.functions if p.function != "forward"]
    errors: dict[str, dict[str, float]] = {p.function: {} for p in functions}
    skipped: dict[str, dict[str, str]] = {p.function: {} for p in functions}
    near, spread = 0, 0.0
    for factor in SCALAR_FACTORS if subject.definition.defaults else (1.0,):
        point, known, scales = tame_point(subject, functions, rng, factor)
        near += point.near_kinks
        spread = max(spread, _spread(known, scales))
        for program in functions:
            for result in program.results:
                value = _source_of(subject.programs, result)
                name = str(result.name)
                if value is None or (stepped := _stepped(subject, value, point)) is None:
                    skipped[program.function][name] = "no value of the forward program to step"
                    continue
                error = error_of(
                    known[name], stepped, max(largest(stepped), scales[name] / CONDITION)
                )
                raise_to(errors[program.function], name, error)
    kinks = dict.fromkeys(kinks_of(subject.plain).values())
    remark = f"{near} values near kinks could not be avoided" if near else "away from kinks"
    notes = [f"{remark}: {', '.join(kinks)}"] if kinks else []
    if spread > CONDITION:
        notes.append(f"terms cancel: a rounding spreads {spread:.0f}-fold")
    return [
        row
        for p in functions
        for row in _gradient_rows(p.function, errors[p.function], skipped[p.function], notes)
    ]


def tame_point(
    subject: Subject, functions: Sequence[Program], rng: np.random.Generator, factor: float
) -> tuple[Point, Arguments, dict[str, float]]:
    """Draw a point, all results there and the scales of their errors, gradients moving little.

    Every rounding from the forward pass on counts: what is left where terms cancel there is an
    argument of the backward pass, wrong by a rounding of those terms, not by one of its own.
    """
    best: tuple[Point, Arguments, dict[str, float]] | None = None
    least = (math.inf, math.inf)
    names = [str(result.name) for program in functions for result in program.results]
    for _ in range(DRAWS):
        point = draw_point(subject, GRADIENT_SIZES, rng, factor)
        known = run_all(subject.programs, point)
        run = partial(run_all, subject.programs, point)
        of_all = scales_of(known, run, rng)
        scales = {name: of_all[name] for name in names}
        spread = _spread(known, scales)
        if best is None or (point.near_kinks, spread) < least:
            best, least = (point, known, scales), (point.near_kinks, spread)
        if least[1] <= CONDITION:
            break
    assert best is not None
    return best


def _spread(known: Arguments, scales: Mapping[str, float]) -> float:
    """How far one rounding spreads, in largest entries of a result."""
    return max((scale / (largest(known[n]) or math.inf) for n, scale in scales.items()), default=0)


def _gradient_rows(
    function: str, errors: Mapping[str, float], skipped: Mapping[str, str], notes: Sequence[str]
) -> list[Row]:
    name = f"{function} by complex step"
    rows = [Row(f"{name}: {k}", None, FLOAT64_BAR, "skipped", why) for k, why in skipped.items()]
    if errors:
        rows.insert(0, judged(name, errors, FLOAT64_BAR, "; ".join([", ".join(errors), *notes])))
    return rows


def run_all(
    programs: CellPrograms,
    point: Point,
    nudge: Nudge | None = None,
    inner: Nudge | None = None,
) -> Arguments:
    """Interpret every function as a caller would: forward, then backward, then the rest.

    ``nudge`` moves what is given, ``inner`` each value on the way.
    """
    known = {**point.arguments, **point.upstream}
    if nudge:
        known = {name: nudge(np.asarray(array)) for name, array in known.items()}
    for program in programs.functions:
        known |= interpret(program, known, point.sizes, nudge=inner)
    return known


def _source_of(programs: CellPrograms, gradient: Value) -> Value | None:
    return next((v for v, adjoint in programs.adjoints.items() if adjoint == gradient), None)


def _stepped(subject: Subject, value: Value, point: Point) -> Array | None:
    """Form dL/d(value) entry by entry, L = sum of upstream gradients times outputs.

    An argument is stepped itself, a computed value through a bump, in the program before any
    rewrite where it has the value (but that equal values are one, of which the gradient is); None
    where no program has it.
    """
    plain, rewritten = _of_one_each(subject.plain), subject.programs.mathematics[0]
    program = plain if value in plain.values else rewritten
    if value not in program.values:
        return None
    name, start = str(value.name), point.arguments.get(str(value.name))
    if value not in program.arguments:
        program, bumps = _bumped(program, (value,))
        name, start = str(bumps[value].name), np.zeros(shape_sizes(value, point.sizes))
    assert start is not None
    gradient = np.empty(start.shape)
    for index in np.ndindex(start.shape):
        stepped = start.astype(np.complex128)
        stepped[index] += 1j * STEP
        outputs = interpret(program, {**point.arguments, name: stepped}, point.sizes)
        moved = [(point.upstream[f"d_{k}"] * np.imag(a)).sum() for k, a in outputs.items()]
        gradient[index] = math.fsum(moved) / STEP
    return gradient
