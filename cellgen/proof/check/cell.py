"""Prove a cell: two accounts of the forward, exact gradients, C against the interpreter, goldens.

Input: a cell class. Output: a ``Report``, one row per claim with a figure, a bar and a verdict.
Errors are relative to the largest entry of an array; where that entry is itself what is left of
larger terms (one unit, one row), to what rounding can do to it: see ``_scales``.
Not supported: kernels that run on a device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from typing import Any, TypeAlias

import numpy as np
from sympy import Expr, Integer

from cellgen.api import compile as compile_cell
from cellgen.cells import SHIPPED
from cellgen.errors import ArgumentError, BuildError
from cellgen.language.cell import Cell, Definition, definition_of
from cellgen.language.names import Names
from cellgen.language.notation import text
from cellgen.language.ops import Pointwise, shape_of
from cellgen.language.value import Dim, Role, Value
from cellgen.pipeline import programs_of
from cellgen.program.derive import forward as forward_program
from cellgen.program.interpret import STEP, Sizes, interpret, shape_sizes
from cellgen.program.ssa import Program, Statement
from cellgen.program.step import CellPrograms
from cellgen.proof import goldens
from cellgen.proof.over_time import forward_errors, gradient_errors, run_steps
from cellgen.proof.rounding import Nudge, largest, scales_of
from cellgen.proof.truths import truth_of
from cellgen.runtime.call.arguments import tells
from cellgen.runtime.call.over_time import Options
from cellgen.runtime.kernel import Kernel

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Arguments: TypeAlias = dict[str, Array]
Progress: TypeAlias = Callable[[str], None]

FLOAT64_BAR = 1e-13
"""Two float64 evaluations of the same equations: 450 times the spacing of float64, room for sums of
some hundred terms in another order. An error in the mathematics is of order 1, not 1e-13."""

CONDITION = 32
"""How far one rounding may spread, in largest entries of a gradient, within the bar's own room.

With the points that are drawn (``DRAWS``) the cells that ship stay below it, but for the sLSTM with
heads, which divides by a sum whose terms cancel, and the liquid time-constant network, whose
sub-steps divide by small sums: up to 92 and 60 with eight seeds. A report says so where it is more.
"""

DRAWS = 8
"""Points, all beyond ``CONDITION``, of which the one counts where a rounding spreads least."""

C_BARS = {"float32": 2.0**-19, "float64": 2.0**-48}
"""C against the interpreter: 16 units in the last place of what rounding each value once can do
(``_scales``). A function may be off by 4 (decision 24), a chain of 34 products by sqrt(34) / 2; the
rest is for unlucky signs."""

SEQUENCE_BARS = {"float32": 2.0**-17, "float64": 2.0**-46, "gradient": 1e-12}
"""As ``C_BARS``, times four: a rounding difference is carried, and may grow, over eight steps."""

SEQUENCE_SHAPES = ((8, 3), (1, 5), (5, 1))
"""(T, B): threads share rows, a single step packs late, a single row is hoisted."""

KINK_MARGIN = 1e-3
"""Distance that drawn points keep from kinks: a thousand times float32's error there, so that C and
interpreter stand on the same side."""

TRIES = 40
"""Draws before a point near a kink is accepted; a 17-unit layer needs one or two."""

GRADIENT_SIZES = (3, 2, 4, 5, *(2, 3) * 16)
"""Lengths of B, I, H and further dimensions where each entry is stepped on its own."""

SCALAR_FACTORS = (1.0, 0.25, -1.0)
"""Run-time scalars are drawn as these multiples of their defaults: a smaller clip bites, a negative
one switches it off."""


# --- what comes out ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One claim: ``figure`` is the largest error found, ``bar`` what it may be.

    ``verdict`` is ``"ok"``, ``"failed"`` or ``"skipped"`` (then ``note`` says why).
    """

    name: str
    figure: float | None
    bar: float | None
    verdict: str
    note: str = ""

    @property
    def ok(self) -> bool:
        return self.verdict != "failed"

    def __str__(self) -> str:
        figures = "".join(f"{'-' if n is None else f'{n:.1e}':>9}" for n in (self.figure, self.bar))
        return f"{self.verdict:8}{self.name:44}{figures}  {self.note}".rstrip()


