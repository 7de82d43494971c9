"""What templates of kernels over rows and units are given: names of arrays, lines, places of units.

Input: values and programs. Output: text, and the arrays that a kernel takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from sympy import Expr, Mul

from cellgen.errors import DerivationError
from cellgen.language.notation import text
from cellgen.language.value import Dim, Value, axis_factors, format_axis, is_factor
from cellgen.program.ssa import Program, Statement
from cellgen.targets.head import in_ascii, safe
from cellgen.targets.templates import fill
from cellgen.targets.triton.expressions import triton_expression
from cellgen.targets.triton.names import dimension, triton_name
from cellgen.targets.triton.plan import STEP_BEFORE
from cellgen.targets.triton.rows import NOT_SPELLED, Axes, is_by_row, unit_axes

FIXED = ("AHEAD", "UNITS", "DOUBLE", "GAPS")
"""Constants of every kernel: steps that are loaded ahead, units of a program, whether it
is of float64, whether steps are left out or begin anew."""


@dataclass(frozen=True)
class RowAccess:
    """Numbers that a kernel reads or writes: where they lie, how wide a row is, which are a unit's.

    ``shifted``: of the step before; ``saved``: written for the backward pass alone.
    """

    name: str
    pointer: str
    width: str
    unit: str
    axes: Axes
    shifted: bool = False
    saved: bool = False
    text: str = ""


@dataclass(frozen=True)
class StateNames:
    """What a kernel calls a state, and what belongs to it."""

    name: str
    following: str
    first: str
    last: str
    width: str
    unit: str = "unit"
    carry: str = ""
    gradient: str = ""
    result: str = ""
    first_gradient: str = ""
    above: str = ""
    is_read: bool = False
    initial: str = "0.0"


@dataclass(frozen=True)
class Ends:
    """How a segment starts: what those before it do as a whole, one after the other."""

    entries: list[str]
    targets: str
    combined: str
    size: int
    factors: list[str] = field(default_factory=list)
    terms: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class EndAccess:
    """A number of what a segment does: where it lies among the ``many`` of one array."""

    name: str
    pointer: str
    place: int
    many: int


@dataclass(frozen=True)
class Once:
    """How a program that reads its segment once gets at what its states begin with.

    ``first`` forms what the segment does as a whole, ``loaded`` are numbers of it that a pass
    before has stored, ``named`` lines name the others, ``stored`` are told. ``begun`` are states
    and the pointers to what the first segment begins with. ``reads`` are all numbers of a segment
    before, ``then`` the states behind it, ``behind`` those behind the program's own.
    """

    first: RowKernelText
    loaded: list[EndAccess]
    named: list[str]
    stored: list[EndAccess]
    begun: list[tuple[str, str]]
    reads: list[EndAccess]
    then: list[str]
    behind: list[str]


@dataclass(frozen=True)
class SumNames:
    """A sum over steps, and what it is of."""

    name: str
    of: str


@dataclass(frozen=True)
class RowKernelText:
    """What the template of one kernel spells."""

    name: str
    equations: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    states: list[StateNames] = field(default_factory=list)
    stores: list[RowAccess] = field(default_factory=list)
    saves: bool = False
    ends: Ends | None = None
    once: Once | None = None
    sums: list[SumNames] = field(default_factory=list)
    shares: list[RowAccess] = field(default_factory=list)
    entries: list[str] = field(default_factory=list)
    updates: list[str] = field(default_factory=list)
    starts: list[tuple[str, str]] = field(default_factory=list)
    anew: list[tuple[str, str]] = field(default_factory=list)
    is_back: bool = False
    weights: list[RowAccess] = field(default_factory=list)
    streams: list[RowAccess] = field(default_factory=list)
    pointers: list[str] = field(default_factory=list)
    constants: str = ""
    width: str = ""
    places: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class RowKernelContext:
    """Of the templates of kernels."""

    kernel: RowKernelText


@dataclass(frozen=True)
class RowKernelSource:
    """A kernel: its text, its parameters that are arrays and sizes and what each is, its flags."""

    name: str
    text: str
    arrays: Mapping[str, str]
    dims: Mapping[str, str]
    flags: tuple[str, ...]
    streams: int
    expressions: tuple[Expr, ...]
    formed: int = 0
    """Of one that reads a segment once: numbers of a step that states have no part in."""


class RowArrays:
    """The arrays of one kernel, in the order of its parameters, and how it gets at them."""

    def __init__(self, axes: Axes) -> None:
        self.axes, self.width = axes, _width(axes)
        self.by_pointer: dict[str, str] = {}
        self.weights: list[RowAccess] = []
        self.streams: list[RowAccess] = []

    def read(self, values: Iterable[Value]) -> None:
        """Read values under their own names: weights once, others at each step."""
        for value in values:
            access = self.access(value)
            (self.streams if is_by_row(value) else self.weights).append(access)
            self.by_pointer[access.pointer] = str(value)

    def stream(self, name: str, array: str, pointer: str = "", *, shifted: bool = False) -> None:
        """Read an array of as many units as the kernel has at each step."""
        pointer = pointer or f"{name}_ptr"
        self.streams.append(RowAccess(name, pointer, self.width, "unit", self.axes, shifted))
        self.by_pointer[pointer] = array

    def write(self, name: str, array: str, spelled: str) -> RowAccess:
        """Write an array of as many units as the kernel has."""
        pointer = f"{name}_ptr"
        self.by_pointer[pointer] = array
        return RowAccess(name, pointer, self.width, "unit", self.axes, text=spelled)

    def access(self, value: Value, *, saved: bool = False) -> RowAccess:
        """How a kernel gets at a value."""
        name, axes = triton_name(value), unit_axes(value)
        unit = "unit" if axes == self.axes else _unit_of(axes)
        return RowAccess(name, f"{name}_ptr", _width(axes), unit, axes, saved=saved)

    def places(self) -> list[str]:
        """Where a unit stands along axes that values lack some of."""
        accesses = [*self.weights, *self.streams]
        narrow = {axis for one in accesses if one.axes != self.axes for axis in one.axes}
        lines = []
        for n, axis in enumerate(self.axes):
            later = self.axes[n + 1 :]
            place = "unit" if Mul(*later) == 1 else f"unit // ({_width(later)})"
            if axis in narrow:
                whole = place if n == 0 else f"({place}) % {_width((axis,))}"
                lines.append(f"{_place(axis)} = {whole}")
        return lines


def spell(
    template: str,
    kernel: RowKernelText,
    arrays: RowArrays,
    programs: Sequence[Program],
    flags: Sequence[str] = (),
) -> RowKernelSource:
    """Fill the template of a kernel, whose lines are of some programs."""
    arrays.by_pointer[f"{STEP_BEFORE.replace('.', '_')}_ptr"] = STEP_BEFORE
    counted = _sorted({dim for program in programs for dim in _dims(program)})
    dims = {dimension(dim): str(dim.name) for dim in _sorted({*_dims_of(arrays.axes), *counted})}
    whole = replace(
        kernel,
        weights=arrays.weights,
        streams=arrays.streams,
        pointers=list(arrays.by_pointer),
        constants=", ".join(f"{c}: tl.constexpr" for c in (*dims, *flags, *FIXED)),
        width=arrays.width,
        places=arrays.places(),
        before=[*map(_real, counted), *kernel.before],
    )
    filled = fill(template, RowKernelContext(whole)).strip()
    expressions = tuple(
        s.expression for program in programs for s in program.statements if s.is_pointwise
    )
    return RowKernelSource(
        kernel.name, filled, arrays.by_pointer, dims, tuple(flags), len(arrays.streams), expressions
    )


def lines_of_program(program: Program) -> tuple[list[str], list[str], list[str]]:
    """Lines before the steps, of each step, and after them.

    A sum over rows is one over steps; what follows from it waits for the last.
    """
    before, lines, after = list[str](), list[str](), list[str]()
    behind = set[Value]()
    for statement in program.statements:
        target = triton_name(statement.target)
        if is_over_rows(statement):
            after.append(f"{target} = {target}_sum")
            behind.add(statement.target)
            continue
        line = f"{target} = {_spelled_statement(statement)}"
        if is_by_row(statement.target):
            lines.append(line)
        elif behind.intersection(statement.operands):
            after.append(line)
            behind.add(statement.target)
        else:
            before.append(line)
    return before, lines, after


def sums_of(program: Program) -> list[SumNames]:
    """Sums over steps and rows."""
    return [
        SumNames(triton_name(s.target), triton_name(s.operands[0]))
        for s in program.statements
        if is_over_rows(s)
    ]


def is_over_rows(statement: Statement) -> bool:
    """Whether a statement adds up rows."""
    return statement.traits.is_sum and not is_by_row(statement.target)


def equations_of(statements: Iterable[Statement]) -> list[str]:
    """Statements as comments."""
    return [in_ascii(safe(f"{s.target} = {text(s.expression)}")) for s in statements]


def _spelled_statement(statement: Statement) -> str:
    """A statement of one unit: views and sums of narrower ones are what they are of."""
    if statement.is_pointwise:
        spelled = triton_expression(statement.expression)
        is_number = not statement.expression.atoms(Value)
        return f"tl.full([UNITS], {spelled}, ACC)" if is_number else spelled
    if statement.traits.is_reshape or statement.traits.is_sum:
        return triton_name(statement.operands[0])
    raise DerivationError(f"no kernel of Triton does `{statement}`", code=NOT_SPELLED)


def _dims(program: Program) -> set[Dim]:
    """Dimensions that stand in expressions, as numbers."""
    pointwise = (s.expression for s in program.statements if s.is_pointwise)
    return {dim for expression in pointwise for dim in expression.atoms(Dim)}


def _dims_of(axes: Axes) -> set[Dim]:
    return {dim for axis in axes for dim in axis.atoms(Dim)}


def _sorted(dims: Set[Dim]) -> list[Dim]:
    return sorted(dims, key=lambda dim: str(dim.name))


def _real(dim: Dim) -> str:
    """A line that has the size of a dimension as a number of each unit."""
    return f"{dimension(dim)}_real = tl.full([UNITS], {dimension(dim)}, ACC)"


def _width(axes: Axes) -> str:
    """``width_text`` in the names of a kernel."""
    named = {dim: Dim(dimension(dim)) for dim in _dims_of(axes)}
    return width_text(tuple(axis.xreplace(named) for axis in axes))


def width_text(axes: Axes) -> str:
    """How many units axes have together.

    >>> from cellgen.language.value import H
    >>> width_text((H,)), width_text((2 * H, H)), width_text(())
    ('H', '(2 * H) * H', '1')
    """
    terms = [[" * ".join(map(str, term)) for term in axis_factors(axis)] for axis in axes]
    texts = [" + ".join(each) for each in terms]
    return (
        " * ".join(t if is_factor(a) else f"({t})" for a, t in zip(axes, texts, strict=True)) or "1"
    )


def _place(axis: Expr) -> str:
    letters = "".join(c if c.isalnum() or c == "_" else "__" for c in format_axis(axis))
    return f"at_{letters}"


def _unit_of(axes: Axes) -> str:
    """Which number of a narrower value belongs to a unit."""
    if not axes:
        return "0 * unit"
    terms = []
    for n, axis in enumerate(axes):
        later = axes[n + 1 :]
        terms.append(_place(axis) if Mul(*later) == 1 else f"{_place(axis)} * ({_width(later)})")
    return "(" + " + ".join(terms) + ")" if len(terms) > 1 else terms[0]
