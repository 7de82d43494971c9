"""Compare the compiled functions of a step with the interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cellgen.errors import BuildError
from cellgen.language.value import Dim, Role
from cellgen.program.interpret import interpret
from cellgen.program.ssa import Program
from cellgen.proof.check.errors import error_within, raise_to, result_scales
from cellgen.proof.check.gradients import run_all
from cellgen.proof.check.points import SCALAR_FACTORS, Array, Subject, draw_point, lengths_by_shape
from cellgen.proof.check.report import Row, judged
from cellgen.proof.rounding import Scales
from cellgen.runtime.call.arguments import tells
from cellgen.runtime.kernel import Kernel

C_BARS = {"float32": 2.0**-19, "float64": 2.0**-48}
"""C against the interpreter: 16 units in the last place of what rounding each value once can do
(``result_scales``). A function may be off by 4 (decision "Functions"), a chain of 34 products by
sqrt(34) / 2; the rest is for unlucky signs."""

PROBES = 4
"""Nudges by which rounding is measured, for both precisions: where one entry is what is left of two
large terms, half of the nudges leave nothing."""


def prove_kernels(subject: Subject, rng: np.random.Generator) -> list[Row]:
    """Compare every compiled function of a step with the interpreter, over shapes."""
    functions = [(d, p) for d in C_BARS for p in subject.programs.functions]
    kernel = subject.kernel
    if isinstance(kernel, BuildError):
        why = str(kernel)
        return [Row(_name(d, p), None, C_BARS[d], "failed", why) for d, p in functions]
    shapes = lengths_by_shape(subject.definition, rng)
    errors: dict[str, dict[str, float]] = {_name(d, p): {} for d, p in functions}
    for index, lengths in enumerate(shapes):
        point = draw_point(subject, lengths, rng, SCALAR_FACTORS[index % len(SCALAR_FACTORS)])
        known = run_all(subject.programs, point)
        for program in subject.programs.functions:
            for upstream in _choices(program, index, rng):
                arrays = _given(program, known, upstream)
                exact = interpret(program, arrays, point.sizes)
                scales = result_scales(program, arrays, point.sizes, exact, rng, PROBES)
                for dtype in C_BARS:
                    narrow = {n: np.asarray(a, dtype, order="C") for n, a in arrays.items()}
                    is_held = all(map(np.array_equal, narrow.values(), arrays.values()))
                    truth = exact if is_held else interpret(program, narrow, point.sizes)
                    own = {n: a.copy() for n, a in narrow.items()}  # which a kernel may spoil
                    by_result = _compare(kernel, program, dtype, known, own, truth, scales)
                    for name, error in by_result.items():
                        raise_to(errors[_name(dtype, program)], name, error)
    note = f"{len(shapes)} shapes: {_listed(subject.definition.dims, shapes)}"
    return [
        judged(_name(d, p), errors[_name(d, p)], C_BARS[d], note + _optional_note(p))
        if p.results
        else Row(_name(d, p), None, C_BARS[d], "skipped", "it runs, and has no results to compare")
        for d, p in functions
    ]


def _name(dtype: str, program: Program) -> str:
    return f"C {dtype} {program.function}"


def _listed(dims: Sequence[Dim], shapes: Sequence[tuple[int, ...]]) -> str:
    ranges = [sorted({shape[axis] for shape in shapes}) for axis in range(len(dims))]
    return "; ".join(f"{d} {','.join(map(str, r))}" for d, r in zip(dims, ranges, strict=True))


def _optional_note(program: Program) -> str:
    return "; with and without upstream gradients" if program.optional else ""


def _choices(program: Program, index: int, rng: np.random.Generator) -> list[tuple[str, ...]]:
    """Upstream gradients to give: all of them, and in turn none, one, or some."""
    optional = tuple(str(value.name) for value in program.optional)
    if not optional:
        return [()]
    one = optional[index % len(optional)]
    some = tuple(name for name in optional if rng.random() < 0.5)
    return list(dict.fromkeys([optional, ((), (one,), some)[index % 3]]))


def _given(
    program: Program, known: Mapping[str, Array], upstream: Sequence[str]
) -> dict[str, Array]:
    """Arguments of a call with some of the upstream gradients."""
    left_out = {str(value.name) for value in program.optional} - set(upstream)
    names = [str(v.name) for v in program.arguments if str(v.name) not in left_out]
    return {name: np.asarray(known[name], np.float64) for name in names}


def _compare(
    kernel: Kernel,
    program: Program,
    dtype: str,
    known: Mapping[str, Array],
    arrays: Mapping[str, Array],
    exact: Mapping[str, Array],
    scales: Scales,
) -> dict[str, float]:
    """Call one function in C on the numbers of which ``exact`` are the results; its errors.

    How far rounding spreads is the same in both precisions: ``scales`` are those of float64.
    """
    left_out = {str(value.name) for value in program.optional} - set(arrays)
    scalars = {str(v.name) for v in program.arguments if v.role is Role.SCALAR}
    call: dict[str, object] = {k: float(a) if k in scalars else a for k, a in arrays.items()}
    called = kernel.functions[program.function]
    accepted = called.function.arguments
    for dim in called.function.dims:  # a gradient that is 0 may read nothing that tells its lengths
        telling = [a.name for a in accepted if tells(a, dim)]
        telling = telling or [a.name for a in accepted if tells(a, dim, in_sums=True)]
        able = [name for name in telling if name in known and name not in left_out]
        if able and not any(name in call for name in telling):
            call[able[0]] = np.asarray(known[able[0]], dtype, order="C")
    untold = [d for d in called.function.dims if not any(tells(a, d) for a in accepted)]
    out = {  # where sums alone have a dimension among the arguments, results tell it
        a.name: np.empty(exact[a.name].shape, dtype)
        for a in called.function.results
        if any(tells(a, dim) for dim in untold)
    }
    results = called(out=out or None, **call)
    least = float(np.finfo(dtype).tiny)  # below it numbers lie evenly: a rounding is no smaller
    return {
        name: error_within(
            array.astype(np.float64), exact[name], scales, name, C_BARS[dtype], least
        )
        for name, array in zip(results._fields, results, strict=True)
    }