@dataclass(frozen=True)
class Report:
    """All rows of one cell; ``ok`` when none failed."""

    cell: str
    seed: int
    rows: tuple[Row, ...]

    @property
    def ok(self) -> bool:
        return all(row.ok for row in self.rows)

    @property
    def failures(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if not row.ok)

    def as_dict(self) -> dict[str, object]:
        """Return what ``json.dumps`` takes; a figure that is infinite or NaN becomes text."""
        rows = [asdict(row) for row in self.rows]
        for row in rows:
            if row["figure"] is not None and not math.isfinite(row["figure"]):
                row["figure"] = str(row["figure"])
        return {"cell": self.cell, "seed": self.seed, "ok": self.ok, "rows": rows}

    def __str__(self) -> str:
        head = f"{self.cell}: {'ok' if self.ok else 'FAILED'} (seed {self.seed})"
        return "\n".join([head, *(f"  {row}" for row in self.shown)])

    @property
    def shown(self) -> tuple[Row, ...]:
        """The rows as people read them: why a cell was not built stands with the first of those
        that needed it."""
        said: set[str] = set()
        rows = []
        for row in self.rows:
            again = not row.ok and row.figure is None and row.note in said
            said.add(row.note)
            rows.append(replace(row, note="as above") if again else row)
        return tuple(rows)


def judged(name: str, errors: Mapping[str, float], bar: float, note: str = "") -> Row:
    """Make the row of some errors; a failed one lists every array above the bar."""
    worst = max(errors.values(), default=0.0)
    bad = {key: error for key, error in errors.items() if not error <= bar}
    if bad:
        listed = ", ".join(f"{key} {error:.1e}" for key, error in bad.items())
        note = f"above the bar: {listed}" + (f"; {note}" if note else "")
        worst = max(bad.values(), key=lambda e: math.inf if math.isnan(e) else e)
    return Row(name, float(worst), bar, "failed" if bad else "ok", note)


# --- the whole -----------------------------------------------------------------------------------


def check(cell: type[Cell], *, seed: int = 0, progress: Progress | None = None) -> Report:
    """Prove one cell; ``progress`` is told the name of each part before it starts.

    Raises:
        DeclarationError: what is given is no complete cell.
    """
    say = progress or (lambda part: None)
    programs, plain = programs_of(cell), forward_program(definition_of(cell))
    name = programs.definition.name
    say(f"{name}: build")
    subject = _Subject(cell, programs, plain, _kernel(cell))
    rows: list[Row] = []
    for part, prove in _PARTS:
        say(f"{name}: {part}")
        rows += prove(subject, np.random.default_rng(seed))
    return Report(name, seed, tuple(rows))


@dataclass(frozen=True)
class _Subject:
    """A cell under proof: ``plain`` is its forward program before any rewrite.

    ``kernel`` is what kept it from being built where there is none.
    """

    cell: type[Cell]
    programs: CellPrograms
    plain: Program
    kernel: Kernel | BuildError

    @property
    def definition(self) -> Definition:
        return self.programs.definition


def _kernel(cell: type[Cell]) -> Kernel | BuildError:
    try:
        return compile_cell(cell)
    except BuildError as error:
        return error


# --- points to check at --------------------------------------------------------------------------


@dataclass(frozen=True)
class _Point:
    """Arguments and upstream gradients of a step, representable in float32."""

    sizes: Sizes
    arguments: Arguments
    upstream: Arguments
    near_kinks: int


