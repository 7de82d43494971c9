"""Compare the compiled functions of a step with the interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cellgen.errors import BuildError
from cellgen.language.value import Dim, Role
from cellgen.program.interpret import Sizes, interpret
from cellgen.program.ssa import Program
from cellgen.proof.check.errors import error_of, raise_to, result_scales
from cellgen.proof.check.gradients import run_all
from cellgen.proof.check.points import SCALAR_FACTORS, Array, Subject, draw_point, lengths_by_shape
from cellgen.proof.check.report import Row, judged
from cellgen.runtime.call.arguments import tells
from cellgen.runtime.kernel import Kernel

C_BARS = {"float32": 2.0**-19, "float64": 2.0**-48}
"""C against the interpreter: 16 units in the last place of what rounding each value once can do
(``result_scales``). A function may be off by 4 (decision "Functions"), a chain of 34 products by
sqrt(34) / 2; the rest is for unlucky signs."""


def prove_kernels(subject: Subject, rng: np.random.Generator) -> list[Row]:
    """Compare every compiled function of a step with the interpreter, over shapes."""
    names = [
        (f"C {dtype} {p.function}", dtype, p)
        for dtype in C_BARS
        for p in subject.programs.functions
    ]
    kernel = subject.kernel
    if isinstance(kernel, BuildError):
        return [Row(name, None, C_BARS[dtype], "failed", str(kernel)) for name, dtype, _ in names]
    shapes = lengths_by_shape(subject.definition, rng)
    errors: dict[str, dict[str, float]] = {name: {} for name, _, _ in names}
    for index, lengths in enumerate(shapes):
        point = draw_point(subject, lengths, rng, SCALAR_FACTORS[index % len(SCALAR_FACTORS)])
        known = run_all(subject.programs, point)
        for name, dtype, program in names:
            for given in _choices(program, index, rng):
                _compare(kernel, program, dtype, known, given, point.sizes, rng, errors[name])
    note = f"{len(shapes)} shapes: {_listed(subject.definition.dims, shapes)}"
    return [
        judged(name, errors[name], C_BARS[dtype], note + _optional_note(program))
        for name, dtype, program in names
    ]


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


def _compare(
    kernel: Kernel,
    program: Program,
    dtype: str,
    known: Mapping[str, Array],
    given: Sequence[str],
    sizes: Sizes,
    rng: np.random.Generator,
    errors: dict[str, float],
) -> None:
    """Call one function in C and interpreted, on the same numbers, and note the errors."""
    left_out = {str(value.name) for value in program.optional} - set(given)
    names = [str(v.name) for v in program.arguments if str(v.name) not in left_out]
    arrays = {name: np.asarray(known[name], dtype, order="C") for name in names}
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
    exact = interpret(program, arrays, sizes)
    untold = [d for d in called.function.dims if not any(tells(a, d) for a in accepted)]
    out = {  # where sums alone have a dimension among the arguments, results tell it
        a.name: np.empty(exact[a.name].shape, dtype)
        for a in called.function.results
        if any(tells(a, dim) for dim in untold)
    }
    results = called(out=out or None, **call)
    wide = {name: array.astype(np.float64) for name, array in arrays.items()}
    scales = result_scales(program, wide, sizes, exact, rng)
    least = float(np.finfo(dtype).tiny)  # below it numbers lie evenly: a rounding is no smaller
    for name, array in zip(results._fields, results, strict=True):
        error = error_of(array.astype(np.float64), exact[name], max(scales[name], least))
        raise_to(errors, name, error)