def _point(
    subject: _Subject, lengths: Sequence[int], rng: np.random.Generator, factor: float = 1.0
) -> _Point:
    """Draw a point where every output is finite and no function is near a kink.

    What a branch does not take may be infinite or no number there.

    Where none is found, scalars go back to their defaults, then inputs become positive (for
    logarithms and roots); the last resort is the finite point with the fewest values near kinks.

    Raises:
        ArgumentError: no drawn point gives finite values.
    """
    sizes = {str(dim): n for dim, n in zip(subject.definition.dims, lengths, strict=False)}
    watched = _with_kinks(subject.plain)
    best: _Point | None = None
    for attempt in range(TRIES):
        scale = factor if best or attempt < TRIES // 4 else 1.0
        positive = best is None and attempt >= TRIES // 2
        arguments = _draw(subject.definition, sizes, rng, scale, positive)
        values = interpret(watched, arguments, sizes, keep=True)
        outputs = (values[str(result.name)] for result in subject.plain.results)
        if not all(np.isfinite(array).all() for array in outputs):
            continue
        kinks = [values[str(v.name)] for v in watched.results if v not in subject.plain.results]
        near = sum(int((np.abs(array) < KINK_MARGIN).sum()) for array in kinks)
        if best is None or near < best.near_kinks:
            upstream = {f"d_{v.name}": _normal(rng, v, sizes) for v in subject.definition.outputs}
            best = _Point(sizes, arguments, upstream, near)
        if near == 0:
            break
    if best is None:
        raise ArgumentError(
            f"{subject.definition.name}: none of {TRIES} drawn points gives finite values; "
            f"check the domain of its functions (log, sqrt, pow, division)"
        )
    return best


def _normal(rng: np.random.Generator, value: Value, sizes: Sizes, scale: float = 1.0) -> Array:
    drawn = scale * rng.standard_normal(shape_sizes(value, sizes))
    return np.asarray(drawn, np.float32).astype(np.float64)


def _draw(
    definition: Definition, sizes: Sizes, rng: np.random.Generator, factor: float, positive: bool
) -> Arguments:
    """Draw arguments of ordinary size: weights scaled by their fan-in, biases small."""
    arguments: Arguments = {}
    for value in definition.declared:
        name = str(value.name)
        if value.role is Role.SCALAR:
            number = np.float32(factor * definition.defaults[name])
            arguments[name] = np.asarray(float(number))
            continue
        scale = 1.0
        if value.role.is_parameter:
            shape = shape_sizes(value, sizes)
            scale = 1 / math.sqrt(shape[0]) if len(shape) > 1 else 0.5
        array = _normal(rng, value, sizes, scale)
        arguments[name] = np.abs(array) if positive else array
    return arguments


@lru_cache(maxsize=64)
def _with_kinks(program: Program) -> Program:
    """Add, as results, the distances of the program's kinked functions from their kinks.

    They are read off the derivatives: where a derivative compares ``a`` with ``b``, there is a kink
    at ``a - b = 0``; where it takes a sign of ``a``, at ``a = 0``. Comparisons of a function's own
    result say nothing: relu's is exactly 0 far from its kink.
    """
    distances = _kinks(program)
    names = Names(str(value.name) for value in program.values)
    statements = [
        Statement(Value(names.fresh("kink"), shape_of(d), Role.TEMPORARY, "", 0), d)
        for d in distances
    ]
    watched = replace(
        program,
        statements=(*program.statements, *statements),
        results=(*program.results, *(statement.target for statement in statements)),
    )
    watched.verify()
    return watched


def _kinks(program: Program) -> dict[Expr, str]:
    """Distances from the kinks of a program's functions, and where each is: ``x = 0``."""
    found: dict[Expr, str] = {}
    unnamed = {
        s.target: s.expression
        for s in program.statements
        if s.is_pointwise and s.target.role is Role.TEMPORARY
    }
    for statement in program.statements:
        nodes = statement.expression.atoms(Pointwise)
        for node in sorted((n for n in nodes if n.row.kinks), key=str):
            for distance, sides in _distances(node).items():
                left, right = (text(_written_out(side, unnamed)) for side in sides)
                found.setdefault(distance, f"{left} = {right}")
    return found


def _written_out(expression: Expr, unnamed: Mapping[Value, Expr]) -> Expr:
    """Write what has no name of the author's through values that have one."""
    while inner := expression.atoms(Value) & unnamed.keys():
        expression = expression.xreplace({value: unnamed[value] for value in inner})
    return expression


def _distances(node: Pointwise) -> dict[Expr, tuple[Expr, Expr]]:
    """What is 0 at a kink of a function, and the two sides that are equal there."""
    found: dict[Expr, tuple[Expr, Expr]] = {}
    slopes = [node.fdiff(index + 1) for index in range(len(node.args))]
    for expression in (node, *slopes):
        for inner in sorted(expression.atoms(Pointwise), key=str):
            if inner.row.comparison:
                found.setdefault(inner.args[0] - inner.args[1], inner.args)
            elif inner.row.turns_at_zero:
                found.setdefault(inner.args[0], (inner.args[0], Integer(0)))
    return {d: sides for d, sides in found.items() if d.atoms(Value) and not d.has(node)}


# --- programs with bumps -------------------------------------------------------------------------


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
    made = replace(
        program,
        arguments=(*program.arguments, *bumps.values()),
        optional=(*program.optional, *bumps.values()),
        statements=tuple(statements),
    )
    made.verify()
    return made, bumps


# --- hand-written forward ------------------------------------------------------------------------


def _lengths_by_shape(definition: Definition, rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Lengths of all dimensions, B first: ones, seventeens, odd mixtures, none, and random ones."""
    count = len(definition.dims)
    mixed = [tuple(1 if i == axis else 17 for i in range(count)) for axis in range(count)]
    drawn = [tuple(int(n) for n in rng.integers(2, 14, count)) for _ in range(3)]
    return [(1,) * count, (17,) * count, *mixed, *drawn, (0, *drawn[0][1:])]


def _prove_forward(subject: _Subject, rng: np.random.Generator) -> list[Row]:
    name = "hand-written forward, float64"
    truth = truth_of(subject.cell)
    if truth is None:
        hint = "no hand-written forward; define reference(...) in the class body"
        return [Row(name, None, FLOAT64_BAR, "skipped", hint)]
    program, errors = subject.programs["forward"], dict[str, float]()
    for index, lengths in enumerate(_lengths_by_shape(subject.definition, rng)):
        point = _point(subject, lengths, rng, SCALAR_FACTORS[index % len(SCALAR_FACTORS)])
        found = interpret(program, point.arguments, point.sizes)
        expected = truth(point.arguments)
        scales = _scales(program, point.arguments, point.sizes, found, rng)
        for output, array in found.items():
            _raise_to(errors, output, _error(array, expected[output], scales[output]))
    return [judged(name, errors, FLOAT64_BAR, f"{', '.join(errors)}")]


def _raise_to(errors: dict[str, float], name: str, error: float) -> None:
    """Keep the larger error, NaN being the largest."""
    known = errors.get(name, 0.0)
    errors[name] = known if math.isnan(known) or error <= known else error


def _error(found: Array, expected: Array, scale: float) -> float:
    """The largest difference in units of ``scale``; infinite where shapes or NaN disagree."""
    if found.shape != expected.shape:
        return math.inf
    unequal = ~((found == expected) | (np.isnan(found) & np.isnan(expected)))
    if not unequal.any():
        return 0.0
    difference = float(np.abs(found[unequal] - expected[unequal]).max())
    if not math.isfinite(difference) or scale == 0:
        return math.inf
    return difference / scale


def _scales(
    program: Program,
    arguments: Mapping[str, Array],
    sizes: Sizes,
    exact: Mapping[str, Array],
    rng: np.random.Generator,
) -> dict[str, float]:
    """What the error of each result of a program is measured against (``rounding``)."""
    plain = {name: np.asarray(array) for name, array in arguments.items()}
    return scales_of(
        exact,
        lambda nudge, inner: interpret(
            program, {name: nudge(array) for name, array in plain.items()}, sizes, nudge=inner
        ),
        rng,
    )


# --- gradients -----------------------------------------------------------------------------------


def _prove_gradients(subject: _Subject, rng: np.random.Generator) -> list[Row]:
    functions = [p for p in subject.programs.functions if p.function != "forward"]
    errors: dict[str, dict[str, float]] = {p.function: {} for p in functions}
    skipped: dict[str, dict[str, str]] = {p.function: {} for p in functions}
    near, spread = 0, 0.0
    for factor in SCALAR_FACTORS if subject.definition.defaults else (1.0,):
        point, known, scales = _tame_point(subject, functions, rng, factor)
        near += point.near_kinks
        spread = max(spread, _spread(known, scales))
        for program in functions:
            for result in program.results:
                value = _source_of(subject.programs, result)
                name = str(result.name)
                if value is None or (stepped := _stepped(subject, value, point)) is None:
                    skipped[program.function][name] = "no value of the forward program to step"
                    continue
                error = _error(
                    known[name], stepped, max(largest(stepped), scales[name] / CONDITION)
                )
                _raise_to(errors[program.function], name, error)
    kinks = dict.fromkeys(_kinks(subject.plain).values())
    remark = f"{near} values near kinks could not be avoided" if near else "away from kinks"
    notes = [f"{remark}: {', '.join(kinks)}"] if kinks else []
    if spread > CONDITION:
        notes.append(f"terms cancel: a rounding spreads {spread:.0f}-fold")
    return [
        row
        for p in functions
        for row in _gradient_rows(p.function, errors[p.function], skipped[p.function], notes)
    ]


def _tame_point(
    subject: _Subject, functions: Sequence[Program], rng: np.random.Generator, factor: float
) -> tuple[_Point, Arguments, dict[str, float]]:
    """Draw a point, all results there and the scales of their errors, gradients moving little.

    Every rounding from the forward pass on counts: what is left where terms cancel there is an
    argument of the backward pass, wrong by a rounding of those terms, not by one of its own.
    """
    best: tuple[_Point, Arguments, dict[str, float]] | None = None
    least = (math.inf, math.inf)
    names = [str(result.name) for program in functions for result in program.results]
    for _ in range(DRAWS):
        point = _point(subject, GRADIENT_SIZES, rng, factor)
        known = _run_all(subject.programs, point)
        run = partial(_run_all, subject.programs, point)
        found = scales_of(known, run, rng)
        scales = {name: found[name] for name in names}
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


def _run_all(
    programs: CellPrograms,
    point: _Point,
    nudge: Nudge | None = None,
    inner: Nudge | None = None,
) -> Arguments:
    """Interpret every function as a caller would: forward, then backward, then the rest. ``nudge``
    moves what is given, ``inner`` each value on the way."""
    known = {**point.arguments, **point.upstream}
    if nudge:
        known = {name: nudge(np.asarray(array)) for name, array in known.items()}
    for program in programs.functions:
        known |= interpret(program, known, point.sizes, nudge=inner)
    return known


def _source_of(programs: CellPrograms, gradient: Value) -> Value | None:
    return next((v for v, adjoint in programs.adjoints.items() if adjoint == gradient), None)


def _stepped(subject: _Subject, value: Value, point: _Point) -> Array | None:
    """Form dL/d(value) entry by entry, L = sum of upstream gradients times outputs.

    An argument is stepped itself, a computed value through a bump, in the program before any
    rewrite where it has the value; None where no program has it.
    """
    plain, rewritten = subject.plain, subject.programs.mathematics[0]
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


# --- compiled kernels ----------------------------------------------------------------------------


def _prove_kernels(subject: _Subject, rng: np.random.Generator) -> list[Row]:
    names = [
        (f"C {dtype} {p.function}", dtype, p)
        for dtype in C_BARS
        for p in subject.programs.functions
    ]
    kernel = subject.kernel
    if isinstance(kernel, BuildError):
        return [Row(name, None, C_BARS[dtype], "failed", str(kernel)) for name, dtype, _ in names]
    shapes = _lengths_by_shape(subject.definition, rng)
    errors: dict[str, dict[str, float]] = {name: {} for name, _, _ in names}
    for index, lengths in enumerate(shapes):
        point = _point(subject, lengths, rng, SCALAR_FACTORS[index % len(SCALAR_FACTORS)])
        known = _run_all(subject.programs, point)
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
    scales = _scales(program, wide, sizes, exact, rng)
    least = float(np.finfo(dtype).tiny)  # below it numbers lie evenly: a rounding is no smaller
    for name, array in zip(results._fields, results, strict=True):
        error = _error(array.astype(np.float64), exact[name], max(scales[name], least))
        _raise_to(errors, name, error)


# --- functions over time -------------------------------------------------------------------------


def _prove_sequences(subject: _Subject, rng: np.random.Generator) -> list[Row]:
    """Compare the functions over time with the equations step by step and with complex steps."""
    names = ("C float32 sequence_forward", "C float64 sequence_forward", "C sequence_backward")
    bars = (SEQUENCE_BARS["float32"], SEQUENCE_BARS["float64"], SEQUENCE_BARS["gradient"])
    kernel, definition = subject.kernel, subject.definition
    if isinstance(kernel, BuildError):
        return [Row(n, None, b, "failed", str(kernel)) for n, b in zip(names, bars, strict=True)]
    if "sequence_forward" not in kernel.functions:
        note = "this cell has the functions of a step only; `cellgen explain` says why"
        return [Row(n, None, b, "skipped", note) for n, b in zip(names, bars, strict=True)]
    errors: tuple[dict[str, float], ...] = ({}, {}, {})
    lengths = GRADIENT_SIZES[: len(definition.dims)]
    for steps, batch in SEQUENCE_SHAPES:
        point = _point(subject, (batch, *lengths[1:]), rng)
        sizes = {**point.sizes, "T": steps}
        arguments = dict(point.arguments)
        for value in definition.with_role(Role.INPUT):
            stacked = [_normal(rng, value, sizes) for _ in range(steps)]
            arguments[str(value.name)] = np.array(stacked)
        scalars = {str(v.name) for v in definition.with_role(Role.SCALAR)}
        arrays = {n: a for n, a in arguments.items() if n not in scalars}
        for index, dtype in enumerate(("float32", "float64")):
            for name, error in forward_errors(kernel, definition, arrays, sizes, dtype).items():
                _raise_to(errors[index], name, error)
        shapes = run_steps(definition, arrays, sizes).results
        upstream: Arguments = {
            f"d_{n}": np.asarray(rng.standard_normal(a.shape)) for n, a in shapes.items()
        }
        gradients = gradient_errors(kernel, definition, arrays, upstream, sizes, rng)
        for name, error in gradients.items():
            _raise_to(errors[2], name, error)
    note = "T, B = " + "; ".join(f"{t}, {b}" for t, b in SEQUENCE_SHAPES)
    rows = [judged(n, e, b, note) for n, e, b in zip(names, errors, bars, strict=True)]
    return rows + _prove_options(subject, kernel, rng)


def _prove_options(subject: _Subject, kernel: Kernel, rng: np.random.Generator) -> list[Row]:
    """Compare with the equations where many options are given at once.

    Inputs of the steps that do not count are NaN, and upstream gradients of outputs that show
    nothing: a result that depends on one shows it.
    """
    definition = subject.definition
    point = _point(subject, (4, *GRADIENT_SIZES[1 : len(definition.dims)]), rng)
    sizes = {**point.sizes, "T": 8}
    mask, reset = rng.random((8, 4)) < 0.7, rng.random((8, 4)) < 0.3
    rows = Options(np.array([8, 5, 0, 3]), mask, reset, reverse=True)
    cases = (
        (replace(rows, last_only=True), 8),
        (replace(rows, batch_first=True, window=3), 8),
        (replace(rows, zero_output_for_mask=True, window=5), None),
    )
    counts = mask & (np.arange(8)[:, None] < np.asarray(rows.lengths))
    scalars = {str(v.name) for v in definition.with_role(Role.SCALAR)}
    arrays = {n: a for n, a in point.arguments.items() if n not in scalars}
    for value in definition.with_role(Role.INPUT):
        stacked = np.array([_normal(rng, value, sizes) for _ in range(8)])
        where = counts.reshape(8, 4, *(1,) * (stacked.ndim - 2))
        arrays[str(value.name)] = np.where(where, stacked, np.nan)
    shapes = run_steps(definition, arrays, sizes, rows).results
    upstream: Arguments = {
        f"d_{n}": np.asarray(rng.standard_normal(a.shape)) for n, a in shapes.items()
    }
    found, gradients = dict[str, float](), dict[str, float]()
    for options, limit in cases:
        one = forward_errors(kernel, definition, arrays, sizes, "float64", options)
        two = gradient_errors(kernel, definition, arrays, upstream, sizes, rng, options, limit)
        for errors, new in ((found, one), (gradients, two)):
            for name, error in new.items():
                _raise_to(errors, name, error)
    note = "lengths, mask, reset, reverse; also batch_first, zero_output_for_mask"
    nans = "NaN where nothing counts"
    return [
        judged(f"C {way} with options", errors, SEQUENCE_BARS[bar], f"{note}, {more}; {nans}")
        for way, errors, bar, more in (
            ("sequence_forward", found, "float64", "last_only"),
            ("sequence_backward", gradients, "gradient", "window, bp_lim"),
        )
    ]


# --- goldens -------------------------------------------------------------------------------------


def _prove_goldens(subject: _Subject, rng: np.random.Generator) -> list[Row]:
    """Compare with the peers' numbers, by the measure of this report, the largest entry.

    Decision 23's other figures, entry by entry and medians, are judged in tests/test_goldens.py.
    """
    name, kernel = subject.definition.name, subject.kernel
    row = Row("goldens of the real peers", None, None, "skipped")
    if subject.cell not in SHIPPED or name not in goldens.PEERS:
        return [replace(row, note="no peer's numbers for this cell")]
    if goldens.folder() is None:
        return [replace(row, note="not available here: tests/golden comes with a checkout")]
    if isinstance(kernel, BuildError):
        return [replace(row, verdict="failed", note=str(kernel))]
    return [*_golden_rows(kernel, name, ""), *_golden_rows(kernel, name, " over time")]


def _golden_rows(kernel: Kernel, name: str, how: str) -> list[Row]:
    """Judge one way to run the peers' cases: as steps, or over time those that are sequences."""
    measure = partial(goldens.measure, kernel, name, over_time=bool(how))
    exact: dict[str, dict[str, float]] = {}
    for item in measure("float64"):
        _raise_to(exact.setdefault(item.group, {}), item.array, item.nrm)
    rows = [judged(f"float64 {g}{how}", e, goldens.FLOAT64_BAR) for g, e in exact.items()]
    for standing in goldens.standings(measure("float32")):
        figure, bar = standing.worst_nrm
        median, elt = standing.median_nrm[0], standing.worst_elt[0]
        note = f"{standing.arrays} arrays, median {median:.1e}; entry by entry {elt:.1e}"
        rows.append(judged(f"float32 {standing.group}{how}", {"worst": figure}, bar, note))
    return rows


_PARTS: tuple[tuple[str, Callable[[_Subject, np.random.Generator], list[Row]]], ...] = (
    ("hand-written forward", _prove_forward),
    ("complex-step gradients", _prove_gradients),
    ("compiled kernels", _prove_kernels),
    ("functions over time", _prove_sequences),
    ("goldens", _prove_goldens),
)
